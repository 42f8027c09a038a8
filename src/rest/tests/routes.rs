//! Routes, methods, paths, health.

use tokio_util::sync::CancellationToken;

use super::*;
use kubesvc_runtime::background_tasks::{AttemptOutcome, TaskSpec};

async fn get_of(path: &str) -> TestResponse {
    call("GET", path, None, "").await
}

#[tokio::test]
async fn an_unknown_route_is_404_and_a_wrong_method_405() {
    for path in ["/", "/armory", "/armory/accounts/", "/armory/accounts/a/b", "/health/x"] {
        let answer = get_of(path).await;
        assert_eq!(answer.status, 404, "{path}");
        answer.message(path);
    }
    for (method, path, allow) in [
        ("PUT", "/armory/accounts", "GET,HEAD,POST,PATCH,DELETE"),
        ("POST", "/armory/accounts/a", "GET,HEAD,DELETE"),
        ("DELETE", "/armory/agents", "GET,HEAD"),
        ("GET", "/armory/agent/a/disconnect", "POST"),
        ("GET", "/armory/agent/assignments", "POST"),
        ("TRACE", "/health", "GET,HEAD"),
    ] {
        let answer = call(method, path, None, "").await;
        assert_eq!(answer.status, 405, "{method} {path}");
        answer.message(path);
        let mut allowed: Vec<_> = answer.headers[header::ALLOW].to_str().expect("text").split(',').collect();
        let mut expected: Vec<_> = allow.split(',').collect();
        allowed.sort_unstable();
        expected.sort_unstable();
        assert_eq!(allowed, expected, "{method} {path}");
    }
}

#[tokio::test]
async fn a_slash_at_the_end_changes_no_answer() {
    for (method, path, body) in [
        ("GET", "/armory/accounts/dynamic", ""),
        ("GET", "/armory/accounts/a", ""),
        ("DELETE", "/armory/accounts/a", ""),
        ("POST", "/armory/accounts", "[]"),
        ("PATCH", "/armory/accounts", "[]"),
        ("POST", "/armory/accounts/dynamic", "[]"),
        ("GET", "/agents/kubernetes/accounts/a", ""),
        ("GET", "/agents/kubernetes/accounts/a/namespaces", ""),
        ("GET", "/agents/kubernetes/accounts/a/cache", ""),
        ("GET", "/armory/agents/x", ""),
        ("POST", "/armory/agent/assignments", "[]"),
        ("POST", "/armory/agent/x/disconnect", ""),
        ("GET", "/armory/clouddrivers/x", ""),
        ("GET", "/armory/clouddrivers/sql/pool/settings", ""),
        ("POST", "/armory/agent/operations", "[]"),
        ("GET", "/armory/agent/operations/x", ""),
        ("POST", "/armory/agent/operationresults", "[]"),
        ("GET", "/credentials", ""),
        ("GET", "/health/liveness", ""),
        ("GET", "/metrics", ""),
        ("GET", "/openapi.json", ""),
        ("PUT", "/metrics", ""),
    ] {
        let kind = (!body.is_empty()).then_some("application/json");
        let without = call(method, path, kind, body).await;
        let with = call(method, &format!("{path}/"), kind, body).await;
        assert_eq!(with.status, without.status, "{method} {path}/");
        if without.status != 404 {
            continue;
        }
        assert_eq!(with.message(&format!("{path}/")), without.message(path), "{method} {path}/");
    }
}

#[tokio::test]
async fn an_empty_name_in_a_path_never_means_all() {
    for (method, path) in [
        ("GET", "/armory/accounts/"),
        ("DELETE", "/armory/accounts/"),
        ("GET", "/armory/agents/"),
        ("GET", "/armory/clouddrivers/"),
        ("GET", "/armory/agent/operations/"),
        ("GET", "/agents/kubernetes/accounts/"),
    ] {
        let answer = call(method, path, None, "").await;
        assert_eq!(answer.status, 404, "{method} {path}");
        answer.message(path);
    }
}

#[tokio::test]
async fn a_name_in_a_path_must_be_one() {
    let long = format!("/armory/accounts/{}", "x".repeat(256));
    for path in ["/armory/accounts/%ff", "/armory/accounts/a%00b", "/armory/accounts/%0a", long.as_str()] {
        for method in ["GET", "DELETE"] {
            let answer = call(method, path, None, "").await;
            assert_eq!(answer.status, 400, "{method} {path}");
            answer.message(path);
        }
    }
}

#[tokio::test]
async fn with_dynamic_accounts_off_the_writing_calls_are_501_before_anything_else() {
    let off = RestSettings { dynamic_accounts_enabled: false, ..settings() };
    for (method, path, status) in [
        ("POST", "/armory/accounts", 501),
        ("PATCH", "/armory/accounts", 501),
        ("DELETE", "/armory/accounts", 501),
        ("DELETE", "/armory/accounts/%ff", 501),
        ("POST", "/armory/accounts/dynamic", 501),
        ("PUT", "/armory/accounts/dynamic", 501),
        ("PATCH", "/armory/accounts/dynamic", 501),
        ("GET", "/agents/kubernetes/accounts/a", 501),
        ("GET", "/armory/accounts?page=0", 400),
        ("GET", "/armory/agents", 200),
    ] {
        let request = Request::builder().method(method).uri(path).body(Body::from("x")).expect("a request");
        let answer = send(router_with(off.clone(), &[]), request).await;
        assert_eq!(answer.status, status, "{method} {path}");
    }
    // A new election is allowed for an account of an agent's own file as well: this request gets as far as the API
    // server.
    let request = Request::builder().method("POST").uri("/armory/agent/assignments");
    let request = request.header(header::CONTENT_TYPE, "application/json").body(Body::from(r#"["a"]"#));
    let answer = send(router_with(off, &[]), request.expect("a request")).await;
    assert_eq!(answer.status, 503);
    assert!(answer.message("/armory/agent/assignments").contains("cannot be reached"), "{}", answer.text);
}

#[tokio::test]
async fn adding_without_a_credentials_source_says_what_to_do_instead() {
    let answer = call("POST", "/armory/accounts", Some("application/json"), "[]").await;
    assert_eq!(answer.status, 501);
    let message = answer.message("/armory/accounts");
    assert!(
        message.contains("/armory/accounts/dynamic") && message.contains("kubesvc.clouddriver.sources"),
        "{message}"
    );
}

#[tokio::test]
async fn calls_to_clouddriver_are_501_and_name_the_setting_while_it_is_not_known_where_it_is() {
    for (method, path, word) in [
        ("GET", "/credentials", "kubesvc.clouddriver.baseUrl"),
        ("POST", "/credentials", "kubesvc.clouddriver.baseUrl"),
        ("DELETE", "/credentials/x", "kubesvc.clouddriver.baseUrl"),
        ("GET", "/credentials/type/kubernetes", "kubesvc.clouddriver.baseUrl"),
    ] {
        let answer = call(method, path, None, "").await;
        assert_eq!(answer.status, 501, "{method} {path}");
        assert!(answer.message(path).contains(word), "{method} {path}: {}", answer.text);
    }
    // The agent with that id can still be disconnected.
    let path = "/armory/agent/operations/disconnect";
    let answer = call("POST", path, None, "").await;
    assert_eq!(answer.status, 404);
    assert!(answer.message(path).contains(r#"agent "operations" is not connected"#), "{}", answer.text);
}

#[tokio::test]
async fn web_pages_and_other_names_are_refused_unless_they_are_allowed() {
    let browsers = BrowserRules {
        hosts: vec!["hub.example.com".to_owned()],
        allowed_origins: vec!["https://deck.example.com".to_owned()],
    };
    let router = router_with(RestSettings { browsers, ..settings() }, &[]);
    let ask = async |method: &str, path: &str, pairs: &[(&str, &str)]| {
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in pairs {
            request = request.header(*name, *value);
        }
        send(router.clone(), request.body(Body::empty()).expect("a request")).await
    };
    const HOST: (&str, &str) = ("host", "hub.example.com:7002");
    let path = "/armory/agent/a%2F1/disconnect";
    for (pairs, status) in [
        (vec![HOST], 200),
        (vec![HOST, ("sec-fetch-site", "cross-site")], 403),
        (vec![HOST, ("origin", "https://evil.example")], 403),
        (vec![HOST, ("origin", "https://deck.example.com"), ("sec-fetch-site", "cross-site")], 200),
        (vec![("host", "evil.example")], 421),
        (vec![], 421),
    ] {
        let answer = ask("POST", path, &pairs).await;
        assert_eq!(answer.status, status, "{pairs:?}");
        if status != 200 {
            assert!(answer.message(path).contains("server."), "it names the setting: {}", answer.text);
        }
    }
    assert_eq!(ask("GET", "/health/liveness", &[("host", "10.0.0.1:7002")]).await.status, 200, "a probe");
    let deck = ("origin", "https://deck.example.com");
    let asks_first = [HOST, deck, ("access-control-request-method", "PATCH")];
    let preflight = ask("OPTIONS", "/armory/accounts", &asks_first).await;
    assert_eq!(preflight.status, 204);
    assert_eq!(preflight.headers[header::ACCESS_CONTROL_ALLOW_ORIGIN], deck.1);
    let read = ask("GET", "/armory/agents", &[HOST, deck]).await;
    assert_eq!(
        (read.status, &read.headers[header::ACCESS_CONTROL_ALLOW_ORIGIN]),
        (200, &header::HeaderValue::from_static(deck.1))
    );
}

#[tokio::test]
async fn agents_are_listed_by_id_and_found_by_it() {
    let list = get_of("/armory/agents").await.json();
    assert_eq!(list[0]["agentId"], "a/1");
    assert_eq!(
        list[1],
        json!({"accounts": ["a", "z"], "agentId": "b", "zoneId": "z", "caching": false, "clouddriverId": "replica",
               "lastConnection": "2022-02-23T22:18:54.725Z", "type": "kubernetes", "clouddriverAlive": true})
    );
    assert_eq!(get_of("/armory/agents/a%2F1").await.json(), list[0]);
    assert_eq!(get_of("/armory/agents/a%2F1?zoneId=z").await.json(), list[0]);
    assert_eq!(get_of("/armory/agents/a%2F1?zoneId=another").await.status, 404);
    assert_eq!(get_of("/armory/agents/x").await.status, 404);
    let disconnect = "/armory/agent/a%2F1/disconnect";
    assert_eq!(call("POST", disconnect, None, "").await.status, 200);
    let body = r#"{"clusterDriven":true,"origin":"p","timestamp":1}"#;
    assert_eq!(call("POST", disconnect, Some("application/json"), body).await.status, 200);
    assert_eq!(call("POST", "/armory/agent/b/disconnect", None, "").await.status, 404);
}

#[tokio::test]
async fn the_replica_itself_is_always_among_the_replicas() {
    let list = get_of("/armory/clouddrivers").await.json();
    let only = &list.as_array().expect("a list")[0];
    assert_eq!(list.as_array().map(Vec::len), Some(1));
    assert_eq!(
        (&only["id"], &only["baseUrl"], &only["ready"]),
        (&json!("replica"), &json!("http://10.0.0.1:7002"), &json!(true))
    );
    only["lastUpdated"].as_str().expect("a text").parse::<jiff::Timestamp>().expect("a time");
    assert_eq!(get_of("/armory/clouddrivers/replica").await.json()["id"], only["id"]);
    let unknown = get_of("/armory/clouddrivers/x%2Fy").await;
    assert_eq!(unknown.status, 404);
    assert!(unknown.message("/armory/clouddrivers/x%2Fy").contains("x/y"));
    assert_eq!(get_of("/armory/clouddrivers/sql/pool/settings").await.json(), json!([]));
}

#[tokio::test]
async fn calls_for_replicas_are_unknown_here() {
    for (method, path) in [
        ("GET", "/internal/v1/agents"),
        ("POST", "/internal/v1/holders"),
        ("POST", "/internal/v1/agents/a%2F1/disconnect"),
        ("DELETE", "/internal/v1/x/y"),
        ("GET", "/internal"),
    ] {
        let answer = call(method, path, None, "").await;
        assert_eq!(answer.status, 404, "{method} {path}");
    }
}

#[tokio::test]
async fn health_says_what_is_missing() {
    let up = json!({"status": "UP", "replica": "replica", "leader": "replica"});
    assert_eq!(get_of("/health/readiness").await.json(), up);
    assert_eq!(get_of("/health").await.status, 200);
    for path in ["/health", "/health/readiness"] {
        let request = Request::builder().uri(path).body(Body::empty()).expect("a request");
        let answer = send(router_with(settings(), &[("database", "not migrated")]), request).await;
        assert_eq!(answer.status, 503);
        assert_eq!(
            answer.json(),
            json!({"status": "DOWN", "replica": "replica", "leader": "replica", "missing": [{"what": "database", "why": "not migrated"}]})
        );
    }
    assert_eq!(get_of("/health/liveness").await.json(), json!({"status": "UP"}));
}

#[tokio::test]
async fn background_tasks_are_listed_on_the_ports_of_rest_and_of_health() {
    let unreachable = tower::service_fn(|_: Request<kube::client::Body>| async {
        Err::<Response<Body>, _>(io::Error::other("unreachable"))
    });
    let state = state_of(settings(), &[], kube::Client::new(unreachable, "ns"));
    let (tasks, stop) = (state.tasks.clone(), CancellationToken::new());
    let task = TaskSpec::new("the task", "Waits").every(Duration::from_secs(3600));
    let asked = async {
        for router in [router(state.clone()), health_router(state)] {
            let request = Request::builder().uri("/health/tasks").body(Body::empty()).expect("a request");
            let listed = send(router, request).await.json();
            assert_eq!(
                (&listed[0]["name"], &listed[0]["description"]),
                (&json!("the task"), &json!("Waits"))
            );
            assert_eq!((&listed[0]["activity"]["runs"], &listed[1]), (&json!(0), &Value::Null));
        }
    };
    tokio::select! {
        biased;
        () = tasks.drive(task, &stop, |_: Vec<()>| std::future::ready(AttemptOutcome::Done)) => {
            unreachable!("nobody stops it")
        }
        () = asked => {}
    }
}

#[tokio::test]
async fn readiness_ignores_excluded_checks_and_names_them() {
    let asked = async |missing: &[(&str, &str)], query: &str| {
        let request = Request::builder()
            .uri(format!("/health/readiness?{query}"))
            .body(Body::empty())
            .expect("a request");
        send(router_with(settings(), missing), request).await
    };
    let away = [("database", "refused")];
    let answer = asked(&away, "exclude=database").await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.json()["missing"], json!([{"what": "database", "why": "refused"}]));
    assert_eq!(asked(&away, "exclude=accounts").await.status, 503);
    assert_eq!(asked(&[away[0], ("accounts", "not listed")], "exclude=database").await.status, 503);
}

#[tokio::test]
async fn metrics_and_the_description_are_served_and_head_works() {
    let metrics = get_of("/metrics").await;
    assert!(
        metrics.headers[header::CONTENT_TYPE]
            .to_str()
            .expect("text")
            .starts_with("application/openmetrics-text")
    );
    assert_eq!(metrics.text, "up 1\n# EOF\n");
    assert_eq!(get_of("/openapi.json").await.text, openapi());
    let head = call("HEAD", "/health", None, "").await;
    assert_eq!((head.status, head.text.as_str()), (200, ""));
}

#[tokio::test]
async fn a_list_that_is_not_read_yet_is_503() {
    let answer = get_of("/armory/accounts").await;
    assert_eq!(answer.status, 503);
    answer.message("/armory/accounts");
}
