//! The settings of cached objects.

use std::time::Duration;

use super::{error, operator};
use crate::hub::BodyFormat;
use crate::operator::settings::CacheSettings;
use kubesvc_core::cache::rules::{ChosenKinds, OperatorRules};
use kubesvc_core::spec::{CustomResourceTreatment, SpinnakerKind};

fn cache(yaml: &str) -> CacheSettings {
    operator(yaml).expect("valid").settings.cache
}

#[test]
fn what_is_not_set_is_as_documented() {
    let cache = cache("");
    assert_eq!(cache.rules, OperatorRules::default());
    assert_eq!((cache.body_format, cache.writers, cache.pending_bytes), (BodyFormat::Text, 2, 256 << 20));
    assert_eq!(cache.event_lifetime, Duration::from_secs(7200));
    assert!(!cache.defaults.only_spinnaker_managed("prod"));
}

#[test]
fn lists_of_kinds_choose_what_is_cached_and_an_empty_one_chooses_nothing() {
    let named = cache("kubesvc.cache: {cacheKinds: [Pod, Rollout.argoproj.io], cacheDefaults: [Job]}").rules;
    assert!(
        named.allows("", "Pod") && named.allows("argoproj.io", "Rollout") && !named.allows("batch", "Job")
    );
    let defaults = cache("kubesvc.cache: {cacheDefaults: [Job], cacheOmitKinds: 'Pod'}").rules;
    assert!(defaults.allows("batch", "Job") && !defaults.allows("", "Pod"));
    let nothing = cache("kubesvc.cache: {cacheKinds: [], cacheDefaults: [Job]}").rules;
    assert!(!nothing.allows("batch", "Job"), "an empty list is set");
    assert_eq!(cache("kubesvc.cache.cacheAll: true").rules.chosen(), &ChosenKinds::All);
}

#[test]
fn names_that_are_no_kinds_are_errors_with_their_place() {
    let said = error(operator("kubesvc:\n  cache:\n    cacheKinds: [Pod, a b]\n    cacheOmitKinds: ['.']"));
    let lines: Vec<_> = said.lines().collect();
    assert_eq!(lines.len(), 2, "{said}");
    assert!(
        lines
            .iter()
            .any(|line| line
                .starts_with("c.yml:3: `kubesvc.cache.cacheKinds` cannot be used: \"a b\" is no kind")),
        "{said}"
    );
    assert!(
        lines.iter().any(|line| line.starts_with("c.yml:4: `kubesvc.cache.cacheOmitKinds` cannot be used: ")),
        "{said}"
    );
    let format = error(operator("kubesvc.cache.bodyFormat: json"));
    assert_eq!(format, "c.yml:1: `kubesvc.cache.bodyFormat` is \"json\", but must be one of text, zstd");
}

#[test]
fn settings_that_contradict_each_other_are_warnings() {
    let warnings = |yaml: &str| operator(yaml).expect("valid").warnings;
    let said = warnings("kubesvc.cache: {cacheAll: true, cacheKinds: [Pod]}");
    assert!(
        said.len() == 1 && said[0].starts_with("c.yml:1: kubesvc.cache.cacheKinds has no effect"),
        "{said:?}"
    );
    let said = warnings("kubesvc.cache: {cacheKinds: [Pod], cacheOmitKinds: [Pod]}");
    assert!(said.len() == 1 && said[0].contains("it is not cached"), "{said:?}");
}

const RUNTIME: &str = "kubesvc.runtime:
  defaults: {onlySpinnakerManaged: true, customResources: [{kubernetesKind: A.b.c, spinnakerKind: serverGroups}]}
  accounts:
    prod.eu:
      only-spinnaker-managed: false
      custom-resources: [{kubernetes-kind: A.b.c, spinnakerKind: configs, deployPriority: 7, versioned: true}]
    stage: {customResources: []}
";

#[test]
fn settings_of_an_account_come_before_those_of_all_and_its_own_before_both() {
    let defaults = cache(RUNTIME).defaults;
    assert!(!defaults.only_spinnaker_managed("prod.eu"));
    assert!(defaults.only_spinnaker_managed("stage") && defaults.only_spinnaker_managed("other"));
    let class = |account, own: &[CustomResourceTreatment]| defaults.classes(account, own).class_of("A.b.c");
    assert_eq!(class("stage", &[]), SpinnakerKind::ServerGroups);
    assert_eq!(class("prod.eu", &[]), SpinnakerKind::Configs);
    let own = CustomResourceTreatment {
        kubernetes_kind: "A.b.c".to_owned(),
        spinnaker_kind: Some(SpinnakerKind::Instances),
        ..CustomResourceTreatment::default()
    };
    assert_eq!(class("prod.eu", &[own]), SpinnakerKind::Instances);
}

#[test]
fn what_is_printed_of_accounts_loads_to_the_same() {
    for yaml in [RUNTIME, "kubesvc.cache.cacheKinds: []", "kubesvc.cache.cacheKinds: [Pod]", ""] {
        let first = operator(yaml).expect("valid");
        let printed = first.print();
        assert_eq!(operator(&printed).expect(&printed).settings, first.settings, "{printed}");
    }
}

#[test]
fn custom_resources_that_cannot_be_used_are_errors_with_their_place() {
    for (resources, want) in [
        (
            "[{kubernetesKind: Foo}]",
            "c.yml:1: `kubesvc.runtime.defaults.customResources` cannot be used: \"Foo\" has no API group",
        ),
        ("[{spinnakerKind: configs}]", "an entry without a kubernetesKind"),
        ("[{kubernetesKind: A.b, spinnakerKind: pods}]", "the spinnakerKind"),
        ("[{kubernetesKind: A.b, deployPriority: high}]", "the deployPriority"),
        ("[{kubernetesKind: A.b, versioned: 7}]", "the versioned"),
        ("[{kubernetesKind: A.b, colour: red}]", "the key \"colour\""),
        ("[A.b]", "but must be a list of {kubernetesKind"),
        ("{}", "but must be a list of {kubernetesKind"),
    ] {
        let said = error(operator(&format!("kubesvc.runtime.defaults.customResources: {resources}")));
        assert!(said.contains(want), "{resources}: {said}");
    }
    let said = error(operator("kubesvc.runtime.accounts.prod.eu.customResources: [{kubernetesKind: Foo}]"));
    assert!(said.starts_with("c.yml:1: `kubesvc.runtime.accounts.prod.eu.customResources` cannot"), "{said}");
    let twice = error(operator(
        "kubesvc.runtime.accounts: {a: {onlySpinnakerManaged: true, only-spinnaker-managed: false}}",
    ));
    assert!(twice.contains("already set"), "{twice}");
}
