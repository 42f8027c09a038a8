//! The life cycle of an account on real parts, from the first activation to its end. Each test is a world that its cases
//! share. A case has accounts of its own names, and an agent in a zone of its own if it stops, pauses or counts on one.

mod agent_policy;
mod agents;
mod changes;
mod credentials;
mod deletion;
mod first;
mod restarts;

use kubesvc_core::State;
use serde_json::Value;

use crate::world::{Agent, Cluster, World, case, run_cases};

/// A world that cases share, with a cluster and an agent of zone east.
struct Scene {
    world: World,
    cluster: Cluster,
    agent: Agent,
}

impl Scene {
    async fn of(world: World) -> Self {
        let cluster = world.cluster("spinnaker").await;
        let agent = world.agent("agent-1").start().await;
        Self { world, cluster, agent }
    }
}

/// Number of the operator's writes to an account, none of which was refused.
fn writes(world: &World, account: &str) -> usize {
    let writes = world.writes_to(account);
    let refused: Vec<_> = writes.iter().filter(|write| write.code >= 300).collect();
    assert!(refused.is_empty(), "refused writes to {account}: {refused:#?}");
    writes.len()
}

/// Takes another account through its activation. By then, everything that had to be written before has been
/// written.
async fn activate_another(world: &World, cluster: &Cluster, name: &str, zone: &str) {
    world.account(name).zone(zone).kubeconfig(&cluster.kubeconfig()).create().await;
    world.until(name, State::Active).await;
}

/// Names of the accounts that REST lists for an agent.
///
/// # Errors
///
/// There is no answer, or the agent is not listed.
async fn held_by(world: &World, agent: &Agent) -> Result<Vec<String>, String> {
    let agents = world.try_get("/armory/agents").await?;
    let listed = agents.json.as_array().into_iter().flatten().find(|one| one["agentId"] == agent.id());
    let held = listed.and_then(|one| one["accounts"].as_array()).ok_or_else(|| agents.to_string())?;
    Ok(held.iter().filter_map(Value::as_str).map(str::to_owned).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn accounts_are_written_once_for_each_change_when_agents_answer_in_time() {
    // A machine that stalls for a few seconds orphans no account and fails none.
    let world = World::prepare()
        .setting("kubesvc.dynamicAccounts.orphanGraceSeconds", 8)
        .setting("kubesvc.cache.operationWaitMs", 120_000)
        .setting("kubesvc.dynamicAccounts.maxRetries", 0)
        .setting("kubesvc.dynamicAccounts.retryFrequencySeconds", 3600)
        .setting("kubesvc.dynamicAccounts.retryMaxDelaySeconds", 3600);
    let scene = Scene::of(world.start().await).await;
    run_cases([
        case(first::applied_account_becomes_active_in_every_view(&scene)),
        case(first::account_created_by_rest_costs_two_further_writes(&scene)),
        case(changes::account_is_deactivated_and_activated_through_its_spec(&scene)),
        case(changes::only_a_changed_definition_reactivates_the_account(&scene)),
        case(changes::changed_retry_annotation_retries_at_once(&scene)),
        case(agents::agent_restart_within_grace_costs_one_write_of_the_caching_process(&scene)),
        case(agents::agent_of_another_zone_never_gets_the_account(&scene)),
        case(agents::account_is_orphaned_when_its_agent_is_killed_and_recovers(&scene)),
    ])
    .await;
    run_cases([case(restarts::operator_restart_writes_nothing_and_loses_nothing(&scene))]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn accounts_follow_secrets_and_agents_that_leave_are_silent_and_return() {
    // As long as the slowest case, which is tried four times, takes anyway.
    let world = World::prepare()
        .setting("kubesvc.dynamicAccounts.orphanGraceSeconds", 3)
        .setting("kubesvc.cache.operationWaitMs", 5000);
    let scene = Scene::of(world.start().await).await;
    run_cases([case(first::setting_the_zone_ends_the_zone_probe_when_two_zones_have_agents(&scene))]).await;
    run_cases([
        case(agents::second_agent_of_the_zone_holds_the_account_and_takes_over(&scene)),
        case(deletion::deleted_account_is_removed_from_rows_and_agents(&scene)),
        case(deletion::deletion_fails_until_the_silent_agent_answers_or_force_is_set(&scene)),
        case(deletion::deactivation_fails_until_the_silent_agent_answers(&scene)),
        case(first::older_of_two_objects_with_one_account_name_wins(&scene)),
        case(changes::account_is_deactivated_and_activated_by_rest(&scene)),
        case(changes::account_of_an_unreachable_cluster_is_retried_and_stalls(&scene)),
        case(credentials::invalid_kubeconfig_stalls_its_account_only(&scene)),
        case(credentials::rotated_secret_reactivates_and_invalid_secret_is_reported(&scene)),
        case(credentials::kubeconfig_file_is_read_on_the_agent(&scene)),
        case(credentials::agent_uses_the_kubeconfig_meant_for_agents(&scene)),
        case(agent_policy::agent_policy_refuses_loopback_and_allows_exec_for_own_accounts(&scene)),
        case(restarts::second_operator_on_the_same_sqlite_file_is_refused(&scene)),
    ])
    .await;
    run_cases([case(agents::agent_reports_its_connection_and_reconnects_after_operator_restart(&scene))])
        .await;
    run_cases([case(agents::accounts_are_held_within_seconds_after_either_side_restarts(&scene))]).await;
    run_cases([case(restarts::changes_made_while_the_operator_was_down_are_applied_at_start(&scene))]).await;
}
