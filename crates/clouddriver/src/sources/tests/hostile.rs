//! Files that are not YAML, or more than they seem.

use super::*;

fn refusal(text: &str) -> String {
    let read = read_files(&source("f"), &[file("clouddriver.yml", text)], &[], &BTreeMap::new());
    read.expect_err("refused").to_string()
}

#[test]
fn file_that_spring_would_not_read_is_refused_with_its_line() {
    for (text, expected) in [
        (
            "spinnaker: {a: 1}\nkubernetes: {}\nspinnaker: {b: 2}\n",
            "line 3: the key spinnaker was already given in line 1",
        ),
        (
            "kubernetes:\n  accounts:\n  - name: a\n    name: b\n",
            "line 4: the key name was already given in line 3",
        ),
        ("kubernetes:\n\taccounts: []\n", "line 2: it is not YAML: indent with spaces, not with tabs"),
        ("kubernetes: [\n", "it is not YAML"),
        ("- a\n- b\n", "a document is not a group of settings"),
        ("a: *b\n", "line 1: it is not YAML"),
        ("? [a]\n: b\n", "line 1: a list or mapping stands where a key is expected"),
        ("a: {<<: 5}\n", "`<<` takes a mapping"),
    ] {
        let why = refusal(text);
        assert!(why.starts_with("clouddriver.yml") && why.contains(expected), "{text}\n{why}");
    }
}

#[test]
fn refusal_contains_no_text_of_the_file() {
    for text in [
        "hunter2: 1\nhunter2: 2\n",
        "password: hunter2: hunter2\n",
        "token: 'hunter2\n",
        "a: *hunter2\n",
        "a:\n\thunter2: 1\n",
    ] {
        let why = refusal(text);
        assert!(!why.contains("hunter2"), "{why}");
    }
}

#[test]
fn aliases_that_repeat_more_than_a_mebibyte_are_refused() {
    let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..20 {
        let before = format!("*a{}, ", level - 1).repeat(10);
        bomb.push_str(&format!("a{level}: &a{level} [{before}]\n"));
    }
    assert!(refusal(&bomb).contains("aliases repeat more than 1 MiB"));
    let deep = format!("a: {}{}", "[".repeat(200), "]".repeat(200));
    assert!(refusal(&deep).contains("nested too deep"));
    let chain: String = (1..100).map(|level| format!("a{level}: &a{level} [*a{}]\n", level - 1)).collect();
    assert!(refusal(&format!("a0: &a0 x\n{chain}")).contains("nested more than 64 deep"));
    assert!(refusal("a: &a [*a]\n").contains("an alias stands inside its own value"));
}

#[test]
fn placeholders_that_grow_without_end_are_refused() {
    let mut yaml = format!("a0: {}\n", "x".repeat(1000));
    for level in 1..15 {
        let before = format!("${{a{}}}", level - 1).repeat(10);
        yaml.push_str(&format!("a{level}: {before}\n"));
    }
    yaml.push_str("kubernetes.accounts: [{name: a, environment: '${a14}'}, {name: good}]\n");
    let read = read(&[file("clouddriver.yml", &yaml)]);
    assert_eq!(names(&read), ["good"]);
    assert_eq!(reasons(&read).len(), 1, "{:?}", reasons(&read));
    let nested = format!("{}x{}", "${a:".repeat(100), "}".repeat(100));
    let read = accounts(&format!("  - {{name: a, environment: '{nested}'}}\n"));
    assert!(reasons(&read)[0].contains("nested more than 16 deep"), "{:?}", reasons(&read));
}

#[test]
fn wrong_account_hides_no_other_one() {
    let long = "n".repeat(256);
    let read = accounts(&format!(
        "  - name: first\n  - name: ''\n  - namespaces: [x]\n  - just text\n  - name: {long}\n  - {{name: [a]}}\n\
         \x20 - {{name: roles, permissions: [READ]}}\n  - {{name: flags, serviceAccount: maybe}}\n\
         \x20 - {{name: numbers, cacheThreads: many}}\n  - {{name: lists, namespaces: {{a: b}}}}\n\
         \x20 - {{name: twice, kube-configFile: a, omitKinds: a, omit-kinds: b}}\n  - name: last\n"
    ));
    assert_eq!(names(&read), ["first", "last"]);
    let reasons = reasons(&read);
    for (reason, expected) in reasons.iter().zip([
        "kubernetes.accounts[1]: it has no name",
        "kubernetes.accounts[2]: it has no name",
        "kubernetes.accounts[3]: it is not a group of fields",
        "more than 255 characters",
        "kubernetes.accounts[5]: its name is not text",
        "account \"roles\" (kubernetes.accounts[6]): permissions is not a group of READ and WRITE",
        "account \"flags\" (kubernetes.accounts[7]): serviceAccount is not true or false",
        "cacheThreads is not a whole number",
        "namespaces is not a list",
        "omitKinds is there twice",
    ]) {
        assert!(reason.contains(expected), "{reason}\n{expected}");
    }
    assert_eq!(reasons.len(), 10);
}

#[test]
fn names_are_taken_as_they_are() {
    let longest = "ü".repeat(255);
    for name in ["a/b", "a%2Fb", "🚀", "Prod", "ends with space ", "dynamic", longest.as_str()] {
        let read = accounts(&format!("  - name: {}\n", json!(name)));
        assert_eq!(names(&read), [name]);
    }
}

#[test]
fn undecrypted_value_of_a_config_server_is_an_error_of_its_account() {
    let answer = json!({"propertySources": [{"name": "git", "source": {
        "kubernetes.accounts[0].name": "a",
        "kubernetes.accounts[0].kubeconfigContents": "{cipher}AQB4",
        "kubernetes.accounts[1].name": "b",
        // As a server answers that decrypts, and has no key or another one.
        "kubernetes.accounts[2].name": "c",
        "invalid.kubernetes.accounts[2].kubeconfigContents": "<n/a>",
        "invalid.kubernetes.accounts[3].name": "<n/a>",
    }}]});
    let read =
        read_config_server(&source("c"), answer.to_string().as_bytes(), &BTreeMap::new()).expect("read");
    assert_eq!(names(&read), ["b"]);
    let reasons = reasons(&read);
    assert!(reasons[0].contains("account \"a\"") && reasons[0].contains("kubeconfigContents is encrypted"));
    assert!(reasons[1].contains("account \"c\"") && reasons[1].contains("kubeconfigContents is encrypted"));
    assert!(reasons[2].contains("name is encrypted"), "{reasons:?}");
    assert!(read.gap().is_some(), "the last one may be any account");
    for (answer, why) in
        [("<html>", "JSON"), ("{}", "config server"), (r#"{"propertySources": [5]}"#, "config server")]
    {
        let read = read_config_server(&source("c"), answer.as_bytes(), &BTreeMap::new());
        assert!(read.expect_err("another answer").to_string().contains(why), "{answer}");
    }
}

fn read_one(text: &str, profiles: &[&str]) -> SourceSnapshot {
    let profiles: Vec<String> = profiles.iter().map(|one| (*one).to_owned()).collect();
    let read = read_files(&source("f"), &[file("clouddriver.yml", text)], &profiles, &BTreeMap::new());
    read.unwrap_or_else(|fault| unreachable!("{fault}"))
}

#[test]
fn key_of_a_hundred_thousand_parts_is_one_name_that_nothing_asks_for() {
    let key = format!("kubernetes.accounts[0].{}", "a.".repeat(100_000));
    let answer = serde_json::json!({"propertySources": [{"name": "x", "source": {key: "x"}}]});
    let read =
        read_config_server(&source("c"), answer.to_string().as_bytes(), &BTreeMap::new()).expect("read");
    assert!(read.entries.is_empty());
}

#[test]
fn texts_of_a_source_have_a_bound_together() {
    let items = "    - ${b}\n".repeat(2000);
    let text = format!(
        "b: {}\nkubernetes:\n  accounts:\n  - name: a\n    namespaces:\n{items}  - name: b\n",
        "x".repeat(100_000)
    );
    let read = read_one(&text, &[]);
    assert_eq!((read.entries.len(), read.bad.len()), (1, 1), "{:?}", read.bad);
    assert!(read.bad[0].reason.contains("32 MiB"), "{}", read.bad[0].reason);
}

#[test]
fn value_inside_of_a_placeholder_is_not_repeated() {
    let text = "secret: hunter2\nkubernetes:\n  accounts:\n  - {name: a, environment: '${${secret}}'}\n";
    let read = read_one(text, &[]);
    assert!(
        read.bad[0].reason.contains("without a value") && !read.bad[0].reason.contains("hunter2"),
        "{}",
        read.bad[0].reason
    );
}

#[test]
fn files_that_name_others_or_activate_an_unknown_profile_are_not_all_there_is() {
    let account = "kubernetes:\n  accounts:\n  - name: a\n";
    for (setting, expected) in [
        ("spring: {config: {import: 'optional:file:/more.yml'}}\n", "spring.config.import"),
        ("spring.profiles.active: prod, dev\n", "\"dev\""),
        ("spring: {profiles: {include: [dev]}}\n", "\"dev\""),
    ] {
        let gap = read_one(&format!("{setting}{account}"), &["prod"]).gap().expect(setting);
        assert!(gap.contains(expected), "{gap}");
    }
    assert_eq!(read_one(&format!("spring.profiles.active: prod\n{account}"), &["prod"]).gap(), None);
}

#[test]
fn blank_namespace_is_kept_to_be_refused_and_does_not_mean_all() {
    for list in ["\n    - \n", " ','\n"] {
        let read = read_one(&format!("kubernetes:\n  accounts:\n  - name: a\n    namespaces:{list}"), &[]);
        let namespaces = read.entries[0].definition["namespaces"].as_array().expect("a list").clone();
        assert!(!namespaces.is_empty() && namespaces.iter().all(|one| one == ""), "{namespaces:?}");
    }
}
