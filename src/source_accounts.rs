//! Accounts that entries of Clouddriver's credentials sources describe: checks an entry by the operator's settings, reads a
//! kubeconfig that a mounted file has, and plans what a migration would do. Of all that, only [`DeclinedAccounts`] writes.

mod declined;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use secrecy::SecretString;
use tokio::sync::Semaphore;

use crate::credentials_sources::{CredentialsSources, read_text_file_below};
use crate::informers::AccountIndex;
pub use declined::{DeclinedAccounts, ReadDeclined};
use kubesvc_clouddriver::definition::{
    Choice, ConversionSettings, EntryCredential, EntryRefusal, FileRoot, MigratedAccount, Reason, Report,
    RootTarget, convert, vet_contents,
};
use kubesvc_clouddriver::migration::{AssessedEntry, DeclinedNames, MigrationSelection, Plan, plan};
use kubesvc_clouddriver::sources::{MergedSources, SourceEntry};
use kubesvc_core::KubesvcAccount;
use kubesvc_core::lifecycle::Tick;
use kubesvc_core::owned_secret::{Contents, OWN_KEY};
use kubesvc_core::source_rules::SourceRules;
use kubesvc_core::spec::OWN_SOURCE;

/// Maximum size of a kubeconfig in a file of the operator, in bytes; the same as of any kubeconfig.
const MAX_KUBECONFIG_BYTES: u64 = 256 * 1024;

/// Turns entries into accounts.
#[derive(Clone)]
pub struct SourceAccounts {
    /// The sources.
    pub sources: Arc<CredentialsSources>,
    /// Index of the accounts as last seen.
    pub accounts: Arc<AccountIndex>,
    /// The accounts that people deleted.
    pub declined: DeclinedAccounts,
    /// Namespace of the accounts.
    pub namespace: String,
    /// Whether the operator watches that namespace.
    pub is_watched: bool,
    /// Which credentials from outside that namespace they may use.
    pub rules: SourceRules,
    /// Where the files are that Clouddriver's accounts name.
    pub file_roots: Arc<[FileRoot]>,
    /// Key of the hashes of entries.
    pub hash_key: HashKey,
    /// Held while somebody asks for a plan: one at a time.
    pub planning: Arc<Semaphore>,
}

/// What the entries of one selection would become, by name. An entry is assessed again when it changes.
#[derive(Default)]
pub struct Assessments(HashMap<String, (Arc<SourceEntry>, Arc<AssessedEntry>)>);

/// Returns the key of the hashes of entries, which the replicas share.
pub type HashKey = Arc<dyn Fn() -> Vec<u8> + Send + Sync>;

/// An account to be created or updated, as its entry describes it.
pub struct SourceAccount {
    /// Name of the account.
    pub name: String,
    /// The object, INACTIVE.
    pub object: KubesvcAccount,
    /// The kubeconfig for the Secret of the account.
    pub kubeconfig: Option<SecretString>,
    /// What a person should know of the entry.
    pub report: Report,
}

impl SourceAccount {
    /// The contents of the Secret of the account.
    pub fn contents(&self) -> Contents<'_> {
        self.kubeconfig.iter().map(|contents| (OWN_KEY, contents)).collect()
    }
}

/// Why an entry becomes no account. No text contains a value of the entry.
#[derive(Debug, thiserror::Error)]
pub enum EntryError {
    /// The entry, or what it names, is refused.
    #[error("{0}")]
    Refused(String),
    /// A mounted file cannot be read now.
    #[error("{0}")]
    Unreadable(String),
}

impl SourceAccounts {
    /// How entries are converted, with this [`HashKey`].
    pub fn conversion<'s>(&'s self, hash_key: &'s [u8]) -> ConversionSettings<'s> {
        ConversionSettings { namespace: &self.namespace, file_roots: &self.file_roots, hash_key }
    }

    /// Refuses an account that may not use its credential.
    fn check(&self, account: &MigratedAccount) -> Result<(), EntryRefusal> {
        let kubeconfig = &account.object.spec.kubeconfig;
        let checked = self.rules.check_source(&self.namespace, OWN_SOURCE, kubeconfig);
        checked.map_err(|failure| EntryRefusal::of(Reason::SourceForbidden, failure.message))
    }

    /// The account that an entry describes, with its kubeconfig.
    pub async fn describe(&self, entry: &SourceEntry, choice: &Choice) -> Result<SourceAccount, EntryError> {
        let hash_key = (self.hash_key)();
        let conversion = convert(entry, choice, self.conversion(&hash_key));
        let refused = |why: String| EntryError::Refused(why);
        let migrated = conversion.account.map_err(|refusal| {
            refused(format!("its entry in credentials source {} is refused: {refusal}", entry.source))
        })?;
        self.check(&migrated).map_err(|refusal| refused(refusal.to_string()))?;
        let MigratedAccount { object, credential } = migrated;
        let kubeconfig = match credential {
            EntryCredential::Contents(contents) => Some(contents),
            EntryCredential::MountedFile(path) => {
                let folders = self.file_roots.iter().filter_map(|root| match &root.to {
                    RootTarget::Folder(folder) => Some(PathBuf::from(folder)),
                    RootTarget::Secret { .. } | RootTarget::Agent(_) => None,
                });
                let folders = folders.collect();
                let contents = read_text_file_below(folders, PathBuf::from(path), MAX_KUBECONFIG_BYTES).await;
                let contents = contents.map_err(|error| {
                    EntryError::Unreadable(format!("{error} (kubesvc.clouddriver.fileRoots)"))
                })?;
                vet_contents(&contents, object.spec.context.as_deref())
                    .map_err(|problem| refused(problem.message))?;
                Some(contents)
            }
            EntryCredential::Reference(_)
            | EntryCredential::SecretKey { .. }
            | EntryCredential::AgentFile(_)
            | EntryCredential::ServiceAccount
            | EntryCredential::FileOnClouddriver(_) => None,
        };
        Ok(SourceAccount { name: entry.name.clone(), object, kubeconfig, report: conversion.report })
    }

    /// [`SourceAccounts::plan`] on a thread of its own, since thousands of kubeconfigs may have to be checked.
    pub async fn plan_apart(
        self: &Arc<Self>,
        selection: MigrationSelection,
        sources: MergedSources,
        declined: DeclinedNames,
        mut known: Assessments,
        read: Tick,
    ) -> (Plan, Assessments) {
        let accounts = Arc::clone(self);
        let planning = tokio::task::spawn_blocking(move || {
            let plan = accounts.plan(&selection, &sources, &declined, &mut known, read);
            (plan, known)
        });
        planning.await.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))
    }

    /// What would become of the accounts of a selection. `read`: when the oldest of the last reads of the sources began.
    fn plan(
        &self,
        selection: &MigrationSelection,
        sources: &MergedSources,
        declined: &DeclinedNames,
        known: &mut Assessments,
        read: Tick,
    ) -> Plan {
        let hash_key = (self.hash_key)();
        let settings = self.conversion(&hash_key);
        let before = std::mem::take(&mut known.0);
        let assess = |entry: &Arc<SourceEntry>| {
            let same = before.get(&entry.name).filter(|(assessed, _)| Arc::ptr_eq(assessed, entry));
            let assessed = same.map_or_else(
                || {
                    let choice = selection.choice(&entry.name);
                    Arc::new(AssessedEntry::of(entry, &choice, settings, |account| self.check(account)))
                },
                |(_, assessed)| Arc::clone(assessed),
            );
            known.0.insert(entry.name.clone(), (Arc::clone(entry), Arc::clone(&assessed)));
            assessed
        };
        let exists = |name: &str| !self.accounts.by_account_name(name).is_empty();
        plan(selection, sources, assess, exists, declined, read)
    }
}
