//! An agent's list of its own accounts: collected from its frames, converted into specs, and indexed for comparison.
//!
//! A list that exceeds a bound is refused as a whole, once, up to its last frame; the previous list stays in force.

use std::collections::{BTreeMap, HashSet};

use prost::Message;

use crate::hub::static_accounts::refusal;
use kubesvc_core::spec::{ExposedCustomResource, KubeconfigSource, Scope};
use kubesvc_core::spinnaker::validate;
use kubesvc_core::wire::common::failure::Class;
use kubesvc_core::wire::ops::account_spec::Credential;
use kubesvc_core::wire::ops::{self, AccountSpec, StaticAnswer};
use kubesvc_core::wire::{MAX_ACCOUNTS_IN_BATCH, MAX_BATCH_BYTES};
use kubesvc_core::{KubesvcAccount, KubesvcAccountSpec, ZoneId, object_names};

/// Maximum number of accounts in a list.
const MAX_ACCOUNTS: usize = 1000;
/// Maximum size of a list, in bytes.
const MAX_BYTES: usize = 8 * 1024 * 1024;
/// Allowance for the size of a frame without its accounts.
const FRAME_OVERHEAD_BYTES: usize = 1024;

/// Result of one frame.
#[derive(Debug, PartialEq)]
pub(super) enum ListingStep {
    /// More frames follow, or the rest of a refused list.
    More,
    Complete(Vec<AccountSpec>),
    Refused(ListTooLarge),
}

/// The bound that a list exceeds, and what to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ListTooLarge {
    #[error(
        "the agent's file lists more than {MAX_ACCOUNTS} accounts; declare the others as KubesvcAccounts"
    )]
    Accounts,
    #[error("a frame lists {0} accounts; at most {MAX_ACCOUNTS_IN_BATCH} may be: upgrade the agent")]
    AccountsInFrame(usize),
    #[error("a frame of accounts has {0} bytes; at most {MAX_BATCH_BYTES} may be")]
    BytesInFrame(usize),
    #[error("the agent's accounts take more than {MAX_BYTES} bytes; shorten its file")]
    Bytes,
}

/// A list that is being received.
#[derive(Debug, Default)]
pub(super) struct IncomingList {
    accounts: Vec<AccountSpec>,
    bytes: usize,
    refused: bool,
}

impl IncomingList {
    /// Adds a frame.
    pub(crate) fn take(&mut self, frame: ops::StaticAccounts) -> ListingStep {
        if self.refused {
            self.refused = !frame.complete;
            return ListingStep::More;
        }
        if let Err(why) = self.check(&frame) {
            *self = Self { refused: !frame.complete, ..Self::default() };
            return ListingStep::Refused(why);
        }
        self.accounts.extend(frame.accounts);
        if frame.complete { ListingStep::Complete(std::mem::take(self).accounts) } else { ListingStep::More }
    }

    fn check(&mut self, frame: &ops::StaticAccounts) -> Result<(), ListTooLarge> {
        let (accounts, bytes) = (frame.accounts.len(), frame.encoded_len());
        self.bytes += bytes;
        let all = self.accounts.len() + accounts;
        if all > MAX_ACCOUNTS {
            return Err(ListTooLarge::Accounts);
        }
        if accounts > MAX_ACCOUNTS_IN_BATCH {
            return Err(ListTooLarge::AccountsInFrame(accounts));
        }
        if bytes > MAX_BATCH_BYTES + FRAME_OVERHEAD_BYTES {
            return Err(ListTooLarge::BytesInFrame(bytes));
        }
        if self.bytes > MAX_BYTES {
            return Err(ListTooLarge::Bytes);
        }
        Ok(())
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct ValidEntry {
    pub(crate) name: String,
    /// The spec from the file, pinned to the agent's zone.
    pub(crate) spec: KubesvcAccountSpec,
}

/// An entry, or its refusal.
pub(super) type ListedEntry = Result<ValidEntry, StaticAnswer>;

/// Converts a list for a zone: valid entries, and a refusal for each invalid one. Of two entries with one name the
/// first counts.
pub(crate) fn read(accounts: Vec<AccountSpec>, zone: &ZoneId) -> Vec<ListedEntry> {
    let mut names = HashSet::new();
    let entries = accounts.into_iter().map(|sent| {
        let listed = one(sent, zone)?;
        if !names.insert(listed.name.clone()) {
            let message = format!("account {:?} is in the file twice; remove one of the two", listed.name);
            return Err(refusal(&listed.name, Class::Conflict, message));
        }
        Ok(listed)
    });
    entries.collect()
}

fn one(sent: AccountSpec, zone: &ZoneId) -> ListedEntry {
    let name = sent.account.map(|account| account.name).unwrap_or_default();
    let refuse = |message: String| refusal(&name, Class::BadReference, message);
    if name.is_empty() || name.chars().nth(255).is_some() || name.chars().any(char::is_control) {
        let message = "name must have 1 to 255 characters, and no control character among them";
        return Err(refuse(message.to_owned()));
    }
    let kubeconfig = match sent.credential {
        Some(Credential::File(path)) => KubeconfigSource { file: Some(path), ..Default::default() },
        Some(Credential::ServiceAccount(true)) => {
            KubeconfigSource { service_account: Some(true), ..Default::default() }
        }
        Some(Credential::Kubeconfig(_)) => {
            let message =
                "kubeconfig: the contents of a kubeconfig are not taken from an agent; name its file";
            return Err(refusal(&name, Class::BadKubeconfig, message.to_owned()));
        }
        Some(Credential::ServiceAccount(false)) | None => {
            return Err(refuse("give exactly one of kubeconfigFile and serviceAccount: true".to_owned()));
        }
    };
    let age = i64::try_from(sent.max_resumable_resource_age_ms).unwrap_or(i64::MAX);
    let spec = KubesvcAccountSpec {
        account_name: (object_names::object_name(&name) != name).then(|| name.clone()),
        zone_id: Some(zone.to_owned()),
        kubeconfig,
        context: (!sent.context.is_empty()).then_some(sent.context),
        insecure: sent.insecure.then_some(true),
        namespaces: sent.namespaces,
        omit_namespaces: sent.omit_namespaces,
        kinds: sent.kinds,
        omit_kinds: sent.omit_kinds,
        only_namespaced_resources: sent.only_namespaced_resources.then_some(true),
        custom_resource_definitions: sent.custom_resource_definitions.into_iter().map(exposed).collect(),
        only_spinnaker_managed: sent.only_spinnaker_managed.then_some(true),
        metrics: sent.metrics.then_some(true),
        no_proxy: sent.no_proxy.then_some(true),
        max_resumable_resource_age_ms: (age > 0).then_some(age),
        permissions: permissions(sent.read_roles, sent.write_roles),
        ..Default::default()
    };
    let problems = problems(&spec);
    if problems.is_empty() { Ok(ValidEntry { name, spec }) } else { Err(refuse(problems.join("; "))) }
}

/// Checks what the API server would refuse.
fn problems(spec: &KubesvcAccountSpec) -> Vec<String> {
    const MAX_ROLES: usize = 1000;
    let mut problems = validate(spec);
    for (right, roles) in &spec.permissions {
        let legal = |role: &String| !role.is_empty() && role.chars().nth(255).is_none();
        if roles.len() > MAX_ROLES || !roles.iter().all(legal) {
            problems.push(format!(
                "spec.permissions.{right} must have at most {MAX_ROLES} roles of 1 to 255 characters"
            ));
        }
    }
    problems
}

fn exposed(sent: ops::CustomResourceDefinition) -> ExposedCustomResource {
    ExposedCustomResource { kind: sent.kind, scope: sent.cluster_scoped.then_some(Scope::Cluster) }
}

fn permissions(read: Vec<String>, write: Vec<String>) -> BTreeMap<String, Vec<String>> {
    let given = [("READ", read), ("WRITE", write)].into_iter().filter(|(_, roles)| !roles.is_empty());
    given.map(|(right, roles)| (right.to_owned(), roles)).collect()
}

/// Digest of name and source of each account, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Listing(BTreeMap<String, String>);

impl Listing {
    /// Indexes all named entries, including refused ones. Of two entries with one name the first counts.
    pub(crate) fn of(accounts: &[AccountSpec]) -> Self {
        let mut by_name = BTreeMap::new();
        for sent in accounts {
            let name = sent.account.as_ref().map(|account| account.name.as_str()).unwrap_or_default();
            if !name.is_empty() {
                by_name
                    .entry(name.to_owned())
                    .or_insert_with(|| object_names::source_digest(name, &source(sent)));
            }
        }
        Self(by_name)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether it has the account, by name and source.
    pub(crate) fn has(&self, account: &KubesvcAccount) -> bool {
        let name = account.account_name();
        self.0.get(name).is_some_and(|listed| *listed == object_names::source_digest(name, &account.spec))
    }

    /// Whether it has an account of this name.
    pub(super) fn has_name(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Returns the digests of the names, sorted.
    pub(crate) fn name_digests(&self) -> Vec<String> {
        sorted(self.0.keys().map(|name| object_names::digest(name)))
    }

    /// Returns the digests of names and sources, sorted.
    pub(crate) fn source_digests(&self) -> Vec<String> {
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
pub(super) mod tests;
