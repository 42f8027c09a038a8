//! Views, key by key.

use serde_json::json;

use super::*;
use kubesvc_core::spec::{KubesvcAccountSpec, SecretKeyReference};

fn account(value: Value) -> KubesvcAccount {
    serde_json::from_value(value).expect("an account")
}

fn holder(id: &str) -> String {
    id.to_owned()
}

#[test]
fn state_names_are_the_documented_ones() {
    for state in State::ALL {
        assert_eq!(json!(state), json!(state.as_str()));
    }
}

#[test]
fn a_new_account_shows_what_there_is_and_leaves_the_rest_out() {
    let mut spec = KubesvcAccountSpec::default();
    spec.kubeconfig.secret_ref = Some(SecretKeyReference { name: "s".to_owned(), key: None });
    let shown = json!(AccountView::of(&KubesvcAccount::new("a", spec), &[]));
    let definition = json!({"type": "kubernetes", "name": "a"});
    let props = json!({"permissions": {}});
    assert_eq!(
        shown,
        json!({
            "name": "a", "status": "TO_MIGRATE", "dynamic": true, "connections": 0, "maxWatchAgeSeconds": 300000,
            "retryCount": 0, "permissions": {}, "properties": props, "propertiesAsString": props.to_string(),
            "props": props.to_string(), "definition": definition, "definitionAsString": definition.to_string(),
            "def": definition.to_string(), "type": "kubernetes", "source": "clouddriver", "config": definition,
            "agents": []
        })
    );
}

#[test]
fn a_held_account_shows_its_cluster_and_agents() {
    let account = account(json!({
        "apiVersion": "kubesvc.io/v1alpha1", "kind": "KubesvcAccount",
        "metadata": {"name": "a", "uid": "u", "generation": 1, "labels": {"kubesvc.io/origin": "agent"},
                     "creationTimestamp": "2022-01-01T00:00:00Z"},
        "spec": {"kubeconfig": {"file": "/k"}, "permissions": {"READ": ["dev"]}},
        "status": {"state": "ACTIVE", "observedGeneration": 1, "zoneId": "z", "kubeHost": "https://h",
                   "kubeVersion": "v1", "certFingerprint": "D8:F2", "lastTransitionTime": "2022-06-05T22:02:09.967Z",
                   "caching": {"agentId": "x", "bootId": "b", "epoch": 1}}
    }));
    let shown = json!(AccountView::of(&account, &[holder("x").into(), holder("y").into()]));
    assert_eq!(shown["connections"], 2);
    assert_eq!(
        shown["agents"],
        json!([{"agentId": "x", "caching": true}, {"agentId": "y", "caching": false}])
    );
    assert_eq!((&shown["status"], &shown["zoneId"]), (&json!("ACTIVE"), &json!("z")));
    assert_eq!((&shown["source"], &shown["dynamic"]), (&json!("static-agent-config"), &json!(false)));
    assert_eq!(shown["lastUpdated"], 1_654_466_529_967_i64);
    assert_eq!(shown["permissions"], json!({"READ": ["dev"]}));
    assert_eq!(
        json!(ExistingAccount::of(&account)),
        json!({"name": "a", "zoneId": "z", "kubeconfigFile": "/k", "state": "ACTIVE"})
    );
    let item = json!(AccountItem::of(&account, &[]));
    let keys: Vec<_> = item.as_object().expect("an object").keys().cloned().collect();
    let mut keys = keys;
    keys.sort_unstable();
    assert_eq!(item["lastAssignmentMsg"], "cached by x, epoch 1");
    assert_eq!(keys, ["agents", "config", "lastAssignmentMsg", "name", "source", "status", "type", "zoneId"]);
}
