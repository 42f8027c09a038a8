//! A Kubernetes API server with its own etcd.

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
    time::Duration,
};

use kube::{Client, config::Kubeconfig};
use parking_lot::Mutex;
use tokio::sync::OnceCell;

mod options;
mod programs;
pub(crate) mod second;

pub(crate) use options::StartOptions;
use programs::start_etcd;

use super::{
    assets::{self, Assets},
    audit::{self, AuditedWrite},
    folder::Folder,
    kubeconfig::{self, Proof},
    kubectl::{self, Output},
    must,
    namespace::{TestNamespace, random},
    pki::{self, Authority, Identity},
    ports,
    process::Process,
    wait::try_eventually,
};

/// A start takes two to four seconds on an idle machine.
const START: Duration = Duration::from_secs(60);
/// Another process may take a port between choosing and binding it.
const ATTEMPTS: u32 = 3;

/// A running control plane: etcd and kube-apiserver, no controllers. Nothing is garbage-collected in it, and no
/// namespace ever finishes terminating.
///
/// It needs nothing of the async runtime that it was started on, so that all tests of a process can share one.
#[derive(Debug)]
pub(crate) struct ControlPlane {
    // Dropped in this order. Without its etcd an API server hangs for 90 s.
    apiserver: Mutex<Option<Process>>,
    etcd: Process,
    options: StartOptions,
    assets: Assets,
    authority: Authority,
    admin: String,
    port: u16,
    folder: Folder,
}

static SHARED: OnceCell<ControlPlane> = OnceCell::const_new();

/// The one control plane of this process, started at the first call. Use a [`ControlPlane::namespace`] of your own in
/// it, and never stop or pause it: start another one for that.
///
/// # Panics
///
/// It cannot start.
pub(crate) async fn shared() -> &'static ControlPlane {
    must(SHARED.get_or_try_init(ControlPlane::start).await)
}

impl ControlPlane {
    /// Starts one with the usual options.
    ///
    /// # Errors
    ///
    /// The text says what is missing, or how a program ended and what it printed last.
    pub(crate) async fn start() -> Result<Self, String> {
        Self::start_with(StartOptions::default()).await
    }

    /// Starts one.
    ///
    /// # Errors
    ///
    /// As [`ControlPlane::start`].
    pub(crate) async fn start_with(options: StartOptions) -> Result<Self, String> {
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
        let server = authority.server(&["127.0.0.1", "localhost", "kubernetes.default.svc"])?;
        let admin = random(32);
        folder.write("ca.crt", &authority.pem())?;
        folder.write("server.crt", &server.certificate)?;
        folder.write("server.key", &server.key)?;
        let (private, public) = pki::signing_keys()?;
        folder.write("service-account.key", &private)?;
        folder.write("service-account.pub", &public)?;
        folder.write("tokens.csv", &options.token_file(&admin))?;
        folder.write("audit-policy.yaml", audit::POLICY)?;
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
        };
        plane.folder.write("kubeconfig", &plane.admin_kubeconfig())?;
        plane.start_apiserver().await?;
        Ok(plane)
    }

    /// `https://127.0.0.1:PORT`.
    pub(crate) fn server_url(&self) -> String {
        format!("https://127.0.0.1:{}", self.port)
    }

    /// The authority that signed the server's certificate, as PEM.
    pub(crate) fn ca_pem(&self) -> String {
        self.authority.pem()
    }

    /// Rotates the authority behind the server's certificate, and gives the new one as PEM. The API server loads the
    /// certificate within moments; clients of the old authority fail from then on, those of this harness too.
    pub(crate) fn rotate_authority(&self) -> String {
        let authority = must(Authority::new("kubesvc control plane, rotated"));
        let server = must(authority.server(&["127.0.0.1", "localhost"]));
        must(self.folder.write("server.crt", &server.certificate));
        must(self.folder.write("server.key", &server.key));
        authority.pem()
    }

    /// A kubeconfig with all rights, as YAML.
    pub(crate) fn admin_kubeconfig(&self) -> String {
        self.kubeconfig_for_token(&self.admin)
    }

    /// The file with [`ControlPlane::admin_kubeconfig`].
    pub(crate) fn kubeconfig_path(&self) -> PathBuf {
        self.folder.file("kubeconfig")
    }

    /// A kubeconfig with any token, as YAML: that of a user, of a service account, or a wrong one.
    pub(crate) fn kubeconfig_for_token(&self, token: &str) -> String {
        kubeconfig::yaml(&self.server_url(), &self.ca_pem(), Proof::Token(token))
    }

    /// A kubeconfig with a client certificate, as YAML.
    pub(crate) fn kubeconfig_for_certificate(&self, identity: &Identity) -> String {
        kubeconfig::yaml(&self.server_url(), &self.ca_pem(), Proof::Certificate(identity))
    }

    /// A client certificate for any user, in at most one group. Unlike tokens, these can be made at any time.
    ///
    /// # Errors
    ///
    /// The name cannot be in a certificate.
    pub(crate) fn client_certificate(&self, user: &str, group: Option<&str>) -> Result<Identity, String> {
        self.authority.client(user, group)
    }

    /// The token of a user of [`StartOptions::add_user`].
    pub(crate) fn token(&self, user: &str) -> Option<&str> {
        self.options.users.iter().find(|known| known.name == user).map(|known| known.token.as_str())
    }

    /// A new client with all rights. It retries nothing: a test sees each answer.
    ///
    /// Each call gives one with connections of its own, since connections die with the runtime that opened them.
    ///
    /// # Panics
    ///
    /// The kubeconfig that the harness wrote is not one.
    pub(crate) async fn client(&self) -> Client {
        must(client_from(&self.admin_kubeconfig()).await)
    }

    /// As [`ControlPlane::client`], for the holder of a token.
    ///
    /// # Panics
    ///
    /// As [`ControlPlane::client`].
    pub(crate) async fn client_for_token(&self, token: &str) -> Client {
        must(client_from(&self.kubeconfig_for_token(token)).await)
    }

    /// A new namespace.
    ///
    /// # Panics
    ///
    /// The API server does not make it.
    pub(crate) async fn namespace(&self) -> TestNamespace {
        must(TestNamespace::create(self.client().await).await)
    }

    /// Runs kubectl with all rights.
    ///
    /// # Panics
    ///
    /// It cannot start, or does not end within a minute.
    pub(crate) async fn kubectl<I, S>(&self, args: I) -> Output
    where
        I: IntoIterator<Item = S>,
        S: AsRef<OsStr>,
    {
        self.kubectl_with_input(args, "").await
    }

    /// As [`ControlPlane::kubectl`], with a standard input: `["apply", "-f", "-"]`.
    ///
    /// # Panics
    ///
    /// As [`ControlPlane::kubectl`].
    pub(crate) async fn kubectl_with_input<I, S>(&self, args: I, input: &str) -> Output
    where
        I: IntoIterator<Item = S>,
        S: AsRef<OsStr>,
    {
        must(kubectl::run(&self.assets.kubectl, &self.kubeconfig_path(), args, input).await)
    }

    /// Every write that was answered since the start, oldest first; restarts of the API server included.
    ///
    /// A write is in it before its answer reaches the client.
    ///
    /// # Panics
    ///
    /// The control plane was started without `audit`, or the log cannot be read.
    pub(crate) fn writes(&self) -> Vec<AuditedWrite> {
        assert!(self.options.audit, "this control plane was started without audit");
        must(audit::read(&self.folder.file("audit.log")))
    }

    /// Kills the API server. Its data stay; clients get `connection refused`.
    pub(crate) fn stop_apiserver(&self) {
        *self.apiserver.lock() = None;
    }

    /// Asks the API server to end (SIGTERM), and kills it if it takes longer than `patience`.
    pub(crate) async fn end_apiserver(&self, patience: Duration) {
        let process = self.apiserver.lock().take();
        if let Some(process) = process {
            // Killed or ended by itself: either way it is gone.
            let _ = process.terminate(patience).await;
        }
    }

    /// Starts the API server again on the same port, and waits until it is ready. Does nothing if it runs.
    ///
    /// # Errors
    ///
    /// It ends, or is not ready in time; the text has the last lines of its log.
    pub(crate) async fn start_apiserver(&self) -> Result<(), String> {
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

    /// Stops the API server in its tracks (SIGSTOP): connections stay open and nothing answers.
    pub(crate) fn pause(&self) {
        if let Some(process) = &*self.apiserver.lock() {
            process.pause();
        }
    }

    /// Lets a paused API server run on.
    pub(crate) fn resume(&self) {
        if let Some(process) = &*self.apiserver.lock() {
            process.resume();
        }
    }

    /// The process ids of kube-apiserver, if it runs, and of etcd.
    pub(crate) fn process_ids(&self) -> (Option<u32>, u32) {
        (self.apiserver.lock().as_ref().map(Process::id), self.etcd.id())
    }

    /// The log of the API server, over all its starts.
    pub(crate) fn apiserver_log(&self) -> PathBuf {
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

/// Ready, and past the first writes: the namespace `default` comes a moment later than `/readyz`.
pub(super) async fn ready(client: &Client) -> Result<(), String> {
    for path in ["/readyz", "/api/v1/namespaces/default"] {
        let request = http::Request::get(path).body(Vec::new()).map_err(|e| e.to_string())?;
        let answer = tokio::time::timeout(Duration::from_secs(2), client.request_text(request)).await;
        answer.map_err(|_| format!("{path}: no answer"))?.map_err(|e| format!("{path}: {e}"))?;
    }
    Ok(())
}

/// A client for a kubeconfig, without any retry of its own.
///
/// # Errors
///
/// The text is not a kubeconfig.
pub(crate) async fn client_from(kubeconfig: &str) -> Result<Client, String> {
    let parsed = Kubeconfig::from_yaml(kubeconfig).map_err(|e| format!("kubeconfig: {e}"))?;
    let mut config =
        kube::Config::from_custom_kubeconfig(parsed, &kube::config::KubeConfigOptions::default())
            .await
            .map_err(|e| format!("kubeconfig: {e}"))?;
    config.default_retry = false;
    Client::try_from(config).map_err(|e| format!("kubeconfig: {e}"))
}

/// The kubectl that fits.
///
/// # Errors
///
/// As [`assets::ensure`].
pub(crate) fn kubectl_path() -> Result<PathBuf, String> {
    Ok(assets::ensure()?.kubectl)
}

/// Runs that kubectl with any kubeconfig file.
///
/// # Errors
///
/// It cannot start, or does not end within a minute.
pub(crate) async fn kubectl_with<I, S>(kubeconfig: &Path, args: I, input: &str) -> Result<Output, String>
where
    I: IntoIterator<Item = S>,
    S: AsRef<OsStr>,
{
    kubectl::run(&kubectl_path()?, kubeconfig, args, input).await
}
