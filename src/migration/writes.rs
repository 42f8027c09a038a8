//! Carries out an action: one write for each account, each by itself whole.
//!
//! | write | if the process dies right after it |
//! |---|---|
//! | a Secret (`migration-secret`) | no object has the name: the account is created again, with this Secret |
//! | an object (`migration-create`) | the account is INACTIVE, and the next leader activates it |
//! | its spec (`migration-patch`), its deletion (`migration-delete`) | all is done |
//! | the declined accounts (`migration-declined`) | the account is still there, being deleted, and is let go by the next leader |
//! | its finalizer (`migration-release`) | all is done |
//! | the status (`migration-status`) | all is done |

use futures::FutureExt;
use futures::stream::{self, StreamExt};
use kube::api::{DeleteParams, Preconditions};
use serde_json::{Value, json};
use tracing::{info, warn};

use super::facts::FactIndex;
use super::running::RunningMigration;
use super::{LeaderMigrations, MAX_LOOKED_FOR};
use crate::informers::AccountKey;
use crate::source_accounts::{EntryError, ReadDeclined, SourceAccount};
use k8s_openapi::api::core::v1::Secret;
use kubesvc_clouddriver::migration::{
    MIGRATED_SPEC_ANNOTATION, MIGRATION_ANNOTATION, MIGRATION_FINALIZER, MigrationAction, is_held, mark,
    spec_digest,
};
use kubesvc_core::json::merge_patch;
use kubesvc_core::object_names::credential_secret_name;
use kubesvc_core::{
    CLOUDDRIVER_DEFINITION_ANNOTATION, DesiredState, KubesvcAccount, KubesvcAccountSpec,
    KubesvcMigrationStatus, SOURCE_ANNOTATION, SOURCE_HASH_ANNOTATION,
};
use kubesvc_runtime::account_secret::{AccountSecret, AccountSecretError, SecretWriter};
use kubesvc_runtime::kube_access::{ErrorClass, KubeError, WriteOptions, none_if_gone, unless_stale};
use kubesvc_runtime::rate_limit::Urgency;

/// Maximum number of concurrent writes.
const MAX_CONCURRENT_WRITES: usize = 64;
/// Options of all writes.
const WRITE: WriteOptions = WriteOptions::with(Urgency::Rest);

/// The write of one account.
#[derive(Clone, Copy)]
enum AccountWrite {
    Create,
    Update,
    Desire(DesiredState),
    Delete,
}

/// What became of the write of one account.
enum Written {
    /// The object as it is now.
    Object(Box<KubesvcAccount>),
    /// It was refused, for this reason, and is not tried again until its entry changes.
    Refused(String),
    /// Nothing: others wrote it, or the migration changed.
    Nothing,
}

impl From<EntryError> for Written {
    fn from(error: EntryError) -> Self {
        Self::Refused(error.to_string())
    }
}

impl LeaderMigrations<'_> {
    /// Carries out an action. Returns whether to decide again at once.
    pub(super) async fn act(
        &self,
        running: &mut RunningMigration,
        facts: &mut FactIndex,
        declined: &mut ReadDeclined,
        action: MigrationAction,
    ) -> Result<bool, KubeError> {
        let (write, names) = match action {
            MigrationAction::WriteStatus(status) => return self.write_status(running, *status).await,
            MigrationAction::Decline(names) => {
                return self.decline(declined, &names).await.map(|()| true);
            }
            MigrationAction::Release(names) => return self.release(&names).await.map(|()| true),
            MigrationAction::Create(names) => (AccountWrite::Create, names),
            MigrationAction::Update(names) => (AccountWrite::Update, names),
            MigrationAction::Activate(names) => (AccountWrite::Desire(DesiredState::Active), names),
            MigrationAction::Deactivate(names) => (AccountWrite::Desire(DesiredState::Inactive), names),
            MigrationAction::Delete(names) => (AccountWrite::Delete, names),
        };
        let writes: Vec<_> = names.iter().map(|name| self.write(running, write, name).boxed()).collect();
        let written: Vec<Result<Written, KubeError>> =
            stream::iter(writes).buffered(MAX_CONCURRENT_WRITES).collect().await;
        let mut failed = None;
        let mut changed = false;
        for (name, written) in names.iter().zip(written) {
            match written {
                Ok(Written::Object(account)) => {
                    facts.put(&account);
                    changed = true;
                }
                Ok(Written::Refused(why)) => {
                    warn!(
                        migration = running.name(),
                        account = name,
                        why,
                        "the write of an account is refused"
                    );
                    let hash = running.planned().and_then(|(_, plan)| plan.accounts.get(name)?.hash());
                    let hash = hash.map(str::to_owned);
                    running.progress().record_refused_write(name, hash.as_deref(), &why);
                }
                Ok(Written::Nothing) => {}
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        // What was not written is seen differently once the watch has caught up.
        failed.map_or(Ok(changed), Err)
    }

    async fn write(
        &self,
        running: &RunningMigration,
        write: AccountWrite,
        name: &str,
    ) -> Result<Written, KubeError> {
        match write {
            AccountWrite::Create => self.create(running, name).await,
            AccountWrite::Update => self.update(running, name).await,
            AccountWrite::Desire(desired) => self.desire(running, name, desired).await,
            AccountWrite::Delete => self.delete(running, name).await,
        }
    }

    /// Whether an action may still write.
    fn may_write(&self, running: &RunningMigration) -> bool {
        self.mandate.holds() && self.is_current(running)
    }

    /// The account that an entry of the plan describes, marked as this migration's.
    async fn described(
        &self,
        running: &RunningMigration,
        name: &str,
    ) -> Option<Result<SourceAccount, EntryError>> {
        let (selection, plan) = running.planned()?;
        let (entry, _) = plan.accounts.get(name)?.entry.as_ref()?;
        let described = self.ports.source_accounts.describe(entry, &selection.choice(name)).await;
        Some(described.map(|mut described| {
            mark(&mut described.object, running.name());
            described
        }))
    }

    async fn create(&self, running: &RunningMigration, name: &str) -> Result<Written, KubeError> {
        let described = match self.described(running, name).await {
            Some(Ok(described)) => described,
            Some(Err(error)) => return Ok(error.into()),
            None => return Ok(Written::Nothing),
        };
        if !self.may_write(running) {
            return Ok(Written::Nothing);
        }
        let key = AccountKey::of(&described.object);
        let created = self
            .secret(&key)
            .create_account(&described.contents(), &described.object, WRITE.at("migration-create"))
            .await;
        match created {
            Ok(Some(made)) => {
                info!(migration = running.name(), account = name, object = %key, "migrated an account");
                Ok(Written::Object(Box::new(made)))
            }
            Ok(None) => self.taken(&key, name).await,
            Err(error) => refused(error),
        }
    }

    /// What a name of an object that is taken already means.
    async fn taken(&self, key: &AccountKey, name: &str) -> Result<Written, KubeError> {
        let objects = self.ports.kube.namespaced::<KubesvcAccount>(&key.namespace);
        Ok(match objects.get(&key.name).await? {
            Some(account) if self.ports.accounts.foreign_operator(&account).is_some() => {
                Written::Refused(format!("its object {key} is served by another installation"))
            }
            Some(account) if account.account_name() == name => Written::Object(Box::new(account)),
            Some(account) => Written::Refused(format!(
                "its object {key} is the account {:?}; delete that account, or choose another name",
                account.account_name()
            )),
            None => Written::Nothing,
        })
    }

    /// Replaces the spec by that of the entry, except for the state.
    async fn update(&self, running: &RunningMigration, name: &str) -> Result<Written, KubeError> {
        let described = match self.described(running, name).await {
            Some(Ok(described)) => described,
            Some(Err(error)) => return Ok(error.into()),
            None => return Ok(Written::Nothing),
        };
        let Some(account) = self.own(running, name) else { return Ok(Written::Nothing) };
        if !self.may_write(running) {
            return Ok(Written::Nothing);
        }
        let contents = described.contents();
        if !contents.is_empty() {
            match self.secret(&AccountKey::of(&account)).change(&contents, &account).await {
                Ok(_) => {}
                Err(error) => return refused(error),
            }
        }
        let spec = KubesvcAccountSpec { state: account.spec.state, ..described.object.spec.clone() };
        let given = described.object.metadata.annotations.unwrap_or_default();
        let kept = [SOURCE_ANNOTATION, SOURCE_HASH_ANNOTATION, CLOUDDRIVER_DEFINITION_ANNOTATION];
        let annotations = kept.into_iter().map(|key| (key.to_owned(), json!(given.get(key)))).collect();
        self.patch(&account, &spec, Value::Object(annotations)).await
    }

    /// Sets the desired state.
    async fn desire(
        &self,
        running: &RunningMigration,
        name: &str,
        desired: DesiredState,
    ) -> Result<Written, KubeError> {
        let Some(account) = self.own(running, name).filter(|_| self.may_write(running)) else {
            return Ok(Written::Nothing);
        };
        let spec = KubesvcAccountSpec { state: Some(desired), ..account.spec.clone() };
        self.patch(&account, &spec, json!({})).await
    }

    /// Writes a spec, at the version that was seen, and that this migration wrote it.
    async fn patch(
        &self,
        account: &KubesvcAccount,
        spec: &KubesvcAccountSpec,
        mut annotations: Value,
    ) -> Result<Written, KubeError> {
        annotations[MIGRATED_SPEC_ANNOTATION] = json!(spec_digest(spec));
        let patch = json!({
            "metadata": {
                "uid": account.uid(),
                "resourceVersion": account.metadata.resource_version,
                "annotations": annotations,
            },
            "spec": merge_patch(&json!(account.spec), &json!(spec)),
        });
        let key = AccountKey::of(account);
        let objects = self.ports.kube.namespaced::<KubesvcAccount>(&key.namespace);
        let patched = objects.patch(&key.name, &patch, WRITE.at("migration-patch")).await;
        match unless_stale(patched) {
            Ok(Some(patched)) => {
                let replaced = account.metadata.resource_version.as_deref().unwrap_or_default();
                self.ports.accounts.written(patched.clone(), replaced);
                Ok(Written::Object(Box::new(patched)))
            }
            Ok(None) => Ok(Written::Nothing),
            Err(error) => refused(error.into()),
        }
    }

    async fn delete(&self, running: &RunningMigration, name: &str) -> Result<Written, KubeError> {
        let Some(account) = self.own(running, name).filter(|_| self.may_write(running)) else {
            return Ok(Written::Nothing);
        };
        let key = AccountKey::of(&account);
        let objects = self.ports.kube.namespaced::<KubesvcAccount>(&key.namespace);
        let preconditions = Preconditions {
            uid: account.metadata.uid.clone(),
            resource_version: account.metadata.resource_version.clone(),
        };
        let parameters = DeleteParams::background().preconditions(preconditions);
        let deleted = objects.delete(&key.name, &parameters, WRITE.at("migration-delete")).await;
        match unless_stale(none_if_gone(deleted)) {
            Ok(left) => {
                Ok(left.flatten().flatten().map_or(Written::Nothing, |left| Written::Object(Box::new(left))))
            }
            Err(error) => refused(error.into()),
        }
    }

    /// The account of this name, if this migration created it.
    fn own(&self, running: &RunningMigration, name: &str) -> Option<KubesvcAccount> {
        let named = self.ports.accounts.by_account_name(name);
        let is_own =
            |account: &&_| KubesvcAccount::annotation(account, MIGRATION_ANNOTATION) == Some(running.name());
        named.iter().map(|account| &**account).find(is_own).cloned()
    }

    fn secret<'k>(&self, key: &'k AccountKey) -> AccountSecret<'k> {
        AccountSecret::of(&self.ports.kube, (&key.namespace, &key.name), SecretWriter::MIGRATION)
    }

    /// Lets accounts go that are being deleted.
    pub(super) async fn release(&self, names: &[String]) -> Result<(), KubeError> {
        for name in names {
            let named = self.ports.accounts.by_account_name(name);
            for account in named.iter().filter(|account| account.is_being_deleted() && is_held(account)) {
                let mut finalizers = account.metadata.finalizers.clone().unwrap_or_default();
                finalizers.retain(|finalizer| finalizer != MIGRATION_FINALIZER);
                let key = AccountKey::of(account);
                let patch = json!({ "metadata": {
                    "uid": account.uid(), "resourceVersion": account.metadata.resource_version, "finalizers": finalizers,
                }});
                let objects = self.ports.kube.namespaced::<KubesvcAccount>(&key.namespace);
                let patched = objects.patch(&key.name, &patch, WRITE.at("migration-release")).await;
                if let Some(patched) = unless_stale(none_if_gone(patched))?.flatten() {
                    let replaced = account.metadata.resource_version.as_deref().unwrap_or_default();
                    self.ports.accounts.written(patched, replaced);
                }
            }
        }
        Ok(())
    }

    async fn decline(
        &self,
        declined: &mut ReadDeclined,
        names: &[(String, String)],
    ) -> Result<(), KubeError> {
        let store = &self.ports.source_accounts.declined;
        let mut with = declined.names.clone();
        for (name, hash) in names {
            if let Err(full) = with.add(name, hash) {
                warn!(account = name, %full, "an account is not declined");
                break;
            }
        }
        *declined = match unless_stale(store.write(&with, declined).await)? {
            Some(written) => written,
            None => store.read().await?,
        };
        Ok(())
    }

    async fn write_status(
        &self,
        running: &mut RunningMigration,
        status: KubesvcMigrationStatus,
    ) -> Result<bool, KubeError> {
        if running.status().map(|before| before.phase) != Some(status.phase) {
            let (migration, phase) = (running.name(), status.phase);
            let (done, total, failed) = (status.done, status.total, status.failed);
            info!(migration, ?phase, done, total, failed, "a migration is in another phase");
        }
        if let Some(object) = running.object() {
            let mut object = (**object).clone();
            object.status = Some(status.clone());
            let written =
                self.objects.replace_status(running.name(), &object, WRITE.at("migration-status")).await;
            let Some(mut written) = unless_stale(written)? else { return Ok(false) };
            written.metadata.managed_fields = None;
            let mut seen = self.seen.lock();
            // Unless the watch has seen a later version, or another object.
            if let Some(known) = seen.get_mut(running.name())
                && known.metadata.resource_version == object.metadata.resource_version
            {
                *known = written.into();
                running.take_object(known, &self.ports.source_accounts);
            }
        }
        running.put_status(status);
        Ok(true)
    }

    /// Looks for Secrets that people create for accounts whose kubeconfig only Clouddriver has.
    pub(super) async fn look_for_secrets(&self, facts: &mut FactIndex) -> Result<(), KubeError> {
        for key in facts.waiting_for_secrets(MAX_LOOKED_FOR) {
            let secrets = self.ports.kube.namespaced::<Secret>(&key.namespace);
            if secrets.get_metadata(&credential_secret_name(&key.name)).await?.is_some() {
                facts.has_secret(&self.ports.accounts, &key);
            }
        }
        Ok(())
    }
}

/// What a failed write means: a refusal of the account, or an error to retry.
fn refused(error: AccountSecretError) -> Result<Written, KubeError> {
    match error {
        AccountSecretError::Api(error) if error.class() == ErrorClass::Retry => Err(error.without_message()),
        AccountSecretError::Api(error) => {
            let (kind, name) = (&error.request().kind, &error.request().name);
            Ok(Written::Refused(format!("its {kind} {name} is refused: {}", error.refusal())))
        }
        AccountSecretError::Taken | AccountSecretError::Contended(_) => Ok(Written::Nothing),
        AccountSecretError::NotOurs(_) => Ok(Written::Refused(error.to_string())),
    }
}
