//! Security settings that are not implemented: values that ask for what happens anyway are accepted, all others
//! refused.

use super::{Files, agent, error, operator};
use crate::operator::settings::load;
use kubesvc_runtime::config::UnknownKeys;

/// Settings that are refused, each with a part of the advice in its message.
const OPERATOR: &[(&str, &str)] = &[
    ("kubesvc.grpc.server.security.enabled: true", "port 9091"),
    ("armory.kubesvc.grpc.server.security.enabled: yes", "port 9091"),
    ("kubesvc.grpc.server.security.certificateChain: file:/tls/chain.pem", "port 9091"),
    ("kubesvc.grpc.server.security.privateKey: file:/tls/key.pem", "port 9091"),
    ("kubesvc.grpc.server.security.privateKeyPassword: hunter2", "port 9091"),
    ("kubesvc.grpc.server.security.client-auth: REQUIRE", "port 9091"),
    ("kubesvc.grpc.server.security.clientAuth: OPTIONAL", "port 9091"),
    ("kubesvc.grpc.server.security.ciphers: [TLS_AES_128_GCM_SHA256]", "port 9091"),
    ("kubesvc.grpc.server.security.trustCertCollection: file:/tls/ca.pem", "port 9091"),
    ("kubesvc.grpc.server.security.protocols: TLSv1.3", "port 9091"),
    ("kubesvc.grpc.auth.x509.enabled: true", "port 9091"),
    ("kubesvc.grpc.auth.x509.filters: ['CN=agent']", "port 9091"),
    ("kubesvc.grpc.auth.mode: bound", "port 9091"),
    ("kubesvc.rest.auth.mode: enforce", "port 7002"),
    ("server.ssl.enabled: true", "port 7002"),
    ("server.ssl.key-store: /tls/store.jks", "port 7002"),
    ("server.ssl.keyStorePassword: hunter2", "port 7002"),
    ("server.ssl.certificate: /tls/tls.crt", "port 7002"),
    ("server.ssl.clientAuth: need", "port 7002"),
    ("server.ssl.clientAuth: {is: need}", "port 7002"),
    ("server.ssl.enabledProtocols: [TLSv1.3]", "port 7002"),
];

const AGENT: &[(&str, &str)] = &[
    ("clouddriver.auth.token: hunter2", "docs/security.md"),
    ("clouddriver.auth.tokenCommand.command: /bin/token", "docs/security.md"),
    ("clouddriver.auth.tokenCommand.args: [x]", "docs/security.md"),
    ("clouddriver.auth.tokenCommand.format: json", "docs/security.md"),
    ("clouddriver.auth.tokenCommand.refreshIntervalSeconds: 5", "docs/security.md"),
    ("clouddriver.tls.serverName: hub", "clouddriver.insecure"),
    ("clouddriver.tls.insecureSkipVerify: true", "clouddriver.insecure"),
    ("clouddriver.tls.clientCertFile: /tls/tls.crt", "clouddriver.insecure"),
    ("clouddriver.tls.clientKeyFile: /tls/tls.key", "clouddriver.insecure"),
    ("clouddriver.tls.clientKeyFilePassword: hunter2", "clouddriver.insecure"),
    ("clouddriver.tls.cacertFile: /tls/ca.crt", "clouddriver.insecure"),
    ("server.ssl.enabled: true", "server.port"),
    ("server.ssl.certFile: /tls/tls.crt", "server.port"),
    ("server.ssl.keyPassword: hunter2", "server.port"),
    ("server.ssl.clientAuth: need", "server.port"),
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
    let message = error(operator(
        "kubesvc.grpc.server.security: {enabled: true, clientAuth: REQUIRE}\nserver.ssl.enabled: true",
    ));
    assert_eq!(message.lines().count(), 3, "{message}");
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
  tls: {serverName: '', clientCertFile: , cacertFile: ''}
server.ssl: {enabled: false, certFile: '', clientAuth: none}
secrets.vault: {enabled: false}
";
    let loaded = agent(yaml).expect("nothing is asked for");
    assert_eq!((loaded.warnings.len(), loaded.settings.hub.insecure), (0, true), "{:?}", loaded.warnings);
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
    assert_eq!(loaded.warnings.len(), 5, "{said}");
    assert!(
        said.contains("`kubesvc.grpc.server.security.privateKey` has no effect, since kubesvc.grpc.server.security.enabled is false"),
        "{said}"
    );
    assert!(!said.contains("hunter2"), "{said}");
    let loaded =
        agent("secrets.vault: {enabled: false, url: 'http://vault', token: hunter2}").expect("Vault is off");
    assert_eq!(loaded.warnings.len(), 2, "{:?}", loaded.warnings);
    let message =
        error(operator("kubesvc.grpc.server.security: {enabled: true, privateKey: file:/tls/key.pem}"));
    assert_eq!(message.lines().count(), 2, "its switch is on: {message}");
}

#[test]
fn the_last_layer_decides_what_is_asked_for() {
    let files = Files::new(&[
        ("on.yml", "kubesvc.grpc.server.security.enabled: true\nserver.ssl.keyStore: x"),
        ("off.yml", "kubesvc.grpc.server.security.enabled: false\nserver.ssl.keyStore: ''"),
    ]);
    files.operator(&["on.yml", "off.yml"], UnknownKeys::Error).expect("it was turned off again");
    let message = error(files.operator(&["off.yml", "on.yml"], UnknownKeys::Error));
    assert!(message.contains("on.yml:1: `kubesvc.grpc.server.security.enabled`"), "{message}");
    let env = |value: &'static str| {
        move |name: &str| (name == "KUBESVC_GRPC_SERVER_SECURITY_ENABLED").then(|| value.to_owned())
    };
    let message = load(&[], &env("true"), UnknownKeys::Error).map(drop).expect_err("it asks for TLS");
    let message = message.to_string();
    assert!(
        message.starts_with("environment KUBESVC_GRPC_SERVER_SECURITY_ENABLED: `kubesvc.grpc"),
        "{message}"
    );
    load(&[], &env("false"), UnknownKeys::Error).expect("it asks for nothing");
    let env = |name: &str| (name == "CLOUDDRIVER_AUTH_TOKEN").then(|| "hunter2".to_owned());
    let message = kubesvc_agent::settings::load(files.root(), &env, UnknownKeys::Error)
        .map(drop)
        .expect_err("it asks for a token");
    let message = message.to_string();
    assert!(message.contains("`clouddriver.auth.token`") && !message.contains("hunter2"), "{message}");
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
        "kubesvc.rest.auth.certificates: [{uri: x}]",
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

#[test]
fn the_hub_is_dialled_with_tls_as_soon_as_anything_of_tls_is_set() {
    let insecure = |yaml: &str| agent(yaml).expect(yaml).settings.hub.insecure;
    assert!(insecure("clouddriver.insecure: true"));
    assert!(!insecure("clouddriver.insecure: false"), "with the authorities that the machine trusts");
    assert!(!insecure("clouddriver.tls.insecureSkipVerify: false"), "the certificate is checked");
    let printed = agent("clouddriver.tls.insecureSkipVerify: false").expect("valid").print();
    assert!(printed.contains("insecure: false  # "), "{printed}");
    assert!(
        error(agent("clouddriver: {insecure: false, tls: {cacertFile: /x}}"))
            .contains("`clouddriver.tls.cacertFile`")
    );
}

#[test]
fn plaintext_that_was_asked_for_is_plaintext_and_says_what_it_leaves_out() {
    let yaml = "clouddriver:\n  insecure: true\n  tls: {clientCertFile: /x, clientKeyFilePassword: hunter2}";
    let loaded = agent(yaml).expect("it is what was asked for");
    assert!(loaded.settings.hub.insecure);
    assert_eq!(
        loaded.warnings,
        [
            "armory-agent.yml:3: `clouddriver.tls.clientCertFile` has no effect, since clouddriver.insecure is true \
             (armory-agent.yml:2)",
            "armory-agent.yml:3: `clouddriver.tls.clientKeyFilePassword` has no effect, since clouddriver.insecure is \
             true (armory-agent.yml:2)",
        ]
    );
    let token = "clouddriver: {insecure: true, auth: {token: hunter2}}";
    assert!(error(agent(token)).contains("`clouddriver.auth.token` cannot be honoured"));
}
