//! A small cluster and short forms of settings, for the tests of this folder.

use super::findings::Finding;
use super::rules::{AccountRules, OperatorRuleFields, OperatorRules};
use super::selection::{Selection, ServedKind, select};
use crate::spec::{ExposedCustomResource, KubesvcAccountSpec, Scope};

mod golden;
mod keys;
mod kind_names;
mod left_out;
mod properties;
mod rows;
mod selection;
mod settings;

fn served(qualified: &str, namespaced: bool, verbs: &str) -> ServedKind {
    let (kind, group) = qualified.split_once('.').unwrap_or((qualified, ""));
    ServedKind {
        group: group.to_owned(),
        version: "v1".to_owned(),
        kind: kind.to_owned(),
        plural: format!("{}s", kind.to_lowercase()),
        namespaced,
        listable: verbs.contains("list"),
        watchable: verbs.contains("watch"),
    }
}

/// Kinds of a cluster: some native ones, two of one name, and some that cannot be watched.
fn cluster() -> Vec<ServedKind> {
    vec![
        served("Pod", true, "list watch"),
        served("Service", true, "list watch"),
        served("Namespace", false, "list watch"),
        served("ConfigMap", true, "list watch"),
        served("Event", true, "list watch"),
        served("Event.events.k8s.io", true, "list watch"),
        served("ComponentStatus", false, "list"),
        served("Deployment.apps", true, "list watch"),
        served("Ingress.extensions", true, "list watch"),
        served("Ingress.networking.k8s.io", true, "list watch"),
        served("Job.batch", true, "list"),
        served("TokenReview.authentication.k8s.io", false, "create"),
        served("Service.serving.knative.dev", true, "list watch"),
        served("Rollout.argoproj.io", true, "list watch"),
        served("Issuer.cert-manager.io", false, "list watch"),
    ]
}

fn texts(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

fn operator_all() -> OperatorRules {
    OperatorRules::read(&OperatorRuleFields { cache_all: true, ..OperatorRuleFields::default() }).0
}

fn operator_named(kinds: &[&str], omitted: &[&str]) -> OperatorRules {
    let (kinds, omitted) = (texts(kinds), texts(omitted));
    let settings = OperatorRuleFields {
        cache_kinds: Some(&kinds),
        cache_omit_kinds: &omitted,
        ..OperatorRuleFields::default()
    };
    OperatorRules::read(&settings).0
}

fn operator_omitting(omitted: &[&str]) -> OperatorRules {
    let omitted = texts(omitted);
    OperatorRules::read(&OperatorRuleFields { cache_omit_kinds: &omitted, ..OperatorRuleFields::default() }).0
}

fn account(change: impl FnOnce(&mut KubesvcAccountSpec)) -> AccountRules {
    checked_account(change).0
}

fn checked_account(change: impl FnOnce(&mut KubesvcAccountSpec)) -> (AccountRules, Vec<Finding>) {
    let mut spec = KubesvcAccountSpec::default();
    change(&mut spec);
    AccountRules::from_spec(&spec, false)
}

fn naming(kinds: &[&str]) -> AccountRules {
    account(|spec| spec.kinds = texts(kinds))
}

fn exposed(kind: &str, scope: Option<Scope>) -> ExposedCustomResource {
    ExposedCustomResource { kind: kind.to_owned(), scope }
}

/// The scopes' keys.
fn keys_of(selection: &Selection) -> Vec<String> {
    selection.scopes.iter().map(|scope| scope.key().to_string()).collect()
}

fn reasons_of(selection: &Selection) -> Vec<String> {
    selection.left_out.iter().map(ToString::to_string).collect()
}

fn selected(operator: &OperatorRules, account: &AccountRules) -> Vec<String> {
    keys_of(&select(&cluster(), operator, account))
}
