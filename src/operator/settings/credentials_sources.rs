//! The settings of credentials sources: where Clouddriver's accounts are, and where the files are that they name.

use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;

use super::PATH;
use crate::credentials_sources::{ObjectKind, SourcePlace, SourceSettings};
use kubesvc_clouddriver::definition::{FileRoot, RootTarget};
use kubesvc_core::object_names::is_dns_subdomain;
use kubesvc_runtime::config::{
    ConfigError, ConfigProblem, HTTP_URL, NAMESPACE, SettingType, Source, TEXTS, Values, Word, key, list,
    names,
};
use kubesvc_runtime::settings;

const SOURCES: &str = "kubesvc.clouddriver.sources";
const FILE_ROOTS: &str = "kubesvc.clouddriver.fileRoots";
/// Maximum number of sources.
const MAX_SOURCES: usize = 16;
/// Maximum number of folders.
const MAX_FILE_ROOTS: usize = 1000;
/// Name of the application whose settings a config server is asked for.
const CLOUDDRIVER: &str = "clouddriver";
/// The profile of a config server that stands for none.
const NO_PROFILE: &str = "default";

const OPTIONAL: SettingType = SettingType::Optional(253);
const TYPES: SettingType = SettingType::OptionalChoice(&["sql", "file", "configServer", "api"]);
const PATHS: &Word = &Word {
    allowed: "a list of absolute paths",
    pattern: "^/",
    fits: |text| text.starts_with('/') && text.len() <= 4096 && !text.contains(char::is_control),
    most: 100,
    secret: false,
    keeps_commas: false,
};
const VARIABLE: SettingType = SettingType::Word(&Word {
    allowed: "text on one line of at most 4096 characters",
    pattern: "",
    fits: |text| text.len() <= 4096 && !text.contains(char::is_control),
    most: 1,
    secret: true,
    keeps_commas: false,
});
const CLOUDDRIVER_DATABASE: SettingType = SettingType::Word(&Word {
    allowed: "mysql://USER@HOST:PORT/DATABASE or postgres://USER@HOST:PORT/DATABASE, without a password, which is for \
              passwordFile, and with no other parameters than ssl-mode, ssl-ca, ssl-cert and ssl-key",
    pattern: "^(mysql|mariadb|postgres|postgresql)://",
    fits: |text| kubesvc_store::check_clouddriver_url(text).is_ok(),
    most: 1,
    secret: true,
    keeps_commas: false,
});
const SECRET_NAME: SettingType = SettingType::Word(&Word {
    allowed: "the namespace and name of a Secret, as NAMESPACE/NAME",
    pattern: "^[a-z0-9.-]+/[a-z0-9.-]+$",
    fits: |text| {
        text.split_once('/')
            .is_some_and(|(namespace, name)| is_dns_subdomain(namespace) && is_dns_subdomain(name))
    },
    most: 1,
    secret: false,
    keeps_commas: false,
});

settings! {
    /// Where Clouddriver's accounts are read.
    struct CredentialsSourcesKeys {
        /// The sources, in their order.
        sources: Vec<SourceKeys> = list("sources", MAX_SOURCES);
        /// value of a placeholder ${NAME} in files of Clouddriver, before what those files say
        vars: BTreeMap<String, String> = names("vars.*", VARIABLE);
        /// Where the files of Clouddriver are.
        file_roots: Vec<FileRootKeys> = list("fileRoots", MAX_FILE_ROOTS);
    }

    struct SourceKeys {
        /// name of a credentials source of Clouddriver; of two sources that have an account, the first one counts
        name: Option<String> = key("name", OPTIONAL, "");
        /// what it is: Clouddriver's database, its YAML files, its config server, or Clouddriver itself
        kind: Option<String> = key("type", TYPES, "");
        /// of sql: Clouddriver's database, without a password
        url: Option<String> = key("url", CLOUDDRIVER_DATABASE, "");
        /// of sql, configServer: file with the password
        password_file: Option<PathBuf> = key("passwordFile", PATH, "");
        /// of sql: authority of the database's certificate, PEM; it is then verified
        ssl_ca: Option<PathBuf> = key("ssl-ca", PATH, "");
        /// of file: its files on the operator's disk, which all exist
        paths: Vec<String> = key("paths", SettingType::List(PATHS), "");
        /// of file: namespace of the Secret that has them; none: the operator's own
        secret_namespace: Option<String> = key("secret.namespace", NAMESPACE, "");
        /// of file: Secret that has them
        secret_name: Option<String> = key("secret.name", OPTIONAL, "");
        /// of file: its keys; none: those named like Clouddriver's files
        secret_keys: Vec<String> = key("secret.keys", SettingType::List(TEXTS), "");
        /// of file: namespace of the ConfigMap that has them; none: the operator's own
        config_map_namespace: Option<String> = key("configMap.namespace", NAMESPACE, "");
        /// of file: ConfigMap that has them
        config_map_name: Option<String> = key("configMap.name", OPTIONAL, "");
        /// of file: its keys; none: those named like Clouddriver's files
        config_map_keys: Vec<String> = key("configMap.keys", SettingType::List(TEXTS), "");
        /// of configServer, api: base URL of the server
        uri: Option<String> = key("uri", HTTP_URL, "");
        /// of configServer: name of the application; none: clouddriver
        application: Option<String> = key("application", OPTIONAL, "");
        /// of configServer, file: active profiles; the last one counts most, but for local
        profile: Vec<String> = key("profile", SettingType::List(TEXTS), "");
        /// of configServer: branch or tag; none: the server's default
        label: Option<String> = key("label", OPTIONAL, "");
        /// of configServer: user; of api: user that Clouddriver is told
        username: Option<String> = key("username", OPTIONAL, "");
        /// of configServer, api: authorities of the server's certificate, PEM; none: the system's
        ca_file: Option<PathBuf> = key("caFile", PATH, "");
    }

    struct FileRootKeys {
        /// a folder of Clouddriver whose files accounts name
        from: Option<String> = key("from", SettingType::Optional(1024), "");
        /// folder of the operator that has the same files
        to: Option<String> = key("to", SettingType::Optional(1024), "");
        /// Secret that has them, as NAMESPACE/NAME
        secret: Option<String> = key("secret", SECRET_NAME, "");
        /// folder of the agents that has them
        agent: Option<String> = key("agent", SettingType::Optional(1024), "");
    }
}

/// Where Clouddriver's accounts are read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CredentialsSourcesSettings {
    /// The sources, in their order.
    pub sources: Vec<SourceSettings>,
    /// Values of placeholders in Clouddriver's files.
    pub vars: BTreeMap<String, String>,
    /// Where the files are that Clouddriver's accounts name.
    pub file_roots: Vec<FileRoot>,
}

/// The settings below `kubesvc.clouddriver` that are about credentials sources.
pub(super) fn source() -> impl Source<CredentialsSourcesSettings> {
    kubesvc_runtime::config::group("kubesvc.clouddriver").read_as(checked)
}

fn checked(keys: CredentialsSourcesKeys, values: &Values) -> Result<CredentialsSourcesSettings, ConfigError> {
    let CredentialsSourcesKeys { sources, vars, file_roots } = keys;
    let mut problems = Vec::new();
    let mut settings = CredentialsSourcesSettings { vars, ..CredentialsSourcesSettings::default() };
    let mut names = HashSet::new();
    check_length(SOURCES, MAX_SOURCES, values, &mut problems);
    for (at, keys) in sources.into_iter().enumerate() {
        let read = keys.source().and_then(|source| match names.insert(source.name.clone()) {
            true => Ok(source),
            false => Err(("name", "is the name of an earlier source too: give each its own".to_owned())),
        });
        match read {
            Ok(source) => settings.sources.push(source),
            Err((key, why)) => problems.push(values.rule(&format!("{SOURCES}[{at}].{key}"), why)),
        }
    }
    check_length(FILE_ROOTS, MAX_FILE_ROOTS, values, &mut problems);
    for (at, keys) in file_roots.into_iter().enumerate() {
        match keys.file_root() {
            Ok(root) => settings.file_roots.push(root),
            Err((key, why)) => problems.push(values.rule(&format!("{FILE_ROOTS}[{at}].{key}"), why)),
        }
    }
    if problems.is_empty() { Ok(settings) } else { Err(ConfigError { problems }) }
}

fn check_length(key: &str, most: usize, values: &Values, problems: &mut Vec<ConfigProblem>) {
    let len = values.listed(key).map_or(0, |listed| listed.len);
    if len > most {
        let why = format!("has {len} entries, and {most} are the most");
        problems.push(values.rule(&format!("{key}[{most}]"), why));
    }
}

/// A key of an entry, and what is wrong with it, to follow the key.
type Wrong = (&'static str, String);

impl SourceKeys {
    fn source(self) -> Result<SourceSettings, Wrong> {
        let Some(name) = self.name.clone() else {
            return Err(("name", "is missing: give each source a name, such as sql".to_owned()));
        };
        if !name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.')) {
            return Err(("name", "may have letters, digits, hyphens, underscores and dots alone".to_owned()));
        }
        let kind = self.kind.clone().unwrap_or_default();
        let allowed: &[&str] = match kind.as_str() {
            "sql" => &["url", "passwordFile", "ssl-ca"],
            "file" => &["paths", "secret", "configMap", "profile"],
            "configServer" => {
                &["uri", "application", "profile", "label", "username", "passwordFile", "caFile"]
            }
            "api" => &["uri", "username", "caFile"],
            _ => return Err(("type", "is missing: it is one of sql, file, configServer, api".to_owned())),
        };
        if let Some(foreign) = self.given().into_iter().find(|given| !allowed.contains(given)) {
            let why = format!("is no setting of a source of type {kind}, which has {}", allowed.join(", "));
            return Err((foreign, why));
        }
        Ok(SourceSettings { name, place: self.place(&kind)? })
    }

    fn place(self, kind: &str) -> Result<SourcePlace, Wrong> {
        let missing = |key: &'static str| Err((key, format!("is missing: a source of type {kind} needs it")));
        match kind {
            "sql" => {
                let Some(url) = self.url else { return missing("url") };
                Ok(SourcePlace::Sql { url, password_file: self.password_file, authority: self.ssl_ca })
            }
            "file" => self.files(),
            "configServer" => {
                let Some(uri) = self.uri else { return missing("uri") };
                if self.password_file.is_some() && self.username.is_none() {
                    return Err(("passwordFile", "needs username too".to_owned()));
                }
                let profile =
                    if self.profile.is_empty() { NO_PROFILE.to_owned() } else { self.profile.join(",") };
                Ok(SourcePlace::ConfigServer {
                    uri,
                    application: self.application.unwrap_or_else(|| CLOUDDRIVER.to_owned()),
                    profile,
                    label: self.label,
                    username: self.username,
                    password_file: self.password_file,
                    authority: self.ca_file,
                })
            }
            _ => {
                let Some(uri) = self.uri else { return missing("uri") };
                Ok(SourcePlace::Api { uri, username: self.username, authority: self.ca_file })
            }
        }
    }

    fn files(self) -> Result<SourcePlace, Wrong> {
        let given = self.given();
        let places: Vec<_> = given.into_iter().filter(|key| *key != "profile").collect();
        let [place] = places.as_slice() else {
            let why = "one of paths, secret and configMap is needed, and no more".to_owned();
            return Err(("paths", format!("is not alone, or missing: {why}")));
        };
        let profiles = self.profile;
        let (kind, namespace, name, keys) = match *place {
            "paths" => {
                let paths = self.paths.into_iter().map(PathBuf::from).collect();
                return Ok(SourcePlace::Files { paths, profiles });
            }
            "secret" => (ObjectKind::Secret, self.secret_namespace, self.secret_name, self.secret_keys),
            _ => {
                (ObjectKind::ConfigMap, self.config_map_namespace, self.config_map_name, self.config_map_keys)
            }
        };
        let key = if kind == ObjectKind::Secret { "secret.name" } else { "configMap.name" };
        let Some(name) = name.filter(|name| is_dns_subdomain(name)) else {
            return Err((key, format!("must be the name of a {}", kind.as_str())));
        };
        Ok(SourcePlace::Object { kind, namespace, name, keys, profiles })
    }

    /// The settings that are given, besides name and type.
    fn given(&self) -> Vec<&'static str> {
        let secret =
            self.secret_namespace.is_some() || self.secret_name.is_some() || !self.secret_keys.is_empty();
        let config_map = self.config_map_namespace.is_some()
            || self.config_map_name.is_some()
            || !self.config_map_keys.is_empty();
        [
            ("url", self.url.is_some()),
            ("passwordFile", self.password_file.is_some()),
            ("ssl-ca", self.ssl_ca.is_some()),
            ("paths", !self.paths.is_empty()),
            ("secret", secret),
            ("configMap", config_map),
            ("uri", self.uri.is_some()),
            ("application", self.application.is_some()),
            ("profile", !self.profile.is_empty()),
            ("label", self.label.is_some()),
            ("username", self.username.is_some()),
            ("caFile", self.ca_file.is_some()),
        ]
        .into_iter()
        .filter_map(|(key, is_given)| is_given.then_some(key))
        .collect()
    }
}

impl FileRootKeys {
    fn file_root(self) -> Result<FileRoot, Wrong> {
        let Some(from) = self.from else {
            return Err(("from", "is missing: name a folder of Clouddriver".to_owned()));
        };
        let absolute = |path: &str| path.starts_with('/') && !path.split('/').any(|part| part == "..");
        let to = match (self.to, self.secret, self.agent) {
            (Some(folder), None, None) if absolute(&folder) => RootTarget::Folder(folder),
            (None, None, Some(folder)) if absolute(&folder) => RootTarget::Agent(folder),
            (None, Some(secret), None) => {
                let (namespace, name) = secret.split_once('/').unwrap_or_default();
                RootTarget::Secret { namespace: namespace.to_owned(), name: name.to_owned() }
            }
            (Some(_), None, None) => return Err(("to", "must be an absolute path without ..".to_owned())),
            (None, None, Some(_)) => return Err(("agent", "must be an absolute path without ..".to_owned())),
            _ => return Err(("from", "needs one of to, secret and agent, and no more".to_owned())),
        };
        Ok(FileRoot { from, to })
    }
}
