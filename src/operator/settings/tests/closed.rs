//! Security settings that are not implemented: values that ask for what happens anyway are accepted, all others
//! refused.

use super::{Files, agent, error, operator};
use crate::operator::settings::load;
use kubesvc_runtime::config::UnknownKeys;

/// Settings that are refused, each with a part of the advice in its message.
const OPERATOR: &[(&str, &str)] = &[
    ("server.ssl.key-store: /tls/store.jks", "openssl pkcs12"),
    ("server.ssl.keyStorePassword: hunter2", "openssl pkcs12"),
    ("server.ssl.enabledProtocols: [TLSv1.3]", "leave this out"),
];

const AGENT: &[(&str, &str)] = &[
    ("secrets.vault.enabled: true", "kubeconfigs as files"),
    ("secrets.vault.url: http://vault", "kubeconfigs as files"),
    ("secrets.vault.more.deep: hunter2", "kubeconfigs as files"),
];

#[test]
fn what_is_not_built_is_refused_with_its_place_and_what_to_do() {
    let all = OPERATOR.iter().map(|case| (case, error(operator(case.0)), "c.yml"));
    let all = all.chain(AGENT.iter().map(|case| (case, error(agent(case.0)), "armory-agent.yml")));
    for ((yaml, advice), message, file) in all {
        let key = yaml.split(':').next().expect("a key");
        assert!(message.starts_with(&format!("{file}:1: `{key}")), "{yaml}: {message}");
        assert!(message.contains("cannot be honoured"), "{yaml}: {message}");
        assert!(message.contains(advice), "{yaml}: {message}");
        assert!(!message.contains("hunter2"), "{yaml}: {message}");
    }
}

#[test]
fn every_one_that_is_not_honoured_is_named_at_once() {
    let message = error(operator("server.ssl: {keyStore: x, enabledProtocols: y}"));
    assert_eq!(message.lines().count(), 2, "{message}");
}

#[test]
fn a_value_that_asks_for_what_happens_anyway_is_taken() {
    let yaml = "
kubesvc.grpc:
  server.security:
    {enabled: no, clientAuth: none, certificateChain: '', privateKey: , ciphers: [], protocols: '', trustCertCollection: ''}
  auth: {mode: open, x509: {enabled: false, filters: []}}
kubesvc.rest.auth.mode: off
server.ssl: {enabled: false, clientAuth: none, keyStore: ''}
";
    let loaded = operator(yaml).expect("nothing is asked for");
    assert_eq!(loaded.warnings, Vec::<String>::new());
    let yaml = "
clouddriver:
  auth: {token: '', tokenCommand: {command: '', args: [], format: '', refreshIntervalSeconds: 0}}
secrets.vault: {enabled: false}
";
    let loaded = agent(yaml).expect("nothing is asked for");
    assert_eq!(loaded.warnings, Vec::<String>::new());
}

#[test]
fn a_setting_whose_own_switch_is_off_is_ignored_with_a_line() {
    let yaml = "
kubesvc.grpc:
  server.security: {enabled: false, privateKey: file:/tls/key.pem, clientAuth: REQUIRE}
  auth.x509: {enabled: false, filters: ['CN=agent']}
server.ssl: {enabled: false, keyStore: /tls/store.jks, keyStorePassword: hunter2}
kubesvc.gateway: {enabled: false, tls.certificateFile: /tls/tls.crt}
";
    let loaded = operator(yaml).expect("nothing of it is in force");
    let said = loaded.warnings.join("\n");
    assert_eq!(loaded.warnings.len(), 4, "{said}");
    assert!(
        said.contains("`kubesvc.grpc.server.security.privateKey`, `kubesvc.grpc.server.security.clientAuth` have no effect, since kubesvc.grpc.server.security.enabled is false (c.yml:3)"),
        "{said}"
    );
    assert!(
        said.contains("`server.ssl.keyStore` has no effect, since server.ssl.enabled is false"),
        "{said}"
    );
    assert!(!said.contains("hunter2"), "{said}");
    let loaded =
        agent("secrets.vault: {enabled: false, url: 'http://vault', token: hunter2}").expect("Vault is off");
    assert_eq!(loaded.warnings.len(), 2, "{:?}", loaded.warnings);
    let message = error(operator("server.ssl: {enabled: true, keyStore: /tls/store.jks}"));
    assert!(message.contains("`server.ssl.keyStore` cannot be honoured"), "its switch is on: {message}");
}

#[test]
fn the_last_layer_decides_what_is_asked_for() {
    let files = Files::new(&[("on.yml", "server.ssl.keyStore: x"), ("off.yml", "server.ssl.keyStore: ''")]);
    files.operator(&["on.yml", "off.yml"], UnknownKeys::Error).expect("it was turned off again");
    let message = error(files.operator(&["off.yml", "on.yml"], UnknownKeys::Error));
    assert!(message.contains("on.yml:1: `server.ssl.keyStore`"), "{message}");
    let env =
        |value: &'static str| move |name: &str| (name == "SERVER_SSL_ENABLED").then(|| value.to_owned());
    let message = load(&[], &env("true"), UnknownKeys::Error).map(drop).expect_err("it asks for TLS");
    let message = message.to_string();
    assert!(message.starts_with("environment SERVER_SSL_ENABLED: `server.ssl.enabled"), "{message}");
    load(&[], &env("false"), UnknownKeys::Error).expect("it asks for nothing");
    let env = |name: &str| (name == "CLOUDDRIVER_AUTH_TOKEN").then(|| "hunter 2".to_owned());
    let message = kubesvc_agent::settings::load(files.root(), &env, UnknownKeys::Error)
        .map(drop)
        .expect_err("it is no token");
    let message = message.to_string();
    assert!(message.contains("`clouddriver.auth.token`") && !message.contains("hunter"), "{message}");
}

#[test]
fn what_another_program_would_fill_in_is_not_taken_for_nothing() {
    let message = error(operator("kubesvc.grpc.server.security.enabled: ${TLS:false}"));
    assert!(message.contains("is not filled in"), "{message}");
}

#[test]
fn an_unknown_key_of_security_is_an_error_whatever_unknown_keys_are() {
    for yaml in [
        "kubesvc.grpc.server.security.enable: true",
        "kubesvc.grpc.auth.bearer.tokenReview: true",
        "kubesvc.rest.auth.certificates: [{urn: x}]",
        "kubesvc.audit.file: /x",
        "kubesvc.agents.aproval: manual",
        "server.ssl: true",
    ] {
        let files = Files::new(&[("c.yml", yaml)]);
        let message = error(files.operator(&["c.yml"], UnknownKeys::Warn));
        assert!(message.starts_with("c.yml:1: "), "{yaml}: {message}");
    }
    for yaml in [
        "clouddriver.tls.caFile: /x",
        "clouddriver.auth.tokn: x",
        "kubernetes.policy.inscure: false",
        "kubernetes.accounts: [{name: a, serviceAccount: true, policy: {inscure: false}}]",
    ] {
        let message = error(Files::new(&[("armory-agent.yml", yaml)]).agent(UnknownKeys::Warn));
        assert!(message.contains("unknown setting"), "{yaml}: {message}");
    }
}
