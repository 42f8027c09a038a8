use serde_json::json;

use super::*;

/// An account of generation 2 in this state, observed by the operator.
fn account(name: &str, state: &str, stalled: bool) -> KubesvcAccount {
    let ready = state == "ACTIVE";
    let condition = |type_: &str, holds: bool| {
        json!({"type": type_, "status": if holds { "True" } else { "False" }, "reason": "R", "message": "the message",
               "lastTransitionTime": "2026-01-01T00:00:00Z"})
    };
    serde_json::from_value(json!({
        "apiVersion": "kubesvc.io/v1alpha1", "kind": "KubesvcAccount",
        "metadata": {"name": name, "namespace": "spin", "uid": format!("uid-{name}"), "generation": 2},
        "spec": {"kubeconfig": {"serviceAccount": true}},
        "status": {"state": state, "observedGeneration": 2,
                   "conditions": [condition("Ready", ready), condition("Stalled", stalled)]},
    }))
    .expect("an account")
}

fn progress(goal: Goal, keep_going: bool, accounts: &[KubesvcAccount]) -> GoalProgress {
    GoalProgress::new(goal, keep_going, accounts.iter())
}

#[test]
fn all_there_is_the_end() {
    let mut progress =
        progress(Goal::Ready, false, &[account("a", "ACTIVATING", false), account("b", "ACTIVE", false)]);
    assert_eq!(progress.take_lines(), ["kubesvcaccount.kubesvc.io/b is ready (ACTIVE)"]);
    assert_eq!((progress.ending(), progress.met(), progress.counts()), (None, 1, "1 ACTIVATING".to_owned()));
    progress.event(&Event::Apply(account("a", "ACTIVE", false)));
    assert_eq!(progress.ending(), Some(WaitEnding::AllMet));
    assert_eq!(progress.take_lines().len(), 1);
}

#[test]
fn one_that_is_stalled_ends_it_unless_the_others_are_waited_for() {
    let accounts = [account("a", "ACTIVATING", false), account("b", "FAILED", true)];
    let stalled = progress(Goal::Active, false, &accounts);
    assert_eq!(stalled.ending(), Some(WaitEnding::Stalled));
    assert_eq!(stalled.left(), ["b is FAILED: the message", "a is ACTIVATING: the message"]);
    let mut patient = progress(Goal::Active, true, &accounts);
    assert_eq!(patient.ending(), None);
    patient.event(&Event::Apply(account("b", "ACTIVE", false)));
    patient.event(&Event::Apply(account("a", "ACTIVE", false)));
    assert_eq!(patient.ending(), Some(WaitEnding::AllMet));
}

#[test]
fn what_the_operator_has_not_seen_is_neither_there_nor_stalled() {
    let mut changed = account("a", "FAILED", true);
    changed.metadata.generation = Some(3);
    assert_eq!(progress(Goal::Ready, false, &[changed]).ending(), None);
    let mut active = account("a", "ACTIVE", false);
    active.metadata.generation = Some(3);
    assert_eq!(progress(Goal::Ready, false, &[active]).met(), 0);
    let mut asked = account("a", "FAILED", true);
    asked.metadata.annotations = Some([(RETRY_ANNOTATION.to_owned(), "1".to_owned())].into());
    assert_eq!(progress(Goal::Ready, false, &[asked]).ending(), None);
}

#[test]
fn an_account_that_goes_away_ends_the_waiting_for_anything_but_that() {
    let mut lost = progress(Goal::Ready, true, &[account("a", "ACTIVATING", false)]);
    lost.event(&Event::Delete(account("a", "ACTIVATING", false)));
    assert_eq!(lost.ending(), Some(WaitEnding::Stalled));
    assert_eq!(lost.left(), ["a is DELETING: it was deleted in the meantime"]);
    let mut wanted =
        progress(Goal::Deleted, false, &[account("a", "ACTIVE", false), account("b", "ACTIVE", false)]);
    wanted.event(&Event::Delete(account("a", "ACTIVE", false)));
    let mut anew = account("b", "ACTIVE", false);
    anew.metadata.uid = Some("another".to_owned());
    wanted.event(&Event::Apply(anew));
    assert_eq!(wanted.ending(), Some(WaitEnding::AllMet));
}

#[test]
fn a_deletion_that_the_watch_missed_shows_in_the_next_list() {
    let mut progress =
        progress(Goal::Deleted, false, &[account("a", "ACTIVE", false), account("b", "ACTIVE", false)]);
    progress.event(&Event::Init);
    progress.event(&Event::InitApply(account("b", "ACTIVE", false)));
    progress.event(&Event::InitDone);
    assert_eq!((progress.met(), progress.ending()), (1, None));
    assert_eq!(progress.take_lines(), ["kubesvcaccount.kubesvc.io/a deleted"]);
}

#[test]
fn inactive_by_wish_is_what_is_waited_for_and_not_what_another_sees() {
    let mut inactive = account("a", "INACTIVE", false);
    assert_eq!(
        progress(Goal::Inactive, false, std::slice::from_ref(&inactive)).met(),
        0,
        "it is to be ACTIVE"
    );
    inactive.spec.state = Some(kubesvc_core::DesiredState::Inactive);
    assert_eq!(progress(Goal::Inactive, false, &[inactive]).ending(), Some(WaitEnding::AllMet));
}
