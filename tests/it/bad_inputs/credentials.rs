//! Secrets with unsuitable content, or missing at the moment when an account needs them. Each problem is
//! reported, and each account is ACTIVE once its Secret is valid.

use k8s_openapi::api::core::v1::Secret;
use kube::api::{DeleteParams, Patch, PatchParams};
use kubesvc_core::State;
use serde_json::json;

use crate::world::{MAX_WAIT, World};
use kubesvc_testkit::must;
use kubesvc_testkit::simulated_agent::SimulatedAgent;
use kubesvc_testkit::simulated_agent::frames::{Introduction, OnAdd, Policy};
use kubesvc_testkit::wait::eventually;

type Bytes = fn(&str) -> Vec<u8>;

/// Name of the case, content of the Secret, and what the message must contain.
const CONTENTS: &[(&str, Bytes, &str)] = &[
    ("an empty Secret", |_| Vec::new(), "kubeconfig"),
    ("a Secret of white space", |_| b" \n\t \n".to_vec(), "kubeconfig"),
    ("a Secret that is not UTF-8", |_| b"\xff\xfea: b".to_vec(), "kubeconfig"),
    ("a Secret of NULs", |_| vec![0; 4096], "kubeconfig"),
    (
        "a Secret of 900 KiB of YAML",
        |good| format!("{good}{}", "# x\n".repeat(225 << 10)).into_bytes(),
        "256 KiB",
    ),
    ("a Secret that swells by aliases", |_| bomb().into_bytes(), "kubeconfig"),
    ("a Secret of ten thousand brackets", |_| "[".repeat(10_000).into_bytes(), "kubeconfig"),
    ("a Secret with half a kubeconfig", |good| good.as_bytes()[..good.len() / 2].to_vec(), "kubeconfig"),
    ("a Secret with a kubeconfig in base64 twice", |good| base64(good).into_bytes(), "kubeconfig"),
    (
        "a Secret with JSON of something else",
        |_| br#"{"auths": {"registry": {"auth": "CANARY"}}}"#.to_vec(),
        "kubeconfig",
    ),
    ("a Secret with a list", |_| b"- a\n- b\n".to_vec(), "kubeconfig"),
];

const MISSING: &str = "a Secret that is not there";
const KEYLESS: &str = "a Secret without the key";
const WHILE_ACTIVATING: &str = "a Secret that goes while ACTIVATING";
const WHILE_ACTIVE: &str = "a Secret that goes while ACTIVE";
const LOST_KEY: &str = "a Secret that loses its key while ACTIVE";

pub(super) fn names() -> Vec<&'static str> {
    let contents = CONTENTS.iter().map(|(name, ..)| *name);
    contents.chain([MISSING, KEYLESS, WHILE_ACTIVATING, WHILE_ACTIVE, LOST_KEY]).collect()
}

/// Nine levels of aliases, ten in each.
fn bomb() -> String {
    let mut text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..10 {
        let before = vec![format!("*a{}", level - 1); 10].join(", ");
        text.push_str(&format!("a{level}: &a{level} [{before}]\n"));
    }
    text
}

fn base64(text: &str) -> String {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.encode(text)
}

pub(super) async fn try_all(world: &World, kubeconfig: &str) {
    for (index, (_, bytes, _)) in CONTENTS.iter().enumerate() {
        world
            .account(&format!("secret-{index}"))
            .zone("east")
            .kubeconfig_bytes(&bytes(kubeconfig))
            .create()
            .await;
    }
    for (index, (case, _, said)) in CONTENTS.iter().enumerate() {
        let account =
            world.until_reason(&format!("secret-{index}"), State::Failed, "KubeconfigRefused").await;
        let why = account.status_or_default().error_message.clone().unwrap_or_default();
        assert!(why.contains(said) && !why.contains("CANARY"), "{case}: {why}");
        world.until_row(&format!("secret-{index}"), "FAILED").await;
    }
    for index in 0..CONTENTS.len() {
        world.secret(&format!("secret-{index}"), kubeconfig.as_bytes(), true).await;
    }
    for index in 0..CONTENTS.len() {
        world.until(&format!("secret-{index}"), State::Active).await;
    }
    missing(world, kubeconfig).await;
    gone_while_active(world, kubeconfig).await;
    gone_while_activating(world, kubeconfig).await;
}

async fn missing(world: &World, kubeconfig: &str) {
    world.account("missing").zone("east").create().await;
    said(world, "missing", MISSING, &["Secret", "missing"]).await;
    world.secret("missing", kubeconfig.as_bytes(), true).await;
    world.until("missing", State::Active).await;
    let other = json!({"secretRef": {"name": "missing", "key": "other.yaml"}});
    world.account("keyless").zone("east").spec("kubeconfig", other).create().await;
    said(world, "keyless", KEYLESS, &["missing", "other.yaml"]).await;
    let right = json!({"spec": {"kubeconfig": {"secretRef": {"key": "kubeconfig"}}}});
    world.patch("keyless", right).await;
    world.until("keyless", State::Active).await;
}

/// The Secret has the label for being watched: its deletion and its return are noticed at once.
async fn gone_while_active(world: &World, kubeconfig: &str) {
    delete_secret(world, "secret-0").await;
    said(world, "secret-0", WHILE_ACTIVE, &["Secret", "secret-0"]).await;
    let renamed = json!({"data": {"kubeconfig": null, "config": "eA=="}});
    let secrets = world.api::<Secret>();
    let patched = secrets.patch("secret-1", &PatchParams::default(), &Patch::Merge(renamed)).await;
    must(patched.map_err(|error| error.to_string()));
    said(world, "secret-1", LOST_KEY, &["secret-1", "kubeconfig"]).await;
    for name in ["secret-0", "secret-1"] {
        world.secret(name, kubeconfig.as_bytes(), true).await;
        world.until(name, State::Active).await;
    }
}

/// The agent has been sent the account and has not answered.
async fn gone_while_activating(world: &World, kubeconfig: &str) {
    let hub = format!("127.0.0.1:{}", world.operator().hub_port());
    let mute = Policy { add: OnAdd::Silent, ..Policy::default() };
    let agent = SimulatedAgent::connect(&hub, Introduction::new("mute", "slow"), mute).await;
    let agent = must(agent.map_err(|error| error.to_string()));
    world.account("slow").zone("slow").kubeconfig(kubeconfig).create().await;
    world.until("slow", State::Activating).await;
    eventually("AddAccounts", MAX_WAIT, async || {
        if agent.added().is_empty() { Err("nothing was sent".to_owned()) } else { Ok(()) }
    })
    .await;
    delete_secret(world, "slow").await;
    said(world, "slow", WHILE_ACTIVATING, &["Secret", "slow"]).await;
    agent.set_policy(Policy::default());
    world.secret("slow", kubeconfig.as_bytes(), true).await;
    world.until("slow", State::Active).await;
    world.delete("slow").await;
    world.until_gone("slow").await;
    agent.goodbye().await;
}

async fn delete_secret(world: &World, name: &str) {
    must(world.api::<Secret>().delete(name, &DeleteParams::default()).await.map_err(|e| e.to_string()));
}

/// Checks that the account is FAILED because of a missing credential, and that the message names what is
/// missing.
async fn said(world: &World, name: &str, case: &str, words: &[&str]) {
    let account = world.until_reason(name, State::Failed, "CredentialMissing").await;
    let why = account.status_or_default().error_message.clone().unwrap_or_default();
    assert!(words.iter().all(|word| why.contains(word)), "{case}: {why}");
    world.until_row(name, "FAILED").await;
}
