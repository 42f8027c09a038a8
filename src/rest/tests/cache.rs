//! What is cached of an account.

use super::fake_api::FakeApi;
use super::*;
use kubesvc_core::{AgentId, KubesvcAccount, ZoneId};

const CACHE: &str = "/agents/kubernetes/accounts/prod/cache";

/// A state whose API server has these accounts, with uid `u`.
fn state(names: &[&str]) -> RestState {
    let api = Arc::<FakeApi>::default();
    let state = state_of(settings(), &[], api.client());
    for name in names {
        let object = account(name);
        api.put(&format!("/apis/kubesvc.io/v1alpha1/namespaces/ns/kubesvcaccounts/{name}"), object.clone());
        let object: KubesvcAccount = serde_json::from_value(object).expect("an account");
        state.accounts.show(object);
    }
    state.accounts.sync();
    state
}

fn account(name: &str) -> Value {
    json!({
        "apiVersion": "kubesvc.io/v1alpha1", "kind": "KubesvcAccount",
        "metadata": {"name": name, "namespace": "ns", "uid": "u", "resourceVersion": "1"},
        "spec": {"kubeconfig": {"serviceAccount": true}},
    })
}

async fn get(state: &RestState, path: &str) -> TestResponse {
    send(router(state.clone()), Request::get(path).body(Body::empty()).expect("a request")).await
}

#[tokio::test]
async fn the_cache_of_an_account_shows_what_is_watched_of_it() {
    let state = state(&["prod", "database-is-away"]);
    let shown = get(&state, CACHE).await;
    assert_eq!(shown.status, 200, "{}", shown.text);
    let cache = shown.json();
    assert_eq!(
        (&cache["account"], &cache["agentId"], &cache["epoch"]),
        (&json!("prod"), &json!("agent-1"), &json!(3))
    );
    assert_eq!(
        (&cache["synced"], &cache["objects"]),
        (&json!(false), &json!(7)),
        "what no scope covers is another account's"
    );
    let kinds = cache["kinds"].as_array().expect("kinds").iter();
    let kinds: Vec<_> = kinds
        .map(|one| {
            json!([one["kind"], one["namespace"], one["state"], one["objects"], one["resourceVersion"]])
        })
        .collect();
    let wanted = [
        json!(["deployment", "", "SYNCED", 3, "70"]),
        json!(["statefulSet", "shop", "LISTING", 4, null]),
        json!(["daemonSet", "", "REMOVED", 0, null]),
    ];
    assert_eq!(kinds, wanted, "without the kind of a former account of that name");
    let one = get(&state, &format!("{CACHE}?kind=DEPLOYMENT")).await.json();
    assert_eq!((one["kinds"].as_array().map(Vec::len), &one["objects"]), (Some(1), &json!(3)));
    let away = get(&state, "/agents/kubernetes/accounts/database-is-away/cache").await;
    assert_eq!(away.status, 503, "{}", away.text);
    assert!(away.text.contains("database cannot be used"), "{}", away.text);
    assert_eq!(get(&state, "/agents/kubernetes/accounts/other/cache").await.status, 404);
}

#[tokio::test]
async fn an_account_whose_elected_agent_is_gone_is_not_synced() {
    const LISTED: &str = "/agents/kubernetes/accounts/listed/cache";
    let mut state = state(&["listed"]);
    for (connected, is_synced) in [("agent-1", true), ("agent-2", false)] {
        let connected_agents = Arc::new(Holding(connected));
        state.ports.caches = Arc::new(AccountCaches { connected_agents, ..no_caches() });
        let cache = get(&state, LISTED).await.json();
        assert_eq!((&cache["agentId"], &cache["synced"]), (&json!("agent-1"), &json!(is_synced)));
    }
}

#[tokio::test]
async fn an_object_has_its_version_or_a_reason() {
    let state = state(&["prod"]);
    let object = async |query: &str| get(&state, &format!("{CACHE}?{query}")).await.json()["object"].clone();
    let web = object("kind=deploy&namespace=shop&name=web").await;
    assert_eq!(
        (&web["cached"], &web["resourceVersion"], &web["hasBody"]),
        (&json!(true), &json!("7"), &json!(true))
    );
    assert!(web["ageMs"].as_i64().is_some_and(|age| age > 0) && web.get("reason").is_none(), "{web}");
    for (query, reason) in [
        ("kind=deployment&namespace=shop&name=api", "NOT_THERE"),
        ("kind=statefulset&namespace=shop&name=db", "LISTING"),
        ("kind=statefulset&name=db", "NOT_WATCHED"),
        ("kind=job.batch&namespace=shop&name=one", "NOT_WATCHED"),
        ("kind=configMap&namespace=shop&name=one", "LEFT_OUT"),
        ("kind=Rollout.argoproj.io&namespace=shop&name=one", "LEFT_OUT"),
    ] {
        let missing = object(query).await;
        assert_eq!((&missing["cached"], &missing["reason"]), (&json!(false), &json!(reason)), "{query}");
        assert!(missing["message"].as_str().is_some_and(|message| !message.is_empty()), "{missing}");
    }
}

#[tokio::test]
async fn a_bad_query_of_the_cache_is_refused_with_what_to_do() {
    let state = state(&["prod"]);
    for (query, status, said) in [
        ("kind=", 400, "Kind.group"),
        ("kind=a%2Fb&name=x", 400, "Kind.group"),
        ("name=web", 400, "without kind"),
        ("kind=pod&namespace=shop", 400, "without name"),
        ("kind=pod&name=", 400, "1 to 253"),
        ("kind=pod&name=a%00b", 400, "1 to 253"),
        ("kind=pod&kind=job", 400, "twice"),
        ("kind=bananas&name=one", 404, "bananas"),
    ] {
        let refused = get(&state, &format!("{CACHE}?{query}")).await;
        assert_eq!(refused.status, status, "{query}: {}", refused.text);
        assert!(refused.message(CACHE).contains(said), "{query}: {}", refused.text);
    }
}

/// A replica of which this agent holds every account.
struct Holding(&'static str);

#[async_trait]
impl ConnectedAgents for Holding {
    fn namespaces(&self, _: &str) -> Option<Vec<String>> {
        None
    }

    fn is_all_here(&self) -> bool {
        true
    }

    async fn read(&self, _: &ZoneId) -> Result<(), crate::connected_agents::ConnectedAgentsError> {
        Ok(())
    }

    fn sessions(&self, _: &str) -> Vec<SessionFact> {
        Vec::new()
    }

    fn agents(&self) -> Vec<AgentView> {
        self.holders("")
    }

    fn holders(&self, _: &str) -> Vec<AgentView> {
        vec![agent(self.0)]
    }

    fn disconnect(&self, _: &AgentId, _: Option<&ZoneId>) -> bool {
        false
    }
}
