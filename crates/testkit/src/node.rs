//! A node with real pods on a control plane: containerd, kubelet, kube-proxy, all controllers, the scheduler and the
//! cluster's DNS.
//!
//! It needs root, and runs only inside `tests/node/inside.sh`, which gives it a network, mounts and processes of its own
//! and removes everything afterwards.

use std::{
    net::{IpAddr, Ipv4Addr},
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use tokio::net::{TcpListener, TcpStream};
use tokio_util::task::AbortOnDropHandle;

mod files;
pub mod images;

use super::{
    assets,
    controlplane::{ControlPlane, Controllers, StartOptions},
    folder::Folder,
    process::Process,
    wait::try_eventually,
};

/// Time limit for each step of a start.
const START: Duration = Duration::from_secs(60);
const SOCKET: &str = "/run/containerd/containerd.sock";
/// Name of the node.
pub const NAME: &str = "node";

/// What `tests/node/inside.sh` gives to a node.
#[derive(Debug, Clone)]
struct Place {
    /// Path of its control group below each hierarchy, without a leading slash.
    cgroup: String,
    /// Address that its pods and this machine reach.
    address: Ipv4Addr,
}

impl Place {
    fn find() -> Result<Self, String> {
        let read = |name: &str| {
            std::env::var(name).map_err(|_| {
                format!(
                    "{name} is not set: a node runs inside tests/node/inside.sh, as `make node` and `make node-test` do"
                )
            })
        };
        let address = read("KUBESVC_NODE_ADDRESS")?;
        let address = address.parse().map_err(|e| format!("KUBESVC_NODE_ADDRESS={address}: {e}"))?;
        Ok(Self { cgroup: read("KUBESVC_NODE_CGROUP")?, address })
    }
}

/// A control plane with one node.
#[derive(Debug)]
pub struct Node {
    // Dropped in this order.
    programs: Vec<Process>,
    _controllers: Controllers,
    plane: ControlPlane,
    place: Place,
    folder: Folder,
}

impl Node {
    /// Starts a control plane and its node, and waits until pods can run.
    ///
    /// # Errors
    ///
    /// The message says what is missing, or how a program ended and its last output.
    pub async fn start() -> Result<Self, String> {
        let place = Place::find()?;
        let found = tokio::task::spawn_blocking(assets::node_programs).await;
        let programs = found.map_err(|e| e.to_string())??;
        let folder = Folder::new("node")?;
        files::write(&folder, &place)?;
        let mut options = StartOptions::without_audit();
        (options.aggregates, options.pods) = (true, Some(place.address));
        let (plane, containerd) =
            tokio::try_join!(ControlPlane::start_with(options), start_containerd(&folder))?;
        let pause = images::Image::of_one_program(files::PAUSE_IMAGE, &programs.pause);
        import(&folder, &pause).await?;
        let controllers = plane.start_controllers(&["*"]).await?;
        let start = |name: &str, program: &Path, flags: Vec<String>| {
            let mut command = Command::new(program);
            command.current_dir(folder.path()).args(flags);
            Process::spawn(name, &command, &folder.file(&format!("{name}.log")))
        };
        std::fs::copy(plane.ca_path(), folder.file("ca.crt")).map_err(|e| format!("ca.crt: {e}"))?;
        let kubeconfig = plane.kubeconfig_path();
        let others = vec![
            start("kubelet", &programs.kubelet, files::kubelet_flags(&folder, &kubeconfig, &place))?,
            start("kube-scheduler", &programs.scheduler, files::scheduler_flags(&kubeconfig))?,
            start("kube-proxy", &programs.proxy, files::proxy_flags(&kubeconfig))?,
            start("dns", &programs.dns, files::dns_flags(&kubeconfig, &place))?,
            containerd,
        ];
        let node = Self { programs: others, _controllers: controllers, plane, place, folder };
        try_eventually("a node that runs pods", START, async || node.ready().await)
            .await
            .map_err(|reason| node.with_logs(&reason))?;
        Ok(node)
    }

    /// The control plane.
    pub fn plane(&self) -> &ControlPlane {
        &self.plane
    }

    /// Address that pods and this machine reach.
    pub fn address(&self) -> IpAddr {
        self.place.address.into()
    }

    /// Makes an image known to the node, as if it had been pulled.
    ///
    /// # Errors
    ///
    /// The image cannot be put together; the message names the program.
    pub async fn import(&self, image: &images::Image) -> Result<(), String> {
        import(&self.folder, image).await
    }

    /// Gives an image of the node another name.
    ///
    /// # Errors
    ///
    /// The node has no such image.
    pub async fn tag(&self, image: &str, name: &str) -> Result<(), String> {
        ctr(&["images", "tag", "--force", image, name]).await
    }

    /// Passes connections of pods to a port of 127.0.0.1 on, such as that of a database: it has the same number at
    /// [`Node::address`].
    ///
    /// # Errors
    ///
    /// The port is not free.
    pub async fn open(&self, port: u16) -> Result<AbortOnDropHandle<()>, String> {
        let listener =
            TcpListener::bind((self.address(), port)).await.map_err(|e| format!("port {port}: {e}"))?;
        Ok(AbortOnDropHandle::new(tokio::spawn(async move {
            while let Ok((mut near, _)) = listener.accept().await {
                tokio::spawn(async move {
                    if let Ok(mut far) = TcpStream::connect(("127.0.0.1", port)).await {
                        // The end of either side ends the other.
                        let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
                    }
                });
            }
        })))
    }

    /// Returns a kubeconfig with all rights for this machine, outside of the node's network.
    pub fn kubeconfig_from_outside(&self) -> String {
        self.plane.admin_kubeconfig().replace("127.0.0.1", &self.place.address.to_string())
    }

    /// Folder with the logs of the node's programs.
    pub fn logs(&self) -> &Path {
        self.folder.path()
    }

    /// Checks the node's condition, the account of pods, and the DNS.
    async fn ready(&self) -> Result<(), String> {
        let condition = "jsonpath={.status.conditions[?(@.type==\"Ready\")].status}";
        let is_ready = self.plane.kubectl(["get", "node", NAME, "-o", condition]).await.ok()?;
        if is_ready != "True" {
            return Err(format!("the node's condition Ready is {is_ready:?}"));
        }
        self.plane.kubectl(["get", "serviceaccount", "default", "-n", "default"]).await.ok()?;
        let dns = std::fs::read_to_string(self.folder.file("dns.log")).unwrap_or_default();
        if dns.contains("answering") { Ok(()) } else { Err(format!("dns: {dns}")) }
    }

    fn with_logs(&self, reason: &str) -> String {
        let last = |process: &Process| format!("{}:\n{}\n", process.name(), process.log_tail(10));
        let logs: String = self.programs.iter().map(last).collect();
        format!("{reason}\n{logs}")
    }
}

async fn start_containerd(folder: &Folder) -> Result<Process, String> {
    let mut command = Command::new("containerd");
    command.current_dir(folder.path()).arg("--config").arg(folder.file("containerd.toml"));
    let process = Process::spawn("containerd", &command, &folder.file("containerd.log"))?;
    try_eventually("containerd", START, async || match process.check_running() {
        Err(reason) => Ok(Err(reason)),
        Ok(()) => ctr(&["version"]).await.map(Ok),
    })
    .await??;
    Ok(process)
}

async fn import(folder: &Folder, image: &images::Image) -> Result<(), String> {
    let (to, image) = (folder.path().to_path_buf(), image.clone());
    let written = tokio::task::spawn_blocking(move || image.write(&to)).await;
    let archive: PathBuf = written.map_err(|e| e.to_string())??;
    let done = ctr(&["images", "import", &archive.display().to_string()]).await;
    std::fs::remove_file(&archive).map_err(|e| format!("{}: {e}", archive.display()))?;
    done
}

/// Runs containerd's client in the namespace of the kubelet's images.
async fn ctr(arguments: &[&str]) -> Result<(), String> {
    let mut command = tokio::process::Command::new("ctr");
    command.args(["--address", SOCKET, "--namespace", "k8s.io"]).args(arguments).kill_on_drop(true);
    let output = command.output().await.map_err(|e| format!("ctr: {e}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("ctr {arguments:?}: {}", String::from_utf8_lossy(&output.stderr)))
}
