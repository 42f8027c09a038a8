//! An agent that was given an account and reports nonsense about it, next to one that holds it properly.

use kubesvc_core::wire::common::{AccountRef, Failure};
use kubesvc_core::wire::ops::account_result::Outcome;
use kubesvc_core::wire::ops::{self, agent_frame::Frame, hub_frame};

use super::raw_stream::{RawStream, hello};
use crate::world::World;
use kubesvc_testkit::must;

type MakeReport = fn(AccountRef) -> ops::AccountResult;

/// Name of the case, and the report in answer to AddAccounts. The agent then counts as failed, and no other
/// agent is affected.
const FAILED: &[(&str, MakeReport)] = &[
    ("a cluster of a uid of 2,000 characters", |a| held(a, |i| i.kube_system_uid = "u".repeat(2000))),
    ("a cluster at an address of a mebibyte", |a| held(a, |i| i.host = "h".repeat(1 << 20))),
    ("a cluster at an address with a NUL", |a| held(a, |i| i.host = "https://a\0b".into())),
    ("a cluster with a certificate of a mebibyte", |a| held(a, |i| i.cert_fingerprint = "A".repeat(1 << 20))),
    ("a failure of a class that there is not", |a| failed(a, 9999, "why")),
    ("a failure without a reason", |a| failed(a, 1, "")),
    ("a failure of control characters", |a| failed(a, 3, "\0\u{1b}[2J\n\r")),
    ("a failure of three mebibytes", |a| failed(a, 3, &"é".repeat(3 << 19))),
];

/// Reports after which the agent is told to drop the account.
const WRONG_CLUSTER: &[(&str, MakeReport)] = &[
    ("another cluster than the account's", |a| held(a, |i| i.kube_system_uid = "another".into())),
    ("another cluster, without a uid", |a| {
        held(a, |i| {
            (i.token_keys_digest, i.authority_key_digest) = ("b".repeat(64), "c".repeat(64));
        })
    }),
];

/// Reports that are processed without any effect on the account.
const IGNORED: &[(&str, MakeReport)] = &[
    ("held under an older epoch", |a| held(AccountRef { epoch: 0, ..a }, |_| {})),
    ("held under a later epoch than was sent", |a| held(AccountRef { epoch: a.epoch + 7, ..a }, |_| {})),
    ("dropped though nobody asked", |a| ops::AccountResult {
        account: Some(a),
        dropped: true,
        ..Default::default()
    }),
    ("not to be dropped though nobody asked", |a| ops::AccountResult {
        dropped: true,
        ..failed(a, 1, "stuck")
    }),
    ("held under another name", |a| held(AccountRef { name: "another\0name".into(), ..a }, |_| {})),
];

pub(super) fn names() -> Vec<&'static str> {
    [FAILED, WRONG_CLUSTER, IGNORED].iter().flat_map(|group| group.iter().map(|(name, _)| *name)).collect()
}

fn held(account: AccountRef, change: fn(&mut ops::ClusterIdentity)) -> ops::AccountResult {
    let mut identity = ops::ClusterIdentity::default();
    change(&mut identity);
    ops::AccountResult {
        account: Some(account),
        outcome: Some(Outcome::Identity(identity)),
        ..Default::default()
    }
}

fn failed(account: AccountRef, class: i32, message: &str) -> ops::AccountResult {
    let failure = Failure { class, message: message.to_owned(), ..Failure::default() };
    ops::AccountResult {
        account: Some(account),
        outcome: Some(Outcome::Failure(failure)),
        ..Default::default()
    }
}

pub(super) async fn try_all(world: &World) {
    let groups = [("failed", FAILED), ("wrong-cluster", WRONG_CLUSTER), ("ignored", IGNORED)];
    for (kind, cases) in groups {
        for (index, (name, say)) in cases.iter().enumerate() {
            let mut line = RawStream::accepted(world, hello(&format!("{kind}-{index}"), "east")).await;
            let account = until_added(&mut line, name).await;
            let answer = say(account.clone());
            line.say(Some(Frame::AccountResults(ops::AccountResults { results: vec![answer] }))).await;
            if kind == "wrong-cluster" {
                let dropped = until_dropped(&mut line, name).await;
                assert_eq!((&dropped.uid, dropped.epoch), (&account.uid, account.epoch), "{name}");
            } else {
                line.until_heard(name).await;
            }
            check_account_unchanged(world, &format!("{kind}-{index}"), name).await;
            line.say(Some(Frame::Goodbye(ops::Goodbye {}))).await;
        }
    }
}

/// Waits until the agent is sent the account.
async fn until_added(line: &mut RawStream, name: &str) -> AccountRef {
    loop {
        match must(line.next().await.map_err(|status| format!("{name}: {status}"))) {
            Some(hub_frame::Frame::AddAccounts(add)) => {
                let accounts = add.accounts.into_iter().filter_map(|one| one.account);
                if let Some(good) = accounts.into_iter().find(|one| one.name == "good") {
                    return good;
                }
            }
            Some(_) => {}
            None => unreachable!("{name}: the stream has ended"),
        }
    }
}

async fn until_dropped(line: &mut RawStream, name: &str) -> AccountRef {
    match line.next().await {
        Ok(Some(hub_frame::Frame::DeleteAccounts(delete))) => delete.accounts[0].clone(),
        other => unreachable!("{name}: {other:?}"),
    }
}

/// Checks that the account is unchanged, and that only the agent that holds it is shown as its holder, under
/// its own name.
async fn check_account_unchanged(world: &World, agent: &str, name: &str) {
    let account = world.get("/armory/accounts/good").await;
    assert_eq!(account.json["status"], "ACTIVE", "{name}: {account}");
    let agents = world.get(&format!("/armory/agents/{agent}")).await;
    let holds = agents.json["accounts"].as_array().cloned().unwrap_or_default();
    assert!(holds.iter().all(|one| one == "good"), "{name}: {agents}");
    let row = world.row("good").await.expect("its row");
    assert_eq!(row.status, "ACTIVE", "{name}: {row:?}");
    assert!(row.kube_host.is_some_and(|host| host.starts_with("https://127.0.0.1")), "{name}");
}
