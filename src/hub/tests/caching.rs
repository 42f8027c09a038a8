//! Streams of cached objects, from a real client to tables in memory.

mod bad_frames;
pub(in crate::hub) mod fake_cache;
mod left_out;
mod rows;

use std::sync::Arc;

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use crate::hub::tests::caching::fake_cache::FakeCache;
use crate::hub::tests::support::*;
use kubesvc_core::wire::common::{Fence, Scope};
use kubesvc_core::wire::events::cache_down::Frame;
use kubesvc_core::wire::events::closed::Reason;
use kubesvc_core::wire::events::event::Operation;
use kubesvc_core::wire::events::{self, Batch, Begin, End, Event, Ping, ScopeDeclaration, Want, cache_up};
use kubesvc_core::wire::ops::{self, CachingRules, hub_frame};
use kubesvc_core::{AgentId, BootId, CachingAssignment, CachingEpoch, KubesvcAccount, State};
use kubesvc_runtime::grpc::events::caching_client::CachingClient;

const MIB: u64 = 1024 * 1024;
const SYNC_KEY: &str = "01ARZ3NDEKTSV4RRFFQ69G5FAX";

/// An ACTIVE account that agent `a` was elected to stream under this epoch.
fn elected(name: &str, boot: &str, epoch: i64) -> KubesvcAccount {
    with(account(name), |status| {
        status.state = Some(State::Active);
        status.caching = Some(CachingAssignment {
            agent_id: Some(AgentId::from("a")),
            boot_id: Some(BootId::from(boot)),
            epoch: CachingEpoch(epoch),
        });
    })
}

/// The hello of an agent that streams objects.
fn streaming_hello() -> ops::Hello {
    let capabilities = ["caching/1", "later/7"].map(str::to_owned).to_vec();
    ops::Hello { capabilities, ..hello("a") }
}

/// A hub, its tables, and an agent that was told to stream account `one`.
struct World {
    hub: TestHub,
    cache: Arc<FakeCache>,
    agent: TestAgent,
    rules: CachingRules,
    session_id: String,
}

/// An open stream of cached objects.
struct Stream {
    frames: mpsc::Sender<events::CacheUp>,
    answers: Streaming<events::CacheDown>,
}

impl World {
    async fn start() -> Self {
        Self::with_pool(256 * MIB).await
    }

    async fn with_pool(pending_bytes: u64) -> Self {
        let cache = FakeCache::new(&["uid-one", "uid-two"]);
        let hub = TestHub::with_cache(cache.ports(pending_bytes)).await;
        hub.accounts.show(elected("one", BOOT_A, 3));
        hub.accounts.sync();
        let mut agent = hub.greet(streaming_hello()).await;
        let accepted = agent.accepted().await;
        assert_eq!(accepted.capabilities, ["caching/1"]);
        let reference = agent.added().await[0].account.clone().expect("it is named");
        agent.answer(held(&reference)).await;
        let rules = match agent.next().await {
            Ok(Some(hub_frame::Frame::CachingAssignment(told))) => told.rules.expect("it has rules"),
            other => panic!("expected CachingAssignment, got {other:?}"),
        };
        Self { hub, cache, agent, rules, session_id: accepted.session_id }
    }

    fn open_frame(&self) -> events::Open {
        events::Open {
            session_id: self.session_id.clone(),
            agent_id: "a".into(),
            boot_id: BOOT_A.into(),
            replica_id: "r-0".into(),
        }
    }

    /// Opens a stream and sends its first frame.
    async fn dial(&self, first: cache_up::Frame) -> Stream {
        let mut client = CachingClient::new(self.hub.channel().await).max_decoding_message_size(8 << 20);
        let (frames, outgoing) = mpsc::channel(64);
        let answer = client.stream(ReceiverStream::new(outgoing)).await.expect("the stream opens");
        let stream = Stream { frames, answers: answer.into_inner() };
        // A replica that drains may have closed the stream by now.
        let first = events::CacheUp { frame: Some(first), ..events::CacheUp::default() };
        let _ = stream.frames.send(first).await;
        stream
    }

    async fn open(&self) -> Stream {
        let mut stream = self.dial(cache_up::Frame::Open(self.open_frame())).await;
        assert_eq!(stream.next().await, Frame::Credit(events::Credit { bytes: 65_536 }));
        stream
    }

    /// A stream on which account `one` has the scope Pod (1).
    async fn flowing(&self) -> (Stream, events::Resume) {
        let mut stream = self.open().await;
        stream.say(begin()).await;
        let resume = stream.resumed().await;
        (stream, resume)
    }
}

impl Stream {
    async fn say(&self, frame: cache_up::Frame) {
        let up = events::CacheUp { frame: Some(frame), ..events::CacheUp::default() };
        self.frames.send(up).await.expect("the stream is open");
    }

    async fn next(&mut self) -> Frame {
        let answer = tokio::time::timeout(std::time::Duration::from_secs(20), self.answers.message());
        let answer = answer.await.expect("a frame comes in time").expect("the stream is well");
        answer.and_then(|down| down.frame).expect("it has not ended")
    }

    /// The next frame but Credit.
    async fn answer(&mut self) -> Frame {
        loop {
            match self.next().await {
                Frame::Credit(_) => {}
                frame => return frame,
            }
        }
    }

    async fn resumed(&mut self) -> events::Resume {
        match self.answer().await {
            Frame::Resume(resume) => resume,
            other => panic!("expected Resume, got {other:?}"),
        }
    }

    async fn acknowledged(&mut self, seq: u64) {
        loop {
            match self.answer().await {
                Frame::Ack(ack) if ack.seq == seq => return,
                Frame::Ack(ack) if ack.seq < seq => {}
                other => panic!("expected Ack {seq}, got {other:?}"),
            }
        }
    }

    /// Why the hub closes the stream; nothing comes after it.
    async fn closed(&mut self) -> (Reason, String) {
        match self.answer().await {
            Frame::Closed(closed) => {
                let after = self.answers.message().await.expect("the stream ends well");
                assert_eq!(after, None);
                (closed.reason(), closed.message)
            }
            other => panic!("expected Closed, got {other:?}"),
        }
    }
}

fn fence(epoch: u64) -> Option<Fence> {
    Some(Fence { account_uid: "uid-one".into(), caching_epoch: epoch })
}

fn declaration(scope_id: u32, kind: &str) -> ScopeDeclaration {
    let scope = Some(Scope { kind: kind.into(), version: "v1".into(), ..Scope::default() });
    ScopeDeclaration { scope_id, scope, shape: "shape".into(), filter: String::new() }
}

fn begin() -> cache_up::Frame {
    let scopes = vec![declaration(1, "Pod")];
    cache_up::Frame::Begin(Begin { fence: fence(3), scopes, last: true, ..Begin::default() })
}

fn batch(prev: u64, seq: u64, events: Vec<Event>) -> Batch {
    Batch { fence: fence(3), prev, seq, events, ..Batch::default() }
}

fn say(batch: Batch) -> cache_up::Frame {
    cache_up::Frame::Batch(batch)
}

fn upsert(name: &str, rv: u64, body: &str) -> Event {
    let blob = events::Blob {
        encoding: events::blob::Encoding::Raw.into(),
        size: u32::try_from(body.len()).expect("small"),
        data: body.as_bytes().to_vec(),
    };
    Event {
        scope_id: 1,
        op: Operation::Upsert.into(),
        namespace: "ns".into(),
        name: name.into(),
        uid: format!("uid-{name}"),
        rv: rv.to_string(),
        hash: vec![7; 32],
        body: Some(events::event::Body::Blob(blob)),
        ..Event::default()
    }
}

/// The value of a metric of the hub.
fn metric(hub: &TestHub, name: &str) -> f64 {
    let mut metrics = kubesvc_runtime::telemetry::metrics::Metrics::new();
    hub.hub.register(&mut metrics.registry);
    let text = metrics.encode();
    let line = text.lines().find(|line| line.split(' ').next() == Some(name));
    let value = line.and_then(|line| line.split(' ').nth(1)?.parse().ok());
    value.unwrap_or_else(|| panic!("no {name} in {text}"))
}

#[tokio::test]
async fn a_stream_opens_with_credit_only_where_its_session_is() {
    let world = World::start().await;
    let right = world.open_frame();
    let wrong = [
        events::Open { session_id: "another".into(), ..right.clone() },
        events::Open { agent_id: "b".into(), ..right.clone() },
        events::Open { boot_id: BOOT_B.into(), ..right.clone() },
        events::Open { replica_id: "r-1".into(), ..right.clone() },
    ];
    for open in wrong {
        let (reason, message) = world.dial(cache_up::Frame::Open(open)).await.closed().await;
        assert_eq!(reason, Reason::WrongReplica);
        assert!(message.contains("at replica r-0"), "{message}");
    }
    let (reason, message) = world.dial(begin()).await.closed().await;
    assert_eq!((reason, &*message), (Reason::Malformed, "the first frame must be Open"));
    let mut stream = world.open().await;
    stream.say(cache_up::Frame::Ping(Ping { nonce: 4 })).await;
    assert_eq!(stream.next().await, Frame::Pong(events::Pong { nonce: 4 }));
    stream.say(cache_up::Frame::Open(right)).await;
    assert_eq!(stream.closed().await.0, Reason::Malformed);
}

#[tokio::test]
async fn an_agent_is_told_the_capabilities_that_both_have() {
    let cache = FakeCache::new(&[]);
    let hub = TestHub::with_cache(cache.ports(256 * MIB)).await;
    hub.accounts.sync();
    let both = vec!["caching/1", "later/7", "zstd/1"];
    for (agent_id, has) in [("a", vec![]), ("b", vec!["zstd/1"]), ("c", both)] {
        let capabilities = has.iter().map(|one| (*one).to_owned()).collect();
        let mut agent = hub.greet(ops::Hello { capabilities, ..hello(agent_id) }).await;
        let both: Vec<_> = has.into_iter().filter(|one| *one != "later/7").collect();
        assert_eq!(agent.accepted().await.capabilities, both);
    }
    let without = TestHub::start().await;
    let mut agent = without.greet(streaming_hello()).await;
    assert!(agent.accepted().await.capabilities.is_empty(), "there is nothing to stream to");
}

#[tokio::test]
async fn a_changed_spec_reaches_the_agent_as_rules_under_the_same_epoch() {
    let mut world = World::start().await;
    assert_eq!(world.rules, CachingRules::default());
    let mut changed = elected("one", BOOT_A, 3);
    changed.spec.kinds = vec!["Pod".into()];
    changed.metadata.generation = Some(2);
    world.hub.accounts.show(changed);
    loop {
        match world.agent.next().await {
            Ok(Some(hub_frame::Frame::CachingAssignment(told))) => {
                let fence = told.fence.expect("it is named");
                let rules = told.rules.expect("it has rules");
                assert_eq!((fence.caching_epoch, told.on, rules.kinds), (3, true, vec!["Pod".to_owned()]));
                assert_eq!(told.account.expect("it is named").generation, 2);
                return;
            }
            // The definition, which has changed too.
            Ok(Some(_)) => {}
            other => panic!("expected CachingAssignment, got {other:?}"),
        }
    }
}

#[tokio::test]
async fn a_later_stream_of_the_session_takes_the_place_of_the_first() {
    let world = World::start().await;
    let (mut first, _) = world.flowing().await;
    let (mut second, resume) = world.flowing().await;
    assert_eq!(first.closed().await.0, Reason::Superseded);
    assert_eq!(resume.committed_seq, 0);
    second.say(say(batch(0, 1, vec![upsert("a", 1, "{}")]))).await;
    second.acknowledged(1).await;
}

#[tokio::test]
async fn a_stream_ends_with_its_session_and_gives_back_what_it_borrowed() {
    let World { hub, agent, cache, rules, session_id } = World::start().await;
    let world = World { agent: hub.open().await, hub, cache, rules, session_id };
    let (mut stream, _) = world.flowing().await;
    stream.say(cache_up::Frame::Want(Want { bytes: 100_000 })).await;
    assert_eq!(stream.next().await, Frame::Credit(events::Credit { bytes: 100_000 }));
    assert_eq!(metric(&world.hub, "kubesvc_cache_lent_bytes"), 100_000.0);
    drop(agent);
    let (reason, message) = stream.closed().await;
    assert_eq!(reason, Reason::SessionEnded);
    assert!(message.contains("next one"), "{message}");
    eventually("the loan is back", || (metric(&world.hub, "kubesvc_cache_lent_bytes") == 0.0).then_some(()))
        .await;
}

#[tokio::test]
async fn a_replica_that_drains_closes_its_streams_and_takes_no_new_ones() {
    let world = World::start().await;
    let (mut stream, _) = world.flowing().await;
    world.hub.hub.set_isolated(true);
    let (reason, message) = stream.closed().await;
    assert_eq!(reason, Reason::Draining);
    assert!(message.contains("does not reach its API server"), "{message}");
    let again = world.dial(cache_up::Frame::Open(world.open_frame())).await.closed().await;
    assert_eq!(again.0, Reason::Draining);
}

#[tokio::test]
async fn begin_waits_for_its_own_fence_and_a_later_election_revokes() {
    let world = World::start().await;
    world.hub.accounts.show(elected("two", BOOT_A, 3));
    let mut stream = world.open().await;
    let two = Some(Fence { account_uid: "uid-two".into(), caching_epoch: 3 });
    // The agent does not hold account two, so no fence was raised for it here.
    let of_two = Begin { fence: two, scopes: vec![declaration(1, "Pod")], last: true, ..Begin::default() };
    stream.say(cache_up::Frame::Begin(of_two)).await;
    stream.say(begin()).await;
    assert_eq!(stream.resumed().await.fence, fence(3), "one does not wait for two");
    eventually("two waits", || {
        (metric(&world.hub, "kubesvc_cache_accounts{state=\"waiting\"}") == 1.0).then_some(())
    })
    .await;
    world.hub.accounts.show(elected("two", BOOT_B, 4));
    let revoked = match stream.answer().await {
        Frame::Revoked(revoked) => revoked,
        other => panic!("expected Revoked, got {other:?}"),
    };
    assert_eq!(revoked.reason(), events::revoked::Reason::Superseded);
    assert_eq!(revoked.fence.map(|fence| fence.account_uid).as_deref(), Some("uid-two"));
    let gone = Some(Fence { account_uid: "uid-gone".into(), caching_epoch: 3 });
    stream.say(cache_up::Frame::Begin(Begin { fence: gone, last: true, ..Begin::default() })).await;
    match stream.answer().await {
        Frame::Revoked(revoked) => assert_eq!(revoked.reason(), events::revoked::Reason::AccountGone),
        other => panic!("expected Revoked, got {other:?}"),
    }
}

#[tokio::test]
async fn the_end_of_a_connection_leaves_nothing_pending() {
    let world = World::start().await;
    let (mut stream, _) = world.flowing().await;
    world.cache.answers.send_replace(false);
    stream.say(say(batch(0, 1, vec![upsert("a", 1, "{}")]))).await;
    eventually("it is written", || (*world.cache.begun.lock() == 1).then_some(())).await;
    stream.say(say(batch(1, 2, vec![upsert("b", 1, "{}")]))).await;
    stream.say(cache_up::Frame::Ping(Ping { nonce: 1 })).await;
    assert!(matches!(stream.answer().await, Frame::Pong(_)), "both have arrived");
    assert!(metric(&world.hub, "kubesvc_cache_pending_bytes") > 0.0);
    drop(stream);
    eventually("nothing waits", || (metric(&world.hub, "kubesvc_cache_pending_bytes") == 0.0).then_some(()))
        .await;
    world.cache.answers.send_replace(true);
    let (mut stream, _) = world.flowing().await;
    stream.say(cache_up::Frame::End(End { fence: fence(3) })).await;
    eventually("the first is written", || (world.cache.committed("uid-one") == 1).then_some(())).await;
    stream.say(cache_up::Frame::Ping(Ping { nonce: 1 })).await;
    assert_eq!(stream.answer().await, Frame::Pong(events::Pong { nonce: 1 }));
}
