use std::sync::LazyLock;
use std::time::Duration;

use super::*;
use kubesvc_core::failure::{Failure, FailureClass};
use kubesvc_core::lifecycle::ClusterIdentity;
use kubesvc_core::{DesiredState, Grant, KubesvcAccountSpec, ORIGIN_AGENT, ORIGIN_LABEL};

const NOW: HubUptime = Duration::from_secs(1000);
const EPOCH: i64 = 5;
const NOW_EPOCH: GrantEpoch = GrantEpoch(EPOCH);

static ZONE: LazyLock<ZoneId> = LazyLock::new(|| "z".into());

fn view() -> SessionView<'static> {
    SessionView { zone: &ZONE, approved: true, ..SessionView::default() }
}

fn account(state: State, phase: GrantPhase, zone: &str) -> KubesvcAccount {
    let spec = KubesvcAccountSpec { state: Some(DesiredState::Active), ..Default::default() };
    let mut account = KubesvcAccount::new("one", spec);
    account.metadata.uid = Some("u".into());
    account.metadata.generation = Some(3);
    let grant = Grant { phase, zone: Some(zone.into()), generation: 3, definition: None };
    let status = KubesvcAccountStatus {
        state: Some(state),
        epoch: NOW_EPOCH,
        grant: (phase != GrantPhase::None).then_some(grant),
        ..Default::default()
    };
    account.status = Some(status);
    account
}

fn open(state: State) -> KubesvcAccount {
    account(state, GrantPhase::Open, "z")
}

fn revoking() -> KubesvcAccount {
    account(State::Deactivating, GrantPhase::Revoking, "z")
}

fn entry() -> LedgerEntry {
    LedgerEntry { name: "one".into(), ..LedgerEntry::default() }
}

fn believed(epoch: i64) -> LedgerEntry {
    LedgerEntry { believed: Some(GrantEpoch(epoch)), ..entry() }
}

fn said(epoch: i64, report: AgentReport) -> LedgerEntry {
    LedgerEntry { report: Some((GrantEpoch(epoch), report)), ..believed(epoch) }
}

fn failure() -> Failure {
    Failure::new(FailureClass::Unreachable, "no route")
}

fn decide(account: &KubesvcAccount, entry: &LedgerEntry) -> Duty {
    duty(view(), Some(account), Some(entry), NOW)
}

#[test]
fn a_wanted_account_that_was_never_sent_is_added() {
    for state in [State::Activating, State::Active, State::Orphaned] {
        assert_eq!(duty(view(), Some(&open(state)), None, NOW), Duty::Add(NOW_EPOCH), "{state}");
    }
}

#[test]
fn no_other_state_adds() {
    for state in State::ALL {
        if matches!(state, State::Activating | State::Active | State::Orphaned) {
            continue;
        }
        assert_eq!(duty(view(), Some(&open(state)), None, NOW), Duty::Nothing, "{state}");
    }
}

#[test]
fn nothing_is_added_without_an_open_grant_for_the_zone() {
    let elsewhere = account(State::Active, GrantPhase::Open, "other");
    assert_eq!(duty(view(), Some(&elsewhere), None, NOW), Duty::Nothing);
    let none = account(State::Active, GrantPhase::None, "z");
    assert_eq!(duty(view(), Some(&none), None, NOW), Duty::Nothing);
}

#[test]
fn an_agent_that_is_not_approved_gets_nothing_and_keeps_nothing() {
    let view = SessionView { approved: false, ..view() };
    assert_eq!(duty(view, Some(&open(State::Active)), None, NOW), Duty::Nothing);
    assert_eq!(duty(view, Some(&open(State::Active)), Some(&believed(EPOCH)), NOW), Duty::Drop(NOW_EPOCH));
    assert_eq!(duty(view, Some(&open(State::Failed)), Some(&believed(EPOCH)), NOW), Duty::Drop(NOW_EPOCH));
}

#[test]
fn an_agent_that_is_stopping_gets_nothing_new() {
    let view = SessionView { draining: true, ..view() };
    assert_eq!(duty(view, Some(&open(State::Active)), None, NOW), Duty::Nothing);
    assert_eq!(duty(view, Some(&revoking()), Some(&believed(4)), NOW), Duty::Drop(NOW_EPOCH));
}

#[test]
fn an_object_whose_generation_is_not_the_grants_waits_for_the_leader() {
    let mut account = open(State::Activating);
    account.metadata.generation = Some(4);
    assert_eq!(duty(view(), Some(&account), None, NOW), Duty::Nothing);
}

#[test]
fn account_held_under_the_current_epoch_needs_nothing() {
    let held = said(EPOCH, AgentReport::Held(ClusterIdentity::default()));
    assert_eq!(decide(&open(State::Active), &held), Duty::Nothing);
}

#[test]
fn account_held_under_an_older_epoch_is_sent_again() {
    let held = said(EPOCH - 1, AgentReport::Held(ClusterIdentity::default()));
    assert_eq!(decide(&open(State::Activating), &held), Duty::Add(NOW_EPOCH));
}

#[test]
fn claimed_account_is_sent_again_to_learn_its_cluster() {
    assert_eq!(decide(&open(State::Active), &believed(EPOCH)), Duty::Add(NOW_EPOCH));
}

#[test]
fn a_command_is_not_repeated_while_it_is_under_way() {
    for command in [PendingCommand::Prepare(NOW_EPOCH), PendingCommand::Add(NOW_EPOCH)] {
        let entry = LedgerEntry { command: Some(command), ..believed(EPOCH) };
        assert_eq!(decide(&open(State::Activating), &entry), Duty::Nothing, "{command:?}");
    }
}

#[test]
fn a_newer_epoch_supersedes_an_add_under_way() {
    let entry =
        LedgerEntry { command: Some(PendingCommand::Add(GrantEpoch(EPOCH - 1))), ..believed(EPOCH - 1) };
    assert_eq!(decide(&open(State::Activating), &entry), Duty::Add(NOW_EPOCH));
}

#[test]
fn an_add_never_overtakes_a_drop() {
    let entry =
        LedgerEntry { command: Some(PendingCommand::Drop(GrantEpoch(EPOCH - 1))), ..believed(EPOCH - 2) };
    assert_eq!(decide(&open(State::Activating), &entry), Duty::Nothing);
}

#[test]
fn an_epoch_that_failed_is_not_sent_again_while_activating() {
    let failed = LedgerEntry {
        retry: Some(RetryAt {
            epoch: NOW_EPOCH,
            count: 1,
            at: NOW - Duration::from_secs(1),
            wrong_cluster: false,
        }),
        ..said(EPOCH, AgentReport::Failed(failure()))
    };
    assert_eq!(decide(&open(State::Activating), &failed), Duty::Nothing);
    assert_eq!(decide(&open(State::Orphaned), &failed), Duty::Nothing);
}

#[test]
fn in_active_a_session_that_failed_is_asked_again_when_it_is_time() {
    let at = NOW + Duration::from_secs(10);
    let mut failed = said(EPOCH, AgentReport::Failed(failure()));
    failed.retry = Some(RetryAt { epoch: NOW_EPOCH, count: 1, at, wrong_cluster: false });
    assert_eq!(decide(&open(State::Active), &failed), Duty::Later(at));
    failed.retry = Some(RetryAt { epoch: NOW_EPOCH, count: 1, at: NOW, wrong_cluster: false });
    assert_eq!(decide(&open(State::Active), &failed), Duty::Add(NOW_EPOCH));
}

#[test]
fn lost_account_is_added_again_in_every_wanted_state() {
    for state in [State::Activating, State::Active, State::Orphaned] {
        let lost = said(EPOCH, AgentReport::Lost(failure()));
        assert_eq!(decide(&open(state), &lost), Duty::Add(NOW_EPOCH), "{state}");
    }
}

#[test]
fn a_new_epoch_does_not_wait_for_the_pace_of_the_old_one() {
    let mut failed = said(EPOCH - 1, AgentReport::Failed(failure()));
    failed.retry = Some(RetryAt {
        epoch: GrantEpoch(EPOCH - 1),
        count: 4,
        at: NOW + Duration::from_secs(60),
        wrong_cluster: false,
    });
    assert_eq!(decide(&open(State::Activating), &failed), Duty::Add(NOW_EPOCH));
}

#[test]
fn failed_under_an_open_grant_neither_adds_nor_drops() {
    for entry in [entry(), believed(EPOCH), said(EPOCH, AgentReport::Failed(failure()))] {
        assert_eq!(decide(&open(State::Failed), &entry), Duty::Nothing, "{entry:?}");
    }
}

#[test]
fn a_revoke_drops_what_may_be_held() {
    assert_eq!(decide(&revoking(), &believed(EPOCH - 1)), Duty::Drop(NOW_EPOCH));
    assert_eq!(
        decide(&revoking(), &said(EPOCH - 1, AgentReport::Held(ClusterIdentity::default()))),
        Duty::Drop(NOW_EPOCH)
    );
    let sent =
        LedgerEntry { command: Some(PendingCommand::Add(GrantEpoch(EPOCH - 1))), ..believed(EPOCH - 1) };
    assert_eq!(decide(&revoking(), &sent), Duty::Drop(NOW_EPOCH), "an Add under way is superseded");
}

#[test]
fn a_revoke_reaches_what_is_held_under_a_later_epoch() {
    assert_eq!(decide(&revoking(), &believed(EPOCH + 4)), Duty::Drop(GrantEpoch(EPOCH + 4)));
}

#[test]
fn revoke_reports_dropped_for_accounts_never_sent() {
    assert_eq!(duty(view(), Some(&revoking()), None, NOW), Duty::ReportDropped(NOW_EPOCH));
    assert_eq!(decide(&revoking(), &entry()), Duty::ReportDropped(NOW_EPOCH));
    let prepared = LedgerEntry { command: Some(PendingCommand::Prepare(GrantEpoch(EPOCH - 1))), ..entry() };
    assert_eq!(decide(&revoking(), &prepared), Duty::ReportDropped(NOW_EPOCH));
    let dropped = LedgerEntry { report: Some((GrantEpoch(EPOCH - 1), AgentReport::Dropped)), ..entry() };
    assert_eq!(
        decide(&revoking(), &dropped),
        Duty::ReportDropped(NOW_EPOCH),
        "an older Dropped does not count"
    );
}

#[test]
fn a_revoke_that_is_answered_or_under_way_is_left_alone() {
    let dropped = LedgerEntry { report: Some((NOW_EPOCH, AgentReport::Dropped)), ..entry() };
    assert_eq!(decide(&revoking(), &dropped), Duty::Nothing);
    let under_way = LedgerEntry { command: Some(PendingCommand::Drop(NOW_EPOCH)), ..believed(EPOCH - 1) };
    assert_eq!(decide(&revoking(), &under_way), Duty::Nothing);
}

#[test]
fn a_drop_that_failed_waits_for_the_next_epoch() {
    let mut failed = said(EPOCH - 1, AgentReport::Failed(failure()));
    failed.drop_failed = Some(NOW_EPOCH);
    assert_eq!(decide(&revoking(), &failed), Duty::Nothing);
    failed.drop_failed = Some(GrantEpoch(EPOCH - 1));
    assert_eq!(decide(&revoking(), &failed), Duty::Drop(NOW_EPOCH));
}

#[test]
fn account_granted_to_another_zone_or_none_is_dropped() {
    for account in
        [account(State::Active, GrantPhase::Open, "other"), account(State::Inactive, GrantPhase::None, "")]
    {
        assert_eq!(decide(&account, &believed(EPOCH - 1)), Duty::Drop(NOW_EPOCH));
        assert_eq!(decide(&account, &entry()), Duty::Forget);
    }
}

#[test]
fn an_account_without_an_object_is_dropped() {
    assert_eq!(duty(view(), None, Some(&believed(7)), NOW), Duty::Drop(GrantEpoch(7)));
    assert_eq!(duty(view(), None, Some(&entry()), NOW), Duty::Forget);
    assert_eq!(duty(view(), None, None, NOW), Duty::Nothing);
}

#[test]
fn a_drop_without_a_grant_that_failed_is_tried_again_at_its_pace() {
    let at = NOW + Duration::from_secs(10);
    let again = Some(RetryAt { epoch: GrantEpoch(7), count: 1, at, wrong_cluster: false });
    let mut failed = LedgerEntry { drop_failed: Some(GrantEpoch(7)), retry: again, ..believed(7) };
    assert_eq!(duty(view(), None, Some(&failed), NOW), Duty::Later(at));
    failed.retry = Some(RetryAt { epoch: GrantEpoch(7), count: 1, at: NOW, wrong_cluster: false });
    assert_eq!(duty(view(), None, Some(&failed), NOW), Duty::Drop(GrantEpoch(7)));
}

#[test]
fn nothing_is_dropped_before_all_objects_were_seen() {
    let view = SessionView { synced: false, ..view() };
    assert_eq!(duty(view, None, Some(&believed(7)), NOW), Duty::Nothing);
    assert_eq!(duty(view, Some(&revoking()), Some(&believed(4)), NOW), Duty::Nothing);
    assert_eq!(duty(view, None, Some(&entry()), NOW), Duty::Nothing);
}

fn in_cluster(name: &str) -> LedgerEntry {
    let identity = ClusterIdentity { cluster_uid: name.to_owned(), ..ClusterIdentity::default() };
    said(EPOCH, AgentReport::Held(identity))
}

fn bound(state: State) -> KubesvcAccount {
    let mut account = open(state);
    account.status.get_or_insert_default().cluster_uid = Some("prod".to_owned());
    account
}

#[test]
fn account_held_in_the_wrong_cluster_is_dropped_in_every_open_state() {
    for state in [State::Activating, State::Active, State::Orphaned, State::Failed] {
        assert_eq!(
            decide(&bound(state), &in_cluster("staging")),
            Duty::DropFromWrongCluster(NOW_EPOCH),
            "{state}"
        );
        assert_eq!(decide(&bound(state), &in_cluster("prod")), Duty::Nothing, "{state}");
        assert_eq!(decide(&open(state), &in_cluster("staging")), Duty::Nothing, "{state}: not bound yet");
    }
    let stopping = SessionView { draining: true, ..view() };
    let account = bound(State::Active);
    assert_eq!(
        duty(stopping, Some(&account), Some(&in_cluster("staging")), NOW),
        Duty::DropFromWrongCluster(NOW_EPOCH)
    );
}

#[test]
fn drop_from_the_wrong_cluster_is_not_repeated_while_pending() {
    let entry = LedgerEntry { command: Some(PendingCommand::Drop(NOW_EPOCH)), ..in_cluster("staging") };
    assert_eq!(decide(&bound(State::Active), &entry), Duty::Nothing);
}

#[test]
fn a_wrong_cluster_report_of_an_older_epoch_is_answered_by_the_newer_definition() {
    let mut older = in_cluster("staging");
    older.report = older.report.map(|(_, report)| (GrantEpoch(EPOCH - 1), report));
    assert_eq!(decide(&bound(State::Activating), &older), Duty::Add(NOW_EPOCH));
}

#[test]
fn revoke_waits_for_an_agent_whose_approval_was_withdrawn() {
    let view = SessionView { approved: false, ..view() };
    let owed = |entry: Option<&LedgerEntry>| duty(view, Some(&revoking()), entry, NOW);
    assert_eq!(owed(None), Duty::ReportDropped(NOW_EPOCH));
    assert_eq!(owed(Some(&believed(EPOCH))), Duty::Drop(NOW_EPOCH));
    let sent =
        LedgerEntry { command: Some(PendingCommand::Add(GrantEpoch(EPOCH - 1))), ..believed(EPOCH - 1) };
    assert_eq!(owed(Some(&sent)), Duty::Drop(NOW_EPOCH));
    let elsewhere = account(State::Deactivating, GrantPhase::Revoking, "other");
    assert_eq!(duty(view, Some(&elsewhere), None, NOW), Duty::Nothing);
}

fn listed(state: State) -> KubesvcAccount {
    let mut account = open(state);
    account.metadata.labels = Some([(ORIGIN_LABEL.to_owned(), ORIGIN_AGENT.to_owned())].into());
    account
}

#[test]
fn an_account_of_an_agents_own_file_is_sent_to_no_agent_that_does_not_list_it_itself() {
    let account = listed(State::Activating);
    let of = |lists, entry: Option<&LedgerEntry>| {
        duty(SessionView { lists, ..view() }, Some(&account), entry, NOW)
    };
    assert_eq!(of(Some(true), None), Duty::Add(NOW_EPOCH));
    assert_eq!(of(Some(false), None), Duty::Nothing);
    assert_eq!(of(None, None), Duty::Nothing, "it has not sent its list yet");
    let holds = said(EPOCH, AgentReport::Held(ClusterIdentity::default()));
    assert_eq!(of(None, Some(&holds)), Duty::Nothing);
    assert_eq!(of(Some(false), Some(&holds)), Duty::Drop(NOW_EPOCH), "what it may hold from before goes");
    assert_eq!(of(Some(true), Some(&holds)), Duty::Nothing);
}

#[test]
fn an_account_of_the_agents_own_cluster_is_sent_to_none_in_another_than_it_is_bound_to() {
    let mut account = open(State::Active);
    account.spec.kubeconfig.service_account = Some(true);
    let of = |account: &KubesvcAccount, cluster_uid| {
        duty(SessionView { cluster_uid, ..view() }, Some(account), None, NOW)
    };
    assert_eq!(of(&account, "other"), Duty::Add(NOW_EPOCH), "it is bound to none");
    account.status.get_or_insert_default().cluster_uid = Some("own".into());
    assert_eq!((of(&account, "own"), of(&account, "")), (Duty::Add(NOW_EPOCH), Duty::Add(NOW_EPOCH)));
    assert_eq!(of(&account, "other"), Duty::Nothing);
    account.spec.kubeconfig.service_account = None;
    assert_eq!(of(&account, "other"), Duty::Add(NOW_EPOCH), "its kubeconfig says where it is");
}
