//! Filters of the subjects of agents' certificates.

use super::{error, operator};

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
