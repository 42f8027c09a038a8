//! Rows of Clouddriver's table, pages of its answers, and what a config server answers.

use super::*;

fn row(id: &str, body: &str) -> SourceSnapshot {
    let item = read_row(&source("sql"), id, body, "7".to_owned());
    SourceSnapshot::of(&source("sql"), [item], Completeness::Complete)
}

#[test]
fn row_is_read_as_clouddriver_reads_it() {
    // Unknown fields are Clouddriver's business.
    let read = row(
        "s1",
        r#"{"type":"kubernetes","name":"s1","namespaces":["default"],"cacheThreads":1,"foo":{"bar":1}}"#,
    );
    let entry = &read.entries[0];
    assert_eq!((entry.name.as_str(), entry.version.as_str(), &*entry.source), ("s1", "7", "sql"));
    assert_eq!(entry.definition["namespaces"], json!(["default"]));
    assert_eq!(names(&row("s1", r#" {"@type": "kubernetes"} "#)), ["s1"], "an old row");
    // As it is, not resolved.
    let read = row("s", r#"{"name":"s","kubeconfigFile":"encryptedFile:noop!v:x","environment":"${HOME}"}"#);
    assert_eq!(definition(&read, "s")["environment"], "${HOME}");
    // Both are stored, and refused when an account is made of them.
    assert_eq!(names(&row("both", r#"{"name":"both","kinds":["a"],"omitKinds":["b"]}"#)), ["both"]);
    for name in ["a/b", "a%2Fb", "🚀", &"n".repeat(255)] {
        assert_eq!(names(&row(name, &json!({ "name": name }).to_string())), [name]);
    }
}

#[test]
fn broken_row_has_a_reason_without_its_values() {
    for (id, body, expected) in [
        ("a", "{", "its body is not JSON"),
        ("a", "{} hunter2", "its body is not JSON"),
        ("a", r#"["hunter2"]"#, "its body is not a JSON object"),
        ("a", r#"{"name":"a","name":"a"}"#, "its body has a key twice"),
        ("a", r#"{"name":"hunter2"}"#, "the name in its body differs from its id"),
        ("a", r#"{"name":5}"#, "its name is not text"),
        ("a", r#"{"name":"a","type":"aws"}"#, "the type in its body is not kubernetes"),
        ("a", r#"{"name":"a","type":7}"#, "the type in its body is not kubernetes"),
        ("a", r#"{"name":"a","permissions":["hunter2"]}"#, "permissions is not a group of READ and WRITE"),
        ("a", r#"{"name":"a","permissions":{"READ":"hunter2"}}"#, "permissions is not a group"),
        ("a", r#"{"name":"a","namespaces":"hunter2"}"#, "namespaces is not a list"),
        ("a", r#"{"name":"a","kubeconfigContents":{"a":1}}"#, "kubeconfigContents is not text"),
        (
            "a",
            r#"{"name":"a","customResources":[{"versioned":"hunter2"}]}"#,
            "customResources[0].versioned is not true or false",
        ),
        ("", "{}", "it has no name"),
        ("\u{7}", "{}", "a control character"),
    ] {
        let read = row(id, body);
        let reasons = reasons(&read);
        assert_eq!(reasons.len(), 1, "{body}");
        assert!(reasons[0].contains(expected) && !reasons[0].contains("hunter2"), "{body}: {reasons:?}");
        // The row's name is known, so that it stands for no other account.
        assert_eq!(read.gap(), None, "{body}");
    }
    let long = "n".repeat(256);
    assert!(reasons(&row(&long, "{}"))[0].contains("more than 255"));
    let deep = format!(r#"{{"name":"a","x":{}{}}}"#, "[".repeat(100), "]".repeat(100));
    assert!(!reasons(&row("a", &deep)).is_empty());
}

#[test]
fn account_that_kubesvc_registered_is_not_an_account_of_a_source() {
    let contents = registered_kubeconfig();
    let as_yaml = "current-context: kubesvc/aaaa-1/bbbb-2\ncontexts: []\n";
    for contents in [contents.as_str(), as_yaml] {
        let read = row("r", &json!({"name": "r", "kubeconfigContents": contents}).to_string());
        assert_eq!((read.registered, read.entries.len(), read.bad.len()), (1, 0, 0), "{contents}");
    }
    let chosen = json!({"name": "r", "context": "kubesvc/a/b", "kubeconfigContents": "contexts: [{name: kubesvc/a/b}]"});
    assert_eq!(row("r", &chosen.to_string()).registered, 1);
    for contents in [
        "current-context: prod\ncontexts: [{name: kubesvc/a/b}]",
        "current-context: kubesvc/a",
        "current-context: kubesvc/a/b/c",
        "current-context: kubesvc//b",
        "kubesvc/a/b: [",
    ] {
        let read = row("r", &json!({"name": "r", "kubeconfigContents": contents}).to_string());
        assert_eq!((read.registered, names(&read)), (0, vec!["r"]), "{contents}");
    }
    let yaml = format!("  - {{name: r, kubeconfigContents: {}}}\n  - name: own\n", json!(contents));
    let read = accounts(&yaml);
    assert_eq!((read.registered, names(&read)), (1, vec!["own"]));
}

#[test]
fn page_of_clouddriver_has_its_last_name() {
    let page = json!([{"type":"kubernetes","name":""}, {"type":"kubernetes","name":"a"}, {"name":"b"}, 5]);
    let (items, last) = read_page(&source("api"), page.to_string().as_bytes()).expect("a page");
    let read = SourceSnapshot::of(&source("api"), items, Completeness::Partial("pages have gaps".to_owned()));
    assert_eq!((names(&read), last.as_deref()), (vec!["a", "b"], Some("b")));
    assert_eq!(reasons(&read).len(), 2);
    assert_eq!(read_page(&source("api"), b"[]").expect("a page").1, None);
    for wrong in ["{}", "<html>"] {
        read_page(&source("api"), wrong.as_bytes()).expect_err("no page");
    }
}

#[test]
fn config_server_answers_flat_keys_and_its_first_property_source_wins() {
    let answer = json!({
        "name": "clouddriver", "profiles": ["prod"], "label": null, "version": "1", "state": null,
        "propertySources": [
            {"name": "file:clouddriver-prod.yml", "source": {"zone": "eu", "server.port": 7002}},
            {"name": "file:clouddriver.yml", "source": {
                "kubernetes.accounts[0].name": "${zone}-1",
                "kubernetes.accounts[0].permissions.READ[0]": "dev",
                "kubernetes.accounts[0].permissions.READ[1]": "ops",
                "kubernetes.accounts[0].only-spinnaker-managed": true,
                "kubernetes.accounts[0].cacheThreads": 4,
                "kubernetes.accounts[0].namespaces": "",
                "kubernetes.accounts[1].name": {"value": "two", "origin": "git:clouddriver.yml:5"},
                "kubernetes.accounts[10].name": "eleven",
            }},
            {"name": "file:application.yml", "source": {"kubernetes.accounts[0].name": "lower", "kubernetes.accounts[11].name": "x"}},
        ],
    });
    let read =
        read_config_server(&source("c"), answer.to_string().as_bytes(), &BTreeMap::new()).expect("read");
    assert_eq!(names(&read), ["eu-1", "two", "eleven"]);
    let first = definition(&read, "eu-1");
    let expected = object(json!({
        "name": "eu-1", "permissions": {"READ": ["dev", "ops"]}, "onlySpinnakerManaged": true, "cacheThreads": 4,
        "namespaces": [],
    }));
    assert_eq!(*first, expected);
    // It answers so for a profile or label that it does not have.
    let none =
        read_config_server(&source("c"), br#"{"propertySources": []}"#, &BTreeMap::new()).expect("read");
    assert!(none.entries.is_empty() && none.gap().is_some_and(|why| why.contains("no properties")));
    let none = read_config_server(
        &source("c"),
        br#"{"propertySources": [{"name": "a", "source": {"b": "c"}}]}"#,
        &BTreeMap::new(),
    );
    assert_eq!(none.expect("read").gap(), None, "without the list, there are none");
}
