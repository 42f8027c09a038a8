//! Files of TLS on a disk: which setting an error names, and what changed files do.

use std::fs;
use std::path::PathBuf;

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DnType, ExtendedKeyUsagePurpose,
    IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams, SerialNumber,
};

use super::*;
use crate::settings::{DialTlsSettings, IdentitySettings};
use kubesvc_runtime::tls::clients::ClientAuth;

/// A certificate authority, and a folder for the files of its certificates.
pub(crate) struct Place {
    pub(crate) folder: tempfile::TempDir,
    params: CertificateParams,
    key: KeyPair,
    pub(crate) pem: String,
}

impl Place {
    /// A place whose authority is in `ca.pem`.
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let name = folder.path().display().to_string();
        Self::named(folder, &name)
    }

    fn named(folder: tempfile::TempDir, name: &str) -> Self {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let pem = params.self_signed(&key).expect("an authority").pem();
        let place = Self { folder, params, key, pem };
        place.write("ca.pem", &place.pem);
        place
    }

    /// A place whose authority has the name of this one's.
    pub(crate) fn namesake(&self) -> Self {
        let name = self.folder.path().display().to_string();
        Self::named(tempfile::tempdir().expect("a folder"), &name)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, text).expect("written");
        path
    }

    fn issuer(&self) -> Issuer<'_, &KeyPair> {
        Issuer::from_params(&self.params, &self.key)
    }

    /// A certificate for these names and its key, in PEM.
    pub(crate) fn leaf(
        &self,
        names: &[&str],
        usage: ExtendedKeyUsagePurpose,
        change: impl FnOnce(&mut CertificateParams),
    ) -> (String, String) {
        let key = KeyPair::generate().expect("a key");
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).expect("names");
        params.extended_key_usages = vec![usage];
        change(&mut params);
        let certificate = params.signed_by(&key, &self.issuer()).expect("a certificate");
        (certificate.pem(), key.serialize_pem())
    }

    /// Writes a certificate for clients, with its key, into `agent.pem` and `agent.key`.
    pub(crate) fn client(&self, serial: u64) -> IdentitySettings {
        let (certificate, key) = self.leaf(&["agent"], ExtendedKeyUsagePurpose::ClientAuth, |params| {
            params.serial_number = Some(SerialNumber::from(serial));
        });
        IdentitySettings {
            certificate: self.write("agent.pem", &certificate),
            key: Some(self.write("agent.key", &key)),
            password: None,
        }
    }

    /// Writes a list that revokes a certificate.
    pub(crate) fn revoking(&self, serial: u64) -> PathBuf {
        let revoked = RevokedCertParams {
            serial_number: SerialNumber::from(serial),
            revocation_time: rcgen::date_time_ymd(2026, 1, 1),
            reason_code: None,
            invalidity_date: None,
        };
        let params = CertificateRevocationListParams {
            this_update: rcgen::date_time_ymd(2026, 1, 1),
            next_update: rcgen::date_time_ymd(2100, 1, 1),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: vec![revoked],
            key_identifier_method: KeyIdMethod::Sha256,
        };
        self.write("crl.pem", &params.signed_by(&self.issuer()).expect("a list").pem().expect("PEM"))
    }

    /// TLS of a server with these names, whose clients are signed by the same authority.
    pub(crate) fn server(&self, names: &[&str], client_auth: ClientAuth) -> ServerTlsSettings {
        let (certificate, key) = self.leaf(names, ExtendedKeyUsagePurpose::ServerAuth, |_| {});
        ServerTlsSettings {
            identity: ServerIdentity::Files(TlsFiles {
                certificate: self.write("server.pem", &certificate),
                key: self.write("server.key", &key),
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

    /// Settings that trust the authority of the place.
    pub(crate) fn trusting(&self) -> DialTlsSettings {
        DialTlsSettings { authorities: Some(self.path("ca.pem")), ..DialTlsSettings::default() }
    }
}

async fn problem(settings: DialTlsSettings) -> String {
    DialTls::read(settings).await.map_or_else(|error| chain(&error), |_| "none".to_owned())
}

#[tokio::test]
async fn files_that_cannot_be_used_name_setting_file_and_remedy() {
    let place = Place::new();
    let good = place.client(1);
    let with = |change: &dyn Fn(&mut IdentitySettings)| {
        let mut identity = good.clone();
        change(&mut identity);
        DialTlsSettings { identity: Some(identity), ..place.trusting() }
    };
    assert_eq!(problem(with(&|_| {})).await, "none");
    let [certificate, key] = ["agent.pem", "agent.key"]
        .map(|name| fs::read_to_string(place.path(name)).expect("a file of the client"));
    let both = place.write("both.pem", &(certificate + &key));
    let one_file = with(&|identity| {
        *identity = IdentitySettings { certificate: both.clone(), key: None, password: None };
    });
    assert_eq!(problem(one_file).await, "none", "the file of the certificate may hold the key");

    let absent = place.path("absent.pem");
    let empty = place.write("empty.pem", "");
    let (_, other_key) = place.leaf(&["x"], ExtendedKeyUsagePurpose::ClientAuth, |_| {});
    let other_key = place.write("other.key", &other_key);
    let (for_servers, its_key) = place.leaf(&["x"], ExtendedKeyUsagePurpose::ServerAuth, |_| {});
    let for_servers = place.write("servers.pem", &(for_servers + &its_key));
    let (expired, its_key) = place.leaf(&["x"], ExtendedKeyUsagePurpose::ClientAuth, |params| {
        params.not_before = rcgen::date_time_ymd(2020, 1, 1);
        params.not_after = rcgen::date_time_ymd(2021, 1, 1);
    });
    let expired = place.write("expired.pem", &(expired + &its_key));
    let alone = |path: &PathBuf| {
        let identity = IdentitySettings { certificate: path.clone(), key: None, password: None };
        DialTlsSettings { identity: Some(identity), ..place.trusting() }
    };
    let its_key = place.write("encrypted.key", include_str!("../../../runtime/src/tls/testdata/pbes2.pem"));
    let encrypted = |password: Option<&str>| {
        let password =
            password.map(|password| serde_json::from_value(serde_json::json!(password)).expect("a password"));
        with(&|one| {
            one.key = Some(its_key.clone());
            one.password.clone_from(&password);
        })
    };
    let trusting = |path: &PathBuf| DialTlsSettings { authorities: Some(path.clone()), ..place.trusting() };
    for (settings, setting, parts) in [
        (with(&|one| one.certificate = absent.clone()), "clientCertFile", ["absent.pem", "can read"]),
        (with(&|one| one.key = Some(absent.clone())), "clientKeyFile", ["absent.pem", "can read"]),
        (trusting(&absent), "cacertFile", ["absent.pem", "can read"]),
        (trusting(&empty), "cacertFile", ["empty.pem", "there is no certificate in it"]),
        (alone(&empty), "clientCertFile", ["empty.pem", "there is no certificate in it"]),
        (alone(&good.certificate), "clientKeyFile", ["agent.pem", "has no private key"]),
        (
            with(&|one| one.key = Some(other_key.clone())),
            "clientKeyFile",
            ["other.key", "private key of the certificate"],
        ),
        (alone(&for_servers), "clientCertFile", ["servers.pem", "lacks clientAuth"]),
        (alone(&expired), "clientCertFile", ["expired.pem", "expired at 2021-01-01"]),
        (encrypted(None), "clientKeyFilePassword", ["encrypted.key", "no password is set"]),
        (
            encrypted(Some("hunter2")),
            "clientKeyFilePassword",
            ["encrypted.key", "does not open the private key"],
        ),
    ] {
        let problem = problem(settings).await;
        assert!(!problem.contains("hunter2"), "{problem}");
        let begin = format!("`clouddriver.tls.{setting}` cannot be honoured; ");
        assert!(problem.starts_with(&begin), "{problem}");
        assert!(parts.iter().all(|part| problem.contains(part)), "{parts:?}: {problem}");
    }
}

#[tokio::test]
async fn changed_files_take_effect_as_a_whole_or_not_at_all() {
    let place = Place::new();
    let settings = DialTlsSettings { identity: Some(place.client(1)), ..place.trusting() };
    let tls = DialTls::read(settings).await.expect("they can be used");
    let identity = tls.identity();
    assert!(!tls.refresh().await.expect("the same"));
    let (certificate, key) = place.leaf(&["agent"], ExtendedKeyUsagePurpose::ClientAuth, |_| {});
    place.write("agent.pem", &certificate);
    let half = tls.refresh().await.expect_err("the key is still the former one");
    assert!(chain(&half).contains("clouddriver.tls.clientKeyFile"), "{}", chain(&half));
    assert_eq!(*identity.borrow(), 0);
    place.write("agent.key", &key);
    assert!(tls.refresh().await.expect("they fit now"));
    assert_eq!(*identity.borrow(), 1);
    place.write("ca.pem", &Place::new().pem);
    assert!(tls.refresh().await.expect("another authority"));
    assert_eq!(*identity.borrow(), 1, "the agent shows the same certificate");
}

#[test]
fn a_problem_is_kept_until_the_files_can_be_used() {
    let mut problem = None;
    let error = || {
        let source = std::io::Error::from(std::io::ErrorKind::NotFound);
        HUB.error(None, TlsFilesError::File { path: PathBuf::from("/x"), source })
    };
    note("TLS", Err(error()), &mut problem);
    assert!(problem.as_ref().is_some_and(|problem| problem.contains("cacertFile")));
    note("TLS", Ok(false), &mut problem);
    assert_eq!(problem, None);
}
