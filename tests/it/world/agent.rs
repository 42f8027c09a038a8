//! Agents' processes.

use std::path::PathBuf;
use std::process::{Command, ExitStatus};
use std::time::Duration;

use kubesvc::account::{KubesvcAgent, names};
use parking_lot::Mutex;
use serde_json::json;

use super::rest::{self, Answer, Call};
use super::{PATIENCE, World, operator, prepare};
use crate::harness::{must, ports, process::Process, wait::eventually};

/// The file of its settings.
const SETTINGS: &str = "armory-agent.yml";
/// SIGTERM ends the programs within 20 s.
const END: Duration = Duration::from_secs(25);

/// An agent that is about to be started.
pub(crate) struct AgentBuilder<'w> {
    world: &'w World,
    id: String,
    zone: String,
    level: &'static str,
    hub: u16,
    beside: bool,
    settings: Vec<(&'static str, serde_json::Value)>,
}

/// An agent. Killed on drop.
pub(crate) struct Agent {
    id: String,
    zone: String,
    folder: PathBuf,
    log: PathBuf,
    health: u16,
    kubeconfigs: PathBuf,
    process: Mutex<Option<Process>>,
}

impl World {
    /// An agent with this id, in zone `east` unless said otherwise.
    pub(crate) fn agent(&self, id: &str) -> AgentBuilder<'_> {
        AgentBuilder {
            world: self,
            id: id.to_owned(),
            zone: "east".to_owned(),
            level: "debug",
            hub: self.operator.hub_port(),
            beside: false,
            settings: Vec::new(),
        }
    }

    /// The KubesvcAgent of an agent. Asks again while the API server gives no answer.
    pub(crate) async fn agent_object(&self, agent: &Agent) -> Option<KubesvcAgent> {
        let what = format!("the object of agent {}", agent.id);
        eventually(&what, PATIENCE, async || self.try_agent_object(agent).await).await
    }

    /// As [`World::agent_object`], asked once.
    ///
    /// # Errors
    ///
    /// The API server gives no answer.
    pub(crate) async fn try_agent_object(&self, agent: &Agent) -> Result<Option<KubesvcAgent>, String> {
        let name = names::agent_object_name(&agent.id, &agent.zone);
        self.api::<KubesvcAgent>().get_opt(&name).await.map_err(|e| format!("agent {name}: {e}"))
    }

    /// Waits until the operator says in a KubesvcAgent that this agent is connected, or that it is not.
    pub(crate) async fn until_connected(&self, agent: &Agent, wanted: bool) {
        eventually(&format!("agent {} with connected: {wanted}", agent.id), PATIENCE, async || {
            let object = self.try_agent_object(agent).await?;
            let connected = object.and_then(|object| object.status).is_some_and(|status| status.connected);
            if connected == wanted { Ok(()) } else { Err(format!("connected: {connected}")) }
        })
        .await;
    }
}

impl AgentBuilder<'_> {
    /// Its zone.
    pub(crate) fn zone(mut self, zone: &str) -> Self {
        self.zone = zone.to_owned();
        self
    }

    /// Its log level.
    pub(crate) fn log_level(mut self, level: &'static str) -> Self {
        self.level = level;
        self
    }

    /// The port that it dials, if it is not the hub's own.
    pub(crate) fn hub_port(mut self, port: u16) -> Self {
        self.hub = port;
        self
    }

    /// With a folder of its own, beside another process of the same id and zone.
    pub(crate) fn beside_another(mut self) -> Self {
        self.beside = true;
        self
    }

    /// Any of its settings, by its path with dots.
    pub(crate) fn setting(mut self, path: &'static str, value: serde_json::Value) -> Self {
        self.settings.push((path, value));
        self
    }

    /// Starts it, and waits until the operator knows it as connected.
    pub(crate) async fn start(self) -> Agent {
        let world = self.world;
        let agent = self.launch();
        world.until_connected(&agent, true).await;
        agent
    }

    /// Starts it and waits for nothing.
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
            process: Mutex::new(None),
        };
        agent.launch();
        agent
    }
}

impl Agent {
    /// Its id.
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// The port of its health server.
    pub(crate) fn health_port(&self) -> u16 {
        self.health
    }

    /// Its zone.
    pub(crate) fn zone(&self) -> &str {
        &self.zone
    }

    /// Changes one of its settings, by its path with dots; it takes effect as the agent has it.
    pub(crate) fn set(&self, path: &str, value: serde_json::Value) {
        let mut settings = must(serde_json::from_str(&self.settings_text()).map_err(|e| e.to_string()));
        prepare::set(&mut settings, path, value);
        self.write_settings(&format!("{settings:#}"));
    }

    /// Its settings as they are.
    pub(crate) fn settings_text(&self) -> String {
        must(std::fs::read_to_string(self.folder.join(SETTINGS)).map_err(|e| e.to_string()))
    }

    /// Replaces its settings, as an editor does: by a new file under the old name.
    pub(crate) fn write_settings(&self, text: &str) {
        let (new, file) = (self.folder.join("new-settings"), self.folder.join(SETTINGS));
        let written = std::fs::write(&new, text).and_then(|()| std::fs::rename(&new, &file));
        must(written.map_err(|e| format!("{}: {e}", file.display())));
    }

    /// Asks its health server.
    pub(crate) async fn get(&self, path: &str) -> Answer {
        must(self.try_get(path).await)
    }

    /// As [`Agent::get`].
    ///
    /// # Errors
    ///
    /// There is no answer.
    pub(crate) async fn try_get(&self, path: &str) -> Result<Answer, String> {
        rest::send(self.health, Call::get(path)).await
    }

    /// The folder in which accounts may name kubeconfig files.
    pub(crate) fn kubeconfigs(&self) -> &PathBuf {
        &self.kubeconfigs
    }

    /// The file with everything it has logged.
    pub(crate) fn log(&self) -> &std::path::Path {
        &self.log
    }

    /// Everything it has logged, over all its starts.
    pub(crate) fn log_text(&self) -> String {
        std::fs::read(&self.log)
            .map_or_else(|_| String::new(), |text| String::from_utf8_lossy(&text).into_owned())
    }

    /// Starts its process, ending one that runs, and waits for nothing.
    pub(crate) fn launch(&self) {
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", operator::AS_USUAL, env!("CARGO_BIN_EXE_kubesvc-agent")])
            .arg("--config-dir")
            .arg(&self.folder)
            .env("AGENT_ID", &self.id);
        let mut process = self.process.lock();
        // The old one first: it holds the port.
        *process = None;
        *process = Some(must(Process::spawn("kubesvc-agent", &command, &self.log)));
    }

    /// Its process id.
    pub(crate) fn process_id(&self) -> u32 {
        self.process.lock().as_ref().map(Process::id).expect("the agent was started")
    }

    /// How it ended, if it has.
    pub(crate) fn exited(&self) -> Option<ExitStatus> {
        self.process.lock().as_ref().and_then(Process::exited)
    }

    /// Kills it (SIGKILL).
    pub(crate) fn kill(&self) {
        if let Some(process) = &*self.process.lock() {
            process.kill();
        }
    }

    /// Asks it to end (SIGTERM) and waits.
    pub(crate) async fn terminate(&self) -> ExitStatus {
        let process = self.process.lock().take().expect("the agent was started");
        must(process.terminate(END).await)
    }

    /// Stops it in its tracks (SIGSTOP): its connection stays open and nothing answers.
    pub(crate) fn pause(&self) {
        if let Some(process) = &*self.process.lock() {
            process.pause();
        }
    }

    /// Lets a paused one run on.
    pub(crate) fn resume(&self) {
        if let Some(process) = &*self.process.lock() {
            process.resume();
        }
    }
}
