use super::*;

#[test]
fn servers_in_plain_form_are_taken() {
    for (server, as_url) in [
        ("https://api.example.com", "https://api.example.com/"),
        ("HTTPS://API.Example.com:443/", "https://api.example.com/"),
        ("https://api.example.com.:6443", "https://api.example.com.:6443/"),
        ("https://kubernetes", "https://kubernetes/"),
        ("https://0x.example", "https://0x.example/"),
        ("https://10-0-0-1.example.com:1", "https://10-0-0-1.example.com:1/"),
        ("https://rancher.example.com/k8s/clusters/c-abc", "https://rancher.example.com/k8s/clusters/c-abc"),
        (
            "https://rancher.example.com/k8s/clusters/c-abc/",
            "https://rancher.example.com/k8s/clusters/c-abc/",
        ),
        ("https://a.b/c@d:e", "https://a.b/c@d:e"),
        ("https://127.0.0.1:6443", "https://127.0.0.1:6443/"),
        ("https://localhost:65535", "https://localhost:65535/"),
        ("https://[::1]:6443", "https://[::1]:6443/"),
        ("https://[2001:DB8:0::1]", "https://[2001:db8::1]/"),
        ("https://xn--bcher-kva.example", "https://xn--bcher-kva.example/"),
    ] {
        assert_eq!(vetted(&with_cluster(&format!("server: '{server}'"))).server.as_str(), as_url);
    }
}

#[test]
fn servers_in_any_other_form_are_refused() {
    let table = [
        ("", "is missing"),
        ("api.example.com:6443", "has no scheme"),
        ("/api", "has no scheme"),
        ("https:api.example.com", "has no scheme"),
        ("https:/api.example.com", "has no scheme"),
        ("http://api.example.com", "scheme"),
        ("ftp://api.example.com", "scheme"),
        ("unix:///var/run/CANARY.sock", "scheme"),
        ("file:///etc/CANARY", "scheme"),
        ("javascript://api", "scheme"),
        ("://api", "scheme"),
        ("https://", "no host"),
        ("https:///api", "no host"),
        ("https://:6443", "no host"),
        ("https://user:CANARY-password@api.example.com", "user information"),
        ("https://CANARY@api.example.com", "user information"),
        ("https://@api.example.com", "user information"),
        ("https://api.example.com?token=CANARY", "query"),
        ("https://api.example.com/?", "query"),
        ("https://api.example.com/#CANARY", "fragment"),
        ("https://api.example.com#@evil", "fragment"),
        ("https://api.example.com:0", "port"),
        ("https://api.example.com:", "port"),
        ("https://api.example.com:65536", "port"),
        ("https://api.example.com:+443", "port"),
        ("https://api.example.com:https", "port"),
        ("https://api.example.com:1:2", "several ports"),
        ("https://my_api.example.com", "malformed host"),
        ("https://-api.example.com", "malformed host"),
        ("https://api-.example.com", "malformed host"),
        ("https://api..example.com", "malformed host"),
        ("https://.example.com", "malformed host"),
        ("https://.", "malformed host"),
        ("https://*.example.com", "malformed host"),
        ("https://api%2eexample.com", "malformed host"),
        ("https://127%2e0.0.1", "four decimal numbers"),
        ("https://%31%30.example.com", "malformed host"),
        ("https://${CANARY}", "malformed host"),
        ("https://2130706433", "four decimal numbers"),
        ("https://0x7f000001", "four decimal numbers"),
        ("https://0x7f.0.0.0x1", "four decimal numbers"),
        ("https://0x", "four decimal numbers"),
        ("https://0177.0.0.1", "four decimal numbers"),
        ("https://127.1", "four decimal numbers"),
        ("https://127.0.0.01", "four decimal numbers"),
        ("https://127.0.0.1.", "four decimal numbers"),
        ("https://256.0.0.1", "four decimal numbers"),
        ("https://1.2.3.4.5", "four decimal numbers"),
        ("https://api.example.123", "four decimal numbers"),
        ("https://１２７.0.0.1", "other than ASCII"),
        ("https://bücher.example", "other than ASCII"),
        ("https://api.example.com\\@evil.example", "backslashes"),
        ("https://api.example.com /", "blanks"),
        (" https://api.example.com", "blanks"),
        ("https://[::1", "closing bracket"),
        ("https://[::1]6443", "after the IPv6"),
        ("https://[fe80::1%25eth0]", "no IPv6"),
        ("https://[v1.x]", "no IPv6"),
        ("https://[10.0.0.1]", "no IPv6"),
        ("https://[]", "no IPv6"),
        ("https://::1", "without brackets"),
        ("https://169.254.169.254", "link-local"),
        ("https://169.254.169.254:443/latest/CANARY", "link-local"),
        ("https://169.254.0.1", "link-local"),
        ("https://[fe80::1]:6443", "link-local"),
        ("https://[febf::1]", "link-local"),
        ("https://[::ffff:169.254.169.254]", "link-local"),
        ("https://[::ffff:a9fe:a9fe]", "link-local"),
        ("https://[::169.254.169.254]", "link-local"),
        ("https://[64:ff9b::169.254.169.254]", "link-local"),
        ("https://[2002:a9fe:a9fe::1]", "link-local"),
    ];
    for (server, why) in table {
        let refusal = refused(&with_cluster(&format!("server: '{server}'")));
        assert_eq!(refusal.field(), "clusters[east].cluster.server", "{server}");
        assert!(refusal.to_string().contains(why), "{server}: {refusal}");
        assert!(refusal.to_string().ends_with("use https://HOST[:PORT][/PATH]"), "{refusal}");
        assert!(!leaks(&format!("{refusal} {refusal:?}")), "{refusal}");
    }
    let long = format!("server: 'https://api.example.com/{}'", "a".repeat(2048));
    assert!(refused(&with_cluster(&long)).to_string().contains("too long"));
    let long_name = format!("server: 'https://{}com'", "a123456789.".repeat(23));
    assert!(refused(&with_cluster(&long_name)).to_string().contains("malformed host"));
    let tab = "server: \"https://api\\t.example.com\"";
    assert!(refused(&with_cluster(tab)).to_string().contains("blanks"));
}

#[test]
fn link_local_addresses_are_refused_in_every_form_and_others_are_not() {
    for refused in
        ["169.254.0.0", "169.254.255.255", "fe80::", "fe80::1", "febf:ffff::", "::ffff:169.254.1.1"]
    {
        assert!(refused_address(refused.parse().unwrap()).is_some(), "{refused}");
    }
    for taken in [
        "127.0.0.1",
        "10.0.0.1",
        "169.253.255.255",
        "169.255.0.0",
        "::1",
        "fec0::1",
        "fd00::1",
        "::ffff:10.0.0.1",
    ] {
        assert_eq!(refused_address(taken.parse().unwrap()), None, "{taken}");
    }
}

#[test]
fn server_names_that_are_no_name_are_refused() {
    for name in [
        "my_api",
        "api:6443",
        "https://api",
        "a..b",
        "-a",
        "0x7f.1",
        "2130706433",
        "*.example.com",
        "a b",
        "[::1]",
        "ä",
    ] {
        let refusal = refused(&with_cluster(&format!("{SERVER}, tls-server-name: '{name}'")));
        assert_eq!(refusal.field(), "clusters[east].cluster.tls-server-name", "{name}");
    }
}
