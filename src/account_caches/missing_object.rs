//! Which cached kind a person means, and why an object has no row. Pure.

use std::collections::BTreeMap;

use serde::Serialize;
use utoipa::ToSchema;

use kubesvc_core::age;
use kubesvc_core::cache::kind_names::KindSelector;
use kubesvc_core::cache::left_out::why_left_out;
use kubesvc_core::cache::left_out_objects::StoredLeftOut;
use kubesvc_core::cache::native;
use kubesvc_core::cache::rules::{AccountRules, OperatorRules};
use kubesvc_store::{ScopeState, StoredScope};

/// Why an object has no row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum MissingReason {
    /// A setting leaves out its kind or its namespace, or no row can be made of it.
    LeftOut,
    /// No agent streams the account's objects.
    NoAgent,
    /// The cluster does not serve its kind, or the agent does not watch it.
    NotWatched,
    /// Its kind cannot be read now, usually for want of a right.
    Unreadable,
    /// Its kind is being listed, or waits for its turn.
    Listing,
    /// The cluster had no such object at the version that is cached, or the object itself asks to be left out.
    NotThere,
}

/// Why an object has no row, in a word and in a sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MissingObject {
    pub(super) reason: MissingReason,
    pub(super) message: String,
    /// The setting that leaves it out.
    pub(super) setting: Option<&'static str>,
}

/// The kind that a person named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ChosenKind {
    /// A kind that is watched, or that Clouddriver knows: `kubesvc_cache.kind`.
    Known(String),
    /// Several kinds that are watched: their `kubesvc_cache.kind`.
    Ambiguous(Vec<String>),
    /// No kind that is watched or known.
    Unknown,
}

/// Finds the kind of a name among the scopes of an account. A name without a group means the native kind, if that has
/// the name.
pub(super) fn choose_kind(name: &KindSelector, scopes: &[StoredScope]) -> ChosenKind {
    let watched = scopes.iter().filter(|scope| name.names(&scope.key.group, &scope.key.kind));
    let mut kinds: BTreeMap<&str, bool> = BTreeMap::new();
    for scope in watched {
        kinds.insert(&scope.cached_kind, native::is_native(&scope.key.group, &scope.key.kind));
    }
    let known = native::native_kind(name.kind())
        .filter(|native| name.group().is_none_or(|group| group == native.home))
        .map(|native| native.name);
    let native = kinds.iter().find(|(_, native)| **native).map(|(kind, _)| *kind).or(known);
    match (native, kinds.len()) {
        (Some(native), _) => ChosenKind::Known(native.to_owned()),
        (None, 0) => ChosenKind::Unknown,
        (None, 1) => ChosenKind::Known(kinds.into_keys().collect()),
        (None, _) => ChosenKind::Ambiguous(kinds.into_keys().map(str::to_owned).collect()),
    }
}

/// What is known about an object that has no row.
pub(super) struct MissingFacts<'a> {
    pub(super) operator: &'a OperatorRules,
    pub(super) account: &'a AccountRules,
    /// The live scopes of the account.
    pub(super) scopes: &'a [StoredScope],
    pub(super) kind: &'a KindSelector,
    /// Empty: none was given.
    pub(super) namespace: &'a str,
    pub(super) name: &'a str,
    /// Whether an agent was elected to stream the account's objects.
    pub(super) has_agent: bool,
    pub(super) now_ms: i64,
}

/// Says why an object has no row. Settings come first: they hold whatever the cluster has.
pub(super) fn why_missing(facts: &MissingFacts<'_>) -> MissingObject {
    let because = |reason, message: String| MissingObject { reason, message, setting: None };
    let of_kind: Vec<_> = facts.scopes.iter().filter(|scope| is_of_kind(scope, facts.kind)).collect();
    let covers = |scope: &&StoredScope| {
        let of = &scope.key.namespace;
        of.is_empty() || facts.namespace == *of
    };
    let covering = of_kind.iter().copied().find(covers);
    if let Some(missing) = left_out(facts, of_kind.first().copied()) {
        return missing;
    }
    let Some(scope) = covering else {
        if !facts.has_agent {
            let message = "no agent is elected to stream the account's objects; see kubectl kubesvc why";
            return because(MissingReason::NoAgent, message.to_owned());
        }
        if facts.scopes.is_empty() {
            let message = "the account's agent has not said yet what it watches; try again";
            return because(MissingReason::Listing, message.to_owned());
        }
        if facts.namespace.is_empty() && !of_kind.is_empty() {
            let message = "the account watches this kind in single namespaces; give the object's namespace";
            return because(MissingReason::NotWatched, message.to_owned());
        }
        let message = "no agent watches its kind: the cluster does not serve it, or its API cannot be listed and \
                       watched; the account's condition Caching and the agent's log say which";
        return because(MissingReason::NotWatched, message.to_owned());
    };
    let left_out = scope.problem.as_deref().and_then(StoredLeftOut::read);
    match (&scope.problem, left_out) {
        (Some(problem), None) => return because(MissingReason::Unreadable, problem.clone()),
        (_, Some(left_out)) if let Some(why) = left_out.why(facts.namespace, facts.name) => {
            let message = format!("the agent leaves it out, since no row can be made of it: {why}");
            return because(MissingReason::LeftOut, message);
        }
        _ => {}
    }
    if scope.state == ScopeState::Listing {
        let message = "its kind is being listed, or waits for its turn; try again";
        return because(MissingReason::Listing, message.to_owned());
    }
    let unnamed = left_out.map_or(0, |left_out| left_out.unnamed());
    because(MissingReason::NotThere, not_there(facts, scope, unnamed))
}

fn is_of_kind(scope: &StoredScope, kind: &KindSelector) -> bool {
    kind.names(&scope.key.group, &scope.key.kind)
}

/// Settings that leave the object out. The kind is spelled as the cluster has it, if that is known.
fn left_out(facts: &MissingFacts<'_>, scope: Option<&StoredScope>) -> Option<MissingObject> {
    let (kind, group) = match scope {
        Some(scope) => (scope.key.kind.as_str(), Some(scope.key.group.as_str())),
        None => (facts.kind.kind(), facts.kind.group()),
    };
    // Without a namespace it is not known whether the object has one.
    let is_cluster_wide = facts.namespace.is_empty();
    let found = why_left_out(facts.operator, facts.account, kind, group, facts.namespace)?;
    if is_cluster_wide && scope.is_some() {
        return None;
    }
    let setting = found.setting.map(kubesvc_core::cache::findings::Setting::name);
    let message = format!("it is left out: {}", found.reason());
    Some(MissingObject { reason: MissingReason::LeftOut, message, setting })
}

/// `unnamed`: objects of the scope that are left out and of which it is not known which they are.
fn not_there(facts: &MissingFacts<'_>, scope: &StoredScope, unnamed: u32) -> String {
    let version = scope.resource_version.as_deref().unwrap_or_default();
    let seconds = facts.now_ms.saturating_sub(scope.last_updated_ms) / 1000;
    let mut message = format!(
        "the cluster had no such object at version {version}, stored {} ago, or the object's annotation \
         caching.spinnaker.io/ignore is \"true\"",
        age::seconds(seconds)
    );
    if facts.account.only_spinnaker_managed {
        message.push_str(
            ", or it has no annotation moniker.spinnaker.io/application while onlySpinnakerManaged is set",
        );
    }
    if unnamed > 0 {
        message.push_str(&format!(
            ", or it is among the objects of its kind, at least {unnamed}, of which no row can be made and which are not \
             named; the agent's log names them"
        ));
    }
    if facts.namespace.is_empty() {
        message.push_str("; if it has a namespace, give that too");
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;
    use kubesvc_core::KubesvcAccountSpec;
    use kubesvc_core::cache::rules::OperatorRuleFields;
    use kubesvc_store::ScopeKey;

    fn scope(group: &str, kind: &str, namespace: &str) -> StoredScope {
        StoredScope {
            key: ScopeKey { namespace: namespace.into(), group: group.into(), kind: kind.into() },
            cached_kind: native::kind_name(group, kind),
            account_uid: "uid".into(),
            resource_version: Some("7".into()),
            state: ScopeState::Synced,
            shape: None,
            filter: None,
            objects: Some(1),
            problem: None,
            last_updated_ms: 0,
        }
    }

    fn named(text: &str) -> KindSelector {
        KindSelector::parse(text).expect("a kind")
    }

    fn chosen(text: &str, scopes: &[StoredScope]) -> ChosenKind {
        choose_kind(&named(text), scopes)
    }

    #[test]
    fn a_kind_is_found_in_any_case_and_with_or_without_its_group() {
        let scopes = [
            scope("apps", "Deployment", ""),
            scope("serving.knative.dev", "Service", ""),
            scope("a.example", "Rollout", ""),
            scope("b.example", "Rollout", ""),
            scope("argoproj.io", "Sensor", "x"),
        ];
        let known = |kind: &str| ChosenKind::Known(kind.to_owned());
        for text in ["deployment", "DEPLOYMENT", "deploy", "Deployment.apps"] {
            assert_eq!(chosen(text, &scopes), known("deployment"), "{text}");
        }
        assert_eq!(
            chosen("service", &scopes),
            known("service"),
            "the native kind, also where it is not watched"
        );
        assert_eq!(chosen("service.serving.knative.dev", &scopes), known("Service.serving.knative.dev"));
        assert_eq!(chosen("sensor", &scopes), known("Sensor.argoproj.io"));
        let both = ["Rollout.a.example", "Rollout.b.example"].map(str::to_owned).to_vec();
        assert_eq!(chosen("rollout", &scopes), ChosenKind::Ambiguous(both));
        assert_eq!(chosen("rollout.b.example", &scopes), known("Rollout.b.example"));
        assert_eq!(chosen("bananas", &scopes), ChosenKind::Unknown);
    }

    fn missing(
        kinds: &[&str],
        spec: &KubesvcAccountSpec,
        scopes: &[StoredScope],
        (kind, namespace): (&str, &str),
    ) -> MissingObject {
        missing_named(kinds, spec, scopes, (kind, namespace, "web"))
    }

    fn missing_named(
        kinds: &[&str],
        spec: &KubesvcAccountSpec,
        scopes: &[StoredScope],
        (kind, namespace, name): (&str, &str, &str),
    ) -> MissingObject {
        let kinds: Vec<_> = kinds.iter().map(|kind| (*kind).to_owned()).collect();
        let settings = OperatorRuleFields { cache_kinds: Some(&kinds), ..OperatorRuleFields::default() };
        let (operator, _) = OperatorRules::read(&settings);
        let (account, _) = AccountRules::from_spec(spec, false);
        why_missing(&MissingFacts {
            operator: &operator,
            account: &account,
            scopes,
            kind: &named(kind),
            namespace,
            name,
            has_agent: true,
            now_ms: 90_000,
        })
    }

    #[test]
    fn the_setting_that_leaves_an_object_out_is_named() {
        let scopes = [scope("apps", "Deployment", "")];
        let plain = KubesvcAccountSpec::default();
        let not_named = missing(&["deployment"], &plain, &scopes, ("configMap", "shop"));
        assert_eq!(not_named.reason, MissingReason::LeftOut);
        assert_eq!(not_named.setting, Some("kubesvc.cache.cacheKinds"));
        assert!(not_named.message.contains("kubesvc.cache.cacheKinds does not name it"), "{not_named:?}");
        let omitting = KubesvcAccountSpec { omit_namespaces: vec!["shop".into()], ..plain };
        let omitted = missing(&["deployment"], &omitting, &scopes, ("deployment", "shop"));
        assert_eq!((omitted.reason, omitted.setting), (MissingReason::LeftOut, Some("omitNamespaces")));
    }

    #[test]
    fn what_the_settings_allow_is_missing_for_what_its_scope_says() {
        let plain = KubesvcAccountSpec::default();
        let of = |scope: StoredScope| missing(&["deployment"], &plain, &[scope], ("deploy", "shop"));
        let there = scope("apps", "Deployment", "");
        let not_there = of(there.clone());
        assert_eq!(not_there.reason, MissingReason::NotThere);
        assert!(not_there.message.contains("at version 7, stored 90s ago"), "{not_there:?}");
        let listing = of(StoredScope { state: ScopeState::Listing, ..there.clone() });
        assert_eq!(listing.reason, MissingReason::Listing);
        let problem = Some("deployments may not be listed".to_owned());
        let unreadable = of(StoredScope { problem: problem.clone(), ..there.clone() });
        assert_eq!((unreadable.reason, Some(unreadable.message)), (MissingReason::Unreadable, problem));
        let unwatched = missing(&["deployment", "pod"], &plain, &[there], ("pod", "shop"));
        assert_eq!(unwatched.reason, MissingReason::NotWatched);
        let unsaid = missing(&["pod"], &plain, &[], ("pod", "shop"));
        assert_eq!(unsaid.reason, MissingReason::Listing);
    }

    #[test]
    fn object_of_which_no_row_can_be_made_is_left_out_and_others_of_its_kind_are_not() {
        let problem =
            "3 objects are left out: \"shop/web\": it has no uid; \"shop/api\": it is odd; and 1 more";
        let scopes = [StoredScope { problem: Some(problem.into()), ..scope("apps", "Deployment", "") }];
        let plain = KubesvcAccountSpec::default();
        let of = |name| missing_named(&["deployment"], &plain, &scopes, ("deploy", "shop", name));
        let left_out = of("web");
        assert_eq!((left_out.reason, left_out.setting), (MissingReason::LeftOut, None));
        assert!(left_out.message.ends_with("no row can be made of it: it has no uid"), "{left_out:?}");
        let other = of("other");
        assert_eq!(other.reason, MissingReason::NotThere);
        assert!(other.message.contains("at least 1, of which no row can be made"), "{other:?}");
    }
}
