//! What runs in the background, as the programs list and count it.

use crate::world::{Answer, MAX_WAIT, World};
use kubesvc_testkit::{must, wait::eventually};

#[tokio::test(flavor = "multi_thread")]
async fn operator_and_agent_list_their_background_tasks() {
    let world = World::start().await;
    let agent = world.agent("agent-1").start().await;
    let find = |answer: &Answer, name: &str| {
        let mut all = answer.json.as_array().into_iter().flatten();
        all.find(|task| task["name"] == name).cloned().ok_or_else(|| format!("no {name:?}: {answer}"))
    };
    let has_run = |answer: &Answer, name: &str| {
        let task = find(answer, name)?;
        let activity = &task["activity"];
        let is_so = activity["runs"].as_u64() >= Some(1)
            && activity["failures"] == 0
            && activity["lastRun"].is_string()
            && activity["lastDurationSeconds"].is_f64()
            && activity["lastError"].is_null();
        if is_so { Ok(()) } else { Err(task.to_string()) }
    };
    let of_operator = eventually("tasks of the operator that have run", MAX_WAIT, async || {
        let answer = world.try_get("/health/tasks").await?;
        for name in ["row writes", "row comparison", "clock of the leader", "assignments"] {
            has_run(&answer, name)?;
        }
        Ok::<_, String>(answer)
    })
    .await;
    for name in ["REST", "hub", "controller", "watch of accounts"] {
        let task = must(find(&of_operator, name));
        assert!(task["since"].is_string() && task["activity"].is_null(), "{task}");
    }
    eventually("tasks of the agent that have run", MAX_WAIT, async || {
        let answer = agent.try_get("/health/tasks").await?;
        has_run(&answer, "watch of the settings")?;
        has_run(&answer, "watch of the accounts' files")
    })
    .await;
    let metrics = world.get("/metrics").await.to_string();
    let counted = r#"kubesvc_background_task_duration_seconds_count{task="row comparison"}"#;
    assert!(metrics.contains(counted), "{metrics}");
}
