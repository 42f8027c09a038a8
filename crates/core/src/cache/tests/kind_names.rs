//! Kinds as settings and as Clouddriver write them.

use super::texts;
use crate::cache::findings::{Finding, Setting};
use crate::cache::kind_names::{KindNames, KindSelector};
use crate::cache::native::{DEFAULT_KINDS, kind_name, native_kind};

fn names(text: &str, group: &str, kind: &str) -> bool {
    KindSelector::parse(text).expect("a kind").names(group, kind)
}

#[test]
fn a_name_without_a_group_means_every_group_in_any_case() {
    assert!(names("SERVICE", "", "Service") && names("service", "serving.knative.dev", "Service"));
    assert!(!names("service", "", "ServiceAccount"));
}

#[test]
fn a_name_with_a_group_means_that_group_alone() {
    assert!(names("rollout.ARGOPROJ.io", "argoproj.io", "Rollout"));
    assert!(!names("Service.serving.knative.dev", "", "Service"));
    for core in ["Event.", "event.core"] {
        assert!(names(core, "", "Event") && !names(core, "events.k8s.io", "Event"), "{core}");
    }
}

#[test]
fn clouddrivers_short_names_mean_native_kinds_and_kinds_of_that_very_name() {
    assert!(names("deploy", "apps", "Deployment") && names("deploy", "extensions", "Deployment"));
    assert!(!names("deploy", "example.com", "Deployment"), "not a native group");
    assert!(names("deploy", "example.com", "Deploy"), "a custom kind may be called so");
    assert!(names("rs.apps", "apps", "ReplicaSet"));
}

#[test]
fn what_can_be_no_kind_is_found_and_left_out() {
    let bad =
        ["", " ", ".apps", "a b", "pods/log", "Kind.-", "Kind.a..b", "1x", "Pod:x", "Pöd", &"x".repeat(64)];
    let (list, findings) = KindNames::read(Setting::Kinds, &texts(&bad));
    assert!(list.is_empty());
    assert_eq!(findings.len(), bad.len());
    assert!(findings.iter().all(Finding::is_error));
    assert_eq!(
        findings[3].to_string(),
        "kinds: \"a b\" is no kind: write Kind or Kind.group, such as Deployment or Rollout.argoproj.io"
    );
}

#[test]
fn a_list_that_is_too_long_is_found_and_cut() {
    let many: Vec<String> = (0..1001).map(|i| format!("Kind{i}.example.com")).collect();
    let (list, findings) = KindNames::read(Setting::CacheKinds, &many);
    assert_eq!(list.texts().len(), 1000);
    assert_eq!(findings, [Finding::TooMany { setting: Setting::CacheKinds, count: 1001, max: 1000 }]);
}

#[test]
fn a_slip_of_the_pen_is_found_and_counts_as_it_is() {
    let near = |text: &str| {
        let (list, findings) = KindNames::read(Setting::CacheKinds, &texts(&[text]));
        assert!(!list.is_empty());
        findings.first().map(|finding| match finding {
            Finding::Unfamiliar { nearest, .. } => *nearest,
            other => unreachable!("{other}"),
        })
    };
    assert_eq!(near("pods"), Some("pod"));
    assert_eq!(near("Deploymnet"), Some("deployment"));
    assert_eq!(near("statefullsets"), Some("statefulSet"));
    assert_eq!(near("Deploymnet.apps"), Some("deployment"), "the group is native");
    for known in ["Pod", "deploy", "Rollout", "Node", "Endpoints", "CronTab", "Route", "Pods.example.com"] {
        assert_eq!(near(known), None, "{known}");
    }
}

#[test]
fn rows_have_clouddrivers_text_of_a_kind() {
    for (group, kind, expected) in [
        ("apps", "ReplicaSet", "replicaSet"),
        ("extensions", "ReplicaSet", "replicaSet"),
        ("", "Pod", "pod"),
        ("apiextensions.k8s.io", "CustomResourceDefinition", "customResourceDefinition"),
        ("autoscaling", "HorizontalPodAutoscaler", "horizontalpodautoscaler"),
        ("apiregistration.k8s.io", "APIService", "apiService"),
        ("storage.k8s.io", "CSIDriver", "csiDriver"),
        ("", "ResourceQuota", "ResourceQuota"),
        ("events.k8s.io", "Event", "event"),
        ("coordination.k8s.io", "Lease", "Lease.coordination.k8s.io"),
        ("serving.knative.dev", "Service", "Service.serving.knative.dev"),
        ("networking.istio.io", "Gateway", "gateway"),
        ("gateway.networking.k8s.io", "Gateway", "Gateway.gateway.networking.k8s.io"),
    ] {
        assert_eq!(kind_name(group, kind), expected, "{kind} of {group:?}");
    }
}

#[test]
fn each_documented_kind_is_native() {
    for kind in DEFAULT_KINDS {
        assert!(native_kind(kind).is_some(), "{kind}");
    }
}
