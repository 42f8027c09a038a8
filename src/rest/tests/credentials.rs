//! Kubeconfigs given to REST by concurrent callers: what was acknowledged is kept.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;

use super::fake_api::{FakeApi, HeldRequest};
use super::*;
use kubesvc_core::source_rules::{NamespaceSet, SourceRules};

const DYNAMIC: &str = "/armory/accounts/dynamic";
const SECRET: &str = "/secrets/prod-kubeconfig";
const ACCOUNT: &str = "/kubesvcaccounts/prod";

struct Rest {
    api: Arc<FakeApi>,
    router: Router,
}

impl Rest {
    fn new() -> Self {
        let api = Arc::<FakeApi>::default();
        let state = state_of(settings(), &[], api.client());
        state.accounts.sync();
        Self { router: router(state), api }
    }

    async fn call(&self, method: &str, path: &str, body: Value) -> TestResponse {
        let request = Request::builder().method(method).uri(path);
        let request = request.header(header::CONTENT_TYPE, "application/json");
        send(self.router.clone(), request.body(Body::from(body.to_string())).expect("a request")).await
    }

    /// Runs the call in a task of its own.
    fn begin(&self, method: &'static str, body: Value) -> tokio::task::JoinHandle<TestResponse> {
        let rest = Self { api: Arc::clone(&self.api), router: self.router.clone() };
        tokio::spawn(async move { rest.call(method, DYNAMIC, body).await })
    }

    /// A POST that has created Secret and object, held when it reads the Secret again.
    async fn post_until_its_last_step(&self) -> (tokio::task::JoinHandle<TestResponse>, HeldRequest) {
        let mut object = self.api.hold("POST", "/kubesvcaccounts");
        let post = self.begin("POST", given("first"));
        object.reached().await;
        let mut owner = self.api.hold("GET", SECRET);
        object.go();
        owner.reached().await;
        (post, owner)
    }

    /// Returns the kubeconfig in the Secret.
    fn stored(&self) -> Option<String> {
        let secret = self.api.get(SECRET)?;
        let data = secret["data"].as_object()?.values().next()?.as_str()?;
        Some(String::from_utf8(BASE64_STANDARD.decode(data).expect("base64")).expect("UTF-8"))
    }
}

impl Rest {
    /// Returns the account's own kubeconfig and the agent's from the Secret.
    fn both(&self) -> [Option<String>; 2] {
        let secret = self.api.get(SECRET).unwrap_or_default();
        ["kubeconfig", "agent-kubeconfig"].map(|key| {
            let data = secret["data"][key].as_str()?;
            Some(String::from_utf8(BASE64_STANDARD.decode(data).expect("base64")).expect("UTF-8"))
        })
    }
}

fn given(token: &str) -> Value {
    json!({"name": "prod", "kubeconfigContents": kubeconfig(token)})
}

#[tokio::test]
async fn kubeconfig_stored_by_a_put_survives_the_last_step_of_a_post() {
    let rest = Rest::new();
    let (post, owner) = rest.post_until_its_last_step().await;
    let put = rest.call("PUT", DYNAMIC, given("second")).await;
    assert_eq!(put.status, 202, "{}", put.text);
    owner.go();
    assert_eq!(post.await.expect("no panic").status, 202);
    assert_eq!(rest.stored(), Some(kubeconfig("second")));
}

/// Two POSTs that have both prepared the Secret and found no account. The first is about to create it, the second
/// follows.
struct Both {
    rest: Rest,
    winner: (tokio::task::JoinHandle<TestResponse>, HeldRequest),
    loser: (tokio::task::JoinHandle<TestResponse>, HeldRequest),
}

impl Both {
    async fn prepared() -> Self {
        let rest = Rest::new();
        let mut makes = rest.api.hold("POST", "/kubesvcaccounts");
        let winner = rest.begin("POST", given("winner"));
        makes.reached().await;
        let mut late = rest.api.hold("POST", "/kubesvcaccounts");
        let loser = rest.begin("POST", given("loser"));
        late.reached().await;
        assert_eq!(rest.stored(), Some(kubeconfig("loser")));
        Self { rest, winner: (winner, makes), loser: (loser, late) }
    }
}

#[tokio::test]
async fn put_between_the_read_and_write_of_a_post_is_kept() {
    let Both { rest, winner, loser } = Both::prepared().await;
    let mut last = rest.api.hold("PUT", SECRET);
    winner.1.go();
    last.reached().await;
    assert_eq!(rest.call("PUT", DYNAMIC, given("second")).await.status, 202);
    last.go();
    assert_eq!(winner.0.await.expect("no panic").status, 202);
    loser.1.go();
    assert_eq!(loser.0.await.expect("no panic").status, 409);
    assert_eq!(rest.stored(), Some(kubeconfig("second")));
}

#[tokio::test]
async fn kubeconfig_of_the_post_that_created_the_account_wins() {
    let Both { rest, winner, loser } = Both::prepared().await;
    let mut last = rest.api.hold("GET", SECRET);
    winner.1.go();
    last.reached().await;
    loser.1.go();
    let answer = loser.0.await.expect("no panic");
    assert_eq!(answer.status, 409, "{}", answer.text);
    last.go();
    assert_eq!(winner.0.await.expect("no panic").status, 202);
    assert_eq!(rest.stored(), Some(kubeconfig("winner")));
}

#[tokio::test]
async fn a_post_that_found_no_account_does_not_write_over_the_secret_of_the_one_made_since() {
    let rest = Rest::new();
    let mut makes = rest.api.hold("POST", "/kubesvcaccounts");
    let winner = rest.begin("POST", given("winner"));
    makes.reached().await;
    let mut replaces = rest.api.hold("PUT", SECRET);
    let loser = rest.begin("POST", given("loser"));
    replaces.reached().await;
    makes.go();
    assert_eq!(winner.await.expect("no panic").status, 202);
    replaces.go();
    assert_eq!(loser.await.expect("no panic").status, 409);
    assert_eq!(rest.stored(), Some(kubeconfig("winner")));
}

#[tokio::test]
async fn a_put_to_an_account_that_goes_meanwhile_leaves_no_secret() {
    let rest = Rest::new();
    let file = json!({"name": "prod", "kubeconfigFile": "/opt/armory/k"});
    assert_eq!(rest.call("POST", DYNAMIC, file).await.status, 202);
    let mut patch = rest.api.hold("PATCH", ACCOUNT);
    let put = rest.begin("PUT", given("late"));
    patch.reached().await;
    assert_eq!(rest.stored(), Some(kubeconfig("late")));
    assert_eq!(rest.call("DELETE", "/armory/accounts/prod", Value::Null).await.status, 202);
    patch.go();
    assert_eq!(put.await.expect("no panic").status, 404);
    assert_eq!(rest.stored(), None, "nobody would ever delete it");
}

#[tokio::test]
async fn an_account_that_another_client_changes_meanwhile_is_judged_again() {
    let rest = Rest::new();
    let file = json!({"name": "prod", "kubeconfigFile": "/opt/armory/k"});
    assert_eq!(rest.call("POST", DYNAMIC, file).await.status, 202);
    let mut patch = rest.api.hold("PATCH", ACCOUNT);
    let put = rest.begin("PUT", json!({"name": "prod", "kubeconfigFile": "/opt/armory/other"}));
    patch.reached().await;
    let mut managed = rest.api.get(ACCOUNT).expect("it was created");
    managed["metadata"]["resourceVersion"] = json!("99");
    managed["metadata"]["annotations"] = json!({"argocd.argoproj.io/tracking-id": "accounts:kubesvc.io/x"});
    rest.api.put("/apis/kubesvc.io/v1alpha1/namespaces/ns/kubesvcaccounts/prod", managed.clone());
    patch.go();
    let put = put.await.expect("no panic");
    assert_eq!(put.status, 409, "{}", put.text);
    assert!(put.message(DYNAMIC).contains("managed by Argo CD application accounts"), "{}", put.text);
    assert_eq!(rest.api.get(ACCOUNT), Some(managed));
}

#[tokio::test]
async fn a_secret_that_the_account_no_longer_names_is_not_made_anew_by_the_post() {
    let rest = Rest::new();
    let (post, owner) = rest.post_until_its_last_step().await;
    let put = rest.call("PUT", DYNAMIC, json!({"name": "prod", "kubeconfigFile": "/opt/armory/k"})).await;
    assert_eq!(put.status, 202, "{}", put.text);
    assert_eq!(rest.stored(), None, "nobody uses it");
    owner.go();
    assert_eq!(post.await.expect("no panic").status, 202);
    assert_eq!(rest.stored(), None);
}

/// The answer to a creation that collides with other writes of a quota.
fn of_quota() -> Value {
    let details = json!({"kind": "resourcequotas", "name": "quota"});
    json!({"kind": "Status", "code": 409, "reason": "Conflict", "message": "modified", "details": details})
}

#[tokio::test]
async fn a_post_whose_object_collides_with_a_quota_is_not_answered_as_an_existing_account() {
    let rest = Rest::new();
    rest.api.refuse("POST", "/kubesvcaccounts", of_quota());
    let post = rest.call("POST", DYNAMIC, given("first")).await;
    assert_eq!(post.status, 409, "{}", post.text);
    let message = post.message(DYNAMIC);
    assert!(message.contains("changed by another client") && message.contains("try again"), "{message}");
    assert_eq!((rest.api.get(ACCOUNT), rest.api.get(SECRET)), (None, None));
    assert_eq!(rest.call("POST", DYNAMIC, given("second")).await.status, 202);
    assert_eq!(rest.stored(), Some(kubeconfig("second")));
}

#[tokio::test]
async fn a_secret_that_collides_with_a_quota_is_created_again() {
    let rest = Rest::new();
    rest.api.refuse("POST", "/secrets", of_quota());
    let post = rest.call("POST", DYNAMIC, given("first")).await;
    assert_eq!(post.status, 202, "{}", post.text);
    assert_eq!(rest.stored(), Some(kubeconfig("first")));
}

#[tokio::test]
async fn an_account_is_deleted_with_its_uid_and_its_dependents_in_the_background() {
    let rest = Rest::new();
    let post = rest.call("POST", DYNAMIC, json!({"name": "prod", "serviceAccount": true})).await;
    assert_eq!(post.status, 202, "{}", post.text);
    let uid = rest.api.get(ACCOUNT).expect("it was created")["metadata"]["uid"].clone();
    let deleted = rest.call("DELETE", "/armory/accounts/prod", Value::Null).await;
    assert_eq!(deleted.status, 202, "{}", deleted.text);
    let options = json!({"propagationPolicy": "Background", "preconditions": {"uid": uid}});
    assert_eq!(rest.api.deletions(), [options]);
}

fn with_agents(token: &str) -> Value {
    json!({"name": "prod", "kubeconfigAgent": kubeconfig(token)})
}

#[tokio::test]
async fn the_kubeconfig_for_the_agent_is_kept_beside_the_accounts_own_until_it_is_taken_away() {
    let rest = Rest::new();
    let mut both = given("own");
    both["kubeconfigAgent"] = json!(kubeconfig("agents"));
    assert_eq!(rest.call("POST", DYNAMIC, both).await.status, 202);
    let of = |own: Option<&str>, agents: Option<&str>| [own.map(kubeconfig), agents.map(kubeconfig)];
    assert_eq!(rest.both(), of(Some("own"), Some("agents")));
    assert_eq!(rest.call("PUT", DYNAMIC, given("own-2")).await.status, 202);
    assert_eq!(rest.both(), of(Some("own-2"), Some("agents")), "it was not named");
    assert_eq!(rest.call("PUT", DYNAMIC, with_agents("agents-2")).await.status, 202);
    assert_eq!(rest.both(), of(Some("own-2"), Some("agents-2")));
    let shown = rest.call("GET", "/armory/accounts/prod", Value::Null).await;
    assert!(!shown.text.contains("agents-2") && !shown.text.contains("own-2"), "{}", shown.text);
    let file = json!({"name": "prod", "kubeconfigFile": "/opt/armory/k"});
    assert_eq!(rest.call("PUT", DYNAMIC, file).await.status, 202);
    assert_eq!(rest.both(), of(None, Some("agents-2")), "nothing names the other any more");
    let spec = rest.api.get(ACCOUNT).expect("it is there")["spec"].clone();
    assert_eq!(spec["kubeconfig"], json!({"file": "/opt/armory/k"}));
    let agents = json!({"secretRef": {"name": "prod-kubeconfig", "key": "agent-kubeconfig"}});
    assert_eq!(spec["agentKubeconfig"], agents);
    let gone = rest.call("PUT", DYNAMIC, json!({"name": "prod", "kubeconfigAgent": null})).await;
    assert_eq!(gone.status, 202, "{}", gone.text);
    assert!(rest.api.get(SECRET).is_none(), "nobody uses it");
    let spec = rest.api.get(ACCOUNT).expect("it is there")["spec"].clone();
    assert!(spec.get("agentKubeconfig").is_none_or(Value::is_null), "{spec}");
}

#[tokio::test]
async fn a_kubeconfig_for_the_agent_that_is_refused_is_stored_nowhere_and_named() {
    let rest = Rest::new();
    assert_eq!(rest.call("POST", DYNAMIC, given("own")).await.status, 202);
    let answer = rest.call("PUT", DYNAMIC, json!({"name": "prod", "kubeconfigAgent": "s3cret: 1"})).await;
    assert_eq!(answer.status, 400);
    assert!(
        answer.message(DYNAMIC).contains("kubeconfigAgent is refused") && !answer.text.contains("s3cret"),
        "{}",
        answer.text
    );
    assert_eq!(rest.both(), [Some(kubeconfig("own")), None]);
    let alone = rest.call("POST", DYNAMIC, json!({"name": "new", "kubeconfigAgent": kubeconfig("x")})).await;
    assert!(alone.message(DYNAMIC).contains("give exactly one of"), "{}", alone.text);
}

#[tokio::test]
async fn put_discards_the_kubeconfig_of_a_losing_post() {
    let Both { rest, winner, loser } = Both::prepared().await;
    let mut last = rest.api.hold("GET", SECRET);
    winner.1.go();
    last.reached().await;
    assert_eq!(rest.call("PUT", DYNAMIC, with_agents("agents")).await.status, 202);
    last.go();
    assert_eq!(winner.0.await.expect("no panic").status, 202);
    loser.1.go();
    assert_eq!(loser.0.await.expect("no panic").status, 409);
    assert_eq!(rest.both(), [Some(kubeconfig("winner")), Some(kubeconfig("agents"))]);
}

#[tokio::test]
async fn a_source_that_the_settings_keep_from_the_namespace_is_refused_before_anything_is_made() {
    let api = Arc::<FakeApi>::default();
    let none = NamespaceSet::These([].into());
    let rules = SourceRules {
        agent_sources: none.clone(),
        operator_files: none,
        noop: false,
        ..SourceRules::default()
    };
    let closed = RestSettings { source_rules: rules, ..settings() };
    let state = state_of(closed, &[], api.client());
    state.accounts.sync();
    let rest = Rest { router: router(state), api };
    for (source, setting) in [
        (json!({"kubeconfigFile": "/etc/kubesvc/x"}), "kubesvc.accounts.agentSources"),
        (json!({"serviceAccount": true}), "kubesvc.accounts.agentSources"),
        (json!({"kubeconfigFile": "encryptedFile:file!p:/creds/x"}), "kubesvc.accounts.operatorFiles"),
        (json!({"kubeconfigContents": "encrypted:noop!v:S3CRET"}), "kubesvc.secrets.noop"),
        (json!({"kubeconfigFile": "encryptedFile:k8s!n:a!k:b!ns:spinnaker"}), "kubesvc.secrets.namespaces"),
    ] {
        let mut body = source;
        body["name"] = json!("prod");
        let answer = rest.call("POST", DYNAMIC, body).await;
        assert_eq!(answer.status, 400, "{}", answer.text);
        assert!(
            answer.message(DYNAMIC).contains(setting) && !answer.text.contains("S3CRET"),
            "{}",
            answer.text
        );
    }
    assert!(rest.api.get(ACCOUNT).is_none());
    assert_eq!(rest.call("POST", DYNAMIC, given("first")).await.status, 202);
    for field in ["kubeconfigFile", "kubeconfigAgent"] {
        let put = rest.call("PUT", DYNAMIC, json!({"name": "prod", field: "/etc/kubesvc/x"})).await;
        assert_eq!(put.status, 400, "{}", put.text);
        assert!(put.message(DYNAMIC).contains("kubesvc.accounts.agentSources"), "{}", put.text);
    }
}

#[tokio::test]
async fn nothing_is_created_in_an_unwatched_namespace_or_before_the_index_is_synced() {
    let api = Arc::<FakeApi>::default();
    let elsewhere = RestSettings { accounts_watched: false, ..settings() };
    let state = state_of(elsewhere, &[], api.client());
    state.accounts.sync();
    let unwatched = Rest { router: router(state), api: Arc::clone(&api) };
    let answer = unwatched.call("POST", DYNAMIC, given("first")).await;
    assert_eq!(answer.status, 503);
    let message = answer.message(DYNAMIC);
    assert!(
        message.contains("does not watch the namespace \"ns\"") && message.contains("watchNamespaces"),
        "{message}"
    );

    let early = Rest { router: router(state_of(settings(), &[], api.client())), api };
    for (method, path, body) in [
        ("POST", DYNAMIC, given("first")),
        ("PUT", DYNAMIC, json!({"name": "prod"})),
        ("PATCH", "/armory/accounts", json!([{"name": "prod", "state": "ACTIVE"}])),
        ("DELETE", "/armory/accounts", json!(["prod"])),
        ("GET", "/armory/accounts/prod", Value::Null),
        ("GET", "/agents/kubernetes/accounts/prod", Value::Null),
    ] {
        let answer = early.call(method, path, body).await;
        assert_eq!(answer.status, 503, "{method} {path}: {}", answer.text);
        assert!(answer.message(path).contains("still being read"), "{}", answer.text);
    }
    assert!(early.api.get(SECRET).is_none() && early.api.get(ACCOUNT).is_none());
}
