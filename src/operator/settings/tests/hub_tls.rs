//! TLS of the port for agents.

use super::{Files, error, operator};
use crate::operator::settings::{HubTlsSettings, load};
use kubesvc_runtime::config::UnknownKeys;
use kubesvc_runtime::tls::clients::ClientAuth;

fn security(keys: &str) -> String {
    format!("kubesvc.grpc.server.security: {{{keys}}}")
}

/// TLS with these keys besides a certificate and its key, and the warnings about them.
fn tls(keys: &str) -> (HubTlsSettings, Vec<String>) {
    let keys = format!("enabled: true, certificateChain: /c, privateKey: /k, {keys}");
    let loaded = operator(&security(&keys)).expect(&keys);
    (loaded.settings.grpc.tls.expect("it is on"), loaded.warnings)
}

#[test]
fn what_cannot_be_honoured_is_refused_and_named() {
    let files = "enabled: true, certificateChain: /c, privateKey: /k";
    let with = |more: &str| format!("{files}, {more}");
    for (keys, named, remedy) in [
        ("enabled: true".to_owned(), "enabled", "ownCertificate: true"),
        ("enabled: true, certificateChain: /c".to_owned(), "certificateChain", "security.privateKey too"),
        ("enabled: true, privateKey: /k".to_owned(), "privateKey", "security.certificateChain too"),
        ("enabled: true, privateKey: /k, ownCertificate: true".to_owned(), "privateKey", "certificateChain"),
        (
            "enabled: true, certificateChain: 'classpath:c.pem', privateKey: /k".to_owned(),
            "certificateChain",
            "openssl pkcs12 -in STORE -nodes -out FILE.pem",
        ),
        (
            "enabled: true, certificateChain: /c, privateKey: 'file://host/k'".to_owned(),
            "privateKey",
            "file:/tls/tls.crt",
        ),
        (with("trustCertCollection: 'https://ca/ca.pem'"), "trustCertCollection", "openssl pkcs12"),
        (with("clientAuth: REQUIRE, crlFiles: ['classpath:x.crl']"), "crlFiles", "openssl pkcs12"),
        (with("crlFiles: [/x.crl]"), "crlFiles", "clientAuth: OPTIONAL or REQUIRE"),
        (with("clientAuth: MAYBE"), "clientAuth", "one of NONE, OPTIONAL, REQUIRE"),
        (with("protocols: [TLSv1.1, SSLv3]"), "protocols", "TLSv1.3, TLSv1.2"),
        (with("ciphers: AES128-SHA"), "ciphers", "TLS_AES_128_GCM_SHA256"),
        (
            with("protocols: TLSv1.3, ciphers: ECDHE-RSA-AES128-GCM-SHA256"),
            "ciphers",
            "no cipher suite of the protocols",
        ),
        (with("reloadSeconds: 0"), "reloadSeconds", "from 1 to"),
    ] {
        let message = error(operator(&security(&keys)));
        let begin = format!("c.yml:1: `kubesvc.grpc.server.security.{named}`");
        assert!(message.starts_with(&begin) && message.contains(remedy), "{keys}: {message}");
    }
    let two = "enabled: true, certificateChain: 'classpath:c', privateKey: 'classpath:k', protocols: x";
    assert_eq!(error(operator(&security(two))).lines().count(), 3, "all at once");
}

#[test]
fn keys_without_their_switch_are_refused_and_with_it_off_ignored_in_one_line() {
    for (keys, named) in [
        ("certificateChain: file:/tls/chain.pem", "certificateChain"),
        ("privateKey: file:/tls/key.pem", "privateKey"),
        ("privateKeyPassword: hunter2", "privateKeyPassword"),
        ("client-auth: REQUIRE", "clientAuth"),
        ("clientAuth: OPTIONAL", "clientAuth"),
        ("ciphers: [TLS_AES_128_GCM_SHA256]", "ciphers"),
        ("trustCertCollection: file:/tls/ca.pem", "trustCertCollection"),
        ("protocols: TLSv1.3", "protocols"),
        ("crlFiles: [/x]", "crlFiles"),
        ("ownCertificate: true", "ownCertificate"),
    ] {
        let message = error(operator(&security(keys)));
        let begin = format!("c.yml:1: `kubesvc.grpc.server.security.{named}` needs");
        assert!(message.starts_with(&begin) && message.contains("security.enabled: true"), "{message}");
        assert!(!message.contains("hunter2"), "{message}");
        let loaded = operator(&security(&format!("enabled: false, {keys}"))).expect("it is off");
        assert_eq!((loaded.settings.grpc.tls.is_none(), loaded.warnings.len()), (true, 1), "{keys}");
        assert!(loaded.warnings[0].contains(&format!("security.{named}` has no effect")), "{keys}");
    }
    let off = operator(&security("enabled: no, clientAuth: none, ciphers: [], reloadSeconds: 5"));
    assert_eq!(off.expect("nothing is asked for").warnings, Vec::<String>::new());
    let env = |name: &str| (name == "KUBESVC_GRPC_SERVER_SECURITY_ENABLED").then(|| "true".to_owned());
    let message = load(&[], &env, UnknownKeys::Error).map(drop).expect_err("no certificate").to_string();
    assert!(
        message.starts_with("environment KUBESVC_GRPC_SERVER_SECURITY_ENABLED: `kubesvc.grpc"),
        "{message}"
    );
}

#[test]
fn files_are_paths_or_file_urls() {
    for (written, path) in [
        ("/tls/c.pem", "/tls/c.pem"),
        ("tls/c.pem", "tls/c.pem"),
        ("'file:/tls/c.pem'", "/tls/c.pem"),
        ("'file:tls/c.pem'", "tls/c.pem"),
        ("'file:///tls/my%20c.pem'", "/tls/my c.pem"),
        ("'FILE://localhost/tls/c.pem'", "/tls/c.pem"),
    ] {
        let keys = format!("clientAuth: REQUIRE, trustCertCollection: {written}");
        assert_eq!(tls(&keys).0.authorities, Some(path.into()), "{written}");
    }
}

#[test]
fn names_without_effect_and_open_doors_are_said() {
    let (settings, said) =
        tls("protocols: 'TLSv1.2 TLSv1.1', ciphers: 'ECDHE-RSA-AES128-GCM-SHA256:AES128-SHA'");
    assert_eq!((settings.protocols.len(), settings.suites.len()), (1, 1));
    assert!(said.len() == 2 && said[0].ends_with("TLSv1.1") && said[1].ends_with("AES128-SHA"), "{said:?}");
    let (settings, said) = tls("clientAuth: optional");
    assert_eq!((settings.client_auth, settings.authorities), (ClientAuth::Optional, None));
    assert!(said.len() == 1 && said[0].contains("every authority that the machine trusts"), "{said:?}");
    let (_, said) = tls("trustCertCollection: /ca");
    assert!(said.len() == 1 && said[0].contains("clientAuth is NONE"), "{said:?}");
    assert!(tls("clientAuth: REQUIRE, trustCertCollection: /ca").1.is_empty());
}

#[test]
fn the_operator_makes_a_certificate_only_where_none_is_named() {
    let own = operator(&security("enabled: true, ownCertificate: true")).expect("valid").settings.grpc.tls;
    assert!(own.is_some_and(|tls| tls.files.is_none()));
    assert!(tls("ownCertificate: true").0.files.is_some());
}

#[test]
fn the_password_of_the_key_is_kept_as_it_is_and_never_printed() {
    let yaml = security(
        "enabled: true, certificateChain: /c, privateKey: /k, privateKeyPassword: ' sqlite:hunter2 '",
    );
    let loaded = Files::new(&[("c.yml", &yaml)]).operator(&["c.yml"], UnknownKeys::Error).expect("valid");
    let files = loaded.settings.grpc.tls.clone().and_then(|tls| tls.files).expect("files");
    let password = files.password.as_ref().expect("a password");
    assert_eq!(secrecy::ExposeSecret::expose_secret(password.secret()), " sqlite:hunter2 ");
    let shown = format!("{:?}{}", loaded.settings, loaded.print());
    assert!(!shown.contains("hunter2") && shown.contains("privateKeyPassword: \"***\""), "{shown}");
}
