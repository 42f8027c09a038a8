//! What stands in for Spinnaker's Clouddriver: Clouddriver's published classes behind its HTTP routes, on its tables.
//!
//! [`Clouddriver::start`] runs one on a database of [`crate::databases`]. It ends with the value, or with the test process.

use std::{path::PathBuf, process::Command, time::Duration};

use http::Request;
use http_body_util::Empty;
use hyper::{body::Bytes, client::conn::http1};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::net::TcpStream;

use super::{controlplane, folder::Folder, ports, process::Process, wait::try_eventually};

mod build;
mod tables;

pub use build::ensure;
pub use tables::Row;
use tables::Tables;

const START: Duration = Duration::from_secs(60);
const END: Duration = Duration::from_secs(20);
/// Another process may take a port before it is bound.
const ATTEMPTS: u32 = 3;
/// A small heap and the quick compiler: it lives for seconds and does little.
const JVM: [&str; 4] = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx128m", "-Xshare:auto"];

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
    // Dropped before the folder that it writes to.
    process: Mutex<Option<Process>>,
    port: u16,
    settings: Settings,
    tables: Tables,
    folder: Folder,
}

impl Clouddriver {
    /// Starts one on the database with this URL (`mysql://…`, `postgres://…`), in which it creates its tables, and waits
    /// until it has loaded its accounts.
    ///
    /// # Errors
    ///
    /// The message names the missing part, or contains the last output.
    pub async fn start(database: &str, settings: Settings) -> Result<Self, String> {
        let (tables, folder) = (Tables::at(database)?, Folder::new("clouddriver")?);
        let mut clouddriver = Self { process: Mutex::new(None), port: 0, settings, tables, folder };
        clouddriver.set_accounts(&clouddriver.settings.accounts)?;
        let mut attempt = 1;
        loop {
            clouddriver.port = ports::free();
            match clouddriver.restart().await {
                Ok(()) => return Ok(clouddriver),
                Err(reason) if attempt == ATTEMPTS || !reason.contains("already in use") => {
                    return Err(reason);
                }
                Err(_) => attempt += 1,
            }
        }
    }

    /// Starts it again on its port, and kills it first if it runs.
    ///
    /// # Errors
    ///
    /// It ended, or does not answer in time.
    pub async fn restart(&self) -> Result<(), String> {
        self.kill();
        let properties = self.folder.write("application.properties", &self.properties()?)?;
        let program = ensure()?;
        let mut java = Command::new(build::java()?);
        java.args(JVM).arg(format!("-Djava.io.tmpdir={}", self.folder.path().display()));
        let jars = [program.join("clouddriver.jar"), program.join("lib/*")];
        let jars = std::env::join_paths(jars).map_err(|e| format!("{}: {e}", program.display()))?;
        java.arg("-cp").arg(jars).arg("io.kubesvc.clouddriver.Main");
        java.arg(format!("--spring.config.location=file:{}", properties.display()));
        java.current_dir(self.folder.path());
        java.env("KUBERC", "off").env("KUBECACHEDIR", self.folder.file("kubectl-cache"));
        let process = Process::spawn("Clouddriver", &java, &self.folder.file("log"))?;
        *self.process.lock() = Some(process);
        try_eventually("Clouddriver", START, async || {
            if let Err(ended) = self.process.lock().as_ref().map_or(Ok(()), Process::check_running) {
                return Ok(Err(ended));
            }
            self.answers().await.map(Ok)
        })
        .await?
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
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Replaces the YAML file, which is read at the next poll.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn set_accounts(&self, accounts: &str) -> Result<(), String> {
        // Never read half written.
        let part = self.folder.write("accounts.part", accounts)?;
        let file = self.folder.file("accounts.yml");
        std::fs::rename(part, &file).map_err(|e| format!("{}: {e}", file.display()))
    }

    /// Path of a file in its folder, such as a kubeconfig that an account names.
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.file(name)
    }

    /// The tables `accounts` and `accounts_history`.
    pub fn tables(&self) -> &Tables {
        &self.tables
    }

    /// Pauses it (SIGSTOP): connections stay open and nothing answers.
    pub fn pause(&self) {
        if let Some(process) = &*self.process.lock() {
            process.pause();
        }
    }

    /// Resumes a paused one.
    pub fn resume(&self) {
        if let Some(process) = &*self.process.lock() {
            process.resume();
        }
    }

    /// Kills it.
    pub fn kill(&self) {
        if let Some(process) = self.process.lock().take() {
            process.kill();
        }
    }

    /// Ends it as its pod does (SIGTERM), and waits.
    ///
    /// # Errors
    ///
    /// It does not end in time; it is then killed.
    pub async fn stop(&self) -> Result<(), String> {
        let process = self.process.lock().take();
        match process {
            Some(process) => process.terminate(END).await.map(drop),
            None => Ok(()),
        }
    }

    /// Returns the output so far, of all starts.
    pub fn log(&self) -> String {
        std::fs::read(self.folder.file("log"))
            .map_or_else(|_| String::new(), |text| String::from_utf8_lossy(&text).into_owned())
    }

    fn properties(&self) -> Result<String, String> {
        let settings = &self.settings;
        let (url, user, password) = self.tables.jdbc();
        let mut properties = vec![
            ("server.port", self.port.to_string()),
            ("account.storage.enabled", settings.storage.to_string()),
            ("account.storage.kubernetes.enabled", settings.storage.to_string()),
            ("credentials.poller.enabled", settings.poller.to_string()),
            ("credentials.poller.types.kubernetes.reloadFrequencyMs", settings.poll.as_millis().to_string()),
            ("sql.url", url),
            ("sql.user", user),
            ("sql.password", password),
            ("accounts.file", self.folder.file("accounts.yml").display().to_string()),
            ("accounts.load-delay-ms", settings.load_delay.as_millis().to_string()),
            ("kubernetes.kubectl.executable", controlplane::kubectl_path()?.display().to_string()),
        ];
        if let Some(admins) = &settings.admins {
            properties.push(("fiat.admins", admins.join(",")));
        }
        let lines = properties.into_iter().map(|(name, value)| {
            // A backslash starts an escape in such a file.
            format!("{name}={}\n", value.replace('\\', "\\\\"))
        });
        Ok(lines.collect())
    }

    /// Whether `GET /health` is 200.
    async fn answers(&self) -> Result<(), String> {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).await.map_err(|e| e.to_string())?;
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|e| e.to_string())?;
        let connection = tokio::spawn(connection);
        let request = Request::get("/health").header("host", "127.0.0.1").body(Empty::<Bytes>::new());
        let answer = sender.send_request(request.map_err(|e| e.to_string())?).await;
        connection.abort();
        match answer.map_err(|e| e.to_string())?.status() {
            status if status.is_success() => Ok(()),
            status => Err(format!("/health is {status}")),
        }
    }
}
