//! The identity of a session where KubesvcIdentities count: what its agent showed, and the rights that it has by that.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use secrecy::{ExposeSecret as _, SecretString};

use super::Session;
use kubesvc_core::failure::{Failure, FailureClass};
use kubesvc_core::identity::{AgentCredential, AgentRights};
use kubesvc_core::{GrantPhase, KubesvcAccount};

/// Interval between two reviews of a session's token.
pub(crate) const TOKEN_REVIEW_INTERVAL: Duration = Duration::from_secs(60);

impl Session {
    /// Whether the agent's identity may hold the account.
    pub(crate) fn may_hold(&self, account: &KubesvcAccount) -> bool {
        let name = |part: &Option<String>| part.clone().unwrap_or_default();
        self.identity.may_hold(&name(&account.metadata.namespace), &name(&account.metadata.name))
    }

    /// Whether the agent may offer to take accounts that name no zone.
    pub(crate) fn may_offer(&self) -> bool {
        self.identity.has(|rights| rights.offers, true)
    }

    /// Records in the ledger whether the agent's identity allows an account that is granted to its zone. Returns whether there is a failure to tell the leader of.
    pub(crate) fn judge(&self, account: &KubesvcAccount) -> bool {
        if self.identity.get().is_none() {
            return false;
        }
        let (uid, status) = (account.uid(), account.status_or_default());
        if self.may_hold(account) {
            self.ledger.lock().allow(uid);
            return false;
        }
        let is_ours = status.phase() == GrantPhase::Open && status.granted_zone() == Some(&self.agent.zone);
        let failure = || self.forbidden(account);
        is_ours && self.ledger.lock().forbid(uid, account.account_name(), status.epoch, failure())
    }

    fn forbidden(&self, account: &KubesvcAccount) -> Failure {
        let name = |part: &Option<String>| part.clone().unwrap_or_default();
        let message = format!(
            "KubesvcIdentity {identity} of agent {agent} in zone {zone:?} does not allow account {namespace}/{object}: add it \
             to spec.allow.accounts, or give the account another zone",
            identity = self.identity.name().unwrap_or_default(),
            agent = self.agent.id,
            zone = self.agent.zone,
            namespace = name(&account.metadata.namespace),
            object = name(&account.metadata.name),
        );
        Failure::new(FailureClass::ZoneForbidden, message)
    }
}

/// What an agent showed, and the rights that it has by that.
#[derive(Debug)]
pub(crate) struct Identified {
    pub(crate) rights: AgentRights,
    pub(crate) credential: AgentCredential,
    /// Its token, which is reviewed again.
    pub(crate) token: Option<SecretString>,
}

/// The identity of a session; empty where identities do not count.
#[derive(Debug, Default)]
pub(crate) struct SessionIdentity(Option<Mutex<SessionCredential>>);

#[derive(Debug)]
struct SessionCredential {
    identified: Arc<Identified>,
    /// When the token is reviewed again.
    review_at: Instant,
    /// Whether a new token is being looked at.
    renews: bool,
    /// Whether the token is being reviewed.
    reviews: bool,
    /// A new token that could not be looked at yet.
    pending: Option<SecretString>,
}

impl SessionIdentity {
    pub(crate) fn new(identified: Option<Identified>) -> Self {
        Self(identified.map(|identified| {
            let review_at = Instant::now() + TOKEN_REVIEW_INTERVAL;
            Mutex::new(SessionCredential {
                identified: Arc::new(identified),
                review_at,
                renews: false,
                reviews: false,
                pending: None,
            })
        }))
    }

    /// What the agent showed, and its rights; `None`: identities do not count.
    pub(crate) fn get(&self) -> Option<Arc<Identified>> {
        self.0.as_ref().map(|state| Arc::clone(&state.lock().identified))
    }

    /// Name of the KubesvcIdentity; `None`: identities do not count.
    pub(crate) fn name(&self) -> Option<String> {
        self.get().map(|identified| identified.rights.identity.clone())
    }

    /// Whether both are of one holder with the same rights: a renewed certificate or token is, another one of the same object
    /// is not. True where identities do not count for either.
    pub(crate) fn is_same_agent(&self, shown: Option<(&AgentRights, &AgentCredential)>) -> bool {
        match (self.get(), shown) {
            (None, None) => true,
            (Some(own), Some((rights, credential))) => {
                own.rights == *rights && own.credential.is_of_same_holder(credential)
            }
            _ => false,
        }
    }

    /// Whether the agent may hold the account of this object.
    pub(crate) fn may_hold(&self, namespace: &str, name: &str) -> bool {
        self.get().is_none_or(|identified| identified.rights.may_hold(namespace, name))
    }

    /// Whether the agent has a right that a KubesvcIdentity gives; `otherwise` where identities do not count.
    pub(crate) fn has(&self, right: impl Fn(&AgentRights) -> bool, otherwise: bool) -> bool {
        self.get().map_or(otherwise, |identified| right(&identified.rights))
    }

    /// Replaces what the agent showed and its rights.
    pub(crate) fn put(&self, identified: Identified) {
        if let Some(state) = &self.0 {
            let mut state = state.lock();
            state.identified = Arc::new(identified);
        }
    }

    /// The token to review now, if it is time for that and no review is under way. The next one is due after
    /// [`TOKEN_REVIEW_INTERVAL`].
    pub(crate) fn due_review(&self, now: Instant) -> Option<SecretString> {
        let mut state = self.0.as_ref()?.lock();
        if state.review_at > now || state.reviews {
            return None;
        }
        let token = state.identified.token.clone()?;
        state.review_at = now + TOKEN_REVIEW_INTERVAL;
        state.reviews = true;
        Some(token)
    }

    /// The review has ended.
    pub(crate) fn end_review(&self) {
        if let Some(state) = &self.0 {
            state.lock().reviews = false;
        }
    }

    /// Keeps a new token that cannot be looked at now.
    pub(crate) fn keep_pending(&self, token: SecretString) {
        if let Some(state) = &self.0 {
            state.lock().pending = Some(token);
        }
    }

    /// Takes the new token that could not be looked at.
    pub(crate) fn take_pending(&self) -> Option<SecretString> {
        self.0.as_ref()?.lock().pending.take()
    }

    /// Whether this is the session's token.
    pub(crate) fn has_token(&self, token: &SecretString) -> bool {
        let own = self.get();
        let own = own.as_ref().and_then(|identified| identified.token.as_ref());
        own.is_some_and(|own| own.expose_secret() == token.expose_secret())
    }

    /// Begins to look at a new token. Returns false while another one is looked at.
    pub(crate) fn begin_renewal(&self) -> bool {
        self.0.as_ref().is_some_and(|state| !std::mem::replace(&mut state.lock().renews, true))
    }

    /// The new token was looked at.
    pub(crate) fn end_renewal(&self) {
        if let Some(state) = &self.0 {
            state.lock().renews = false;
        }
    }
}
