//! The three ways to a cluster, each with a namespace of its own and the same credential at the end.

use std::path::{Path, PathBuf};
use std::time::Duration;

use kube::Client;
use kubesvc_core::State;
use tokio_util::task::AbortOnDropHandle;

use super::kubelet;
use super::lines::{Door, Line, User, split};
use crate::gateway::place::{ACCOUNT, EVERYTHING, Place, kubectl, path_of};
use crate::world::{MAX_WAIT, in_repository};
use kubesvc_testkit::controlplane::{Controllers, client_from, kubectl_path};
use kubesvc_testkit::folder::Folder;
use kubesvc_testkit::kubectl::Output;
use kubesvc_testkit::process::{Process, Streams};
use kubesvc_testkit::wait::{eventually, try_eventually};
use kubesvc_testkit::{assets, kubeconfig, must};

/// Time limit for a command line.
const LINE_TIMEOUT: Duration = Duration::from_secs(90);
/// Controllers that roll out, and that delete what is owned.
const CONTROLLERS: [&str; 6] = [
    "deployment-controller",
    "replicaset-controller",
    "statefulset-controller",
    "daemonset-controller",
    "garbage-collector-controller",
    "namespace-controller",
];
/// The account whose credential may read ConfigMaps alone.
const LIMITED: &str = "limited";

/// A way to the cluster.
pub(super) struct Way {
    /// `None`: directly, with the agent's own credential.
    pub(super) door: Option<Door>,
    /// Its name, in the names of all that is its own.
    pub(super) name: String,
    pub(super) namespace: String,
    /// URL of the server of each user.
    pub(super) servers: [String; 2],
    kubeconfigs: [PathBuf; 2],
    /// A kubeconfig of the cluster itself.
    itself: PathBuf,
    folder: PathBuf,
}

/// An account's cluster, and the ways to it.
pub(super) struct Setting {
    pub(super) ways: [Way; 3],
    _kubelet: AbortOnDropHandle<()>,
    _controllers: Controllers,
    pub(super) place: Place,
    _folder: Folder,
}

impl Setting {
    pub(super) async fn start() -> Self {
        let place = Place::start(true).await;
        let controllers = must(place.target.start_controllers(&CONTROLLERS).await);
        let folder = must(Folder::new("ways"));
        let itself = place.target.kubeconfig_path();
        let limited = make_limited(&place, &itself).await;
        place.world.account(LIMITED).zone("east").kubeconfig(&limited).create().await;
        place.world.until(LIMITED, State::Active).await;
        let token = place.person("ann", EVERYTHING, None).await;
        let direct_token = place.token("ann", Some("kubesvc")).await;
        until_available(&place).await;

        let own = [place.target.admin_kubeconfig(), limited];
        let through = |server: &str, authority: &str, token: &str| {
            [ACCOUNT, LIMITED].map(|account| {
                let server = format!("{server}{}", path_of(place.world.namespace(), account));
                kubeconfig::yaml(&server, authority, kubeconfig::Proof::Token(token))
            })
        };
        let plane = place.world.control_plane();
        let aggregated = through(&plane.server_url(), &plane.ca_pem(), &token);
        let direct = through(&format!("https://localhost:{}", place.port), &place.authority, &direct_token);
        let make =
            |number: usize, door, configs: &[String; 2]| Way::make(&folder, number, door, configs, &itself);
        let ways = [
            make(0, None, &own),
            make(1, Some(Door::Aggregated), &aggregated),
            make(2, Some(Door::Direct), &direct),
        ];
        for way in &ways {
            way.prepare().await;
        }
        let namespaces = ways.iter().map(|way| way.namespace.clone()).collect();
        let kubelet = kubelet::start(place.target.client().await, namespaces);
        Self { ways, _kubelet: kubelet, _controllers: controllers, place, _folder: folder }
    }
}

/// Waits until the operator's API server passes calls on.
pub(super) async fn until_available(place: &Place) {
    let wait = ["wait", "--for=condition=Available", "apiservice/v1alpha1.proxy.kubesvc.io", "--timeout=5s"];
    let plane = place.world.control_plane();
    eventually("an available APIService", MAX_WAIT, async || plane.kubectl(wait).await.ok()).await;
}

/// Makes a user of the cluster who may see namespaces, and a kubeconfig of it.
async fn make_limited(place: &Place, itself: &Path) -> String {
    for arguments in [
        "create serviceaccount limited",
        "create clusterrole limited --verb=get,list --resource=namespaces",
        "create clusterrolebinding limited --clusterrole=limited --serviceaccount=default:limited",
    ] {
        let words = split(arguments);
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        must(kubectl(itself, &words, "").await.ok());
    }
    let token = must(kubectl(itself, &["create", "token", "limited", "--duration=2h"], "").await.ok());
    place.target.kubeconfig_for_token(token.trim())
}

impl Way {
    fn make(
        folder: &Folder,
        number: usize,
        door: Option<Door>,
        kubeconfigs: &[String; 2],
        itself: &Path,
    ) -> Self {
        let name = format!("way{number}");
        let namespace = format!("shop-{name}");
        let own = folder.file(&name);
        must(std::fs::create_dir_all(own.join("itself")).map_err(|e| e.to_string()));
        let write = |file: &str, text: &str| {
            let path = own.join(file);
            must(std::fs::write(&path, text).map_err(|e| format!("{}: {e}", path.display())));
            path
        };
        let in_namespace =
            |text: &str| text.replace("namespace: default", &format!("namespace: {namespace}"));
        let servers = kubeconfigs.each_ref().map(|text| server_of(text));
        let itself = must(std::fs::read_to_string(itself).map_err(|e| e.to_string()));
        write(
            "big.txt",
            &"A line of a file that is large enough for answers to be compressed.\n".repeat(6000),
        );
        let watched = format!(
            "{{apiVersion: v1, kind: ConfigMap, metadata: {{name: watched, namespace: {namespace}, labels: {{watched: 'yes'}}}}, data: {{a: '1'}}}}"
        );
        write("watched.yaml", &watched);
        Self {
            door,
            kubeconfigs: [
                write("admin.kubeconfig", &in_namespace(&kubeconfigs[0])),
                write("limited.kubeconfig", &in_namespace(&kubeconfigs[1])),
            ],
            itself: write("itself/kubeconfig", &in_namespace(&itself)),
            servers,
            folder: own,
            name,
            namespace,
        }
    }

    /// Makes the namespace, in which the limited user may read ConfigMaps.
    async fn prepare(&self) {
        for arguments in [
            "create namespace $NS",
            "create role limited --verb=get,list --resource=configmaps",
            "create rolebinding limited --role=limited --serviceaccount=default:limited",
        ] {
            must(self.at_itself(arguments).await.ok());
        }
    }

    /// A text in which the names of this way are put.
    pub(super) fn fill(&self, text: &str) -> String {
        text.replace("$NS", &self.namespace)
            .replace("$WAY", &self.name)
            .replace("$DIR", &self.folder.display().to_string())
            .replace("$CHART", &in_repository("tests/transparency/chart"))
    }

    /// A client that goes this way, with all rights.
    pub(super) async fn client(&self) -> Client {
        let text = must(std::fs::read_to_string(&self.kubeconfigs[0]).map_err(|e| e.to_string()));
        must(client_from(&text).await)
    }

    /// A text without the folder of this way.
    pub(super) fn without_folder(&self, text: &str) -> String {
        text.replace(&self.folder.display().to_string(), "DIR")
    }

    /// Runs kubectl at the cluster itself, in the namespace of this way.
    async fn at_itself(&self, arguments: &str) -> Output {
        let words: Vec<_> = split(arguments).iter().map(|word| self.fill(word)).collect();
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        kubectl(&self.itself, &words, "").await
    }

    /// Does it until it succeeds.
    async fn until_done(&self, arguments: &str) -> Result<(), String> {
        let doing = async || self.at_itself(arguments).await.ok().map(drop);
        try_eventually(arguments, LINE_TIMEOUT, doing).await
    }

    /// Runs a line this way.
    pub(super) async fn run(&self, line: &Line) -> Result<Output, String> {
        for arguments in &line.before {
            self.until_done(arguments).await?;
        }
        let outputs = Folder::new("line")?;
        let process = self.spawn(line, &outputs)?;
        let text = |name: &str| {
            std::fs::read(outputs.file(name))
                .map(|text| String::from_utf8_lossy(&text).into_owned())
                .unwrap_or_default()
        };
        if !line.meanwhile.is_empty() {
            if line.starts == super::lines::Starts::FirstLine {
                try_eventually("a first line", LINE_TIMEOUT, async || has_lines(&text("stdout"), 1)).await?;
            }
            for arguments in &line.meanwhile {
                self.until_done(arguments).await?;
            }
        }
        let code = match line.lines {
            None => process.wait(LINE_TIMEOUT).await?.code(),
            Some(count) => {
                let read = async || has_lines(&text("stdout"), count);
                let read = try_eventually("the last line", LINE_TIMEOUT, read).await;
                process.kill();
                read.map_err(|e| format!("{e}{}", text("stderr")))?;
                Some(0)
            }
        };
        Ok(Output { code, stdout: text("stdout"), stderr: text("stderr") })
    }

    fn spawn(&self, line: &Line, outputs: &Folder) -> Result<Process, String> {
        let words: Vec<_> = line.words().iter().map(|word| self.fill(word)).collect();
        let (program, arguments) = words.split_first().expect("a program");
        let program = if program == "helm" { assets::helm()? } else { kubectl_path()? };
        let user = usize::from(line.user == User::Limited);
        let mut command = std::process::Command::new(program);
        command
            .args(arguments)
            .current_dir(&self.folder)
            .env("KUBECONFIG", &self.kubeconfigs[user])
            .env("KUBERC", "off")
            .env("KUBECACHEDIR", self.folder.join("cache"))
            .env("HELM_CACHE_HOME", self.folder.join("helm-cache"))
            .env("HELM_CONFIG_HOME", self.folder.join("helm-config"))
            .env("HELM_DATA_HOME", self.folder.join("helm-data"))
            .env("HELM_NAMESPACE", &self.namespace)
            .env("NO_COLOR", "1");
        for (name, value) in &line.env {
            command.env(name, self.fill(value));
        }
        let streams = Streams {
            input: Some(outputs.write("stdin", &self.fill(&line.input))?),
            output: Some(outputs.file("stdout")),
            errors: outputs.file("stderr"),
        };
        Process::spawn_with("a command line", &command, &streams)
    }
}

fn has_lines(text: &str, count: usize) -> Result<(), String> {
    let lines = text.lines().count();
    if lines >= count { Ok(()) } else { Err(format!("{lines} lines:\n{text}")) }
}

fn server_of(kubeconfig: &str) -> String {
    let line = kubeconfig.lines().find_map(|line| line.trim().strip_prefix("server: "));
    line.expect("a kubeconfig names a server").to_owned()
}
