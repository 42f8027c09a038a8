//! Lists of agents' own accounts: each invalid entry is answered with its name and the field, the valid ones
//! next to it are accepted, and a list beyond its limits is refused as a whole.

use kube::api::ListParams;
use kubesvc_core::KubesvcAccount;
use kubesvc_core::wire::common::AccountRef;
use kubesvc_core::wire::ops::account_spec::Credential;
use kubesvc_core::wire::ops::{self, agent_frame::Frame};

use super::raw_stream::{RawStream, hello};
use crate::world::{MAX_WAIT, World};
use kubesvc_testkit::wait::eventually;

type Entries = fn() -> Vec<ops::AccountSpec>;

/// Name of the case, the list, and what the answer must contain.
const LISTS: &[(&str, Entries, &str)] = &[
    ("an own account without a name", || vec![own("")], "name must have 1 to 255 characters"),
    (
        "an own account of 256 characters",
        || vec![own(&"n".repeat(256))],
        "name must have 1 to 255 characters",
    ),
    (
        "an own account of a mebibyte",
        || vec![own(&"n".repeat(1 << 20 >> 1))],
        "name must have 1 to 255 characters",
    ),
    ("an own account with a NUL", || vec![own("a\0b")], "no control character"),
    ("own accounts of one name", || vec![own("twin"), own("twin")], "\"twin\" is in the file twice"),
    ("an own account that another declared", || vec![own("good")], "declared as KubesvcAccount"),
    (
        "an own account with the contents of a kubeconfig",
        || vec![with(|o| o.credential = Some(Credential::Kubeconfig(b"token: CANARY".to_vec())))],
        "the contents of a kubeconfig are not taken",
    ),
    (
        "an own account without a credential",
        || vec![with(|o| o.credential = None)],
        "exactly one of kubeconfigFile and serviceAccount",
    ),
    (
        "an own account with a path upwards",
        || vec![with(|o| o.credential = Some(Credential::File("/a/../../etc/shadow".into())))],
        "must not contain ..",
    ),
    (
        "an own account with a relative path",
        || vec![with(|o| o.credential = Some(Credential::File("config".into())))],
        "must be an absolute path",
    ),
    (
        "an own account with a NUL in its path",
        || vec![with(|o| o.credential = Some(Credential::File("/a\0b".into())))],
        "must not contain control",
    ),
    (
        "an own account with a role of nothing",
        || vec![with(|o| o.read_roles = vec![String::new()])],
        "spec.permissions.READ",
    ),
    (
        "an own account with ten thousand roles",
        || vec![with(|o| o.write_roles = vec!["r".into(); 10_000])],
        "spec.permissions.WRITE",
    ),
    (
        "an own account with an age past all bounds",
        || vec![with(|o| o.max_resumable_resource_age_ms = u64::MAX)],
        "maxResumableResourceAgeMs",
    ),
    ("an own account with an empty kind", || vec![with(|o| o.kinds = vec![String::new()])], "spec.kinds"),
    (
        "an own account with namespaces both named and omitted",
        || vec![with(|o| (o.namespaces, o.omit_namespaces) = (vec!["a".into()], vec!["b".into()]))],
        "spec.omitNamespaces exclude",
    ),
    (
        "a frame of fifty-one own accounts",
        || (0..51).map(|n| own(&format!("a{n}"))).collect(),
        "at most 50 may be",
    ),
];

const MILLION: &str = "a million own accounts";
const HUGE: &str = "a frame of own accounts of two mebibytes";

pub(super) fn names() -> Vec<&'static str> {
    LISTS.iter().map(|(name, ..)| *name).chain([MILLION, HUGE]).collect()
}

fn own(name: &str) -> ops::AccountSpec {
    ops::AccountSpec {
        account: Some(AccountRef { name: name.to_owned(), ..AccountRef::default() }),
        credential: Some(Credential::File("/kubeconfigs/one".to_owned())),
        ..ops::AccountSpec::default()
    }
}

fn with(change: fn(&mut ops::AccountSpec)) -> ops::AccountSpec {
    let mut own = own("own");
    change(&mut own);
    own
}

fn list(accounts: Vec<ops::AccountSpec>, complete: bool) -> Option<Frame> {
    Some(Frame::StaticAccounts(ops::StaticAccounts { accounts, complete }))
}

pub(super) async fn try_all(world: &World) {
    let mut line = RawStream::accepted(world, hello("lister", "far")).await;
    for (name, entries, said) in LISTS {
        line.say(list(entries(), true)).await;
        until_said(&mut line, name, said).await;
    }
    for part in 0..20_000_u32 {
        // A refused list is answered once, and read to its end.
        line.say(list((0..50).map(|n| own(&format!("a{part}-{n}"))).collect(), part == 19_999)).await;
    }
    until_said(&mut line, MILLION, "more than 1000 accounts").await;
    let mut huge = own("huge");
    huge.context = "x".repeat(2 << 20);
    line.say(list(vec![huge], true)).await;
    until_said(&mut line, HUGE, "bytes").await;
    line.until_heard("after bad lists").await;
    // None of the lists created an object, except for the first of the twins, which is deleted with its list.
    line.say(list(Vec::new(), true)).await;
    eventually("no object of an agent's own", MAX_WAIT, async || {
        let all =
            world.api::<KubesvcAccount>().list(&ListParams::default()).await.map_err(|e| e.to_string())?;
        let left = all.items.iter().filter(|one| one.account_name() != "good" && !one.is_being_deleted());
        let left: Vec<_> = left.map(KubesvcAccount::account_name).collect();
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    })
    .await;
    line.say(Some(Frame::Goodbye(ops::Goodbye {}))).await;
    drop(line);
    world.until_gone("twin").await;
    assert!(!world.operator().log_text().contains("CANARY"));
}

async fn until_said(line: &mut RawStream, name: &str, said: &str) {
    for _ in 0..20 {
        let refusals = line.refusals().await;
        assert!(
            refusals.iter().all(|(name, why)| name.len() < 2048 && why.len() < 1024),
            "{name}: {refusals:?}"
        );
        if refusals.iter().any(|(_, why)| why.contains(said)) {
            return;
        }
    }
    unreachable!("{name}: nobody says {said:?}");
}
