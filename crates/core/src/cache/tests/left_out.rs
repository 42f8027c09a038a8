//! Why one object is not cached.

use super::{account, naming, operator_all, operator_named, operator_omitting, texts};
use crate::cache::left_out::why_left_out;
use crate::cache::rules::{AccountRules, OperatorRules};

fn reason(operator: &OperatorRules, account: &AccountRules, object: (&str, Option<&str>, &str)) -> String {
    let (kind, group, namespace) = object;
    why_left_out(operator, account, kind, group, namespace)
        .map(|left_out| left_out.to_string())
        .unwrap_or_default()
}

#[test]
fn what_the_settings_allow_is_not_left_out() {
    let (documented, plain) = (OperatorRules::default(), AccountRules::default());
    for object in [
        ("deployment", None, "default"),
        ("deploy", None, "default"),
        ("Deployment", Some("apps"), "default"),
        ("namespace", None, ""),
    ] {
        assert_eq!(reason(&documented, &plain, object), "", "{object:?}");
    }
    assert_eq!(reason(&operator_all(), &plain, ("Rollout", None, "default")), "");
    assert_eq!(reason(&operator_named(&["Rollout.argoproj.io"], &[]), &plain, ("rollout", None, "a")), "");
}

#[test]
fn the_setting_that_does_not_name_the_kind_is_told() {
    let (documented, plain) = (OperatorRules::default(), AccountRules::default());
    for (kind, group, shown) in [
        ("rollout", None, "rollout"),
        ("Rollout", Some("argoproj.io"), "Rollout.argoproj.io"),
        ("cm", None, "configMap"),
        ("Service", Some("serving.knative.dev"), "Service.serving.knative.dev"),
    ] {
        assert_eq!(
            reason(&documented, &plain, (kind, group, "a")),
            format!("{shown}: kubesvc.cache.cacheKinds does not name it")
        );
    }
    assert_eq!(
        reason(&documented, &naming(&["pod"]), ("service", None, "a")),
        "service: kinds does not name it"
    );
}

#[test]
fn the_setting_that_omits_the_kind_is_told() {
    let omitting = account(|spec| spec.omit_kinds = texts(&["Rollout.argoproj.io", "pod"]));
    let all = operator_all();
    assert_eq!(reason(&all, &omitting, ("Pod", Some(""), "a")), "Pod: omitKinds names it");
    assert_eq!(
        reason(&all, &omitting, ("Rollout", Some("argoproj.io"), "a")),
        "Rollout.argoproj.io: omitKinds names it"
    );
    assert_eq!(reason(&all, &omitting, ("rollout", None, "a")), "", "another group's may be meant");
    assert_eq!(
        reason(&operator_omitting(&["ingress"]), &AccountRules::default(), ("ingress", None, "a")),
        "ingress.networking.k8s.io: kubesvc.cache.cacheOmitKinds names it"
    );
}

#[test]
fn the_setting_that_leaves_out_the_namespace_is_told() {
    let documented = OperatorRules::default();
    let some = account(|spec| {
        spec.namespaces = texts(&["a"]);
        spec.only_namespaced_resources = Some(true);
    });
    assert_eq!(reason(&documented, &some, ("pod", None, "a")), "");
    assert_eq!(reason(&documented, &some, ("pod", None, "b")), "pod: namespaces does not name b");
    assert_eq!(reason(&documented, &some, ("namespace", None, "")), "", "it has a synthetic row");
    let all = operator_all();
    assert_eq!(
        reason(&all, &some, ("ClusterRole", None, "")),
        "ClusterRole.rbac.authorization.k8s.io: it is cluster-wide, and onlyNamespacedResources is set"
    );
    let omitting = account(|spec| spec.omit_namespaces = texts(&["b"]));
    assert_eq!(reason(&documented, &omitting, ("pod", None, "b")), "pod: omitNamespaces names b");
    assert_eq!(reason(&documented, &omitting, ("pod", None, "a")), "");
}
