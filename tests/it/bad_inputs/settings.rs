//! Invalid settings files: the message names file, line, key, the value that was read and the allowed values.
//! The programs exit with code 2 and print the same message.

use std::path::Path;
use std::process::Command;

use kubesvc::settings as operator;
use kubesvc_agent::settings as agent;
use kubesvc_runtime::config::UnknownKeys;

use kubesvc_testkit::folder::Folder;
use kubesvc_testkit::must;

/// Name of the case, the file, and what the message must contain.
type Case = (&'static str, &'static str, &'static [&'static str]);

const OPERATOR: &[Case] = &[
    (
        "a port past 64 bits",
        "server:\n  port: 99999999999999999999\n",
        &[":2:", "`server.port`", "99999999999999999999", "from 0 to 65535"],
    ),
    ("a port in hexadecimal", "server.port: 0x1B5A\n", &[":1:", "`server.port`", "whole number"]),
    ("a port with an exponent", "server.port: 7e3\n", &[":1:", "`server.port`", "whole number"]),
    ("a port with half a port", "server.port: 7002.5\n", &[":1:", "`server.port`", "7002.5"]),
    ("a port of nothing but a sign", "server.port: '-'\n", &[":1:", "`server.port`", "whole number"]),
    (
        "a wait of infinity",
        "kubesvc.cache.operationWaitMs: .inf\n",
        &[":1:", "operationWaitMs", "milliseconds"],
    ),
    (
        "a wait below nothing",
        "kubesvc:\n  cache:\n    operationWaitMs: -30000\n",
        &[":3:", "operationWaitMs", "-30000", "from 1 to"],
    ),
    ("retries below nothing", "kubesvc.dynamicAccounts.maxRetries: -1\n", &["maxRetries", "-1"]),
    (
        "retries past 32 bits",
        "kubesvc.dynamicAccounts.maxRetries: 4294967296\n",
        &["maxRetries", "4294967296"],
    ),
    (
        "a multiplier that shrinks",
        "kubesvc.dynamicAccounts.retryMultiplier: 0.5\n",
        &["retryMultiplier", "0.5", "from 1 to 100"],
    ),
    ("a list for a number", "kubesvc.kubernetes.qps: [1, 2]\n", &["`kubesvc.kubernetes.qps`", "a list of 2"]),
    ("a group for a number", "kubesvc.kubernetes.burst: {a: 1}\n", &["`kubesvc.kubernetes.burst`", "group"]),
    (
        "a key that is nearly one",
        "kubesvc:\n  dynamicAccount:\n    maxRetries: 1\n",
        &[":2:", "dynamicAccount", "did you mean", "dynamicAccounts"],
    ),
    (
        "a setting twice in two spellings",
        "server.port: 1\nserver:\n  PORT: 2\n",
        &[":3:", "already set in line 1"],
    ),
    (
        "a setting twice in one spelling",
        "server:\n  port: 1\n  port: 2\n",
        &[":3:", "already given in line 2"],
    ),
    (
        "an unknown database",
        "sql.x: 1\nkubesvc.database.url: 'oracle://u:CANARY@h/d'\n",
        &[":2:", "kubesvc.database.url"],
    ),
    ("a namespace with a path", "kubesvc.dynamicAccounts.namespace: ../other\n", &["namespace", "../other"]),
    (
        "a folder that is relative",
        "kubesvc.secrets.folders: [secrets]\n",
        &["kubesvc.secrets.folders", "secrets"],
    ),
];

const AGENT: &[Case] = &[
    (
        "a zone of white space in the agent's file",
        "kubernetes.accounts: []\nzoneId: '   '\n",
        &[":2:", "zoneId"],
    ),
    ("a zone of 300 characters in the agent's file", "zoneId: LONG\n", &[":1:", "zoneId"]),
    ("a zone with a NUL in the agent's file", "zoneId: \"a\\0b\"\n", &[":1:", "zoneId"]),
    ("a hub without a port in the agent's file", "clouddriver.grpc: ':'\n", &[":1:", "clouddriver.grpc"]),
    (
        "a hub on a port past all",
        "clouddriver.grpc: 'hub.example.com:99999'\n",
        &[":1:", "clouddriver.grpc", "99999"],
    ),
    (
        "own accounts of two names alike",
        "kubernetes:\n  accounts:\n  - {name: a, serviceAccount: true}\n  - {name: a, kubeconfigFile: /k}\n",
        &[":4:", "already the name"],
    ),
    ("own accounts that are one word", "kubernetes:\n  accounts: all\n", &["kubernetes.accounts", "all"]),
    (
        "permissions that are a number",
        "kubernetes:\n  accounts:\n  - {name: a, serviceAccount: true, permissions: 7}\n",
        &[":3:", "permissions", "READ and WRITE"],
    ),
    (
        "permissions of a right that there is not",
        "kubernetes:\n  accounts:\n  - {name: a, serviceAccount: true, permissions: [{ADMIN: [x]}]}\n",
        &[":3:", "ADMIN"],
    ),
    (
        "permissions of groups in groups",
        "kubernetes:\n  accounts:\n  - {name: a, serviceAccount: true, permissions: {READ: [{a: b}]}}\n",
        &[":3:", "READ"],
    ),
    (
        "a kubeconfig above the folder",
        "kubernetes:\n  accounts:\n  - {name: a, kubeconfigFile: ../../etc/shadow}\n",
        &[":3:", "kubeconfigFile", ".."],
    ),
    (
        "a key of an account that is nearly one",
        "kubernetes:\n  accounts:\n  - {name: a, kubeconfigfiles: /k}\n",
        &[":3:", "kubeconfigfiles", "did you mean"],
    ),
    ("a level of logs that there is not", "logging.level: LOUD\n", &[":1:", "logging.level", "one of"]),
];

pub(super) fn names() -> Vec<&'static str> {
    OPERATOR.iter().chain(AGENT).map(|(name, ..)| *name).collect()
}

#[track_caller]
fn check_message(case: &str, message: &str, said: &[&str]) {
    assert!(said.iter().all(|part| message.contains(part)), "{case}: not all of {said:?} in {message}");
    assert!(!message.contains("CANARY") && message.len() < 2000, "{case}: {message}");
}

#[test]
fn bad_settings_of_the_operator_are_named_with_file_line_and_key() {
    let folder = must(Folder::new("bad-operator-settings"));
    for (case, text, said) in OPERATOR {
        let file = must(folder.write("kubesvc.yml", text));
        let loaded = operator::load(&[file], &|_| None, UnknownKeys::Error);
        let message = loaded.err().map(|error| error.to_string()).unwrap_or_default();
        assert!(message.contains("kubesvc.yml:"), "{case}: {message}");
        check_message(case, &message, said);
    }
}

#[test]
fn bad_settings_of_the_agent_are_named_with_file_line_and_key() {
    let folder = must(Folder::new("bad-agent-settings"));
    for (case, text, said) in AGENT {
        must(folder.write("armory-agent.yml", &text.replace("LONG", &"z".repeat(300))));
        let loaded = agent::load(folder.path(), &|_| None, UnknownKeys::Error);
        let message = loaded.err().map(|error| error.to_string()).unwrap_or_default();
        assert!(message.contains("armory-agent.yml:"), "{case}: {message}");
        check_message(case, &message, said);
    }
}

#[test]
fn agent_with_bad_settings_exits_with_code_2_and_names_them() {
    let folder = must(Folder::new("bad-agent"));
    for (case, text, said) in AGENT {
        must(folder.write("armory-agent.yml", &text.replace("LONG", &"z".repeat(300))));
        let (code, errors) = run(folder.path());
        assert_eq!(code, Some(2), "{case}: {errors}");
        check_message(case, &errors, said);
    }
}

fn run(folder: &Path) -> (Option<i32>, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_kubesvc-agent")).arg("--config-dir").arg(folder).output();
    let output = must(output.map_err(|error| error.to_string()));
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}
