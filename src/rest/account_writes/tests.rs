//! The plan for an account in its current state.

use super::*;

const KUBECONFIG: &str = "{kind: Config, current-context: c, contexts: [{name: c, context: {cluster: c, user: u}}], \
                          clusters: [{name: c, cluster: {server: 'https://c'}}], users: [{name: u, user: {token: s3cret}}]}";

fn account(spec: &Value, labels: &Value) -> KubesvcAccount {
    serde_json::from_value(json!({
        "apiVersion": "kubesvc.io/v1alpha1", "kind": "KubesvcAccount",
        "metadata": {"name": "a", "uid": "u", "generation": 1, "labels": labels}, "spec": spec,
        "status": {"state": "ACTIVE", "observedGeneration": 1}
    }))
    .expect("an account")
}

fn given(value: &Value) -> AccountInput {
    AccountInput::read(value.as_object().cloned().expect("an object")).expect("good fields")
}

fn plan(
    request: AccountVerb,
    body: Option<&AccountInput>,
    account: &KubesvcAccount,
) -> Result<ChangePlan, RestError> {
    AccountChange {
        caller: &RestCaller::kubesvc(),
        name: "a",
        request,
        given: body,
        sets: true,
        force: false,
    }
    .judge(Some(account))
}

fn patch_of(plan: ChangePlan) -> Option<(Value, bool)> {
    match plan.write {
        PlannedWrite::Patch { spec, retry } => Some((Value::Object(spec), retry)),
        _ => None,
    }
}

#[test]
fn a_difference_names_what_changed_and_nulls_what_is_gone() {
    let old = json!({"a": 1, "b": {"c": 1, "d": [1]}, "e": 2});
    let new = json!({"a": 1, "b": {"d": [2], "f": 1}});
    assert_eq!(
        Value::Object(merge_patch(&old, &new)),
        json!({"b": {"c": null, "d": [2], "f": 1}, "e": null})
    );
    assert!(merge_patch(&old, &old).is_empty());
}

#[test]
fn an_unchanged_body_writes_nothing() {
    let account = account(&json!({"kubeconfig": {"file": "/k"}, "zoneId": "z"}), &json!({}));
    let body = given(&json!({"name": "a", "kubeconfigFile": "/k", "zoneId": "z"}));
    for request in [AccountVerb::Put, AccountVerb::Activate] {
        assert!(!plan(request, Some(&body), &account).expect("good").writes());
    }
}

#[test]
fn definition_in_a_deactivation_is_checked_but_not_stored() {
    let account = account(&json!({"kubeconfig": {"file": "/k"}, "state": "ACTIVE"}), &json!({}));
    let judge = |body: &AccountInput| {
        AccountChange {
            caller: &RestCaller::kubesvc(),
            name: "a",
            request: AccountVerb::Deactivate,
            given: Some(body),
            sets: false,
            force: false,
        }
        .judge(Some(&account))
    };
    let off = Some((json!({"state": "INACTIVE"}), false));
    for good in [
        json!({"name": "a"}),
        json!({"name": "a", "zoneId": "other"}),
        json!({"name": "a", "kubeconfigContents": KUBECONFIG}),
    ] {
        let plan = judge(&given(&good)).expect("good");
        assert!(!plan.contents);
        assert_eq!(patch_of(plan), off);
    }
    for (bad, word) in [
        (json!({"name": "a", "zoneId": "z".repeat(256)}), "zoneId"),
        (json!({"name": "a", "permissions": {"EXECUTE": []}}), "permissions"),
        (json!({"name": "a", "kubeconfigContents": "kind: Nonsense"}), "kubeconfigContents"),
    ] {
        let problem = judge(&given(&bad)).err().expect("it is refused");
        assert_eq!(problem.status.as_u16(), 400);
        assert!(problem.message.contains(word), "{}", problem.message);
    }
}

#[test]
fn a_changed_source_replaces_the_old_one() {
    let account = account(&json!({"kubeconfig": {"file": "/k"}}), &json!({}));
    let body = given(&json!({"name": "a", "kubeconfigContents": KUBECONFIG}));
    let plan = plan(AccountVerb::Put, Some(&body), &account).expect("good");
    assert!(plan.contents);
    assert_eq!(
        patch_of(plan),
        Some((json!({"kubeconfig": {"file": null, "secretRef": {"name": "a-kubeconfig"}}}), false))
    );
}

#[test]
fn a_kubeconfig_that_is_refused_is_400_and_not_repeated() {
    let account = account(&json!({"kubeconfig": {"file": "/k"}, "context": "other"}), &json!({}));
    for contents in ["s3cret", KUBECONFIG] {
        let body = given(&json!({"name": "a", "kubeconfigContents": contents}));
        let problem = plan(AccountVerb::Put, Some(&body), &account).err().expect("refused");
        assert_eq!(problem.status.as_u16(), 400);
        assert!(problem.message.contains("kubeconfigContents is refused: "), "{}", problem.message);
        assert!(!problem.message.contains("s3cret"), "{}", problem.message);
    }
}

#[test]
fn deactivating_writes_the_state_alone() {
    let account = account(&json!({"kubeconfig": {"file": "/k"}}), &json!({}));
    let plan = plan(AccountVerb::Deactivate, None, &account).expect("good");
    assert_eq!(patch_of(plan), Some((json!({"state": "INACTIVE"}), false)));
}

#[test]
fn spec_that_violates_a_rule_is_400() {
    let account = account(&json!({"kubeconfig": {"file": "/k"}, "kinds": ["pod"]}), &json!({}));
    let body = given(&json!({"name": "a", "omitKinds": ["job"]}));
    let problem = plan(AccountVerb::Put, Some(&body), &account).err().expect("refused");
    assert_eq!(problem.status.as_u16(), 400);
    assert!(problem.message.contains("exclude each other"), "{}", problem.message);
}

#[test]
fn static_accounts_are_400_and_those_of_gitops_409_unless_forced() {
    let spec = json!({"kubeconfig": {"file": "/k"}});
    let of_agent = account(&spec, &json!({"kubesvc.io/origin": "agent"}));
    let of_flux = account(&spec, &json!({"kustomize.toolkit.fluxcd.io/name": "apps"}));
    for request in [AccountVerb::Activate, AccountVerb::Deactivate, AccountVerb::Put, AccountVerb::Delete] {
        assert_eq!(plan(request, None, &of_agent).err().expect("refused").status.as_u16(), 400);
    }
    for request in [AccountVerb::Deactivate, AccountVerb::Delete] {
        let problem = plan(request, None, &of_flux).err().expect("refused");
        assert_eq!(problem.status.as_u16(), 409);
        assert!(problem.message.contains("Flux Kustomization apps"), "{}", problem.message);
        let forced = AccountChange {
            caller: &RestCaller::kubesvc(),
            name: "a",
            request,
            given: None,
            sets: true,
            force: true,
        };
        assert!(forced.judge(Some(&of_flux)).expect("forced").writes());
    }
    assert!(!plan(AccountVerb::Activate, None, &of_flux).expect("nothing to write").writes());
}

#[test]
fn an_unknown_account_is_400_and_404_for_a_put() {
    for (request, status) in
        [(AccountVerb::Activate, 400), (AccountVerb::Delete, 400), (AccountVerb::Put, 404)]
    {
        let change = AccountChange {
            caller: &RestCaller::kubesvc(),
            name: "x",
            request,
            given: None,
            sets: true,
            force: false,
        };
        let problem = change.judge(None).err().expect("refused");
        assert_eq!(problem.status.as_u16(), status);
        assert!(problem.message.contains("\"x\""));
    }
}
