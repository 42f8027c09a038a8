use proptest::prelude::*;

use super::*;

/// Texts of every kind for a JSON kubeconfig.
fn names() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-z]{1,12}",
        "[ -~]{1,40}",
        any::<String>().prop_filter("not empty", |name| !name.is_empty())
    ]
}

fn servers() -> impl Strategy<Value = String> {
    let hosts = prop_oneof![
        // No two consecutive hyphens: a label that starts with "xn--" must be punycode.
        "[a-z]{1,10}(\\.[a-z][a-z0-9]{0,5}(-[a-z]{1,3})?){0,3}",
        any::<[u8; 4]>().prop_map(|octets| std::net::Ipv4Addr::from(octets).to_string()),
        any::<[u16; 8]>().prop_map(|segments| format!("[{}]", std::net::Ipv6Addr::from(segments))),
    ];
    (hosts, proptest::option::of(1..=u16::MAX), "(/[a-zA-Z0-9._~%!$&'()*+,;=:@-]{0,12}){0,3}").prop_map(
        |(host, port, path)| {
            let port = port.map_or_else(String::new, |port| format!(":{port}"));
            format!("https://{host}{port}{path}")
        },
    )
}

fn data(label: &'static str) -> impl Strategy<Value = String> {
    proptest::collection::vec(any::<u8>(), 1..200).prop_map(move |der| {
        let body = STANDARD.encode(der);
        STANDARD.encode(format!("-----BEGIN {label}-----\n{body}\n-----END {label}-----\n"))
    })
}

fn users() -> impl Strategy<Value = serde_json::Value> {
    let token = || "[!-~]{1,80}".prop_filter("kubectl's masks", |token| token != "REDACTED");
    let pair = || (data("CERTIFICATE"), prop_oneof![data("PRIVATE KEY"), data("RSA PRIVATE KEY")]);
    prop_oneof![
        token().prop_map(|token| serde_json::json!({"token": token})),
        pair().prop_map(|(certificate, key)| {
            serde_json::json!({"client-certificate-data": certificate, "client-key-data": key})
        }),
        (token(), pair()).prop_map(|(token, (certificate, key))| {
            serde_json::json!({"token": token, "client-certificate-data": certificate, "client-key-data": key})
        }),
    ]
}

fn clusters() -> impl Strategy<Value = serde_json::Value> {
    let trust = prop_oneof![
        Just(serde_json::json!({})),
        Just(serde_json::json!({"insecure-skip-tls-verify": true})),
        data("CERTIFICATE").prop_map(|pem| serde_json::json!({"certificate-authority-data": pem})),
    ];
    (servers(), trust, proptest::option::of("[a-z]{1,9}\\.[a-z]{1,9}")).prop_map(
        |(server, mut cluster, name)| {
            cluster["server"] = server.into();
            cluster["tls-server-name"] = name.into();
            cluster
        },
    )
}

fn kubeconfigs() -> impl Strategy<Value = (String, String)> {
    let namespaces = proptest::option::of("[a-z]([a-z0-9-]{0,20}[a-z])?");
    (names(), clusters(), users(), namespaces).prop_map(|(name, cluster, user, namespace)| {
        let json = serde_json::json!({
            "clusters": [{"name": name, "cluster": cluster}],
            "users": [{"name": name, "user": user}],
            "contexts": [{"name": name, "context": {"cluster": name, "user": name, "namespace": namespace}}],
        });
        // YAML does not accept some characters unescaped, even in JSON.
        let json = json.to_string();
        let escaped = json.chars().map(|character| match character {
            ' '..='~' => character.to_string(),
            _ => character.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")).collect(),
        });
        (escaped.collect(), name)
    })
}

proptest! {
    #[test]
    fn arbitrary_bytes_are_refused_or_taken_but_never_a_panic(bytes: Vec<u8>, context: Option<String>) {
        let _ = vet(&bytes, context.as_deref());
    }

    #[test]
    fn arbitrary_yaml_is_refused_or_taken_but_never_a_panic(
        text in "([a-z]{1,4}|[-\\[\\]{}:,?&*!|>'\"%#~ \n\r\t\u{feff}\u{85}\\\\]|: |- |---\n|<<: |\\PC){0,80}",
    ) {
        let _ = vet(text.as_bytes(), Some("a"));
    }

    #[test]
    fn a_kubeconfig_with_a_few_bytes_changed_never_panics_and_never_leaks(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let mut bytes = with_user(
            "exec: {command: CANARY-command, args: [CANARY-args]}, token: CANARY-token, password: CANARY",
        )
        .into_bytes();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let shown = match vet(&bytes, None) {
            Ok(vetted) => format!("{vetted:?}"),
            Err(refusal) => format!("{refusal} {refusal:?}"),
        };
        prop_assert!(!leaks(&shown), "{}", shown);
    }

    #[test]
    fn what_is_rendered_vets_to_the_same_and_renders_to_the_same((text, name) in kubeconfigs()) {
        match vet(text.as_bytes(), Some(&name)) {
            Ok(vetted) => {
                let rendered = render(&vetted);
                let again = vet(rendered.expose_secret(), None);
                prop_assert_eq!(again.as_ref(), Ok(&vetted));
                let by_name = vet(rendered.expose_secret(), Some(&name));
                prop_assert_eq!(by_name.as_ref(), Ok(&vetted));
                let rendered_again = render(&vetted);
                prop_assert_eq!(rendered_again.expose_secret(), rendered.expose_secret());
            }
            // The only refusals that the generator does not avoid.
            Err(refusal) => prop_assert!(
                refusal.to_string().contains("link-local") || refusal.to_string().contains("kubectl's mask"),
                "{}", refusal
            ),
        }
    }

    #[test]
    fn no_server_is_taken_whose_address_is_refused(octets: [u8; 2], text in "https://[0-9a-fx.:\\[\\]@%/]{1,24}") {
        let link_local = format!("https://169.254.{}.{}", octets[0], octets[1]);
        for server in [link_local, text] {
            if let Ok(vetted) = vet(with_cluster(&format!("server: '{server}'")).as_bytes(), None) {
                let ip = match vetted.server.host() {
                    Some(url::Host::Ipv4(ip)) => Some(ip.into()),
                    Some(url::Host::Ipv6(ip)) => Some(ip.into()),
                    _ => None,
                };
                prop_assert_eq!(ip.and_then(refused_address), None);
                let written = server.trim_start_matches("https://").starts_with(vetted.server.host_str().unwrap());
                prop_assert!(written || ip.is_some_and(|ip: std::net::IpAddr| ip.is_ipv6()), "{}", server);
            }
        }
    }
}
