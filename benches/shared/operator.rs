//! The operator as a process, and its agents.

use std::{
    process::Command,
    time::{Duration, Instant},
};

use http_body_util::{BodyExt, Empty};
use hyper::{StatusCode, body::Bytes, client::conn::http1};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use crate::objects::ZONE;
use kubesvc_testkit::{
    controlplane::ControlPlane,
    databases::{self, Kind, Server},
    folder::Folder,
    ports,
    process::Process,
    simulated_agent::{
        SimulatedAgent,
        frames::{Introduction, NoSession, Policy},
    },
    wait::try_eventually,
};

/// Time limit for a start.
const START: Duration = Duration::from_secs(30);
/// Time limit for a shutdown, as documented.
const END: Duration = Duration::from_secs(20);
/// Delay before an agent redials a hub that does not listen yet.
const REDIAL: Duration = Duration::from_millis(10);
/// Interval between readiness probes of a starting operator, far shorter than a start.
const ASK: Duration = Duration::from_millis(5);

/// The files, ports and database of an operator. They survive a restart.
#[derive(Debug)]
pub(crate) struct Site {
    id: String,
    folder: Folder,
    namespace: String,
    kubeconfig: std::path::PathBuf,
    database: String,
    server: Option<u32>,
    rest: u16,
    calls: u16,
    hub: u16,
    /// `kubesvc.cache`, as YAML.
    cache: String,
    /// Port of the API of accounts, if it is served.
    gateway: Option<u16>,
    /// File of Clouddriver that is a credentials source.
    source: Option<String>,
    /// `kubesvc.grpc.server.security`, as YAML.
    security: String,
}

/// Settings of `kubesvc.grpc.server.security` without TLS.
const NO_TLS: &str = "{enabled: false}";
/// Settings of `kubesvc.cache` under which nothing is cached.
const NO_CACHE: &str = "{cacheKinds: []}";

/// The database of an operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Database {
    /// SQLite in a file.
    Sqlite,
    /// A database on the shared server of this kind.
    Server(Kind),
}

impl Database {
    /// All databases with their names.
    pub(crate) const ALL: [(&'static str, Self); 3] = [
        ("SQLite", Self::Sqlite),
        ("MariaDB", Self::Server(Kind::MariaDb)),
        ("PostgreSQL", Self::Server(Kind::PostgreSql)),
    ];
}

impl Site {
    /// Creates a site with an empty SQLite database, for the accounts of a namespace.
    pub(crate) async fn new(
        plane: &ControlPlane,
        namespace: &str,
        orphan_grace: Duration,
    ) -> Result<Self, String> {
        Self::on(Database::Sqlite, plane, namespace, orphan_grace).await
    }

    /// Creates a site with an empty database of this kind.
    pub(crate) async fn on(
        database: Database,
        plane: &ControlPlane,
        namespace: &str,
        orphan_grace: Duration,
    ) -> Result<Self, String> {
        if let Database::Server(kind) = database {
            return Self::on_server(databases::shared(kind).await, plane, namespace, orphan_grace).await;
        }
        let folder = Folder::new("bench-operator")?;
        let url = format!("sqlite://{}", folder.file("kubesvc.db").display());
        Self::with(folder, (url, None), plane, namespace, orphan_grace)
    }

    /// Creates a site with an empty database on a server.
    pub(crate) async fn on_server(
        server: &Server,
        plane: &ControlPlane,
        namespace: &str,
        orphan_grace: Duration,
    ) -> Result<Self, String> {
        let database = (server.fresh_database().await, server.process_id());
        Self::with(Folder::new("bench-operator")?, database, plane, namespace, orphan_grace)
    }

    fn with(
        folder: Folder,
        (database, server): (String, Option<u32>),
        plane: &ControlPlane,
        namespace: &str,
        orphan_grace: Duration,
    ) -> Result<Self, String> {
        let site = Self {
            id: "bench-operator".into(),
            folder,
            namespace: namespace.into(),
            kubeconfig: plane.kubeconfig_path(),
            database,
            server,
            rest: ports::free(),
            hub: ports::free(),
            calls: ports::free(),
            cache: NO_CACHE.into(),
            gateway: None,
            source: None,
            security: NO_TLS.into(),
        };
        site.folder.write("kubesvc.yml", &site.settings(orphan_grace))?;
        Ok(site)
    }

    /// Creates the site of another replica on the same database, for the same accounts.
    pub(crate) fn beside(&self, id: &str, orphan_grace: Duration) -> Result<Self, String> {
        let site = Self {
            id: id.into(),
            folder: Folder::new(id)?,
            namespace: self.namespace.clone(),
            kubeconfig: self.kubeconfig.clone(),
            database: self.database.clone(),
            server: self.server,
            rest: ports::free(),
            hub: ports::free(),
            calls: ports::free(),
            cache: NO_CACHE.into(),
            gateway: None,
            source: None,
            security: NO_TLS.into(),
        };
        site.folder.write("kubesvc.yml", &site.settings(orphan_grace))?;
        Ok(site)
    }

    fn settings(&self, orphan_grace: Duration) -> String {
        // Other replicas, and the API server, know addresses that are no loopback ones.
        let address = if self.gateway.is_some() { "'*'" } else { "127.0.0.1" };
        let gateway =
            self.gateway.map(|port| format!("  gateway: {{enabled: true, server: {{port: {port}}}}}\n"));
        let source = self.source.as_ref().map(|path| {
            format!("  clouddriver: {{sources: [{{name: file, type: file, paths: ['{path}']}}]}}\n")
        });
        format!(
            "server: {{address: {address}, port: {rest}, limits: {{exempt: ['0.0.0.0/0', '::/0']}}}}
kubesvc:
  grpc: {{server: {{address: 127.0.0.1, port: {hub}, security: {security}}}}}
  replicas: {{port: {calls}}}
  database: {{url: '{database}'}}
  dynamicAccounts: {{orphanGraceSeconds: {grace}}}
  # No limit of its own, and none of callers: what is measured is how fast it can be.
  kubernetes: {{qps: 0, registrationQps: 0}}
  cache: {cache}
{gateway}{source}logging: {{level: info, format: json}}
",
            rest = self.rest,
            hub = self.hub,
            security = self.security,
            calls = self.calls,
            database = self.database,
            grace = orphan_grace.as_secs(),
            cache = self.cache,
            gateway = gateway.unwrap_or_default(),
            source = source.unwrap_or_default(),
        )
    }

    /// Serves the API of accounts, from the next start on, on all addresses.
    pub(crate) fn with_gateway(mut self, orphan_grace: Duration) -> Result<Self, String> {
        self.gateway = Some(ports::free());
        self.folder.write("kubesvc.yml", &self.settings(orphan_grace))?;
        Ok(self)
    }

    /// Adds a file of Clouddriver as a credentials source, from the next start on.
    pub(crate) fn with_source(
        mut self,
        orphan_grace: Duration,
        name: &str,
        text: &str,
    ) -> Result<Self, String> {
        self.source = Some(self.folder.write(name, text)?.display().to_string());
        self.folder.write("kubesvc.yml", &self.settings(orphan_grace))?;
        Ok(self)
    }

    /// Sets `kubesvc.grpc.server.security`, as YAML, from the next start on.
    pub(crate) fn secured(mut self, orphan_grace: Duration, security: &str) -> Result<Self, String> {
        self.security = security.into();
        self.folder.write("kubesvc.yml", &self.settings(orphan_grace))?;
        Ok(self)
    }

    /// Port of the API of accounts; 0 if it is not served.
    pub(crate) fn gateway(&self) -> u16 {
        self.gateway.unwrap_or_default()
    }

    /// Port for calls of other replicas.
    pub(crate) fn calls(&self) -> u16 {
        self.calls
    }

    /// Port of REST.
    pub(crate) fn rest(&self) -> u16 {
        self.rest
    }

    /// Id of the replica.
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// Sets `kubesvc.cache`, as YAML, from the next start on.
    pub(crate) fn caching(mut self, orphan_grace: Duration, cache: &str) -> Result<Self, String> {
        self.cache = cache.into();
        self.folder.write("kubesvc.yml", &self.settings(orphan_grace))?;
        Ok(self)
    }

    /// Limits the registrations per second from the next start on; 0 means no limit.
    pub(crate) fn limit_registrations(&self, orphan_grace: Duration, per_second: u32) -> Result<(), String> {
        let limit = format!("registrationQps: {per_second}");
        let settings = self.settings(orphan_grace).replace("registrationQps: 0", &limit);
        self.folder.write("kubesvc.yml", &settings).map(drop)
    }

    /// Returns the process of the database server, if there is one.
    pub(crate) fn database_server(&self) -> Option<(&'static str, u32)> {
        Some(("database", self.server?))
    }

    /// URL of the database.
    pub(crate) fn database(&self) -> &str {
        &self.database
    }

    /// Address of the hub.
    pub(crate) fn hub(&self) -> String {
        format!("127.0.0.1:{}", self.hub)
    }

    /// Starts the operator without waiting until it is ready.
    pub(crate) fn start(&self) -> Result<Operator<'_>, String> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kubesvc-operator"));
        command
            .current_dir(self.folder.path())
            .args(["--config", "kubesvc.yml", "--namespace", &self.namespace, "--kubeconfig"])
            .arg(&self.kubeconfig)
            .env("POD_NAME", &self.id)
            .env_remove("KUBECONFIG")
            .env_remove("RUST_LOG");
        let process = Process::spawn("kubesvc-operator", &command, &self.folder.file("operator.log"))?;
        Ok(Operator { site: self, process })
    }
}

/// A running operator.
#[derive(Debug)]
pub(crate) struct Operator<'a> {
    site: &'a Site,
    process: Process,
}

impl Operator<'_> {
    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    /// Appends the last lines of the operator's log to an error message.
    pub(crate) fn explain(&self, reason: &str) -> String {
        format!("{reason}\nthe operator's last lines:\n{}", self.process.log_tail(12))
    }

    /// Waits until the operator reports that it is ready.
    pub(crate) async fn ready(&self) -> Result<(), String> {
        let end = Instant::now() + START;
        loop {
            self.process.check_running()?;
            let missing = match self.get("/health/readiness").await {
                Ok((StatusCode::OK, _)) => return Ok(()),
                Ok((status, body)) => format!("{status}: {body}"),
                Err(reason) => reason,
            };
            if Instant::now() > end {
                return Err(self.explain(&format!("not ready within {} s: {missing}", START.as_secs())));
            }
            tokio::time::sleep(ASK).await;
        }
    }

    /// Returns a counter or gauge of the operator; 0 if it does not exist yet.
    pub(crate) async fn metric(&self, name: &str) -> Result<u64, String> {
        let (_, text) = self.get("/metrics").await?;
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        Ok(value.and_then(|value| value.parse().ok()).unwrap_or(0))
    }

    /// Waits until the hub listens.
    pub(crate) async fn listens(&self) -> Result<(), String> {
        try_eventually("a hub that listens", START, async || match self.process.check_running() {
            Err(ended) => Ok(Err(ended)),
            Ok(()) => TcpStream::connect(self.site.hub()).await.map(|_| Ok(())).map_err(|e| e.to_string()),
        })
        .await
        .map_err(|reason| self.explain(&reason))?
    }

    /// Returns a counter of the operator's /metrics.
    pub(crate) async fn counter(&self, name: &str) -> Result<f64, String> {
        let (_, text) = self.get("/metrics").await?;
        text.lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
            .ok_or_else(|| format!("/metrics of the operator has no {name}"))
    }

    async fn get(&self, path: &str) -> Result<(StatusCode, String), String> {
        let address = format!("127.0.0.1:{}", self.site.rest);
        let problem = |e: &dyn std::fmt::Display| format!("GET http://{address}{path}: {e}");
        let stream = TcpStream::connect(&address).await.map_err(|e| problem(&e))?;
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|e| problem(&e))?;
        let request = http::Request::get(path)
            .header(http::header::HOST, &address)
            .body(Empty::<Bytes>::new())
            .map_err(|e| problem(&e))?;
        let answer = async {
            let answer = sender.send_request(request).await?;
            let status = answer.status();
            let body = answer.into_body().collect().await?.to_bytes();
            drop(sender);
            Ok::<_, hyper::Error>((status, String::from_utf8_lossy(&body).into_owned()))
        };
        let (answer, _) = tokio::join!(answer, connection);
        answer.map_err(|e| problem(&e))
    }

    /// Connects an agent as soon as the hub listens.
    pub(crate) async fn connect(&self, introduction: &Introduction) -> Result<SimulatedAgent, String> {
        let end = Instant::now() + START;
        loop {
            match SimulatedAgent::connect(&self.site.hub(), introduction.clone(), Policy::default()).await {
                Ok(agent) => return Ok(agent),
                Err(NoSession::Unreachable(_)) if Instant::now() < end => {
                    self.process.check_running()?;
                    tokio::time::sleep(REDIAL).await;
                }
                Err(reason) => {
                    return Err(self.explain(&format!("agent {}: {reason}", introduction.agent_id)));
                }
            }
        }
    }

    /// Waits until the operator reports that it leads.
    pub(crate) async fn leads(&self) -> Result<(), String> {
        try_eventually("a replica that leads", START, async || match self.metric("kubesvc_leader").await? {
            1 => Ok(()),
            _ => Err("it follows".to_owned()),
        })
        .await
        .map_err(|reason| self.explain(&reason))
    }

    /// Kills the operator with SIGKILL.
    pub(crate) fn kill(&self) {
        self.process.kill();
    }

    /// Sends SIGTERM and waits for the end.
    pub(crate) async fn stop(self) -> Result<(), String> {
        let status = self.process.terminate(END).await.map_err(|reason| self.explain(&reason))?;
        if status.success() { Ok(()) } else { Err(self.explain(&format!("the operator ended: {status}"))) }
    }
}

/// Creates `count` new agents.
pub(crate) fn introductions(count: usize) -> Vec<Introduction> {
    (0..count).map(|number| Introduction::new(&format!("agent-{number}"), ZONE)).collect()
}
