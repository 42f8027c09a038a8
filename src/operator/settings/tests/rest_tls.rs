//! TLS of the port of REST.

use super::{error, operator};
use kubesvc_runtime::tls::clients::ClientAuth;

fn ssl(keys: &str) -> String {
    format!("server.ssl: {{{keys}}}")
}

#[test]
fn what_cannot_be_honoured_is_refused_and_named() {
    let files = "enabled: true, certificate: /c, certificatePrivateKey: /k";
    for (keys, named, remedy) in [
        ("enabled: true".to_owned(), "enabled", "server.ssl.certificate, a PEM file"),
        ("enabled: true, certificate: /c".to_owned(), "certificate", "certificatePrivateKey too"),
        (format!("{files}, clientAuth: need"), "clientAuth", "trustCertificate"),
        (format!("{files}, trustCertificate: 'classpath:ca.pem'"), "trustCertificate", "openssl pkcs12"),
        (format!("{files}, clientAuth: always"), "clientAuth", "one of none, want, need"),
        (format!("{files}, keyStore: /store.jks"), "keyStore", "openssl pkcs12"),
        (format!("{files}, protocol: TLSv1.1"), "protocol", "leave this out"),
        (format!("{files}, trustCertificate: /ca"), "trustCertificate", "clientAuth: want or need"),
    ] {
        let message = error(operator(&ssl(&keys)));
        let begin = format!("c.yml:1: `server.ssl.{named}`");
        assert!(message.starts_with(&begin) && message.contains(remedy), "{keys}: {message}");
    }
}

#[test]
fn keys_without_their_switch_are_refused_and_with_it_off_ignored_in_one_line() {
    for (keys, named) in [
        ("certificate: /c", "certificate"),
        ("certificate-private-key: /k", "certificatePrivateKey"),
        ("keyPassword: hunter2", "keyPassword"),
        ("clientAuth: need", "clientAuth"),
        ("trustCertificate: /ca", "trustCertificate"),
    ] {
        let message = error(operator(&ssl(keys)));
        assert!(
            message.contains(&format!("`server.ssl.{named}` needs server.ssl.enabled: true")),
            "{message}"
        );
        assert!(!message.contains("hunter2"), "{message}");
        let loaded = operator(&ssl(&format!("enabled: false, {keys}"))).expect("it is off");
        assert!(loaded.settings.server.tls.is_none());
        assert_eq!(loaded.warnings.len(), 1, "{:?}", loaded.warnings);
        assert!(loaded.warnings[0].contains(&format!("server.ssl.{named}` has no effect")), "{keys}");
    }
    assert!(operator(&ssl("clientAuth: none")).expect("nothing is asked for").settings.server.tls.is_none());
}

#[test]
fn files_may_be_paths_or_urls() {
    let keys = "enabled: true, certificate: 'file:/tls/c.pem', certificatePrivateKey: /tls/k.pem, keyPassword: ' p ', \
                clientAuth: want, trustCertificate: /tls/ca.pem";
    let tls = operator(&ssl(keys)).expect("they are there").settings.server.tls.expect("it is on");
    assert_eq!(tls.files.certificate.to_str(), Some("/tls/c.pem"));
    assert_eq!(tls.client_auth, ClientAuth::Optional);
    assert!(tls.authorities.is_some() && tls.files.password.is_some());
}
