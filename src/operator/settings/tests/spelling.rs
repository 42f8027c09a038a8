//! The spellings of keys.

use std::time::Duration;

use super::{agent, error, operator};
use kubesvc_core::wire::ops::account_spec::Credential;

#[test]
fn one_setting_in_many_spellings() {
    let spellings = [
        "kubesvc: {cache: {operationWaitMs: 7}}",
        "kubesvc: {cache: {operation-wait-ms: 7}}",
        "kubesvc: {cache: {OPERATION_WAIT_MS: 7}}",
        "KubeSvc: {Cache: {operationwaitms: '7'}}",
        "kubesvc.cache.operationWaitMs: 7",
        "kubesvc.cache: {operationWaitMs: 7}",
        "kubesvc: {cache.operationWaitMs: 7}",
        "kubesvc: {'[cache].[operationWaitMs]': 7}",
        "armory.kubesvc.cache.operationWaitMs: 7",
        "armory: {kubesvc: {cache: {operationWaitMs: 7}}}",
        "armory: {kubesvc.cache.operationWaitMs: 7}",
        "Armory.KubeSvc: {cache: {operationWaitMs: 7}}",
        "kubesvc:\n  cache:\n    operationWaitMs: >-\n      7\n",
        "{\"kubesvc\": {\"cache\": {\"operationWaitMs\": 7}}}",
    ];
    for yaml in spellings {
        let loaded = operator(yaml).expect(yaml);
        assert_eq!(loaded.settings.operation_wait, Duration::from_millis(7), "{yaml}");
        assert!(loaded.warnings.is_empty(), "{yaml}: {:?}", loaded.warnings);
    }
}

#[test]
fn the_same_setting_twice_in_one_file_names_both_lines() {
    let cases = [
        (
            "kubesvc:\n  cache:\n    operationWaitMs: 1\n    operation-wait-ms: 2\n",
            "c.yml:4: `kubesvc.cache.operation-wait-ms` was already set in line 3; keep one of the two",
        ),
        (
            "kubesvc: {cache: {operationWaitMs: 1}}\nkubesvc.cache.operationWaitMs: 1\n",
            "c.yml:2: `kubesvc.cache.operationWaitMs` was already set in line 1; keep one of the two",
        ),
        (
            "kubesvc.cluster: local\n\narmory.kubesvc.cluster: local\n",
            "c.yml:3: `armory.kubesvc.cluster` was already set in line 1; keep one of the two",
        ),
        (
            "logging.level: info\nlogging: {level: {root: debug}}\n",
            "c.yml:2: `logging.level.root` was already set in line 1; keep one of the two",
        ),
        (
            "server:\n  port: 1\n  port: 2\n",
            "c.yml:3: not valid YAML settings: `port` was already given in line 2",
        ),
    ];
    for (yaml, want) in cases {
        assert_eq!(error(operator(yaml)), want, "{yaml}");
    }
}

#[test]
fn a_group_may_be_written_in_parts() {
    let yaml = "kubesvc: {grpc: {server: {port: 1}}}\nkubesvc.grpc.server.address: h\nKUBESVC.kubernetes: {qps: 3}\n";
    let s = operator(yaml).expect("valid").settings;
    assert_eq!((s.grpc.port, s.grpc.address.as_str(), s.kubernetes.qps), (1, "h", 3));
}

#[test]
fn names_of_the_users_own_keep_their_case_and_dots() {
    let yaml = "logging.fields.Team: a\nlogging.fields.team: b\nlogging: {fields: {a.b-c: d, '[e.f]': g}}\n";
    let s = agent(yaml).expect("valid").settings;
    let fields: Vec<_> = s.logging.fields.keys().map(String::as_str).collect();
    assert_eq!(fields, ["Team", "a.b-c", "e.f", "team"]);
}

#[test]
fn kubeconfig_file_in_both_spellings() {
    for key in ["kubeconfigFile", "kubeConfigFile", "kubeconfig-file"] {
        let yaml = format!("kubernetes: {{accounts: [{{name: a, {key}: /x}}]}}");
        let loaded = agent(&yaml).expect(key);
        assert_eq!(loaded.settings.accounts[0].spec.credential, Some(Credential::File("/x".into())));
        assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
    }
    assert_eq!(
        error(agent("kubernetes.accounts[0].kubeConfigFiles: x")),
        "armory-agent.yml:1: unknown setting `kubernetes.accounts[0].kubeConfigFiles`; \
         did you mean `kubernetes.accounts[].kubeconfigFile`?"
    );
}
