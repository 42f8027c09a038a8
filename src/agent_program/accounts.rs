//! Conversion of the accounts of the agent's own file to wire messages.

use std::collections::HashMap;

use crate::account::policy::AccountPolicy;
use crate::config::agent::{AccountSettings, AccountSource};
use crate::wire::common::AccountRef;
use crate::wire::ops::account_spec::Credential;
use crate::wire::ops::{AccountSpec, CustomResourceDefinition};

/// The wire form of an account. It has a name but no uid.
pub(super) fn spec(account: &AccountSettings) -> AccountSpec {
    let definitions = account.custom_resource_definitions.iter().map(|definition| CustomResourceDefinition {
        kind: definition.kind.clone(),
        cluster_scoped: definition.cluster_scoped,
    });
    AccountSpec {
        account: Some(AccountRef { name: account.name.clone(), ..AccountRef::default() }),
        credential: Some(match &account.source {
            // Paths in the settings are text.
            AccountSource::File(path) => Credential::File(path.to_string_lossy().into_owned()),
            AccountSource::ServiceAccount => Credential::ServiceAccount(true),
        }),
        context: account.context.clone().unwrap_or_default(),
        insecure: account.insecure,
        namespaces: account.namespaces.clone(),
        omit_namespaces: account.omit_namespaces.clone(),
        kinds: account.kinds.clone(),
        omit_kinds: account.omit_kinds.clone(),
        only_namespaced_resources: account.only_namespaced_resources,
        custom_resource_definitions: definitions.collect(),
        only_spinnaker_managed: account.only_spinnaker_managed,
        metrics: account.metrics,
        no_proxy: account.no_proxy,
        max_resumable_resource_age_ms: account.max_resumable_resource_age_ms.unwrap_or_default(),
        read_roles: account.permissions.read.clone(),
        write_roles: account.permissions.write.clone(),
    }
}

/// The policy of each account in the file, by account name.
pub(super) fn policies(accounts: &[AccountSettings]) -> HashMap<String, AccountPolicy> {
    accounts.iter().map(|account| (account.name.clone(), account.policy.clone())).collect()
}

/// The wire form of all accounts.
pub(super) fn specs(accounts: &[AccountSettings]) -> Vec<AccountSpec> {
    accounts.iter().map(spec).collect()
}
