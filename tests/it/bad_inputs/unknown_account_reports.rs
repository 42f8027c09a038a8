//! Reports of an agent about accounts that it was never given. None is believed, and none ends the stream: it
//! may have crossed with another message, or come from a later version.

use kubesvc_core::wire::common::{AccountRef, Failure};
use kubesvc_core::wire::ops::account_result::Outcome;
use kubesvc_core::wire::ops::{self, agent_frame::Frame, hub_frame};

use super::raw_stream::{RawStream, hello};
use crate::world::{MAX_WAIT, World};
use kubesvc_testkit::wait::eventually;

/// Reference to the account that another agent holds, at a given epoch.
struct Other<'a>(&'a AccountRef);

impl Other<'_> {
    fn at(&self, epoch: u64) -> Option<AccountRef> {
        Some(AccountRef { epoch, ..self.0.clone() })
    }

    fn called(&self, uid: &str) -> Option<AccountRef> {
        Some(AccountRef { uid: uid.to_owned(), ..self.0.clone() })
    }

    fn now(&self) -> Option<AccountRef> {
        Some(self.0.clone())
    }
}

type MakeReport = fn(&Other<'_>) -> Option<Frame>;

const REPORTS: &[(&str, MakeReport)] = &[
    ("held, of an account of another zone", |o| held(o.now())),
    ("held, under no epoch", |o| held(o.at(0))),
    ("held, under a later epoch", |o| held(o.at(99))),
    ("held, under the greatest signed epoch", |o| held(o.at(i64::MAX.unsigned_abs()))),
    ("held, under the least signed epoch", |o| held(o.at(i64::MIN.unsigned_abs()))),
    ("held, under the greatest epoch", |o| held(o.at(u64::MAX))),
    ("held, of a uid that nobody has", |o| held(o.called("00000000-0000-4000-8000-000000000000"))),
    ("held, of an empty uid", |o| held(o.called(""))),
    ("held, of a uid of a mebibyte", |o| held(o.called(&"u".repeat(1 << 20)))),
    ("held, of a uid of SQL and control characters", |o| held(o.called("'; DROP TABLE x;--\0\u{1b}[2J\n"))),
    ("held, of no account", |_| held(None)),
    ("failed, of an account of another zone", |o| result(o.now(), Some(Outcome::Failure(failure(1))), false)),
    ("failed, with a class that there is not", |o| {
        result(o.now(), Some(Outcome::Failure(failure(9999))), false)
    }),
    ("failed, with a class below all", |o| result(o.now(), Some(Outcome::Failure(failure(i32::MIN))), false)),
    ("dropped, of an account of another zone", |o| result(o.now(), None, true)),
    ("dropped, under the greatest epoch", |o| result(o.at(u64::MAX), None, true)),
    ("not to be dropped, of an account of another zone", |o| {
        result(o.now(), Some(Outcome::Failure(failure(1))), true)
    }),
    ("an answer that says nothing", |o| result(o.now(), None, false)),
    ("no answers", |_| Some(Frame::AccountResults(ops::AccountResults::default()))),
    ("fifty thousand answers", |o| {
        let one = ops::AccountResult { account: o.called("u"), dropped: true, ..Default::default() };
        Some(Frame::AccountResults(ops::AccountResults { results: vec![one; 50_000] }))
    }),
    ("lost, of an account of another zone", |o| lost(o.now())),
    ("lost, under a later epoch", |o| lost(o.at(99))),
    ("lost, of no account", |_| lost(None)),
    ("working, at an account of another zone", |o| Some(Frame::Working(ops::Working { account: o.now() }))),
    ("working, at no account", |_| Some(Frame::Working(ops::Working { account: None }))),
    ("an offer that nobody asked for", |o| offer(o.now(), true, None)),
    ("an offer for no account", |_| offer(None, true, None)),
    ("a refusal that nobody asked for, without a reason", |o| offer(o.now(), false, None)),
    ("an offer with a failure", |o| offer(o.now(), true, Some(failure(9999)))),
    ("a second hello", |_| Some(Frame::Hello(hello("liar", "west")))),
    ("a second hello under another's id and zone", |_| Some(Frame::Hello(hello("agent-1", "east")))),
    ("a frame with nothing in it", |_| None),
    ("a heartbeat of extremes", |_| {
        let extremes = ops::Heartbeat { nonce: u64::MAX, unix_ms: i64::MIN, accounts_live: u32::MAX };
        Some(Frame::Heartbeat(extremes))
    }),
];

const NUMBERS: &str = "frames numbered backwards and past all bounds";
const CLAIM: &str = "a hello that holds an account of another zone";

pub(super) fn names() -> Vec<&'static str> {
    REPORTS.iter().map(|(name, _)| *name).chain([NUMBERS, CLAIM]).collect()
}

fn held(account: Option<AccountRef>) -> Option<Frame> {
    let identity = ops::ClusterIdentity { host: "https://liar.example".into(), ..Default::default() };
    result(account, Some(Outcome::Identity(identity)), false)
}

fn result(account: Option<AccountRef>, outcome: Option<Outcome>, dropped: bool) -> Option<Frame> {
    let results = vec![ops::AccountResult { account, outcome, dropped, refused: None }];
    Some(Frame::AccountResults(ops::AccountResults { results }))
}

fn lost(account: Option<AccountRef>) -> Option<Frame> {
    Some(Frame::Lost(ops::Lost { account, failure: None }))
}

fn offer(account: Option<AccountRef>, ok: bool, failure: Option<Failure>) -> Option<Frame> {
    Some(Frame::ProbeResult(ops::ProbeResult { account, ok, failure }))
}

fn failure(class: i32) -> Failure {
    Failure { class, message: "a lie\0\u{1b}[31m".to_owned(), ..Failure::default() }
}

/// The account that a real agent holds.
pub(super) async fn good(world: &World) -> AccountRef {
    let account = world.object("good").await.expect("it is ACTIVE");
    let epoch = account.status_or_default().epoch.0.unsigned_abs();
    AccountRef { uid: account.uid().to_owned(), name: "good".to_owned(), epoch, generation: 1 }
}

pub(super) async fn try_all(world: &World) {
    let good = good(world).await;
    let mut line = RawStream::accepted(world, hello("liar", "west")).await;
    for (name, say) in REPORTS {
        line.say(say(&Other(&good))).await;
        line.until_heard(name).await;
    }
    for seq in [u64::MAX, 0, 7] {
        line.say_numbered(Some(Frame::Heartbeat(ops::Heartbeat::default())), seq, u64::MAX).await;
    }
    line.until_heard(NUMBERS).await;
    for agents in [world.get("/armory/agents/liar").await, world.get("/armory/agents").await] {
        assert!(!agents.text.contains("liar.example"), "{agents}");
    }
    let liar = world.get("/armory/agents/liar").await;
    assert_eq!(liar.json["accounts"], serde_json::json!([]), "{liar}");
    hold_counted(world).await;
    line.say(Some(Frame::Goodbye(ops::Goodbye {}))).await;
    drop(line);

    let mut claims = hello("claimant", "west");
    claims.accounts_held =
        vec![ops::HeldAccount { account: Some(good.clone()), caching_epoch: 0, ..Default::default() }];
    let mut line = RawStream::accepted(world, claims).await;
    match line.next().await {
        Ok(Some(hub_frame::Frame::DeleteAccounts(delete))) => {
            assert_eq!(
                delete.accounts.iter().map(|one| &one.uid).collect::<Vec<_>>(),
                [&good.uid],
                "{CLAIM}"
            );
        }
        other => unreachable!("{CLAIM}: {other:?}"),
    }
    line.say(result(Some(good), None, true)).await;
    line.until_heard(CLAIM).await;
    line.say(Some(Frame::Goodbye(ops::Goodbye {}))).await;
    eventually("the agents are gone", MAX_WAIT, async || {
        let agents = world.try_get("/armory/agents").await?;
        if agents.json.as_array().is_some_and(|all| all.len() == 1) {
            Ok(())
        } else {
            Err(agents.to_string())
        }
    })
    .await;
}

/// Checks that each kind of report was counted as ignored.
async fn hold_counted(world: &World) {
    let metrics = world.get("/metrics").await.text;
    for reason in ["no_grant", "never_sent", "malformed_answer", "second_hello", "unknown_frame"] {
        let counted = metrics.lines().filter(|line| line.contains("ignored") && line.contains(reason));
        let counted: Vec<_> = counted.filter(|line| !line.ends_with(" 0")).collect();
        assert!(!counted.is_empty(), "no answer was ignored as {reason}:\n{metrics}");
    }
}
