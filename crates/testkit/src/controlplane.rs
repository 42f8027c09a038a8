//! A Kubernetes API server with its own etcd.

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use kube::{Client, config::Kubeconfig};
use parking_lot::Mutex;
use tokio::sync::OnceCell;

mod compaction;
mod etcd;
mod restore;
mod reused;
pub mod second;
mod start;

pub use reused::Reused;
use start::start_etcd;
pub use start::{Controllers, StartOptions};

use super::{
    assets::{self, Assets},
    audit::{self, AuditedWrite},
    folder::Folder,
    kubeconfig::{self, Authority, Identity, Proof},
    kubectl::{self, Output},
    must,
    namespace::{TestNamespace, random},
    ports,
    process::Process,
    wait::try_eventually,
};

/// Time limit for a start, which takes two to four seconds on an idle machine.
const START: Duration = Duration::from_secs(60);
/// Another process may take a port before it is bound.
const ATTEMPTS: u32 = 3;

/// A running control plane: etcd and kube-apiserver, without controllers until [`ControlPlane::start_controllers`].
/// Without them nothing is garbage-collected, and no namespace ever finishes terminating.
///
/// It does not depend on the async runtime that started it, so all tests of a process can share one.
#[derive(Debug)]
pub struct ControlPlane {
    // Dropped in this order. An API server without its etcd hangs for 90 s.
    apiserver: Mutex<Option<Process>>,
    etcd: Process,
    options: StartOptions,
    assets: Assets,
    authority: Authority,
    admin: String,
    port: u16,
    folder: Folder,
    /// Length of the audit log when its present user got it, in bytes.
    audited: AtomicU64,
}

static SHARED: OnceCell<ControlPlane> = OnceCell::const_new();

/// Returns the shared control plane of this process, started at the first call. Use your own
/// [`ControlPlane::namespace`] in it, and never stop or pause it; start a separate one for that.
///
/// # Panics
///
/// It cannot start.
pub async fn shared() -> &'static ControlPlane {
    must(SHARED.get_or_try_init(ControlPlane::start).await)
}

/// Returns a control plane with default options that is as good as new.
///
/// # Panics
///
/// It cannot start.
pub async fn reused() -> Reused {
    must(ControlPlane::reused(StartOptions::default()).await)
}

impl ControlPlane {
    /// Starts a control plane with default options.
    ///
    /// # Errors
    ///
    /// The message says what is missing, or how a program ended and its last output.
    pub async fn start() -> Result<Self, String> {
        Self::start_with(StartOptions::default()).await
    }

    /// Starts a control plane.
    ///
    /// # Errors
    ///
    /// Same as [`ControlPlane::start`].
    pub async fn start_with(options: StartOptions) -> Result<Self, String> {
        let assets = tokio::task::spawn_blocking(assets::ensure).await.map_err(|e| e.to_string())??;
        let mut attempt = 1;
        loop {
            match Self::attempt(&options, &assets).await {
                Err(reason) if attempt < ATTEMPTS && reason.contains("address already in use") => {
                    attempt += 1;
                }
                result => return result,
            }
        }
    }

    async fn attempt(options: &StartOptions, assets: &Assets) -> Result<Self, String> {
        let folder = Folder::new("controlplane")?;
        let authority = Authority::new("kubesvc control plane")?;
        let mut names = vec!["127.0.0.1", "localhost", "kubernetes.default.svc"];
        let pods = options.pods.map(|address| address.to_string());
        if let Some(address) = &pods {
            // The second is the address of the Service `kubernetes`.
            names.extend([address.as_str(), "10.96.0.1"]);
            let caller = authority.client("kube-apiserver-kubelet-client", Some("system:masters"))?;
            folder.write("kubelet-client.crt", &caller.certificate)?;
            folder.write("kubelet-client.key", &caller.key)?;
        }
        let server = authority.server(&names)?;
        let admin = random(32);
        folder.write("ca.crt", &authority.pem())?;
        folder.write("server.crt", &server.certificate)?;
        folder.write("server.key", &server.key)?;
        let (private, public) = kubeconfig::signing_keys()?;
        folder.write("service-account.key", &private)?;
        folder.write("service-account.pub", &public)?;
        folder.write("tokens.csv", &options.token_file(&admin))?;
        folder.write("audit-policy.yaml", audit::POLICY)?;
        let front_proxy = Authority::new("front proxy")?;
        let passes_on = front_proxy.client("front-proxy-client", None)?;
        folder.write("front-proxy-ca.crt", &front_proxy.pem())?;
        folder.write("front-proxy.crt", &passes_on.certificate)?;
        folder.write("front-proxy.key", &passes_on.key)?;
        let etcd = start_etcd(assets, &folder).await?;
        let plane = Self {
            apiserver: Mutex::new(None),
            etcd,
            options: options.clone(),
            assets: assets.clone(),
            authority,
            admin,
            port: ports::free(),
            folder,
            audited: AtomicU64::new(0),
        };
        plane.folder.write("kubeconfig", &plane.admin_kubeconfig())?;
        plane.start_apiserver().await?;
        Ok(plane)
    }

    /// `https://127.0.0.1:PORT`.
    pub fn server_url(&self) -> String {
        format!("https://127.0.0.1:{}", self.port)
    }

    /// Returns the authority of the server's certificate as PEM.
    pub fn ca_pem(&self) -> String {
        self.authority.pem()
    }

    /// Rotates the authority of the server's certificate and returns the new one as PEM. The API server loads the
    /// certificate within moments. From then on, clients that trust the old authority fail, including those of this
    /// harness.
    pub fn rotate_authority(&self) -> String {
        let authority = must(Authority::new("kubesvc control plane, rotated"));
        let server = must(authority.server(&["127.0.0.1", "localhost"]));
        must(self.folder.write("server.crt", &server.certificate));
        must(self.folder.write("server.key", &server.key));
        authority.pem()
    }

    /// Returns a kubeconfig with all rights, as YAML.
    pub fn admin_kubeconfig(&self) -> String {
        self.kubeconfig_for_token(&self.admin)
    }

    /// Path of the file with the authority of the server's certificate.
    pub fn ca_path(&self) -> PathBuf {
        self.folder.file("ca.crt")
    }

    /// Path of the file with [`ControlPlane::admin_kubeconfig`].
    pub fn kubeconfig_path(&self) -> PathBuf {
        self.folder.file("kubeconfig")
    }

    /// Returns a kubeconfig with a token, as YAML: that of a user or service account, or an invalid one.
    pub fn kubeconfig_for_token(&self, token: &str) -> String {
        kubeconfig::yaml(&self.server_url(), &self.ca_pem(), Proof::Token(token))
    }

    /// Returns a kubeconfig with a client certificate, as YAML.
    pub fn kubeconfig_for_certificate(&self, identity: &Identity) -> String {
        kubeconfig::yaml(&self.server_url(), &self.ca_pem(), Proof::Certificate(identity))
    }

    /// Issues a client certificate for any user, in at most one group. Unlike tokens, these can be issued at any
    /// time.
    ///
    /// # Errors
    ///
    /// The name is not valid in a certificate.
    pub fn client_certificate(&self, user: &str, group: Option<&str>) -> Result<Identity, String> {
        self.authority.client(user, group)
    }

    /// Returns the token of a user added with [`StartOptions::add_user`].
    pub fn token(&self, user: &str) -> Option<&str> {
        self.options.users.iter().find(|known| known.name == user).map(|known| known.token.as_str())
    }

    /// Creates a client with all rights. It never retries, so that a test sees each answer.
    ///
    /// Each client has its own connections, since connections die with the runtime that opened them.
    ///
    /// # Panics
    ///
    /// The kubeconfig written by the harness is invalid.
    pub async fn client(&self) -> Client {
        must(client_from(&self.admin_kubeconfig()).await)
    }

    /// Creates a namespace.
    ///
    /// # Panics
    ///
    /// The API server refuses it.
    pub async fn namespace(&self) -> TestNamespace {
        must(TestNamespace::create(self.client().await).await)
    }

    /// Runs kubectl with all rights.
    ///
    /// # Panics
    ///
    /// kubectl cannot start, or does not end within a minute.
    pub async fn kubectl<I, S>(&self, args: I) -> Output
    where
        I: IntoIterator<Item = S>,
        S: AsRef<OsStr>,
    {
        self.kubectl_with_input(args, "").await
    }

    /// Like [`ControlPlane::kubectl`], with standard input: `["apply", "-f", "-"]`.
    ///
    /// # Panics
    ///
    /// Same as [`ControlPlane::kubectl`].
    pub async fn kubectl_with_input<I, S>(&self, args: I, input: &str) -> Output
    where
        I: IntoIterator<Item = S>,
        S: AsRef<OsStr>,
    {
        must(kubectl::run(&self.assets.kubectl, &self.kubeconfig_path(), args, input).await)
    }

    /// Returns all answered writes since the start, or since a [`Reused`] one was emptied, oldest first, including those before a restart of the API server.
    ///
    /// A write is recorded before its answer reaches the client.
    ///
    /// # Panics
    ///
    /// The control plane was started without `audit`, or the log cannot be read.
    pub fn writes(&self) -> Vec<AuditedWrite> {
        assert!(self.options.audit, "this control plane was started without audit");
        must(audit::read(&self.audit_log(), self.audited.load(Ordering::Relaxed)))
    }

    fn audit_log(&self) -> PathBuf {
        self.folder.file("audit.log")
    }

    fn etcd_socket(&self) -> PathBuf {
        self.folder.file("etcd.sock")
    }

    /// Kills the API server. Its data remains; clients get `connection refused`.
    pub fn stop_apiserver(&self) {
        *self.apiserver.lock() = None;
    }

    /// Sends SIGTERM to the API server, and kills it if it does not end within `max_wait`.
    pub async fn end_apiserver(&self, max_wait: Duration) {
        let process = self.apiserver.lock().take();
        if let Some(process) = process {
            // Whether killed or not, it has ended.
            let _ = process.terminate(max_wait).await;
        }
    }

    /// Starts the API server again on the same port and waits until it is ready. Does nothing if it is running.
    ///
    /// # Errors
    ///
    /// It ends, or is not ready in time. The message contains the path of its log, and the last lines of it if the
    /// server ended.
    pub async fn start_apiserver(&self) -> Result<(), String> {
        {
            let mut apiserver = self.apiserver.lock();
            if apiserver.as_ref().is_some_and(|process| process.exited().is_none()) {
                return Ok(());
            }
            *apiserver =
                Some(Process::spawn("kube-apiserver", &self.apiserver_command(), &self.apiserver_log())?);
        }
        let client = client_from(&self.admin_kubeconfig()).await?;
        try_eventually("a ready kube-apiserver", START, async || match self.check_apiserver() {
            Err(reason) => Ok(Err(reason)),
            Ok(()) => ready(&client).await.map(Ok),
        })
        .await
        .map_err(|reason| format!("{reason}\nthe log is {}", self.apiserver_log().display()))?
    }

    /// Pauses the API server (SIGSTOP): connections stay open and nothing answers.
    pub fn pause(&self) {
        if let Some(process) = &*self.apiserver.lock() {
            process.pause();
        }
    }

    /// Resumes a paused API server.
    pub fn resume(&self) {
        if let Some(process) = &*self.apiserver.lock() {
            process.resume();
        }
    }

    /// Returns the process ids of kube-apiserver, if it is running, and of etcd.
    pub fn process_ids(&self) -> (Option<u32>, u32) {
        (self.apiserver.lock().as_ref().map(Process::id), self.etcd.id())
    }

    /// Path of the API server's log, shared by all its starts.
    pub fn apiserver_log(&self) -> PathBuf {
        self.folder.file("kube-apiserver.log")
    }

    fn check_apiserver(&self) -> Result<(), String> {
        self.etcd.check_running()?;
        match &*self.apiserver.lock() {
            Some(process) => process.check_running(),
            None => Err("the API server was stopped while it started".into()),
        }
    }
}

/// Checks that the server is ready and past its first writes: the namespace `default` appears slightly later than
/// `/readyz`.
pub(super) async fn ready(client: &Client) -> Result<(), String> {
    for path in ["/readyz", "/api/v1/namespaces/default"] {
        let request = http::Request::get(path).body(Vec::new()).map_err(|e| e.to_string())?;
        let answer = tokio::time::timeout(Duration::from_secs(2), client.request_text(request)).await;
        answer.map_err(|_| format!("{path}: no answer"))?.map_err(|e| format!("{path}: {e}"))?;
    }
    Ok(())
}

/// Creates a client for a kubeconfig, without retries.
///
/// # Errors
///
/// The text is not a valid kubeconfig.
pub async fn client_from(kubeconfig: &str) -> Result<Client, String> {
    let parsed = Kubeconfig::from_yaml(kubeconfig).map_err(|e| format!("kubeconfig: {e}"))?;
    let mut config =
        kube::Config::from_custom_kubeconfig(parsed, &kube::config::KubeConfigOptions::default())
            .await
            .map_err(|e| format!("kubeconfig: {e}"))?;
    config.default_retry = false;
    Client::try_from(config).map_err(|e| format!("kubeconfig: {e}"))
}

/// Returns the path of the matching kubectl.
///
/// # Errors
///
/// Same as [`assets::ensure`].
pub fn kubectl_path() -> Result<PathBuf, String> {
    Ok(assets::ensure()?.kubectl)
}

/// Runs the matching kubectl with any kubeconfig file.
///
/// # Errors
///
/// kubectl cannot start, or does not end within a minute.
pub async fn kubectl_with<I, S>(kubeconfig: &Path, args: I, input: &str) -> Result<Output, String>
where
    I: IntoIterator<Item = S>,
    S: AsRef<OsStr>,
{
    kubectl::run(&kubectl_path()?, kubeconfig, args, input).await
}
