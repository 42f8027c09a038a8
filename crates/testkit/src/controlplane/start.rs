//! How a control plane is started: its options, and the command lines of etcd, kube-apiserver and
//! kube-controller-manager.

use std::{net::Ipv4Addr, path::Path, process::Command};

use tokio::net::UnixStream;

use super::{ControlPlane, START};
use crate::{
    assets::{self, Assets},
    folder::Folder,
    namespace::random,
    process::Process,
    wait::try_eventually,
};

/// Options of a control plane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartOptions {
    pub(super) users: Vec<User>,
    /// Whether writes are recorded for [`ControlPlane::writes`]. Defaults to true.
    pub audit: bool,
    /// Whether the API server serves aggregated APIs: it passes calls on to Services by their EndpointSlices, with a
    /// client certificate of its own, and says in headers who calls. Defaults to false.
    pub aggregates: bool,
    /// Address of this machine that pods reach. With it, the API server listens on all addresses, publishes this one,
    /// requires a service account of each pod, and calls kubelets with a certificate of its own. Defaults to none: there
    /// are no pods.
    pub pods: Option<Ipv4Addr>,
    /// Additional flags of the API server. They come last and therefore take precedence.
    pub apiserver_flags: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct User {
    pub(super) name: String,
    groups: Vec<String>,
    pub(super) token: String,
}

impl Default for StartOptions {
    fn default() -> Self {
        Self { users: Vec::new(), audit: true, aggregates: false, pods: None, apiserver_flags: Vec::new() }
    }
}

impl StartOptions {
    /// Options without the audit log, which costs the API server time.
    pub fn without_audit() -> Self {
        Self { audit: false, ..Self::default() }
    }

    /// Adds a user and returns its token. The user has no rights until RBAC objects grant some.
    pub fn add_user(&mut self, name: &str, groups: &[&str]) -> String {
        let token = random(32);
        let groups = groups.iter().map(|&group| group.to_owned()).collect();
        self.users.push(User { name: name.into(), groups, token: token.clone() });
        token
    }

    /// Adds a user with a given token, such as one that another control plane accepts too.
    pub fn add_user_with_token(&mut self, name: &str, groups: &[&str], token: &str) {
        let groups = groups.iter().map(|&group| group.to_owned()).collect();
        self.users.push(User { name: name.into(), groups, token: token.to_owned() });
    }

    /// Returns the lines of `--token-auth-file`.
    pub(super) fn token_file(&self, admin: &str) -> String {
        let mut text = format!("{admin},kubesvc-admin,kubesvc-admin,\"system:masters\"\n");
        for User { name, groups, token } in &self.users {
            text += &format!("{token},{name},{name},\"{}\"\n", groups.join(","));
        }
        text
    }
}

/// A socket in the folder of the control plane, where both programs run. With a TCP port, the API server could
/// connect to another process's etcd that has taken the port first.
const ETCD_URL: &str = "unix://etcd.sock";

impl ControlPlane {
    pub(super) fn apiserver_command(&self) -> Command {
        self.apiserver_command_at(self.port, ETCD_URL, "certificates")
    }

    /// Returns the command of an API server of this control plane on another port, with another URL of etcd and its
    /// own folder for generated certificates.
    pub(super) fn apiserver_command_at(&self, port: u16, etcd: &str, certificates: &str) -> Command {
        let flag = |name: &str, file: &str| format!("--{name}={}", self.folder.file(file).display());
        let mut command = Command::new(&self.assets.kube_apiserver);
        command
            .current_dir(self.folder.path())
            .arg(format!("--etcd-servers={etcd}"))
            .arg(format!("--secure-port={port}"))
            .arg(flag("cert-dir", certificates))
            .arg(flag("tls-cert-file", "server.crt"))
            .arg(flag("tls-private-key-file", "server.key"))
            .arg(flag("client-ca-file", "ca.crt"))
            .arg(flag("token-auth-file", "tokens.csv"))
            .arg("--authorization-mode=RBAC")
            .arg("--service-account-issuer=https://kubernetes.default.svc")
            .arg(flag("service-account-key-file", "service-account.pub"))
            .arg(flag("service-account-signing-key-file", "service-account.key"))
            .arg("--service-cluster-ip-range=10.96.0.0/16")
            .arg("--allow-privileged=true");
        if let Some(address) = self.options.pods {
            command
                .args(["--bind-address=0.0.0.0", &format!("--advertise-address={address}")])
                .arg(flag("kubelet-client-certificate", "kubelet-client.crt"))
                .arg(flag("kubelet-client-key", "kubelet-client.key"))
                .arg("--kubelet-preferred-address-types=InternalIP");
        } else {
            command
                .arg("--bind-address=127.0.0.1")
                // No controller creates the default service account that this plugin would wait for.
                .arg("--disable-admission-plugins=ServiceAccount")
                // The reconciler would publish the server's own address, and 127.0.0.1 is not allowed there.
                .arg("--endpoint-reconciler-type=none");
        }
        if self.options.audit {
            command
                .arg(flag("audit-policy-file", "audit-policy.yaml"))
                .arg(flag("audit-log-path", "audit.log"))
                .arg("--audit-log-mode=blocking");
        }
        if self.options.aggregates {
            command
                .arg(flag("requestheader-client-ca-file", "front-proxy-ca.crt"))
                .arg("--requestheader-allowed-names=front-proxy-client")
                .arg("--requestheader-username-headers=X-Remote-User")
                .arg("--requestheader-group-headers=X-Remote-Group")
                .arg("--requestheader-extra-headers-prefix=X-Remote-Extra-")
                .arg(flag("proxy-client-cert-file", "front-proxy.crt"))
                .arg(flag("proxy-client-key-file", "front-proxy.key"))
                .arg("--enable-aggregator-routing=true");
        }
        command.args(&self.options.apiserver_flags);
        command
    }
}

/// A running kube-controller-manager, which ends on drop.
#[derive(Debug)]
pub struct Controllers {
    process: Process,
}

impl Controllers {
    /// Returns the error of a program that has ended.
    ///
    /// # Errors
    ///
    /// It has ended. The message contains the last lines of its log.
    pub fn check_running(&self) -> Result<(), String> {
        self.process.check_running()
    }
}

impl ControlPlane {
    /// Starts kube-controller-manager with these controllers, such as `deployment-controller`. Not on the shared control
    /// plane, whose tests expect none.
    ///
    /// # Errors
    ///
    /// The program is missing and cannot be built, or cannot start.
    pub async fn start_controllers(&self, names: &[&str]) -> Result<Controllers, String> {
        let found = tokio::task::spawn_blocking(assets::controller_manager).await;
        let mut command = Command::new(found.map_err(|e| e.to_string())??);
        let kubeconfig = self.folder.file("kubeconfig");
        command
            .current_dir(self.folder.path())
            .arg(format!("--kubeconfig={}", kubeconfig.display()))
            .arg(format!("--controllers={}", names.join(",")))
            // For the controllers that make tokens and publish the authority to pods, if they are among them.
            .arg(format!(
                "--service-account-private-key-file={}",
                self.folder.file("service-account.key").display()
            ))
            .arg(format!("--root-ca-file={}", self.folder.file("ca.crt").display()))
            .args(["--leader-elect=false", "--secure-port=0", "--kube-api-qps=200", "--kube-api-burst=400"]);
        let log = self.folder.file("kube-controller-manager.log");
        Ok(Controllers { process: Process::spawn("kube-controller-manager", &command, &log)? })
    }
}

pub(super) async fn start_etcd(assets: &Assets, folder: &Folder) -> Result<Process, String> {
    let mut command = Command::new(&assets.etcd);
    command
        .current_dir(folder.path())
        .args(["--data-dir", "etcd", "--listen-client-urls", ETCD_URL])
        // Required flags; nothing connects to these addresses.
        .args(["--advertise-client-urls", "http://127.0.0.1:0", "--listen-peer-urls", "http://127.0.0.1:0"])
        .args(["--unsafe-no-fsync", "--log-level=warn"]);
    let process = Process::spawn("etcd", &command, &folder.file("etcd.log"))?;
    try_eventually("etcd", START, async || match process.check_running() {
        Err(reason) => Ok(Err(reason)),
        Ok(()) => listening(&folder.file("etcd.sock")).await.map(Ok),
    })
    .await??;
    Ok(process)
}

async fn listening(socket: &Path) -> Result<(), String> {
    UnixStream::connect(socket).await.map(drop).map_err(|e| format!("{}: {e}", socket.display()))
}
