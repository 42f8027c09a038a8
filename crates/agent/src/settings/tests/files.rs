//! The agent's settings, and the files they are read from.

use std::path::PathBuf;
use std::time::Duration;

use super::{Files, agent, error};
use crate::settings::{AccountSettings, AgentSettings};
use kubesvc_runtime::config::UnknownKeys;

fn names(settings: &AgentSettings) -> Vec<&str> {
    settings.accounts.iter().map(AccountSettings::name).collect()
}

#[test]
fn without_files_the_defaults_hold_with_a_warning_that_names_the_folder() {
    let files = Files::new(&[]);
    let loaded = files.agent(UnknownKeys::Error).expect("no file is fine");
    let s = &loaded.settings;
    assert_eq!((s.hub.grpc.as_str(), s.hub.insecure), ("spin-clouddriver-grpc:9091", true));
    assert_eq!((s.server.host.as_str(), s.server.port), ("localhost", 8082));
    assert_eq!((s.zone_id.as_deref(), s.accounts.len()), (None, 0));
    assert_eq!(s.kubeconfig_folders, ["/opt/armory", "/kubeconfigfiles", "/etc/kubesvc"].map(PathBuf::from));
    assert_eq!(loaded.warnings.len(), 1);
    assert!(loaded.warnings[0].starts_with(&files.root().display().to_string()), "{:?}", loaded.warnings);
}

#[test]
fn the_local_file_lies_over_the_other() {
    for (base, local) in
        [("armory-agent.yml", "armory-agent-local.yaml"), ("armory-agent.yaml", "armory-agent-local.yml")]
    {
        let files = Files::new(&[
            (
                base,
                "clouddriver: {grpc: a:1, insecure: true}\nkubernetes: {accounts: [{name: x, kubeconfigFile: /k}, {name: y, serviceAccount: true}]}\n",
            ),
            (local, "clouddriver.insecure: false\nserver.port: 0\n"),
        ]);
        let s = files.agent(UnknownKeys::Error).expect("valid").settings;
        assert_eq!((s.hub.grpc.as_str(), s.hub.insecure, s.server.port), ("a:1", false, 0));
        assert_eq!(names(&s), ["x", "y"]);
    }
}

#[test]
fn the_last_list_of_accounts_counts() {
    let two = "kubernetes: {accounts: [{name: x, context: c, kubeconfigFile: /k}, {name: y, kubeconfigFile: /k}]}\n";
    let with = |local: &str| {
        let files = Files::new(&[("armory-agent.yml", two), ("armory-agent-local.yml", local)]);
        files.agent(UnknownKeys::Error).expect("valid").settings
    };
    assert!(with("kubernetes.accounts: []\n").accounts.is_empty());
    let one = with("kubernetes.accounts: [{name: z, serviceAccount: true}]\n").accounts;
    assert_eq!((one.len(), one[0].name(), one[0].spec.context.as_str()), (1, "z", ""));
    let one = with("kubernetes.accounts[0].name: z\nkubernetes.accounts[0].serviceAccount: true\n").accounts;
    assert_eq!((one.len(), one[0].spec.context.as_str()), (1, ""), "nothing of the list below shows through");
}

#[test]
fn both_endings_of_one_file_are_refused() {
    let files = Files::new(&[("armory-agent.yml", ""), ("armory-agent.yaml", "")]);
    assert_eq!(
        error(files.agent(UnknownKeys::Error)),
        "armory-agent.yaml: cannot be read: armory-agent.yml is there too; keep one of the two"
    );
}

#[test]
fn the_whole_file_is_ours() {
    assert_eq!(
        error(agent("cloudriver.grpc: x")),
        "armory-agent.yml:1: unknown setting `cloudriver.grpc`; did you mean `clouddriver.grpc`?"
    );
    assert_eq!(error(agent("kubesvc: {}")), "armory-agent.yml:1: unknown setting `kubesvc`");
}

#[test]
fn a_documented_file_is_accepted() {
    let yaml = "
clouddriver:
  grpc: hub:443
  insecure: false
  tls: {serverName: '', insecureSkipVerify: false}
  auth: {token: '', tokenCommand: {command: '', args: [], refreshIntervalSeconds: 0}}
  backoff: {baseDelay: 1000000000, multiplier: 1.6, jitter: 0.2, maxDelay: 120000000000}
kubernetes:
  retries: {enabled: true, maxRetries: 3, retryableErrors: [timeout]}
  serverSideApply: {enabled: always, kinds: [{kind: ConfigMap, enabled: never}]}
  accounts:
    - name: one
      kubeconfigFile: /kubeconfigfiles/one
      namespaces: [a, b]
      permissions: {READ: [x], WRITE: [y]}
      customResourceDefinitions: [{kind: A.b, scope: Cluster}]
    - {name: two, serviceAccount: true, oAuthScopes: []}
logging: {file: /var/log/x, level: DEBUG, fields: {agentNamespace: , agentCluster: c}}
secrets.vault: {enabled: false}
tasks: {totalBudget: 0, queueCheckFrequencyMs: 100}
timeoutSeconds: 5
dynamicAccounts: {enabled: true, scanBatchSize: 5}
pprof.port: 1
";
    let loaded = agent(yaml).expect("valid");
    let s = &loaded.settings;
    assert_eq!((s.hub.grpc.as_str(), s.hub.insecure, s.accounts.len()), ("hub:443", false, 2));
    assert_eq!(s.logging.fields.len(), 1, "a field without a value is not set");
    let said = loaded.warnings.join("\n");
    assert!(!said.contains("kubernetes.accounts[].name"), "{said}");
    assert!(said.contains("`logging.file` has no effect: logs go to standard output"), "{said}");
    assert_eq!((s.budgets.lists, s.budgets.lists_per_account), (0, 16));
    assert_eq!(s.requests.timeout, Duration::from_secs(5));
    let apply = &s.requests.apply;
    assert_eq!(apply.server_side.as_ref().map(|of_all| of_all.enabled.as_str()), Some("always"));
    let kinds: Vec<_> = apply.kinds.iter().map(|one| (one.kind.as_str(), one.enabled.as_str())).collect();
    assert_eq!(kinds, [("ConfigMap", "never")]);
    assert!(s.requests.keeps_answers && !said.contains("serverSideApply"), "{said}");
    assert!(!said.contains("tasks.totalBudget"), "{said}");
    assert!(said.contains("`tasks.queueCheckFrequencyMs` has no effect"), "{said}");
    assert!(!said.contains("timeoutSeconds"), "{said}");
}
