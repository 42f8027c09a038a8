//! Filters of the subjects of agents' certificates.

use kubesvc_core::identity::Subject;
use kubesvc_testkit::certificates::TestAuthority;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

use super::{Files, error, operator};
use crate::operator::settings::load;
use kubesvc_runtime::config::UnknownKeys;

const TLS: &str =
    "security: {enabled: true, ownCertificate: true, clientAuth: REQUIRE, trustCertCollection: /ca}";

fn grpc(tls: &str, x509: &str) -> String {
    format!("kubesvc.grpc: {{server: {{{tls}}}, auth: {{x509: {{{x509}}}}}}}")
}

#[test]
fn filters_that_would_let_everybody_or_nobody_in_are_refused_and_named() {
    let filters = "enabled: true, filters: ['CN=a']";
    for (tls, x509, named, remedy) in [
        (TLS, "enabled: true", "filters", "at least one filter"),
        (TLS, "enabled: true, filters: ['']", "filters", "filters"),
        (TLS, "enabled: true, filters: ['CN=a', '(?=x)']", "filters", "filter 2 is no regular expression"),
        (TLS, "filters: ['CN=a']", "filters", "x509.enabled: true"),
        (TLS, "enabled: true, filters: ['CN=a'], match: prefix", "match", "one of attribute, search"),
        ("", filters, "enabled", "security.enabled: true"),
        ("security: {enabled: true, ownCertificate: true}", filters, "enabled", "clientAuth: REQUIRE"),
    ] {
        let message = error(operator(&grpc(tls, x509)));
        assert!(message.contains(&format!("`kubesvc.grpc.auth.x509.{named}")), "{tls} {x509}: {message}");
        assert!(message.contains(remedy), "{tls} {x509}: {message}");
    }
}

#[test]
fn filters_are_read_with_their_switch_alone() {
    let of = |x509: &str| operator(&grpc(TLS, x509)).expect(x509).settings.agent_subjects;
    assert!(of("enabled: true, filters: ['^CN=agent-[a-z]+,O=acme$']").is_some());
    assert!(of("enabled: true, filters: 'CN=a', match: search").is_some());
    assert!(of("enabled: false, filters: ['CN=a']").is_none());
    assert!(of("").is_none());
}

#[test]
fn one_text_is_one_filter_with_its_commas() {
    let subjects = of_subjects(&["CN=agent-a,O=acme", "CN=agent-a,O=other", "CN=other,O=acme"]);
    for filters in ["'^CN=agent-[a-z]+,O=acme$'", "['^CN=agent-[a-z]+,O=acme$']"] {
        let x509 = format!("enabled: true, filters: {filters}");
        let read = operator(&grpc(TLS, &x509)).expect(&x509).settings.agent_subjects.expect("it is on");
        let admitted: Vec<_> = subjects.iter().map(|subject| read.admit(subject)).collect();
        assert_eq!(admitted, [true, false, false], "{filters}");
    }
    let tls = "kubesvc.grpc.server.security: {enabled: true, ownCertificate: true, clientAuth: REQUIRE, trustCertCollection: /ca}\n\
               kubesvc.grpc.auth.x509.enabled: true";
    let files = Files::new(&[("c.yml", tls)]);
    let env = |name: &str| {
        (name == "KUBESVC_GRPC_AUTH_X509_FILTERS").then(|| "^CN=agent-[a-z]+,O=acme$".to_owned())
    };
    let loaded = load(&[files.path("c.yml")], &env, UnknownKeys::Error).expect("it is read");
    let read = loaded.settings.agent_subjects.expect("it is on");
    assert_eq!(subjects.map(|subject| read.admit(&subject)), [true, false, false]);
}

/// The subjects of certificates, which are named as `CN=…,O=…`.
fn of_subjects<const N: usize>(names: &[&str; N]) -> [Subject; N] {
    names.map(|name| {
        let (common, organization) = name.split_once(",O=").expect("both");
        let authority = TestAuthority::new("ca");
        let (pem, _) = authority.client_named(common.trim_start_matches("CN="), organization);
        let der = CertificateDer::from_pem_slice(pem.as_bytes()).expect("PEM");
        Subject::read(&der).expect("a subject")
    })
}
