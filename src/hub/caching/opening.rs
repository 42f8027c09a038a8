//! Opening of a stream: its first frame, the session that it names, and the reasons to close it.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use tonic::Streaming;

use super::Caching;
use super::account_receiver::AssignmentState;
use crate::hub::sessions::StreamClaim;
use crate::hub::sessions::session::Session;
use crate::hub::sessions::session::identified::Identified;
use kubesvc_core::CachingEpoch;
use kubesvc_core::wire::events::closed::Reason;
use kubesvc_core::wire::events::{CacheUp, Closed, Open, cache_up, revoked};

/// Time limit for the first frame.
const OPEN_TIMEOUT: Duration = Duration::from_secs(10);
/// Retry delay for an agent that used its loan too slowly, or does not read.
const OVERLOADED_RETRY_DELAY: Duration = Duration::from_secs(1);

#[derive(Debug, PartialEq)]
pub(super) enum CachingStreamEnd {
    /// The agent ended the stream.
    Gone(&'static str),
    /// The hub closes the stream.
    Closed(Closed),
}

impl CachingStreamEnd {
    pub(super) fn closed(reason: Reason, message: impl Into<String>) -> Self {
        let wait = if reason == Reason::Overloaded { OVERLOADED_RETRY_DELAY } else { Duration::ZERO };
        let retry_after_ms = u32::try_from(wait.as_millis()).unwrap_or(u32::MAX);
        Self::Closed(Closed { reason: reason.into(), message: message.into(), retry_after_ms })
    }

    pub(super) fn malformed(message: impl Into<String>) -> Self {
        Self::closed(Reason::Malformed, message)
    }
}

impl Caching {
    /// Waits for the first frame. Returns the session that it names.
    pub(super) async fn open(
        &self,
        inbound: &mut Streaming<CacheUp>,
        identity: Option<&Identified>,
    ) -> Result<Arc<Session>, CachingStreamEnd> {
        let first = tokio::select! {
            () = self.draining.sends_away() => return Err(self.drained()),
            first = tokio::time::timeout(OPEN_TIMEOUT, inbound.next()) => first,
        };
        let frame = match first {
            Err(_) => {
                let message = format!("the first frame must be Open, within {OPEN_TIMEOUT:?}");
                return Err(CachingStreamEnd::malformed(message));
            }
            Ok(None) => return Err(CachingStreamEnd::Gone("it ended before its first frame")),
            Ok(Some(Err(_))) => return Err(CachingStreamEnd::Gone("its first frame cannot be read")),
            Ok(Some(Ok(frame))) => frame.frame,
        };
        match frame {
            Some(cache_up::Frame::Open(open)) => self.session_of(&open, identity),
            _ => Err(CachingStreamEnd::malformed("the first frame must be Open")),
        }
    }

    /// The connected session that Open names.
    fn session_of(
        &self,
        open: &Open,
        identity: Option<&Identified>,
    ) -> Result<Arc<Session>, CachingStreamEnd> {
        let own = &self.context.settings.replica_id;
        let Open { agent_id, boot_id, session_id, replica_id, .. } = open;
        let claim = StreamClaim { agent_id, boot_id, session_id, replica_id, identity };
        self.sessions.of_stream(&claim).ok_or_else(|| {
            let agent: String = open.agent_id.chars().take(191).collect();
            let message = format!(
                "agent {agent:?} has no session of this id and process at replica {own}; \
                 open the stream where the session is"
            );
            CachingStreamEnd::closed(Reason::WrongReplica, message)
        })
    }

    /// End of a stream while the replica drains its agents.
    pub(super) fn drained(&self) -> CachingStreamEnd {
        CachingStreamEnd::closed(Reason::Draining, format!("{}; connect anew", self.draining.reason()))
    }

    /// Whether the agent of a session streams an account under an epoch.
    pub(super) fn assignment(&self, session: &Session, uid: &str, epoch: CachingEpoch) -> AssignmentState {
        let Some(account) = self.context.accounts.by_uid(uid) else {
            return if self.context.accounts.is_synced() {
                AssignmentState::Revoked(revoked::Reason::AccountGone)
            } else {
                AssignmentState::Pending
            };
        };
        let elected = account.status_or_default().caching.as_ref().map(|caching| caching.epoch);
        if elected.is_some_and(|elected| elected > epoch) {
            return AssignmentState::Revoked(self.superseded(session, uid));
        }
        // The agent's claim does not count: the fence was raised for this very session.
        if session.cached.lock().fenced_at(uid) == Some(epoch) {
            AssignmentState::Stands(account.account_name().into())
        } else {
            AssignmentState::Pending
        }
    }

    /// Reason of a higher fence, which ends the session's stream of an account.
    pub(super) fn superseded(&self, session: &Session, uid: &str) -> revoked::Reason {
        let Some(account) = self.context.accounts.by_uid(uid) else { return revoked::Reason::AccountGone };
        let status = account.status_or_default();
        let is_own = status.caching.as_ref().is_some_and(|caching| {
            caching.agent_id.as_ref() == Some(&session.agent.id)
                && caching.boot_id.as_ref() == Some(&session.agent.boot_id)
        });
        if is_own { revoked::Reason::Reelected } else { revoked::Reason::Superseded }
    }
}
