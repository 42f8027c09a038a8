//! Authorities, their certificates and revocation lists; and a folder whose files change all at once, as those of a mounted
//! Secret do.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams,
    SerialNumber,
};

use crate::must;

/// Certificate and key, PEM.
pub type Identity = (String, String);

/// An authority.
pub struct TestAuthority {
    params: CertificateParams,
    key: KeyPair,
    pem: String,
}

impl TestAuthority {
    /// Makes an authority.
    pub fn new(name: &str) -> Self {
        let key = must(KeyPair::generate().map_err(|e| e.to_string()));
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let pem = must(params.self_signed(&key).map_err(|e| e.to_string())).pem();
        Self { params, key, pem }
    }

    /// Its own certificate.
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// A certificate of a server for `localhost`.
    pub fn server(&self) -> Identity {
        self.leaf(ExtendedKeyUsagePurpose::ServerAuth, |_| {})
    }

    /// A certificate of a client, with this serial number.
    pub fn client(&self, serial: u64) -> Identity {
        self.leaf(ExtendedKeyUsagePurpose::ClientAuth, |params| {
            params.serial_number = Some(SerialNumber::from(serial));
        })
    }

    /// A certificate of a client with this common name, of this organization.
    pub fn client_named(&self, name: &str, organization: &str) -> Identity {
        self.leaf(ExtendedKeyUsagePurpose::ClientAuth, |params| {
            params.distinguished_name = DistinguishedName::new();
            params.distinguished_name.push(DnType::OrganizationName, organization);
            params.distinguished_name.push(DnType::CommonName, name);
        })
    }

    /// A certificate of a client whose time is over.
    pub fn expired_client(&self) -> Identity {
        self.leaf(ExtendedKeyUsagePurpose::ClientAuth, |params| {
            params.not_before = rcgen::date_time_ymd(2020, 1, 1);
            params.not_after = rcgen::date_time_ymd(2021, 1, 1);
        })
    }

    /// A certificate of a server whose time is over.
    pub fn expired_server(&self) -> Identity {
        self.leaf(ExtendedKeyUsagePurpose::ServerAuth, |params| {
            params.not_before = rcgen::date_time_ymd(2020, 1, 1);
            params.not_after = rcgen::date_time_ymd(2021, 1, 1);
        })
    }

    fn leaf(&self, usage: ExtendedKeyUsagePurpose, change: impl FnOnce(&mut CertificateParams)) -> Identity {
        let key = must(KeyPair::generate().map_err(|e| e.to_string()));
        let mut params = must(CertificateParams::new(["localhost".to_owned()]).map_err(|e| e.to_string()));
        params.extended_key_usages = vec![usage];
        change(&mut params);
        let certificate = must(params.signed_by(&key, &self.issuer()).map_err(|e| e.to_string()));
        (certificate.pem(), key.serialize_pem())
    }

    /// A revocation list of these serial numbers.
    pub fn revoking(&self, serials: &[u64]) -> String {
        let revoked = serials.iter().map(|serial| RevokedCertParams {
            serial_number: SerialNumber::from(*serial),
            revocation_time: rcgen::date_time_ymd(2026, 1, 1),
            reason_code: None,
            invalidity_date: None,
        });
        let params = CertificateRevocationListParams {
            this_update: rcgen::date_time_ymd(2026, 1, 1),
            next_update: rcgen::date_time_ymd(2100, 1, 1),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: revoked.collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        must(params.signed_by(&self.issuer()).and_then(|list| list.pem()).map_err(|e| e.to_string()))
    }

    fn issuer(&self) -> Issuer<'_, &KeyPair> {
        Issuer::from_params(&self.params, &self.key)
    }
}

/// A folder of files that change all at once, by a symbolic link that is replaced.
pub struct MountedFiles(PathBuf);

impl MountedFiles {
    /// Makes the folder, with these files.
    pub fn new(folder: &Path, files: &[(&str, &str)]) -> Self {
        must(fs::create_dir_all(folder).map_err(|e| e.to_string()));
        let mounted = Self(folder.to_owned());
        mounted.swap(files);
        for (name, _) in files {
            must(symlink(Path::new("..data").join(name), folder.join(name)).map_err(|e| e.to_string()));
        }
        mounted
    }

    /// The path of a file.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Replaces all files by these.
    pub fn swap(&self, files: &[(&str, &str)]) {
        let version = self.0.join(format!("..{}", ulid::Ulid::generate()));
        let link = self.0.join("..data_tmp");
        let swapped = fs::create_dir(&version).and_then(|()| {
            for (name, text) in files {
                fs::write(version.join(name), text)?;
            }
            symlink(&version, &link)?;
            fs::rename(&link, self.0.join("..data"))
        });
        must(swapped.map_err(|e| e.to_string()));
    }
}
