use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::*;
use crate::conditions::{self, ConditionSummary, standard_conditions, state_reason};
use crate::failure::FailureClass;
use crate::status::Grant;
use crate::{
    FINALIZER, GrantPhase, Installation, KubesvcAccountStatus, KubesvcAgentSpec, NameHolder, RETRY_ANNOTATION,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

const NOW: i64 = 1_800_000_000;

fn now() -> Timestamp {
    at(0)
}

fn at(offset: i64) -> Timestamp {
    Timestamp::from_second(NOW + offset).expect("a moment")
}

/// An account of generation 1, created ten minutes ago, with these fields replacing the defaults.
fn account(spec: Value, metadata: Value) -> KubesvcAccount {
    let mut all = json!({
        "apiVersion": "kubesvc.io/v1alpha1", "kind": "KubesvcAccount",
        "metadata": {
            "name": "prod", "namespace": "spin", "generation": 1, "finalizers": [FINALIZER],
            "creationTimestamp": at(-600).to_string(),
        },
        "spec": {"kubeconfig": {"secretRef": {"name": "prod"}}},
    });
    for (place, over) in [("metadata", metadata), ("spec", spec)] {
        for (key, value) in over.as_object().expect("an object") {
            all[place][key] = value.clone();
        }
    }
    serde_json::from_value(all).expect("an account")
}

/// Sets a state that the operator has written for the account's generation.
fn in_state(mut account: KubesvcAccount, state: State, phase: GrantPhase) -> KubesvcAccount {
    let story = ConditionSummary::of_state(state, account.desired());
    account.status = Some(status(&account, state, phase, &story));
    account
}

fn failed(mut account: KubesvcAccount, class: FailureClass, stalled: bool) -> KubesvcAccount {
    let story = ConditionSummary::failed(class.reason(), "what the agent said".to_owned(), stalled);
    let mut status = status(&account, State::Failed, GrantPhase::None, &story);
    status.error_message = Some("what the agent said".to_owned());
    status.failed_count = 1;
    account.status = Some(status);
    account
}

fn status(
    account: &KubesvcAccount,
    state: State,
    phase: GrantPhase,
    story: &ConditionSummary,
) -> KubesvcAccountStatus {
    let grant = Grant { phase, zone: Some("east".into()), ..Grant::default() };
    KubesvcAccountStatus {
        state: Some(state),
        observed_generation: account.generation(),
        grant: (phase != GrantPhase::None).then_some(grant),
        zone_id: (phase != GrantPhase::None).then(|| "east".to_owned()).map(Into::into),
        last_transition_time: Some(Time(at(-60))),
        conditions: standard_conditions(&[], story, false, None, account.generation(), &Time(at(-60))),
        ..KubesvcAccountStatus::default()
    }
}

fn agent(id: &str, zone: &str, connected: bool, approved: bool) -> KubesvcAgent {
    serde_json::from_value(json!({
        "apiVersion": "kubesvc.io/v1alpha1", "kind": "KubesvcAgent",
        "metadata": {"name": format!("{id}-{zone}"), "namespace": "spin"},
        "spec": {"agentId": id, "zoneId": zone, "approved": approved},
        "status": {"connected": connected},
    }))
    .expect("an agent")
}

fn plain() -> KubesvcAccount {
    account(json!({}), json!({}))
}

fn pinned(zone: &str) -> KubesvcAccount {
    account(json!({"zoneId": zone}), json!({}))
}

fn commands(explanation: &Explanation) -> Vec<&str> {
    explanation.advice.iter().filter_map(|advice| advice.command.as_deref()).collect()
}

fn says(explanation: &Explanation, words: &str) -> bool {
    explanation.waits_for.contains(words)
        || explanation.advice.iter().any(|advice| advice.text.contains(words))
}

#[track_caller]
fn assert_says(explanation: &Explanation, words: &str) {
    assert!(says(explanation, words), "nothing says {words:?}: {explanation:#?}");
}

#[track_caller]
fn assert_command(explanation: &Explanation, command: &str) {
    assert!(commands(explanation).contains(&command), "no command is {command:?}: {explanation:#?}");
}

#[test]
fn an_active_account_waits_for_nothing_and_names_who_holds_it() {
    let mut account = in_state(pinned("east"), State::Active, GrantPhase::Open);
    account.status.as_mut().expect("a status").agents = vec!["a-1".into()];
    let known_agents = [agent("a-1", "east", true, true), agent("a-2", "west", true, true)];
    let explanation = explain(&account, Some(&known_agents), now());
    assert_says(&explanation, "held by a-1");
    assert!(explanation.ready && explanation.advice.is_empty(), "{explanation:#?}");
    assert_eq!(explanation.since, Some(at(-60)));
    let agents = explanation.agents.expect("the agents are known");
    assert_eq!(agents.len(), 1, "only those of its zone: {agents:?}");
    assert!(agents[0].holds && agents[0].connected);
}

#[test]
fn no_agent_in_a_pinned_zone_says_to_start_one_of_that_zone() {
    let account = failed(pinned("north"), FailureClass::NoAgent, false);
    let explanation = explain(&account, Some(&[]), now());
    assert_says(&explanation, "agent of zone north");
    assert_says(&explanation, "Start an agent with zoneId north");
}

#[test]
fn no_agent_in_a_zone_that_is_nearly_another_one_offers_that_one() {
    let account = failed(pinned("esat"), FailureClass::NoAgent, false);
    let known_agents = [agent("a", "east", true, true), agent("b", "gcp", true, true)];
    let explanation = explain(&account, Some(&known_agents), now());
    assert_says(&explanation, "did you mean zone east?");
    assert_command(
        &explanation,
        r#"kubectl patch ksa/prod -n spin --type=merge -p '{"spec":{"zoneId":"east"}}'"#,
    );
}

#[test]
fn no_agent_where_several_other_zones_have_agents_lists_them() {
    let account = failed(pinned("north"), FailureClass::NoAgent, false);
    let known_agents =
        [agent("a", "aws", true, true), agent("b", "gcp", true, true), agent("c", "old", false, true)];
    let explanation = explain(&account, Some(&known_agents), now());
    assert_says(&explanation, "these have agents: aws, gcp.");
}

#[test]
fn an_account_that_a_new_leader_awaits_agents_for_says_so_and_what_comes_after() {
    for (account, of) in
        [(pinned("east"), "may take the account of zone east may"), (plain(), "take the account may")]
    {
        let mut account = in_state(account, State::Inactive, GrantPhase::None);
        let waits = ConditionSummary::of_state(State::Inactive, account.desired());
        let waits = waits.still_reconciling("AwaitingAgents", "waiting".to_owned());
        account.status = Some(status(&account, State::Inactive, GrantPhase::None, &waits));
        let explanation = explain(&account, Some(&[]), now());
        assert_says(&explanation, "has just begun to lead");
        assert_says(&explanation, of);
        assert_says(&explanation, "FAILED (NoAgent)");
        assert_command(&explanation, "kubectl kubesvc wait prod -n spin");
    }
}

#[test]
fn no_agent_without_a_zone_says_that_none_is_connected() {
    let account = failed(plain(), FailureClass::NoAgent, false);
    let explanation = explain(&account, Some(&[agent("a", "east", false, true)]), now());
    assert_says(&explanation, "names no zone");
    assert_says(&explanation, "Start an agent, or see");
}

#[test]
fn agents_that_are_not_approved_are_named_with_the_command_that_approves_them() {
    for account in [pinned("east"), plain()] {
        let account = failed(account, FailureClass::NoAgent, false);
        let known_agents = [agent("a-1", "east", true, false), agent("a-2", "east", true, false)];
        let explanation = explain(&account, Some(&known_agents), now());
        assert_says(&explanation, "Agent a-1 of zone east is connected, and 1 more, and not approved");
        assert_command(&explanation, "kubectl kubesvc agents approve a-1-east -n spin");
    }
}

#[test]
fn a_newly_connected_agent_is_explained() {
    let account = failed(pinned("east"), FailureClass::NoAgent, false);
    let explanation = explain(&account, Some(&[agent("a", "east", true, true)]), now());
    assert_says(&explanation, "is connected by now");
}

#[test]
fn agents_that_may_not_be_read_are_not_taken_for_absent_ones() {
    let account = failed(pinned("east"), FailureClass::NoAgent, false);
    let explanation = explain(&account, None, now());
    assert_eq!(explanation.agents, None);
    assert_says(&explanation, "may not read them");
    let activating = in_state(pinned("east"), State::Activating, GrantPhase::Open);
    assert_says(&explain(&activating, None, now()), "The first answer");
}

#[test]
fn several_zones_each_come_with_a_command_that_pins_the_account() {
    let account = failed(plain(), FailureClass::ZoneAmbiguous, false);
    let known_agents = [agent("a", "east", true, true), agent("b", "it's west", true, true)];
    let explanation = explain(&account, Some(&known_agents), now());
    assert_command(
        &explanation,
        r#"kubectl patch ksa/prod -n spin --type=merge -p '{"spec":{"zoneId":"east"}}'"#,
    );
    assert_command(
        &explanation,
        r#"kubectl patch ksa/prod -n spin --type=merge -p '{"spec":{"zoneId":"it'\''s west"}}'"#,
    );
}

#[test]
fn an_account_that_a_gitops_tool_keeps_is_changed_there() {
    let mark = json!({"annotations": {"argocd.argoproj.io/tracking-id": "fleet:kubesvc.io/KubesvcAccount:spin/prod"}});
    let account = failed(account(json!({}), mark), FailureClass::ZoneAmbiguous, false);
    let explanation = explain(&account, Some(&[agent("a", "east", true, true)]), now());
    assert_eq!(explanation.gitops_owner.as_deref(), Some("Argo CD application fleet"));
    assert_says(&explanation, "Set spec.zoneId: east in Argo CD application fleet.");
    assert!(commands(&explanation).is_empty(), "{explanation:#?}");
}

#[test]
fn a_due_retry_is_explained_with_its_time() {
    let mut account = failed(pinned("east"), FailureClass::Unreachable, false);
    account.status.as_mut().expect("a status").next_retry_time = Some(Time(at(12)));
    let explanation = explain(&account, Some(&[]), now());
    assert_says(&explanation, "no connection to the cluster");
    assert_says(&explanation, "tried again by itself");
    assert_eq!(explanation.next_try, Some(at(12)));
    assert_eq!(explanation.last_error.as_deref(), Some("what the agent said"));
    assert_command(&explanation, "kubectl kubesvc retry prod -n spin");
}

#[test]
fn handled_retry_of_a_long_mark_is_not_reported_as_pending() {
    let mut account = failed(pinned("east"), FailureClass::Unreachable, false);
    let asked = "x".repeat(300);
    let digest = format!("sha256:{}", hex::encode(Sha256::digest(&asked)));
    account.metadata.annotations.get_or_insert_default().insert(RETRY_ANNOTATION.to_owned(), asked);
    let pending = explain(&account, Some(&[]), now());
    assert_says(&pending, "A retry was asked for, and is not begun yet.");
    account.status.as_mut().expect("a status").retry_handled = Some(digest);
    let handled = explain(&account, Some(&[]), now());
    assert_says(&handled, "no connection to the cluster");
}

#[test]
fn a_stalled_account_says_whether_it_is_tried_on() {
    let mut account = failed(pinned("east"), FailureClass::Unreachable, true);
    account.status.as_mut().expect("a status").next_retry_time = Some(Time(at(300)));
    assert_says(&explain(&account, Some(&[]), now()), "at the slowest pace");
    let refused = failed(pinned("east"), FailureClass::Auth, true);
    let explanation = explain(&refused, Some(&[]), now());
    assert_says(&explanation, "not tried again by itself");
    assert_command(
        &explanation,
        "kubectl create secret generic prod -n spin --from-file=kubeconfig=FILE --dry-run=client -o yaml | kubectl apply -f -",
    );
}

#[test]
fn held_account_whose_credential_is_refused_says_that_its_agent_goes_on_asking() {
    let mut account = failed(plain(), FailureClass::Auth, true);
    let explained = |account: &KubesvcAccount| explain(account, Some(&[]), now());
    assert_says(&explained(&account), "It is not tried again by itself.");
    let status = account.status.as_mut().expect("it has one");
    status.grant = Some(Grant { phase: GrantPhase::Open, zone: Some("east".into()), ..Grant::default() });
    status.agents = vec!["agent-1".into()];
    assert_says(&explained(&account), "ACTIVE again as soon as the cluster accepts the credential.");
}

#[test]
fn a_mismatch_says_how_to_unbind() {
    let account = failed(pinned("east"), FailureClass::ClusterMismatch, true);
    let explanation = explain(&account, Some(&[]), now());
    assert_says(&explanation, "another cluster");
    assert_command(&explanation, "kubectl kubesvc deactivate prod -n spin --wait");
    assert_command(&explanation, "kubectl kubesvc activate prod -n spin");
}

#[test]
fn exec_is_refused_and_says_what_to_use() {
    let account = failed(pinned("east"), FailureClass::ExecForbidden, true);
    let explanation = explain(&account, Some(&[]), now());
    assert_says(&explanation, "run a program to log in");
    assert_says(&explanation, "Use a token");
    assert_says(&explanation, "until its spec or its credential changes");
}

#[test]
fn a_missing_credential_names_secret_key_and_namespace() {
    let missing = failed(pinned("east"), FailureClass::CredentialMissing, false);
    let explanation = explain(&missing, Some(&[]), now());
    assert_says(&explanation, "Secret prod with key kubeconfig has to be in namespace spin");
    assert_command(&explanation, "kubectl create secret generic prod -n spin --from-file=kubeconfig=FILE");
    let file = account(json!({"kubeconfig": {"file": "/etc/kube/prod"}}), json!({}));
    let explanation = explain(&failed(file, FailureClass::CredentialMissing, false), Some(&[]), now());
    assert_says(&explanation, "/etc/kube/prod is not there");
}

#[test]
fn an_account_that_an_agent_lists_too_says_which_agent_and_which_of_the_two_counts() {
    let mut account = in_state(pinned("east"), State::Active, GrantPhase::Open);
    let status = account.status.as_mut().expect("a status");
    let (told, time) = ("agent a-1 lists it; the declared account counts", Time(at(-60)));
    status.conditions.push(conditions::one(&[], LISTED_BY_AGENT, "True", "DeclaredWins", told, 1, &time));
    let explanation = explain(&account, Some(&[]), now());
    assert_says(&explanation, told);
    assert!(explanation.ready);
}

#[test]
fn an_account_that_leaves_kinds_out_says_which_and_what_to_do() {
    let mut account = in_state(pinned("east"), State::Active, GrantPhase::Open);
    let status = account.status.as_mut().expect("a status");
    let left_out = "Secret: the credential may not list and watch it";
    let caching = conditions::caching_condition(&[], Some(("a-1", Some(left_out))), 1, &Time(at(-60)));
    status.conditions.retain(|condition| condition.type_ != conditions::CACHING);
    status.conditions.push(caching);
    let explanation = explain(&account, Some(&[]), now());
    assert_says(&explanation, left_out);
    assert_says(&explanation, "Grant the account's credential list and watch");
    assert!(explanation.ready);
}

#[test]
fn an_account_whose_credential_expires_soon_says_when_and_how_to_renew_it() {
    let mut account = in_state(pinned("east"), State::Active, GrantPhase::Open);
    let status = account.status.as_mut().expect("a status");
    let told = "the token of the account's credential expires at 2027-01-01T00:00:00Z: renew it before";
    let condition = conditions::one(&[], CREDENTIAL_EXPIRING, "True", "Within7Days", told, 1, &Time(at(-60)));
    status.conditions.push(condition);
    let explanation = explain(&account, Some(&[]), now());
    assert_says(&explanation, told);
    assert_says(&explanation, "run the same command again");
    assert!(explanation.ready);
}

#[test]
fn the_command_that_shows_what_is_cached_is_advised_once() {
    let account = in_state(pinned("east"), State::Active, GrantPhase::Open);
    let mut explanation = explain(&account, Some(&[]), now());
    assert!(explanation.advice.is_empty(), "{explanation:?}");
    explanation.advise_cache();
    explanation.advise_cache();
    assert_eq!(explanation.advice.len(), 1, "{explanation:?}");
    assert_command(&explanation, "kubectl kubesvc cache prod -n spin");
}

#[test]
fn a_duplicate_and_a_foreign_row_say_what_holds_the_name() {
    let mut account = failed(plain(), FailureClass::DuplicateName, true);
    let holder = |namespace: &str| Some(NameHolder { namespace: namespace.to_owned(), name: "a".to_owned() });
    account.status.as_mut().expect("a status").name_holder = holder("other");
    assert_says(&explain(&account, Some(&[]), now()), "tried when that one is gone and a retry is asked for");
    account.status.as_mut().expect("a status").name_holder = holder("spin");
    let explanation = explain(&account, Some(&[]), now());
    assert_says(&explanation, "Another object has the account name \"prod\"");
    assert_command(&explanation, "kubectl delete ksa/prod -n spin");
    let account = failed(plain(), FailureClass::RowExists, false);
    assert_says(&explain(&account, Some(&[]), now()), "Delete the row");
    assert_says(&explain(&account, Some(&[]), now()), "kubesvc.dynamicAccounts.adoptRows: true");
}

#[test]
fn every_reason_of_failed_has_something_to_do() {
    for &class in FailureClass::ALL {
        for stalled in [false, true] {
            let explanation = explain(&failed(pinned("east"), class, stalled), Some(&[]), now());
            assert!(!explanation.waits_for.is_empty() && !explanation.advice.is_empty(), "{class}");
            assert_eq!(explanation.reason.as_deref(), Some(class.reason()));
        }
    }
}

#[test]
fn every_state_is_explained_in_every_phase() {
    let deleted = json!({"deletionTimestamp": at(-5).to_string()});
    for state in State::ALL {
        for phase in [GrantPhase::None, GrantPhase::Open, GrantPhase::Revoking] {
            for (spec, metadata) in [
                (json!({}), json!({})),
                (json!({"state": "INACTIVE"}), json!({})),
                (json!({"zoneId": "east"}), json!({})),
                (json!({}), deleted.clone()),
            ] {
                let account = in_state(account(spec, metadata), state, phase);
                let explanation = explain(&account, Some(&[]), now());
                assert!(explanation.waits_for.ends_with(['.', '?']), "{state} {phase:?}: {explanation:#?}");
            }
        }
    }
}

#[test]
fn a_revoke_names_the_agents_that_it_waits_for() {
    let account =
        in_state(account(json!({"state": "INACTIVE"}), json!({})), State::Deactivating, GrantPhase::Revoking);
    let known_agents = [agent("a-1", "east", true, true), agent("a-2", "east", false, true)];
    let explanation = explain(&account, Some(&known_agents), now());
    assert_says(&explanation, "let go of the account; then it becomes INACTIVE. Connected: a-1.");
    assert_says(&explain(&account, Some(&known_agents[1..]), now()), "None of them is connected");
}

#[test]
fn a_deletion_waits_for_agents_then_for_rows_then_for_the_finalizers_of_others() {
    let deleted = |finalizers: &[&str], ago: i64| {
        account(json!({}), json!({"deletionTimestamp": at(-ago).to_string(), "finalizers": finalizers}))
    };
    let waiting = in_state(deleted(&[FINALIZER], 60), State::DeleteFailed, GrantPhase::Revoking);
    let explanation = explain(&waiting, Some(&[agent("a-1", "east", true, true)]), now());
    assert_eq!(explanation.desired, "deleted");
    assert_says(&explanation, "Connected: a-1.");
    assert_command(&explanation, "kubectl annotate ksa/prod -n spin kubesvc.io/force-delete=true");
    let rows = in_state(deleted(&[FINALIZER], 60), State::Deleting, GrantPhase::None);
    assert_says(&explain(&rows, Some(&[]), now()), "rows have to go");
    let others = in_state(deleted(&["foregroundDeletion"], 60), State::Deleting, GrantPhase::None);
    assert_says(&explain(&others, Some(&[]), now()), "finalizers of others are gone: foregroundDeletion");
}

#[test]
fn a_deletion_that_no_operator_has_seen_says_so() {
    let deleted = json!({"deletionTimestamp": at(-300).to_string()});
    let account = in_state(account(json!({}), deleted), State::Active, GrantPhase::Open);
    let explanation = explain(&account, Some(&[]), now());
    assert_says(&explanation, "asked for 5m ago, and no operator has acted on it");
    assert_says(&explanation, "uninstalled for good");
}

#[test]
fn an_object_that_no_operator_has_seen_says_that_none_runs_once_it_is_old_enough() {
    let mut unseen = plain();
    unseen.status = serde_json::from_value(json!({"observedGeneration": -1})).expect("a status");
    let explanation = explain(&unseen, Some(&[]), now());
    assert!(!explanation.ready, "nobody has said so: {explanation:#?}");
    assert_says(&explanation, "No operator has seen the account, for 10m");
    assert_says(&explanation, "kubesvc.watchNamespaces has spin");
    unseen.metadata.creation_timestamp = Some(Time(at(-2)));
    assert_says(&explain(&unseen, Some(&[]), now()), "just made");
}

#[test]
fn a_change_or_a_retry_that_is_not_handled_asks_whether_the_operator_runs() {
    let mut changed = in_state(pinned("east"), State::Active, GrantPhase::Open);
    changed.metadata.generation = Some(2);
    assert_says(&explain(&changed, Some(&[]), now()), "last change of its spec is not handled");
    let asked = account(json!({}), json!({"annotations": {"kubesvc.io/retry": "01J"}}));
    let asked = failed(asked, FailureClass::Timeout, true);
    assert_says(&explain(&asked, Some(&[]), now()), "retry was asked for");
}

#[test]
fn a_zone_that_is_awaited_is_named_with_the_one_it_stays_in() {
    let mut account = in_state(pinned("west"), State::Active, GrantPhase::Open);
    let story = ConditionSummary::of_state(State::Active, account.desired())
        .still_reconciling("ZoneAwaited", "moves when an agent of zone west connects".to_owned());
    let status = account.status.as_mut().expect("a status");
    status.conditions = standard_conditions(&[], &story, true, None, 1, &Time(at(0)));
    let explanation = explain(&account, Some(&[agent("a", "east", true, true)]), now());
    assert_says(&explanation, "move to zone west, and stays in zone east");
    assert_says(&explanation, "Start an agent with zoneId west");
}

#[test]
fn an_account_that_is_inactive_by_wish_is_well() {
    let account =
        in_state(account(json!({"state": "INACTIVE"}), json!({})), State::Inactive, GrantPhase::None);
    let explanation = explain(&account, Some(&[]), now());
    assert_says(&explanation, "because that is wished");
    assert_eq!(explanation.reason.as_deref(), Some(state_reason(State::Inactive)));
    assert_command(&explanation, "kubectl kubesvc activate prod -n spin");
}

#[test]
fn an_orphaned_account_waits_for_an_agent_of_its_zone() {
    let account = in_state(pinned("east"), State::Orphaned, GrantPhase::Open);
    let explanation = explain(&account, Some(&[agent("a", "east", false, true)]), now());
    assert_says(&explanation, "recovers by itself");
    assert_says(&explanation, "Start an agent with zoneId east");
    assert_says(&explain(&account, Some(&[agent("a", "east", true, true)]), now()), "connected again");
}

#[test]
fn an_agent_in_another_cluster_than_the_account_is_bound_to_is_said_to_be_there() {
    let spec = json!({"kubeconfig": {"serviceAccount": true}, "zoneId": "east"});
    let mut bound = account(spec, json!({}));
    bound.status.get_or_insert_default().cluster_uid = Some("aaaaaaaa-1111".to_owned());
    let in_cluster = |cluster: &str| {
        let spec = KubesvcAgentSpec { agent_id: "agent-1".into(), zone_id: "east".into(), approved: true };
        let mut agent = KubesvcAgent::new("agent-1-east", spec);
        let status = agent.status.get_or_insert_default();
        status.connected = true;
        status.cluster_uid = Some(cluster.to_owned());
        let explanation = explain(&bound, Some(&[agent]), now());
        explanation.agents.expect("they may be read").remove(0).problem
    };
    let problem = in_cluster("bbbbbbbb-2222").expect("it is told");
    assert!(
        problem.contains("cluster bbbbbbbb,") && problem.contains("bound to cluster aaaaaaaa"),
        "{problem}"
    );
    assert_eq!(in_cluster("aaaaaaaa-1111"), None);
}

#[test]
fn the_installation_that_serves_an_account_is_named_and_one_that_was_asked_to_and_does_not() {
    let mut account = in_state(pinned("east"), State::Active, GrantPhase::Open);
    assert_eq!(explain(&account, None, now()).served_by, None);
    account.status.get_or_insert_default().operator =
        Some(Installation { namespace: "spin".to_owned(), uid: "1".to_owned() });
    let asked = |namespace: &str| {
        let mut account = account.clone();
        let annotation = (OPERATOR_ANNOTATION.to_owned(), namespace.to_owned());
        account.metadata.annotations.get_or_insert_default().extend([annotation]);
        explain(&account, None, now())
    };
    assert_eq!(asked("spin").served_by.as_deref(), Some("spin"));
    assert_eq!(asked("spin").advice, explain(&account, None, now()).advice);
    assert_says(&asked("other"), "The installation in namespace other was asked to serve it");
}

fn with_registration(account: KubesvcAccount, holds: &str, reason: &str, message: &str) -> KubesvcAccount {
    with_condition(account, SPINNAKER_REGISTERED, holds, reason, message)
}

fn with_condition(
    mut account: KubesvcAccount,
    type_: &'static str,
    holds: &str,
    reason: &str,
    message: &str,
) -> KubesvcAccount {
    let status = account.status.as_mut().expect("a status");
    status.conditions.push(conditions::one(&[], type_, holds, reason, message, 1, &Time(at(-60))));
    account
}

#[test]
fn an_account_that_clouddriver_has_not_says_why_and_what_to_do() {
    let active = || in_state(pinned("east"), State::Active, GrantPhase::Open);
    let explained = |holds: &str, reason: &str, message: &str| {
        explain(&with_registration(active(), holds, reason, message), Some(&[]), now())
    };
    for reason in RegistrationReason::ALL {
        let explanation = explained("False", reason.name(), "what Clouddriver said");
        assert_says(
            &explanation,
            &format!("Not registered in Clouddriver ({}): what Clouddriver said.", reason.name()),
        );
        if let Some(remedy) = reason.remedy() {
            assert_says(&explanation, remedy);
        }
        assert!(explanation.ready, "it is no part of Ready");
    }
    // Of a newer operator.
    assert_says(&explained("False", "Unheard", "new"), "(Unheard): new.");
    let registered = explained("True", "Pushed", "Clouddriver has the account");
    assert!(!says(&registered, "Clouddriver"), "{registered:#?}");
}

#[test]
fn an_account_that_clouddriver_has_too_names_the_ways_out() {
    let migrated =
        || account(json!({"accountName": "a b"}), json!({"annotations": {"kubesvc.io/source": "sql"}}));
    let explained = |holds: &str| {
        let account = in_state(migrated(), State::Active, GrantPhase::Open);
        explain(&with_condition(account, CLOUDDRIVER_ALSO, holds, "R", "m"), Some(&[]), now())
    };
    let also = explained("True");
    assert_says(&also, "Clouddriver has the account too (source sql), and only Clouddriver deploys to it.");
    assert_says(&also, "DELETE /credentials/a%20b, sent to Clouddriver itself. Spinnaker then no longer");
    assert_command(&also, "kubectl kubesvc kubeconfig prod -n spin -o clouddriver");
    assert!(also.ready, "it is no part of Ready");
    for holds in ["False", "Unknown"] {
        assert!(!says(&explained(holds), "Clouddriver"));
    }
}

#[test]
fn an_inactive_account_whose_kubeconfig_only_clouddriver_has_says_so_first() {
    let inactive = account(json!({"state": "INACTIVE"}), json!({}));
    let inactive = in_state(inactive, State::Inactive, GrantPhase::None);
    let without =
        with_condition(inactive.clone(), CREDENTIAL_AVAILABLE, "False", "FileOnClouddriver", "map it");
    let advice = explain(&without, Some(&[]), now()).advice;
    assert_eq!(advice[0].text, "It cannot be activated yet (FileOnClouddriver): map it.");
    let with = with_condition(inactive, CREDENTIAL_AVAILABLE, "True", "R", "m");
    assert!(!says(&explain(&with, Some(&[]), now()), "cannot be activated"));
}

#[test]
fn an_account_that_leaves_clouddriver_says_so_and_how_to_end_that() {
    let leaving = |mut account: KubesvcAccount| {
        for condition in &mut account.status.as_mut().expect("a status").conditions {
            condition.reason = LEAVING_CLOUDDRIVER.to_owned();
        }
        with_registration(account, "False", LEAVING_CLOUDDRIVER, "it is removed from Clouddriver")
    };
    let inactive = account(json!({"state": "INACTIVE"}), json!({}));
    let inactive = leaving(in_state(inactive, State::Active, GrantPhase::Open));
    let deleted = account(json!({}), json!({"deletionTimestamp": at(-30).to_string()}));
    let deleted = leaving(in_state(deleted, State::Active, GrantPhase::Open));
    for (account, shown, then) in
        [(&inactive, State::ToDeactivate, "becomes INACTIVE"), (&deleted, State::Deleting, "is deleted")]
    {
        let explanation = explain(account, Some(&[]), now());
        assert_eq!((explanation.state, explanation.ready), (shown, false));
        assert_says(
            &explanation,
            &format!("Clouddriver has to let go of it; then its agents drop it, and it {then}."),
        );
        assert_says(&explanation, "kubesvc.clouddriver.push.removalWaitSeconds");
        assert_eq!(commands(&explanation), ["kubectl kubesvc retry prod -n spin"]);
    }
}
