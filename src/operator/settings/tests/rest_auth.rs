//! Who may call REST.

use super::{error, operator};
use crate::access::{CertificateUser, ShownCertificate};
use crate::operator::settings::AuditOutput;
use crate::rest::RestAuthMode;

const TLS: &str = "server.ssl: {enabled: true, certificate: /c, certificatePrivateKey: /k, clientAuth: want, \
                   trustCertificate: /ca}\n";

fn with(entries: &str) -> String {
    format!("kubesvc.rest.auth: {{mode: enforce, certificates: [{entries}]}}\n{TLS}")
}

#[test]
fn the_mode_is_off_unless_it_is_set() {
    assert_eq!(operator("").expect("defaults").settings.rest_auth.mode, RestAuthMode::Off);
    for (word, mode) in
        [("off", RestAuthMode::Off), ("log", RestAuthMode::Log), ("enforce", RestAuthMode::Enforce)]
    {
        let loaded = operator(&format!("kubesvc.rest.auth.mode: {word}")).expect("a mode");
        assert_eq!((loaded.settings.rest_auth.mode, loaded.warnings.len()), (mode, 0));
    }
    let message = error(operator("kubesvc.rest.auth.mode: strict"));
    assert!(message.contains("one of off, log, enforce"), "{message}");
}

#[test]
fn a_certificate_is_named_by_a_uri_or_a_subject_and_is_a_user() {
    let entries = "{uri: 'spiffe://acme/ci', user: ci}, \
                   {subject: 'CN=gate\\2C eu,O=acme', user: gate, groups: [callers, spinnaker]}";
    let read = operator(&with(entries)).expect("good").settings.rest_auth.certificates.0;
    let gate = CertificateUser {
        shown: ShownCertificate::Subject("CN=gate\\2C eu,O=acme".to_owned()),
        user: "gate".to_owned(),
        groups: vec!["callers".to_owned(), "spinnaker".to_owned()],
    };
    assert_eq!(read[1], gate);
    assert_eq!(read[0].shown, ShownCertificate::Uri("spiffe://acme/ci".to_owned()));
}

#[test]
fn an_entry_that_cannot_be_honoured_is_refused_and_named() {
    for (entry, named, remedy) in [
        ("{user: a}", "[0].uri", "say which certificate"),
        ("{uri: 'a:b', subject: CN=a, user: a}", "[0].subject", "one of the two"),
        ("{uri: acme, user: a}", "[0].uri", "a whole URI"),
        ("{uri: 'a:b'}", "[0].user", "is missing"),
        ("{uri: 'a:b', user: 'system:admin'}", "[0].user", "system:"),
        ("{uri: 'a:b', user: a, groups: ['system:masters']}", "[0].groups", "system:"),
        ("{subject: 'CN=a, O=b', user: a}", "[0].subject", "RFC 4514"),
        ("{subject: 'a', user: a}", "[0].subject", "RFC 4514"),
        ("{subject: 'CN=a\\,b', user: a}", "[0].subject", "RFC 4514"),
        ("{uri: 'a:b', user: a}, {uri: 'a:b', user: b}", "[1].uri", "earlier entry"),
    ] {
        let message = error(operator(&with(entry)));
        let key = format!("`kubesvc.rest.auth.certificates{named}`");
        assert!(message.contains(&key) && message.contains(remedy), "{entry}: {message}");
    }
    let without_tls = "kubesvc.rest.auth: {mode: log, certificates: [{uri: 'a:b', user: a}]}";
    assert!(error(operator(without_tls)).contains("server.ssl.clientAuth"));
}

#[test]
fn certificates_without_a_mode_are_refused_and_with_it_off_ignored_in_one_line() {
    let entry = "certificates: [{uri: 'a:b', user: a}]";
    let message = error(operator(&format!("kubesvc.rest.auth: {{{entry}}}")));
    assert!(message.contains("needs kubesvc.rest.auth.mode"), "{message}");
    let loaded = operator(&format!("kubesvc.rest.auth: {{mode: off, {entry}}}")).expect("it is off");
    assert!(loaded.settings.rest_auth.certificates.0.is_empty());
    assert_eq!(loaded.warnings.len(), 1, "{:?}", loaded.warnings);
    assert!(loaded.warnings[0].contains("`kubesvc.rest.auth.certificates` has no effect"));
}

#[test]
fn audit_lines_go_to_standard_output_or_a_file() {
    assert_eq!(operator("").expect("defaults").settings.audit_output, AuditOutput::Stdout);
    let loaded = operator("kubesvc.audit.output: /var/log/audit.log").expect("a file");
    assert_eq!(loaded.settings.audit_output, AuditOutput::File("/var/log/audit.log".into()));
    assert!(operator("kubesvc.audit.output: ''").is_err());
    for bad in ["stderr", "audit.log"] {
        let message = error(operator(&format!("kubesvc.audit.output: {bad}")));
        assert!(message.contains("kubesvc.audit.output") && message.contains("absolute path"), "{message}");
    }
}
