//! Calls between replicas, with the key and without it.

use std::collections::BTreeMap;

use base64::Engine as _;
use hmac::{Hmac, KeyInit, Mac};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{DeleteParams, PostParams};
use serde_json::json;
use sha2::{Digest, Sha256};

use super::{FIRST, SECOND, two};
use crate::world::{Answer, Call, Database, MAX_WAIT, Operator, World};
use kubesvc_testkit::{must, wait::eventually};

const SECRET: &str = "kubesvc-peer";

/// A call that is signed as documented.
#[derive(Clone)]
struct Signed {
    key: Vec<u8>,
    method: &'static str,
    path: String,
    body: String,
    to: String,
    time: i64,
    nonce: String,
}

impl Signed {
    fn get(key: &[u8], path: &str) -> Self {
        Self {
            key: key.to_vec(),
            method: "GET",
            path: path.to_owned(),
            body: String::new(),
            to: FIRST.to_owned(),
            time: jiff::Timestamp::now().as_millisecond(),
            nonce: format!("{:032x}", rand::random::<u128>()),
        }
    }

    fn headers(&self) -> [(&'static str, String); 6] {
        let digest = hex::encode(Sha256::digest(&self.body));
        let Self { method, path, time, nonce, to, .. } = self;
        let text = format!("kubesvc-peer-1\n{method}\n{path}\n{digest}\n{time}\n{nonce}\ntest\n{to}\n");
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.key).expect("any key");
        mac.update(text.as_bytes());
        [
            ("x-kubesvc-from", "test".to_owned()),
            ("x-kubesvc-to", to.clone()),
            ("x-kubesvc-time", time.to_string()),
            ("x-kubesvc-nonce", nonce.clone()),
            ("x-kubesvc-key", key_id(&self.key)),
            ("x-kubesvc-signature", hex::encode(mac.finalize().into_bytes())),
        ]
    }

    /// The call; path and body may differ from the signed ones.
    fn call(&self, path: &str, body: &str) -> Call {
        let call = Call::new(self.method, path).bytes(body);
        self.headers().into_iter().fold(call, |call, (name, value)| call.header(name, &value))
    }

    async fn send(&self, to: &Operator) -> Answer {
        must(to.call(self.call(&self.path, &self.body)).await)
    }
}

fn mac(key: &[u8], text: &str) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("any key");
    mac.update(text.as_bytes());
    hex::encode(mac.finalize().into_bytes())
}

/// The id of a key.
fn key_id(key: &[u8]) -> String {
    mac(key, "kubesvc-key-id-1\n")[..16].to_owned()
}

async fn key(world: &World) -> Vec<u8> {
    let secret = must(world.api::<Secret>().get(SECRET).await.map_err(|e| e.to_string()));
    secret.data.expect("it has data")["key"].0.clone()
}

fn refused(answer: &Answer, with: &str) {
    assert_eq!(answer.status, 401, "{answer}");
    let message = answer.json["message"].as_str().unwrap_or_default();
    assert!(message.contains(with), "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn only_fresh_signed_calls_are_accepted_and_each_once() {
    const AGENTS: &str = "/internal/v1/agents";
    let world = World::prepare().database(Database::Postgres).start().await;
    let (here, key) = (world.operator(), key(&world).await);
    assert_eq!(key.len(), 32);
    let _agent = world.agent("agent-1").start().await;

    for path in [AGENTS, "/internal/v1/none", "/internal"] {
        refused(&must(here.get(path).await), "x-kubesvc-signature");
    }
    let good = Signed::get(&key, AGENTS);
    let answer = good.send(here).await;
    assert_eq!(answer.status, 200, "{answer}");
    assert_eq!(
        (&answer.json["replicaId"], &answer.json["agents"][0]["agentId"]),
        (&json!(FIRST), &json!("agent-1"))
    );
    let text = format!(
        "kubesvc-peer-answer-1\n200\n{}\n{}\n",
        hex::encode(Sha256::digest(&answer.text)),
        good.nonce
    );
    let signature = answer.headers.get("x-kubesvc-signature").map(|value| value.as_bytes().to_vec());
    assert_eq!(signature, Some(mac(&key, &text).into_bytes()), "the answer is signed");
    refused(&good.send(here).await, "already received");

    let fresh = || Signed::get(&key, AGENTS);
    refused(&Signed { key: vec![7; 32], ..fresh() }.send(here).await, "kubesvc-peer");
    refused(&Signed { to: SECOND.to_owned(), ..fresh() }.send(here).await, SECOND);
    // If no object names its pod, a replica is identified by its address.
    let address = |port: u16| Signed { to: format!("127.0.0.1:{port}"), ..fresh() };
    assert_eq!(address(here.rest_port()).send(here).await.status, 200);
    refused(&address(1).send(here).await, "127.0.0.1:1");
    refused(&Signed { time: fresh().time - 40_000, ..fresh() }.send(here).await, "ago");
    refused(&Signed { time: fresh().time + 40_000, ..fresh() }.send(here).await, "ahead");
    refused(&must(here.call(fresh().call("/internal/v1/agents?x=1", "")).await), "does not match");
    refused(&must(here.call(fresh().call(AGENTS, "{}")).await), "does not match");
    let none = Signed::get(&key, "/internal/v1/none").send(here).await;
    assert_eq!((none.status, none.headers.contains_key("x-kubesvc-signature")), (404, true));

    // A refused call is not remembered; an admitted one is, whatever its result.
    let question = Signed {
        method: "POST",
        body: r#"{"uids":5}"#.to_owned(),
        ..Signed::get(&key, "/internal/v1/holders")
    };
    refused(&must(here.call(question.call("/internal/v1/holders", "{}")).await), "does not match");
    assert_eq!(question.send(here).await.status, 400);
    refused(&question.send(here).await, "already received");

    for text in [hex::encode(&key), base64::engine::general_purpose::STANDARD.encode(&key)] {
        assert!(world.all_logs().iter().all(|(_, log)| !log.contains(&text)), "the key is in a log");
    }
    let metrics = must(here.get("/metrics").await).text;
    assert!(metrics.contains("kubesvc_peer_calls_refused_total{reason=\"replayed\"} 2"), "{metrics}");
}

#[tokio::test(flavor = "multi_thread")]
async fn signing_key_is_rotated_without_restart() {
    let (world, second) = two(Database::MariaDb).await;
    let old = key(&world).await;
    let _agent = world.agent("agent-2").hub_port(second.hub_port()).start().await;
    let shows = async |asked: &Operator| {
        let answer = asked.get("/armory/agents").await?;
        let alive = &answer.json[0]["clouddriverAlive"];
        if *alive == json!(true) { Ok(()) } else { Err(answer.to_string()) }
    };
    eventually("the agent of the other replica", MAX_WAIT, async || shows(world.operator()).await).await;

    let secrets = world.api::<Secret>();
    let mut secret = must(secrets.get(SECRET).await.map_err(|e| e.to_string()));
    let new = vec![9; 40];
    secret.data = Some(BTreeMap::from([("key".to_owned(), ByteString(new.clone()))]));
    must(secrets.replace(SECRET, &PostParams::default(), &secret).await.map_err(|e| e.to_string()));
    // The second replica learns of the change from a call with a wrong signature, the first one from being
    // refused.
    eventually("a call under the new key", MAX_WAIT, async || {
        let answer =
            Signed { to: SECOND.to_owned(), ..Signed::get(&new, "/internal/v1/agents") }.send(&second).await;
        if answer.status == 200 { Ok(()) } else { Err(answer.to_string()) }
    })
    .await;
    refused(
        &Signed { to: SECOND.to_owned(), ..Signed::get(&old, "/internal/v1/agents") }.send(&second).await,
        "kubesvc-peer",
    );
    eventually("the agent under the new key", MAX_WAIT, async || shows(world.operator()).await).await;

    // A deleted Secret is created again as soon as it is needed.
    must(secrets.delete(SECRET, &DeleteParams::default()).await.map_err(|e| e.to_string()));
    eventually("a new key", MAX_WAIT, async || {
        let wrong = Signed { key: vec![7; 32], ..Signed::get(&[], "/internal/v1/agents") };
        refused(&wrong.send(world.operator()).await, "kubesvc-peer");
        let made = secrets.get_opt(SECRET).await.map_err(|e| e.to_string())?;
        made.map(drop).ok_or_else(|| "there is none".to_owned())
    })
    .await;
    assert_ne!(key(&world).await, new);
    eventually("the agent under the next key", MAX_WAIT, async || shows(world.operator()).await).await;
}
