use super::*;

#[test]
fn clusters_that_read_files_go_elsewhere_or_cannot_be_verified_are_refused() {
    let cluster = |extra: &str| with_cluster(&format!("{SERVER}, {extra}"));
    let authority = |pem: &str| cluster(&format!("certificate-authority-data: {}", STANDARD.encode(pem)));
    let of_authority = "clusters[east].cluster.certificate-authority-data";
    let of_server = "clusters[east].cluster.server";
    let insecure = "clusters[east].cluster.insecure-skip-tls-verify";
    hold_refusals(&[
        ("no server", with_cluster(""), of_server),
        ("a null server", with_cluster("server: null"), of_server),
        ("a number as server", with_cluster("server: 6443"), of_server),
        ("a list as server", with_cluster("server: ['https://CANARY']"), of_server),
        (
            "a path",
            cluster("certificate-authority: /etc/CANARY"),
            "clusters[east].cluster.certificate-authority",
        ),
        (
            "a path beside the data",
            cluster(&format!("certificate-authority: CANARY, certificate-authority-data: {}", certificate())),
            "clusters[east].cluster.certificate-authority",
        ),
        ("a proxy", cluster("proxy-url: 'http://u:CANARY@proxy:3128'"), "clusters[east].cluster.proxy-url"),
        ("a proxy of a wrong type", cluster("proxy-url: [CANARY]"), "clusters[east].cluster.proxy-url"),
        ("an authority that is no base64", cluster("certificate-authority-data: 'CANARY!'"), of_authority),
        ("an authority that is a number", cluster("certificate-authority-data: 12345678"), of_authority),
        ("an authority that is no PEM", authority("CANARY"), of_authority),
        (
            "an authority with a key",
            authority(&(pem("CERTIFICATE", "x") + &pem("PRIVATE KEY", "CANARY"))),
            of_authority,
        ),
        (
            "an authority with an encrypted key",
            authority(&(pem("CERTIFICATE", "x") + &pem("ENCRYPTED PRIVATE KEY", "CANARY"))),
            of_authority,
        ),
        ("an authority that is a key", authority(&pem("EC PRIVATE KEY", "CANARY")), of_authority),
        ("an authority that is a revocation list", authority(&pem("X509 CRL", "CANARY")), of_authority),
        (
            "an authority that is not verified with",
            cluster(&format!(
                "insecure-skip-tls-verify: true, certificate-authority-data: {}",
                certificate()
            )),
            insecure,
        ),
        ("a quoted boolean", cluster("insecure-skip-tls-verify: 'true'"), insecure),
        ("a boolean of YAML 1.1", cluster("insecure-skip-tls-verify: yes"), insecure),
        ("a number as boolean", cluster("insecure-skip-tls-verify: 1"), insecure),
        (
            "a server name of a wrong type",
            cluster("tls-server-name: 10"),
            "clusters[east].cluster.tls-server-name",
        ),
        (
            "a server name with a line break",
            cluster("tls-server-name: \"a\\nb\""),
            "clusters[east].cluster.tls-server-name",
        ),
        (
            "a cluster that is a list",
            with_cluster("").replace("cluster: {}", "cluster: [CANARY]"),
            "clusters[east].cluster",
        ),
    ]);
}

#[test]
fn contexts_that_lead_nowhere_are_refused() {
    let good = with_user(TOKEN);
    let context = |context: &str| good.replace("context: {cluster: east, user: bot}", context);
    hold_refusals(&[
        ("no current context", good.replace("current-context: dev\n", ""), "current-context"),
        (
            "an empty current context",
            good.replace("current-context: dev", "current-context: ''"),
            "current-context",
        ),
        (
            "a number as current context",
            good.replace("current-context: dev", "current-context: 5"),
            "current-context",
        ),
        (
            "an unknown current context",
            good.replace("current-context: dev", "current-context: Dev"),
            "current-context",
        ),
        ("no contexts", good.replace("contexts: [", "ignored: ["), "current-context"),
        ("contexts that are a mapping", good.replace("contexts: [", "contexts: {x: [") + "}", "contexts"),
        ("contexts that are a text", "current-context: dev\ncontexts: CANARY".to_owned(), "contexts"),
        ("a context without a body", context("other: {}"), "contexts[dev].context.cluster"),
        ("a context that is a text", context("context: CANARY"), "contexts[dev].context"),
        ("a context without a cluster", context("context: {user: bot}"), "contexts[dev].context.cluster"),
        (
            "a context with an empty cluster",
            context("context: {cluster: '', user: bot}"),
            "contexts[dev].context.cluster",
        ),
        ("a context without a user", context("context: {cluster: east}"), "contexts[dev].context.user"),
        (
            "a missing cluster",
            context("context: {cluster: west, user: bot}"),
            "contexts[dev].context.cluster",
        ),
        ("a missing user", context("context: {cluster: east, user: ' bot'}"), "contexts[dev].context.user"),
        ("a number as user", context("context: {cluster: east, user: 1}"), "contexts[dev].context.user"),
        ("clusters that are a text", good.replace("clusters: [", "clusters: CANARY\nignored: ["), "clusters"),
        (
            "two users of the name",
            good.replace("users: [", "users: [{name: bot, user: {token: CANARY-other}}, "),
            "users[bot]",
        ),
        (
            "two clusters of the name",
            good.replace("clusters: [", "clusters: [{name: east}, "),
            "clusters[east]",
        ),
        (
            "two contexts of the name",
            good.replace("contexts: [", "contexts: [{name: dev}, "),
            "contexts[dev]",
        ),
        (
            "a namespace that climbs",
            context("context: {cluster: east, user: bot, namespace: ../../CANARY}"),
            "contexts[dev].context.namespace",
        ),
        (
            "a number as namespace",
            context("context: {cluster: east, user: bot, namespace: 5}"),
            "contexts[dev].context.namespace",
        ),
    ]);
}

#[test]
fn existing_names_are_listed_up_to_a_limit() {
    let without = with_user(TOKEN).replace("current-context: dev\n", "");
    let refusal = refused(&without).to_string();
    assert!(refusal.ends_with("there are \"dev\""), "{refusal}");

    let many = (0..30).map(|n| format!("{{name: c{n}}}, ")).collect::<String>();
    let refusal = vet(without.replace("contexts: [", &format!("contexts: [{many}")).as_bytes(), Some("x"));
    let refusal = refusal.unwrap_err();
    assert_eq!(refusal.field(), "context");
    assert!(refusal.to_string().contains("names \"x\""), "{refusal}");
    assert!(refusal.to_string().ends_with("\"c8\", \"c9\" and 21 more"), "{refusal}");

    let none = refused("current-context: dev\n").to_string();
    assert!(none.ends_with("contexts has none"), "{none}");
}

#[test]
fn names_are_shown_without_tricks() {
    let name = format!("\\e[31m\\n\\u202e{}", "a".repeat(10_000));
    let refusal =
        refused(&with_user(TOKEN).replace("current-context: dev", &format!("current-context: \"{name}\"")));
    let text = refusal.to_string();
    assert!(text.contains("\"\\u{1b}[31m\\u{a}\\u{202e}aaa"), "{text}");
    assert!(text.len() < 400 && !text.contains(char::is_control), "{text}");
}
