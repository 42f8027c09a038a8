//! TLS to the hub, and of the health server.

use super::{Files, agent, error};
use crate::settings::{AgentSettings, DialTlsSettings, IdentitySettings};
use kubesvc_runtime::config::UnknownKeys;
use kubesvc_runtime::tls::clients::ClientAuth;
use secrecy::ExposeSecret as _;

fn settings(yaml: &str) -> AgentSettings {
    agent(yaml).expect(yaml).settings
}

fn password(identity: &IdentitySettings) -> Option<String> {
    identity.files().password.map(|password| password.expose_secret().to_owned())
}

#[test]
fn the_hub_is_dialled_with_tls_as_soon_as_anything_of_tls_is_set() {
    let insecure = |yaml: &str| settings(yaml).hub.insecure;
    assert!(insecure(""));
    assert!(insecure("clouddriver.insecure: true"));
    assert!(insecure(
        "clouddriver.tls: {serverName: '', clientCertFile: , cacertFile: '', clientKeyPassword: ''}"
    ));
    assert!(!insecure("clouddriver.insecure: false"), "with the authorities that the machine trusts");
    assert!(!insecure("clouddriver.tls.insecureSkipVerify: false"), "the certificate is checked");
    for key in ["serverName", "cacertFile", "clientCertFile"] {
        assert!(!insecure(&format!("clouddriver.tls.{key}: x")), "{key}");
    }
    let printed = agent("clouddriver.tls.cacertFile: /ca.pem").expect("valid").print();
    let is_off =
        |line: &str| line.starts_with("  insecure: false  # ") && line.ends_with("armory-agent.yml:1");
    assert!(printed.lines().any(is_off), "{printed}");
}

#[test]
fn what_is_set_of_tls_to_the_hub_holds() {
    let yaml = "
clouddriver.tls:
  serverName: hub.example.com
  insecureSkipVerify: true
  clientCertFile: /tls/tls.crt
  clientKeyFile: /tls/tls.key
  clientKeyFilePassword: ' a # b '
  cacertFile: /tls/ca.crt
";
    let loaded = agent(yaml).expect("valid");
    let DialTlsSettings { server_name, insecure_skip_verify, identity, authorities } =
        &loaded.settings.hub.tls;
    assert_eq!((server_name.as_deref(), *insecure_skip_verify), (Some("hub.example.com"), true));
    assert_eq!(authorities.as_deref(), Some("/tls/ca.crt".as_ref()));
    let identity = identity.as_ref().expect("an identity");
    let files = identity.files();
    assert_eq!((files.certificate, files.key), ("/tls/tls.crt".into(), "/tls/tls.key".into()));
    assert_eq!(password(identity).as_deref(), Some(" a # b "), "as it is written");
    assert_eq!(loaded.warnings.len(), 1, "{:?}", loaded.warnings);
    assert!(
        loaded.warnings[0].contains("`clouddriver.tls.insecureSkipVerify` is true"),
        "{:?}",
        loaded.warnings
    );
    let printed = loaded.print();
    assert!(printed.contains("clientKeyFilePassword: \"***\"") && !printed.contains("a # b"), "{printed}");
    assert!(!format!("{:?}", loaded.settings).contains("a # b"));
}

#[test]
fn the_certificate_may_hold_its_key_and_the_password_has_two_names() {
    let identity = |yaml: &str| settings(yaml).hub.tls.identity.expect(yaml);
    let one = identity("clouddriver.tls: {clientCertFile: /both.pem, clientKeyPassword: 12345}");
    assert_eq!(one.files().key, std::path::Path::new("/both.pem"));
    assert_eq!(password(&one).as_deref(), Some("12345"));
    let same = "clouddriver.tls: {clientCertFile: /c, clientKeyPassword: a, clientKeyFilePassword: a}";
    assert_eq!(password(&identity(same)).as_deref(), Some("a"));
    let differing =
        "clouddriver.tls: {clientCertFile: /c, clientKeyPassword: hunter2, clientKeyFilePassword: hunter3}";
    let message = error(agent(differing));
    assert!(
        message.contains(
            "`clouddriver.tls.clientKeyPassword` differs from clouddriver.tls.clientKeyFilePassword"
        ),
        "{message}"
    );
    assert!(!message.contains("hunter"), "{message}");
}

#[test]
fn a_key_or_a_password_without_a_certificate_is_an_error() {
    for key in ["clientKeyFile", "clientKeyFilePassword", "clientKeyPassword"] {
        let message = error(agent(&format!("clouddriver.tls.{key}: hunter2")));
        let begin =
            format!("armory-agent.yml:1: `clouddriver.tls.{key}` is set, but clouddriver.tls.clientCertFile");
        assert!(message.starts_with(&begin) && !message.contains("hunter2"), "{message}");
    }
    let message = error(agent("clouddriver.tls.serverName: a b"));
    assert!(message.contains("`clouddriver.tls.serverName` is \"a b\""), "{message}");
    let long = "x".repeat(5000);
    let message =
        error(agent(&format!("clouddriver.tls: {{clientCertFile: /c, clientKeyPassword: {long}}}")));
    assert!(message.contains("at most 4096 characters") && !message.contains(&long), "{message}");
}

#[test]
fn plaintext_that_was_asked_for_is_plaintext_and_says_what_it_leaves_out() {
    let yaml = "clouddriver:\n  insecure: true\n  tls: {clientKeyFile: /x, clientKeyFilePassword: hunter2}";
    let loaded = agent(yaml).expect("it is what was asked for");
    assert!(loaded.settings.hub.insecure);
    assert_eq!(loaded.settings.hub.tls, DialTlsSettings::default());
    assert_eq!(
        loaded.warnings,
        [
            "armory-agent.yml:3: `clouddriver.tls.clientKeyFile` has no effect, since clouddriver.insecure is true \
             (armory-agent.yml:2)",
            "armory-agent.yml:3: `clouddriver.tls.clientKeyFilePassword` has no effect, since clouddriver.insecure is \
             true (armory-agent.yml:2)",
        ]
    );
}

#[test]
fn relative_files_count_from_the_folder_of_the_settings() {
    let files = Files::new(&[(
        "armory-agent.yml",
        "clouddriver.tls: {clientCertFile: a.pem, cacertFile: ./ca.pem}\nserver.ssl: {enabled: true, certFile: s.pem}",
    )]);
    let settings = files.agent(UnknownKeys::Error).expect("valid").settings;
    let identity = settings.hub.tls.identity.expect("an identity");
    assert_eq!(identity.files().key, files.path("a.pem"));
    assert_eq!(settings.hub.tls.authorities, Some(files.path("./ca.pem")));
    assert_eq!(settings.server.ssl.expect("TLS").identity.certificate, files.path("s.pem"));
}

#[test]
fn health_has_tls_where_it_is_switched_on() {
    assert_eq!(settings("server.ssl: {enabled: false, certFile: '', clientAuth: none}").server.ssl, None);
    assert_eq!(settings("server.ssl: {clientAuth: none}").server.ssl, None);
    let yaml = "server.ssl: {enabled: true, certFile: /c, keyFile: /k, keyFilePassword: p, caCertFile: /ca, clientAuth: NEED}";
    let ssl = settings(yaml).server.ssl.expect("TLS");
    assert_eq!((ssl.client_auth, ssl.authorities), (ClientAuth::Required, Some("/ca".into())));
    assert_eq!(password(&ssl.identity).as_deref(), Some("p"));
    for (yaml, expected) in [
        ("server.ssl.enabled: true", "`server.ssl.enabled` needs server.ssl.certFile"),
        ("server.ssl: {enabled: true, keyFile: /k}", "`server.ssl.keyFile` is set, but server.ssl.certFile"),
        (
            "server.ssl: {enabled: true, certFile: /c, clientAuth: want}",
            "`server.ssl.clientAuth` needs server.ssl.caCertFile",
        ),
        ("server.ssl: {enabled: true, certFile: /c, clientAuth: any}", "must be one of none, want, need"),
        ("server.ssl.certFile: /c", "`server.ssl.certFile` is set, but server.ssl.enabled is not"),
        ("server.ssl.clientAuth: need", "`server.ssl.clientAuth` is set, but server.ssl.enabled is not"),
        (
            "server.ssl: {enabled: true, certFile: /c, keyPassword: a, keyFilePassword: b}",
            "`server.ssl.keyFilePassword` differs from server.ssl.keyPassword",
        ),
    ] {
        let message = error(agent(yaml));
        assert!(message.contains(expected), "{yaml}: {message}");
    }
    let off = agent("server.ssl: {enabled: false, certFile: /c, keyPassword: hunter2}").expect("it is off");
    assert_eq!(off.settings.server.ssl, None);
    assert_eq!(off.warnings.len(), 2, "{:?}", off.warnings);
    assert!(
        off.warnings[0].contains("has no effect, since server.ssl.enabled is false"),
        "{:?}",
        off.warnings
    );
}
