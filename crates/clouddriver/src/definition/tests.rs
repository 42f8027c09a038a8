//! Entries as accounts, and accounts as entries.

mod credentials;
mod round_trip;

use std::collections::BTreeSet;

use serde_json::json;

use super::*;

const SETTINGS: ConversionSettings<'static> =
    ConversionSettings { namespace: "spinnaker", file_roots: &[], hash_key: b"key" };

fn object(value: &Value) -> Map<String, Value> {
    value.as_object().cloned().expect("an object")
}

fn entry(definition: &Value) -> SourceEntry {
    named("prod", object(definition))
}

fn named(name: &str, definition: Map<String, Value>) -> SourceEntry {
    SourceEntry { name: name.to_owned(), definition, source: "sql".into(), version: String::new() }
}

fn converted(definition: &Value) -> Conversion {
    convert(&entry(definition), &Choice::default(), SETTINGS)
}

fn account(definition: &Value) -> MigratedAccount {
    converted(definition).account.unwrap_or_else(|refusal| unreachable!("{refusal}"))
}

fn refusal(definition: &Value) -> EntryRefusal {
    converted(definition).account.err().expect("it is refused")
}

/// The definition with a source that is accepted.
fn reachable(mut definition: Value) -> Value {
    definition["kubeconfigFile"] = json!("encryptedFile:k8s!n:prod!k:kubeconfig");
    definition
}

#[test]
fn each_field_becomes_what_the_design_says() {
    let definition = reachable(json!({
        "type": "kubernetes", "name": "prod", "environment": "e", "accountType": "t", "context": "c",
        "namespaces": ["a"], "kinds": ["pod"], "metrics": true, "onlySpinnakerManaged": true,
        "customResources": [{"kubernetesKind": "Foo.example.com", "spinnakerKind": "serverGroups",
            "deployPriority": "5", "versioned": true, "namespaced": false}],
        "permissions": {"READ": [" dev "], "WRITE": ["ops"]},
        "kubectlExecutable": "kubectl", "kubectlRequestTimeoutSeconds": 3, "cacheThreads": 2,
        "cacheIntervalSeconds": 30, "cacheAllApplicationRelationships": true,
        "cachingPolicies": [{"kubernetesKind": "pod", "maxEntriesPerAgent": 1}], "checkPermissionsOnStartup": true,
        "debug": true, "namingStrategy": "kubernetesAnnotations",
        "rawResourcesEndpointConfig": {"kindExpressions": ["x"]}, "zoneId": "theirs", "insecure": true,
        "future": {"x": 1}, "omitNamespaces": [], "omitKinds": null, "oAuthScopes": [], "serviceAccount": false,
    }));
    let conversion = converted(&definition);
    let MigratedAccount { object, credential } =
        conversion.account.unwrap_or_else(|refusal| unreachable!("{refusal}"));
    let spec = serde_json::to_value(&object.spec).expect("JSON");
    assert_eq!(
        spec,
        json!({
            "state": "INACTIVE", "environment": "e", "accountType": "t", "context": "c", "namespaces": ["a"],
            "kinds": ["pod"], "metrics": true, "onlySpinnakerManaged": true,
            "customResources": [{"kubernetesKind": "Foo.example.com", "spinnakerKind": "serverGroups",
                "deployPriority": "5", "versioned": true, "namespaced": false}],
            "permissions": {"READ": ["dev"], "WRITE": ["ops"]},
            "kubeconfig": {"reference": "encryptedFile:k8s!n:prod!k:kubeconfig"},
        }),
        "zone and insecure are not Clouddriver's to say"
    );
    assert_eq!(credential.kind(), "reference");
    assert_eq!(object.label(ORIGIN_LABEL), Some("migrated"));
    assert_eq!(object.annotation(SOURCE_ANNOTATION), Some("sql"));
    assert_eq!(object.annotation(SOURCE_HASH_ANNOTATION), Some(conversion.hash.as_str()));
    assert!(object.has_finalizer());
    let kept: Value =
        serde_json::from_str(object.annotation(CLOUDDRIVER_DEFINITION_ANNOTATION).expect("kept"))
            .expect("JSON");
    let without_effect: BTreeSet<&str> = [
        "kubectlExecutable",
        "kubectlRequestTimeoutSeconds",
        "cacheThreads",
        "cacheIntervalSeconds",
        "cacheAllApplicationRelationships",
        "cachingPolicies",
        "checkPermissionsOnStartup",
        "debug",
        "namingStrategy",
        "rawResourcesEndpointConfig",
        "zoneId",
        "insecure",
        "future",
    ]
    .into();
    let keys = kept.as_object().expect("an object").keys().map(String::as_str);
    assert_eq!(keys.collect::<BTreeSet<_>>(), without_effect);
    assert_eq!(
        conversion.report.without_effect.named.iter().map(String::as_str).collect::<BTreeSet<_>>(),
        without_effect
    );
    assert_eq!(kept["cachingPolicies"], definition["cachingPolicies"]);
}

#[test]
fn other_lists_become_the_same_too() {
    let MigratedAccount { object, .. } =
        account(&reachable(json!({"omitNamespaces": ["a"], "omitKinds": ["job"]})));
    assert_eq!(
        (object.spec.omit_namespaces, object.spec.omit_kinds),
        (vec!["a".to_owned()], vec!["job".to_owned()])
    );
}

#[test]
fn scalars_are_read_as_spring_and_jackson_read_them() {
    let MigratedAccount { object, .. } = account(&reachable(json!({
        "environment": 5, "metrics": "TRUE", "onlySpinnakerManaged": "false", "serviceAccount": "false",
        "namespaces": "a, b", "kinds": ["pod"], "permissions": {"read": "dev,ops", "WRITE": [12]},
        "customResources": [{"kubernetesKind": "Foo.b", "versioned": "true", "deployPriority": 7}],
    })));
    let spec = object.spec;
    assert_eq!(
        (spec.environment.as_deref(), spec.metrics, spec.only_spinnaker_managed),
        (Some("5"), Some(true), Some(false))
    );
    assert_eq!(spec.namespaces, ["a", "b"]);
    assert_eq!(
        (&spec.permissions["READ"][..], &spec.permissions["WRITE"][..]),
        (&["dev".to_owned(), "ops".to_owned()][..], &["12".to_owned()][..])
    );
    assert_eq!(
        (spec.custom_resources[0].versioned, spec.custom_resources[0].deploy_priority.as_deref()),
        (Some(true), Some("7"))
    );
}

#[test]
fn groups_are_permissions_if_those_name_no_role() {
    let of = |definition| {
        let conversion = converted(&reachable(definition));
        let account = conversion.account.unwrap_or_else(|refusal| unreachable!("{refusal}"));
        (account.object, conversion.report)
    };
    for permissions in [json!(null), json!({}), json!({"READ": []}), json!({"READ": [" "], "WRITE": []})] {
        let (object, _) = of(json!({"requiredGroupMembership": [" ops "], "permissions": permissions}));
        assert_eq!(
            (&object.spec.permissions["READ"], &object.spec.permissions["WRITE"]),
            (&vec!["ops".to_owned()], &vec!["ops".to_owned()])
        );
    }
    let (object, report) = of(json!({"requiredGroupMembership": ["ops"], "permissions": {"READ": ["dev"]}}));
    assert_eq!(object.spec.permissions.len(), 1);
    assert!(report.without_effect.named.contains(&"requiredGroupMembership".to_owned()), "{report:?}");
    assert_eq!(restored(&object)["requiredGroupMembership"], json!(["ops"]));
}

#[test]
fn no_right_is_widened() {
    let (one, other) = (json!({"EXECUTE": ["a"], "READ": ["b"]}), json!({"EXECUTE": ["a"]}));
    let MigratedAccount { object, .. } = account(&reachable(json!({"permissions": one})));
    assert_eq!(object.spec.permissions.keys().collect::<Vec<_>>(), ["READ"]);
    assert_eq!(restored(&object)["permissions"], one);
    for permissions in [
        other,
        json!({"ADMIN": ["a"]}),
        json!("dev"),
        json!(["dev"]),
        json!({"READ": [["a"]]}),
        json!({"READ": {"a": 1}}),
    ] {
        let refusal = refusal(&reachable(json!({"permissions": permissions})));
        assert_eq!(refusal.reason(), Reason::InvalidField, "{permissions}");
        assert!(refusal.to_string().starts_with("permissions"), "{refusal}");
    }
    let refusal = refusal(&reachable(json!({"requiredGroupMembership": {"a": 1}})));
    assert!(refusal.to_string().contains("requiredGroupMembership must be a list"), "{refusal}");
}

#[test]
fn what_was_changed_is_warned_of() {
    for (definition, part) in [
        (json!({"permissions": [{"READ": ["a"]}, {"WRITE": ["b"]}]}), "permissions is a list"),
        (json!({"permissions": {"READ": [12]}}), "a number was read as text"),
        (json!({"permissions": {"READ": ["a "]}}), "blanks around"),
        (json!({"permissions": {"READ": ["a", " "]}}), "empty role name was dropped"),
        (
            json!({"permissions": {"READ": ["a"]}, "requiredGroupMembership": ["b"]}),
            "requiredGroupMembership has no effect",
        ),
        (json!({"apiToken": "s3cret"}), "apiToken is not kept"),
    ] {
        let conversion = converted(&reachable(definition));
        assert!(conversion.account.is_ok());
        assert!(
            conversion.report.warnings.iter().any(|warning| warning.contains(part)),
            "{part}: {:?}",
            conversion.report
        );
    }
}

#[test]
fn a_bad_entry_says_all_that_is_wrong_with_it_and_shows_no_value() {
    for (definition, reason, parts) in [
        (
            json!({"kinds": ["a"], "omitKinds": ["b"], "metrics": "s3cret"}),
            Reason::InvalidField,
            &["metrics must be true or false", "spec.kinds and spec.omitKinds"][..],
        ),
        (
            json!({"namespaces": ["a"], "omitNamespaces": ["b"]}),
            Reason::InvalidField,
            &["spec.namespaces and spec.omitNamespaces"],
        ),
        (json!({"namespaces": [""]}), Reason::InvalidField, &["spec.namespaces must hold names"]),
        (json!({"type": "aws"}), Reason::InvalidField, &["type must be kubernetes"]),
        (json!({"@type": "s3cret"}), Reason::InvalidField, &["@type must be kubernetes"]),
        (json!({"name": "s3cret"}), Reason::InvalidName, &["name differs"]),
        (
            json!({"oauthServiceAccount": "s3cret", "oAuthScopes": ["s3cret"]}),
            Reason::NotPortable,
            &["oauthServiceAccount", "oAuthScopes"],
        ),
        (
            json!({"serviceAccount": true, "context": ["s3cret"]}),
            Reason::NotPortable,
            &["Clouddriver's own pod", "context must be a string"],
        ),
        (
            json!({"customResources": [{"spinnakerKind": "s3cret"}]}),
            Reason::InvalidField,
            &["customResources[0].kubernetesKind"],
        ),
        (
            json!({"environment": "e".repeat(256)}),
            Reason::InvalidField,
            &["spec.environment must have 1 to 255"],
        ),
    ] {
        let refusal = refusal(&reachable(definition));
        let said = refusal.to_string();
        assert_eq!(refusal.reason(), reason, "{said}");
        assert!(parts.iter().all(|part| said.contains(part)), "{said}: {parts:?}");
        assert!(!said.contains("s3cret"), "{said}");
    }
}

#[test]
fn names_are_taken_as_accounts_have_them() {
    let of = |name: &str| {
        let definition = object(&reachable(json!({"name": name})));
        convert(&named(name, definition), &Choice::default(), SETTINGS)
    };
    for name in ["prod", "Prod", "🦀", "a/b", " a ", &"x".repeat(255), &"é".repeat(255)] {
        let MigratedAccount { object, .. } =
            of(name).account.unwrap_or_else(|refusal| unreachable!("{refusal}"));
        assert_eq!(object.account_name(), name);
        assert_eq!(object.spec.account_name.is_none(), name == "prod");
        assert_eq!(of(name).report.warnings.len(), usize::from(name.contains('/')));
    }
    for name in ["", &"x".repeat(256), "a\nb", "\u{0}"] {
        let refusal = of(name).account.err().expect("refused");
        assert_eq!(refusal.reason(), Reason::InvalidName, "{name:?}");
    }
}

#[test]
fn names_that_differ_only_in_case_are_found() {
    let twins = case_twins(["prod", "PROD", "Über", "über", "dev", "prod"]);
    assert_eq!(twins.keys().copied().collect::<Vec<_>>(), ["PROD", "prod", "Über", "über"]);
    assert_eq!(twins["prod"], ["PROD"]);
}

#[test]
fn the_hash_tells_a_change_from_another_way_to_write_it() {
    let hash = |definition: Value| source_hash(b"key", "prod", &object(&definition));
    let one =
        hash(json!({"context": "c", "kubeconfigContents": "x", "permissions": {"READ": ["a"], "WRITE": []}}));
    let same = json!({"type": "kubernetes", "name": "prod", "permissions": {"READ": ["a"]}, "kubeconfigContents": "x", "context": "c", "kinds": [], "environment": null, "accountType": ""});
    assert_eq!(one, hash(same));
    assert_eq!(one.len(), 64);
    for changed in [
        json!({"context": "c", "kubeconfigContents": "y", "permissions": {"READ": ["a"]}}),
        json!({"context": "d"}),
    ] {
        assert_ne!(one, hash(changed));
    }
    let definition = object(&json!({"context": "c"}));
    assert_ne!(source_hash(b"key", "a", &definition), source_hash(b"key", "b", &definition));
    assert_ne!(source_hash(b"key", "a", &definition), source_hash(b"other", "a", &definition));
}

#[test]
fn fields_without_effect_are_kept_within_bounds() {
    let mut many: Map<String, Value> =
        (0..1000).map(|n| (format!("future{n}"), json!("x".repeat(60)))).collect();
    many.extend(object(&reachable(json!({}))));
    let conversion = converted(&Value::Object(many));
    let account = conversion.account.unwrap_or_else(|refusal| unreachable!("{refusal}")).object;
    assert!(
        account.annotation(CLOUDDRIVER_DEFINITION_ANNOTATION).is_some_and(|text| text.len() <= 16 * 1024)
    );
    assert_eq!(
        (conversion.report.without_effect.count, conversion.report.without_effect.named.len()),
        (1000, 20)
    );
    assert_eq!(conversion.report.warnings.len(), 1, "{:?}", conversion.report.warnings);
}
