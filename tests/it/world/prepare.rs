//! Configuration and start of a world, and the worlds that several tests start from.

use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Value, json};

use super::operator::{Launch, Operator};
use super::{Agent, Cluster, Database, Plane, World, in_repository, rights};
use kubesvc_testkit::{
    controlplane::{self, ControlPlane, StartOptions},
    folder::Folder,
    must, ports,
};

/// Base settings, which other settings override.
#[derive(Clone, Copy, Default)]
enum Base {
    /// Short times and no rate limits on writes.
    #[default]
    Quick,
    /// The program's defaults.
    Program,
    /// The settings that `config/replicas` installs.
    Shipped,
}

/// Options of a world.
#[derive(Default)]
pub(crate) struct Prepare {
    base: Base,
    settings: Vec<(String, Value)>,
    environment: Vec<(String, String)>,
    own_control_plane: bool,
    aggregates: bool,
    without_operator: bool,
    bears_file_limits: bool,
    database: Database,
    database_url: Option<String>,
}

impl Prepare {
    /// Uses the settings of `config/replicas`, except for the ports.
    pub(crate) fn with_shipped_settings(mut self) -> Self {
        self.base = Base::Shipped;
        self
    }

    /// Uses the program's default settings, except for the ports.
    pub(crate) fn with_the_programs_settings(mut self) -> Self {
        self.base = Base::Program;
        self
    }

    /// Sets a setting of the operator by its dotted path.
    pub(crate) fn setting(mut self, path: &str, value: impl Into<Value>) -> Self {
        self.settings.push((path.to_owned(), value.into()));
        self
    }

    /// Sets an environment variable for each start of the operator.
    pub(crate) fn operator_env(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Raises the waiting times for agents beyond the length of a test. On a slow machine, a late account is then
    /// neither orphaned nor failed, so that its writes can be counted.
    pub(crate) fn with_long_timeouts(self) -> Self {
        self.setting("kubesvc.dynamicAccounts.orphanGraceSeconds", 120)
            .setting("kubesvc.cache.operationWaitMs", 120_000)
    }

    /// Sets the kind of database; SQLite by default.
    pub(crate) fn database(mut self, database: Database) -> Self {
        self.database = database;
        self
    }

    /// Uses an existing database.
    pub(crate) fn database_url(mut self, url: &str) -> Self {
        self.database_url = Some(url.to_owned());
        self
    }

    /// Makes the operator get an error instead of a signal at its file size limit.
    pub(crate) fn bearing_file_limits(mut self) -> Self {
        self.bears_file_limits = true;
        self
    }

    /// Uses a separate control plane, which the test may stop and pause.
    pub(crate) fn own_control_plane(mut self) -> Self {
        self.own_control_plane = true;
        self
    }

    /// Uses a separate control plane that serves aggregated APIs.
    pub(crate) fn aggregating(mut self) -> Self {
        self.aggregates = true;
        self.own_control_plane()
    }

    /// Leaves the start of the operator to the test, with [`Operator::start`].
    pub(crate) fn without_operator(mut self) -> Self {
        self.without_operator = true;
        self
    }

    /// Starts the world.
    pub(crate) async fn start(self) -> World {
        let plane = if self.own_control_plane {
            let mut options = StartOptions::default();
            options.aggregates = self.aggregates;
            let own = must(ControlPlane::reused(options).await);
            rights::install(&own).await;
            Plane::Own(Box::new(own))
        } else {
            let shared = controlplane::shared().await;
            rights::install_definitions(shared).await;
            Plane::Shared(shared)
        };
        let namespace = plane.namespace().await;
        rights::grant(&namespace).await;

        let folder = must(Folder::new("world"));
        let (rest, hub, calls) = (ports::free(), ports::free(), ports::free());
        let database = match self.database_url {
            Some(url) => url,
            None => self.database.fresh(&folder).await,
        };
        let mut settings = settings_of(self.base);
        for (path, value) in [
            ("server.address", json!("127.0.0.1")),
            ("server.port", json!(rest)),
            ("kubesvc.grpc.server.address", json!("127.0.0.1")),
            ("kubesvc.grpc.server.port", json!(hub)),
            ("kubesvc.replicas.port", json!(calls)),
            ("kubesvc.database.url", json!(database)),
            ("logging.format", json!("text")),
        ] {
            set(&mut settings, path, value);
        }
        for (path, value) in self.settings {
            set(&mut settings, &path, value);
        }
        let identity = must(plane.client_certificate(&rights::operator_user(namespace.name()), None));
        let kubeconfig =
            must(folder.write("operator.kubeconfig", &plane.kubeconfig_for_certificate(&identity)));
        let log = folder.file("operator.log");
        let operator = Operator::new(Launch {
            id: "operator-0".to_owned(),
            config: must(folder.write("kubesvc.yml", &format!("{settings:#}"))),
            kubeconfig,
            namespace: namespace.name().to_owned(),
            environment: self.environment,
            log: log.clone(),
            bears_file_limits: self.bears_file_limits,
            rest,
            hub,
            calls,
        });
        let world = World {
            operator,
            client: namespace.client(),
            namespace,
            logs: Arc::new(Mutex::new(vec![("operator".to_owned(), log)])),
            plane,
            database,
            folder,
        };
        if !self.without_operator {
            world.operator.start().await;
        }
        world
    }
}

fn settings_of(base: Base) -> Value {
    match base {
        // A test takes seconds.
        Base::Quick => json!({
            "kubesvc": {
                "dynamicAccounts": {
                    "orphanGraceSeconds": 2, "retryFrequencySeconds": 1, "retryMaxDelaySeconds": 4, "maxRetries": 3,
                },
                // Most tests are about accounts: nothing of the shared cluster is cached, unless a test asks for it.
                "cache": {"operationWaitMs": 3000, "cacheKinds": []},
                "kubernetes": {"qps": 0, "burst": 400, "registrationQps": 0},
            },
            "logging": {"level": "debug"},
        }),
        Base::Program => json!({}),
        Base::Shipped => {
            let file = in_repository("config/components/replicas/kubesvc.yml");
            let text = must(std::fs::read_to_string(&file).map_err(|e| format!("{file}: {e}")));
            must(serde_saphyr::from_str(&text).map_err(|e| format!("{file}: {e}")))
        }
    }
}

/// Sets a value at a dotted path.
pub(super) fn set(settings: &mut Value, path: &str, value: Value) {
    let mut place = settings;
    for part in path.split('.') {
        place = &mut place[part];
    }
    *place = value;
}

impl World {
    /// A world with a cluster and an agent of zone east.
    pub(crate) async fn with_agent() -> (Self, Cluster, Agent) {
        let world = Self::start().await;
        let cluster = world.cluster("spinnaker").await;
        let agent = world.agent("agent-1").start().await;
        (world, cluster, agent)
    }

    /// A world without automatic retries, so that each state that waits for intervention lasts. The agents are those
    /// of the zones east, south and mute: tests kill the second and pause the third.
    pub(crate) async fn without_retries() -> (Self, Cluster, [Agent; 3]) {
        let slow = Self::prepare()
            .setting("kubesvc.dynamicAccounts.retryFrequencySeconds", 600)
            .setting("kubesvc.dynamicAccounts.retryMaxDelaySeconds", 600)
            // A paused agent stays connected for as long as the test takes.
            .setting("kubesvc.heartbeat.enabled", false)
            .setting("kubesvc.grpc.server.security.keepAliveHeartbeatSeconds", 0);
        let world = slow.start().await;
        let cluster = world.cluster("spinnaker").await;
        let east = world.agent("agent-1").zone("east").start().await;
        let south = world.agent("agent-2").zone("south").start().await;
        let mute = world.agent("agent-3").zone("mute").start().await;
        (world, cluster, [east, south, mute])
    }

    /// Like [`World::with_agent`], with [`Prepare::with_long_timeouts`].
    pub(crate) async fn with_long_timeouts() -> (Self, Cluster, Agent) {
        let world = Self::prepare().with_long_timeouts().start().await;
        let cluster = world.cluster("spinnaker").await;
        let agent = world.agent("agent-1").zone("east").start().await;
        (world, cluster, agent)
    }
}
