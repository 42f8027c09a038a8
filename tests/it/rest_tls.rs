//! TLS on the port of REST (`server.ssl`).

use std::time::Duration;

use kubesvc_testkit::certificates::{Identity, MountedFiles, TestAuthority};
use kubesvc_testkit::folder::Folder;
use kubesvc_testkit::must;
use kubesvc_testkit::wait::eventually;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

use crate::world::{MAX_WAIT, Operator, World};

/// Time within which a changed file is seen.
const SEEN: Duration = Duration::from_secs(15);

/// A GET over TLS, with this authority of the server, and a certificate or none: its status and answer.
pub(crate) async fn get(
    operator: &Operator,
    authority: &TestAuthority,
    identity: Option<&Identity>,
    path: &str,
) -> Result<(u16, String), String> {
    let mut roots = RootCertStore::empty();
    roots
        .add(must(CertificateDer::from_pem_slice(authority.pem().as_bytes()).map_err(|e| e.to_string())))
        .expect("an authority");
    let config = ClientConfig::builder().with_root_certificates(roots);
    let config = match identity {
        None => config.with_no_client_auth(),
        Some((certificate, key)) => {
            let certificate = CertificateDer::from_pem_slice(certificate.as_bytes()).expect("a certificate");
            let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).expect("a key");
            config.with_client_auth_cert(vec![certificate], key).expect("they fit")
        }
    };
    let client = reqwest::Client::builder().tls_backend_preconfigured(config).no_proxy().build();
    let client = client.map_err(|e| e.to_string())?;
    let url = format!("https://localhost:{}{path}", operator.rest_port());
    let answer = client.get(url).send().await.map_err(|e| format!("{e:?}"))?;
    Ok((answer.status().as_u16(), answer.text().await.map_err(|e| e.to_string())?))
}

#[tokio::test(flavor = "multi_thread")]
async fn rest_speaks_tls_alone_asks_for_certificates_and_shows_a_renewed_one() {
    let (authority, foreign) = (TestAuthority::new("rest"), TestAuthority::new("strangers"));
    let folder = must(Folder::new("rest-tls"));
    let (first, second) = (authority.server(), foreign.server());
    let files = |(certificate, key): &Identity| {
        [("tls.crt", certificate.clone()), ("tls.key", key.clone()), ("ca.crt", authority.pem().to_owned())]
    };
    let swap = |mounted: &MountedFiles, identity: &Identity| {
        let files = files(identity);
        mounted.swap(&files.each_ref().map(|(name, text)| (*name, text.as_str())));
    };
    let initial = files(&first);
    let mounted = MountedFiles::new(
        &folder.path().join("tls"),
        &initial.each_ref().map(|(name, text)| (*name, text.as_str())),
    );
    let path = |name: &str| mounted.path(name).display().to_string();
    let world = World::prepare()
        .setting("server.ssl.enabled", true)
        .setting("server.ssl.certificate", path("tls.crt"))
        .setting("server.ssl.certificatePrivateKey", format!("file:{}", path("tls.key")))
        .setting("server.ssl.clientAuth", "need")
        .setting("server.ssl.trustCertificate", path("ca.crt"))
        .without_operator()
        .start()
        .await;
    let operator = world.operator();
    operator.launch_with(&[]);
    let caller = authority.client(2);
    eventually("REST over TLS", MAX_WAIT, async || {
        let (status, answer) = get(operator, &authority, Some(&caller), "/health/readiness").await?;
        if status == 200 { Ok(()) } else { Err(answer) }
    })
    .await;
    let (status, answer) = must(get(operator, &authority, Some(&caller), "/armory/accounts").await);
    assert_eq!(status, 200, "{answer}");
    let (_, metrics) = must(get(operator, &authority, Some(&caller), "/metrics").await);
    assert!(metrics.contains("kubesvc_security_open{door=\"rest-plaintext\"} 0"), "{metrics}");
    assert!(metrics.contains("kubesvc_certificate_not_after_seconds{use=\"rest\",name=\""), "{metrics}");

    let refused = [None, Some(foreign.client(1)), Some(authority.expired_client())];
    for identity in &refused {
        assert!(get(operator, &authority, identity.as_ref(), "/armory/accounts").await.is_err());
    }
    assert!(world.try_get("/armory/accounts").await.is_err(), "plain text is closed");

    swap(&mounted, &second);
    eventually("the next certificate", SEEN, async || {
        get(operator, &foreign, Some(&caller), "/health").await.map(drop)
    })
    .await;
    operator.terminate().await;
}
