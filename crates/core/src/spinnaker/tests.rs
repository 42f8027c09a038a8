//! Conversion of Clouddriver's JSON in both directions.

use kube::CustomResourceExt;
use proptest::prelude::*;
use secrecy::ExposeSecret;
use serde_json::{Map, Value, json};

use super::rules;
use super::*;
use crate::DesiredState;
use crate::owned_secret::AGENT_KEY;
use crate::secret_reference::{secrets_of, sent_secret_of};
use crate::spec::{
    CustomResourceTreatment, ExposedCustomResource, KubesvcAccountSpec, Scope, SecretKeyReference,
    SpinnakerKind,
};

fn object(value: &Value) -> Map<String, Value> {
    value.as_object().cloned().expect("an object")
}

fn given(value: &Value) -> AccountInput {
    AccountInput::read(object(value)).expect("good fields")
}

fn refusal(value: &Value) -> FieldError {
    AccountInput::read(object(value)).err().expect("it is refused")
}

fn spec_of(value: &Value) -> KubesvcAccountSpec {
    let mut spec = KubesvcAccountSpec::default();
    given(value).apply_to(&mut spec).expect("it was read before");
    spec
}

#[test]
fn an_empty_text_counts_as_absent_in_each_field_but_the_name() {
    let read = |fields: Value| {
        let fields = fields.as_object().expect("an object").clone();
        AccountInput::read(fields).map_err(|problem| problem.field)
    };
    let input = read(json!({
        "name": "a", "kubeconfigFile": "", "kubeconfigContents": "apiVersion: v1", "state": "", "type": "", "context": "",
        "cacheThreads": "", "permissions": "", "customResources": [{"kubernetesKind": "k", "spinnakerKind": ""}],
    }));
    let input = input.unwrap_or_else(|field| unreachable!("{field} is refused"));
    assert!(matches!(input.source, Some(ClusterSource::Contents(_))) && input.state.is_none());
    let mut spec = KubesvcAccountSpec { context: Some("kept".to_owned()), ..KubesvcAccountSpec::default() };
    input.apply_to(&mut spec).expect("read before");
    assert_eq!(spec.context.as_deref(), Some("kept"), "as if the field were not there");
    assert_eq!(spec.custom_resources.len(), 1);
    let removed =
        read(json!({"name": "a", "kubeconfigAgent": ""})).unwrap_or_else(|field| unreachable!("{field}"));
    assert!(matches!(removed.agent_source, Some(AgentSource::Remove)));
    assert!(read(json!({"name": "a", "kubeconfigFile": ""})).is_ok_and(|input| input.source.is_none()));
    assert_eq!(read(json!({"name": ""})).err().as_deref(), Some("name"));
}

#[test]
fn permissions_come_in_both_documented_shapes() {
    let map = spec_of(&json!({"name": "a", "permissions": {"READ": ["dev", 12], "WRITE": []}}));
    let list =
        spec_of(&json!({"name": "a", "permissions": [{"READ": ["dev"]}, {"READ": [12]}, {"WRITE": []}]}));
    assert_eq!(map.permissions["READ"], ["dev", "12"]);
    assert_eq!(map.permissions, list.permissions);
}

#[test]
fn old_groups_become_permissions_where_there_are_none() {
    let old = spec_of(&json!({"name": "a", "requiredGroupMembership": ["ops"]}));
    assert_eq!(old.permissions["READ"], ["ops"]);
    assert_eq!(old.permissions["WRITE"], ["ops"]);
    let both =
        spec_of(&json!({"name": "a", "requiredGroupMembership": ["ops"], "permissions": {"READ": ["dev"]}}));
    assert_eq!(both.permissions.len(), 1);
    let empty =
        json!({"name": "a", "requiredGroupMembership": ["ops"], "permissions": {"READ": [], "WRITE": []}});
    assert_eq!(spec_of(&empty).permissions["READ"], ["ops"], "empty lists restrict nothing");
}

#[test]
fn every_field_of_clouddriver_is_accepted_and_the_unused_are_named() {
    let all = given(&json!({
        "type": "kubernetes", "name": "a", "environment": "prod", "accountType": "k", "context": "c",
        "kubeconfigFile": "/opt/armory/k", "kubeconfigContents": null, "kubectlExecutable": "kubectl",
        "oAuthServiceAccount": "x", "oAuthScopes": ["s"], "namespaces": ["a"], "omitNamespaces": [],
        "kinds": [], "omitKinds": ["pod"], "requiredGroupMembership": [], "kubectlRequestTimeoutSeconds": 3,
        "cacheThreads": 1, "cacheIntervalSeconds": 30, "serviceAccount": false, "debug": false, "metrics": true,
        "checkPermissionsOnStartup": true, "onlySpinnakerManaged": false, "cacheAllApplicationRelationships": false,
        "namingStrategy": "kubernetesAnnotations", "permissions": {}, "customResources": [],
        "cachingPolicies": [{"kubernetesKind": "pod", "maxEntriesPerAgent": 1}],
        "rawResourcesEndpointConfig": {"kindExpressions": []}, "future": {"x": 1}
    }));
    assert!(
        all.ignored.named.contains(&"future".to_owned())
            && all.ignored.named.contains(&"cacheThreads".to_owned())
    );
    assert!(!all.ignored.named.contains(&"metrics".to_owned()));
    let mut spec = KubesvcAccountSpec::default();
    all.apply_to(&mut spec).expect("it was read before");
    assert_eq!(spec.kubeconfig.file.as_deref(), Some("/opt/armory/k"));
    assert_eq!(validate(&spec), Vec::<String>::new());
}

#[test]
fn any_number_of_fields_without_an_effect_is_read_at_once_and_few_are_remembered() {
    let mut fields: Map<String, Value> =
        (0..100_000).map(|number| (format!("future-{number:0100}"), json!(number))).collect();
    fields.insert("name".to_owned(), json!("a"));
    fields.insert("zoneId".to_owned(), json!("z"));
    let began = std::time::Instant::now();
    let given = AccountInput::read(fields).expect("they are accepted");
    // Comparing all of them with one another would take ten billion comparisons: minutes.
    assert!(began.elapsed() < std::time::Duration::from_secs(10), "{:?}", began.elapsed());
    assert_eq!((given.ignored.count, given.ignored.named.len()), (100_000, 20));
    assert!(given.ignored.named.iter().all(|name| name.chars().count() <= 64));
    let mut spec = KubesvcAccountSpec::default();
    given.apply_to(&mut spec).expect("it was read before");
    assert_eq!(spec.zone_id.as_ref().map(crate::ids::ZoneId::as_str), Some("z"));
}

#[test]
fn a_rule_broken_by_many_items_is_reported_once() {
    let treatment = json!({"kubernetesKind": "k".repeat(321), "deployPriority": "x"});
    let resources = vec![treatment; 5000];
    let problems =
        validate(&spec_of(&json!({"name": "a", "serviceAccount": true, "customResources": resources})));
    assert_eq!(problems.len(), 3, "{problems:?}");
}

#[test]
fn a_wrong_type_names_the_field_and_shows_no_value() {
    let cases = [
        (json!({"name": 5}), "name"),
        (json!({}), "name"),
        (json!({"name": ""}), "name"),
        (json!({"name": "a\u{0}b"}), "name"),
        (json!({"name": "a", "type": "aws"}), "type"),
        (json!({"name": "a", "state": "FAILED"}), "state"),
        (json!({"name": "a", "state": true}), "state"),
        (json!({"name": "a", "zoneId": 1}), "zoneId"),
        (json!({"name": "a", "namespaces": "x"}), "namespaces"),
        (json!({"name": "a", "kinds": [1]}), "kinds"),
        (json!({"name": "a", "insecure": "true"}), "insecure"),
        (json!({"name": "a", "debug": 1}), "debug"),
        (json!({"name": "a", "cacheThreads": "1"}), "cacheThreads"),
        (json!({"name": "a", "cachingPolicies": [1]}), "cachingPolicies[0]"),
        (json!({"name": "a", "permissions": "READ"}), "permissions"),
        (json!({"name": "a", "permissions": {"READ": "dev"}}), "permissions.READ"),
        (json!({"name": "a", "permissions": {"READ": [[]]}}), "permissions.READ"),
        (json!({"name": "a", "maxResumableResourceAgeMs": 1.5}), "maxResumableResourceAgeMs"),
        (json!({"name": "a", "customResources": [{}]}), "customResources[0].kubernetesKind"),
        (
            json!({"name": "a", "customResources": [{"kubernetesKind": "a", "versioned": 1}]}),
            "customResources[0].versioned",
        ),
        (
            json!({"name": "a", "customResourceDefinitions": [{"kind": "a", "scope": "x"}]}),
            "customResourceDefinitions[0].scope",
        ),
        (json!({"name": "a", "kubeconfigContents": {"s3cret": 1}}), "kubeconfigContents"),
        (json!({"name": "a", "kubeconfigContents": " "}), "kubeconfigContents"),
        (json!({"name": "a", "kubeconfigContents": "s3cret".repeat(50_000)}), "kubeconfigContents"),
        (
            json!({"name": "a", "kubeconfigFile": "/x", "serviceAccount": true}),
            "kubeconfigContents, kubeconfigFile, serviceAccount",
        ),
    ];
    for (value, field) in cases {
        let problem = refusal(&value);
        assert_eq!(problem.field, field);
        assert!(!problem.to_string().contains("s3cret"), "{problem}");
    }
}

#[test]
fn a_secret_reference_is_told_from_a_path_and_from_contents() {
    let source = |value| given(&value).source.expect("a source");
    for reference in
        ["encryptedFile:k8s!n:a!k:b", "encrypted:s3!r:x!b:y!f:z", "secret://secrets-manager?r=x&s=y"]
    {
        assert!(matches!(
            source(json!({"name": "a", "kubeconfigFile": reference})),
            ClusterSource::Reference(_)
        ));
        assert!(matches!(
            source(json!({"name": "a", "kubeconfigContents": reference})),
            ClusterSource::Reference(_)
        ));
    }
    assert!(matches!(source(json!({"name": "a", "kubeconfigFile": "/a"})), ClusterSource::File(_)));
}

#[test]
fn the_kubeconfig_for_the_agent_stands_beside_the_accounts_own() {
    let both = given(&json!({"name": "a", "kubeconfigFile": "/a", "kubeconfigAgent": "apiVersion: v1"}));
    assert!(matches!(&both.source, Some(ClusterSource::File(file)) if file == "/a"));
    assert_eq!(both.contents()[AGENT_KEY].expose_secret(), "apiVersion: v1");
    let mut spec = KubesvcAccountSpec::default();
    both.apply_to(&mut spec).expect("good");
    both.put_contents_into(&mut spec, "a");
    assert_eq!(spec.kubeconfig.file.as_deref(), Some("/a"));
    let agents = spec.agent_kubeconfig.clone().and_then(|source| source.secret_ref).expect("a Secret");
    assert_eq!((agents.name.as_str(), agents.key()), ("a-kubeconfig", AGENT_KEY));
    assert_eq!(definition(&KubesvcAccount::new("a", spec.clone()))["kubeconfigFile"], "/a");
    for kept in [json!({"name": "a"}), json!({"name": "a", "kubeconfigFile": "/b"})] {
        given(&kept).apply_to(&mut spec).expect("good");
        assert!(spec.agent_kubeconfig.is_some(), "it was not named: {kept}");
    }
    given(&json!({"name": "a", "kubeconfigAgent": "encryptedFile:k8s!n:a!k:b"}))
        .apply_to(&mut spec)
        .expect("good");
    assert!(spec.agent_source().reference.is_some() && spec.kubeconfig.file.is_some());
    for gone in [json!(null), json!("")] {
        let mut spec = spec.clone();
        given(&json!({"name": "a", "kubeconfigAgent": gone})).apply_to(&mut spec).expect("good");
        assert_eq!(spec.agent_kubeconfig, None);
        assert_eq!(spec.agent_source(), &spec.kubeconfig);
    }
}

#[test]
fn a_secret_that_either_kubeconfig_is_in_is_one_of_the_account() {
    let mut account = KubesvcAccount::new("a", KubesvcAccountSpec::default());
    account.metadata.namespace = Some("ns".to_owned());
    account.spec.kubeconfig.secret_ref = Some(SecretKeyReference { name: "own".to_owned(), key: None });
    assert_eq!(secrets_of(&account).len(), 1);
    let agents = account.spec.agent_kubeconfig.get_or_insert_default();
    agents.reference = Some("encryptedFile:k8s!n:agents!k:b!ns:other".to_owned());
    let in_ns = |namespace: &str, name: &str| (namespace.to_owned(), name.to_owned());
    assert_eq!(secrets_of(&account), [in_ns("ns", "own"), in_ns("other", "agents")]);
    assert_eq!(sent_secret_of(&account), Some(in_ns("other", "agents")));
}

#[test]
fn a_reference_that_is_the_secret_itself_is_shown_without_it_and_left_alone_when_sent_back() {
    for (reference, shown) in [
        ("encrypted:noop!v:https://s3cret", "encrypted:noop!v:redacted"),
        ("encryptedFile:noop!v:s3cret", "encryptedFile:noop!v:redacted"),
        ("secret://noop?v=s3cret", "secret://noop?v=redacted"),
    ] {
        let mut spec = spec_of(&json!({"name": "a", "kubeconfigContents": reference}));
        let definition = definition(&KubesvcAccount::new("a", spec.clone()));
        assert_eq!(definition["kubeconfigFile"], shown);
        assert!(!definition.to_string().contains("s3cret"));
        given(&definition).apply_to(&mut spec).expect("it was read before");
        assert_eq!(spec.kubeconfig.reference.as_deref(), Some(reference));
    }
}

#[test]
fn a_reference_that_is_written_wrong_names_the_field_and_what_is_wrong() {
    for (field, reference, said) in [
        ("kubeconfigFile", "encrypted:noop!s3cret", "parameter 1 is no key:value"),
        ("kubeconfigFile", "encryptedFile:k8s!n:a", "engine k8s needs the parameter k"),
        ("kubeconfigContents", "secret://noop?v=s3cret&w=s3cret", "parameter 2 is none of engine noop"),
        ("kubeconfigAgent", "secret://", "names no parameter"),
    ] {
        let problem = refusal(&json!({"name": "a", field: reference}));
        assert_eq!(problem.field, field);
        let told = problem.to_string();
        assert!(told.contains("must be a secret reference: ") && told.contains(said), "{told}");
        assert!(!told.contains("s3cret"), "{told}");
    }
}

#[test]
fn a_secret_is_in_no_definition() {
    let mut spec = KubesvcAccountSpec::default();
    spec.kubeconfig.secret_ref = Some(SecretKeyReference { name: "mine".to_owned(), key: None });
    let account = KubesvcAccount::new("a", spec);
    assert_eq!(definition(&account), json!({"type": "kubernetes", "name": "a"}));
    assert_eq!(props(&account), json!({"permissions": {}}));
}

#[test]
fn a_null_sets_a_field_back_and_an_absent_one_leaves_it() {
    let mut spec = spec_of(&json!({"name": "a", "zoneId": "z", "context": "c", "state": "INACTIVE"}));
    given(&json!({"name": "a", "context": null})).apply_to(&mut spec).expect("good");
    assert_eq!((spec.zone_id.as_ref().map(crate::ids::ZoneId::as_str), spec.context), (Some("z"), None));
    assert_eq!(given(&json!({"name": "a", "state": "INACTIVE"})).state, Some(DesiredState::Inactive));
}

#[test]
fn the_rules_are_said_in_the_words_of_the_schema() {
    let crd = serde_json::to_string(&KubesvcAccount::crd()).expect("JSON");
    for message in [
        rules::NAMESPACES_EXCLUDE,
        rules::KINDS_EXCLUDE,
        rules::NEEDS_NAMESPACES,
        rules::CONTEXT_MEANINGLESS,
        rules::AGENT_CONTEXT_MEANINGLESS,
        rules::NAME_CONTROL,
        rules::ZONE_CONTROL,
        rules::RIGHTS,
        rules::ONE_SOURCE,
        rules::REFERENCE,
        rules::FILE_ABSOLUTE,
        rules::FILE_DOTS,
        rules::FILE_CONTROL,
        rules::PRIORITY,
    ] {
        assert!(crd.contains(message), "the schema does not say: {message}");
    }
}

#[test]
fn each_rule_is_held() {
    let cases = [
        (json!({"namespaces": ["a"], "omitNamespaces": ["b"]}), rules::NAMESPACES_EXCLUDE),
        (json!({"kinds": ["a"], "omitKinds": ["b"]}), rules::KINDS_EXCLUDE),
        (json!({"onlyNamespacedResources": true}), rules::NEEDS_NAMESPACES),
        (json!({"serviceAccount": true, "context": "c"}), rules::CONTEXT_MEANINGLESS),
        (json!({"zoneId": "a\nb"}), rules::ZONE_CONTROL),
        (json!({"zoneId": "z".repeat(256)}), "spec.zoneId must have 1 to 255 characters"),
        (json!({"permissions": {"read": ["a"]}}), rules::RIGHTS),
        (json!({"kubeconfigFile": "k"}), "spec.kubeconfig.file must be an absolute path"),
        (json!({"kubeconfigFile": "/a/../b"}), "spec.kubeconfig.file must not contain .. as a part"),
        (json!({"kubeconfigFile": "/a\u{7f}"}), "spec.kubeconfig.file must not contain control characters"),
        (json!({"kubeconfigAgent": "/a/../b"}), "spec.agentKubeconfig.file must not contain .. as a part"),
        (json!({"customResources": [{"kubernetesKind": "a.b", "deployPriority": "x"}]}), rules::PRIORITY),
        (
            json!({"maxResumableResourceAgeMs": -1}),
            "spec.maxResumableResourceAgeMs must be between 0 and 86400000",
        ),
        (json!({"namespaces": vec!["a"; 1001]}), "spec.namespaces must have at most 1000 items"),
        (json!({"kinds": [""]}), "spec.kinds must hold kinds of 1 to 255 characters"),
    ];
    for (mut fields, message) in cases {
        fields["name"] = json!("a");
        if fields.get("kubeconfigFile").is_none() && fields.get("serviceAccount").is_none() {
            fields["kubeconfigFile"] = json!("/k");
        }
        assert_eq!(validate(&spec_of(&fields)), [message]);
    }
    let neither = format!("spec.kubeconfig: {}", rules::ONE_SOURCE);
    assert_eq!(validate(&KubesvcAccountSpec::default()), [neither]);
    let two = KubeconfigSource { file: Some("/k".into()), service_account: Some(true), ..Default::default() };
    let mut spec = spec_of(&json!({"name": "a", "kubeconfigFile": "/k", "context": "c"}));
    spec.agent_kubeconfig = Some(two);
    let agents = format!("spec.agentKubeconfig: {}", rules::ONE_SOURCE);
    assert_eq!(validate(&spec), [agents.as_str(), rules::AGENT_CONTEXT_MEANINGLESS]);
}

fn word() -> impl Strategy<Value = String> {
    "[a-z][a-z0-9]{0,8}"
}

fn words() -> impl Strategy<Value = Vec<String>> {
    prop::collection::vec(word(), 0..3)
}

fn maybe_flag() -> impl Strategy<Value = Option<bool>> {
    prop::option::of(any::<bool>())
}

prop_compose! {
    fn treatment()(
        kubernetes_kind in word(),
        spinnaker_kind in prop::option::of(prop_oneof![Just(SpinnakerKind::ServerGroups), Just(SpinnakerKind::Configs)]),
        deploy_priority in prop::option::of("[0-9]{1,4}"),
        versioned in maybe_flag(),
        namespaced in maybe_flag(),
    ) -> CustomResourceTreatment {
        CustomResourceTreatment { kubernetes_kind, spinnaker_kind, deploy_priority, versioned, namespaced }
    }
}

prop_compose! {
    fn source()(file in word(), which in 0..3) -> KubeconfigSource {
        match which {
            0 => KubeconfigSource { file: Some(format!("/{file}")), ..Default::default() },
            1 => KubeconfigSource { reference: Some(format!("encryptedFile:vault!e:x!k:{file}")), ..Default::default() },
            _ => KubeconfigSource { service_account: Some(true), ..Default::default() },
        }
    }
}

prop_compose! {
    fn specs()(
        texts in (prop::option::of(word()), prop::option::of(word()), prop::option::of(word())),
        flags in (maybe_flag(), maybe_flag(), maybe_flag(), maybe_flag(), maybe_flag()),
        lists in (words(), words(), words(), words()),
        kubeconfig in source(),
        roles in prop::collection::btree_map(prop_oneof![Just("READ".to_owned()), Just("WRITE".to_owned())], words(), 0..3),
        custom_resources in prop::collection::vec(treatment(), 0..3),
        exposed in prop::collection::vec((word(), prop::option::of(prop_oneof![Just(Scope::Cluster), Just(Scope::Namespaced)])), 0..2),
        age in prop::option::of(0..86_400_000_i64),
    ) -> KubesvcAccountSpec {
        KubesvcAccountSpec {
            account_name: None,
            state: None,
            zone_id: None,
            kubeconfig,
            agent_kubeconfig: None,
            context: texts.0,
            environment: texts.1,
            account_type: texts.2,
            insecure: flags.0,
            only_namespaced_resources: flags.1,
            only_spinnaker_managed: flags.2,
            metrics: flags.3,
            no_proxy: flags.4,
            namespaces: lists.0,
            omit_namespaces: lists.1,
            kinds: lists.2,
            omit_kinds: lists.3,
            permissions: roles,
            custom_resources,
            custom_resource_definitions: exposed.into_iter().map(|(kind, scope)| ExposedCustomResource { kind, scope }).collect(),
            max_resumable_resource_age_ms: age,
            spinnaker: None,
        }
    }
}

proptest! {
    #[test]
    fn a_definition_read_back_gives_its_spec(spec in specs()) {
        let account = KubesvcAccount::new("a", spec.clone());
        let given = AccountInput::read(object(&definition(&account))).expect("our own definition");
        let mut read = KubesvcAccountSpec::default();
        given.apply_to(&mut read).expect("it was read before");
        prop_assert_eq!(read, spec);
        prop_assert!(given.ignored.count == 0);
    }

    #[test]
    fn nothing_that_json_can_hold_panics(keys in prop::collection::vec(prop_oneof![
        Just("name"), Just("permissions"), Just("customResources"), Just("kubeconfigFile"), Just("state"), Just("kinds")
    ], 0..5), text in ".{0,20}", number in any::<f64>()) {
        for value in [json!(text), json!(number), json!([text]), json!({"READ": [number]}), json!(null), json!([{"kind": text}])] {
            let mut fields = Map::new();
            fields.insert("name".to_owned(), json!("a"));
            for key in &keys {
                fields.insert((*key).to_owned(), value.clone());
            }
            let _ = AccountInput::read(fields);
        }
    }
}

#[test]
fn spinnaker_kinds_are_named_as_they_are_serialized() {
    for (name, kind) in SpinnakerKind::NAMED {
        assert_eq!((kind.name(), json!(kind)), (name, json!(name)));
    }
}
