//! An entry as an account and back: no field is lost.

use proptest::prelude::*;

use super::*;

fn word() -> impl Strategy<Value = String> {
    "[b-z][a-z0-9]{0,8}".prop_filter("a word that suggests a credential", |word| {
        !["pass", "pwd", "key", "cert", "auth", "eyj"].iter().any(|part| word.contains(part))
    })
}

fn words() -> impl Strategy<Value = Value> {
    prop::collection::vec(word(), 0..3).prop_map(|words| json!(words))
}

fn text() -> impl Strategy<Value = Value> {
    prop::option::of(word()).prop_map(|text| json!(text))
}

fn flag() -> impl Strategy<Value = Value> {
    prop::option::of(any::<bool>()).prop_map(|flag| json!(flag))
}

fn number() -> impl Strategy<Value = Value> {
    prop::option::of(0..100).prop_map(|number| json!(number))
}

fn treatment() -> impl Strategy<Value = Value> {
    (word(), prop::option::of("[0-9]{1,4}"), flag(), flag()).prop_map(|(kind, priority, versioned, namespaced)| {
        json!({"kubernetesKind": kind, "deployPriority": priority, "versioned": versioned, "namespaced": namespaced,
            "spinnakerKind": "configs"})
    })
}

/// One of two lists that exclude each other.
fn either(one: &'static str, other: &'static str) -> impl Strategy<Value = Value> {
    (any::<bool>(), words()).prop_map(move |(first, words)| json!({if first { one } else { other }: words}))
}

fn source() -> impl Strategy<Value = Value> {
    prop_oneof![
        word().prop_map(|path| json!({"kubeconfigFile": format!("/home/{path}")})),
        word().prop_map(|path| json!({"kubeconfigFile": format!("/agent/{path}")})),
        word().prop_map(|name| json!({"kubeconfigFile": format!("encryptedFile:k8s!n:{name}!k:x")})),
    ]
}

fn definition() -> impl Strategy<Value = Value> {
    let texts = (text(), text(), text(), text(), text());
    let flags = (flag(), flag(), flag(), flag(), flag());
    let lists =
        (either("namespaces", "omitNamespaces"), either("kinds", "omitKinds"), words(), words(), words());
    let numbers = (number(), number(), number());
    let rest = (
        source(),
        prop::collection::vec(treatment(), 0..3),
        prop::collection::btree_map("future[a-z]{1,3}", word(), 0..3),
    );
    (texts, flags, lists, numbers, rest).prop_map(|(texts, flags, lists, numbers, (source, treatments, unknown))| {
        let mut fields = object(&json!({
            "type": "kubernetes", "name": "prod", "environment": texts.0, "accountType": texts.1, "context": texts.2,
            "namingStrategy": texts.3, "kubectlExecutable": texts.4, "metrics": flags.0, "onlySpinnakerManaged": flags.1,
            "debug": flags.2, "checkPermissionsOnStartup": flags.3, "cacheAllApplicationRelationships": flags.4,
            "permissions": {"READ": lists.2, "WRITE": lists.3, "EXECUTE": []}, "cacheThreads": numbers.0,
            "cacheIntervalSeconds": numbers.1, "kubectlRequestTimeoutSeconds": numbers.2, "customResources": treatments,
            "rawResourcesEndpointConfig": {"kindExpressions": lists.4}, "unknown": unknown,
        }));
        for more in [lists.0, lists.1, source] {
            fields.extend(object(&more));
        }
        Value::Object(fields)
    })
}

proptest! {
    #[test]
    fn an_entry_that_became_an_account_is_given_back(definition in definition()) {
        let roots = [FileRoot { from: "/agent".to_owned(), to: RootTarget::Agent("/agent".to_owned()) }];
        let settings = ConversionSettings { file_roots: &roots, ..SETTINGS };
        let conversion = convert(&entry(&definition), &Choice::default(), settings);
        let account = conversion.account.map_err(|refusal| TestCaseError::fail(refusal.to_string()))?;
        let wanted = fields::without_empty(&object(&definition));
        prop_assert_eq!(fields::without_empty(&restored(&account.object)), wanted.clone());
        let again = convert(&named("prod", restored(&account.object)), &Choice::default(), settings);
        prop_assert_eq!(again.hash, conversion.hash, "what is given back is the same entry");
        prop_assert_eq!(again.account.map(|account| account.object).ok(), Some(account.object));
    }

    #[test]
    fn nothing_that_json_can_hold_panics(
        name in ".{0,5}",
        keys in prop::collection::vec(prop_oneof![
            Just("permissions"), Just("customResources"), Just("kubeconfigFile"), Just("kubeconfigContents"),
            Just("kinds"), Just("serviceAccount"), Just("requiredGroupMembership"), Just("type"), Just("future"),
            Just("oAuthScopes"), Just("name"),
        ], 0..5),
        text in ".{0,20}",
        number in any::<f64>(),
    ) {
        for value in [json!(text), json!(number), json!([text]), json!({"READ": [number]}), json!({"": text}), json!([{"kubernetesKind": text}])] {
            let definition = keys.iter().map(|key| ((*key).to_owned(), value.clone())).collect();
            let entry = named(&name, definition);
            let conversion = convert(&entry, &Choice::default(), SETTINGS);
            prop_assert!(conversion.account.is_ok() || conversion.account.err().is_some_and(|refusal| !refusal.problems.is_empty()));
        }
    }
}
