//! Who may call REST (`kubesvc.rest.auth`), by the RBAC of a real API server.

use serde_json::{Value, json};

use crate::operations::callers::Caller;
use crate::rest_tls;
use crate::world::{Answer, Call, MAX_WAIT, World, send};
use kubesvc_testkit::certificates::{MountedFiles, TestAuthority};
use kubesvc_testkit::folder::Folder;
use kubesvc_testkit::must;
use kubesvc_testkit::wait::eventually;

const ACCOUNTS: &str = "/armory/accounts";

impl World {
    /// Creates a service account with these rules in the world's namespace, and a token of it for REST.
    async fn person(&self, name: &str, rules: Value) -> Caller {
        let namespace = self.namespace();
        let object = |kind: &str| json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": {"name": name}});
        let (mut role, mut binding) = (object("Role"), object("RoleBinding"));
        role["rules"] = rules;
        binding["roleRef"] = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name});
        binding["subjects"] = json!([{"kind": "ServiceAccount", "name": name, "namespace": namespace}]);
        let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}});
        let list = json!({"kind": "List", "apiVersion": "v1", "items": [account, role, binding]});
        self.apply(&list.to_string()).await;
        Caller { token: self.token_of(name, "kubesvc").await }
    }

    async fn call_as(&self, caller: &Caller, call: Call) -> Answer {
        caller.call(self.operator(), call).await
    }

    async fn get_as(&self, caller: &Caller, path: &str) -> Answer {
        self.call_as(caller, Call::get(path)).await
    }

    /// Stores an account that no agent has.
    async fn stored(&self, name: &str) {
        let account = json!({
            "apiVersion": "kubesvc.io/v1alpha1", "kind": "KubesvcAccount", "metadata": {"name": name},
            "spec": {"zoneId": "nowhere", "state": "INACTIVE", "kubeconfig": {"serviceAccount": true}},
        });
        self.apply(&account.to_string()).await;
    }
}

fn accounts(verbs: &[&str]) -> Value {
    json!({"apiGroups": ["kubesvc.io"], "resources": ["kubesvcaccounts"], "verbs": verbs})
}

fn names(list: &Answer) -> Vec<&str> {
    let items = list.json["items"].as_array().into_iter().flatten();
    items.filter_map(|item| item["name"].as_str()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn callers_have_the_rights_that_rbac_gives_them() {
    let world =
        World::prepare().own_control_plane().setting("kubesvc.rest.auth.mode", "enforce").start().await;
    world.stored("prod").await;
    world.stored("test").await;
    let viewer = world.person("viewer", json!([accounts(&["get", "list"])])).await;
    let editor = world
        .person(
            "editor",
            json!([
                accounts(&["get", "list", "create", "update", "delete"]),
                {"apiGroups": ["kubesvc.io"], "resources": ["kubesvcaccounts/sources"], "verbs": ["use"]},
            ]),
        )
        .await;
    let mut only = accounts(&["get"]);
    only["resourceNames"] = json!(["prod"]);
    let of_one = world.person("of-one", json!([only])).await;
    let stranger = world.person("stranger", json!([])).await;

    eventually("the rights of the viewer", MAX_WAIT, async || {
        let list = world.get_as(&viewer, ACCOUNTS).await;
        if names(&list) == ["prod", "test"] { Ok(()) } else { Err(list.to_string()) }
    })
    .await;
    eventually("the rights on one account", MAX_WAIT, async || {
        let list = world.get_as(&of_one, ACCOUNTS).await;
        if names(&list) == ["prod"] && list.json["total"] == 1 { Ok(()) } else { Err(list.to_string()) }
    })
    .await;
    let nothing = world.get_as(&stranger, ACCOUNTS).await;
    assert_eq!((nothing.status, &nothing.json["total"]), (200, &json!(0)), "{nothing}");

    // Hidden is as missing; what is seen and may not be changed is 403.
    for caller in [&stranger, &of_one] {
        let hidden = world.get_as(caller, "/armory/accounts/test").await;
        let missing = world.get_as(caller, "/armory/accounts/none").await;
        assert_eq!((hidden.status, missing.status), (404, 404), "{hidden} {missing}");
        let message = |answer: &Answer| answer.json["message"].as_str().unwrap_or_default().to_owned();
        assert_eq!(message(&hidden).replace("test", "none"), message(&missing));
    }
    let refused = world.call_as(&viewer, Call::new("DELETE", "/armory/accounts/prod")).await;
    assert_eq!(refused.status, 403, "{refused}");
    assert!(refused.text.contains("delete kubesvcaccounts"), "{refused}");
    let id = refused.headers["audit-id"].to_str().expect("text").to_owned();
    let log = world.operator().log_text();
    let line = log.lines().find(|line| line.contains(&id)).expect("an audit line");
    assert!(line.contains("\"refusal\"") && line.contains(":viewer\""), "{line}");

    // An editor adds an account of an agent's own source; a kubeconfig needs the right to create Secrets too.
    let dynamic = "/armory/accounts/dynamic";
    let own = json!({"name": "new", "zoneId": "nowhere", "serviceAccount": true});
    let added = eventually("the rights of the editor", MAX_WAIT, async || {
        let added = world.call_as(&editor, Call::new("POST", dynamic).json(&own)).await;
        if added.status == 202 { Ok(added) } else { Err(added.to_string()) }
    })
    .await;
    assert_eq!(added.json, json!([]));
    let kubeconfig = world.control_plane().admin_kubeconfig();
    let contents = json!({"name": "more", "zoneId": "nowhere", "kubeconfigContents": kubeconfig});
    let refused = world.call_as(&editor, Call::new("POST", dynamic).json(&contents)).await;
    assert!(refused.status == 403 && refused.text.contains("create secrets"), "{refused}");
    let removed = world.call_as(&editor, Call::new("DELETE", "/armory/accounts/new")).await;
    assert_eq!(removed.status, 202, "{removed}");

    // Who is not known, or has a token for another audience.
    for token in [world.token_of("viewer", "elsewhere").await, "forged".to_owned()] {
        let refused = world.get_as(&Caller { token }, ACCOUNTS).await;
        assert_eq!(refused.status, 401, "{refused}");
    }
    assert_eq!(world.get(ACCOUNTS).await.status, 401);
    assert_eq!(world.get_as(&editor, "/metrics").await.status, 403);
    assert_eq!(world.get("/health/readiness").await.status, 200, "probes are open");

    // While nobody can be asked, nobody is let in; then the answers of before are used up.
    world.control_plane().pause();
    let away = eventually("503 while the API server is away", MAX_WAIT, async || {
        let call =
            Call::get("/armory/accounts/prod").header("authorization", &format!("Bearer {}", viewer.token));
        let answer = send(world.operator().rest_port(), call).await?;
        if answer.status == 503 { Ok(answer) } else { Err(answer.to_string()) }
    })
    .await;
    assert!(away.json["message"].is_string(), "{away}");
    let unknown = must(
        send(world.operator().rest_port(), Call::get(ACCOUNTS).header("authorization", "Bearer x")).await,
    );
    assert_eq!(unknown.status, 503, "{unknown}");
    world.control_plane().resume();
    eventually("answers again", MAX_WAIT, async || {
        let list = world.get_as(&viewer, ACCOUNTS).await;
        if list.status == 200 { Ok(()) } else { Err(list.to_string()) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn with_log_everybody_is_admitted_and_what_would_be_refused_is_counted() {
    let folder = must(Folder::new("audit"));
    let path = folder.path().join("audit.log");
    let world = World::prepare()
        .setting("kubesvc.rest.auth.mode", "log")
        .setting("kubesvc.audit.output", path.display().to_string())
        .start()
        .await;
    world.stored("prod").await;
    let stranger = world.person("stranger", json!([])).await;
    eventually("the account", MAX_WAIT, async || {
        let list = world.get(ACCOUNTS).await;
        if names(&list) == ["prod"] { Ok(()) } else { Err(list.to_string()) }
    })
    .await;
    assert_eq!(names(&world.get_as(&stranger, ACCOUNTS).await), ["prod"]);
    let changed = json!([{"name": "prod", "state": "INACTIVE"}]);
    let changed = world.call_as(&stranger, Call::new("PATCH", ACCOUNTS).json(&changed)).await;
    assert_eq!(changed.status, 202, "{changed}");
    let metrics = world.get("/metrics").await;
    assert_eq!(metrics.status, 200);
    for reason in ["unauthenticated", "hidden"] {
        let counter = format!("kubesvc_rest_would_refuse_total{{reason=\"{reason}\"}}");
        assert!(metrics.text.contains(&counter), "{counter}: {}", metrics.text);
    }
    assert!(metrics.text.contains("kubesvc_security_open{door=\"rest-open\"} 1"), "it is open still");
    let lines = must(std::fs::read_to_string(&path).map_err(|e| e.to_string()));
    let id = changed.headers["audit-id"].to_str().expect("text");
    let line: Value = lines
        .lines()
        .find(|line| line.contains(id))
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .expect("a line in the file");
    assert_eq!(
        (&line["message"], &line["account"], &line["code"]),
        (&json!("write"), &json!("prod"), &json!(202)),
        "{line}"
    );
    assert!(line["principal"].as_str().is_some_and(|name| name.ends_with(":stranger")), "{line}");
    assert!(!world.operator().log_text().contains(id), "the line is in the file alone");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_certificate_is_the_user_that_the_settings_name() {
    let authority = TestAuthority::new("rest");
    let folder = must(Folder::new("rest-certificates"));
    let (certificate, key) = authority.server();
    let files = MountedFiles::new(
        &folder.path().join("tls"),
        &[("tls.crt", certificate.as_str()), ("tls.key", key.as_str()), ("ca.crt", authority.pem())],
    );
    let path = |name: &str| files.path(name).display().to_string();
    let world = World::prepare()
        .setting("server.ssl.enabled", true)
        .setting("server.ssl.certificate", path("tls.crt"))
        .setting("server.ssl.certificatePrivateKey", path("tls.key"))
        .setting("server.ssl.clientAuth", "want")
        .setting("server.ssl.trustCertificate", path("ca.crt"))
        .setting("kubesvc.rest.auth.mode", "enforce")
        .setting(
            "kubesvc.rest.auth.certificates",
            json!([{"subject": "CN=ci,O=acme", "user": "ci-of-acme", "groups": ["callers"]}]),
        )
        .without_operator()
        .start()
        .await;
    world.operator().launch_with(&[]);
    world.stored("prod").await;
    let object = |kind: &str| json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": {"name": "callers"}});
    let (mut role, mut binding) = (object("Role"), object("RoleBinding"));
    role["rules"] = json!([accounts(&["get", "list"])]);
    binding["roleRef"] = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "callers"});
    binding["subjects"] =
        json!([{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "callers"}]);
    world.apply(&json!({"kind": "List", "apiVersion": "v1", "items": [role, binding]}).to_string()).await;
    let (known, other) = (authority.client_named("ci", "acme"), authority.client_named("ci", "acme, Inc"));
    let ask = async |identity| rest_tls::get(world.operator(), &authority, identity, ACCOUNTS).await;
    eventually("the account, by certificate", MAX_WAIT, async || {
        let (status, list) = ask(Some(&known)).await?;
        if status == 200 && list.contains("\"prod\"") { Ok(()) } else { Err(list) }
    })
    .await;
    for identity in [None, Some(&other)] {
        let (status, refused) = must(ask(identity).await);
        assert!(status == 401 && refused.contains("kubesvc.rest.auth.certificates"), "{status} {refused}");
    }
    world.operator().terminate().await;
}
