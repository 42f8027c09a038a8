//! Agent processes.

use std::path::PathBuf;
use std::process::{Command, ExitStatus};
use std::time::Duration;

use kubesvc_core::{KubesvcAgent, ZoneId, object_names};
use parking_lot::Mutex;
use serde_json::json;

use super::rest::{self, Answer, Call};
use super::{MAX_WAIT, World, operator, prepare};
use kubesvc_testkit::{must, ports, process::Process, wait::eventually};

/// Name of the settings file.
const SETTINGS: &str = "armory-agent.yml";
/// Time limit for a shutdown. SIGTERM ends the programs within 20 s.
const END: Duration = Duration::from_secs(25);

/// An agent to be started.
pub(crate) struct AgentBuilder<'w> {
    world: &'w World,
    id: String,
    zone: String,
    level: &'static str,
    hub: u16,
    beside: bool,
    settings: Vec<(&'static str, serde_json::Value)>,
    environment: Vec<(String, String)>,
    program: PathBuf,
}

/// An agent process. Killed on drop.
pub(crate) struct Agent {
    id: String,
    zone: String,
    folder: PathBuf,
    log: PathBuf,
    health: u16,
    kubeconfigs: PathBuf,
    environment: Vec<(String, String)>,
    program: Mutex<PathBuf>,
    process: Mutex<Option<Process>>,
}

impl World {
    /// Configures an agent with this id, by default in zone `east`.
    pub(crate) fn agent(&self, id: &str) -> AgentBuilder<'_> {
        AgentBuilder {
            world: self,
            id: id.to_owned(),
            zone: "east".to_owned(),
            level: "debug",
            hub: self.operator.hub_port(),
            beside: false,
            settings: Vec::new(),
            environment: Vec::new(),
            program: env!("CARGO_BIN_EXE_kubesvc-agent").into(),
        }
    }

    /// Returns the KubesvcAgent of an agent. Retries while the API server does not answer.
    pub(crate) async fn agent_object(&self, agent: &Agent) -> Option<KubesvcAgent> {
        let what = format!("the object of agent {}", agent.id);
        eventually(&what, MAX_WAIT, async || self.try_agent_object(agent).await).await
    }

    /// Like [`World::agent_object`], without retries.
    ///
    /// # Errors
    ///
    /// The API server does not answer.
    pub(crate) async fn try_agent_object(&self, agent: &Agent) -> Result<Option<KubesvcAgent>, String> {
        let name =
            object_names::agent_object_name(&agent.id.as_str().into(), &ZoneId::from(agent.zone.as_str()));
        self.api::<KubesvcAgent>().get_opt(&name).await.map_err(|e| format!("agent {name}: {e}"))
    }

    /// Waits until the agent's KubesvcAgent says that it is connected, or that it is not.
    pub(crate) async fn until_connected(&self, agent: &Agent, wanted: bool) {
        eventually(&format!("agent {} with connected: {wanted}", agent.id), MAX_WAIT, async || {
            let object = self.try_agent_object(agent).await?;
            let connected = object.and_then(|object| object.status).is_some_and(|status| status.connected);
            if connected == wanted { Ok(()) } else { Err(format!("connected: {connected}")) }
        })
        .await;
    }
}

impl AgentBuilder<'_> {
    /// Sets the zone.
    pub(crate) fn zone(mut self, zone: &str) -> Self {
        self.zone = zone.to_owned();
        self
    }

    /// Sets the log level.
    pub(crate) fn log_level(mut self, level: &'static str) -> Self {
        self.level = level;
        self
    }

    /// Sets the port that the agent dials, by default the hub's.
    pub(crate) fn hub_port(mut self, port: u16) -> Self {
        self.hub = port;
        self
    }

    /// Uses a separate folder, for a second process with the same id and zone.
    pub(crate) fn in_separate_folder(mut self) -> Self {
        self.beside = true;
        self
    }

    /// Sets a setting of the agent by its dotted path.
    pub(crate) fn setting(mut self, path: &'static str, value: serde_json::Value) -> Self {
        self.settings.push((path, value));
        self
    }

    /// Sets an environment variable for each start of the agent.
    pub(crate) fn env(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Sets the program, by default that of this version.
    pub(crate) fn program(mut self, program: PathBuf) -> Self {
        self.program = program;
        self
    }

    /// Starts the agent and waits until the operator reports it as connected.
    pub(crate) async fn start(self) -> Agent {
        let world = self.world;
        let agent = self.launch();
        world.until_connected(&agent, true).await;
        agent
    }

    /// Starts the agent without waiting.
    pub(crate) fn launch(self) -> Agent {
        let beside = if self.beside { "-beside" } else { "" };
        let folder = self.world.folder.file(&format!("agent-{}-{}{beside}", self.id, self.zone));
        let kubeconfigs = folder.join("kubeconfigs");
        must(std::fs::create_dir_all(&kubeconfigs).map_err(|e| format!("{}: {e}", kubeconfigs.display())));
        let health = ports::free();
        let mut settings = json!({
            "clouddriver": {"grpc": format!("127.0.0.1:{}", self.hub), "insecure": true},
            "zoneId": self.zone,
            "server": {"host": "127.0.0.1", "port": health},
            "kubernetes": {"kubeconfigFolders": [kubeconfigs.display().to_string()], "reconnectTimeoutMs": 1000},
            "logging": {"level": self.level, "format": "text"},
        });
        for (path, value) in self.settings {
            prepare::set(&mut settings, path, value);
        }
        let file = folder.join(SETTINGS);
        must(std::fs::write(&file, format!("{settings:#}")).map_err(|e| format!("{}: {e}", file.display())));
        let log = folder.join("agent.log");
        let name = format!("agent {} of zone {}{beside}", self.id, self.zone);
        self.world.logs.lock().push((name, log.clone()));
        let agent = Agent {
            id: self.id,
            zone: self.zone,
            folder,
            log,
            health,
            kubeconfigs,
            environment: self.environment,
            program: Mutex::new(self.program),
            process: Mutex::new(None),
        };
        agent.launch();
        agent
    }
}

impl Agent {
    /// Id of the agent.
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// Port of the health server.
    pub(crate) fn health_port(&self) -> u16 {
        self.health
    }

    /// Zone of the agent.
    pub(crate) fn zone(&self) -> &str {
        &self.zone
    }

    /// Changes a setting by its dotted path. It takes effect when the agent reloads its settings.
    pub(crate) fn set(&self, path: &str, value: serde_json::Value) {
        let mut settings = must(serde_json::from_str(&self.settings_text()).map_err(|e| e.to_string()));
        prepare::set(&mut settings, path, value);
        self.write_settings(&format!("{settings:#}"));
    }

    /// Returns the current settings file.
    pub(crate) fn settings_text(&self) -> String {
        must(std::fs::read_to_string(self.folder.join(SETTINGS)).map_err(|e| e.to_string()))
    }

    /// Replaces the settings file like an editor: with a new file renamed to the old name.
    pub(crate) fn write_settings(&self, text: &str) {
        let (new, file) = (self.folder.join("new-settings"), self.folder.join(SETTINGS));
        let written = std::fs::write(&new, text).and_then(|()| std::fs::rename(&new, &file));
        must(written.map_err(|e| format!("{}: {e}", file.display())));
    }

    /// Sends a `GET` request to the health server.
    pub(crate) async fn get(&self, path: &str) -> Answer {
        must(self.try_get(path).await)
    }

    /// Like [`Agent::get`], but returns errors.
    ///
    /// # Errors
    ///
    /// There is no answer.
    pub(crate) async fn try_get(&self, path: &str) -> Result<Answer, String> {
        rest::send(self.health, Call::get(path)).await
    }

    /// Folder in which accounts may name kubeconfig files.
    pub(crate) fn kubeconfigs(&self) -> &PathBuf {
        &self.kubeconfigs
    }

    /// Path of the log.
    pub(crate) fn log(&self) -> &std::path::Path {
        &self.log
    }

    /// Returns the whole log, over all starts.
    pub(crate) fn log_text(&self) -> String {
        std::fs::read(&self.log)
            .map_or_else(|_| String::new(), |text| String::from_utf8_lossy(&text).into_owned())
    }

    /// Sets the program of the next start.
    pub(crate) fn set_program(&self, program: PathBuf) {
        *self.program.lock() = program;
    }

    /// Starts the process without waiting. A running one is killed first.
    pub(crate) fn launch(&self) {
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", operator::AS_USUAL])
            .arg(&*self.program.lock())
            .arg("--config-dir")
            .arg(&self.folder)
            .env("AGENT_ID", &self.id);
        for (name, value) in &self.environment {
            command.env(name, value);
        }
        let mut process = self.process.lock();
        // Kill the old process first: it holds the port.
        *process = None;
        *process = Some(must(Process::spawn("kubesvc-agent", &command, &self.log)));
    }

    /// Process id.
    pub(crate) fn process_id(&self) -> u32 {
        self.process.lock().as_ref().map(Process::id).expect("the agent was started")
    }

    /// Returns the exit status if the process has ended.
    pub(crate) fn exited(&self) -> Option<ExitStatus> {
        self.process.lock().as_ref().and_then(Process::exited)
    }

    /// Kills the process with SIGKILL.
    pub(crate) fn kill(&self) {
        if let Some(process) = &*self.process.lock() {
            process.kill();
        }
    }

    /// Sends SIGTERM and waits for the end.
    pub(crate) async fn terminate(&self) -> ExitStatus {
        let process = self.process.lock().take().expect("the agent was started");
        must(process.terminate(END).await)
    }

    /// Pauses the process (SIGSTOP): its connection stays open and nothing answers.
    pub(crate) fn pause(&self) {
        if let Some(process) = &*self.process.lock() {
            process.pause();
        }
    }

    /// Resumes a paused process.
    pub(crate) fn resume(&self) {
        if let Some(process) = &*self.process.lock() {
            process.resume();
        }
    }
}
