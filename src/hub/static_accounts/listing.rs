//! Names and sources of an agent's own accounts, for comparison.

use std::collections::BTreeMap;

use crate::account::spec::KubeconfigSource;
use crate::account::{KubesvcAccount, KubesvcAccountSpec, names};
use crate::wire::ops::AccountSpec;
use crate::wire::ops::account_spec::Credential;

/// Digest of name and source of each account, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::hub) struct Listing(BTreeMap<String, String>);

impl Listing {
    /// Indexes all named entries, including refused ones. Of two entries with one name the first counts.
    pub(in crate::hub) fn of(accounts: &[AccountSpec]) -> Self {
        let mut by_name = BTreeMap::new();
        for sent in accounts {
            let name = sent.account.as_ref().map(|account| account.name.as_str()).unwrap_or_default();
            if !name.is_empty() {
                by_name.entry(name.to_owned()).or_insert_with(|| names::source_digest(name, &source(sent)));
            }
        }
        Self(by_name)
    }

    /// Returns the number of accounts.
    pub(in crate::hub) fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether it has the account, by name and source.
    pub(in crate::hub) fn has(&self, account: &KubesvcAccount) -> bool {
        let name = account.account_name();
        self.0.get(name).is_some_and(|listed| *listed == names::source_digest(name, &account.spec))
    }

    /// Whether it has an account of this name.
    pub(in crate::hub) fn has_name(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Returns the digests of the names, sorted.
    pub(in crate::hub) fn name_digests(&self) -> Vec<String> {
        sorted(self.0.keys().map(|name| names::digest(name)))
    }

    /// Returns the digests of names and sources, sorted.
    pub(in crate::hub) fn source_digests(&self) -> Vec<String> {
        sorted(self.0.values().cloned())
    }
}

fn sorted(digests: impl Iterator<Item = String>) -> Vec<String> {
    let mut digests: Vec<_> = digests.collect();
    digests.sort();
    digests
}

/// Returns the part of the spec that defines the kubeconfig.
fn source(sent: &AccountSpec) -> KubesvcAccountSpec {
    let mut kubeconfig = KubeconfigSource::default();
    match &sent.credential {
        Some(Credential::File(path)) => kubeconfig.file = Some(path.clone()),
        Some(Credential::ServiceAccount(own)) => kubeconfig.service_account = own.then_some(true),
        Some(Credential::Kubeconfig(_)) | None => {}
    }
    KubesvcAccountSpec {
        kubeconfig,
        context: (!sent.context.is_empty()).then(|| sent.context.clone()),
        insecure: sent.insecure.then_some(true),
        ..KubesvcAccountSpec::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hub::static_accounts::entry::tests::sent;
    use crate::hub::static_accounts::read;

    #[test]
    fn an_agent_lists_the_account_that_its_own_entry_makes_and_none_that_differs_in_its_source() {
        let entry = AccountSpec { context: "c".into(), metrics: true, ..sent("Prod East") };
        let made = read(vec![entry.clone()], "z").remove(0).expect("it is good");
        let account = |name: &str| {
            let mut account = KubesvcAccount::new("x", made.spec.clone());
            account.spec.account_name = Some(name.to_owned());
            account
        };
        assert!(Listing::of(std::slice::from_ref(&entry)).has(&account("Prod East")));
        assert!(!Listing::of(std::slice::from_ref(&entry)).has(&account("Prod West")));
        let others = [
            AccountSpec { insecure: true, ..entry.clone() },
            AccountSpec { context: String::new(), ..entry.clone() },
            AccountSpec { credential: Some(Credential::File("/other".into())), ..entry.clone() },
            AccountSpec { credential: Some(Credential::ServiceAccount(true)), ..entry },
        ];
        for other in others {
            let listing = Listing::of(&[other]);
            assert!(listing.has_name("Prod East") && !listing.has(&account("Prod East")));
        }
    }
}
