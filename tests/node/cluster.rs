//! The node that all stories share, and the commands of a person who has kubectl, Helm and the plugin.

use std::collections::{BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use kubesvc_testkit::databases::{Kind, Server, own};
use kubesvc_testkit::folder::Folder;
use kubesvc_testkit::kubectl::Output;
use kubesvc_testkit::node::{Node, images::Image};
use kubesvc_testkit::process::Process;
use kubesvc_testkit::wait::eventually;
use kubesvc_testkit::{helm, must};
use serde_json::Value;
use tokio::sync::OnceCell;
use tokio_util::task::AbortOnDropHandle;

/// Time limit for what a cluster does within seconds.
pub(crate) const MAX_WAIT: Duration = Duration::from_secs(90);
/// The namespace of the pages.
pub(crate) const NAMESPACE: &str = "kubesvc";
/// The image's name in the charts, as a node calls it.
const IMAGE: &str = concat!("docker.io/library/kubesvc:", env!("CARGO_PKG_VERSION"));
/// The version that upgrades go to: the same programs by another name.
pub(crate) const NEXT_VERSION: &str = "0.1.1";
/// Installs the operator and an agent beside it that takes accounts from the operator.
pub(crate) const INSTALL: &str = "helm install kubesvc charts/kubesvc -n kubesvc --create-namespace
helm install kubesvc-agent charts/kubesvc-agent -n kubesvc --set mode=spinnaker-service";

/// Waits until the replicas of the operator have started.
pub(crate) const ROLLED_OUT: &str =
    "kubectl -n kubesvc rollout status deployment/kubesvc-operator --timeout=2m";
/// Prints how many replicas of the operator are ready.
pub(crate) const READY: &str =
    "kubectl get deployment kubesvc-operator -n kubesvc -o jsonpath='{.status.readyReplicas}'";
/// What stands for the URL of a database in the pages.
pub(crate) const DATABASE: &str = "postgres://kubesvc:PASSWORD@db.example:5432/kubesvc?ssl-mode=verify-full";

/// The node, with its kubeconfig for pods and people.
pub(crate) struct Cluster {
    pub(crate) node: Node,
    kubeconfig: PathBuf,
    _folder: Folder,
}

static SHARED: OnceCell<Cluster> = OnceCell::const_new();

impl Cluster {
    /// The shared node without any installation, whatever the story before has left.
    pub(crate) async fn clean() -> &'static Self {
        let cluster = must(SHARED.get_or_try_init(Self::start).await);
        cluster.sh(WIPE);
        cluster
    }

    async fn start() -> Result<Self, String> {
        let begun = Instant::now();
        let node = Node::start().await?;
        let programs = Path::new(env!("CARGO_BIN_EXE_kubesvc-operator")).parent().expect("a folder");
        node.import(&Image::of_kubesvc(IMAGE, programs)).await?;
        let next = IMAGE.replace(env!("CARGO_PKG_VERSION"), NEXT_VERSION);
        node.tag(IMAGE, &next).await?;
        told("the node, from nothing, with both images", begun);
        let folder = Folder::new("people")?;
        let kubeconfig = folder.write("kubeconfig", &node.kubeconfig_from_outside())?;
        Ok(Self { node, kubeconfig, _folder: folder })
    }

    /// Runs commands in the root of the repository, and returns what they print. The test fails if one of them does.
    pub(crate) fn sh(&self, commands: &str) -> String {
        let done = self.try_sh(commands);
        assert_eq!(done.code, Some(0), "{commands}\n{}{}\n{}", done.stderr, done.stdout, self.overview());
        done.stdout
    }

    /// Like [`Cluster::sh`], with any exit code.
    pub(crate) fn try_sh(&self, commands: &str) -> Output {
        try_sh_with(&self.kubeconfig, commands)
    }

    /// The kubeconfig of its administrator.
    pub(crate) fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// What a person would look at first when something fails.
    pub(crate) fn overview(&self) -> String {
        let commands = "kubectl get pods,ksa,ksg -A -o wide || kubectl get pods -A
            kubectl get events -A --sort-by=.lastTimestamp | tail -15
            kubectl logs -n kubesvc -l app.kubernetes.io/name=kubesvc-operator --tail=15
            kubectl logs -n kubesvc -l app.kubernetes.io/name=kubesvc-agent --tail=15";
        let commands = format!("set +e\n{commands}\ntrue");
        let seen = self.try_sh(&commands);
        seen.stdout + &seen.stderr
    }

    /// Parses what a command prints as JSON.
    pub(crate) fn json(&self, command: &str) -> Value {
        let printed = self.sh(command);
        must(serde_json::from_str(&printed).map_err(|e| format!("{command}: {e}: {printed}")))
    }

    /// Waits until an account has this state.
    pub(crate) async fn account(&self, name: &str, state: &str) {
        let look = format!("kubectl get ksa {name} -n kubesvc -o jsonpath='{{.status.state}}'");
        self.prints(&look, |printed| printed == state).await;
    }

    /// Waits until a command prints what is expected.
    pub(crate) async fn prints(&self, command: &str, expected: impl Fn(&str) -> bool) {
        let reached = async || {
            let done = self.try_sh(command);
            let text = done.stdout.trim();
            if done.code == Some(0) && expected(text) {
                return Ok(());
            }
            Err(format!("{command}: {text}{}", done.stderr))
        };
        let waited = kubesvc_testkit::wait::try_eventually(command, MAX_WAIT, reached).await;
        must(waited.map_err(|reason| format!("{reason}\n{}", self.overview())));
    }

    /// Makes an account of the operator for the node's own cluster, as docs/credentials.md says, and waits until it is
    /// ACTIVE.
    pub(crate) async fn make_account(&self, name: &str) {
        self.sh(&format!(
            "kubectl kubesvc credential create {name} --target-context kubesvc --preset deploy --target-namespace target --namespace kubesvc
kubectl apply --namespace kubesvc -f - <<'YAML'
apiVersion: kubesvc.io/v1alpha1
kind: KubesvcAccount
metadata:
  name: {name}
spec:
  zoneId: kubesvc-agent_kubesvc
  kubeconfig:
    secretRef: {{name: {name}}}
YAML"
        ));
        self.account(name, "ACTIVE").await;
    }

    /// A database that pods reach, and its URL for them.
    pub(crate) async fn database(&self, kind: Kind) -> (String, (Server, AbortOnDropHandle<()>)) {
        let server = must(own(kind).await);
        let open = must(self.node.open(server.port()).await);
        let url = server.fresh_database().await.replace("127.0.0.1", &self.node.address().to_string());
        (url, (server, open))
    }

    /// Watches the states of all accounts from now on.
    pub(crate) async fn watch_states(&self) -> States {
        let folder = must(Folder::new("states"));
        let mut command = std::process::Command::new(must(kubesvc_testkit::controlplane::kubectl_path()));
        let columns = "custom-columns=NAME:.metadata.name,STATE:.status.state";
        command.args(["get", "ksa", "-n", NAMESPACE, "--watch", "--no-headers", "-o", columns]);
        command.env("KUBECONFIG", &self.kubeconfig);
        let process = must(Process::spawn("kubectl get --watch", &command, &folder.file("log")));
        eventually("the first states", MAX_WAIT, async || {
            if process.log_text().is_empty() { Err("nothing yet".into()) } else { Ok(()) }
        })
        .await;
        States { process, _folder: folder }
    }
}

/// Runs commands in the root of the repository with this kubeconfig, as a person who has kubectl, Helm and the plugin.
pub(crate) fn try_sh_with(kubeconfig: &Path, commands: &str) -> Output {
    let plugin = Path::new(env!("CARGO_BIN_EXE_kubectl-kubesvc")).parent().expect("a folder").display();
    let all = format!("set -e\nPATH=\"$PATH:{plugin}\"\n{commands}");
    tokio::task::block_in_place(|| helm::shell(kubeconfig, &all))
}

/// The states that accounts had since the watch began.
pub(crate) struct States {
    process: Process,
    _folder: Folder,
}

impl States {
    /// Checks that no account has left ACTIVE once it was.
    pub(crate) fn all_active(&self) {
        must(self.process.check_running());
        let text = self.process.log_text();
        let mut were_active = BTreeSet::new();
        for line in text.lines() {
            let mut words = line.split_whitespace();
            let (name, is_active) = (words.next(), words.next() == Some("ACTIVE"));
            assert!(is_active || !were_active.contains(&name), "an account left ACTIVE:\n{text}");
            if is_active {
                were_active.insert(name);
            }
        }
        assert!(!were_active.is_empty(), "no account was ACTIVE:\n{text}");
    }
}

/// Removes everything that a story may have left, in any state.
const WIPE: &str = r#"
kubectl uncordon node >/dev/null
for release in $(helm list --all-namespaces --output json | tr '{' '\n' | sed -n 's/.*"name":"\([^"]*\)","namespace":"\([^"]*\)".*/\2:\1/p'); do
  helm uninstall "${release#*:}" --namespace "${release%%:*}" >/dev/null
done
kubectl delete namespace kubesvc target team-a team-b stranger monitoring --ignore-not-found --wait=false >/dev/null
if kubectl get crd kubesvcaccounts.kubesvc.io >/dev/null 2>&1; then
  kubectl get ksa -A --no-headers -o custom-columns=A:.metadata.namespace,B:.metadata.name | while read -r namespace name; do
    # In this order: an operator that still ends cannot add a finalizer to what is being deleted.
    kubectl delete ksa "$name" --namespace "$namespace" --ignore-not-found --wait=false >/dev/null
    kubectl patch ksa "$name" --namespace "$namespace" --type=merge --patch '{"metadata":{"finalizers":null}}' >/dev/null 2>&1 || true
  done
fi
kubectl delete crd kubesvcaccounts.kubesvc.io kubesvcagents.kubesvc.io kubesvcidentities.kubesvc.io kubesvcmigrations.kubesvc.io --ignore-not-found >/dev/null
kubectl delete apiservice v1alpha1.proxy.kubesvc.io --ignore-not-found >/dev/null
kubectl delete rolebinding --namespace kube-system kubesvc-operator-authentication-reader --ignore-not-found >/dev/null
for kind in clusterroles clusterrolebindings; do
  kubectl get "$kind" -o name | grep kubesvc | xargs -r kubectl delete >/dev/null
done
for namespace in kubesvc target team-a team-b stranger monitoring; do
  kubectl wait --for=delete "namespace/$namespace" --timeout=90s >/dev/null
done
"#;

/// Prints a line of the table that a run ends with.
pub(crate) fn told(what: &str, begun: Instant) {
    eprintln!("| {what} | {:.1} s |", begun.elapsed().as_secs_f64());
}

/// Reads a page of the repository.
pub(crate) fn page(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    must(std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display())))
}

/// Reads the page of upgrade and backup, whose commands keep their files in this folder.
pub(crate) fn upgrade_page(folder: &Folder) -> String {
    let mut page = page("docs/upgrade.md");
    for file in
        ["kubesvc-objects.json", "kubesvc-secrets.json", "kubesvc-values.yaml", "kubesvc-agent-values.yaml"]
    {
        page = page.replace(file, &folder.file(file).display().to_string());
    }
    page
}

/// A section of a page, without those below it.
pub(crate) fn section<'a>(page: &'a str, title: &str) -> &'a str {
    let found = page.split("\n#").find(|section| section.trim_start_matches(['#', ' ']).starts_with(title));
    found.unwrap_or_else(|| unreachable!("the page has no section {title}"))
}

/// Parts of command lines that cannot run on a node, and what they need.
const NOT_HERE: [(&str, &str); 3] = [
    ("docker ", "an engine that builds images; `make image-check` runs it"),
    (" oci://", "a published release"),
    (" krew ", "a published release, and krew"),
];

/// The blocks of commands in a page, without the lines that cannot run on a node.
pub(crate) fn blocks(page: &str) -> Vec<String> {
    let all = page.split("```").skip(1).step_by(2).filter_map(|block| block.strip_prefix("sh\n"));
    let runnable = |block: &str| {
        let needs_more = |line: &str| NOT_HERE.iter().any(|(part, _)| line.contains(part));
        let lines: Vec<_> = block.lines().filter(|line| !needs_more(line)).collect();
        lines.join("\n").trim_end().to_owned()
    };
    all.map(runnable).filter(|block| !block.is_empty()).collect()
}

/// Replaces what stands for something else in a page. It has to be there.
pub(crate) fn put(page: &str, placeholders: &[(&str, &str)]) -> String {
    placeholders.iter().fold(page.to_owned(), |page, (placeholder, value)| {
        assert!(page.contains(placeholder), "{placeholder} is not in the page:\n{page}");
        page.replace(placeholder, value)
    })
}

/// A page whose blocks of commands are run one after the other, each as it is pasted.
pub(crate) struct Walk {
    cluster: &'static Cluster,
    name: &'static str,
    left: VecDeque<String>,
}

impl Walk {
    pub(crate) fn of(cluster: &'static Cluster, name: &'static str, page: &str) -> Self {
        Self { cluster, name, left: blocks(page).into() }
    }

    /// Runs this number of blocks of the section, which has to be where the page goes on. Returns what they print.
    pub(crate) fn on(&mut self, section: &str, count: usize) -> String {
        let begun = Instant::now();
        let next = self.left.drain(..count.min(self.left.len()));
        // What is left in the background ends with the block: a person ends it later.
        let run = |block: String| {
            let ends = if block.contains(" &\n") { "trap 'kill $!' EXIT\n" } else { "" };
            self.cluster.sh(&format!("{ends}{block}"))
        };
        let printed = next.map(run).collect();
        told(&format!("{}, {section}", self.name), begun);
        printed
    }

    /// Checks that no block is left.
    pub(crate) fn ends(self) {
        assert!(self.left.is_empty(), "{}: not run: {:?}", self.name, self.left);
    }
}
