mod invariants;

use super::*;
use kubesvc_core::lifecycle::CachingReport;
use kubesvc_core::wire::common::{Failure, Scope};
use kubesvc_core::wire::events::event::{Omitted, Operation};
use kubesvc_core::wire::events::{
    Checkpoint, Event, LeftOutObject, LeftOutObjects, ScopeDeclaration, ScopeProblem, SyncStart, Synced,
    event,
};
use kubesvc_store::{ScopeChange, ScopeKey, ScopeState, StoredScope};

const KEY: &str = "01ARZ3NDEKTSV4RRFFQ69G5FAA";
const LATER_KEY: &str = "01ARZ3NDEKTSV4RRFFQ69G5FAB";

fn declaration(scope_id: u32, kind: &str) -> ScopeDeclaration {
    let scope = Some(Scope { kind: kind.into(), version: "v1".into(), ..Scope::default() });
    ScopeDeclaration { scope_id, scope, shape: "shape".into(), filter: String::new() }
}

fn begin(kinds: &[&str], last: bool) -> Begin {
    let scopes = kinds.iter().zip(1..).map(|(kind, id)| declaration(id, kind)).collect();
    Begin { fence: None, scopes, last, delivery: 4 }
}

fn fence() -> Option<Fence> {
    Some(Fence { account_uid: "u".into(), caching_epoch: 3 })
}

fn key(text: &str) -> ScopeKey {
    text.parse().expect("a scope")
}

fn stored(kind: &str, rv: Option<&str>) -> StoredScope {
    StoredScope {
        key: key(&format!(":.{kind}")),
        cached_kind: kind.to_lowercase(),
        account_uid: "u".into(),
        resource_version: rv.map(str::to_owned),
        state: if rv.is_some() { ScopeState::Synced } else { ScopeState::Listing },
        shape: Some("shape".into()),
        filter: Some(String::new()),
        objects: Some(4),
        problem: None,
        last_updated_ms: 0,
    }
}

fn stands(committed: i64) -> StoredProgress {
    StoredProgress::Stands { committed, scopes: vec![stored("Pod", Some("7")), stored("Secret", None)] }
}

fn delivery() -> AccountReceiver {
    AccountReceiver::new("u".into(), CachingEpoch(3), 1)
}

/// An account with the scopes Pod (1), which has a checkpoint, and Secret (2).
fn flowing(committed: i64) -> AccountReceiver {
    let mut delivery = delivery();
    delivery.begin(begin(&["Pod", "Secret"], true), 1).expect("it is well-formed");
    assert_eq!(
        delivery.assigned(AssignmentState::Stands("one".into())),
        [ReceiverEffect::ReadProgress { lane: 1, added: None }]
    );
    let effects = delivery.progress(None, &stands(committed), 0, Reason::Superseded);
    let [ReceiverEffect::OpenLane(1), ReceiverEffect::Send(Frame::Resume(_)), ReceiverEffect::Report(report)] =
        &effects[..]
    else {
        unreachable!("expected Resume, got {effects:?}")
    };
    assert_eq!(*report, CachingReport { epoch: CachingEpoch(3), ..CachingReport::default() });
    delivery
}

fn batch(prev: u64, seq: u64) -> Batch {
    Batch { prev, seq, ..Batch::default() }
}

fn deleted(scope_id: u32) -> Event {
    Event { scope_id, op: Operation::Delete.into(), name: "one".into(), ..Event::default() }
}

fn sync_start(scope_id: u32, sync_key: &str) -> SyncStart {
    SyncStart { scope_id, sync_key: sync_key.into() }
}

fn synced(scope_id: u32, sync_key: &str) -> Synced {
    Synced { scope_id, sync_key: sync_key.into(), rv: "9".into(), kept: 2, sent: 3, ..Synced::default() }
}

fn take(delivery: &mut AccountReceiver, batch: Batch) -> AcceptedBatch {
    let mut effects = delivery.batch(batch, 10).expect("it is taken");
    effects.retain(|effect| !matches!(effect, ReceiverEffect::Report(_)));
    match (effects.pop(), effects.is_empty()) {
        (Some(ReceiverEffect::Queue(batch)), true) => *batch,
        other => unreachable!("expected a queued batch, got {other:?}"),
    }
}

fn ack(seq: u64) -> ReceiverEffect {
    ReceiverEffect::Send(Frame::Ack(Ack { fence: fence(), seq }))
}

fn rewind(committed_seq: u64) -> ReceiverEffect {
    ReceiverEffect::Send(Frame::Rewind(Rewind { fence: fence(), committed_seq }))
}

fn revoked(reason: Reason) -> ReceiverEffect {
    ReceiverEffect::Send(Frame::Revoked(Revoked { fence: fence(), reason: reason.into() }))
}

fn passed(delivery: &mut AccountReceiver, seq: i64) -> Vec<ReceiverEffect> {
    delivery.outcome(seq, FenceCheck::Passed, Reason::Superseded)
}

#[test]
fn begin_is_answered_once_it_is_complete_and_the_fence_stands() {
    let mut delivery = delivery();
    assert_eq!(delivery.begin(begin(&["Pod"], false), 1), Ok(Vec::new()));
    assert!(!delivery.awaits_fence());
    delivery
        .begin(Begin { scopes: vec![declaration(2, "Secret")], ..begin(&[], true) }, 9)
        .expect("it goes on");
    assert!(delivery.awaits_fence());
    assert_eq!(delivery.state(), Some(DeliveryState::Waiting));
    assert_eq!(delivery.assigned(AssignmentState::Pending), []);
    assert_eq!(
        delivery.assigned(AssignmentState::Stands("one".into())),
        [ReceiverEffect::ReadProgress { lane: 1, added: None }]
    );
    assert_eq!(delivery.assigned(AssignmentState::Stands("one".into())), [], "it is being read");
    let mut others = stands(5);
    if let StoredProgress::Stands { scopes, .. } = &mut others {
        scopes.push(stored("Node", None));
    }
    let effects = delivery.progress(None, &others, 1000, Reason::Superseded);
    let [
        ReceiverEffect::OpenLane(1),
        ReceiverEffect::Send(Frame::Resume(Resume {
            committed_seq, scopes, others, last, delivery: 4, ..
        })),
        ReceiverEffect::Report(_),
    ] = &effects[..]
    else {
        unreachable!("expected Resume, got {effects:?}")
    };
    assert_eq!((*committed_seq, *last, &others[..]), (5, true, &[":.Node".to_owned()][..]));
    let scopes: Vec<_> = scopes.iter().map(|scope| (scope.scope_id, &*scope.rv, scope.age_ms)).collect();
    assert_eq!(scopes, [(1, "7", 1000), (2, "", 1000)]);
    assert_eq!(delivery.state(), Some(DeliveryState::Listing));
}

#[test]
fn begin_waits_while_the_fence_is_lower_and_ends_where_it_is_higher_or_gone() {
    let read = |stored: StoredProgress| {
        let mut delivery = delivery();
        delivery.begin(begin(&["Pod"], true), 1).expect("it is well-formed");
        delivery.assigned(AssignmentState::Stands("one".into()));
        let effects = delivery.progress(None, &stored, 0, Reason::Reelected);
        (effects, delivery.awaits_fence(), delivery.state())
    };
    let waiting = Some(DeliveryState::Waiting);
    assert_eq!(read(StoredProgress::Lower(CachingEpoch(2))), (Vec::new(), true, waiting));
    let end = |reason| (vec![ReceiverEffect::CloseLane(1), revoked(reason)], false, None);
    assert_eq!(read(StoredProgress::Higher(CachingEpoch(4))), end(Reason::Reelected));
    assert_eq!(read(StoredProgress::Gone), end(Reason::AccountGone));
}

#[test]
fn an_account_that_is_not_assigned_is_revoked() {
    let mut delivery = delivery();
    delivery.begin(begin(&["Pod"], true), 1).expect("it is well-formed");
    let effects = delivery.assigned(AssignmentState::Revoked(Reason::Superseded));
    assert_eq!(effects, [ReceiverEffect::CloseLane(1), revoked(Reason::Superseded)]);
    assert!(delivery.is_revoked());
}

#[test]
fn a_batch_is_acknowledged_with_its_commit_and_its_bytes_released() {
    let mut delivery = flowing(5);
    assert_eq!(take(&mut delivery, batch(5, 6)).seq, 6);
    assert_eq!(take(&mut delivery, batch(6, 9)).prev, 6);
    take(&mut delivery, batch(9, 10));
    assert_eq!(passed(&mut delivery, 9), [ack(9), ReceiverEffect::Release(20)]);
    assert_eq!(
        delivery.outcome(10, FenceCheck::Done, Reason::Superseded),
        [ack(10), ReceiverEffect::Release(10)],
        "an answer that was lost counts too"
    );
}

#[test]
fn a_batch_out_of_order_or_sent_twice_is_rewound_and_what_was_sent_meanwhile_is_ignored() {
    for (prev, seq) in [(4, 5), (6, 7), (0, 9), (7, 8)] {
        let mut delivery = flowing(5);
        take(&mut delivery, batch(5, 6));
        take(&mut delivery, batch(6, 8));
        let effects = delivery.batch(batch(prev, seq), 3).expect("it is well-formed");
        let expected = [
            ReceiverEffect::Release(3),
            ReceiverEffect::Release(20),
            ReceiverEffect::CloseLane(1),
            ReceiverEffect::CountRewind,
            rewind(5),
        ];
        assert_eq!(effects, expected, "{prev} {seq}");
        assert_eq!(delivery.batch(batch(8, 9), 4), Ok(vec![ReceiverEffect::Release(4)]));
        assert_eq!(passed(&mut delivery, 6), [], "Resume will say it");
        assert_eq!(delivery.state(), Some(DeliveryState::Waiting));
        delivery.begin(begin(&["Pod"], true), 2).expect("it starts over");
        assert_eq!(delivery.lane(), 2);
        delivery.assigned(AssignmentState::Stands("one".into()));
        delivery.progress(None, &stands(6), 0, Reason::Superseded);
        assert_eq!(take(&mut delivery, batch(6, 10)).lane, 2);
    }
}

#[test]
fn a_rewind_by_the_fence_says_what_is_committed() {
    for (check, committed) in [(FenceCheck::Rewind(4), 4), (FenceCheck::Lower(CachingEpoch(2)), 0)] {
        let mut delivery = flowing(5);
        take(&mut delivery, batch(5, 6));
        let effects = delivery.outcome(6, check, Reason::Superseded);
        let expected = [
            ReceiverEffect::Release(10),
            ReceiverEffect::CloseLane(1),
            ReceiverEffect::CountRewind,
            rewind(committed),
        ];
        assert_eq!(effects, expected);
    }
}

#[test]
fn a_higher_or_missing_fence_revokes_and_releases_what_waits() {
    let checks =
        [(FenceCheck::Higher(CachingEpoch(4)), Reason::Superseded), (FenceCheck::Gone, Reason::AccountGone)];
    for (check, reason) in checks {
        let mut delivery = flowing(5);
        take(&mut delivery, batch(5, 6));
        take(&mut delivery, batch(6, 7));
        let effects = delivery.outcome(6, check, Reason::Superseded);
        assert_eq!(effects, [ReceiverEffect::Release(20), ReceiverEffect::CloseLane(1), revoked(reason)]);
        assert_eq!(delivery.batch(batch(7, 8), 5), Ok(vec![ReceiverEffect::Release(5)]));
        assert_eq!(delivery.outcome(7, check, Reason::Superseded), []);
    }
}

#[test]
fn a_batch_before_resume_closes_the_stream() {
    let mut delivery = delivery();
    delivery.begin(begin(&["Pod"], true), 1).expect("it is well-formed");
    let error = delivery.batch(batch(0, 1), 1).expect_err("it is too early");
    assert_eq!(error.to_string(), "batch 1 of account u came before the answer to Begin; wait for Resume");
}

#[test]
fn a_batch_that_breaks_the_protocol_closes_the_stream_and_names_the_account() {
    let refused = |change: &dyn Fn(&mut Batch)| {
        let mut one = batch(5, 6);
        change(&mut one);
        kubesvc_runtime::telemetry::errors::chain(&flowing(5).batch(one, 10).expect_err("it is refused"))
    };
    let undeclared = "the scopes of account u cannot be taken: scope 8 was not declared";
    assert_eq!(refused(&|batch| batch.events = vec![deleted(8)]), undeclared);
    let checkpoint = |batch: &mut Batch| batch.checkpoints = vec![Checkpoint { scope_id: 8, rv: "1".into() }];
    assert_eq!(refused(&checkpoint), undeclared);
    assert_eq!(refused(&|batch| batch.sync_starts = vec![sync_start(8, KEY)]), undeclared);
    assert_eq!(refused(&|batch| batch.synced = vec![synced(8, KEY)]), undeclared);
    assert_eq!(
        refused(&|batch| batch.sync_starts = vec![sync_start(1, "")]),
        "the list of scope 1 of account u has a key of 0 bytes; send a ULID"
    );
    assert_eq!(
        refused(&|batch| batch.removed = vec!["Pod".into()]),
        "the scopes of account u cannot be taken: \"Pod\" names no scope: <namespace>:<group>.<Kind> is expected"
    );
    let unnamed = |batch: &mut Batch| batch.events = vec![Event { name: String::new(), ..deleted(1) }];
    assert_eq!(
        refused(&unnamed),
        "batch 6 of account u cannot be taken: the object / of scope 1 cannot be taken: it has no name"
    );
}

#[test]
fn a_list_is_stored_as_begun_and_complete_and_its_basis_is_sent_after_the_commit() {
    let mut delivery = flowing(0);
    let started = take(&mut delivery, Batch { sync_starts: vec![sync_start(2, KEY)], ..batch(0, 1) });
    let [AcceptedScopeChange::Added(scope), AcceptedScopeChange::Other(begun)] = &started.scopes[..] else {
        unreachable!("got {:?}", started.scopes)
    };
    let secret = key(":.Secret");
    assert_eq!((scope.id, &*scope.shape), (2, "shape"));
    assert_eq!(*begun, ScopeChange::SyncStarted { scope: secret.clone(), sync_key: KEY.into() });
    let effects = passed(&mut delivery, 1);
    let [_, ReceiverEffect::Release(10), ReceiverEffect::SendBasis { lane: 1, scope, sync_key }] =
        &effects[..]
    else {
        unreachable!("got {effects:?}")
    };
    assert_eq!((scope.id, &**sync_key), (2, KEY));
    let events = vec![deleted(2), deleted(1)];
    let listed = take(&mut delivery, Batch { events, ..batch(1, 2) });
    assert_eq!(listed.events.iter().map(|event| event.is_listed).collect::<Vec<_>>(), [true, false]);
    let complete = take(&mut delivery, Batch { synced: vec![synced(2, KEY)], ..batch(2, 3) });
    let change =
        ScopeChange::Synced { scope: secret, sync_key: KEY.into(), resource_version: "9".into(), objects: 5 };
    assert_eq!(complete.scopes, [AcceptedScopeChange::Other(change)]);
    assert_eq!(delivery.state(), Some(DeliveryState::Listing), "it is not committed yet");
    passed(&mut delivery, 3);
    assert_eq!(delivery.state(), Some(DeliveryState::Synced));
}

#[test]
fn a_list_that_was_begun_again_has_one_basis_and_its_first_end_does_not_count() {
    let mut delivery = flowing(0);
    take(&mut delivery, Batch { sync_starts: vec![sync_start(1, KEY)], ..batch(0, 1) });
    take(&mut delivery, Batch { sync_starts: vec![sync_start(1, LATER_KEY)], ..batch(1, 2) });
    let ended = take(&mut delivery, Batch { synced: vec![synced(1, KEY)], ..batch(2, 3) });
    assert_eq!(ended.scopes, []);
    let bases: Vec<_> = passed(&mut delivery, 3)
        .into_iter()
        .filter_map(|effect| match effect {
            ReceiverEffect::SendBasis { sync_key, .. } => Some(sync_key),
            _ => None,
        })
        .collect();
    assert_eq!(bases, [LATER_KEY]);
    assert_eq!(delivery.state(), Some(DeliveryState::Listing));
}

#[test]
fn the_end_of_a_list_that_began_on_a_former_stream_is_stored() {
    let mut delivery = flowing(0);
    let last = Event { scope_id: 2, ..deleted(2) };
    let ended =
        take(&mut delivery, Batch { events: vec![last], synced: vec![synced(2, KEY)], ..batch(0, 1) });
    let stored = ScopeChange::Synced {
        scope: key(":.Secret"),
        sync_key: KEY.into(),
        resource_version: "9".into(),
        objects: 5,
    };
    assert_eq!(ended.scopes, [AcceptedScopeChange::Other(stored)]);
    assert!(ended.events[0].is_listed, "it waited as long as its list took");
    assert_eq!(delivery.state(), Some(DeliveryState::Listing));
    passed(&mut delivery, 1);
    assert_eq!(delivery.state(), Some(DeliveryState::Synced));
}

#[test]
fn a_scope_that_is_being_listed_has_no_checkpoint() {
    let mut delivery = flowing(0);
    let checkpoints =
        |ids: &[u32]| ids.iter().map(|id| Checkpoint { scope_id: *id, rv: "8".into() }).collect::<Vec<_>>();
    let both =
        Batch { sync_starts: vec![sync_start(1, KEY)], checkpoints: checkpoints(&[1, 2]), ..batch(0, 1) };
    let stored = |batch: AcceptedBatch| {
        let scopes = batch.scopes.into_iter().filter_map(|change| match change {
            AcceptedScopeChange::Other(ScopeChange::Checkpoint { scope, .. }) => Some(scope.kind),
            _ => None,
        });
        scopes.collect::<Vec<_>>()
    };
    assert_eq!(stored(take(&mut delivery, both)), ["Secret"]);
    let complete = Batch { synced: vec![synced(1, KEY)], checkpoints: checkpoints(&[1]), ..batch(1, 2) };
    let accepted = take(&mut delivery, complete);
    assert!(
        matches!(accepted.scopes[0], AcceptedScopeChange::Other(ScopeChange::Synced { .. })),
        "the checkpoint comes after the end of the list"
    );
    assert_eq!(stored(accepted), ["Pod"]);
}

#[test]
fn an_added_scope_is_answered_after_its_commit() {
    let mut delivery = flowing(0);
    let added = Batch { added: vec![declaration(3, "Node")], events: vec![deleted(3)], ..batch(0, 1) };
    assert!(matches!(take(&mut delivery, added).scopes[..], [AcceptedScopeChange::Added(_)]));
    let effects = passed(&mut delivery, 1);
    let expected =
        [ack(1), ReceiverEffect::Release(10), ReceiverEffect::ReadProgress { lane: 1, added: Some(vec![3]) }];
    assert_eq!(effects, expected);
    take(&mut delivery, batch(1, 2));
    let effects = delivery.progress(Some(&[3, 9]), &stands(1), 0, Reason::Superseded);
    let [ReceiverEffect::Send(Frame::Resume(resume))] = &effects[..] else { unreachable!("got {effects:?}") };
    assert_eq!((resume.committed_seq, resume.scopes.len(), resume.last), (1, 1, true));
    assert_eq!((resume.scopes[0].scope_id, &*resume.scopes[0].rv, resume.scopes[0].resend), (3, "", true));
    assert!(resume.others.is_empty(), "those were said before");
}

#[test]
fn removed_scopes_are_forgotten_unless_the_same_batch_adds_them_again() {
    let mut delivery = flowing(0);
    let removed = Batch {
        removed: vec![":.Pod".into(), ":.Secret".into(), ":.Unknown".into()],
        added: vec![declaration(2, "Secret")],
        events: vec![deleted(1), deleted(2)],
        ..batch(0, 1)
    };
    let scopes = take(&mut delivery, removed).scopes;
    let kinds: Vec<_> = scopes
        .iter()
        .map(|change| match change {
            AcceptedScopeChange::Other(ScopeChange::Removed(key)) => format!("-{}", key.kind),
            AcceptedScopeChange::Added(scope) => format!("+{}", scope.key.kind),
            other => format!("{other:?}"),
        })
        .collect();
    assert_eq!(kinds, ["-Pod", "-Secret", "-Unknown", "+Secret"]);
    take(&mut delivery, Batch { events: vec![deleted(2)], ..batch(1, 2) });
    assert!(delivery.batch(Batch { events: vec![deleted(1)], ..batch(2, 3) }, 1).is_err());
}

#[test]
fn a_problem_is_stored_with_its_text_and_taken_back_without_one() {
    let mut delivery = flowing(0);
    let problem = |message: Option<&str>| ScopeProblem {
        scope: Some(Scope { kind: "Pod".into(), ..Scope::default() }),
        failure: message.map(|message| Failure { message: message.into(), ..Failure::default() }),
        left_out: None,
    };
    let problems = vec![problem(Some("403")), problem(Some("")), problem(None)];
    let texts: Vec<_> = take(&mut delivery, Batch { problems, ..batch(0, 1) })
        .scopes
        .into_iter()
        .map(|change| match change {
            AcceptedScopeChange::Other(ScopeChange::Problem { problem, .. }) => problem,
            other => unreachable!("got {other:?}"),
        })
        .collect();
    assert_eq!(texts, [Some("403".to_owned()), None, None]);
    let nameless = vec![ScopeProblem::default()];
    assert!(delivery.batch(Batch { problems: nameless, ..batch(1, 2) }, 1).is_err());
}

/// What is stored as the problem of Pod after a batch.
fn stored_problem(batch: AcceptedBatch) -> Option<Option<String>> {
    let problem = |change| match change {
        AcceptedScopeChange::Other(ScopeChange::Problem { problem, .. }) => Some(problem),
        _ => None,
    };
    batch.scopes.into_iter().filter_map(problem).last()
}

#[test]
fn objects_that_are_left_out_are_stored_until_the_agent_takes_them_back_whatever_lists_end() {
    let mut delivery = flowing(0);
    let object = LeftOutObject { namespace: "s".into(), name: "a".into(), why: "it is odd".into() };
    let told = |objects: Vec<LeftOutObject>| {
        let left_out = LeftOutObjects { count: u32::try_from(objects.len()).expect("few"), objects };
        let scope = Some(Scope { kind: "Pod".into(), ..Scope::default() });
        vec![ScopeProblem { scope, failure: None, left_out: Some(left_out) }]
    };
    let text = Some("1 object is left out: \"s/a\": it is odd".to_owned());
    let found = Batch { sync_starts: vec![sync_start(1, "K")], problems: told(vec![object]), ..batch(0, 1) };
    assert_eq!(stored_problem(take(&mut delivery, found)), Some(text.clone()));
    // The end of a list takes a problem back where it is stored.
    let synced = Batch { synced: vec![synced(1, "K")], ..batch(1, 2) };
    assert_eq!(stored_problem(take(&mut delivery, synced)), Some(text));
    assert_eq!(
        stored_problem(take(&mut delivery, Batch { problems: told(Vec::new()), ..batch(2, 3) })),
        Some(None)
    );
}

#[test]
fn namespaces_are_told_of_when_they_are_committed_and_when_the_account_goes_on() {
    let mut delivery = delivery();
    delivery.begin(begin(&["Namespace", "Pod"], true), 1).expect("it is well-formed");
    delivery.assigned(AssignmentState::Stands("one".into()));
    let effects = delivery.progress(None, &stands(0), 0, Reason::Superseded);
    assert!(effects.contains(&ReceiverEffect::NamespacesWritten), "{effects:?}");
    take(&mut delivery, Batch { events: vec![deleted(2)], ..batch(0, 1) });
    assert_eq!(passed(&mut delivery, 1), [ack(1), ReceiverEffect::Release(10)]);
    take(&mut delivery, Batch { events: vec![deleted(1)], ..batch(1, 2) });
    assert_eq!(
        passed(&mut delivery, 2),
        [ack(2), ReceiverEffect::Release(10), ReceiverEffect::NamespacesWritten]
    );
    take(&mut delivery, Batch { removed: vec![":.Namespace".into()], ..batch(2, 3) });
    assert_eq!(
        passed(&mut delivery, 3),
        [ack(3), ReceiverEffect::Release(10), ReceiverEffect::NamespacesWritten]
    );
}

#[test]
fn reason_for_a_kind_that_is_not_watched_is_reported_and_not_stored() {
    let mut delivery = flowing(0);
    let told = |message: &str| {
        let scope = Scope { kind: "Rollout".into(), group: "argoproj.io".into(), ..Scope::default() };
        let failure = Failure { message: message.into(), ..Failure::default() };
        vec![ScopeProblem { scope: Some(scope), failure: Some(failure), left_out: None }]
    };
    let mut left_out = |prev: u64, message: &str| {
        let batch = Batch { problems: told(message), ..batch(prev, prev + 1) };
        match &delivery.batch(batch, 10).expect("it is taken")[..] {
            [ReceiverEffect::Queue(batch), ReceiverEffect::Report(report)] => {
                assert!(batch.scopes.is_empty(), "{batch:?}");
                report.left_out.clone()
            }
            other => unreachable!("got {other:?}"),
        }
    };
    assert_eq!(left_out(0, "not served").as_deref(), Some("Rollout.argoproj.io: not served"));
    assert_eq!(left_out(1, ""), None);
}

#[test]
fn an_account_ends_with_its_last_commit() {
    let mut delivery = flowing(0);
    take(&mut delivery, batch(0, 1));
    assert_eq!((delivery.end(), delivery.is_finished()), (Vec::new(), false));
    assert_eq!(passed(&mut delivery, 1), [ack(1), ReceiverEffect::Release(10), ReceiverEffect::CloseLane(1)]);
    assert!(delivery.is_finished());
    let mut idle = flowing(0);
    assert_eq!((idle.end(), idle.is_finished()), (vec![ReceiverEffect::CloseLane(1)], true));
    let mut rewound = flowing(0);
    take(&mut rewound, batch(0, 1));
    rewound.end();
    let effects = rewound.outcome(1, FenceCheck::Rewind(0), Reason::Superseded);
    let expected = [ReceiverEffect::Release(10), ReceiverEffect::CloseLane(1), ReceiverEffect::CountRewind];
    assert_eq!((&effects[..], rewound.is_finished()), (&expected[..], true), "the agent asks no more");
}

#[test]
fn an_upsert_keeps_its_scope_and_its_place() {
    let mut delivery = flowing(0);
    let upsert = Event {
        op: Operation::Upsert.into(),
        body: Some(event::Body::Omitted(Omitted::TooLarge.into())),
        ..deleted(1)
    };
    let accepted = take(&mut delivery, Batch { events: vec![upsert, deleted(2)], ..batch(0, 1) });
    let scopes: Vec<_> = accepted.events.iter().map(|event| event.scope.id).collect();
    assert_eq!((scopes, accepted.size.rows, &*accepted.account), (vec![1, 2], 2, "one"));
}
