//! What is cached of an account, and its changes.

use http_body_util::BodyStream;
use tokio_stream::StreamExt as _;

use super::fake_api::FakeApi;
use super::*;
use crate::cache_changes::{ChangeFeed, ChangeOperation, CommittedChange, MAX_READERS};
use kubesvc_core::{AgentId, KubesvcAccount, ZoneId};

const CACHE: &str = "/agents/kubernetes/accounts/prod/cache";

/// A state whose API server has these accounts, with uid `u`.
fn state(names: &[&str]) -> RestState {
    let api = Arc::<FakeApi>::default();
    let state = state_of(settings(), &[], api.client());
    for name in names {
        let object = account(name, None);
        api.put(&format!("/apis/kubesvc.io/v1alpha1/namespaces/ns/kubesvcaccounts/{name}"), object.clone());
        let object: KubesvcAccount = serde_json::from_value(object).expect("an account");
        state.accounts.show(object);
    }
    state.accounts.sync();
    state
}

fn account(name: &str, agent: Option<&str>) -> Value {
    let mut object = json!({
        "apiVersion": "kubesvc.io/v1alpha1", "kind": "KubesvcAccount",
        "metadata": {"name": name, "namespace": "ns", "uid": "u", "resourceVersion": "1"},
        "spec": {"kubeconfig": {"serviceAccount": true}},
    });
    if let Some(agent) = agent {
        object["status"] = json!({"zoneId": "z", "caching": {"agentId": agent, "epoch": 3}});
    }
    object
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
    assert_eq!((&cache["synced"], &cache["objects"]), (&json!(false), &json!(8)));
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
        state.ports.connected_agents = Arc::new(Holding(connected));
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

/// Reads lines of a call until one holds.
async fn line(lines: &mut BodyStream<Body>, holds: impl Fn(&Value) -> bool) -> Value {
    loop {
        let read = tokio::time::timeout(Duration::from_secs(20), lines.next()).await.expect("in time");
        let frame = read.expect("the call goes on").expect("no error");
        let line: Value = serde_json::from_slice(frame.data_ref().expect("data")).unwrap_or_default();
        if holds(&line) {
            return line;
        }
    }
}

async fn follow(state: &RestState) -> (u16, BodyStream<Body>) {
    let request = Request::get(format!("{CACHE}/changes")).body(Body::empty()).expect("a request");
    let answer = router(state.clone()).oneshot(request).await.expect("the router never fails");
    (answer.status().as_u16(), BodyStream::new(answer.into_body()))
}

fn publish(feed: &ChangeFeed, name: &str) {
    feed.publish("u", || {
        std::iter::once(CommittedChange {
            time: jiff::Timestamp::UNIX_EPOCH,
            account: "prod",
            op: ChangeOperation::Delete,
            kind: "deployment",
            namespace: "shop",
            name,
            resource_version: "8",
            uid: Some("o"),
        })
    });
}

fn is(op: &str) -> impl Fn(&Value) -> bool {
    move |line| line["op"] == op
}

#[tokio::test]
async fn changes_are_followed_from_the_agent_s_replica_until_the_account_goes() {
    let mut state = state(&["prod"]);
    state.ports.connected_agents = Arc::new(Holding("a/1"));
    let (status, mut lines) = follow(&state).await;
    assert_eq!(status, 200);
    let waiting = line(&mut lines, |_| true).await;
    assert_eq!(waiting["op"], "WAITING", "{waiting}");
    assert!(
        waiting["message"].as_str().is_some_and(|text| text.contains("no agent is elected")),
        "{waiting}"
    );
    let elect = |agent: &str| {
        let mut object = account("prod", Some(agent));
        object["metadata"]["resourceVersion"] = json!(agent.len().to_string());
        state.accounts.show(serde_json::from_value(object).expect("an account"));
    };
    elect("a/1");
    let following = line(&mut lines, is("FOLLOWING")).await;
    assert_eq!((&following["agentId"], &following["replica"]), (&json!("a/1"), &json!("replica")));
    publish(&state.changes, "web");
    let change = line(&mut lines, |_| true).await;
    assert_eq!(
        change,
        json!({"time": "1970-01-01T00:00:00Z", "account": "prod", "op": "DELETE", "kind": "deployment",
            "namespace": "shop", "name": "web", "resourceVersion": "8", "uid": "o"})
    );
    elect("another");
    line(&mut lines, is("MOVED")).await;
    assert!(!state.changes.has_readers());
    line(&mut lines, is("WAITING")).await;
    let key = crate::informers::AccountKey { namespace: "ns".to_owned(), name: "prod".to_owned() };
    state.accounts.hide(&key);
    line(&mut lines, is("GONE")).await;
    assert!(lines.next().await.is_none(), "it is the last line");
}

#[tokio::test]
async fn a_call_that_ends_leaves_nothing_and_a_replica_that_stops_ends_all() {
    let state = state(&["prod"]);
    let mut calls = Vec::new();
    for _ in 0..MAX_READERS {
        let (status, lines) = follow(&state).await;
        assert_eq!(status, 200);
        calls.push(lines);
    }
    assert_eq!(follow(&state).await.0, 503, "all places are taken");
    calls.pop();
    let (status, mut lines) = follow(&state).await;
    assert_eq!(status, 200, "a call that ends frees its place");
    line(&mut lines, is("WAITING")).await;
    state.stopping.cancel();
    assert!(lines.next().await.is_none());
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
