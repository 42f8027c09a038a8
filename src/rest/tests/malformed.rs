//! Refused bodies, each with its status code and a word of the message. None is a 500, and no message shows the
//! body's values.

use super::*;

const JSON: Option<&str> = Some("application/json");
const FORM: Option<&str> = Some("application/x-www-form-urlencoded");
const ACCOUNTS: &str = "/armory/accounts";
const DISCONNECT: &str = "/armory/agent/a%2F1/disconnect";
const DYNAMIC: &str = "/armory/accounts/dynamic";

type Case = (&'static str, &'static str, Option<&'static str>, &'static str, u16, &'static str);

const CASES: &[Case] = &[
    // Media type.
    ("PATCH", ACCOUNTS, None, "[]", 415, "Content-Type"),
    ("POST", DYNAMIC, FORM, "{}", 415, "JSON"),
    // Types that a form of any web page can send.
    ("POST", DISCONNECT, FORM, "", 415, "JSON"),
    ("POST", DISCONNECT, FORM, "clusterDriven=true", 415, "JSON"),
    ("POST", DISCONNECT, Some("multipart/form-data; boundary=x"), "", 415, "JSON"),
    ("POST", DISCONNECT, Some("text/plain"), "{}", 415, "JSON"),
    ("POST", DYNAMIC, Some("text/plain"), "{}", 415, "JSON"),
    ("PUT", DYNAMIC, Some("application/json; charset=utf-16"), "{}", 415, "UTF-8"),
    ("DELETE", ACCOUNTS, Some("text/plain"), "[]", 415, "JSON"),
    // Syntax.
    ("PATCH", ACCOUNTS, JSON, "", 400, "not JSON"),
    ("PATCH", ACCOUNTS, JSON, "   ", 400, "not JSON"),
    ("PATCH", ACCOUNTS, JSON, "[", 400, "not JSON"),
    ("PATCH", ACCOUNTS, JSON, "[] []", 400, "not JSON"),
    ("PATCH", ACCOUNTS, JSON, "[{'name':'a'}]", 400, "not JSON"),
    ("POST", DYNAMIC, JSON, r#"{"name":"a","name":"b"}"#, 400, "a second time"),
    ("POST", DYNAMIC, JSON, "\u{feff}{}", 400, "not JSON"),
    ("DELETE", ACCOUNTS, None, "", 400, "not JSON"),
    ("DELETE", ACCOUNTS, FORM, "a=b", 400, "not JSON"),
    // The wrong kind of value.
    ("PATCH", ACCOUNTS, JSON, "null", 400, "null"),
    ("PATCH", ACCOUNTS, JSON, "[]", 400, "empty list"),
    ("PATCH", ACCOUNTS, JSON, "{}", 400, "list"),
    ("PATCH", ACCOUNTS, JSON, "5", 400, "list"),
    ("PATCH", ACCOUNTS, JSON, "[null]", 400, "[0]"),
    ("PATCH", ACCOUNTS, JSON, r#"[{"name":"a","state":"ACTIVE"},7]"#, 400, "[1]"),
    ("POST", DYNAMIC, JSON, "null", 400, "null"),
    ("POST", DYNAMIC, JSON, "[]", 400, "empty list"),
    ("POST", DYNAMIC, JSON, "\"a\"", 400, "list"),
    ("POST", DYNAMIC, JSON, "{}", 400, "name"),
    ("PUT", DYNAMIC, JSON, "[]", 400, "object"),
    ("PUT", DYNAMIC, JSON, r#"[{"name":"a"}]"#, 400, "object"),
    ("PUT", DYNAMIC, JSON, "null", 400, "object"),
    ("PUT", DYNAMIC, JSON, "{}", 400, "name"),
    ("DELETE", ACCOUNTS, None, "null", 400, "null"),
    ("DELETE", ACCOUNTS, FORM, "[]", 400, "empty list"),
    ("DELETE", ACCOUNTS, JSON, "{}", 400, "list"),
    ("DELETE", ACCOUNTS, JSON, "[5]", 400, "[0]"),
    // Names.
    ("DELETE", ACCOUNTS, JSON, r#"[""]"#, 400, "[0]"),
    ("DELETE", ACCOUNTS, JSON, r#"["a","a"]"#, 400, "twice"),
    ("DELETE", ACCOUNTS, JSON, r#"["a\u0000"]"#, 400, "control"),
    ("PATCH", ACCOUNTS, JSON, r#"[{"name":"","state":"ACTIVE"}]"#, 400, "name"),
    ("PATCH", ACCOUNTS, JSON, r#"[{"state":"ACTIVE"}]"#, 400, "name"),
    (
        "PATCH",
        ACCOUNTS,
        JSON,
        r#"[{"name":"a","state":"ACTIVE"},{"name":"a","state":"INACTIVE"}]"#,
        400,
        "twice",
    ),
    (
        "POST",
        DYNAMIC,
        JSON,
        r#"[{"name":"a","serviceAccount":true},{"name":"a","serviceAccount":true}]"#,
        400,
        "twice",
    ),
    // States.
    ("PATCH", ACCOUNTS, JSON, r#"[{"name":"a"}]"#, 400, "state"),
    ("PATCH", DYNAMIC, JSON, r#"[{"name":"a","state":null}]"#, 400, "state"),
    ("PATCH", ACCOUNTS, JSON, r#"[{"name":"a","state":"FAILED"}]"#, 400, "state"),
    ("PATCH", ACCOUNTS, JSON, r#"[{"name":"a","state":"active"}]"#, 400, "state"),
    ("PATCH", ACCOUNTS, JSON, r#"[{"name":"a","state":1}]"#, 400, "state"),
    // Sources of a kubeconfig.
    ("POST", DYNAMIC, JSON, r#"{"name":"a"}"#, 400, "exactly one"),
    ("POST", DYNAMIC, JSON, r#"{"name":"a","serviceAccount":false}"#, 400, "exactly one"),
    ("POST", DYNAMIC, JSON, r#"{"name":"a","serviceAccount":true,"kubeconfigFile":"/k"}"#, 400, "exclude"),
    (
        "POST",
        DYNAMIC,
        JSON,
        r#"{"name":"a","kubeconfigContents":"s3cret","kubeconfigFile":"/k"}"#,
        400,
        "exclude",
    ),
    ("POST", DYNAMIC, JSON, r#"{"name":"a","kubeconfigContents":["s3cret"]}"#, 400, "kubeconfigContents"),
    ("POST", DYNAMIC, JSON, r#"{"name":"a","kubeconfigContents":""}"#, 400, "kubeconfigContents"),
    (
        "POST",
        DYNAMIC,
        JSON,
        r#"{"name":"a","kubeconfigContents":"s3cret"}"#,
        400,
        "kubeconfigContents is refused",
    ),
    ("POST", DYNAMIC, JSON, r#"{"name":"a","kubeconfigFile":"k"}"#, 400, "absolute"),
    ("POST", DYNAMIC, JSON, r#"{"name":"a","kubeconfigFile":"/a/../../etc"}"#, 400, ".."),
    // Fields.
    ("POST", DYNAMIC, JSON, r#"{"name":"a","serviceAccount":true,"type":"aws"}"#, 400, "type"),
    ("POST", DYNAMIC, JSON, r#"{"name":"a","serviceAccount":true,"context":"c"}"#, 400, "context"),
    ("POST", DYNAMIC, JSON, r#"{"name":"a","serviceAccount":"yes"}"#, 400, "serviceAccount"),
    (
        "POST",
        DYNAMIC,
        JSON,
        r#"{"name":"a","serviceAccount":true,"kinds":["a"],"omitKinds":["b"]}"#,
        400,
        "omitKinds",
    ),
    ("POST", DYNAMIC, JSON, r#"{"name":"a","serviceAccount":true,"namespaces":["A_b"]}"#, 400, "namespaces"),
    (
        "POST",
        DYNAMIC,
        JSON,
        r#"{"name":"a","serviceAccount":true,"permissions":{"EXECUTE":[]}}"#,
        400,
        "READ",
    ),
    (
        "POST",
        DYNAMIC,
        JSON,
        r#"{"name":"a","serviceAccount":true,"customResources":{}}"#,
        400,
        "customResources",
    ),
    ("PUT", DYNAMIC, JSON, r#"{"name":"a","metrics":"true"}"#, 400, "metrics"),
    // Calls about agents. The body of a disconnect is optional, but is validated if present.
    ("POST", "/armory/agent/assignments", JSON, "[]", 400, "empty list"),
    ("POST", "/armory/agent/assignments", JSON, "null", 400, "null"),
    ("POST", "/armory/agent/assignments", JSON, "", 400, ""),
    ("POST", "/armory/agent/assignments", JSON, "{}", 400, "list"),
    ("POST", "/armory/agent/assignments", JSON, r#"["a", 1]"#, 400, "[1]"),
    ("POST", "/armory/agent/assignments", JSON, r#"["a", "a"]"#, 400, "twice"),
    ("POST", "/armory/agent/assignments", Some("text/plain"), r#"["a"]"#, 415, "JSON"),
    ("POST", "/armory/agent/b/disconnect", JSON, "[]", 400, "object"),
    ("POST", "/armory/agent/b/disconnect", JSON, "{", 400, "not JSON"),
    ("POST", "/armory/agent/b/disconnect", JSON, r#"{"timestamp":"now"}"#, 400, "timestamp"),
    ("POST", "/armory/agent/b/disconnect", JSON, r#"{"timestamp":9223372036854775808}"#, 400, "timestamp"),
    ("POST", "/armory/agent/b/disconnect", JSON, r#"{"timestamp":1.5}"#, 400, "timestamp"),
    ("POST", "/armory/agent/b/disconnect", JSON, "null", 400, "object"),
    ("POST", "/armory/agent/b/disconnect", Some("text/plain"), "{}", 415, "JSON"),
];

#[tokio::test]
async fn each_is_refused_with_its_code_and_a_message() {
    assert!(CASES.len() >= 40);
    for (method, path, kind, body, status, word) in CASES {
        let answer = call(method, path, *kind, *body).await;
        assert_eq!(answer.status, *status, "{method} {path} {body}: {}", answer.text);
        let message = answer.message(path);
        assert!(message.contains(word), "{method} {path} {body}: {message}");
        assert!(!message.contains("s3cret"), "{message}");
    }
}

#[tokio::test]
async fn force_is_true_or_false_and_comes_once() {
    let calls = [
        ("DELETE", "/armory/accounts/a", ""),
        ("DELETE", DYNAMIC, ""),
        ("DELETE", ACCOUNTS, r#"["a"]"#),
        ("PATCH", ACCOUNTS, r#"[{"name":"a","state":"ACTIVE"}]"#),
        ("PUT", DYNAMIC, r#"{"name":"a"}"#),
        ("POST", "/armory/agent/assignments", r#"["a"]"#),
    ];
    for (method, path, body) in calls {
        for (force, status) in
            [("yes", 400), ("", 400), ("null", 400), ("true&force=true", 400), ("true", 503), ("false", 503)]
        {
            let answer = call(method, &format!("{path}?force={force}"), JSON, body).await;
            assert_eq!(answer.status, status, "{method} {path}?force={force}: {}", answer.text);
            assert!(status == 503 || answer.message(path).contains("force"), "{}", answer.text);
        }
    }
}

#[tokio::test]
async fn a_body_that_is_no_utf8_or_too_deep_is_400() {
    for body in [b"[\"\xff\"]".to_vec(), vec![b'['; 50_000], b"{\"a\":1e999}".to_vec()] {
        assert_eq!(call("POST", DYNAMIC, JSON, body).await.status, 400);
    }
}

#[tokio::test]
async fn a_body_that_is_too_large_is_413_by_its_length_or_by_its_bytes() {
    let large = "x".repeat(64 * 1024 + 1);
    let answer = call("POST", DYNAMIC, JSON, large.clone()).await;
    assert_eq!(answer.status, 413);
    assert!(answer.message(DYNAMIC).contains("65536"));
    let declared = Request::builder()
        .method("POST")
        .uri(DYNAMIC)
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::CONTENT_LENGTH, large.len());
    let answer = send(a_router(), declared.body(Body::from("x")).expect("a request")).await;
    assert_eq!(answer.status, 413);
    assert_eq!(answer.headers[header::CONNECTION], "close");
    let media_first = call("POST", DYNAMIC, Some("text/plain"), large).await;
    assert_eq!(media_first.status, 415);
}

#[tokio::test]
async fn good_bodies_get_as_far_as_the_api_server() {
    let good = [
        ("POST", DYNAMIC, JSON, r#"{"name":"a","kubeconfigFile":"/s3cret","future":1}"#),
        ("POST", DYNAMIC, JSON, r#"[{"name":"a/b ü","serviceAccount":true,"permissions":[{"READ":[1]}]}]"#),
        (
            "PUT",
            DYNAMIC,
            Some("application/json;charset=UTF-8"),
            r#"{"name":"a","kubeconfigAgent":"s3cret"}"#,
        ),
        ("PATCH", DYNAMIC, JSON, r#"[{"name":"a","state":"ACTIVE"}]"#),
        ("DELETE", ACCOUNTS, None, r#"["a"]"#),
        ("DELETE", ACCOUNTS, FORM, r#"["a"]"#),
        ("DELETE", ACCOUNTS, JSON, r#"["a"]"#),
        ("DELETE", "/armory/accounts/a%2Fb", None, ""),
        ("DELETE", DYNAMIC, None, ""),
        ("GET", DYNAMIC, None, ""),
        ("GET", "/agents/kubernetes/accounts/a/namespaces", None, ""),
    ];
    for (method, path, kind, body) in good {
        let answer = call(method, path, kind, body).await;
        assert_eq!(answer.status, 503, "{method} {path} {body}: {}", answer.text);
        assert!(answer.message(path).contains("cannot be reached"));
        assert!(!answer.text.contains("s3cret"));
    }
}
