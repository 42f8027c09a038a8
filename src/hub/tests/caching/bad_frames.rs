//! Frames that no agent of ours sends: each ends in one clear message, and disturbs nobody else.

use super::*;

/// A declaration of a scope, and a batch that names it.
fn in_scope(scope_id: u32, batch: Batch) -> Batch {
    let events = batch.events.into_iter().map(|event| Event { scope_id, ..event }).collect();
    Batch { events, ..batch }
}

#[tokio::test]
async fn a_batch_for_another_account_epoch_or_scope_closes_its_stream_and_the_next_one_goes_on() {
    let world = World::start().await;
    let good = || batch(0, 1, vec![upsert("a", 1, "{}")]);
    let of = |uid: &str, epoch| Some(Fence { account_uid: uid.into(), caching_epoch: epoch });
    let bad = [
        (Batch { fence: of("uid-two", 3), ..good() }, "account uid-two under epoch 3 came without Begin"),
        (Batch { fence: of("uid-one", 4), ..good() }, "account uid-one under epoch 4 came without Begin"),
        (Batch { fence: None, ..good() }, "Batch"),
        (in_scope(9, good()), "account uid-one"),
        (Batch { removed: vec!["no scope".into()], ..good() }, "account uid-one"),
        (Batch { added: vec![declaration(1, "Service")], ..good() }, "account uid-one"),
        (Batch { prev: 5, seq: 5, ..good() }, "its number 5 does not come after 5"),
        (Batch { seq: u64::MAX, ..good() }, "account uid-one"),
    ];
    for (batch, expected) in bad {
        let told = format!("{batch:?}");
        let (mut stream, _) = world.flowing().await;
        stream.say(say(batch)).await;
        let (reason, message) = stream.closed().await;
        assert_eq!(reason, Reason::Malformed, "{told}");
        assert!(message.contains(expected), "{told}: {message}");
    }
    assert!(world.cache.rows.lock().is_empty());
    let (mut stream, _) = world.flowing().await;
    stream.say(say(good())).await;
    stream.acknowledged(1).await;
}

#[tokio::test]
async fn a_batch_of_an_earlier_epoch_changes_nothing() {
    let world = World::start().await;
    let (mut stream, _) = world.flowing().await;
    stream.say(say(Batch { fence: fence(2), ..batch(0, 1, vec![upsert("a", 1, "{}")]) })).await;
    stream.say(say(batch(0, 1, vec![upsert("b", 1, "{}")]))).await;
    stream.acknowledged(1).await;
    let rows: Vec<_> = world.cache.rows.lock().keys().cloned().collect();
    assert!(rows.len() == 1 && rows[0].contains('b'), "{rows:?}");
}

#[tokio::test]
async fn a_batch_that_comes_twice_is_written_once() {
    let world = World::start().await;
    let (mut stream, _) = world.flowing().await;
    let first = || batch(0, 1, vec![upsert("a", 1, "{}")]);
    stream.say(say(first())).await;
    stream.acknowledged(1).await;
    stream.say(say(first())).await;
    match stream.answer().await {
        Frame::Rewind(rewind) => assert_eq!(rewind.committed_seq, 1),
        other => panic!("expected Rewind, got {other:?}"),
    }
    stream.say(begin()).await;
    assert_eq!(stream.resumed().await.committed_seq, 1);
    stream.say(say(batch(1, 2, vec![upsert("a", 2, "{}")]))).await;
    stream.acknowledged(2).await;
    assert_eq!(world.cache.committed("uid-one"), 2);
}

#[tokio::test]
async fn a_frame_of_an_unknown_type_is_ignored() {
    let world = World::start().await;
    let (mut stream, _) = world.flowing().await;
    // What a later version adds is read as no frame at all.
    stream.frames.send(events::CacheUp::default()).await.expect("the stream is open");
    stream.say(say(batch(0, 1, vec![upsert("a", 1, "{}")]))).await;
    stream.acknowledged(1).await;
}
