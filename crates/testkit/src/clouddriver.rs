//! What stands in for Spinnaker's Clouddriver: Clouddriver's published classes behind its HTTP routes, on its tables.
//!
//! [`Clouddriver::start`] runs one on a database of [`crate::databases`]. It ends with the value, or with the test process.

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
    time::Duration,
};

use http::StatusCode;

use super::{
    controlplane,
    java::{JavaProgram, JavaServer, Properties},
};

mod tables;

pub use tables::Row;
use tables::Tables;

static PROGRAM: JavaProgram =
    JavaProgram::new("clouddriver", "clouddriver", "what stands in for Clouddriver");

/// Returns the folder with the jars, and builds them unless the cache folder contains them.
///
/// Blocks. Call it from async code only where blocking is allowed.
///
/// # Errors
///
/// The message says what is missing and which command installs it.
pub fn ensure() -> Result<PathBuf, String> {
    PROGRAM.ensure()
}

/// Settings of a Clouddriver. The default is a stock one that polls every second.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Interval of the poller that loads accounts (`reloadFrequencyMs`).
    pub poll: Duration,
    /// Whether the poller runs (`credentials.poller.enabled`). Without it, accounts are loaded once, at the start.
    pub poller: bool,
    /// Whether accounts can be stored (`account.storage.enabled` and `account.storage.kubernetes.enabled`).
    pub storage: bool,
    /// Contents of its YAML file at the start, with the list `kubernetes.accounts`.
    pub accounts: String,
    /// Time after the start in which it answers but has loaded nothing, as a large Clouddriver does.
    pub load_delay: Duration,
    /// Administrators (`X-SPINNAKER-USER`) if Fiat is on: any other user's call for a stored account is 403.
    pub admins: Option<Vec<String>>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            poll: Duration::from_secs(1),
            poller: true,
            storage: true,
            accounts: String::new(),
            load_delay: Duration::ZERO,
            admins: None,
        }
    }
}

/// A running Clouddriver on a port of 127.0.0.1. Killed on drop, or when the test process ends.
#[derive(Debug)]
pub struct Clouddriver {
    server: JavaServer,
    settings: Settings,
    tables: Tables,
}

impl Clouddriver {
    /// Starts one on the database with this URL (`mysql://…`, `postgres://…`), in which it creates its tables, and waits
    /// until it has loaded its accounts.
    ///
    /// # Errors
    ///
    /// The message names the missing part, or contains the last output.
    pub async fn start(database: &str, settings: Settings) -> Result<Self, String> {
        let (tables, server) =
            (Tables::at(database)?, JavaServer::new("clouddriver", &PROGRAM, StatusCode::OK)?);
        let mut clouddriver = Self { server, settings, tables };
        clouddriver.set_accounts(&clouddriver.settings.accounts)?;
        let (properties, cache) = (clouddriver.properties()?, clouddriver.file("kubectl-cache"));
        clouddriver.server.start(&properties, &kubectl(&cache)).await?;
        Ok(clouddriver)
    }

    /// Starts it again on its port, and kills it first if it runs.
    ///
    /// # Errors
    ///
    /// It ended, or does not answer in time.
    pub async fn restart(&self) -> Result<(), String> {
        let cache = self.file("kubectl-cache");
        self.server.restart(&self.properties()?, &kubectl(&cache)).await
    }

    /// Like [`Clouddriver::restart`], with other settings; the YAML file stays as it is.
    ///
    /// # Errors
    ///
    /// Same as [`Clouddriver::restart`].
    pub async fn restart_with(&mut self, settings: Settings) -> Result<(), String> {
        self.settings = settings;
        self.restart().await
    }

    /// Base URL, as `kubesvc.clouddriver.baseUrl` has it.
    pub fn base_url(&self) -> String {
        self.server.base_url()
    }

    /// Port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.server.port()
    }

    /// Replaces the YAML file, which is read at the next poll.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn set_accounts(&self, accounts: &str) -> Result<(), String> {
        // Never read half written.
        let folder = self.server.folder();
        let part = folder.write("accounts.part", accounts)?;
        let file = folder.file("accounts.yml");
        std::fs::rename(part, &file).map_err(|e| format!("{}: {e}", file.display()))
    }

    /// Path of a file in its folder, such as a kubeconfig that an account names.
    pub fn file(&self, name: &str) -> PathBuf {
        self.server.folder().file(name)
    }

    /// The tables `accounts` and `accounts_history`.
    pub fn tables(&self) -> &Tables {
        &self.tables
    }

    /// Pauses it (SIGSTOP): connections stay open and nothing answers.
    pub fn pause(&self) {
        self.server.pause();
    }

    /// Resumes a paused one.
    pub fn resume(&self) {
        self.server.resume();
    }

    /// Kills it.
    pub fn kill(&self) {
        self.server.kill();
    }

    /// Ends it as its pod does (SIGTERM), and waits.
    ///
    /// # Errors
    ///
    /// It does not end in time; it is then killed.
    pub async fn stop(&self) -> Result<(), String> {
        self.server.stop().await
    }

    /// Returns the output so far, of all starts.
    pub fn log(&self) -> String {
        self.server.log()
    }

    fn properties(&self) -> Result<Properties, String> {
        let settings = &self.settings;
        let (url, user, password) = self.tables.jdbc();
        let mut properties = vec![
            ("account.storage.enabled", settings.storage.to_string()),
            ("account.storage.kubernetes.enabled", settings.storage.to_string()),
            ("credentials.poller.enabled", settings.poller.to_string()),
            ("credentials.poller.types.kubernetes.reloadFrequencyMs", settings.poll.as_millis().to_string()),
            ("sql.url", url),
            ("sql.user", user),
            ("sql.password", password),
            ("accounts.file", self.file("accounts.yml").display().to_string()),
            ("accounts.load-delay-ms", settings.load_delay.as_millis().to_string()),
            ("kubernetes.kubectl.executable", controlplane::kubectl_path()?.display().to_string()),
        ];
        if let Some(admins) = &settings.admins {
            properties.push(("fiat.admins", admins.join(",")));
        }
        Ok(properties)
    }
}

/// Environment in which kubectl reads no settings of whoever runs the test.
fn kubectl(cache: &Path) -> [(&'static str, &OsStr); 2] {
    [("KUBERC", OsStr::new("off")), ("KUBECACHEDIR", cache.as_os_str())]
}
