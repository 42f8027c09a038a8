//! What becomes of an account here after it was written in Clouddriver. Repeating it leads to the same.

use std::fmt;
use std::sync::Arc;

use axum::http::StatusCode;
use kube::ResourceExt as _;
use secrecy::SecretString;
use serde_json::{Map, Value};

use crate::rest::RestState;
use crate::rest::account_writes::{AccountChange, about, create};
use crate::rest::callers::RestCaller;
use crate::rest::error::RestError;
use crate::rest::request_rules::AccountVerb;
use kubesvc_clouddriver::definition::{Choice, EntryCredential, change_of};
use kubesvc_clouddriver::interception::{AccountPresence, FollowUp, KnownAccount, WriteVerb, follow_up};
use kubesvc_clouddriver::sources::SourceEntry;
use kubesvc_core::spinnaker::ClusterSource;
use kubesvc_core::{DesiredState, KubesvcAccount, WRITE_ANNOTATION};
use kubesvc_store::IntentRow;

/// Number of looks after which a conflict counts as a refusal: some minutes.
const MAX_CONFLICTS: i32 = 6;

/// A written account of Clouddriver.
pub(super) struct WrittenAccount<'w> {
    pub(super) intent: &'w IntentRow,
    pub(super) verb: WriteVerb,
    /// Whether Clouddriver had an account of the name before.
    pub(super) was_there: bool,
    /// Its definition as far as it is known.
    pub(super) definition: Option<Map<String, Value>>,
    /// Where the definition is from.
    pub(super) source: &'w str,
}

impl WrittenAccount<'_> {
    /// What no other write has.
    fn mark(&self) -> String {
        format!("{}/{}", self.intent.replica_id, self.intent.started_at)
    }
}

/// What became of the accounts of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Followed {
    Created,
    Updated,
    Deleted,
    Left(String),
    /// The leader looks again.
    Pending(String),
}

impl Followed {
    pub(super) fn word(&self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Updated => "updated",
            Self::Deleted => "deleted",
            Self::Left(_) => "left",
            Self::Pending(_) => "pending",
        }
    }

    /// The verb of RBAC of what was done to the account here; `None`: nothing.
    pub(super) fn right(&self) -> Option<&'static str> {
        match self {
            Self::Created => Some("create"),
            Self::Updated => Some("update"),
            Self::Deleted => Some("delete"),
            Self::Left(_) | Self::Pending(_) => None,
        }
    }

    /// One result for all: that of a single account; of several, whether any is pending or left, and why the first is.
    pub(super) fn of_all(mut results: Vec<Self>) -> Self {
        let at = |is: fn(&Self) -> bool| results.iter().position(is);
        let worst =
            at(|one| matches!(one, Self::Pending(_))).or_else(|| at(|one| matches!(one, Self::Left(_))));
        let at = worst.unwrap_or_default();
        if results.is_empty() {
            Self::Left("no account was written".to_owned())
        } else {
            results.swap_remove(at)
        }
    }
}

impl fmt::Display for Followed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Left(why) | Self::Pending(why) => write!(f, "{}; reason={why}", self.word()),
            Self::Created | Self::Updated | Self::Deleted => f.write_str(self.word()),
        }
    }
}

impl RestState {
    /// Lets the account of a name follow what Clouddriver has.
    pub(super) async fn follow(&self, presence: AccountPresence, written: &WrittenAccount<'_>) -> Followed {
        // Large, and polled at the end of a deep stack.
        match Box::pin(self.try_follow(presence, written)).await {
            Ok(followed) => followed,
            // What is refused stays refused; a conflict may be one with a writer of this moment.
            Err(error) if error.status.is_server_error() => Followed::Pending(error.message),
            Err(error) if error.status == StatusCode::CONFLICT && written.intent.tries < MAX_CONFLICTS => {
                Followed::Pending(error.message)
            }
            Err(error) => Followed::Left(error.message),
        }
    }

    async fn try_follow(
        &self,
        presence: AccountPresence,
        written: &WrittenAccount<'_>,
    ) -> Result<Followed, RestError> {
        let name = &*written.intent.name;
        let (account, caller) = (self.find(name).await?.account, RestCaller::kubesvc());
        let known = account.as_ref().map(|account| known(account, written));
        let change_by =
            |request| AccountChange { caller: &caller, name, request, given: None, sets: true, force: false };
        match follow_up(written.verb, presence, known.as_ref()) {
            FollowUp::Leave(why) => Ok(Followed::Left(why)),
            FollowUp::Wait(why) => Ok(Followed::Pending(why.to_owned())),
            FollowUp::Delete => {
                Box::pin(change_by(AccountVerb::Delete).run(self)).await?;
                Ok(Followed::Deleted)
            }
            FollowUp::Create => {
                let Some(entry) = entry(written) else { return Ok(unknown_definition()) };
                let mut made = Box::pin(self.described(&entry, &Choice::default())).await?;
                made.object.spec.state = Some(DesiredState::Active);
                made.object.annotations_mut().insert(WRITE_ANNOTATION.to_owned(), written.mark());
                let existing = Box::pin(create(self, &caller, name, &made.contents(), &made.object)).await?;
                Ok(existing.map_or(Followed::Created, |_| {
                    Followed::Left("kubesvc has an account of that name".to_owned())
                }))
            }
            FollowUp::Update => {
                let Some(entry) = entry(written) else { return Ok(unknown_definition()) };
                let hash_key = (self.source_accounts.hash_key)();
                let change = change_of(&entry, self.source_accounts.conversion(&hash_key));
                let (mut input, credential) = change.map_err(|refusal| about(name, &refusal.to_string()))?;
                if let Some(credential) = credential {
                    let made = Box::pin(self.described(&entry, &Choice::default())).await?;
                    input.source = source_of(credential, made.kubeconfig);
                }
                let put = AccountChange { given: Some(&input), ..change_by(AccountVerb::Put) };
                Box::pin(put.run(self)).await?;
                Ok(Followed::Updated)
            }
        }
    }
}

fn unknown_definition() -> Followed {
    let why = "Clouddriver has it, and its definition cannot be read: POST it to /armory/accounts/dynamic";
    Followed::Left(why.to_owned())
}

fn known(account: &KubesvcAccount, written: &WrittenAccount<'_>) -> KnownAccount {
    KnownAccount {
        is_static: account.is_static(),
        owner: account.gitops_owner(),
        is_leaving: account.is_being_deleted(),
        is_of_write: account.annotation(WRITE_ANNOTATION) == Some(written.mark().as_str()),
        was_in_clouddriver: written.was_there,
    }
}

fn entry(written: &WrittenAccount<'_>) -> Option<SourceEntry> {
    Some(SourceEntry {
        name: written.intent.name.clone(),
        definition: written.definition.clone()?,
        source: Arc::from(written.source),
        version: String::new(),
    })
}

/// A credential as a request names it. A file that only Clouddriver has changes nothing.
fn source_of(credential: EntryCredential, kubeconfig: Option<SecretString>) -> Option<ClusterSource> {
    match credential {
        EntryCredential::Contents(_) | EntryCredential::MountedFile(_) => {
            kubeconfig.map(ClusterSource::Contents)
        }
        EntryCredential::Reference(reference) => Some(ClusterSource::Reference(reference)),
        EntryCredential::SecretKey { namespace, name, key } => {
            Some(ClusterSource::Reference(format!("encryptedFile:k8s!n:{name}!k:{key}!ns:{namespace}")))
        }
        EntryCredential::AgentFile(path) => Some(ClusterSource::File(path)),
        EntryCredential::ServiceAccount => Some(ClusterSource::ServiceAccount),
        EntryCredential::FileOnClouddriver(_) => None,
    }
}
