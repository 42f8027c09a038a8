//! First frames that must be refused, and odd ones that are accepted.

use kubesvc_core::wire::common::AccountRef;
use kubesvc_core::wire::ops::refused::Reason;
use kubesvc_core::wire::ops::{self, agent_frame::Frame, hub_frame};

use super::raw_stream::{RawStream, hello};
use crate::world::World;

type Change = fn(&mut ops::Hello);

/// Name of the case, the change that makes the hello invalid, the reason, and what the message must contain.
const REFUSED: &[(&str, Change, Reason, &str)] = &[
    (
        "an agent id of white space",
        |h| h.agent_id = "   ".into(),
        Reason::Malformed,
        "agent_id begins or ends with white",
    ),
    (
        "an agent id that ends with a space",
        |h| h.agent_id = "a ".into(),
        Reason::Malformed,
        "agent_id begins or ends",
    ),
    ("an agent id of 300 characters", |h| h.agent_id = "x".repeat(300), Reason::Malformed, "longer than 191"),
    ("an agent id of 192 emoji", |h| h.agent_id = "🚀".repeat(192), Reason::Malformed, "longer than 191"),
    (
        "an agent id with a NUL",
        |h| h.agent_id = "a\0b".into(),
        Reason::Malformed,
        "agent_id has control characters",
    ),
    (
        "an agent id with a C1 control",
        |h| h.agent_id = "a\u{85}b".into(),
        Reason::Malformed,
        "agent_id has control",
    ),
    (
        "a zone of white space",
        |h| h.zone_id = "\u{2003}".into(),
        Reason::Malformed,
        "zone_id begins or ends with white",
    ),
    (
        "a zone that ends with a no-break space",
        |h| h.zone_id = "east\u{a0}".into(),
        Reason::Malformed,
        "zone_id begins",
    ),
    (
        "a zone of 300 characters",
        |h| h.zone_id = "z".repeat(300),
        Reason::Malformed,
        "zone_id is longer than 255",
    ),
    (
        "a zone with an escape",
        |h| h.zone_id = "\u{1b}[31meast".into(),
        Reason::Malformed,
        "zone_id has control",
    ),
    (
        "a version with a line break",
        |h| h.version = "1\n2".into(),
        Reason::Malformed,
        "version has control characters",
    ),
    (
        "a version of a mebibyte",
        |h| h.version = "1".repeat(1 << 20),
        Reason::Malformed,
        "version is longer than 128",
    ),
    (
        "a boot id in the wrong letters",
        |h| h.boot_id = "U".repeat(26),
        Reason::Malformed,
        "boot_id must be a ULID",
    ),
    ("a boot id with a space", |h| h.boot_id.insert(0, ' '), Reason::Malformed, "boot_id must be a ULID"),
    (
        "a connection that is counted as none",
        |h| h.connect_seq = 0,
        Reason::Malformed,
        "connect_seq must count from 1",
    ),
    (
        "a connection beyond counting",
        |h| h.connect_seq = u64::MAX,
        Reason::Malformed,
        "connect_seq must count from 1",
    ),
    (
        "a protocol too old",
        |h| (h.protocol_min, h.protocol_max) = (0, 0),
        Reason::ProtocolTooOld,
        "upgrade the agent",
    ),
    (
        "a protocol too new",
        |h| (h.protocol_min, h.protocol_max) = (2, u32::MAX),
        Reason::ProtocolTooNew,
        "upgrade the operator",
    ),
    (
        "an account held without a name of its own",
        |h| h.accounts_held = vec![ops::HeldAccount::default()],
        Reason::Malformed,
        "an entry without account",
    ),
    (
        "an account held without a uid",
        |h| held(h, "", "n", 1),
        Reason::Malformed,
        "accounts_held.account.uid is empty",
    ),
    (
        "an account held by a long uid",
        |h| held(h, &"u".repeat(65), "n", 1),
        Reason::Malformed,
        "uid is longer than 64",
    ),
    (
        "an account held by a name with a NUL",
        |h| held(h, "u", "a\0", 1),
        Reason::Malformed,
        "account.name has control",
    ),
    (
        "an account held by a name of a mebibyte",
        |h| held(h, "u", &"n".repeat(1 << 20), 1),
        Reason::Malformed,
        "name is longer than 255",
    ),
    (
        "an account held under the greatest epoch",
        |h| held(h, "u", "n", u64::MAX),
        Reason::Malformed,
        "beyond what an epoch can be",
    ),
    (
        "an account held under an epoch past 2^53",
        |h| held(h, "u", "n", 1 << 53),
        Reason::Malformed,
        "beyond what an epoch can be",
    ),
    (
        "a hundred thousand and one accounts held",
        |h| many(h, 100_001),
        Reason::Malformed,
        "at most 100000 may be",
    ),
    (
        "the id of another agent",
        |h| (h.agent_id, h.zone_id) = ("agent-1".into(), "east".into()),
        Reason::DuplicateAgentId,
        "an AGENT_ID of its own",
    ),
];

/// Name of the case, and a hello that is odd but harmless: it is accepted.
const ACCEPTED: &[(&str, Change)] = &[
    ("the id of another agent in another zone", |h| h.agent_id = "agent-1".into()),
    ("an agent id of SQL, a path, quotes and emoji", |h| {
        h.agent_id = "../x'; DROP TABLE kubesvc_accounts;-- \"🚀\"".into();
    }),
    ("a zone of SQL, a path, quotes and emoji", |h| {
        h.zone_id = "../../etc/'; DELETE FROM kubesvc_accounts;-- 🦀".into();
    }),
    ("an agent id of 191 emoji", |h| h.agent_id = "🚀".repeat(191)),
    ("no version", |h| h.version.clear()),
    ("the same account held a thousand times", |h| many(h, 1000)),
    ("a thousand capabilities of nobody", |h| h.capabilities = vec!["kubeapi/99999999999".into(); 1000]),
    ("a message size of one byte", |h| h.max_message_bytes = 1),
    ("a message size past all bounds", |h| h.max_message_bytes = u32::MAX),
    ("a pod with control characters", |h| {
        h.kube = Some(ops::KubernetesPlace { namespace: "\0".into(), pod: "\n".into() });
    }),
];

/// Hellos that are too large for one message, and frames that are not a hello: the stream ends with a status
/// or a refusal.
const ENDED: &[&str] = &[
    "a million accounts held",
    "results before the hello",
    "goodbye before the hello",
    "an empty first frame",
];

pub(super) fn names() -> Vec<&'static str> {
    let refused = REFUSED.iter().map(|(name, ..)| *name);
    refused.chain(ACCEPTED.iter().map(|(name, _)| *name)).chain(ENDED.iter().copied()).collect()
}

fn held(hello: &mut ops::Hello, uid: &str, name: &str, epoch: u64) {
    let account = Some(AccountRef { uid: uid.into(), name: name.into(), epoch, generation: 1 });
    hello.accounts_held.push(ops::HeldAccount { account, caching_epoch: 0, ..Default::default() });
}

fn many(hello: &mut ops::Hello, count: usize) {
    held(hello, "u", "n", 1);
    hello.accounts_held = vec![hello.accounts_held[0].clone(); count];
}

pub(super) async fn try_all(world: &World) {
    for (name, change, reason, said) in REFUSED {
        let mut bad = hello("stranger", "west");
        change(&mut bad);
        let mut line = RawStream::open(world, Frame::Hello(bad)).await.expect(name);
        match line.next().await {
            Ok(Some(hub_frame::Frame::Refused(refused))) => {
                assert_eq!(refused.reason(), *reason, "{name}: {refused:?}");
                assert!(refused.message.contains(said), "{name}: {refused:?}");
                assert!(refused.message.len() < 400, "{name}: {refused:?}");
                assert_eq!(refused.permanent, *reason != Reason::DuplicateAgentId, "{name}: {refused:?}");
            }
            other => unreachable!("{name}: {other:?}"),
        }
        assert!(matches!(line.next().await, Ok(None)), "{name}: the stream goes on");
    }
    for (index, (name, change)) in ACCEPTED.iter().enumerate() {
        let mut odd = hello(&format!("odd-{index}"), "west");
        change(&mut odd);
        let agent_id = odd.agent_id.clone();
        let mut line = RawStream::accepted(world, odd).await;
        line.until_heard(name).await;
        let agents = world.get("/armory/agents").await;
        let ids: Vec<_> =
            agents.json.as_array().into_iter().flatten().map(|one| one["agentId"].clone()).collect();
        assert!(ids.iter().any(|id| *id == agent_id.as_str()), "{name}: {agents}");
        line.say(Some(Frame::Goodbye(ops::Goodbye {}))).await;
    }
    let mut million = hello("stranger", "west");
    many(&mut million, 1_000_000);
    let firsts = [
        Some(Frame::Hello(million)),
        Some(Frame::AccountResults(ops::AccountResults::default())),
        Some(Frame::Goodbye(ops::Goodbye {})),
        None,
    ];
    for (name, first) in ENDED.iter().zip(firsts) {
        let Some(first) = first else {
            ends_at_an_empty_frame(world, name).await;
            continue;
        };
        let ended = match RawStream::open(world, first).await {
            Err(status) => Err(status),
            Ok(mut line) => line.next().await,
        };
        hold_ended(name, ended);
    }
}

fn hold_ended(name: &str, ended: Result<Option<hub_frame::Frame>, tonic::Status>) {
    match ended {
        Err(status) => assert!(!status.message().is_empty(), "{name}: {status:?}"),
        Ok(Some(hub_frame::Frame::Refused(refused))) => {
            assert!(refused.message.contains("the first frame must be Hello"), "{name}: {refused:?}");
        }
        Ok(other) => unreachable!("{name}: {other:?}"),
    }
}

/// A frame envelope without content.
async fn ends_at_an_empty_frame(world: &World, name: &str) {
    let mut line = match RawStream::open_empty(world).await {
        Err(status) => return hold_ended(name, Err(status)),
        Ok(line) => line,
    };
    hold_ended(name, line.next().await);
}
