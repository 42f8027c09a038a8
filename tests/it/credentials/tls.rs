//! TLS to Clouddriver, by an nginx before it that wants a client certificate: files that change take effect, and files that
//! cannot be used do not.

use std::path::Path;

use super::*;
use kubesvc_testkit::kubeconfig::{Authority, Identity};
use kubesvc_testkit::nginx::Nginx;

fn write(folder: &Path, name: &str, text: &str) {
    std::fs::write(folder.join(name), text).expect("written");
}

fn write_identity(folder: &Path, name: &str, identity: &Identity) {
    write(folder, &format!("{name}.crt"), &identity.certificate);
    write(folder, &format!("{name}.key"), &identity.key);
}

#[tokio::test(flavor = "multi_thread")]
async fn renewed_certificates_are_used_for_the_next_call_and_unfit_ones_are_not() {
    let (folder, url) = (must_folder(), databases::shared(Kind::MariaDb).await.fresh_database().await);
    let clouddriver = must(Clouddriver::start(&url, Settings::default()).await);
    let (authority, other) = (must(Authority::new("clouddriver")), must(Authority::new("other")));
    let at = folder.path();
    let path = |name: &str| at.join(name).display().to_string();
    write(at, "authority.pem", &authority.pem());
    write(at, "ca.pem", &authority.pem());
    write_identity(at, "server", &must(authority.server(&["localhost"])));
    write_identity(at, "client", &must(authority.client("first", None)));
    let site = |port: u16| {
        format!(
            "server {{ listen 127.0.0.1:{port} ssl; ssl_certificate {0}/server.crt; ssl_certificate_key {0}/server.key; \
             ssl_client_certificate {0}/authority.pem; ssl_verify_client on; \
             add_header X-Shown $ssl_client_s_dn always; location / {{ proxy_pass {1}; }} }}",
            at.display(),
            clouddriver.base_url()
        )
    };
    let nginx = must(Nginx::start(site).await);
    let world = World::prepare()
        .operator_env("KUBESVC_TLS_FILES_SECONDS", "1")
        .setting("kubesvc.clouddriver.baseUrl", format!("https://localhost:{}", nginx.port()))
        .setting("kubesvc.clouddriver.tls.caFile", path("ca.pem"))
        .setting("kubesvc.clouddriver.tls.certificateFile", path("client.crt"))
        .setting("kubesvc.clouddriver.tls.keyFile", path("client.key"))
        .start()
        .await;
    let shown = async || {
        let answer = world.try_get("/credentials").await?;
        let shown = answer.headers.get("x-shown").and_then(|value| value.to_str().ok()).map(str::to_owned);
        shown.ok_or(format!("{}: {}", answer.status, answer.text))
    };
    assert_eq!(must(shown().await), "CN=first");

    // A key that is not yet that of the certificate.
    let second = must(authority.client("second", None));
    write(at, "client.crt", &second.certificate);
    for _ in 0..6 {
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert_eq!(must(shown().await), "CN=first");
    }
    write(at, "client.key", &second.key);
    let until = async |expected: &str| {
        eventually(expected, MAX_WAIT, async || match shown().await {
            Ok(shown) | Err(shown) if shown.contains(expected) => Ok(()),
            Ok(shown) | Err(shown) => Err(shown),
        })
        .await;
    };
    until("CN=second").await;

    // Another authority: no call is sent. A file that is gone leaves the last one in use.
    write(at, "ca.pem", &other.pem());
    until("502: ").await;
    std::fs::remove_file(at.join("ca.pem")).expect("removed");
    eventually("the file is missed", MAX_WAIT, async || {
        let log = world.operator().log_text();
        if log.contains("ca.pem: No such file") { Ok(()) } else { Err(log) }
    })
    .await;
    until("502: ").await;
    write(at, "ca.pem", &(other.pem() + &authority.pem()));
    until("CN=second").await;
    let log = world.operator().log_text();
    assert!(log.contains("use other certificates from now on"), "{log}");
    assert!(!log.contains("PRIVATE KEY"), "{log}");
}
