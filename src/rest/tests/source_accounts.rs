//! `POST /armory/accounts`: checked as a whole, and made from the sources as they are when the call comes.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use super::fake_api::FakeApi;
use super::*;
use crate::credentials_sources::{CredentialsSource, SourceReadError};
use kubesvc_clouddriver::definition::{FileRoot, RootTarget};
use kubesvc_clouddriver::sources::{Completeness, SourceSnapshot, read_row};
use kubesvc_core::source_rules::{NamespaceSet, SourceRules};

const PATH: &str = "/armory/accounts";

/// The bodies of a source's rows by name; `None`: it cannot be read.
type Rows = Arc<Mutex<Option<BTreeMap<&'static str, String>>>>;

struct FakeSource(Arc<str>, Rows);

#[async_trait]
impl CredentialsSource for FakeSource {
    fn interval(&self) -> Duration {
        Duration::from_secs(60)
    }

    async fn read(&self) -> Result<Arc<SourceSnapshot>, SourceReadError> {
        let rows = self.1.lock();
        let Some(rows) = &*rows else {
            return Err(SourceReadError::Status { url: "http://config".to_owned(), code: 503 });
        };
        let items = rows.iter().map(|(name, body)| read_row(&self.0, name, body, "1".to_owned()));
        Ok(Arc::new(SourceSnapshot::of(&self.0, items.collect::<Vec<_>>(), Completeness::Complete)))
    }
}

struct Rest {
    api: Arc<FakeApi>,
    router: Router,
    sql: Rows,
    yaml: Rows,
}

impl Rest {
    fn new() -> Self {
        Self::with(settings(), Vec::new())
    }

    fn with(settings: RestSettings, file_roots: Vec<FileRoot>) -> Self {
        let api = Arc::<FakeApi>::default();
        let (sql, yaml) = (rows(&[]), rows(&[]));
        let source = |name: &str, rows: &Rows| {
            let name: Arc<str> = Arc::from(name);
            let source: Box<dyn CredentialsSource> =
                Box::new(FakeSource(Arc::clone(&name), Arc::clone(rows)));
            (name, source)
        };
        let sources = CredentialsSources::of(vec![source("sql", &sql), source("yaml", &yaml)]);
        let mut state = state_of(settings, &[], api.client());
        let given = (*state.source_accounts).clone();
        state.ports.source_accounts =
            Arc::new(SourceAccounts { sources: Arc::new(sources), file_roots: file_roots.into(), ..given });
        state.accounts.sync();
        Self { router: router(state), api, sql, yaml }
    }

    async fn post(&self, body: Value) -> TestResponse {
        let request = Request::post(PATH).header(header::CONTENT_TYPE, "application/json");
        send(self.router.clone(), request.body(Body::from(body.to_string())).expect("a request")).await
    }

    fn account(&self, name: &str) -> Option<Value> {
        self.api.get(&format!("/kubesvcaccounts/{name}"))
    }
}

fn rows(rows: &[(&'static str, Value)]) -> Rows {
    Arc::new(Mutex::new(Some(rows.iter().map(|(name, body)| (*name, body.to_string())).collect())))
}

fn set(rows: &Rows, to: &[(&'static str, Value)]) {
    *rows.lock() = Some(to.iter().map(|(name, body)| (*name, body.to_string())).collect());
}

fn entry(token: &str) -> Value {
    json!({"kubeconfigContents": kubeconfig(token), "namespaces": ["a"], "permissions": {"READ": ["dev"]}})
}

#[tokio::test]
async fn accounts_are_made_inactive_from_the_first_source_that_has_them() {
    let rest = Rest::new();
    set(&rest.sql, &[("prod", entry("of-sql"))]);
    set(
        &rest.yaml,
        &[("prod", entry("of-yaml")), ("dev", json!({"kubeconfigFile": "encryptedFile:k8s!n:s!k:k"}))],
    );
    let answer = rest.post(json!([{"name": "prod", "zoneId": "east"}, {"name": "dev"}])).await;
    assert_eq!((answer.status, answer.text.as_str()), (202, "[]"));
    let prod = rest.account("prod").expect("made");
    assert_eq!(prod["spec"]["state"], "INACTIVE");
    assert_eq!(prod["spec"]["zoneId"], "east");
    assert_eq!(prod["spec"]["permissions"], json!({"READ": ["dev"]}));
    assert_eq!(prod["metadata"]["labels"]["kubesvc.io/origin"], "migrated");
    assert_eq!(prod["metadata"]["annotations"]["kubesvc.io/source"], "sql");
    assert_eq!(prod["metadata"]["finalizers"], json!(["kubesvc.io/account"]));
    let secret = rest.api.get("/secrets/prod-kubeconfig").expect("stored").to_string();
    assert!(!prod.to_string().contains("of-sql"), "{prod}");
    let encoded = base64::Engine::encode(&base64::prelude::BASE64_STANDARD, kubeconfig("of-sql"));
    assert!(secret.contains(&encoded), "the row wins over YAML");
    let dev = rest.account("dev").expect("made");
    assert_eq!(dev["spec"]["kubeconfig"]["reference"], "encryptedFile:k8s!n:s!k:k");
    assert_eq!(dev["metadata"]["annotations"]["kubesvc.io/source"], "yaml");
}

#[tokio::test]
async fn same_post_twice_is_409_and_changes_nothing() {
    let rest = Rest::new();
    set(&rest.sql, &[("prod", entry("one")), ("dev", entry("two"))]);
    assert_eq!(rest.post(json!([{"name": "prod"}])).await.status, 202);
    let before = (rest.account("prod"), rest.api.get("/secrets/prod-kubeconfig"));
    set(&rest.sql, &[("prod", entry("changed")), ("dev", entry("two"))]);
    let answer = rest.post(json!([{"name": "prod"}, {"name": "dev"}])).await;
    assert_eq!(answer.status, 409);
    let shown: Value = serde_json::from_str(&answer.text).expect("JSON");
    assert_eq!(shown, json!([{"name": "prod", "state": "INACTIVE"}]));
    assert_eq!((rest.account("prod"), rest.api.get("/secrets/prod-kubeconfig")), before);
    assert!(rest.account("dev").is_some(), "the rest is processed");
    // One that exists needs no source.
    *rest.sql.lock() = None;
    assert_eq!(rest.post(json!([{"name": "prod"}])).await.status, 409);
}

#[tokio::test]
async fn unknown_name_names_account_and_sources_and_nothing_is_made() {
    let rest = Rest::new();
    set(&rest.sql, &[("prod", entry("one"))]);
    let answer = rest.post(json!([{"name": "prod"}, {"name": "nope"}, {"name": "neither"}])).await;
    assert_eq!(answer.status, 400);
    let message = answer.message(PATH);
    assert!(
        message.contains(r#"account "nope": it is in none of the credentials sources sql, yaml"#),
        "{message}"
    );
    assert!(message.contains(r#"account "neither""#), "{message}");
    assert_eq!(rest.account("prod"), None);
}

#[tokio::test]
async fn unreadable_source_is_503_unless_an_earlier_one_has_the_name() {
    let rest = Rest::new();
    set(&rest.sql, &[("prod", entry("one"))]);
    set(&rest.yaml, &[("dev", entry("two"))]);
    *rest.yaml.lock() = None;
    let answer = rest.post(json!([{"name": "prod"}, {"name": "dev"}])).await;
    assert_eq!(answer.status, 503);
    let message = answer.message(PATH);
    assert!(message.contains(r#"account "dev": credentials source yaml may have it"#), "{message}");
    assert_eq!(rest.account("prod"), None, "nothing is made");
    assert_eq!(rest.post(json!([{"name": "prod"}])).await.status, 202, "sql has it");
    *rest.sql.lock() = None;
    set(&rest.yaml, &[("dev", entry("two"))]);
    assert_eq!(rest.post(json!([{"name": "dev"}])).await.status, 503, "sql would win");
}

#[tokio::test]
async fn entry_that_is_no_account_is_named_and_hides_no_other() {
    let rest = Rest::new();
    set(
        &rest.sql,
        &[
            ("broken", json!("no object")),
            ("both", json!({"kubeconfigContents": kubeconfig("x"), "kinds": ["a"], "omitKinds": ["b"]})),
            ("roles", json!({"kubeconfigContents": kubeconfig("x"), "permissions": ["READ"]})),
            ("sa", json!({"serviceAccount": true})),
            (
                "exec",
                json!({"kubeconfigContents": kubeconfig("x").replace("\"token\":\"x\"", "\"exec\":{\"command\":\"hunter2\"}")}),
            ),
            ("good", entry("one")),
        ],
    );
    for (name, expected) in [
        ("broken", "its entry in credentials source sql is not usable: its body is not a JSON object"),
        ("both", "kinds"),
        ("roles", "permissions is not a group of READ and WRITE"),
        ("sa", "zone"),
        ("exec", "kubeconfigContents is refused"),
    ] {
        let answer = rest.post(json!([{"name": "good"}, {"name": name}])).await;
        let message = answer.message(PATH);
        assert_eq!(answer.status, 400, "{name}: {message}");
        assert!(message.contains(expected) && message.contains(name), "{message}");
        assert!(!message.contains("hunter2"), "{message}");
        assert_eq!(rest.account("good"), None, "{name}");
    }
    assert_eq!(rest.post(json!([{"name": "good"}])).await.status, 202);
    let own = json!([{"name": "sa", "zoneId": "east", "serviceAccount": true}]);
    assert_eq!(rest.post(own).await.status, 202);
    assert_eq!(rest.account("sa").expect("made")["spec"]["kubeconfig"], json!({"serviceAccount": true}));
}

#[tokio::test]
async fn kubeconfig_of_the_request_goes_before_that_of_the_entry() {
    let rest = Rest::new();
    set(&rest.sql, &[("prod", entry("of-source"))]);
    let answer = rest
        .post(json!([{"name": "prod", "kubeconfigFile": "/agents/prod", "namespaces": ["ignored"]}]))
        .await;
    assert_eq!(answer.status, 202, "{}", answer.text);
    let prod = rest.account("prod").expect("made");
    assert_eq!(prod["spec"]["kubeconfig"], json!({"file": "/agents/prod"}));
    assert_eq!(prod["spec"]["namespaces"], json!(["a"]), "all else is the source's");
    assert_eq!(rest.api.get("/secrets/prod-kubeconfig"), None);
}

#[tokio::test]
async fn files_of_clouddriver_are_read_where_the_settings_say() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("prod"), kubeconfig("mounted")).expect("written");
    std::fs::write(folder.path().join("bad"), "no kubeconfig").expect("written");
    let to = folder.path().display().to_string();
    let file_roots = vec![FileRoot { from: "/home/spinnaker".to_owned(), to: RootTarget::Folder(to) }];
    let rest = Rest::with(settings(), file_roots);
    let file = |name: &str| json!({"kubeconfigFile": format!("/home/spinnaker/{name}")});
    let elsewhere = json!({"kubeconfigFile": "/elsewhere/prod"});
    set(
        &rest.sql,
        &[("prod", file("prod")), ("bad", file("bad")), ("gone", file("gone")), ("far", elsewhere)],
    );
    assert_eq!(rest.post(json!([{"name": "prod"}, {"name": "bad"}])).await.status, 400);
    let gone = rest.post(json!([{"name": "prod"}, {"name": "gone"}])).await;
    assert_eq!(gone.status, 503);
    assert!(gone.message(PATH).contains("kubesvc.clouddriver.fileRoots"), "{}", gone.text);
    assert_eq!(rest.account("prod"), None);
    assert_eq!(rest.post(json!([{"name": "prod"}, {"name": "far"}])).await.status, 202);
    assert!(rest.api.get("/secrets/prod-kubeconfig").is_some());
    // The account is there, and says later where its file is.
    assert!(rest.account("far").is_some());
    assert_eq!(rest.api.get("/secrets/far-kubeconfig"), None);
}

#[tokio::test]
async fn source_that_the_namespace_may_not_use_is_refused() {
    let source_rules =
        SourceRules { agent_sources: NamespaceSet::These([].into()), ..SourceRules::default() };
    let rest = Rest::with(RestSettings { source_rules, ..settings() }, Vec::new());
    set(&rest.sql, &[("prod", entry("one"))]);
    let answer = rest.post(json!([{"name": "prod", "kubeconfigFile": "/agents/prod"}])).await;
    assert_eq!(answer.status, 400);
    assert!(answer.message(PATH).contains("kubesvc.accounts.agentSources"), "{}", answer.text);
    assert_eq!(rest.account("prod"), None);
}

#[tokio::test]
async fn malformed_bodies_are_400_before_a_source_is_read() {
    let rest = Rest::new();
    *rest.sql.lock() = None;
    for body in [
        json!([]),
        json!(null),
        json!({"name": "a"}),
        json!(["a"]),
        json!([{"zoneId": "east"}]),
        json!([{"name": ""}]),
        json!([{"name": "n".repeat(256)}]),
        json!([{"name": "a"}, {"name": "a"}]),
        json!([{"name": "a", "zoneId": 5}]),
    ] {
        let answer = rest.post(body.clone()).await;
        assert_eq!(answer.status, 400, "{body}: {}", answer.text);
    }
}

#[tokio::test]
async fn names_of_any_characters_are_made() {
    let rest = Rest::new();
    let long: &'static str = Box::leak("ü".repeat(255).into_boxed_str());
    let names = ["a/b", "a%2Fb", "🚀", "Prod", "prod", "dynamic", long];
    let entries: Vec<_> = names.iter().map(|name| (*name, entry("one"))).collect();
    set(&rest.sql, &entries);
    let wanted: Vec<_> = names.iter().map(|name| json!({ "name": name })).collect();
    let answer = rest.post(json!(wanted)).await;
    assert_eq!((answer.status, answer.text.as_str()), (202, "[]"));
    for name in names {
        let account = rest.account(&kubesvc_core::object_names::object_name(name)).expect(name);
        let own = account["spec"]["accountName"].as_str().or(account["metadata"]["name"].as_str());
        assert_eq!(own, Some(name));
    }
}
