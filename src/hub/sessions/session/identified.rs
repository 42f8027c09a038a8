//! The identity of a session where KubesvcIdentities count: what its agent showed, and the rights that it has by that.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use secrecy::SecretString;

use kubesvc_core::identity::{AgentRights, Credential};

/// Interval between two reviews of a session's token.
pub(crate) const TOKEN_REVIEW_INTERVAL: Duration = Duration::from_secs(60);

/// What an agent showed, and the rights that it has by that.
#[derive(Debug)]
pub(crate) struct Identified {
    pub(crate) rights: AgentRights,
    pub(crate) credential: Credential,
    /// Its token, which is reviewed again.
    pub(crate) token: Option<SecretString>,
}

/// The identity of a session; empty where identities do not count.
#[derive(Debug, Default)]
pub(crate) struct SessionIdentity(Option<Mutex<State>>);

#[derive(Debug)]
struct State {
    identified: Arc<Identified>,
    /// When the token is reviewed again.
    review_at: Instant,
    /// Whether a new token is being looked at.
    renews: bool,
}

impl SessionIdentity {
    pub(crate) fn new(identified: Option<Identified>) -> Self {
        Self(identified.map(|identified| {
            let review_at = Instant::now() + TOKEN_REVIEW_INTERVAL;
            Mutex::new(State { identified: Arc::new(identified), review_at, renews: false })
        }))
    }

    /// What the agent showed, and its rights; `None`: identities do not count.
    pub(crate) fn get(&self) -> Option<Arc<Identified>> {
        self.0.as_ref().map(|state| Arc::clone(&state.lock().identified))
    }

    /// Whether this is the identity of that name; `None` where identities do not count.
    pub(crate) fn is(&self, name: Option<&str>) -> bool {
        self.get().as_ref().map(|identified| identified.rights.identity.as_str()) == name
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
            state.lock().identified = Arc::new(identified);
        }
    }

    /// The token to review now, if it is time for that. The next review is due after [`TOKEN_REVIEW_INTERVAL`].
    pub(crate) fn due_review(&self, now: Instant) -> Option<Arc<Identified>> {
        let mut state = self.0.as_ref()?.lock();
        if state.review_at > now || state.identified.token.is_none() {
            return None;
        }
        state.review_at = now + TOKEN_REVIEW_INTERVAL;
        Some(Arc::clone(&state.identified))
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
