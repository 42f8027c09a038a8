//! The options of the agents in tests, and the end of an agent.

use super::*;

impl AgentOptions {
    /// Options for tests: plain text, ports chosen by the system, short delays.
    pub(crate) fn of_test(hub: String) -> Self {
        let backoff = Backoff {
            base: Duration::from_millis(20),
            max: Duration::from_millis(100),
            reconnect: Duration::from_millis(20),
            ..Backoff::default()
        };
        Self {
            agent_id: "agent-1".into(),
            zone_id: "zone-1".to_owned(),
            version: "1.2.3".to_owned(),
            hub,
            insecure: true,
            kubeconfig_folders: Vec::new(),
            policy: AgentPolicy::default(),
            requests: RequestSettings::default(),
            exec_commands: Vec::new(),
            own: StaticAccountFile::default(),
            dynamic_accounts: true,
            health_address: "127.0.0.1".to_owned(),
            health_port: 0,
            metrics_address: "127.0.0.1".to_owned(),
            metrics_port: None,
            place: Some(("spinnaker".to_owned(), "pod-1".to_owned())),
            backoff,
            keep_alive: KeepAlive::default(),
            activation_concurrency: 4,
            file_pace: Duration::from_millis(20),
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
