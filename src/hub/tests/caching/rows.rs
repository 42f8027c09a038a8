//! Batches until they are rows: commit, retry, order, credit, lists.

use std::time::{Duration, Instant};

use prost::Message as _;

use super::*;
use kubesvc_core::wire::events::{Ack, BasisRows, Rewind, SyncStart, Synced};
use kubesvc_store::ObjectBody;

fn body_of(world: &World, id: &str) -> Option<String> {
    let rows = world.cache.rows.lock();
    match &rows.get(id)?.body {
        ObjectBody::Text(text) => Some(text.clone()),
        other => panic!("expected text, got {other:?}"),
    }
}

#[tokio::test]
async fn a_batch_is_acknowledged_when_it_is_committed_and_not_before() {
    let world = World::start().await;
    let (mut stream, _) = world.flowing().await;
    world.cache.answers.send_replace(false);
    stream.say(say(batch(0, 1, vec![upsert("a", 1, r#"{"a":1}"#), upsert("b", 1, "{}")]))).await;
    eventually("it is written", || (*world.cache.begun.lock() == 1).then_some(())).await;
    stream.say(cache_up::Frame::Ping(Ping { nonce: 9 })).await;
    assert_eq!(stream.next().await, Frame::Pong(events::Pong { nonce: 9 }), "the stream is read meanwhile");
    world.cache.answers.send_replace(true);
    assert_eq!(stream.next().await, Frame::Ack(Ack { fence: fence(3), seq: 1 }));
    assert!(matches!(stream.next().await, Frame::Credit(_)));
    assert_eq!(body_of(&world, "kubernetes.v2:infrastructure:pod:one:ns:a").as_deref(), Some(r#"{"a":1}"#));
    let deleted = Event { op: Operation::Delete.into(), body: None, ..upsert("b", 2, "") };
    stream.say(say(batch(1, 2, vec![deleted]))).await;
    stream.acknowledged(2).await;
    assert_eq!(body_of(&world, "kubernetes.v2:infrastructure:pod:one:ns:b"), None);
    assert_eq!(metric(&world.hub, "kubesvc_cache_rows_written_total"), 2.0);
    assert_eq!(metric(&world.hub, "kubesvc_cache_rows_deleted_total"), 1.0);
    assert_eq!(metric(&world.hub, "kubesvc_cache_transactions_total"), 2.0);
    // The scope has no checkpoint yet.
    assert_eq!(metric(&world.hub, "kubesvc_cache_lag_seconds_count{of=\"list\"}"), 3.0);
}

#[tokio::test]
async fn row_that_the_database_refuses_is_counted_as_refused_and_not_as_written() {
    let world = World::start().await;
    let (mut stream, _) = world.flowing().await;
    world.cache.refused.lock().push("kubernetes.v2:infrastructure:pod:one:ns:b".to_owned());
    let events = ["a", "b", "c"].map(|name| upsert(name, 1, "{}"));
    stream.say(say(batch(0, 1, events.into()))).await;
    stream.acknowledged(1).await;
    assert_eq!(world.cache.rows.lock().len(), 2);
    assert_eq!(metric(&world.hub, "kubesvc_cache_rows_written_total"), 2.0);
    assert_eq!(metric(&world.hub, "kubesvc_cache_refused_rows_total"), 1.0);
}

#[tokio::test]
async fn batches_that_arrive_during_a_commit_share_the_next_transaction() {
    let world = World::start().await;
    let (mut stream, _) = world.flowing().await;
    world.cache.answers.send_replace(false);
    stream.say(say(batch(0, 1, vec![upsert("a", 1, "{}")]))).await;
    eventually("it is written", || (*world.cache.begun.lock() == 1).then_some(())).await;
    for seq in 2..=5 {
        stream.say(say(batch(seq - 1, seq, vec![upsert("a", seq, "{}")]))).await;
    }
    stream.say(cache_up::Frame::Ping(Ping { nonce: 9 })).await;
    assert!(matches!(stream.next().await, Frame::Pong(_)), "all have arrived");
    world.cache.answers.send_replace(true);
    stream.acknowledged(5).await;
    assert_eq!(*world.cache.begun.lock(), 2);
    assert_eq!(world.cache.rows.lock()["kubernetes.v2:infrastructure:pod:one:ns:a"].resource_version, "5");
}

#[tokio::test]
async fn a_failed_or_lost_commit_is_repeated_and_then_acknowledged() {
    for lost in [false, true] {
        let world = World::start().await;
        let (mut stream, _) = world.flowing().await;
        *(if lost { &world.cache.lost } else { &world.cache.failing }).lock() = 1;
        let begun = Instant::now();
        stream.say(say(batch(0, 1, vec![upsert("a", 1, "{}")]))).await;
        stream.acknowledged(1).await;
        assert!(begun.elapsed() >= Duration::from_secs(1), "it is repeated after a second");
        assert_eq!((*world.cache.begun.lock(), world.cache.committed("uid-one")), (2, 1));
    }
}

#[tokio::test]
async fn a_database_that_takes_no_objects_is_a_problem_until_it_does() {
    let world = World::start().await;
    let (mut stream, _) = world.flowing().await;
    *world.cache.failing.lock() = 2;
    assert_eq!(world.hub.hub.cached_objects_problem(), None);
    stream.say(say(batch(0, 1, vec![upsert("a", 1, "{}")]))).await;
    let problem = eventually("it is known", || world.hub.hub.cached_objects_problem()).await;
    assert!(problem.contains("down"), "{problem}");
    stream.acknowledged(1).await;
    eventually("it is over", || world.hub.hub.cached_objects_problem().is_none().then_some(())).await;
}

#[tokio::test]
async fn a_batch_out_of_order_is_rewound_and_begin_goes_on_from_what_is_committed() {
    let world = World::start().await;
    let (mut stream, _) = world.flowing().await;
    stream.say(say(batch(0, 1, vec![upsert("a", 1, "{}")]))).await;
    stream.acknowledged(1).await;
    stream.say(say(batch(2, 3, vec![upsert("a", 3, "{}")]))).await;
    let rewind = Rewind { fence: fence(3), committed_seq: 1 };
    assert_eq!(stream.answer().await, Frame::Rewind(rewind));
    stream.say(say(batch(3, 4, vec![upsert("a", 4, "{}")]))).await;
    stream.say(begin()).await;
    assert_eq!(stream.resumed().await.committed_seq, 1);
    stream.say(say(batch(1, 5, vec![upsert("a", 5, "{}")]))).await;
    stream.acknowledged(5).await;
    assert_eq!(world.cache.rows.lock()["kubernetes.v2:infrastructure:pod:one:ns:a"].resource_version, "5");
    assert_eq!(metric(&world.hub, "kubesvc_cache_rewinds_total"), 1.0);
}

#[tokio::test]
async fn a_fence_that_moved_rewinds_or_revokes() {
    let world = World::start().await;
    let (mut stream, _) = world.flowing().await;
    world.cache.fences.lock().insert("uid-one".into(), (3, 7));
    stream.say(say(batch(0, 8, vec![upsert("a", 1, "{}")]))).await;
    assert_eq!(stream.answer().await, Frame::Rewind(Rewind { fence: fence(3), committed_seq: 7 }));
    stream.say(begin()).await;
    assert_eq!(stream.resumed().await.committed_seq, 7);
    world.cache.fences.lock().insert("uid-one".into(), (4, 0));
    stream.say(say(batch(7, 9, vec![upsert("a", 1, "{}")]))).await;
    stream.say(say(batch(9, 10, vec![upsert("b", 1, "{}")]))).await;
    match stream.answer().await {
        Frame::Revoked(revoked) => assert_eq!(revoked.fence, fence(3)),
        other => panic!("expected Revoked, got {other:?}"),
    }
    assert!(world.cache.rows.lock().is_empty());
}

#[tokio::test]
async fn an_account_whose_fence_had_no_row_is_streamed_again_once_it_has_one() {
    let mut world = World::start().await;
    let (mut stream, _) = world.flowing().await;
    world.hub.rows.unfenced.lock().push("uid-one".into());
    world.cache.fences.lock().remove("uid-one");
    stream.say(say(batch(0, 1, vec![upsert("a", 1, "{}")]))).await;
    match stream.answer().await {
        Frame::Revoked(revoked) => assert_eq!(revoked.reason(), events::revoked::Reason::AccountGone),
        other => panic!("expected Revoked, got {other:?}"),
    }
    // The same epoch as before, so that no comparison shows that it was away.
    world.cache.fences.lock().insert("uid-one".into(), (3, 0));
    world.hub.rows.unfenced.lock().clear();
    match world.agent.next().await {
        Ok(Some(hub_frame::Frame::CachingAssignment(told))) => {
            assert_eq!((told.fence, told.on), (fence(3), true));
        }
        other => panic!("expected CachingAssignment, got {other:?}"),
    }
    stream.say(begin()).await;
    assert_eq!(stream.resumed().await.committed_seq, 0);
    stream.say(say(batch(0, 2, vec![upsert("a", 1, "{}")]))).await;
    stream.acknowledged(2).await;
}

#[tokio::test]
async fn a_batch_over_its_credit_closes_its_stream_and_a_loan_lets_it_through() {
    let world = World::start().await;
    let (mut stream, _) = world.flowing().await;
    let large = "x".repeat(100_000);
    stream.say(say(batch(0, 1, vec![upsert("a", 1, &large)]))).await;
    let (reason, message) = stream.closed().await;
    assert_eq!(reason, Reason::Malformed);
    assert!(message.contains("exceeds the credit of 65536 bytes; send Want"), "{message}");
    let (mut stream, _) = world.flowing().await;
    stream.say(cache_up::Frame::Want(Want { bytes: 60_000 })).await;
    assert_eq!(stream.next().await, Frame::Credit(events::Credit { bytes: 60_000 }));
    stream.say(say(batch(0, 1, vec![upsert("a", 1, &large)]))).await;
    stream.acknowledged(1).await;
    eventually("the loan is back", || (metric(&world.hub, "kubesvc_cache_lent_bytes") == 0.0).then_some(()))
        .await;
}

#[tokio::test]
async fn credit_is_counted_as_the_agent_says_and_never_as_less_than_what_came() {
    let world = World::start().await;
    let (mut stream, _) = world.flowing().await;
    let up = |seq: u64, batch_bytes| {
        let frame = Some(say(batch(seq - 1, seq, vec![upsert("a", seq, "{}")])));
        events::CacheUp { batch_bytes, frame }
    };
    let known = u32::try_from(batch(1, 2, vec![upsert("a", 2, "{}")]).encoded_len()).expect("small");
    for (seq, said, counted) in [(1, 60_000, 60_000), (2, 1, known)] {
        stream.frames.send(up(seq, said)).await.expect("the stream is open");
        stream.acknowledged(seq).await;
        assert_eq!(stream.next().await, Frame::Credit(events::Credit { bytes: counted }));
    }
    stream.frames.send(up(3, 70_000)).await.expect("the stream is open");
    let (reason, message) = stream.closed().await;
    assert_eq!(reason, Reason::Malformed);
    assert!(message.contains("70000 bytes"), "{message}");
}

#[tokio::test]
async fn a_loan_that_the_pool_has_not_waits_for_one_that_is_repaid() {
    let world = World::with_pool(100_000).await;
    let (mut stream, _) = world.flowing().await;
    stream.say(cache_up::Frame::Want(Want { bytes: 500_000 })).await;
    assert_eq!(stream.next().await, Frame::Credit(events::Credit { bytes: 100_000 }));
    stream.say(cache_up::Frame::Want(Want { bytes: 400_000 })).await;
    stream.say(say(batch(0, 1, vec![upsert("a", 1, &"x".repeat(50_000))]))).await;
    let bytes = match stream.next().await {
        Frame::Ack(_) => match stream.next().await {
            Frame::Credit(credit) => credit.bytes,
            other => panic!("expected Credit, got {other:?}"),
        },
        other => panic!("expected Ack, got {other:?}"),
    };
    assert!((50_000..51_000).contains(&bytes), "what was repaid is lent again: {bytes}");
}

#[tokio::test]
async fn a_bomb_closes_the_stream_that_sent_it() {
    let world = World::start().await;
    let (mut stream, _) = world.flowing().await;
    let bomb = events::Blob {
        encoding: events::blob::Encoding::Zstd.into(),
        size: 1000,
        data: zstd::bulk::compress(&vec![b' '; 64 << 20], 1).expect("it compresses"),
    };
    let event = Event { body: Some(events::event::Body::Blob(bomb)), ..upsert("a", 1, "") };
    stream.say(say(batch(0, 1, vec![event]))).await;
    let (reason, message) = stream.closed().await;
    assert_eq!(reason, Reason::Malformed);
    assert!(message.contains("account uid-one") && message.contains("67108864 bytes"), "{message}");
    world.flowing().await;
}

#[tokio::test]
async fn what_cannot_be_stored_is_left_out_and_counted() {
    let world = World::start().await;
    let (mut stream, _) = world.flowing().await;
    let encoding = events::blob::Encoding::Zstd.into();
    let compressed = |data: Vec<u8>, size| events::Blob { encoding, size, data };
    let with =
        |name: &str, blob| Event { body: Some(events::event::Body::Blob(blob)), ..upsert(name, 1, "") };
    let whole = zstd::bulk::compress(br#"{"kind":"Pod"}"#, 1).expect("it compresses");
    let no_text = events::Blob { encoding: 1, size: 2, data: vec![0xff, 0xfe] };
    let events = vec![
        with("whole", compressed(whole, 14)),
        with("no-text", no_text),
        upsert("un\tnameable", 1, "{}"),
        upsert("plain", 1, "{}"),
    ];
    stream.say(say(batch(0, 1, events))).await;
    stream.acknowledged(1).await;
    assert_eq!(
        body_of(&world, "kubernetes.v2:infrastructure:pod:one:ns:whole").as_deref(),
        Some(r#"{"kind":"Pod"}"#)
    );
    assert_eq!(
        world.cache.rows.lock()["kubernetes.v2:infrastructure:pod:one:ns:no-text"].body,
        ObjectBody::Omitted
    );
    assert_eq!(world.cache.rows.lock().len(), 3);
    assert_eq!(metric(&world.hub, "kubesvc_cache_refused_rows_total"), 2.0);
}

/// The names in a basis.
async fn basis(stream: &mut Stream) -> Vec<String> {
    let mut names = Vec::new();
    loop {
        let frame = match stream.answer().await {
            Frame::SyncBasis(frame) => frame,
            other => panic!("expected SyncBasis, got {other:?}"),
        };
        assert_eq!((frame.scope_id, &*frame.sync_key), (1, SYNC_KEY));
        let rows = frame.rows.expect("it has rows");
        let rows = BasisRows::decode(&*rows.data).expect("they are not compressed");
        names.extend(rows.rows.into_iter().map(|row| row.name));
        if frame.last {
            return names;
        }
    }
}

#[tokio::test]
async fn a_list_gets_the_rows_of_its_scope_after_its_begin_is_committed_and_resumes_from_its_end() {
    let world = World::start().await;
    let (mut stream, resume) = world.flowing().await;
    assert_eq!((&*resume.scopes[0].rv, resume.scopes[0].resend), ("", true));
    let mut names: Vec<_> = (0..4500).map(|number| format!("pod-{number:04}")).collect();
    {
        let template = upsert("a", 1, "{}");
        let rows =
            crate::hub::RowMapper::naming(&fake_cache::PlainMapper, "one", &scope()).expect("it has rows");
        let mut stored = world.cache.rows.lock();
        for name in &names {
            let event = Event { name: name.clone(), ..template.clone() };
            let named = rows.object_row(&event).expect("it has a row");
            let row = crate::hub::caching::object_row(named, ObjectBody::Omitted);
            stored.insert(row.id.clone(), row);
        }
    }
    let sync_starts = vec![SyncStart { scope_id: 1, sync_key: SYNC_KEY.into() }];
    stream.say(say(Batch { sync_starts, ..batch(0, 1, Vec::new()) })).await;
    stream.acknowledged(1).await;
    let mut got = basis(&mut stream).await;
    got.sort();
    names.sort();
    assert_eq!(got, names);
    eventually("it is being listed", || {
        (metric(&world.hub, "kubesvc_cache_accounts{state=\"listing\"}") == 1.0).then_some(())
    })
    .await;
    let complete =
        Synced { scope_id: 1, sync_key: SYNC_KEY.into(), rv: "99".into(), kept: 4500, ..Default::default() };
    stream.say(say(Batch { synced: vec![complete], ..batch(1, 2, Vec::new()) })).await;
    stream.acknowledged(2).await;
    eventually("it is synced", || {
        (metric(&world.hub, "kubesvc_cache_accounts{state=\"synced\"}") == 1.0).then_some(())
    })
    .await;
    let (_stream, resume) = world.flowing().await;
    let scope = &resume.scopes[0];
    assert_eq!((&*scope.rv, scope.objects, scope.resend, resume.committed_seq), ("99", 4500, false, 2));
}

fn scope() -> Scope {
    Scope { kind: "Pod".into(), version: "v1".into(), ..Scope::default() }
}

#[tokio::test]
async fn an_added_scope_is_answered_after_its_commit() {
    let world = World::start().await;
    let (mut stream, _) = world.flowing().await;
    stream.say(say(Batch { added: vec![declaration(2, "Node")], ..batch(0, 1, Vec::new()) })).await;
    stream.acknowledged(1).await;
    let resume = stream.resumed().await;
    assert_eq!((resume.committed_seq, resume.scopes[0].scope_id, resume.last), (1, 2, true));
}
