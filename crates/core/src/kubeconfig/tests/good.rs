use super::*;

#[test]
fn a_token_and_an_authority_as_kubectl_writes_them_are_taken() {
    let text = format!(
        "apiVersion: v1\nclusters:\n- cluster:\n    certificate-authority-data: {}\n    server: https://10.0.0.1:6443\n  \
         name: east\ncontexts:\n- context:\n    cluster: east\n    namespace: apps\n    user: bot\n  name: dev\n\
         current-context: dev\nkind: Config\npreferences: {{}}\nusers:\n- name: bot\n  user:\n    token: CANARY-token\n",
        certificate()
    );
    let vetted = vetted(&text);
    assert_eq!(vetted.server.as_str(), "https://10.0.0.1:6443/");
    assert_eq!(
        vetted.certificate_authority.as_deref().unwrap(),
        pem("CERTIFICATE", "certificate").as_bytes()
    );
    assert!(!vetted.insecure_skip_tls_verify);
    assert_eq!(vetted.tls_server_name, None);
    assert_eq!(vetted.namespace.as_deref(), Some("apps"));
    assert_eq!(vetted.context, "dev");
    let Authentication::Token(token) = &vetted.authentication else { panic!("{vetted:?}") };
    assert_eq!(token.expose_secret(), "CANARY-token");
}

#[test]
fn json_is_taken_in_one_line_and_in_many() {
    let long = "CANARY-".repeat(2000);
    let json = serde_json::json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "dev",
        "clusters": [{"name": "east", "cluster": {"server": "https://api.example.com"}}],
        "users": [{"name": "bot", "user": {"token": long}}],
        "contexts": [{"name": "dev", "context": {"cluster": "east", "user": "bot"}}],
    });
    let one_line = vetted(&json.to_string());
    assert_eq!(one_line, vetted(&serde_json::to_string_pretty(&json).unwrap()));
    assert_eq!(one_line.authentication, Authentication::Token(SecretText::from(long.as_str())));
}

#[test]
fn a_client_certificate_is_taken_alone_and_beside_a_token() {
    let pair = format!("client-certificate-data: {}, client-key-data: {}", certificate(), key());
    let alone = vetted(&with_user(&pair));
    let Authentication::ClientCertificate { certificate, key } = &alone.authentication else {
        panic!("{alone:?}")
    };
    assert_eq!(certificate, pem("CERTIFICATE", "certificate").as_bytes());
    assert_eq!(key.expose_secret(), pem("PRIVATE KEY", "CANARY-key").as_bytes());

    let both = vetted(&with_user(&format!("{pair}, {TOKEN}")));
    let Authentication::TokenAndClientCertificate { token, certificate: same, .. } = &both.authentication
    else {
        panic!("{both:?}")
    };
    assert_eq!((token.expose_secret(), same), ("CANARY-token", certificate));
}

#[test]
fn insecure_of_the_account_is_taken_without_an_authority_and_refused_beside_one() {
    let open =
        vetted(&with_cluster("server: 'https://one'")).with_insecure(true).expect("nothing to verify with");
    assert!(open.insecure_skip_tls_verify);
    let pinned =
        with_cluster(&format!("server: 'https://one', certificate-authority-data: {}", certificate()));
    let refusal = vetted(&pinned).with_insecure(true).expect_err("it would pass the authority by");
    assert_eq!((refusal.field(), refusal.is_exec()), ("insecure", false));
    assert_eq!(vetted(&pinned).with_insecure(false), Ok(vetted(&pinned)));
}

#[test]
fn keys_of_every_kind_lose_what_stands_around_them() {
    for label in ["PRIVATE KEY", "RSA PRIVATE KEY", "EC PRIVATE KEY"] {
        let wanted = pem(label, "CANARY-key");
        let noisy =
            format!("{}subject=CN\r\n{}", pem("EC PARAMETERS", "curve"), wanted.replace('\n', "\r\n"));
        let pair = format!(
            "client-certificate-data: {}, client-key-data: {}",
            STANDARD.encode(format!("issuer=CN\n{}{noisy}", pem("CERTIFICATE", "certificate"))),
            STANDARD.encode(noisy)
        );
        let vetted = vetted(&with_user(&pair));
        let Authentication::ClientCertificate { certificate, key } = &vetted.authentication else {
            panic!("{vetted:?}")
        };
        assert_eq!(key.expose_secret(), wanted.as_bytes());
        assert_eq!(certificate, pem("CERTIFICATE", "certificate").as_bytes(), "the key beside it is gone");
    }
}

#[test]
fn an_authority_of_several_certificates_keeps_them_in_order() {
    let bundle =
        format!("# root\n{}# issuing\n{}", pem("CERTIFICATE", "root"), pem("CERTIFICATE", "issuing"));
    let data = STANDARD.encode(bundle);
    let vetted = vetted(&with_cluster(&format!("{SERVER}, certificate-authority-data: {data}")));
    let wanted = format!("{}{}", pem("CERTIFICATE", "root"), pem("CERTIFICATE", "issuing"));
    assert_eq!(vetted.certificate_authority.unwrap(), wanted.as_bytes());
}

#[test]
fn base64_in_several_lines_is_taken() {
    let data = certificate();
    let (first, second) = data.split_at(20);
    let text = with_cluster(&format!("{SERVER}, certificate-authority-data: \"{first}\\n{second}\\r\\n\""));
    assert!(vetted(&text).certificate_authority.is_some());
}

#[test]
fn an_unverified_server_and_a_server_name_are_taken() {
    let insecure = vetted(&with_cluster(&format!("{SERVER}, insecure-skip-tls-verify: true")));
    assert!(insecure.insecure_skip_tls_verify);
    for name in ["kubernetes.default.svc", "localhost", "10.0.0.1", "fd00::1"] {
        let vetted = vetted(&with_cluster(&format!("{SERVER}, tls-server-name: '{name}'")));
        assert_eq!(vetted.tls_server_name.as_deref(), Some(name));
    }
    let verified = vetted(&with_cluster(&format!(
        "{SERVER}, insecure-skip-tls-verify: false, certificate-authority-data: {}",
        certificate()
    )));
    assert!(verified.certificate_authority.is_some());
}

#[test]
fn a_byte_order_mark_line_endings_of_windows_and_document_marks_are_taken() {
    let plain = with_user(TOKEN);
    let wanted = vetted(&plain);
    for text in [
        format!("\u{feff}{plain}"),
        plain.replace('\n', "\r\n"),
        format!("\u{feff}---\r\n{}", plain.replace('\n', "\r\n")),
        format!("---\n{plain}...\n"),
        format!("# made by hand\n\n{plain}# the end\n"),
        format!("%YAML 1.2\n---\n{plain}"),
    ] {
        assert_eq!(vetted(&text), wanted, "{text:?}");
    }
}

#[test]
fn what_is_empty_counts_as_absent() {
    let text = kubeconfig(
        &format!(
            "{SERVER}, certificate-authority: '', certificate-authority-data: null, proxy-url: '', \
             insecure-skip-tls-verify: ~, tls-server-name: ''"
        ),
        &format!(
            "{TOKEN}, exec: null, auth-provider: ~, tokenFile: '', client-key: , client-certificate: '', as: '', \
             as-uid: '', as-groups: [], as-user-extra: {{}}, username: '', password: '', client-key-data: ''"
        ),
    );
    assert_eq!(vetted(&text), vetted(&with_user(TOKEN)));
}

#[test]
fn unknown_keys_and_unused_entries_do_not_matter() {
    let text = "\
        apiVersion: v1\nkind: Config\ncurrent-context: dev\npreferences: {colors: true}\nextensions: [{name: x}]\n\
        clusters:\n- {name: east, cluster: {server: 'https://api.example.com:6443', disable-compression: true, \
        extensions: [1]}}\n\
        - {name: bad, cluster: {server: 'http://CANARY@169.254.169.254?#', proxy-url: x}}\n- nonsense\n- {name: 7}\n\
        users:\n- {name: bot, user: {token: CANARY-token, extensions: {}, shoe-size: 42}}\n\
        - {name: runs, user: {exec: {command: CANARY-command}, tokenFile: /etc/passwd, token: 5}}\n\
        - {name: runs, user: {as: root}}\n\
        contexts:\n- {name: dev, context: {cluster: east, user: bot}}\n- {name: other, context: 5}\n- []\n";
    assert_eq!(vetted(text), vetted(&with_user(TOKEN)));
}

#[test]
fn the_context_asked_for_goes_before_the_current_one_and_an_empty_one_is_none() {
    let text = with_user(TOKEN).replace(
        "contexts: [",
        "contexts: [{name: 'arn:aws:eks:eu/Prod', context: {cluster: east, user: bot, namespace: prod}}, ",
    );
    let prod = vet(text.as_bytes(), Some("arn:aws:eks:eu/Prod")).unwrap();
    assert_eq!((prod.context.as_str(), prod.namespace.as_deref()), ("arn:aws:eks:eu/Prod", Some("prod")));
    assert_eq!(vet(text.as_bytes(), Some("")).unwrap().context, "dev");
    let without_current = text.replace("current-context: dev\n", "");
    assert_eq!(vet(without_current.as_bytes(), Some("dev")).unwrap().namespace, None);
}

#[test]
fn nesting_to_the_limit_is_taken() {
    for (open, close) in [("[", "]"), ("{a: ", "}")] {
        // The mapping of the file itself is the first of the 32 levels.
        let deep = format!("{}x: y\nextensions: {}{}\n", with_user(TOKEN), open.repeat(31), close.repeat(31));
        vetted(&deep);
    }
}

#[test]
fn what_travels_is_the_cut_out_alone() {
    let text = format!(
        "{}extensions: [leave-me]\npreferences: {{colors: true}}\n",
        kubeconfig(
            &format!("{SERVER}, certificate-authority-data: {}, tls-server-name: api", certificate()),
            &format!(
                "{TOKEN}, leave-me: 1, client-certificate-data: {}, client-key-data: {}",
                certificate(),
                key()
            )
        )
    );
    let vetted = vetted(&text);
    let rendered = render(&vetted);
    let travels = std::str::from_utf8(rendered.expose_secret()).unwrap();
    let wanted = format!(
        "apiVersion: v1\nkind: Config\nclusters:\n- name: cluster\n  cluster:\n    \
         server: \"https://api.example.com:6443/\"\n    certificate-authority-data: {0}\n    tls-server-name: \"api\"\n\
         users:\n- name: user\n  user:\n    client-certificate-data: {0}\n    client-key-data: {1}\n    \
         token: \"CANARY-token\"\ncontexts:\n- name: \"dev\"\n  context:\n    cluster: cluster\n    user: user\n\
         current-context: \"dev\"\n",
        certificate(),
        key()
    );
    assert_eq!(travels, wanted);
    assert_eq!(vet(rendered.expose_secret(), None).unwrap(), vetted);
}

#[test]
fn names_of_any_characters_travel_unharmed() {
    let name = "\u{1}\t\r\n\"\\\u{7f}\u{85}\u{2028}\u{feff}\u{ffff}ä 🦀: {{#&*!|>%@`";
    let escaped: String = name.encode_utf16().map(|unit| format!("\\u{unit:04x}")).collect();
    let vetted = vetted(&with_user(TOKEN).replace("dev", &format!("\"{escaped}\"")));
    assert_eq!(vetted.context, name);
    assert_eq!(vet(render(&vetted).expose_secret(), Some(name)).unwrap(), vetted);
}

#[test]
fn debug_shows_the_server_and_the_kind_of_authentication_only() {
    let pair = format!("client-certificate-data: {}, client-key-data: {}", certificate(), key());
    for (user, kind) in [
        (TOKEN.to_owned(), "token"),
        (pair.clone(), "client certificate"),
        (format!("{TOKEN}, {pair}"), "token and client certificate"),
    ] {
        let vetted = vetted(&with_user(&user));
        let shown = format!("{vetted:?}");
        assert_eq!(
            shown,
            format!(
                "VettedKubeconfig {{ server: \"https://api.example.com:6443/\", authentication: {kind}, .. }}"
            )
        );
        assert!(!leaks(&shown) && !leaks(&format!("{vetted:#?}")));
        assert!(!leaks(&format!("{:?}", render(&vetted))));
    }
    assert_eq!(format!("{:?}", SecretText::from("CANARY")), "[redacted]");
    assert_eq!(format!("{:?}", SecretBytes::from(b"CANARY".as_slice())), "[redacted]");
}
