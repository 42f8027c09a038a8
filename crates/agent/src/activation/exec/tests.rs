//! The exec section of a kubeconfig, and what programs print.

use super::*;

const V1: &str = "client.authentication.k8s.io/v1";

#[test]
fn exec_output_is_parsed_by_the_rules_of_client_go() {
    let read = |text: &str| ExecCredential::read(text.as_bytes(), V1);
    let with = |status: &str| format!(r#"{{"kind":"ExecCredential","apiVersion":"{V1}","status":{status}}}"#);
    let good = read(&with(r#"{"token":"t","expirationTimestamp":"2030-01-01T00:00:00Z"}"#));
    let good = good.unwrap_or_else(|problem| unreachable!("{problem}"));
    assert_eq!(good.token.as_ref().map(|token| token.as_str()), Some("t"));
    let at = |text: &str| text.parse::<Timestamp>().expect("a time");
    assert!(good.is_good(at("2030-01-01T00:00:00Z")) && !good.is_good(at("2030-01-01T00:00:01Z")));
    assert!(
        read(&with(r#"{"clientCertificateData":"c","clientKeyData":"k"}"#))
            .is_ok_and(|one| one.pair.is_some())
    );
    for wrong in [
        "",
        "token",
        &with("null"),
        &with("{}"),
        &with(r#"{"token":""}"#),
        &with(r#"{"clientCertificateData":"c"}"#),
        &with(r#"{"token":"t","expirationTimestamp":"tomorrow"}"#),
        &with(r#"{"token":"t"}"#).replace("io/v1", "io/v1beta1"),
        &with(r#"{"token":"t"}"#).replace("ExecCredential", "TokenReview"),
    ] {
        assert!(read(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn exec_is_read_by_client_gos_rules() {
    let api = |version: &str| format!("apiVersion: client.authentication.k8s.io/{version}");
    let read = |text: String| Exec::read(&text, "{}").map(|_| ()).map_err(|failure| failure.message);
    for good in [
        format!("{{command: aws, {}, interactiveMode: Never}}", api("v1")),
        format!("{{command: aws, {}, interactiveMode: IfAvailable, args: [a], env: null}}", api("v1")),
        format!("{{command: aws, {}}}", api("v1beta1")),
        format!("{{command: aws, {}, installHint: x, env: [{{name: A, value: b}}]}}", api("v1beta1")),
    ] {
        assert_eq!(read(good.clone()), Ok(()), "{good}");
    }
    for (wrong, said) in [
        ("{}".to_owned(), "no command"),
        ("aws".to_owned(), "is none"),
        (format!("{{command: '', {}}}", api("v1beta1")), "no command"),
        ("{command: aws}".to_owned(), "apiVersion"),
        (format!("{{command: aws, {}}}", api("v1alpha1")), "apiVersion"),
        (format!("{{command: aws, {}}}", api("v1")), "interactiveMode"),
        (format!("{{command: aws, {}, interactiveMode: Always}}", api("v1")), "a person"),
        (format!("{{command: aws, {}, interactiveMode: Sometimes}}", api("v1beta1")), "interactiveMode"),
        (format!("{{command: aws, {}, args: a}}", api("v1beta1")), "is none"),
        (format!("{{command: aws, {}, env: [{{name: ''}}]}}", api("v1beta1")), "env"),
        (format!("{{command: aws, {}, env: [{{name: A=B}}]}}", api("v1beta1")), "env"),
    ] {
        let refused = read(wrong.clone()).expect_err(&wrong);
        assert!(refused.contains(said), "{wrong}: {refused}");
    }
}

#[test]
fn a_program_gets_the_cluster_only_where_the_kubeconfig_provides_it() {
    let cluster = "{server: 'https://k', certificate-authority-data: QQ==, unknown: 1, \
                   extensions: [{name: client.authentication.k8s.io/exec, extension: {audience: x}}]}";
    let exec = |asks: bool| {
        let text =
            format!("{{command: a, apiVersion: {V1}, interactiveMode: Never, provideClusterInfo: {asks}}}");
        Exec::read(&text, cluster).unwrap_or_else(|failure| unreachable!("{failure:?}")).info()
    };
    let cluster_info: Value = serde_json::from_str(&exec(true)).expect("JSON");
    let expected = json!({"kind": "ExecCredential", "apiVersion": V1, "spec": {"interactive": false, "cluster": {
        "server": "https://k", "certificate-authority-data": "QQ==", "config": {"audience": "x"}}}});
    assert_eq!(cluster_info, expected);
    let bare: Value = serde_json::from_str(&exec(false)).expect("JSON");
    assert_eq!(bare["spec"], json!({"interactive": false}));
}
