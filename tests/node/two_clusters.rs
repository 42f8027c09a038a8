//! Two clusters with real pods, and an agent of each mode: from nothing to three replicas and back, and away.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use kubesvc_testkit::databases::Kind;
use kubesvc_testkit::folder::Folder;
use kubesvc_testkit::kubeconfig::with_contexts;
use kubesvc_testkit::must;
use kubesvc_testkit::process::Process;
use kubesvc_testkit::wait::{eventually, try_eventually};

use crate::cluster::{
    Cluster, DATABASE, ROLLED_OUT, blocks, page, put, section, told, try_sh_with, upgrade_page,
};

/// Time limit for the start of a node, from nothing.
const START: Duration = Duration::from_secs(90);
/// Time limit for its end.
const END: Duration = Duration::from_secs(30);
/// Time limit for all agents to hold all accounts.
const HOLDING: Duration = Duration::from_secs(60);
/// The accounts: of the agent of mode Agent, of that of mode Infrastructure, and of the operator.
const ACCOUNTS: [&str; 3] = ["production", "staging", "payments"];
/// Whether connected agents hold the accounts: one, one, and two in the zone with two replicas.
const HELD: &str = "kubectl get ksg -n kubesvc -o jsonpath='{range .items[*]}{.spec.zoneId} {.status.connected} {.status.held}{\"\\n\"}{end}' | sort";
const ALL_HELD: &str = "east true 1\neast true 1\nkubesvc-agent_kubesvc true 1\nproduction true 1";

/// A node of another cluster, on a network of its own, which the first node reaches.
struct Second {
    process: Process,
    kubeconfig: PathBuf,
    address: String,
    _folder: Folder,
}

impl Second {
    async fn start() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let test = must(std::env::current_exe().map_err(|e| e.to_string()));
        let program = test.ancestors().nth(2).expect("target/PROFILE/deps/TEST").join("examples/node");
        assert!(program.is_file(), "{} is missing: `make node-test` builds it", program.display());
        let folder = must(Folder::new("second"));
        let mut command = std::process::Command::new("sh");
        command.arg(root.join("tests/node/inside.sh")).arg(program);
        let process = must(Process::spawn("a second node", &command, &folder.file("log")));
        let kubeconfig = eventually("a second node", START, async || {
            if let Err(ended) = process.check_running() {
                return Ok(Err(ended));
            }
            let said = process.log_text();
            let path = said.lines().find_map(|line| line.trim().strip_prefix("export KUBECONFIG="));
            path.map(|path| Ok(PathBuf::from(path))).ok_or(said)
        })
        .await;
        let kubeconfig = must(kubeconfig);
        let mut second = Self { process, kubeconfig, address: String::new(), _folder: folder };
        second.address = second
            .sh("kubectl get node node -o jsonpath='{.status.addresses[?(@.type==\"InternalIP\")].address}'");
        second
    }

    fn sh(&self, commands: &str) -> String {
        let done = try_sh_with(&self.kubeconfig, commands);
        assert_eq!(done.code, Some(0), "{commands}\n{}{}\n{}", done.stderr, done.stdout, self.overview());
        done.stdout
    }

    fn overview(&self) -> String {
        let commands = "set +e\nkubectl get pods -A -o wide
            kubectl get events -A --sort-by=.lastTimestamp | tail -15
            kubectl logs -n kubesvc -l app.kubernetes.io/name=kubesvc-agent --tail=15 --prefix
            true";
        let seen = try_sh_with(&self.kubeconfig, commands);
        format!("in the second cluster:\n{}{}", seen.stdout, seen.stderr)
    }
}

async fn all_active(cluster: &Cluster, second: &Second) {
    for account in ACCOUNTS {
        cluster.account(account, "ACTIVE").await;
    }
    let reached = try_eventually("each agent holds what it should", HOLDING, async || {
        let held = cluster.try_sh(HELD).stdout;
        if held.trim() == ALL_HELD { Ok(()) } else { Err(held) }
    });
    must(reached.await.map_err(|reason| format!("{reason}\n{}{}", cluster.overview(), second.overview())));
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root and a node: make node-test"]
async fn three_modes_in_two_clusters_live_through_revoked_credentials_and_three_replicas() {
    let cluster = Cluster::clean().await;
    let begun = Instant::now();
    let second = Second::start().await;
    told("a second node, on a network of its own", begun);
    let folder = must(Folder::new("two-clusters"));
    let file = |name: &str| folder.file(name).display().to_string();
    let whole = Instant::now();

    let begun = Instant::now();
    let install = page("docs/install.md");
    let first = blocks(section(&install, "The first account"));
    cluster.sh(first[0].lines().next().expect("the operator comes first"));
    let expose = page("docs/expose.md");
    let sources = format!("{}/32", second.address);
    let load_balancer = put(section(&expose, "LoadBalancer"), &[("203.0.113.0/24", &sources)]);
    blocks(&load_balancer).iter().for_each(|block| drop(cluster.sh(block)));
    // What the controller of a cloud does: the address is the node's here.
    let address = cluster.node.address().to_string();
    cluster.sh(&format!(
        "kubectl -n kubesvc patch service kubesvc-operator-hub --subresource=status --type=merge --patch '{{\"status\":{{\"loadBalancer\":{{\"ingress\":[{{\"ip\":\"{address}\"}}]}}}}}}'
{ROLLED_OUT}"
    ));
    told("docs/install.md and docs/expose.md: the operator, its hub behind a load balancer", begun);

    let begun = Instant::now();
    let modes = page("docs/modes.md");
    let hub = format!("hub.address={address}:9091,hub.tls.enabled=false");
    let tls = ("hub.address=hub.example.com:443,hub.tls.enabled=true", hub.as_str());
    // The account of mode Infrastructure is the operator's cluster, seen from the other one.
    let staging = file("staging.kubeconfig");
    must(std::fs::copy(cluster.kubeconfig(), &staging).map_err(|e| e.to_string()));
    let in_practice = ("--from-literal=staging='apiVersion: v1'", format!("--from-file=staging={staging}"));
    blocks(&put(section(&modes, "Agent\n"), &[tls])).iter().for_each(|block| drop(second.sh(block)));
    blocks(&put(section(&modes, "Infrastructure"), &[tls, (in_practice.0, &in_practice.1)]))
        .iter()
        .for_each(|block| drop(second.sh(block)));
    blocks(section(&modes, "Spinnaker Service")).iter().for_each(|block| drop(cluster.sh(block)));
    let agents = "kubectl get ksg -n kubesvc -o jsonpath='{.items[*].spec.agentId}'";
    cluster.prints(agents, |ids| ids.split_whitespace().count() == 4).await;
    told("docs/modes.md: an agent of each mode connected, three of them by the load balancer", begun);
    let begun = Instant::now();
    for agent in cluster.sh(agents).split_whitespace() {
        cluster.sh(&format!("kubectl kubesvc agents approve {agent} --namespace kubesvc"));
    }
    for account in &ACCOUNTS[..2] {
        cluster.account(account, "ACTIVE").await;
    }
    told("… approved; the accounts of mode Agent and mode Infrastructure ACTIVE", begun);

    let begun = Instant::now();
    let read =
        |path: &Path| must(std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display())));
    let (operator, payments) = (read(cluster.kubeconfig()), read(&second.kubeconfig));
    let kubeconfig = must(with_contexts(&[("operator", &operator), ("payments", &payments)]));
    let kubeconfig = must(folder.write("two-contexts", &kubeconfig));
    let person = |commands: &str| {
        let done = try_sh_with(&kubeconfig, commands);
        assert_eq!(done.code, Some(0), "{commands}\n{}{}\n{}", done.stderr, done.stdout, cluster.overview());
    };
    let credentials = blocks(&put(&page("docs/credentials.md"), &[("production", "payments")]));
    let [create, account, revoke] = &credentials[..] else { unreachable!("three blocks: {credentials:?}") };
    person(create);
    person(account);
    all_active(cluster, &second).await;
    told("docs/credentials.md: a credential, and its account ACTIVE", begun);

    let begun = Instant::now();
    person(revoke);
    cluster.account("payments", "FAILED").await;
    let reason =
        "kubectl get ksa payments -n kubesvc -o jsonpath='{.status.conditions[?(@.type==\"Ready\")].reason}'";
    assert_eq!(cluster.sh(reason), "Unauthorized");
    told("… revoked: FAILED, Unauthorized", begun);
    let begun = Instant::now();
    person(create);
    cluster.account("payments", "ACTIVE").await;
    told("… renewed: ACTIVE", begun);

    let states = cluster.watch_states().await;
    let (url, _server) = cluster.database(Kind::PostgreSql).await;
    let begun = Instant::now();
    let several = put(section(&install, "From one replica to several"), &[(DATABASE, &url)]);
    blocks(&several).iter().for_each(|block| drop(cluster.sh(block)));
    cluster.sh(ROLLED_OUT);
    all_active(cluster, &second).await;
    told("docs/install.md: three replicas on PostgreSQL, all accounts ACTIVE and held", begun);
    let begun = Instant::now();
    let upgrade = upgrade_page(&folder);
    blocks(section(&upgrade, "From several replicas to one"))
        .iter()
        .for_each(|block| drop(cluster.sh(block)));
    cluster.sh(ROLLED_OUT);
    all_active(cluster, &second).await;
    told("docs/upgrade.md: one replica on SQLite again, likewise", begun);
    states.all_active();

    let begun = Instant::now();
    cluster.sh(&format!(
        "helm get values kubesvc --namespace kubesvc --output yaml > {}",
        file("kubesvc-values.yaml")
    ));
    // Agents first, in each cluster.
    second.sh("helm uninstall kubesvc-agent kubesvc-agent-east --namespace kubesvc");
    cluster.sh("helm uninstall kubesvc-agent-spinnaker --namespace kubesvc");
    let removal = blocks(section(&upgrade, "Remove"));
    let [look, releases, everything] = &removal[..] else { unreachable!("three blocks, not {removal:?}") };
    cluster.sh(look);
    cluster.sh(releases.lines().last().expect("then the operator"));
    cluster.sh(&format!("{everything}\nkubectl wait --for=delete namespace/kubesvc --timeout=60s"));
    person(revoke);
    second.sh("kubectl delete namespace kubesvc");
    told("docs/upgrade.md: agents, accounts, operator, definitions and namespaces removed", begun);
    let left =
        "kubectl get crd,clusterrole,clusterrolebinding,namespace,apiservice -o name | grep kubesvc || true";
    assert_eq!((cluster.sh(left).as_str(), second.sh(left).as_str()), ("", ""));
    told("two clusters, three modes: all of it", whole);
    must(second.process.terminate(END).await);
}
