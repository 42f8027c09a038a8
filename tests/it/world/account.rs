//! Accounts: creating, changing, and waiting for them.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kubesvc_core::{KubesvcAccount, KubesvcAccountSpec, State, WATCH_LABEL};
use serde_json::{Value, json};

use super::{MAX_WAIT, World};
use kubesvc_testkit::{must, wait::eventually};

/// An account to be created.
pub(crate) struct AccountBuilder<'w> {
    world: &'w World,
    name: String,
    kubeconfig: Option<Vec<u8>>,
    spec: Value,
    watched: bool,
}

impl World {
    /// Configures an account of this name. It needs a kubeconfig from any source.
    pub(crate) fn account(&self, name: &str) -> AccountBuilder<'_> {
        AccountBuilder {
            world: self,
            name: name.to_owned(),
            kubeconfig: None,
            spec: json!({"kubeconfig": {"secretRef": {"name": name}}}),
            watched: true,
        }
    }

    /// Creates or replaces a Secret with a kubeconfig.
    pub(crate) async fn secret(&self, name: &str, kubeconfig: &[u8], watched: bool) {
        let secrets = self.api::<Secret>();
        let mut secret = Secret {
            data: Some(BTreeMap::from([("kubeconfig".to_owned(), ByteString(kubeconfig.to_vec()))])),
            ..Secret::default()
        };
        secret.metadata.name = Some(name.to_owned());
        if watched {
            secret.metadata.labels = Some(BTreeMap::from([(WATCH_LABEL.to_owned(), "true".to_owned())]));
        }
        answered(&format!("Secret {name}"), async || match secrets.get_opt(name).await? {
            Some(_) => secrets.replace(name, &PostParams::default(), &secret).await,
            None => secrets.create(&PostParams::default(), &secret).await,
        })
        .await;
    }

    /// Returns the object of an account, or `None` if it is gone. Retries while the API server does not answer.
    pub(crate) async fn object(&self, name: &str) -> Option<KubesvcAccount> {
        eventually(&format!("account {name}"), MAX_WAIT, async || self.try_object(name).await).await
    }

    /// Like [`World::object`], without retries.
    ///
    /// # Errors
    ///
    /// The API server does not answer.
    pub(crate) async fn try_object(&self, name: &str) -> Result<Option<KubesvcAccount>, String> {
        let answer = self.api::<KubesvcAccount>().get_opt(name).await;
        answer.map_err(|e| format!("account {name}: {e}"))
    }

    /// Returns the object of an account by its account name, whatever the object's name. Retries while the API server
    /// does not answer.
    pub(crate) async fn account_named(&self, account_name: &str) -> Option<KubesvcAccount> {
        let what = format!("the object of {account_name}");
        eventually(&what, MAX_WAIT, async || self.try_account_named(account_name).await).await
    }

    /// Like [`World::account_named`], without retries.
    ///
    /// # Errors
    ///
    /// The API server does not answer.
    pub(crate) async fn try_account_named(
        &self,
        account_name: &str,
    ) -> Result<Option<KubesvcAccount>, String> {
        let listed = self.api::<KubesvcAccount>().list(&ListParams::default()).await;
        let listed = listed.map_err(|e| format!("accounts: {e}"))?;
        Ok(listed.items.into_iter().find(|account| account.account_name() == account_name))
    }

    /// Waits until the API server's clock, which counts seconds, is past the creation of an object, so that an object
    /// created afterwards is younger.
    pub(crate) async fn until_next_second(&self, name: &str) {
        let made = self.object(name).await.and_then(|object| object.metadata.creation_timestamp);
        let made = made.expect("it was made").0;
        eventually("a second later", MAX_WAIT, async || {
            let now = jiff::Timestamp::now();
            if now.as_second() > made.as_second() { Ok(()) } else { Err(now.to_string()) }
        })
        .await;
    }

    /// Returns the state in the status of an account.
    pub(crate) async fn state(&self, name: &str) -> Option<State> {
        self.object(name).await?.status?.state
    }

    /// Waits until the status of an account has this state. An absent status does not count as INACTIVE.
    pub(crate) async fn until(&self, name: &str, state: State) -> KubesvcAccount {
        self.until_account(name, &format!("is {state}"), |account| {
            account.status_or_default().state == Some(state)
        })
        .await
    }

    /// Waits until an account has this state and this reason in its condition Ready.
    pub(crate) async fn until_reason(&self, name: &str, state: State, reason: &str) -> KubesvcAccount {
        self.until_account(name, &format!("is {state} with reason {reason}"), |account| {
            account.status_or_default().state() == state
                && condition(account, "Ready").is_some_and(|ready| ready.reason == reason)
        })
        .await
    }

    /// Waits until an account satisfies a condition.
    pub(crate) async fn until_account(
        &self,
        name: &str,
        what: &str,
        holds: impl Fn(&KubesvcAccount) -> bool,
    ) -> KubesvcAccount {
        eventually(&format!("account {name} that {what}"), MAX_WAIT, async || {
            let account = self.try_object(name).await?.ok_or("there is none")?;
            if holds(&account) { Ok(account) } else { Err(told(&account)) }
        })
        .await
    }

    /// Waits until the object and the row of an account are gone.
    pub(crate) async fn until_gone(&self, name: &str) {
        eventually(&format!("the end of account {name}"), MAX_WAIT, async || {
            if let Some(account) = self.try_object(name).await? {
                return Err(told(&account));
            }
            match self.try_row(name).await? {
                None => Ok(()),
                Some(row) => Err(format!("its row is still there: {row:?}")),
            }
        })
        .await;
    }

    /// Applies a merge patch to an account, like `kubectl patch --type=merge`.
    pub(crate) async fn patch(&self, name: &str, patch: Value) -> KubesvcAccount {
        let accounts = self.api::<KubesvcAccount>();
        let patch = Patch::Merge(patch);
        let what = format!("a patch of account {name}");
        answered(&what, async || accounts.patch(name, &PatchParams::default(), &patch).await).await
    }

    /// Changes a field of an account that its agents do not receive. Replicas that have briefly cached the account's
    /// credential then read it again.
    pub(crate) async fn forget_copies(&self, name: &str) {
        let changed = self.patch(name, json!({"spec": {"environment": "other"}})).await;
        self.until_account(name, "was seen with its change", |account| {
            Some(account.status_or_default().observed_generation) == changed.metadata.generation
        })
        .await;
    }

    /// Sets an annotation of an account.
    pub(crate) async fn annotate(&self, name: &str, key: &str, value: &str) {
        self.patch(name, json!({"metadata": {"annotations": {key: value}}})).await;
    }

    /// Requests the deletion of an account without waiting.
    pub(crate) async fn delete(&self, name: &str) {
        let accounts = self.api::<KubesvcAccount>();
        let what = format!("the deletion of account {name}");
        answered(&what, async || accounts.delete(name, &DeleteParams::default()).await).await;
    }
}

/// Returns a condition of an account by its type.
pub(crate) fn condition(account: &KubesvcAccount, type_: &str) -> Option<Condition> {
    account.status.as_ref()?.conditions.iter().find(|condition| condition.type_ == type_).cloned()
}

/// Returns the answer to a call, and retries while the API server reports overload: `429`, or the `5xx` caused by a
/// slow disk. Any other error fails the test.
async fn answered<T, A>(what: &str, call: impl Fn() -> A) -> T
where
    A: Future<Output = kube::Result<T>>,
{
    let answer = eventually(what, MAX_WAIT, async || match call().await {
        Err(kube::Error::Api(status)) if status.code == 429 || status.code >= 500 => {
            Err(status.message.clone())
        }
        answer => Ok(answer),
    })
    .await;
    must(answer.map_err(|error| format!("{what}: {error}")))
}

fn told(account: &KubesvcAccount) -> String {
    format!(
        "its status is {}",
        serde_json::to_string(&account.status).unwrap_or_else(|error| error.to_string())
    )
}

impl AccountBuilder<'_> {
    /// Pins the account to a zone.
    pub(crate) fn zone(self, zone: &str) -> Self {
        self.spec("zoneId", zone)
    }

    /// Sets the desired state to INACTIVE.
    pub(crate) fn inactive(self) -> Self {
        self.spec("state", "INACTIVE")
    }

    /// Sets a field of the spec.
    pub(crate) fn spec(mut self, field: &str, value: impl Into<Value>) -> Self {
        self.spec[field] = value.into();
        self
    }

    /// Adds a Secret of the same name with this kubeconfig.
    pub(crate) fn kubeconfig(self, text: &str) -> Self {
        self.kubeconfig_bytes(text.as_bytes())
    }

    /// Like [`AccountBuilder::kubeconfig`], for content that is not text.
    pub(crate) fn kubeconfig_bytes(mut self, bytes: &[u8]) -> Self {
        self.kubeconfig = Some(bytes.to_vec());
        self
    }

    /// Omits the label that makes the operator watch the Secret.
    pub(crate) fn unwatched(mut self) -> Self {
        self.watched = false;
        self
    }

    /// Creates the account without waiting.
    pub(crate) async fn create(self) -> KubesvcAccount {
        if let Some(kubeconfig) = &self.kubeconfig {
            self.world.secret(&self.name, kubeconfig, self.watched).await;
        }
        let spec: KubesvcAccountSpec = serde_json::from_value(self.spec).expect("a spec as the type has it");
        let account = KubesvcAccount::new(&self.name, spec);
        let accounts = self.world.api::<KubesvcAccount>();
        answered(&format!("account {}", self.name), async || {
            accounts.create(&PostParams::default(), &account).await
        })
        .await
    }
}
