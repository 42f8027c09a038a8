//! Adapter of the hub's ports for cached objects to the settings: how the rows of an account are named, and by which
//! rules its agent chooses what it watches. The names and rules themselves are `kubesvc_core::cache`.

use std::sync::Arc;

use super::settings::CacheSettings;
use crate::account_caches::AccountDefaults;
use crate::hub::{CachingRuleSource, RowMapper};
use crate::informers::AccountIndex;
use kubesvc_core::KubesvcAccount;
use kubesvc_core::cache::classes::KindClasses;
use kubesvc_core::cache::object_row::{RowError, RowNaming};
use kubesvc_core::cache::rules::{AccountRules, DEFAULT_AUDIT_MS, OperatorRules, to_wire};
use kubesvc_core::wire::common::Scope;
use kubesvc_core::wire::ops::CachingRules;

/// Rows and rules by the operator's settings and the accounts' specs.
pub(super) struct CachingAdapter {
    rules: OperatorRules,
    defaults: AccountDefaults,
    accounts: Arc<AccountIndex>,
}

impl CachingAdapter {
    pub(super) fn new(settings: &CacheSettings, accounts: &Arc<AccountIndex>) -> Arc<Self> {
        let CacheSettings { rules, defaults, .. } = settings.clone();
        Arc::new(Self { rules, defaults, accounts: Arc::clone(accounts) })
    }

    fn classes(&self, account: &KubesvcAccount) -> KindClasses {
        self.defaults.classes(account.account_name(), &account.spec.custom_resources)
    }
}

impl RowMapper for CachingAdapter {
    fn naming(&self, account: &str, scope: &Scope) -> Result<RowNaming, RowError> {
        // The classes are those of the last spec seen. Rules made of a later one have another mapping, by which the
        // agent declares the scope anew under another shape.
        let of_name = self.accounts.by_account_name(account);
        let classes = match of_name.first() {
            Some(account) => self.classes(account),
            None => self.defaults.classes(account, &[]),
        };
        RowNaming::new(account, scope, &classes)
    }
}

impl CachingRuleSource for CachingAdapter {
    fn rules(&self, account: &KubesvcAccount) -> CachingRules {
        let only_managed = self.defaults.only_spinnaker_managed(account.account_name());
        // What is found in a spec concerns whoever wrote it, and is no reason to cache nothing.
        let (of_account, _) = AccountRules::from_spec(&account.spec, only_managed);
        to_wire(&self.rules, &of_account, &self.classes(account), DEFAULT_AUDIT_MS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operator::settings;
    use kubesvc_core::KubesvcAccountSpec;
    use kubesvc_core::cache::object_row::NamedObject;
    use kubesvc_core::spec::{CustomResourceTreatment, SpinnakerKind};
    use kubesvc_core::wire::events::Event;
    use kubesvc_runtime::config::UnknownKeys;

    fn rows(accounts: &[KubesvcAccount]) -> Arc<CachingAdapter> {
        let index = Arc::new(AccountIndex::default());
        accounts.iter().for_each(|account| index.show(account.clone()));
        let settings = settings::load(&[], &|_| None, UnknownKeys::Error).expect("the defaults").settings;
        CachingAdapter::new(&settings.cache, &index)
    }

    fn account(spec: KubesvcAccountSpec) -> KubesvcAccount {
        let mut account = KubesvcAccount::new("one", spec);
        account.metadata.namespace = Some("ns".to_owned());
        account.metadata.uid = Some("uid-one".to_owned());
        account
    }

    fn scope(group: &str, kind: &str) -> Scope {
        Scope { group: group.into(), version: "v1".into(), kind: kind.into(), ..Scope::default() }
    }

    fn event() -> Event {
        let meta = [("moniker.spinnaker.io/application".to_owned(), "\"shop\"".to_owned())];
        Event {
            namespace: "default".into(),
            name: "shop-v001".into(),
            uid: "u".into(),
            rv: "7".into(),
            hash: vec![1; 32],
            meta: meta.into(),
            ..Event::default()
        }
    }

    fn row(rows: &CachingAdapter, scope: &Scope) -> NamedObject {
        let rows = rows.naming("one", scope).expect("the scope has rows");
        rows.object_row(&event()).expect("the event has a row")
    }

    #[test]
    fn an_event_becomes_a_row_with_its_names_and_relations() {
        let rows = rows(&[]);
        let row = row(&rows, &scope("apps", "ReplicaSet"));
        assert_eq!((row.kind.as_str(), row.api_version.as_str()), ("replicaSet", "apps/v1"));
        assert_eq!((row.application.as_deref(), row.resource_version.as_str()), (Some("shop"), "7"));
        let types: Vec<_> =
            row.relations.relations.iter().map(|relation| relation.to_type.as_str()).collect();
        assert!(types.contains(&"applications"), "{types:?}");
        let named = rows.naming("one", &scope("apps", "ReplicaSet")).expect("the scope has rows");
        assert_eq!(named.kind(), "replicaSet");
        assert_eq!(named.id("default", "shop-v001").as_deref(), Ok(row.id.as_str()));
    }

    #[test]
    fn what_has_no_row_says_why() {
        let rows = rows(&[]);
        let refused = rows.naming("one", &scope("apps", "")).expect_err("it has no kind");
        assert!(refused.to_string().contains("kind"), "{refused}");
        let named = rows.naming("one", &scope("", "Pod")).expect("the scope has rows");
        let unnamed = Event { name: String::new(), ..event() };
        assert!(named.object_row(&unnamed).is_err());
        assert!(named.id("default", "").is_err());
    }

    #[test]
    fn custom_resources_of_the_account_change_its_rows_and_its_rules() {
        let treatment = CustomResourceTreatment {
            kubernetes_kind: "Rollout.argoproj.io".into(),
            spinnaker_kind: Some(SpinnakerKind::ServerGroupManagers),
            ..CustomResourceTreatment::default()
        };
        let spec = KubesvcAccountSpec { custom_resources: vec![treatment], ..KubesvcAccountSpec::default() };
        let (plain, custom) = (account(KubesvcAccountSpec::default()), account(spec));
        let of = |account: &KubesvcAccount| {
            let rows = rows(std::slice::from_ref(account));
            (
                row(&rows, &scope("argoproj.io", "Rollout")).relations.relations.len(),
                rows.rules(account).mapping,
            )
        };
        let ((few, before), (more, after)) = (of(&plain), of(&custom));
        assert!(more > few, "its application and cluster");
        assert_ne!(before, after, "the agent declares another shape");
    }

    #[test]
    fn rules_are_the_operators_with_what_the_account_says() {
        let spec = KubesvcAccountSpec {
            only_spinnaker_managed: Some(true),
            max_resumable_resource_age_ms: Some(60_000),
            ..KubesvcAccountSpec::default()
        };
        let rules = rows(&[]).rules(&account(spec));
        assert!(rules.default_kinds && !rules.all && rules.only_spinnaker_managed);
        assert_eq!((rules.max_resumable_age_ms, rules.audit_ms), (60_000, DEFAULT_AUDIT_MS));
    }
}
