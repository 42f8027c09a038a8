//! Each call by callers with rights and without, in each mode of `kubesvc.rest.auth`.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use rustls::pki_types::CertificateDer;

use super::fake_api::FakeApi;
use super::*;
use crate::access::{AccessError, Caller, Principal, RequestedAccess};
use crate::operations::tests::fakes::principal;
use kubesvc_core::KubesvcAccount;
use kubesvc_runtime::listen::connection_limits::ClientAddress;
use kubesvc_runtime::listen::http::{ClientCertificates, ExemptCaller};
use kubesvc_runtime::telemetry::metrics::Metrics;

/// Rights as texts: the token is the caller's name, `nobody` is not known.
#[derive(Default)]
struct Rights {
    /// Beginnings of what is allowed.
    allowed: Mutex<Vec<String>>,
    /// What is denied nevertheless.
    denied: Mutex<Vec<String>>,
    knows_nobody: AtomicBool,
    reviews_nothing: AtomicBool,
    asked: Mutex<Vec<String>>,
    /// The beginning of what is allowed so many times more.
    times: Mutex<Option<(String, usize)>>,
}

#[async_trait]
impl Access for Rights {
    async fn authenticate(&self, caller: Caller<'_>) -> Result<Principal, AccessError> {
        if self.knows_nobody.load(Ordering::Relaxed) {
            return Err(AccessError::Unavailable("the API server is away".to_owned()));
        }
        let token = caller.headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        match token.and_then(|token| token.strip_prefix("Bearer ")) {
            Some("nobody") | None => Err(AccessError::Unauthenticated("who are you?".to_owned())),
            Some(name) => Ok(principal(name)),
        }
    }

    async fn authorize(&self, _: &Principal, access: &RequestedAccess) -> Result<(), AccessError> {
        if self.reviews_nothing.load(Ordering::Relaxed) {
            return Err(AccessError::Unavailable("the API server is away".to_owned()));
        }
        let text = access.to_string();
        self.asked.lock().push(text.clone());
        if let Some((begin, left)) = &mut *self.times.lock()
            && text.starts_with(begin.as_str())
        {
            let Some(less) = left.checked_sub(1) else {
                return Err(AccessError::Denied(format!("user cannot {text}")));
            };
            *left = less;
        }
        let begins = |all: &Mutex<Vec<String>>| all.lock().iter().any(|one| text.starts_with(one.as_str()));
        if begins(&self.allowed) && !begins(&self.denied) {
            return Ok(());
        }
        Err(AccessError::Denied(format!("user cannot {text}")))
    }

    fn was_known(&self, caller: Caller<'_>) -> bool {
        caller.headers.get(header::AUTHORIZATION).is_some_and(|token| token == "Bearer known")
    }

    fn is_certified(&self, certificates: &[Vec<u8>]) -> bool {
        certificates.first().is_some_and(|own| own == b"gate")
    }
}

pub(super) struct Place {
    pub(super) state: RestState,
    rights: Arc<Rights>,
    pub(super) audit: AuditLines,
    pub(super) api: Arc<FakeApi>,
}

/// A state with the account `prod`, and callers with these rights.
pub(super) fn place(mode: RestAuthMode, allowed: &[&str]) -> Place {
    let (api, rights, audit) = (Arc::<FakeApi>::default(), Arc::<Rights>::default(), AuditLines::default());
    *rights.allowed.lock() = allowed.iter().map(|one| (*one).to_owned()).collect();
    let settings = RestSettings { auth_mode: mode, ..settings() };
    let state = state_of(settings.clone(), &[], api.client());
    let access = Arc::<Rights>::clone(&rights);
    let mut state =
        RestState::new(settings, RestPorts { access, audit: AuditLog::to(audit.clone()), ..state.ports });
    state.ports.kube = KubeAccess::new(api.client(), "test");
    let place = Place { state, rights, audit, api };
    place.has("prod", "ns");
    place.state.accounts.sync();
    place
}

impl Place {
    pub(super) fn has(&self, name: &str, namespace: &str) {
        let object = json!({
            "apiVersion": "kubesvc.io/v1alpha1", "kind": "KubesvcAccount",
            "metadata": {"name": name, "namespace": namespace, "uid": format!("u-{name}"), "resourceVersion": "1"},
            "spec": {"kubeconfig": {"serviceAccount": true}},
        });
        let path = format!("/apis/kubesvc.io/v1alpha1/namespaces/{namespace}/kubesvcaccounts/{name}");
        self.api.put(&path, object.clone());
        let object: KubesvcAccount = serde_json::from_value(object).expect("an account");
        self.state.accounts.show(object);
    }

    pub(super) async fn call(
        &self,
        method: &str,
        path: &str,
        body: &str,
        headers: &[(&str, &str)],
    ) -> TestResponse {
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if !body.is_empty() {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        let request = request.body(Body::from(body.to_owned())).expect("a request");
        send(router(self.state.clone()), request).await
    }

    async fn get(&self, path: &str) -> TestResponse {
        self.call("GET", path, "", &[ANN]).await
    }

    fn metrics(&self) -> String {
        let mut metrics = Metrics::new();
        self.state.ports.access_metrics.register(&mut metrics.registry);
        metrics.encode()
    }
}

pub(super) const ANN: (&str, &str) = ("authorization", "Bearer ann");
const EVERYTHING: &[&str] = &[""];

/// A documented call, the right that it needs, and its status without that right, and without any.
type Row = (&'static str, &'static str, &'static str, &'static str, u16, u16);

/// Every documented call but those about operations and health. `{}` is the path's parameter.
const CALLS: &[Row] = &[
    ("GET", "/armory/accounts", "", "list kubesvcaccounts ", 200, 200),
    // Without a credentials source, the call does not exist.
    ("POST", "/armory/accounts", r#"[{"name": "new"}]"#, "create kubesvcaccounts ", 501, 501),
    (
        "PATCH",
        "/armory/accounts",
        r#"[{"name": "prod", "state": "INACTIVE"}]"#,
        "update kubesvcaccounts ",
        403,
        400,
    ),
    ("DELETE", "/armory/accounts", r#"["prod"]"#, "delete kubesvcaccounts ", 403, 400),
    ("GET", "/armory/accounts/prod", "", "get kubesvcaccounts ", 404, 404),
    ("DELETE", "/armory/accounts/prod", "", "delete kubesvcaccounts ", 403, 400),
    ("GET", "/armory/accounts/dynamic", "", "get kubesvcaccounts ", 404, 404),
    (
        "POST",
        "/armory/accounts/dynamic",
        r#"{"name": "new", "serviceAccount": true}"#,
        "create kubesvcaccounts ",
        403,
        403,
    ),
    (
        "PUT",
        "/armory/accounts/dynamic",
        r#"{"name": "prod", "zoneId": "z"}"#,
        "update kubesvcaccounts ",
        403,
        404,
    ),
    (
        "PATCH",
        "/armory/accounts/dynamic",
        r#"[{"name": "prod", "state": "ACTIVE"}]"#,
        "update kubesvcaccounts ",
        403,
        400,
    ),
    ("DELETE", "/armory/accounts/dynamic", "", "delete kubesvcaccounts ", 400, 400),
    ("GET", "/agents/kubernetes/accounts/prod", "", "get kubesvcaccounts ", 200, 200),
    ("GET", "/agents/kubernetes/accounts/prod/namespaces", "", "get kubesvcaccounts ", 404, 404),
    ("GET", "/agents/kubernetes/accounts/prod/cache", "", "get accounts/cache ", 403, 404),
    ("GET", "/armory/agents", "", "list kubesvcagents ", 403, 403),
    ("GET", "/armory/agents/b", "", "get kubesvcagents ", 403, 403),
    ("POST", "/armory/agent/assignments", r#"["prod"]"#, "update kubesvcaccounts ", 403, 400),
    ("POST", "/armory/agent/a%2F1/disconnect", "", "update kubesvcagents ", 403, 403),
    ("GET", "/armory/migrations/plan?name=prod", "", "get kubesvcaccounts/clouddriver ", 403, 403),
    ("GET", "/armory/clouddrivers", "", "list kubesvcagents ", 403, 403),
    ("GET", "/armory/clouddrivers/replica", "", "list kubesvcagents ", 403, 403),
    ("GET", "/armory/clouddrivers/sql/pool/settings", "", "list kubesvcagents ", 403, 403),
    ("GET", "/credentials", "", "get kubesvcaccounts/clouddriver ", 403, 403),
    ("POST", "/credentials", "{}", "create kubesvcaccounts/clouddriver ", 403, 403),
    ("PUT", "/credentials", "{}", "update kubesvcaccounts/clouddriver ", 403, 403),
    ("DELETE", "/credentials/prod", "", "delete kubesvcaccounts/clouddriver ", 403, 403),
    ("GET", "/metrics", "", "get the path /metrics", 403, 403),
    ("GET", "/openapi.json", "", "get the path /openapi.json", 403, 403),
];

const HEALTH: [&str; 4] = ["/health", "/health/liveness", "/health/readiness", "/health/tasks"];

#[tokio::test]
async fn every_call_is_judged_in_each_mode() {
    for (method, path, body, right, denied, hidden) in CALLS {
        let what = format!("{method} {path}");
        let off = place(RestAuthMode::Off, &[]);
        let usual = off.call(method, path, body, &[]).await;
        assert!(off.rights.asked.lock().is_empty(), "{what}: nobody is asked while the mode is off");
        assert!(usual.headers.contains_key("audit-id"), "{what}");

        let enforcing = place(RestAuthMode::Enforce, EVERYTHING);
        for caller in [None, Some(("authorization", "Bearer nobody"))] {
            let headers: Vec<_> = caller.into_iter().collect();
            let answer = enforcing.call(method, path, body, &headers).await;
            assert_eq!(answer.status, 401, "{what}: {}", answer.text);
            assert_eq!(answer.headers[header::WWW_AUTHENTICATE], "Bearer");
        }
        let answer = enforcing.call(method, path, body, &[ANN]).await;
        assert_eq!(answer.status, usual.status, "{what} with every right: {}", answer.text);
        let asks = answer.status != 501 || path.starts_with("/credentials");
        if asks && !path.ends_with("/dynamic") {
            let asked = enforcing.rights.asked.lock().clone();
            assert!(asked.iter().any(|one| one.starts_with(right)), "{what}: {asked:?}");
        }

        let without = place(RestAuthMode::Enforce, EVERYTHING);
        *without.rights.denied.lock() = vec![(*right).to_owned()];
        let answer = without.call(method, path, body, &[ANN]).await;
        assert_eq!(answer.status, *denied, "{what} without the right: {}", answer.text);
        if *denied == 403 {
            assert!(answer.text.contains(right.trim_end()), "{what}: it names the right: {}", answer.text);
        }
        let nothing = place(RestAuthMode::Enforce, &[]);
        let answer = nothing.call(method, path, body, &[ANN]).await;
        assert_eq!(answer.status, *hidden, "{what} without any right: {}", answer.text);

        let away = place(RestAuthMode::Enforce, EVERYTHING);
        away.rights.knows_nobody.store(true, Ordering::Relaxed);
        let answer = away.call(method, path, body, &[ANN]).await;
        assert_eq!(answer.status, 503, "{what}: {}", answer.text);
        let away = place(RestAuthMode::Enforce, EVERYTHING);
        away.rights.reviews_nothing.store(true, Ordering::Relaxed);
        let answer = away.call(method, path, body, &[ANN]).await;
        let is_absent = path.ends_with("/dynamic") && !matches!(*method, "POST" | "PUT" | "PATCH");
        let expected = if is_absent || !asks { usual.status } else { 503 };
        assert_eq!(answer.status, expected, "{what}: {}", answer.text);

        for (rights, headers, knows) in
            [(EVERYTHING, vec![], true), (&[][..], vec![ANN], true), (EVERYTHING, vec![ANN], false)]
        {
            let logging = place(RestAuthMode::Log, rights);
            logging.rights.knows_nobody.store(!knows, Ordering::Relaxed);
            let answer = logging.call(method, path, body, &headers).await;
            assert_eq!(answer.status, usual.status, "{what} with log: {}", answer.text);
            if asks && !is_absent {
                let metrics = logging.metrics();
                assert!(metrics.contains("kubesvc_rest_would_refuse_total{reason="), "{what}: {metrics}");
            }
        }
    }
}

#[tokio::test]
async fn health_is_open_in_each_mode_and_unknown_paths_are_not() {
    for mode in [RestAuthMode::Off, RestAuthMode::Log, RestAuthMode::Enforce] {
        let place = place(mode, &[]);
        place.rights.knows_nobody.store(true, Ordering::Relaxed);
        for path in HEALTH {
            assert_eq!(place.call("GET", path, "", &[]).await.status, 200, "{mode:?} {path}");
        }
    }
    let place = place(RestAuthMode::Enforce, EVERYTHING);
    for path in ["/armory/other", "/", "/armory/accounts/"] {
        assert_eq!(place.call("GET", path, "", &[]).await.status, 401, "{path}");
        assert_eq!(place.get(path).await.status, 404, "{path}");
    }
}

#[test]
fn every_documented_call_is_in_the_table() {
    let description: Value = serde_json::from_str(&openapi()).expect("JSON");
    let mut documented = BTreeSet::new();
    for (path, methods) in description["paths"].as_object().expect("paths") {
        for method in methods.as_object().expect("methods").keys() {
            if !path.contains("/agent/operation") && !path.starts_with("/health") {
                documented.insert(format!("{} {path}", method.to_uppercase()));
            }
        }
    }
    let template = |path: &str| {
        let path = path.split('?').next().unwrap_or_default();
        let path = path.replace("accounts/prod", "accounts/{accountName}");
        let path = path.replace("credentials/prod", "credentials/{accountName}");
        let path = path.replace("agents/b", "agents/{agentId}").replace("agent/a%2F1", "agent/{agentId}");
        path.replace("clouddrivers/replica", "clouddrivers/{clouddriverId}")
    };
    let tested: BTreeSet<_> =
        CALLS.iter().map(|(method, path, ..)| format!("{method} {}", template(path))).collect();
    assert_eq!(documented, tested);
}

#[tokio::test]
async fn an_account_that_may_not_be_seen_is_as_one_that_is_missing() {
    let place = place(RestAuthMode::Enforce, &[]);
    for (method, path, body) in [
        ("GET", "/armory/accounts/NAME", ""),
        ("DELETE", "/armory/accounts/NAME", ""),
        ("DELETE", "/armory/accounts", r#"["NAME"]"#),
        ("PATCH", "/armory/accounts", r#"[{"name": "NAME", "state": "ACTIVE"}]"#),
        ("PUT", "/armory/accounts/dynamic", r#"{"name": "NAME", "zoneId": "z"}"#),
        ("GET", "/agents/kubernetes/accounts/NAME", ""),
        ("GET", "/agents/kubernetes/accounts/NAME/namespaces", ""),
        ("GET", "/agents/kubernetes/accounts/NAME/cache", ""),
        ("POST", "/armory/agent/assignments", r#"["NAME"]"#),
    ] {
        let of = async |name: &str| {
            let (path, body) = (path.replace("NAME", name), body.replace("NAME", name));
            let answer = place.call(method, &path, &body, &[ANN]).await;
            let mut shown = answer.json();
            if let Some(fields) = shown.as_object_mut() {
                fields.remove("timestamp");
            }
            (answer.status, shown.to_string().replace(name, "NAME"))
        };
        assert_eq!(of("prod").await, of("none").await, "{method} {path}");
    }
    assert!(place.api.get("kubesvcaccounts/prod").is_some(), "nothing was done");
}

#[tokio::test]
async fn a_list_has_what_its_caller_may_get_and_counts_no_more() {
    let place = place(
        RestAuthMode::Enforce,
        &[
            r#"list kubesvcaccounts in API group "kubesvc.io" in namespace "team""#,
            r#"get kubesvcaccounts in API group "kubesvc.io" of object "b" in namespace "other""#,
            "list kubesvcagents",
        ],
    );
    for (name, namespace) in [("a", "team"), ("c", "team"), ("b", "other"), ("d", "other")] {
        place.has(name, namespace);
    }
    let shown = place.get("/armory/accounts?limit=2").await.json();
    let names = |page: &Value| -> Vec<String> {
        let items = page["items"].as_array().expect("items").iter();
        items.map(|item| item["name"].as_str().expect("a name").to_owned()).collect()
    };
    assert_eq!((names(&shown), &shown["total"]), (vec!["a".to_owned(), "b".to_owned()], &json!(3)));
    let second = place.get("/armory/accounts?limit=2&page=2").await.json();
    assert_eq!((names(&second), &second["total"]), (vec!["c".to_owned()], &json!(3)));
    let asked = place.rights.asked.lock().clone();
    let of = |name: &str| asked.iter().filter(|one| one.contains(&format!("object \"{name}\""))).count();
    assert_eq!((of("a"), of("c")), (0, 0), "where all may be listed, nothing is asked of one: {asked:?}");
    let agents = place.get("/armory/agents").await.json();
    assert_eq!(agents[0]["accounts"], json!(["a"]), "of an agent's accounts too: {agents}");

    let many = self::place(RestAuthMode::Enforce, &[]);
    for number in 0..257 {
        many.has(&format!("account-{number}"), "other");
    }
    let refused = many.get("/armory/accounts").await;
    assert_eq!(refused.status, 403, "{}", refused.text);
    assert!(
        refused.text.contains("list kubesvcaccounts") && !refused.text.contains("257"),
        "{}",
        refused.text
    );
}

#[tokio::test]
async fn a_body_needs_the_rights_of_its_source() {
    let contents = json!({"name": "new", "kubeconfigContents": kubeconfig("t")}).to_string();
    for (method, body, right) in [
        ("POST", contents.as_str(), "create secrets "),
        ("POST", r#"{"name": "new", "serviceAccount": true}"#, "use kubesvcaccounts/sources "),
        ("POST", r#"{"name": "new", "kubeconfigFile": "/x"}"#, "use kubesvcaccounts/sources "),
        (
            "PUT",
            r#"{"name": "prod", "kubeconfigFile": "encryptedFile:k8s!n:s!k:k"}"#,
            r#"get secrets in API group "" of object "s""#,
        ),
        (
            "PUT",
            r#"{"name": "prod", "kubeconfigFile": "encryptedFile:file!p:/x"}"#,
            "use kubesvcaccounts/sources ",
        ),
    ] {
        let all = place(RestAuthMode::Enforce, EVERYTHING);
        let answer = all.call(method, "/armory/accounts/dynamic", body, &[ANN]).await;
        assert_eq!(answer.status, 202, "{body}: {}", answer.text);
        let place = place(RestAuthMode::Enforce, EVERYTHING);
        *place.rights.denied.lock() = vec![right.to_owned()];
        let answer = place.call(method, "/armory/accounts/dynamic", body, &[ANN]).await;
        assert_eq!(answer.status, 403, "{body}: {}", answer.text);
        assert!(
            answer.json()["message"].as_str().unwrap_or_default().contains(right.trim_end()),
            "{}",
            answer.text
        );
        assert!(place.api.get("kubesvcaccounts/new").is_none(), "{body}: nothing was made");
    }
}

#[tokio::test]
async fn a_name_that_is_taken_by_a_hidden_account_is_no_news_of_it() {
    let rights = ["create kubesvcaccounts", "use kubesvcaccounts/sources"];
    let place = place(RestAuthMode::Enforce, &rights);
    let body = r#"{"name": "prod", "serviceAccount": true}"#;
    let answer = place.call("POST", "/armory/accounts/dynamic", body, &[ANN]).await;
    assert_eq!(answer.status, 409, "{}", answer.text);
    assert!(answer.message("/armory/accounts/dynamic").contains("taken"), "{}", answer.text);
}

#[tokio::test]
async fn the_word_of_a_caller_about_users_counts_if_it_may_say_so() {
    const USER: (&str, &str) = ("x-spinnaker-user", "bob");
    const ACCOUNTS: (&str, &str) = ("x-spinnaker-accounts", "other, more");
    let delete = async |place: &Place, headers: &[(&str, &str)]| {
        place.call("DELETE", "/armory/accounts/prod", "", headers).await.status
    };
    let gate = place(RestAuthMode::Enforce, EVERYTHING);
    assert_eq!(gate.call("GET", "/armory/accounts/prod", "", &[ANN, USER, ACCOUNTS]).await.status, 404);
    assert_eq!(delete(&gate, &[ANN, USER, ACCOUNTS]).await, 400, "as if it did not exist");
    let list = gate.call("GET", "/armory/accounts", "", &[ANN, USER, ACCOUNTS]).await.json();
    assert_eq!(list["total"], 0, "{list}");
    assert_eq!(delete(&gate, &[ANN, USER]).await, 202);
    let line = gate.audit.lines().pop().expect("a line");
    assert_eq!((&line["user"], &line["claimed"]), (&json!("bob"), &Value::Null), "{line}");

    let other = place(RestAuthMode::Enforce, &["get kubesvcaccounts", "delete kubesvcaccounts"]);
    assert_eq!(other.call("GET", "/armory/accounts/prod", "", &[ANN, USER, ACCOUNTS]).await.status, 200);
    assert_eq!(delete(&other, &[ANN, USER, ACCOUNTS]).await, 202);
    let line = other.audit.lines().pop().expect("a line");
    assert_eq!((&line["user"], &line["claimed"]), (&Value::Null, &json!("bob")), "{line}");
}

#[tokio::test]
async fn failed_logins_refusals_and_writes_have_audit_lines_with_the_id_of_the_answer() {
    let place = place(RestAuthMode::Enforce, &["get kubesvcaccounts", "update kubesvcaccounts"]);
    let body = r#"[{"name": "prod", "state": "INACTIVE"}]"#;
    let failed = place.call("GET", "/armory/accounts", "", &[]).await;
    let refused = place.call("DELETE", "/armory/accounts/prod", "", &[ANN]).await;
    let written = place.call("PATCH", "/armory/accounts", body, &[ANN]).await;
    let malformed = place.call("PATCH", "/armory/accounts", "s3cret", &[ANN]).await;
    place.get("/armory/accounts/prod").await;
    let lines = place.audit.lines();
    assert_eq!(lines.len(), 4, "a read has none: {lines:?}");
    let id = |answer: &TestResponse| json!(answer.headers["audit-id"].to_str().expect("text"));
    let all = [
        (&failed, "login-failure", 401),
        (&refused, "refusal", 403),
        (&written, "write", 202),
        (&malformed, "write", 400),
    ];
    for ((answer, message, code), line) in all.into_iter().zip(&lines) {
        assert_eq!(
            (&line["auditId"], &line["message"], &line["code"]),
            (&id(answer), &json!(message), &json!(code)),
            "{line}"
        );
    }
    let refusal = &lines[1];
    for (field, value) in [
        ("principal", "ann"),
        ("via", "token"),
        ("verb", "delete"),
        ("resource", "kubesvcaccounts"),
        ("namespace", "ns"),
        ("name", "prod"),
    ] {
        assert_eq!(refusal[field], value, "{refusal}");
    }
    let write = &lines[2];
    assert_eq!(
        (&write["account"], &write["uid"], &write["verb"]),
        (&json!("prod"), &json!("u-prod"), &json!("update"))
    );
    assert!(write["ms"].is_u64(), "{write}");
    assert!(!format!("{lines:?}").contains("s3cret"), "{lines:?}");
}

#[tokio::test]
async fn callers_that_come_too_fast_are_429_and_exempt_ones_are_not() {
    let place = place(RestAuthMode::Enforce, EVERYTHING);
    let app = router(place.state.clone());
    let call = async |token: &str, address: &str, is_exempt: bool| {
        let mut request = Request::get("/armory/clouddrivers").body(Body::empty()).expect("a request");
        let value = format!("Bearer {token}").parse().expect("a header");
        request.headers_mut().insert(header::AUTHORIZATION, value);
        request.extensions_mut().insert(ClientAddress::of(address.parse().expect("an address")));
        if is_exempt {
            request.extensions_mut().insert(ExemptCaller);
        }
        send(app.clone(), request).await
    };
    let mut last = None;
    for _ in 0..600 {
        last = Some(call("ann", "192.0.2.1", false).await);
    }
    let last = last.expect("600 calls");
    assert_eq!(
        (last.status, &last.headers[header::RETRY_AFTER]),
        (429, &header::HeaderValue::from_static("1"))
    );
    assert_eq!(call("bob", "192.0.2.1", false).await.status, 200, "the rate is a caller's");
    assert_eq!(call("ann", "192.0.2.9", true).await.status, 200);

    let mut statuses = Vec::new();
    for _ in 0..30 {
        statuses.push(call("nobody", "192.0.2.2", false).await.status);
    }
    assert_eq!((statuses[0], statuses[29]), (401, 429), "{statuses:?}");
    assert_eq!(call("known", "192.0.2.2", false).await.status, 200, "a caller that was known before goes on");
    assert_eq!(call("nobody", "192.0.2.3", false).await.status, 401, "another address has its own");
    let tokenless = async |address: &str| {
        let mut request = Request::get("/armory/clouddrivers").body(Body::empty()).expect("a request");
        request.extensions_mut().insert(ClientAddress::of(address.parse().expect("an address")));
        send(app.clone(), request).await.status
    };
    for _ in 0..30 {
        assert_eq!(tokenless("192.0.2.4").await, 401, "a call without a token is no login");
    }
    assert_eq!(call("nobody", "192.0.2.4", false).await.status, 401, "so nobody is locked out");
    let mut request = Request::get("/armory/clouddrivers").body(Body::empty()).expect("a request");
    let shown: Vec<CertificateDer<'static>> = vec![b"gate".to_vec().into()];
    request.extensions_mut().insert(ClientAddress::of("192.0.2.2".parse().expect("an address")));
    request.extensions_mut().insert(ClientCertificates(shown.into()));
    request.headers_mut().insert(header::AUTHORIZATION, "Bearer bob".parse().expect("a header"));
    assert_eq!(send(app.clone(), request).await.status, 200, "who has a certificate is not locked out");
    let metrics = place.metrics();
    for reason in ["rate", "logins", "unauthenticated"] {
        assert!(metrics.contains(&format!("kubesvc_rest_refused_total{{reason=\"{reason}\"}}")), "{metrics}");
    }
}

#[tokio::test]
async fn with_log_no_failed_login_and_no_rate_of_a_caller_refuses_a_call() {
    let place = place(RestAuthMode::Log, &[]);
    let app = router(place.state.clone());
    let call = async |token: &str, address: String| {
        let mut request = Request::get("/armory/agents").body(Body::empty()).expect("a request");
        let value = format!("Bearer {token}").parse().expect("a header");
        request.headers_mut().insert(header::AUTHORIZATION, value);
        request.extensions_mut().insert(ClientAddress::of(address.parse().expect("an address")));
        send(app.clone(), request).await
    };
    for _ in 0..30 {
        assert_eq!(call("nobody", "192.0.2.1".to_owned()).await.status, 200);
    }
    let mut last = None;
    for number in 0..600 {
        last = Some(call("ann", format!("192.0.2.{}", number % 4 + 2)).await);
    }
    let last = last.expect("600 calls");
    assert_eq!(last.status, 200, "{}", last.text);
    assert_eq!(last.json()[0]["accounts"], json!(["a", "z"]), "a list is whole: {}", last.text);
    assert!(place.metrics().contains("kubesvc_rest_would_refuse_total{reason=\"rate\"}"));
}

#[tokio::test]
async fn calls_of_a_caller_that_run_count_with_those_of_the_gateway() {
    for (mode, status) in [(RestAuthMode::Enforce, 429), (RestAuthMode::Log, 200)] {
        let place = place(mode, EVERYTHING);
        let counts = &place.state.ports.caller_counts;
        let held: Vec<_> = std::iter::from_fn(|| counts.short("ann").ok()).collect();
        assert_eq!(held.len(), 200);
        assert_eq!(place.get("/armory/accounts").await.status, status);
        let bob = ("authorization", "Bearer bob");
        assert_eq!(place.call("GET", "/armory/accounts", "", &[bob]).await.status, 200);
        drop(held);
        assert_eq!(place.get("/armory/accounts").await.status, 200);
    }
}

#[tokio::test]
async fn a_write_whose_caller_hangs_up_has_its_audit_line_once_it_has_ended() {
    let place = place(RestAuthMode::Enforce, EVERYTHING);
    let mut held = place.api.hold("PATCH", "kubesvcaccounts/prod");
    let body = r#"[{"name": "prod", "state": "INACTIVE"}]"#;
    {
        let calling = place.call("PATCH", "/armory/accounts", body, &[ANN]);
        tokio::select! {
            answer = calling => unreachable!("it is held: {}", answer.text),
            () = held.reached() => {}
        }
    }
    assert!(place.audit.lines().is_empty(), "it goes on");
    held.go();
    let written = async {
        while place.audit.lines().is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), written).await.expect("its line");
    let lines = place.audit.lines();
    let line = &lines[0];
    assert_eq!((lines.len(), &line["message"]), (1, &json!("write")), "{lines:?}");
    assert_eq!(
        (&line["account"], &line["uid"], &line["principal"]),
        (&json!("prod"), &json!("u-prod"), &json!("ann"))
    );
    assert_eq!(line["code"], Value::Null, "nobody was answered: {line}");
    assert!(line["reason"].as_str().is_some_and(|why| why.contains("caller left")), "{line}");
    assert!(line["auditId"].is_string(), "{line}");
}

#[tokio::test]
async fn what_was_written_before_a_call_is_refused_has_lines_beside_the_refusal() {
    let place = place(RestAuthMode::Enforce, EVERYTHING);
    place.has("b", "ns");
    *place.rights.times.lock() =
        Some((r#"update kubesvcaccounts in API group "kubesvc.io" of object "b""#.to_owned(), 1));
    let body = r#"[{"name": "prod", "state": "INACTIVE"}, {"name": "b", "state": "INACTIVE"}]"#;
    let answer = place.call("PATCH", "/armory/accounts", body, &[ANN]).await;
    assert_eq!(answer.status, 403, "{}", answer.text);
    let lines = place.audit.lines();
    let shown: Vec<_> =
        lines.iter().map(|line| json!([line["message"], line["name"], line["account"]])).collect();
    assert_eq!(shown, [json!(["refusal", "b", null]), json!(["write", null, "prod"])], "{lines:?}");
}

#[tokio::test]
async fn the_right_to_a_source_is_looked_at_again_before_the_object_is_written() {
    let place = place(RestAuthMode::Enforce, EVERYTHING);
    *place.rights.times.lock() = Some(("use kubesvcaccounts/sources".to_owned(), 1));
    let before = place.api.get("kubesvcaccounts/prod");
    let body = r#"{"name": "prod", "kubeconfigFile": "/x"}"#;
    let answer = place.call("PUT", "/armory/accounts/dynamic", body, &[ANN]).await;
    assert_eq!(answer.status, 403, "{}", answer.text);
    assert_eq!(place.api.get("kubesvcaccounts/prod"), before);
}

#[tokio::test]
async fn the_accounts_of_a_user_narrow_what_may_be_made() {
    let body = r#"{"name": "new", "serviceAccount": true}"#;
    for (accounts, status) in [("other", 403), ("other,new", 202)] {
        let place = place(RestAuthMode::Enforce, EVERYTHING);
        let headers = [ANN, ("x-spinnaker-accounts", accounts)];
        let answer = place.call("POST", "/armory/accounts/dynamic", body, &headers).await;
        assert_eq!(answer.status, status, "{accounts}: {}", answer.text);
        assert_eq!(place.api.get("kubesvcaccounts/new").is_some(), status == 202);
    }
}

#[tokio::test]
async fn with_log_a_list_is_whole_and_what_would_be_left_out_is_counted() {
    let place = place(RestAuthMode::Log, &[]);
    let list = place.get("/armory/accounts").await.json();
    assert_eq!(list["total"], 1, "{list}");
    assert!(
        place.metrics().contains("kubesvc_rest_would_refuse_total{reason=\"hidden\"} 1"),
        "{}",
        place.metrics()
    );
}
