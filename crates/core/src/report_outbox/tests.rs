use super::*;
use crate::{Grant, KubesvcAccountSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

mod packing;

fn account(state: State, phase: GrantPhase, epoch: i64) -> KubesvcAccount {
    let mut account = KubesvcAccount::new("a", KubesvcAccountSpec::default());
    account.metadata.uid = Some("u".into());
    account.metadata.generation = Some(3);
    let grant = Grant { phase, zone: Some("z".into()), generation: 3, definition: None };
    account.status = Some(KubesvcAccountStatus {
        state: Some(state),
        epoch: GrantEpoch(epoch),
        grant: (phase != GrantPhase::None).then_some(grant),
        ..KubesvcAccountStatus::default()
    });
    account
}

fn failure() -> Failure {
    Failure::new(FailureClass::Unreachable, "x".repeat(2000))
}

fn all_reports() -> [AgentReport; 4] {
    [
        AgentReport::Held(ClusterIdentity::default()),
        AgentReport::Failed(failure()),
        AgentReport::Dropped,
        AgentReport::Lost(failure()),
    ]
}

fn awaited(account: &KubesvcAccount, zone: &str, session_report: SessionReport<'_>) -> Option<OutboxEntry> {
    super::awaited(account, &ZoneId::from(zone), session_report).map(|awaited| awaited.entry)
}

fn results(state: State, phase: GrantPhase, zone: &str) -> Vec<OutboxResult> {
    let account = account(state, phase, 4);
    let entries = all_reports().map(|report| {
        awaited(
            &account,
            zone,
            SessionReport { report: Some(&(GrantEpoch(4), report)), ..SessionReport::default() },
        )
    });
    entries.into_iter().flatten().map(|entry| entry.result).collect()
}

#[test]
fn only_what_the_status_waits_for_is_said() {
    use OutboxResult::{Dropped, Failed, Held, Lost};
    for state in [State::Activating, State::Orphaned] {
        assert_eq!(results(state, GrantPhase::Open, "z"), [Held, Failed, Lost], "{state}");
    }
    assert_eq!(results(State::Failed, GrantPhase::Open, "z"), [Held], "that it failed is known");
    assert_eq!(results(State::Active, GrantPhase::Open, "z"), [Failed, Lost]);
    for state in [State::Activating, State::Deactivating, State::Failed, State::Deleting, State::DeleteFailed]
    {
        assert_eq!(results(state, GrantPhase::Revoking, "z"), [Failed, Dropped], "{state}");
    }
    for state in [State::Inactive, State::ToMigrate, State::Failed] {
        assert_eq!(results(state, GrantPhase::None, "z"), [], "{state}");
    }
    assert_eq!(results(State::Activating, GrantPhase::Open, "y"), [], "another zone has the grant");
}

#[test]
fn held_account_whose_credential_is_refused_is_said_while_active_and_does_not_stand() {
    let refused = Some(Failure::new(FailureClass::Auth, "401"));
    let report = AgentReport::Held(ClusterIdentity { refused, ..ClusterIdentity::default() });
    let report = (GrantEpoch(4), report);
    for (state, need) in
        [(State::Active, AnswerUrgency::Failed), (State::Failed, AnswerUrgency::StandingHeld)]
    {
        let account = account(state, GrantPhase::Open, 4);
        let said = SessionReport { report: Some(&report), ..SessionReport::default() };
        let AwaitedEntry { entry, need: urgency } =
            super::awaited(&account, &ZoneId::from("z"), said).expect("the leader acts on it");
        assert_eq!((urgency, entry.report()), (need, Some(report.clone())));
        let wire: OutboxEntry = serde_json::from_value(serde_json::json!(entry)).expect("it is read back");
        assert_eq!(wire.report(), Some(report.clone()));
        assert!(!entry.may_stand(Some(&account)), "it would fail the account that is accepted again");
    }
}

#[test]
fn a_report_for_another_epoch_is_left_out_and_a_later_drop_is_not() {
    let session_report = |epoch: i64, report: AgentReport, account: &KubesvcAccount| {
        awaited(
            account,
            "z",
            SessionReport { report: Some(&(GrantEpoch(epoch), report)), ..SessionReport::default() },
        )
        .map(|entry| entry.epoch)
    };
    let open = account(State::Activating, GrantPhase::Open, 4);
    let revoking = account(State::Deactivating, GrantPhase::Revoking, 4);
    for epoch in [3, 5] {
        assert_eq!(session_report(epoch, AgentReport::Held(ClusterIdentity::default()), &open), None);
    }
    assert_eq!(session_report(3, AgentReport::Dropped, &revoking), None);
    assert_eq!(session_report(5, AgentReport::Dropped, &revoking), Some(GrantEpoch(5)));
}

#[test]
fn who_is_overdue_has_failed_until_it_says_something() {
    let account = account(State::Activating, GrantPhase::Open, 4);
    let late = Failure::new(FailureClass::Timeout, "no answer");
    let overdue = SessionReport { overdue: Some(&late), ..SessionReport::default() };
    let entry = awaited(&account, "z", overdue).expect("it is awaited");
    assert_eq!(entry.report(), Some((GrantEpoch(4), AgentReport::Failed(late.clone()))));
    let report = (GrantEpoch(4), AgentReport::Held(ClusterIdentity::default()));
    let entry =
        awaited(&account, "z", SessionReport { report: Some(&report), ..overdue }).expect("it is awaited");
    assert_eq!(entry.result, OutboxResult::Held);
}

#[test]
fn a_credential_mismatch_is_reported_until_the_agent_has_answered() {
    let mismatched = SessionReport { credential_mismatch: true, ..SessionReport::default() };
    for state in [State::Activating, State::Active, State::Orphaned] {
        let account = account(state, GrantPhase::Open, 4);
        let entry = awaited(&account, "z", mismatched).expect("it is awaited");
        let json = serde_json::to_string(&entry).expect("it is JSON");
        let read: OutboxEntry = serde_json::from_str(&json).expect("it is an entry");
        assert_eq!(
            (read.is_credential_mismatch(), read.report(), read.offer(&account)),
            (Some(GrantEpoch(4)), None, None),
            "{state}"
        );
        assert!(!read.may_stand(Some(&account)));
        let report = (
            GrantEpoch(4),
            AgentReport::Failed(Failure::new(FailureClass::CredentialDiffers, "they differ")),
        );
        let entry = awaited(&account, "z", SessionReport { report: Some(&report), ..mismatched })
            .expect("it is awaited");
        assert_eq!(
            (entry.is_credential_mismatch(), entry.report()),
            (Some(GrantEpoch(4)), Some(report)),
            "{state}"
        );
    }
    assert_eq!(awaited(&account(State::Failed, GrantPhase::Open, 4), "z", mismatched), None);
    assert_eq!(awaited(&account(State::Deactivating, GrantPhase::Revoking, 4), "z", mismatched), None);
    assert_eq!(OutboxEntry::failed("u", GrantEpoch(4), &failure()).is_credential_mismatch(), None);
}

#[test]
fn a_failed_account_gets_one_report_of_another_cluster() {
    let mismatch =
        (GrantEpoch(4), AgentReport::Failed(Failure::new(FailureClass::ClusterMismatch, "another one")));
    let session_report = SessionReport { report: Some(&mismatch), ..SessionReport::default() };
    let mut failed = account(State::Failed, GrantPhase::Open, 4);
    let entry = awaited(&failed, "z", session_report).expect("it is news");
    assert_eq!(entry.report().map(|(epoch, _)| epoch), Some(GrantEpoch(4)));
    let reason = FailureClass::ClusterMismatch.reason().to_owned();
    let time = Time(jiff::Timestamp::UNIX_EPOCH);
    let ready = Condition {
        type_: "Ready".into(),
        status: "False".into(),
        reason,
        message: String::new(),
        last_transition_time: time,
        observed_generation: None,
    };
    failed.status.get_or_insert_default().conditions = vec![ready];
    assert_eq!(awaited(&failed, "z", session_report), None);
    let late = Failure::new(FailureClass::Timeout, "no answer");
    assert_eq!(
        awaited(&failed, "z", SessionReport { overdue: Some(&late), ..SessionReport::default() }),
        None
    );
}

#[test]
fn an_offer_is_said_while_the_account_asks() {
    let offers = SessionReport { offers: true, ..SessionReport::default() };
    let mut asking = account(State::ToMigrate, GrantPhase::None, 4);
    let entry = awaited(&asking, "y", offers).expect("it asks");
    assert_eq!((entry.offer(&asking), entry.report()), (Some((3, Offer::Yes)), None));
    assert_eq!(awaited(&account(State::Inactive, GrantPhase::None, 4), "y", offers), None);
    asking.spec.zone_id = Some("z".into());
    assert_eq!(awaited(&asking, "y", offers), None, "it is pinned by now");
}

/// After FAILED `ZoneAmbiguous` an account starts a new round without a failed attempt, and under the same epoch.
#[test]
fn an_offer_counts_in_the_round_it_was_made_in_and_may_not_stand_while_another_goes_on() {
    let asking = account(State::ToMigrate, GrantPhase::None, 4);
    let entry = awaited(&asking, "y", SessionReport { offers: true, ..SessionReport::default() })
        .expect("it is awaited");
    let after = |change: &dyn Fn(&mut KubesvcAccountStatus)| {
        let mut account = asking.clone();
        change(account.status.get_or_insert_default());
        account
    };
    let later = Time(jiff::Timestamp::from_second(1_000_000).expect("a time"));
    let rounds = [
        after(&|status| status.last_transition_time = Some(later.clone())),
        after(&|status| status.failed_count = 1),
        after(&|status| status.epoch = GrantEpoch(5)),
        after(&|status| status.retry_handled = Some("now".into())),
        after(&|status| status.credential_version = Some("secret/2".into())),
    ];
    for next in rounds {
        assert_eq!(entry.offer(&next), None, "{:?}", next.status);
        assert!(!entry.may_stand(Some(&next)));
    }
    assert!(!entry.may_stand(Some(&asking)), "who says so no more has taken it back");
    assert!(entry.may_stand(Some(&account(State::Activating, GrantPhase::Open, 5))));
    let without = OutboxEntry { round: None, ..entry };
    assert_eq!(without.offer(&asking), None);
}

#[test]
fn a_report_survives_the_round_trip_through_an_object() {
    for report in all_reports() {
        let entry = OutboxEntry::of("u", GrantEpoch(4), &report);
        let json = serde_json::to_string(&entry).expect("it is JSON");
        let read: OutboxEntry = serde_json::from_str(&json).expect("it is an entry");
        let (epoch, read) = read.report().expect("it is a word");
        assert_eq!((epoch.0, std::mem::discriminant(&read)), (4, std::mem::discriminant(&report)));
        if let AgentReport::Failed(failure) | AgentReport::Lost(failure) = read {
            assert_eq!((failure.class, failure.message.len()), (FailureClass::Unreachable, 256));
        }
    }
}

#[test]
fn what_a_later_version_says_is_no_word() {
    let read: OutboxEntry =
        serde_json::from_str(r#"{"uid": "u", "epoch": 1, "result": "Juggled"}"#).expect("it is an entry");
    let asking = account(State::ToMigrate, GrantPhase::None, 1);
    assert_eq!((read.result, read.report(), read.offer(&asking)), (OutboxResult::Unknown, None, None));
}

/// An ACTIVE account whose elected agent, under epoch 2, leaves this out according to the object.
fn active(left_out: Option<&str>) -> KubesvcAccount {
    let mut account = account(State::Active, GrantPhase::Open, 4);
    let status = account.status.as_mut().expect("it has one");
    let (agent_id, epoch) = (Some("a".into()), CachingEpoch(2));
    status.caching = Some(crate::CachingAssignment { agent_id, epoch, boot_id: None });
    let time = Time(jiff::Timestamp::UNIX_EPOCH);
    status.conditions = vec![conditions::caching_condition(&[], Some(("a", left_out)), 1, &time)];
    account
}

fn says(report: &CachingReport) -> SessionReport<'_> {
    SessionReport { caching: Some(report), ..SessionReport::default() }
}

#[test]
fn what_is_left_out_is_told_until_the_account_says_so() {
    let report = |left_out: Option<&str>| CachingReport {
        epoch: CachingEpoch(2),
        left_out: left_out.map(str::to_owned),
        is_unreadable: false,
    };
    for (before, now) in
        [(None, Some("Pod: no")), (Some("Pod: no"), None), (Some("Pod: no"), Some("Job: no"))]
    {
        let told = report(now);
        let entry = awaited(&active(before), "z", says(&told)).expect("it is news");
        let read: OutboxEntry =
            serde_json::from_str(&serde_json::to_string(&entry).expect("JSON")).expect("an entry");
        assert_eq!((read.caching_report(), read.report()), (Some(told.clone()), None));
        assert!(!read.may_stand(Some(&active(before))) && read.may_stand(Some(&active(now))));
        assert_eq!(awaited(&active(now), "z", says(&told)), None, "it is no news");
        let other = CachingReport { epoch: CachingEpoch(1), ..told };
        assert_eq!(awaited(&active(before), "z", says(&other)), None, "of an earlier election");
    }
    let mut orphaned = active(None);
    orphaned.status.as_mut().expect("it has one").state = Some(State::Orphaned);
    assert_eq!(awaited(&orphaned, "z", says(&report(Some("Pod: no")))), None);
}

#[test]
fn agent_that_cannot_read_the_cluster_says_so_as_long_as_it_is_elected() {
    let left_out = Some("Pod: the cluster cannot be reached".to_owned());
    let told = CachingReport { epoch: CachingEpoch(2), left_out: left_out.clone(), is_unreadable: true };
    let entry =
        awaited(&active(left_out.as_deref()), "z", says(&told)).expect("another agent may be elected");
    assert_eq!(entry.caching_report(), Some(told));
    assert!(!entry.may_stand(Some(&active(left_out.as_deref()))));
}

#[test]
fn what_is_left_out_is_not_packed_without_its_reason() {
    let told = |nth: usize| CachingReport {
        epoch: CachingEpoch(2),
        left_out: Some(format!("Kind{nth}: no")),
        is_unreadable: false,
    };
    let entries = (0..MAX_DETAILED + 5).map(|nth| {
        let entry = OutboxEntry { uid: format!("u{nth:04}"), ..OutboxEntry::cache_issue("", &told(nth)) };
        AwaitedEntry { need: AnswerUrgency::Standing, entry }
    });
    let packed = packed(entries.collect(), &PackingCursor::new());
    assert_eq!(packed.entries.len(), MAX_DETAILED);
    assert!(packed.entries.iter().all(|entry| entry.reason.is_some()));
    assert_eq!(packed.next, PackingCursor::from([(AnswerUrgency::Standing, format!("u{MAX_DETAILED:04}"))]));
}
