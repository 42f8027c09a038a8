use k8s_openapi::api::rbac::v1::PolicyRule;
use kube::config::Cluster;
use serde_json::json;

use super::manifests::{CredentialRights, Preset, kubeconfig, secret};

fn grant<'a>(preset: Preset, namespaces: &'a [String]) -> CredentialRights<'a> {
    CredentialRights { credential: "prod", preset, namespaces, home: "kubesvc" }
}

fn rules(preset: Preset) -> Vec<PolicyRule> {
    let role = grant(preset, &[]).manifests().swap_remove(1);
    serde_json::from_value(role.object["rules"].clone()).expect("rules")
}

#[test]
fn view_changes_nothing_and_deploy_adds_to_it() {
    let (view, deploy) = (rules(Preset::View), rules(Preset::Deploy));
    assert!(!view.is_empty() && deploy.len() > view.len());
    assert!(view.iter().all(|rule| deploy.contains(rule)));
    let verbs =
        |rules: &[PolicyRule], verb: &str| rules.iter().any(|rule| rule.verbs.iter().any(|one| one == verb));
    assert!(!verbs(&view, "create") && verbs(&deploy, "create"));
    let resources = |rule: &PolicyRule| rule.resources.clone().unwrap_or_default();
    assert!(!view.iter().any(|rule| resources(rule).contains(&"secrets".to_owned())));
}

#[test]
fn rights_in_namespaces_need_no_right_in_the_cluster() {
    let namespaces = ["a".to_owned(), "b".to_owned()];
    let kinds = |grant: CredentialRights<'_>| {
        grant.manifests().into_iter().map(|one| one.resource.kind).collect::<Vec<_>>()
    };
    assert_eq!(kinds(grant(Preset::Deploy, &[])), ["ServiceAccount", "ClusterRole", "ClusterRoleBinding"]);
    let limited = grant(Preset::Deploy, &namespaces);
    assert_eq!(kinds(limited), ["ServiceAccount", "Role", "RoleBinding", "Role", "RoleBinding"]);
    for manifest in limited.manifests() {
        assert!(manifest.namespace.is_some(), "{manifest:?}");
        assert!(!manifest.object.to_string().contains("customresourcedefinitions"), "{manifest:?}");
    }
}

#[test]
fn the_kubeconfig_is_vetted_and_the_secret_is_watched() {
    let mut entry = Cluster { server: Some("https://c.example.com".to_owned()), ..Cluster::default() };
    let bytes = kubeconfig(&entry, "prod", Some(&"a".to_owned()), "secret-token").expect("it is accepted");
    let vetted = kubesvc_core::kubeconfig::vet(&bytes, Some("prod")).expect("agents accept it too");
    assert_eq!(vetted.namespace.as_deref(), Some("a"));
    let made = secret("prod", ("spin", "prod", "kubeconfig"), "2027-01-01T00:00:00Z", bytes);
    let metadata = &made.object["metadata"];
    assert_eq!(metadata["labels"]["kubesvc.io/watch"], json!("true"));
    assert_eq!(metadata["annotations"]["kubesvc.io/credential-expires"], json!("2027-01-01T00:00:00Z"));
    assert!(made.object["data"]["kubeconfig"].is_string());
    entry.proxy_url = Some("http://proxy".to_owned());
    let refused = kubeconfig(&entry, "prod", None, "secret-token").expect_err("agents use no proxy");
    assert!(refused.to_string().contains("proxy-url") && !refused.to_string().contains("secret-token"));
}
