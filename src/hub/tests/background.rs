//! Background tasks of the hub, as they are listed and counted.

use crate::hub::agent_status::disconnects::Disconnect;
use crate::hub::tests::support::*;
use kubesvc_core::AgentKey;
use kubesvc_core::agent_resource::SessionEnd;
use kubesvc_runtime::background_tasks::TaskActivity;

fn activity(hub: &TestHub, name: &str) -> TaskActivity {
    let report = hub.tasks.report().into_iter().find(|task| task.name == name);
    report.and_then(|task| task.activity).unwrap_or_default()
}

#[tokio::test]
async fn a_hub_lists_all_of_its_tasks_until_it_has_stopped() {
    let hub = TestHub::start().await;
    let expected = [
        "accounts after a lapse",
        "admission queue",
        "agent collection",
        "agent summaries",
        "approvals of agents",
        "assignments",
        "disconnects",
        "fences",
        "following agents",
        "forgetting agents",
        "gRPC health",
        "mass delete guard",
        "namespace lists",
        "outbox writes",
        "routing changes",
        "taken accounts",
    ];
    eventually("all are listed", || (hub.tasks.report().len() == expected.len()).then_some(())).await;
    let listed: Vec<_> = hub.tasks.report().iter().map(|task| task.name).collect();
    assert_eq!(listed, expected);
    eventually("the table was written", || (activity(&hub, "assignments").runs > 0).then_some(())).await;
    hub.stop.cancel();
    eventually("the hub has stopped", || hub.served.is_finished().then_some(())).await;
    assert!(hub.tasks.report().is_empty());
}

#[tokio::test]
async fn a_disconnect_that_cannot_be_written_is_counted_as_a_failure_and_retried() {
    let hub = TestHub::start().await;
    *hub.objects.unheard.lock() = 1;
    hub.hub.agent_status.pending_disconnects.put(Disconnect {
        agent: AgentKey { id: "a".into(), zone: "z".into() },
        session_id: "gone".into(),
        end: SessionEnd::Cut,
    });
    eventually("it is written", || {
        hub.objects.log.lock().contains(&"disconnected a".to_owned()).then_some(())
    })
    .await;
    let runs = eventually("both runs are counted", || {
        Some(activity(&hub, "disconnects")).filter(|activity| activity.runs == 2)
    })
    .await;
    assert_eq!((runs.failures, runs.last_error.as_deref()), (1, Some("KubesvcAgent a: down")));
}
