//! The options of the agents in tests, and the end of an agent.

use super::settings::HealthServerSettings;
use super::*;
use kubesvc_runtime::config::{Loaded, UnknownKeys};

/// The settings without a file.
pub(crate) fn default_settings() -> AgentSettings {
    Loaded::<AgentSettings>::read(&[], &|_| None, UnknownKeys::Error)
        .expect("the defaults are valid")
        .settings
}

impl AgentOptions {
    /// Options for tests: plain text, ports chosen by the system, short delays.
    pub(crate) fn of_test(hub: String) -> Self {
        let mut settings = default_settings();
        settings.hub.backoff.base = Duration::from_millis(20);
        settings.hub.backoff.max = Duration::from_millis(100);
        settings.hub.grpc = hub;
        settings.reconnect = Duration::from_millis(20);
        settings.server = HealthServerSettings { host: "127.0.0.1".to_owned(), port: 0, ssl: None };
        settings.kubeconfig_folders = Vec::new();
        settings.exec_commands = Vec::new();
        Self {
            agent_id: "agent-1".into(),
            zone_id: "zone-1".to_owned(),
            version: "1.2.3".to_owned(),
            settings,
            own: StaticAccountFile::default(),
            metrics_address: "127.0.0.1".to_owned(),
            place: Some(("spinnaker".to_owned(), "pod-1".to_owned())),
            activation_concurrency: 4,
            file_pace: Duration::from_millis(20),
            tls_pace: Duration::from_millis(20),
        }
    }
}

#[tokio::test]
async fn an_agent_leaves_if_a_part_of_it_ends() {
    let (leave, ends) = (CancellationToken::new(), CancellationToken::new());
    let tasks = TaskTracker::new();
    let background = BackgroundTasks::new(tasks.clone(), ends.clone(), TaskRegistry::default());
    background.spawn("health checks", "Answers probes", async {});
    let link = leave.clone().cancelled_owned();
    accompanied(link, &leave, &ends).await;
    assert_eq!(background.failed_task(), Some("health checks: it ended by itself"));
}
