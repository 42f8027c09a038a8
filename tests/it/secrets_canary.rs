//! No credential leaves its place. The test plants every kind of credential, runs a full life cycle at the most verbose log
//! level, and then searches everything that anyone can read. `gateway/canaries.rs` does so for requests and operations.

pub(crate) mod needles;

use k8s_openapi::api::core::v1::Secret;
use kubesvc_core::State;
use serde_json::{Value, json};

use self::needles::Needles;
use crate::world::{Agent, Call, Cluster, World};
use kubesvc_testkit::{kubeconfig::Authority, kubeconfig::Proof, must};

/// Part of every credential that the test makes up.
pub(crate) const CANARY: &str = "CANARY-8c1fe0b7a2";

#[tokio::test(flavor = "multi_thread")]
async fn credentials_appear_nowhere_but_in_their_secrets() {
    let world = World::prepare().setting("logging.level", "trace").start().await;
    let agent = world.agent("agent-1").log_level("trace").start().await;
    let mut needles = Needles::default();
    needles.add("what the test made up", CANARY);
    // The message of a refusal must not even repeat part of a value.
    needles.add("a part of it", &CANARY[..10]);

    // A reference of the engine `noop` is the secret itself: its token may occur in the spec, and nowhere
    // else.
    let mut in_spec = Needles::default();
    let mut answers = by_reference(&world, &mut in_spec).await;
    answers.extend(live(&world, &agent, &mut needles).await);

    let mut in_the_spec = 0;
    for (place, text) in everything(&world, answers).await {
        let found = needles.in_text(&text);
        assert!(found.is_empty(), "{place} holds {found:?}");
        let found = in_spec.in_text(&text);
        if place.ends_with(" ksa") {
            in_the_spec += usize::from(!found.is_empty());
        } else {
            assert!(found.is_empty(), "{place} holds {found:?}");
        }
    }
    assert_eq!(in_the_spec, 2, "kubectl get and describe show a spec as it is");
    files_are_clean(&world, &needles);
    files_are_clean(&world, &in_spec);
    secrets_are_where_they_belong(&world, &needles).await;
}

/// Plants every kind of credential and takes their accounts through a full life cycle. Returns the REST
/// responses.
async fn live(world: &World, agent: &Agent, needles: &mut Needles) -> Vec<String> {
    let (token, rotated, rest, file) = tokio::join!(
        world.cluster("token"),
        world.cluster("rotated"),
        world.cluster("rest"),
        world.cluster("file"),
    );
    for (what, cluster) in [("token", &token), ("rotated", &rotated), ("rest", &rest), ("file", &file)] {
        needles.add_token(what, cluster.token());
    }
    world.account("token").zone("east").kubeconfig(&token.kubeconfig()).create().await;
    certificate(world, &token, needles).await;
    std::fs::write(agent.kubeconfigs().join("file"), file.kubeconfig()).expect("the folder is there");
    let path = json!({"file": agent.kubeconfigs().join("file").display().to_string()});
    world.account("file").zone("east").spec("kubeconfig", path).create().await;
    failing_accounts(world, &token).await;
    let mut answers = by_rest(world, &rest).await;

    for name in ["token", "certificate", "file", "rest"] {
        world.until(name, State::Active).await;
    }
    for name in ["basic", "wrong", "untrusted", "exec", "no-yaml", "no-base64"] {
        world.until(name, State::Failed).await;
    }
    // Rotated, corrupted, repaired, stopped, started again; then both programs restart, and some accounts are
    // deleted.
    world.secret("token", rotated.kubeconfig().as_bytes(), true).await;
    world.until_account("token", "was rotated", |account| account.status_or_default().epoch.0 == 2).await;
    world.secret("token", format!("{{{CANARY}").as_bytes(), true).await;
    world.until("token", State::Failed).await;
    world.secret("token", token.kubeconfig().as_bytes(), true).await;
    world.until("token", State::Active).await;
    for state in ["INACTIVE", "ACTIVE"] {
        let body = json!([{"name": "rest", "state": state, "kubeconfigContents": rest.kubeconfig()}]);
        answers.push(world.rest("PATCH", "/armory/accounts", &body).await.to_string());
        world.until_shown("rest", state).await;
    }
    agent.kill();
    world.until("token", State::Orphaned).await;
    agent.launch();
    world.until("token", State::Active).await;
    world.operator().kill_and_start().await;
    world.until_connected(agent, true).await;
    for name in ["file", "exec"] {
        world.delete(name).await;
        world.until_gone(name).await;
    }
    for path in ["/health", "/health/readiness", "/health/tasks"] {
        answers.push(agent.get(path).await.to_string());
    }
    assert!(agent.terminate().await.success());
    answers
}

/// An account with a client certificate.
async fn certificate(world: &World, cluster: &Cluster, needles: &mut Needles) {
    let user = format!("{}-certificate", world.namespace());
    let identity = must(world.control_plane().client_certificate(&user, None));
    world.let_read("certificate", &user).await;
    needles.add_pem("client key", &identity.key);
    let kubeconfig = cluster.kubeconfig_with(Proof::Certificate(&identity));
    world.account("certificate").zone("east").kubeconfig(&kubeconfig).create().await;
}

/// Accounts that each fail at a different stage.
async fn failing_accounts(world: &World, cluster: &Cluster) {
    let good = cluster.kubeconfig_with(Proof::Token(CANARY));
    let user = |user: &str| good.replace(&format!("{{token: {CANARY:?}}}"), &format!("{{{user}}}"));
    let foreign = must(Authority::new("another authority")).pem();
    let untrusted = kubesvc_testkit::kubeconfig::yaml(cluster.server(), &foreign, Proof::Token(CANARY));
    let exec =
        format!("exec: {{command: {CANARY}, args: [{CANARY}], env: [{{name: TOKEN, value: {CANARY}}}]}}");
    for (name, kubeconfig) in [
        ("basic", user(&format!("username: admin, password: {CANARY}"))),
        ("wrong", good.clone()),
        ("untrusted", untrusted),
        ("exec", user(&exec)),
        ("no-yaml", format!("{good}\n\t{CANARY}: [}}\n")),
        ("no-base64", user(&format!("client-certificate-data: '{CANARY}', client-key-data: '{CANARY}'"))),
    ] {
        assert!(kubeconfig.contains(CANARY), "{name}: nothing is planted");
        world.account(name).zone("east").kubeconfig(&kubeconfig).create().await;
    }
}

/// Credentials that arrive through REST, valid and invalid ones.
async fn by_rest(world: &World, cluster: &Cluster) -> Vec<String> {
    let contents = cluster.kubeconfig();
    let dynamic = "/armory/accounts/dynamic";
    let good = json!({"name": "rest", "zoneId": "east", "state": "ACTIVE", "kubeconfigContents": contents});
    let mut answers = Vec::new();
    let answer = world.rest("POST", dynamic, &good).await;
    assert_eq!(answer.status, 202, "{answer}");
    answers.push(answer.to_string());
    let refused = format!("kind: {CANARY}");
    let planted = [
        ("POST", json!({"name": "bad", "kubeconfigContents": format!("token: {CANARY}")}), 400),
        ("POST", json!({"name": "bad", "kubeconfigContents": CANARY, "kubeconfigFile": "relative"}), 400),
        ("POST", json!({"name": "bad", "kubeconfigContents": {"token": CANARY}}), 400),
        ("POST", json!({"name": "bad", "kubeconfigContents": contents, "zoneId": "z".repeat(256)}), 400),
        ("POST", json!({"name": "bad", "kubeconfigContents": contents, "namespaces": ["Not A Name"]}), 400),
        ("POST", json!({"name": "rest", "kubeconfigContents": contents}), 409),
        ("PUT", json!({"name": "rest", "kubeconfigContents": contents, "oAuthServiceAccount": CANARY}), 202),
        ("PUT", json!({"name": "nobody", "kubeconfigContents": contents}), 404),
        ("PUT", json!({"name": "rest", "kubeconfigContents": refused}), 400),
        ("PATCH", json!([{"name": "rest", "state": "ACTIVE", "kubeconfigContents": refused}]), 400),
        ("PATCH", json!([{"name": "nobody", "state": "ACTIVE", "kubeconfigContents": contents}]), 400),
    ];
    for (method, body, code) in planted {
        let answer = world.rest(method, dynamic, &body).await;
        assert_eq!(answer.status, code, "{method}: {answer}");
        answers.push(answer.to_string());
    }
    for text in [format!("{{\"name\": \"bad\", \"kubeconfigContents\": \"{CANARY}"), format!("[{CANARY}]")] {
        let call = Call::new("POST", dynamic).header("content-type", "application/json").bytes(text);
        answers.push(world.call(call).await.to_string());
    }
    let call = Call::get("/armory/accounts").header("authorization", &format!("Bearer {CANARY}"));
    answers.push(world.call(call).await.to_string());
    answers
}

/// Credentials in references, through REST and through kubectl, valid and invalid ones. Returns the REST
/// responses.
async fn by_reference(world: &World, in_spec: &mut Needles) -> Vec<String> {
    let cluster = world.cluster("noop").await;
    in_spec.add_token("noop", cluster.token());
    let reference = format!("encrypted:noop!v:{}", cluster.kubeconfig_in_one_line());
    let dynamic = "/armory/accounts/dynamic";
    let good = json!({"name": "noop", "zoneId": "east", "state": "ACTIVE", "kubeconfigFile": reference});
    let mut answers = Vec::new();
    for (method, body, code) in [
        ("POST", good.clone(), 202),
        ("POST", good.clone(), 409),
        ("PUT", good, 202),
        ("POST", json!({"name": "bad", "kubeconfigFile": format!("encrypted:noop!v:a!{CANARY}")}), 400),
        ("POST", json!({"name": "bad", "kubeconfigFile": format!("encrypted:noop!{CANARY}")}), 400),
        ("PUT", json!({"name": "noop", "kubeconfigFile": format!("secret://noop?w={CANARY}")}), 400),
    ] {
        let answer = world.rest(method, dynamic, &body).await;
        assert_eq!(answer.status, code, "{method}: {answer}");
        answers.push(answer.to_string());
    }
    world.until("noop", State::Active).await;
    let shown = world.get("/armory/accounts/noop").await;
    assert_eq!(shown.json["definition"]["kubeconfigFile"], "encrypted:noop!v:redacted", "{shown}");
    // Through kubectl, each invalid in its own way: messages about them must not repeat them.
    let spec = |reference: String| json!({ "reference": reference });
    for (name, reference) in [
        ("cut", format!("encrypted:noop!v:{}!rest", cluster.token())),
        ("misspelt", format!("encrypted:nooop!v:{}", cluster.token())),
        ("no-kubeconfig", format!("secret://noop?v={}", cluster.token())),
    ] {
        world.account(name).zone("east").spec("kubeconfig", spec(reference)).create().await;
        world.until(name, State::Failed).await;
    }
    answers
}

/// Every text that can be read without access to Secrets, with its origin.
async fn everything(world: &World, answers: Vec<String>) -> Vec<(String, String)> {
    let mut all: Vec<(String, String)> =
        answers.into_iter().enumerate().map(|(index, text)| (format!("answer {index}"), text)).collect();
    for kinds in ["ksa", "ksg", "events", "configmaps,leases"] {
        let listed = world.kubectl(&["get", kinds, "-o", "yaml", "--show-managed-fields"]).await;
        all.push((format!("kubectl get {kinds}"), must(listed.ok())));
        let told = world.kubectl(&["describe", kinds]).await;
        all.push((format!("kubectl describe {kinds}"), must(told.ok())));
    }
    let mut paths = vec![
        "/armory/accounts".to_owned(),
        "/armory/agents".to_owned(),
        "/armory/agents/agent-1".to_owned(),
        "/health".to_owned(),
        "/health/readiness".to_owned(),
        "/health/tasks".to_owned(),
        "/metrics".to_owned(),
        "/openapi.json".to_owned(),
    ];
    for row in world.rows().await {
        paths.push(format!("/armory/accounts/{}", row.name));
        paths.push(format!("/agents/kubernetes/accounts/{}", row.name));
        paths.push(format!("/agents/kubernetes/accounts/{}/namespaces", row.name));
    }
    assert!(paths.len() > 20, "there is too little to search: {paths:?}");
    for path in paths {
        all.push((format!("GET {path}"), world.get(&path).await.to_string()));
    }
    let logs = world.all_logs();
    assert!(logs.iter().all(|(_, log)| log.len() > 1000), "a log is all but empty");
    all.extend(logs.into_iter().map(|(name, text)| (format!("the log of {name}"), text)));
    all
}

/// Checks the folder of the world, including the database and its WAL, except for the kubeconfigs that the
/// test itself put there.
pub(crate) fn files_are_clean(world: &World, needles: &Needles) {
    let mut searched = Vec::new();
    let mut folders = vec![world.folder().path().to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("it is there") {
            let path = entry.expect("it is there").path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
            if path.is_dir() && name != "kubeconfigs" {
                folders.push(path);
            } else if path.is_file() && name != "operator.kubeconfig" {
                let bytes = std::fs::read(&path).unwrap_or_default();
                let found = needles.in_bytes(&bytes);
                assert!(found.is_empty(), "{} holds {found:?}", path.display());
                searched.push(name);
            }
        }
    }
    for expected in ["kubesvc.db", "kubesvc.db-wal", "operator.log", "agent.log"] {
        assert!(searched.iter().any(|name| name == expected), "{expected} was not searched: {searched:?}");
    }
}

/// Checks that the needles find what they are made for, and only in the Secrets that accounts name.
async fn secrets_are_where_they_belong(world: &World, needles: &Needles) {
    let secrets =
        world.api::<Secret>().list(&kube::api::ListParams::default()).await.expect("they can be listed");
    let mut with: Vec<String> = Vec::new();
    for secret in secrets.items {
        let name = secret.metadata.name.clone().unwrap_or_default();
        let data = secret.data.unwrap_or_default();
        if data.values().any(|value| !needles.in_bytes(&value.0).is_empty()) {
            with.push(name.clone());
        }
        let meta: Value = serde_json::to_value(&secret.metadata).expect("metadata is JSON");
        let mut bare = meta;
        bare["managedFields"] = Value::Null;
        assert!(needles.in_text(&bare.to_string()).is_empty(), "the metadata of Secret {name}");
    }
    with.sort();
    let expected = [
        "basic",
        "certificate",
        "exec",
        "no-base64",
        "no-yaml",
        "rest-kubeconfig",
        "token",
        "untrusted",
        "wrong",
    ];
    assert_eq!(with, expected);
}
