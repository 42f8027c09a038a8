//! Calls about operations: who may call, and what is refused before an operation is begun.

use super::*;

const RUN: &str = "/armory/agent/operations";
const DISCOVERY: &str = r#"{"operation": "account { name: \"a\" } discovery {}"}"#;

async fn call_as(caller: Option<&str>, method: &str, path: &str, body: &str) -> TestResponse {
    let mut request = Request::builder().method(method).uri(path);
    if let Some(caller) = caller {
        request = request.header(header::AUTHORIZATION, format!("Bearer {caller}"));
    }
    if !body.is_empty() {
        request = request.header(header::CONTENT_TYPE, "application/json");
    }
    send(a_router(), request.body(Body::from(body.to_owned())).expect("a request")).await
}

#[tokio::test]
async fn a_caller_of_operations_must_be_known_whatever_is_asked() {
    for (method, path) in [
        ("POST", RUN),
        ("POST", "/armory/agent/operations?wait=x"),
        ("GET", RUN),
        ("GET", "/armory/agent/operations/01G4V5TH5QSWSR2SZE2VH1SDME"),
        ("POST", "/armory/agent/operationresults"),
        ("POST", "/armory/agent/operations/database"),
    ] {
        for caller in [None, Some("nobody")] {
            let answer = call_as(caller, method, path, "").await;
            assert_eq!(answer.status, 401, "{method} {path}: {}", answer.text);
        }
    }
}

#[tokio::test]
async fn a_call_that_is_malformed_is_refused_with_what_is_wrong() {
    for (path, body, status, word) in [
        ("/armory/agent/operations?wait=1h", DISCOVERY, 400, "wait"),
        ("/armory/agent/operations?dryRun=yes", DISCOVERY, 400, "dryRun"),
        (RUN, "{", 400, "JSON"),
        (RUN, r#"{"operation": "scale {"}"#, 400, "operation"),
        (RUN, r#"{"operation": "account { name: \"a\" }"}"#, 400, "verb"),
        ("/armory/agent/operationresults", r#"{"result": "status: 200"}"#, 400, "op_id"),
        ("/armory/agent/operationresults", r#"{"result": 1}"#, 400, "text"),
    ] {
        let answer = call_as(Some("alice"), "POST", path, body).await;
        assert_eq!(answer.status, status, "{path} {body}: {}", answer.text);
        assert!(answer.text.contains(word), "{path} {body}: {}", answer.text);
    }
    let without_type = Request::post(RUN).header(header::AUTHORIZATION, "Bearer alice");
    let answer = send(a_router(), without_type.body(Body::from(DISCOVERY)).expect("a request")).await;
    assert_eq!(answer.status, 415, "{}", answer.text);
    let both =
        r#"{"operation": "op_id: \"01G4V5TH5QSWSR2SZE2VH1SDME\" account { name: \"a\" } discovery {}"}"#;
    let answer = call_as(Some("alice"), "POST", "/armory/agent/operations?clientRequestId=x", both).await;
    assert_eq!(answer.status, 400, "{}", answer.text);
}

/// Method, path, one header, body, and the refusal that is audited.
type RefusedCall<'c> = (&'static str, String, (&'static str, &'static [u8]), &'c str, &'static str);

#[tokio::test]
async fn each_call_that_is_refused_here_has_an_audit_line_without_its_body() {
    const RESULTS: &str = "/armory/agent/operationresults";
    const LOOK: &str = "/armory/agent/operations/database";
    const JSON: (&str, &[u8]) = ("content-type", b"application/json");
    const TEXT: (&str, &[u8]) = ("content-type", b"text/plain");
    let (router, audit) = audited_router();
    let large = format!("\"{}\"", "canary".repeat(12 * 1024));
    let two_ids =
        r#"{"operation": "op_id: \"01G4V5TH5QSWSR2SZE2VH1SDME\" account { name: \"a\" } discovery {}"}"#;
    let run = |query: &str| format!("{RUN}?{query}");
    let calls: [RefusedCall<'_>; 15] = [
        ("POST", run("wait=1h"), JSON, DISCOVERY, "run - 400"),
        (
            "POST",
            run(""),
            ("x-spinnaker-accounts", "\u{fc}\u{eb},\u{e9}".as_bytes()),
            DISCOVERY,
            "Discovery a 403",
        ),
        ("POST", run(""), JSON, r#"{"canary": 1, "canary": 2}"#, "run - 400"),
        ("POST", run(""), JSON, r#"{"operation": "canary {"}"#, "run - 400"),
        ("POST", run(""), JSON, r#"{"operation": "account { name: \"a\" } canary {}"}"#, "run - 400"),
        ("POST", run(""), JSON, &large, "run - 413"),
        ("POST", run(""), TEXT, "canary", "run - 415"),
        ("POST", run("clientRequestId=x"), JSON, two_ids, "Discovery a 400"),
        ("POST", RESULTS.to_owned(), JSON, r#"{"result": "canary: 1"}"#, "settle - 400"),
        ("POST", RESULTS.to_owned(), TEXT, "canary", "settle - 415"),
        ("POST", format!("{LOOK}?dynamicAccountOps=x"), JSON, "", "look - 400"),
        ("POST", LOOK.to_owned(), TEXT, "", "look - 415"),
        ("GET", run("page=0"), JSON, "", "list - 400"),
        ("GET", run("account="), JSON, "", "list - 400"),
        ("GET", format!("{RUN}/%FF"), JSON, "", "get - 400"),
    ];
    let call = async |method: &str, path: &str, (name, value): (&str, &[u8]), body: &str| {
        let request = Request::builder().method(method).uri(path).header(name, value);
        let request = request.header("authorization", "Bearer alice").header("x-spinnaker-user", "bob");
        let request = if name == JSON.0 { request } else { request.header(JSON.0, JSON.1) };
        send(router.clone(), request.body(Body::from(body.to_owned())).expect("a request")).await
    };
    for (number, (method, path, header, body, line)) in calls.into_iter().enumerate() {
        let answer = call(method, &path, header, body).await;
        assert!(line.ends_with(&answer.status.to_string()), "{path} {line}: {}", answer.text);
        assert_eq!(audit.refusals().get(number).map(String::as_str), Some(line), "{path}");
    }
    assert_eq!(call("GET", RUN, JSON, "").await.status, 200);
    let lines = audit.lines();
    assert_eq!(lines.len(), 15, "a good call has none");
    for line in lines {
        assert_eq!((&line["principal"], &line["claimed"]), (&json!("alice"), &json!("bob")), "{line}");
        assert!(line["reason"].as_str().is_some_and(|reason| !reason.is_empty()), "{line}");
        assert!(!line.to_string().contains("canary"), "{line}");
    }
}

#[tokio::test]
async fn records_are_read_in_pages_and_an_unknown_one_is_404() {
    let listed = call_as(Some("alice"), "GET", "/armory/agent/operations?page=2&items=10", "").await;
    assert_eq!((listed.status, listed.json()), (200, json!([])));
    for query in ["page=0", "items=0", "items=1001", "account=", "page=x"] {
        let answer = call_as(Some("alice"), "GET", &format!("{RUN}?{query}"), "").await;
        assert_eq!(answer.status, 400, "{query}: {}", answer.text);
    }
    let path = "/armory/agent/operations/01G4V5TH5QSWSR2SZE2VH1SDME";
    assert_eq!(call_as(Some("alice"), "GET", path, "").await.status, 404);
    let result = r#"{"result": "op_id: \"01G4V5TH5QSWSR2SZE2VH1SDME\" status: 200"}"#;
    let answer = call_as(Some("alice"), "POST", "/armory/agent/operationresults", result).await;
    assert_eq!(answer.status, 404, "{}", answer.text);
}
