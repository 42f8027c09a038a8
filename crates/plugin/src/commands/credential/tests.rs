use kube::api::DynamicObject;
use kube::config::Cluster;
use serde_json::json;

use super::manifests::{Grant, Kind, Manifest, Preset, SecretPlace, kubeconfig, secret};
use super::write::{Change, change};

fn grant<'a>(preset: Preset, namespaces: &'a [String]) -> Grant<'a> {
    Grant { cluster: "prod", preset, namespaces, home: "kubesvc" }
}

fn present(of: &Manifest) -> DynamicObject {
    let mut object: DynamicObject = serde_json::from_value(of.object.clone()).expect("an object");
    object.metadata.uid = Some("1".to_owned());
    object.metadata.resource_version = Some("7".to_owned());
    object
}

#[test]
fn view_changes_nothing_and_deploy_adds_to_it() {
    let (view, deploy) = (Preset::View.rules(), Preset::Deploy.rules());
    assert!(!view.is_empty() && deploy.len() > view.len());
    assert!(view.iter().all(|rule| deploy.contains(rule)));
    let verbs = |rules: &[k8s_openapi::api::rbac::v1::PolicyRule], verb: &str| {
        rules.iter().any(|rule| rule.verbs.iter().any(|one| one == verb))
    };
    assert!(!verbs(&view, "create") && verbs(&deploy, "create"));
    let resources =
        |rule: &k8s_openapi::api::rbac::v1::PolicyRule| rule.resources.clone().unwrap_or_default();
    assert!(!view.iter().any(|rule| resources(rule).contains(&"secrets".to_owned())));
}

#[test]
fn rights_in_namespaces_need_no_right_in_the_cluster() {
    let namespaces = ["a".to_owned(), "b".to_owned()];
    let kinds = |grant: Grant<'_>| grant.manifests().iter().map(|one| one.kind).collect::<Vec<_>>();
    assert_eq!(
        kinds(grant(Preset::Deploy, &[])),
        [Kind::ServiceAccount, Kind::ClusterRole, Kind::ClusterRoleBinding]
    );
    let limited = grant(Preset::Deploy, &namespaces);
    assert_eq!(
        kinds(limited),
        [Kind::ServiceAccount, Kind::Role, Kind::RoleBinding, Kind::Role, Kind::RoleBinding]
    );
    for manifest in limited.manifests() {
        assert!(manifest.namespace.is_some(), "{manifest:?}");
        assert!(!manifest.object.to_string().contains("customresourcedefinitions"), "{manifest:?}");
    }
}

#[test]
fn an_object_is_made_changed_or_left_and_never_taken_from_others() {
    let all = grant(Preset::View, &[]).manifests();
    let role = &all[1];
    assert_eq!(change(None, role), Ok(Change::Create));
    assert_eq!(change(Some(&present(role)), role), Ok(Change::None));
    let other = grant(Preset::Deploy, &[]).manifests();
    match change(Some(&present(&other[1])), role) {
        Ok(Change::Update(patch)) => {
            assert_eq!(patch["metadata"]["resourceVersion"], "7");
            assert_eq!(patch["rules"], role.object["rules"]);
        }
        other => unreachable!("{other:?}"),
    }
    let mut theirs = present(role);
    theirs.metadata.labels = Some([("app.kubernetes.io/managed-by".to_owned(), "Helm".to_owned())].into());
    let refused = change(Some(&theirs), role).expect_err("it is somebody else's").to_string();
    assert!(refused.contains("kubesvc-prod is there") && refused.contains("\"Helm\""), "{refused}");
    let elsewhere = Grant { cluster: "other", ..grant(Preset::View, &[]) };
    let refused = change(Some(&present(&elsewhere.manifests()[1])), role);
    let refused = refused.expect_err("of another credential").to_string();
    assert!(refused.contains("\"other\""), "{refused}");
    let home = grant(Preset::View, &[]).home_manifest();
    let mut namespace = present(&home);
    namespace.metadata.labels = None;
    assert_eq!(change(Some(&namespace), &home), Ok(Change::None));
}

#[test]
fn the_kubeconfig_is_vetted_and_the_secret_is_watched() {
    let mut entry = Cluster { server: Some("https://c.example.com".to_owned()), ..Cluster::default() };
    let bytes = kubeconfig(&entry, "prod", Some("a"), "secret-token").expect("it is accepted");
    let vetted = kubesvc_core::kubeconfig::vet(&bytes, Some("prod")).expect("agents accept it too");
    assert_eq!(vetted.namespace.as_deref(), Some("a"));
    let place =
        SecretPlace { namespace: "spin".to_owned(), name: "prod".to_owned(), key: "kubeconfig".to_owned() };
    let made = secret(&place, "prod", Some("uid-1"), Some("2027-01-01T00:00:00Z"), Some(&bytes));
    assert_eq!(made.object["metadata"]["labels"]["kubesvc.io/watch"], json!("true"));
    assert!(made.object["data"]["kubeconfig"].is_string());
    let dry = secret(&place, "prod", None, None, None);
    assert!(dry.object.get("data").is_none());
    entry.proxy_url = Some("http://proxy".to_owned());
    let refused = kubeconfig(&entry, "prod", None, "secret-token").expect_err("agents use no proxy");
    assert!(refused.to_string().contains("proxy-url") && !refused.to_string().contains("secret-token"));
}
