//! What is left out of an account's objects, and its list of namespaces, from batches to where they are shown.

use super::*;
use crate::connected_agents::ConnectedAgents as _;
use kubesvc_core::lifecycle::CachingReport;
use kubesvc_core::report_outbox::OutboxEntry;
use kubesvc_core::wire::common::Failure;
use kubesvc_core::wire::common::failure::Class;
use kubesvc_core::wire::events::{
    Checkpoint, LeftOutObject, LeftOutObjects, ScopeProblem, SyncStart, Synced, Unread,
};

/// What the leader is told of account `one`.
fn report(world: &World) -> Option<CachingReport> {
    world.hub.hub.sessions("uid-one").into_iter().find_map(|session| session.caching)
}

/// What account `one` leaves out, once the leader is told so.
async fn left_out(world: &World, expected: Option<&str>) {
    eventually("the leader is told", || {
        report(world).filter(|report| report.left_out.as_deref() == expected && report.epoch.0 == 3).map(drop)
    })
    .await;
}

fn problem(kind: &str, group: &str, failure: Option<(Class, &str)>) -> ScopeProblem {
    let scope = Some(Scope { kind: kind.into(), group: group.into(), ..Scope::default() });
    let failure = failure.map(|(class, why)| Failure {
        class: class.into(),
        message: why.into(),
        ..Failure::default()
    });
    ScopeProblem { scope, failure, left_out: None }
}

fn problems(prev: u64, problems: Vec<ScopeProblem>) -> cache_up::Frame {
    say(Batch { problems, ..batch(prev, prev + 1, Vec::new()) })
}

#[tokio::test]
async fn right_that_is_withdrawn_and_granted_again_reaches_the_leader() {
    let world = World::start().await;
    let (mut stream, _) = world.flowing().await;
    left_out(&world, None).await;
    let refused = problem("Pod", "", Some((Class::Forbidden, "the server answered 403")));
    let unserved =
        problem("Rollout", "argoproj.io", Some((Class::Discovery, "the cluster does not serve it")));
    stream.say(problems(0, vec![refused, unserved])).await;
    stream.acknowledged(1).await;
    let both =
        "Pod: the credential may not list and watch it; Rollout.argoproj.io: the cluster does not serve it";
    left_out(&world, Some(both)).await;
    assert!(!report(&world).expect("it is told").is_unreadable);
    stream.say(problems(1, vec![problem("Pod", "", None), problem("Rollout", "argoproj.io", None)])).await;
    stream.acknowledged(2).await;
    left_out(&world, None).await;
}

#[tokio::test]
async fn stored_problem_of_a_former_process_is_taken_back_once_the_scope_is_read() {
    let world = World::start().await;
    let (mut stream, _) = world.flowing().await;
    let start = SyncStart { scope_id: 1, sync_key: SYNC_KEY.into() };
    stream.say(say(Batch { sync_starts: vec![start], ..batch(0, 1, Vec::new()) })).await;
    stream.acknowledged(1).await;
    assert!(matches!(stream.answer().await, Frame::SyncBasis(_)));
    let synced = Synced { scope_id: 1, sync_key: SYNC_KEY.into(), rv: "5".into(), ..Synced::default() };
    stream.say(say(Batch { synced: vec![synced], ..batch(1, 2, Vec::new()) })).await;
    stream.say(problems(2, vec![problem("Pod", "", Some((Class::Forbidden, "no")))])).await;
    stream.acknowledged(3).await;
    drop(stream);
    let (mut stream, _) = world.flowing().await;
    assert_eq!(world.cache.problem("one", "Pod").as_deref(), Some("no"));
    stream.say(cache_up::Frame::Ping(Ping { nonce: 1 })).await;
    assert!(matches!(stream.answer().await, Frame::Pong(_)));
    assert_eq!(report(&world), None, "it is not known yet whether it is still so");
    let read = Checkpoint { scope_id: 1, rv: "6".into() };
    stream.say(say(Batch { checkpoints: vec![read], ..batch(3, 4, Vec::new()) })).await;
    stream.acknowledged(4).await;
    left_out(&world, None).await;
    assert_eq!(world.cache.problem("one", "Pod"), None);
}

#[tokio::test]
async fn objects_that_an_agent_leaves_out_are_counted_and_named_and_their_kind_is_read() {
    let world = World::start().await;
    let (mut stream, _) = world.flowing().await;
    let why = "metadata.resourceVersion has more than 64 characters";
    let object = LeftOutObject { namespace: "shop".into(), name: "web".into(), why: why.into() };
    let objects = LeftOutObjects { count: 2, objects: vec![object] };
    // The failure is for a hub that does not know the field.
    let failure = Some((Class::Unreachable, "2 objects are left out"));
    let told = ScopeProblem { left_out: Some(objects), ..problem("Pod", "", failure) };
    stream.say(problems(0, vec![told])).await;
    stream.acknowledged(1).await;
    let text = format!("2 objects are left out: \"shop/web\": {why}; and 1 more");
    left_out(&world, Some(&format!("Pod: {text}"))).await;
    assert!(!report(&world).expect("it is told").is_unreadable);
    stream.say(problems(1, vec![problem("Pod", "", None)])).await;
    stream.acknowledged(2).await;
    left_out(&world, None).await;
}

#[tokio::test]
async fn agent_whose_scopes_are_all_out_of_reach_says_that_it_reads_nothing() {
    let world = World::start().await;
    let (mut stream, _) = world.flowing().await;
    stream.say(problems(0, vec![problem("Pod", "", Some((Class::Unreachable, "connection refused")))])).await;
    stream.acknowledged(1).await;
    left_out(&world, Some("Pod: the cluster cannot be reached")).await;
    assert!(report(&world).expect("it is told").is_unreadable);
    drop(stream);
    eventually("nothing is concluded without a stream", || report(&world).is_none().then_some(())).await;
}

#[tokio::test]
async fn follower_writes_what_is_left_out_into_its_outbox_until_the_account_says_it() {
    let world = World::start().await;
    world.hub.leadership.lose();
    let (mut stream, _) = world.flowing().await;
    stream.say(problems(0, vec![problem("Pod", "", Some((Class::Forbidden, "no")))])).await;
    stream.acknowledged(1).await;
    let why = "Pod: the credential may not list and watch it";
    let entry = eventually("the outbox says it", || {
        let reports = world.hub.objects.reports.lock();
        reports.last().and_then(|outbox| outbox.first()).filter(|entry| entry.uid == "uid-one").cloned()
    })
    .await;
    let said = entry.caching_report().expect("it is about the objects");
    assert_eq!((said.epoch.0, said.left_out.as_deref(), said.is_unreadable), (3, Some(why), false));
    // Who has never reached the cluster says so, too, under the epoch of its assignment.
    world.hub.accounts.show(elected("one", BOOT_A, 4));
    let unread = Unread {
        fence: fence(4),
        failure: Some(Failure { class: Class::Unreachable.into(), ..Failure::default() }),
    };
    // The assignment may not stand yet, and the agent says it once.
    stream.say(cache_up::Frame::Unread(unread)).await;
    let said = eventually("the outbox says that nothing is read", || {
        let reports = world.hub.objects.reports.lock();
        let said = reports.last().and_then(|outbox| outbox.first()).and_then(OutboxEntry::caching_report);
        said.filter(|said| said.epoch.0 == 4)
    })
    .await;
    assert_eq!(said.left_out.as_deref(), Some("all kinds: the cluster cannot be reached"));
    assert!(said.is_unreadable);
}

#[tokio::test]
async fn list_of_namespaces_follows_the_cached_ones() {
    let world = World::start().await;
    let listed = |names: &'static [&'static str]| {
        let rows = &world.hub.rows;
        move || rows.namespaces.lock().get("uid-one").filter(|written| **written == names).map(drop)
    };
    eventually("what the agent reported is written", listed(&["default"])).await;
    let scopes = || vec![declaration(1, "Namespace")];
    let begin = || {
        cache_up::Frame::Begin(Begin { fence: fence(3), scopes: scopes(), last: true, ..Begin::default() })
    };
    let mut stream = world.open().await;
    stream.say(begin()).await;
    stream.resumed().await;
    let named = |name: &str| Event { namespace: String::new(), ..upsert(name, 1, "{}") };
    let start = SyncStart { scope_id: 1, sync_key: SYNC_KEY.into() };
    stream
        .say(say(Batch { sync_starts: vec![start], ..batch(0, 1, vec![named("one"), named("two")]) }))
        .await;
    stream.acknowledged(1).await;
    assert!(matches!(stream.answer().await, Frame::SyncBasis(_)));
    let synced = Synced { scope_id: 1, sync_key: SYNC_KEY.into(), rv: "5".into(), ..Synced::default() };
    stream.say(say(Batch { synced: vec![synced], ..batch(1, 2, Vec::new()) })).await;
    stream.acknowledged(2).await;
    eventually("a whole list is written", listed(&["one", "two"])).await;
    let gone = Event { op: Operation::Delete.into(), body: None, ..named("one") };
    stream.say(say(batch(2, 3, vec![gone]))).await;
    stream.acknowledged(3).await;
    eventually("one that is deleted goes", listed(&["two"])).await;
    drop(stream);
    let mut stream = world.open().await;
    stream.say(begin()).await;
    stream.resumed().await;
    stream.say(cache_up::Frame::Ping(Ping { nonce: 1 })).await;
    assert!(matches!(stream.answer().await, Frame::Pong(_)));
    stream.say(say(batch(3, 4, vec![named("three")]))).await;
    stream.acknowledged(4).await;
    eventually("a stream without events empties nothing", listed(&["three", "two"])).await;
}
