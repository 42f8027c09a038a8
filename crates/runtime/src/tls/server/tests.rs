use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DnType, ExtendedKeyUsagePurpose,
    IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams, SerialNumber,
};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio_rustls::TlsConnector;

use super::*;
use crate::telemetry::errors::chain;

/// Number of authorities, whose names differ.
static AUTHORITIES: AtomicUsize = AtomicUsize::new(0);

pub(crate) struct Authority(CertificateParams, KeyPair, pub(crate) String);

impl Authority {
    pub(crate) fn new() -> Self {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::default();
        let number = AUTHORITIES.fetch_add(1, Ordering::Relaxed);
        params.distinguished_name.push(DnType::CommonName, format!("authority {number}"));
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let pem = params.self_signed(&key).expect("an authority").pem();
        Self(params, key, pem)
    }

    fn issuer(&self) -> Issuer<'_, &KeyPair> {
        Issuer::from_params(&self.0, &self.1)
    }

    /// Certificate and key, with this serial number.
    pub(crate) fn leaf(&self, usage: ExtendedKeyUsagePurpose, serial: u64) -> (String, String) {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(["localhost".to_owned()]).expect("a name");
        params.extended_key_usages = vec![usage];
        params.serial_number = Some(SerialNumber::from(serial));
        let certificate = params.signed_by(&key, &self.issuer()).expect("a certificate");
        (certificate.pem(), key.serialize_pem())
    }

    fn expired_list(&self) -> String {
        self.list(&[], 2026)
    }

    fn revoking(&self, serials: &[u64]) -> String {
        self.list(serials, 2100)
    }

    /// A list that is valid until a day of this year.
    fn list(&self, serials: &[u64], until: i32) -> String {
        let revoked = serials.iter().map(|serial| RevokedCertParams {
            serial_number: SerialNumber::from(*serial),
            revocation_time: rcgen::date_time_ymd(2026, 1, 1),
            reason_code: None,
            invalidity_date: None,
        });
        let params = CertificateRevocationListParams {
            this_update: rcgen::date_time_ymd(2026, 1, 1),
            next_update: rcgen::date_time_ymd(until, 1, 2),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: revoked.collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        params.signed_by(&self.issuer()).expect("a list").pem().expect("PEM")
    }
}

/// A port whose clients are signed by the same authority as its certificate.
pub(crate) struct Place {
    folder: tempfile::TempDir,
    pub(crate) authority: Authority,
}

impl Place {
    pub(crate) fn new() -> Self {
        let place = Self { folder: tempfile::tempdir().expect("a folder"), authority: Authority::new() };
        place.write("ca.pem", &place.authority.2);
        place.show(1);
        place
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).expect("written");
    }

    fn show(&self, serial: u64) {
        let (certificate, key) = self.authority.leaf(ExtendedKeyUsagePurpose::ServerAuth, serial);
        self.write("tls.pem", &certificate);
        self.write("key.pem", &key);
    }

    fn path(&self, name: &str) -> PathBuf {
        Path::new(self.folder.path()).join(name)
    }

    pub(crate) fn settings(&self, client_auth: ClientAuth) -> ServerTlsSettings {
        ServerTlsSettings {
            identity: ServerIdentity::Files(TlsFiles {
                certificate: self.path("tls.pem"),
                key: self.path("key.pem"),
                password: None,
            }),
            client_auth,
            authorities: Some(self.path("ca.pem")),
            revocation_lists: Vec::new(),
            protocols: Vec::new(),
            suites: Vec::new(),
            alpn: &[b"h2"],
        }
    }

    /// Connects with a certificate.
    pub(crate) fn connector(&self, identity: Option<&(String, String)>) -> TlsConnector {
        let mut roots = RootCertStore::empty();
        for one in CertificateDer::pem_slice_iter(self.authority.2.as_bytes()) {
            roots.add(one.expect("PEM")).expect("an authority");
        }
        let provider = Arc::new(ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let config = config.expect("versions").with_root_certificates(roots);
        let config = match identity {
            Some((certificate, key)) => {
                let chain =
                    CertificateDer::pem_slice_iter(certificate.as_bytes()).map(|one| one.expect("PEM"));
                let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).expect("a key");
                config.with_client_auth_cert(chain.collect(), key).expect("they fit")
            }
            None => config.with_no_client_auth(),
        };
        TlsConnector::from(Arc::new(config))
    }

    /// Connects with a certificate, and returns how the server saw the handshake end, and the certificate that it showed.
    async fn connect(
        &self,
        tls: &ServerTls,
        identity: Option<&(String, String)>,
    ) -> Result<Vec<CertificateDer<'static>>, String> {
        let (client, server) = tokio::io::duplex(64 * 1024);
        let name = ServerName::try_from("localhost").expect("a name");
        let connector = self.connector(identity);
        let (shown, seen) = tokio::join!(connector.connect(name, client), tls.accept(server));
        seen.map_err(|error| error.to_string())?;
        let shown = shown.map_err(|error| error.to_string())?;
        Ok(shown
            .get_ref()
            .1
            .peer_certificates()
            .unwrap_or_default()
            .iter()
            .map(|one| one.clone().into_owned())
            .collect())
    }
}

#[tokio::test]
async fn clients_show_a_certificate_as_the_port_asks() {
    let place = Place::new();
    let good = place.authority.leaf(ExtendedKeyUsagePurpose::ClientAuth, 2);
    let for_servers = place.authority.leaf(ExtendedKeyUsagePurpose::ServerAuth, 3);
    let foreign = Authority::new().leaf(ExtendedKeyUsagePurpose::ClientAuth, 4);
    for (auth, without, with_foreign) in [
        (ClientAuth::None, true, true),
        (ClientAuth::Optional, true, false),
        (ClientAuth::Required, false, false),
    ] {
        let tls = ServerTls::read(place.settings(auth)).await.expect("it can be used");
        assert!(place.connect(&tls, Some(&good)).await.is_ok(), "{auth:?}");
        assert_eq!(place.connect(&tls, None).await.is_ok(), without, "{auth:?}");
        assert_eq!(place.connect(&tls, Some(&foreign)).await.is_ok(), with_foreign, "{auth:?}");
        assert_eq!(place.connect(&tls, Some(&for_servers)).await.is_ok(), with_foreign, "{auth:?}");
    }
}

#[tokio::test]
async fn another_set_of_files_takes_effect_as_a_whole_or_not_at_all() {
    let place = Place::new();
    let tls = ServerTls::read(place.settings(ClientAuth::None)).await.expect("it can be used");
    let before = place.connect(&tls, None).await.expect("a connection");
    assert!(!tls.refresh().await.expect("they are there"));
    let key = fs::read_to_string(place.path("key.pem")).expect("a key");
    place.show(9);
    let next = fs::read_to_string(place.path("key.pem")).expect("a key");
    // Half written: the certificate is new, the key is not.
    place.write("key.pem", &key);
    let error = tls.refresh().await.expect_err("they do not fit");
    assert!(
        chain(&error).contains("key.pem: the private key cannot be used with the certificate"),
        "{}",
        chain(&error)
    );
    assert_eq!(place.connect(&tls, None).await.expect("a connection"), before);
    place.write("key.pem", &next);
    assert!(tls.refresh().await.expect("they fit"));
    assert_ne!(place.connect(&tls, None).await.expect("a connection"), before);
    assert!(tls.not_after().is_some());
    fs::remove_file(place.path("tls.pem")).expect("removed");
    assert!(tls.refresh().await.is_err());
    place.connect(&tls, None).await.expect("the last set stays in use");
}

#[tokio::test]
async fn a_changed_trust_list_or_revocation_list_judges_live_chains_anew() {
    let place = Place::new();
    place.write("crl.pem", &place.authority.revoking(&[7]));
    let settings = ServerTlsSettings {
        revocation_lists: vec![place.path("crl.pem")],
        ..place.settings(ClientAuth::Required)
    };
    let tls = ServerTls::read(settings).await.expect("it can be used");
    let mut changes = tls.trust_changes();
    let chain_of = |identity: &(String, String)| {
        vec![CertificateDer::from_pem_slice(identity.0.as_bytes()).expect("a certificate")]
    };
    let [good, revoked] =
        [2, 7].map(|serial| place.authority.leaf(ExtendedKeyUsagePurpose::ClientAuth, serial));
    assert!(place.connect(&tls, Some(&good)).await.is_ok());
    assert!(place.connect(&tls, Some(&revoked)).await.is_err());
    assert!(tls.verify(&chain_of(&good)).is_ok() && tls.verify(&chain_of(&revoked)).is_err());
    assert!(tls.verify(&[]).is_err(), "one is required");

    place.write("crl.pem", &place.authority.revoking(&[2, 7]));
    assert!(tls.refresh().await.expect("it can be used") && changes.has_changed().expect("it lives"));
    changes.mark_unchanged();
    assert!(tls.verify(&chain_of(&good)).is_err());
    place.show(20);
    assert!(tls.refresh().await.expect("it can be used"));
    assert!(!changes.has_changed().expect("it lives"), "another certificate of the port judges nobody anew");

    // What would lock everybody out changes nothing: a list that has expired, or one of another issuer.
    let before = place.authority.revoking(&[]);
    place.write("crl.pem", &before);
    assert!(tls.refresh().await.expect("it can be used"));
    for (list, expected) in [
        (place.authority.expired_list(), "expired at 2026-01-02"),
        (Authority::new().revoking(&[]), "has no revocation list"),
    ] {
        place.write("crl.pem", &list);
        let error = chain(&tls.refresh().await.expect_err(expected));
        assert!(error.contains(expected), "{error}");
        assert!(tls.verify(&chain_of(&good)).is_ok(), "{expected}");
    }
    // A certificate of the port that cannot be used holds up no revocation.
    place.write("crl.pem", &place.authority.revoking(&[2]));
    place.write("key.pem", "");
    assert!(tls.refresh().await.is_err());
    assert!(tls.verify(&chain_of(&good)).is_err());
}

#[tokio::test]
async fn files_that_cannot_be_used_are_named() {
    let place = Place::new();
    let read = async |text: Option<&str>, lists: &[&str]| {
        if let Some(text) = text {
            place.write("ca.pem", text);
        }
        let settings = ServerTlsSettings {
            revocation_lists: lists.iter().map(|name| place.path(name)).collect(),
            ..place.settings(ClientAuth::Optional)
        };
        ServerTls::read(settings).await.map(drop).map_err(|error| chain(&error))
    };
    let whole = place.authority.2.clone();
    place.write("empty.pem", "");
    place.write("no.pem", &whole);
    for (text, lists, expected) in [
        (None, &["missing.pem"][..], "missing.pem: No such file"),
        (None, &["empty.pem"], "no revocation list"),
        (None, &["no.pem"], "no revocation list"),
        (Some(&whole[..whole.len() - 40]), &[], "ca.pem: it is no PEM, or a block of it is damaged"),
        (Some(""), &[], "there is no certificate in it"),
        (Some("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"), &[], "certificate 1 of it"),
    ] {
        let error = read(text, lists).await.expect_err(expected);
        assert!(error.contains(expected), "{expected:?}: {error}");
    }
}
