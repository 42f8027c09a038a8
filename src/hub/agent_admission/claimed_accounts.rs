//! Accounts that an agent claims in its hello to hold. Accounts of its zone are always accepted; accounts of other
//! zones (foreign ones) within bounds, so that a hello cannot fill the memory. The rest is accepted when the agent
//! says Hello again.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, TryAcquireError};

use crate::hub::agent_admission::Admission;
use crate::hub::agent_admission::hello::{AcceptedHello, HelloRefusal};
use crate::hub::agent_admission::queue::AdmissionClass;
use crate::hub::sessions::ledger::HeldClaim;
use kubesvc_core::wire::ops::refused::Reason;

/// Maximum number of foreign accounts accepted from one hello.
const MAX_FOREIGN: usize = 10_000;
/// Maximum number of foreign accounts of all sessions of a replica.
pub(super) const MAX_FOREIGN_OF_REPLICA: usize = 200_000;
/// Maximum number of claims accepted before the accounts are listed: until then all of them look foreign.
const MAX_UNLISTED: usize = 1000;
/// Time limit for the list of accounts; shorter than an agent's wait for the answer to its hello.
const ACCOUNT_LIST_TIMEOUT: Duration = Duration::from_secs(4);
/// Delay given to an agent whose claims cannot be judged because the accounts are not listed yet.
const UNLISTED_RETRY: Duration = Duration::from_secs(5);
/// Delay given to a newcomer whose claims exceed the free permits.
const LIMIT_REACHED_RETRY: Duration = Duration::from_secs(60);

/// The foreign accounts of a hello.
#[derive(Debug, Default)]
pub(crate) struct ForeignClaims {
    /// Uids of the accepted ones.
    pub(crate) uids: HashSet<String>,
    /// Their permits; zero permits if none were free.
    pub(crate) permit: Option<OwnedSemaphorePermit>,
    /// Whether there are more.
    pub(crate) more: bool,
}

impl Admission {
    /// Removes the claims from a hello that are not accepted now.
    pub(super) async fn limit(
        &self,
        greeting: &mut AcceptedHello,
        class: AdmissionClass,
    ) -> Result<ForeignClaims, HelloRefusal> {
        if class == AdmissionClass::Unapproved {
            greeting.ignore_claims();
            return Ok(ForeignClaims::default());
        }
        if !self.context.accounts.is_synced() {
            if greeting.held.len() <= MAX_UNLISTED {
                return Ok(ForeignClaims::default());
            }
            if tokio::time::timeout(ACCOUNT_LIST_TIMEOUT, self.context.accounts.synced()).await.is_err() {
                let message = "the operator has not listed the accounts yet";
                return Err(HelloRefusal::for_now(Reason::Overloaded, message, UNLISTED_RETRY));
            }
        }
        let is_of_zone = |uid: &str| {
            let account = self.context.accounts.by_uid(uid);
            account.is_some_and(|account| account.zones().contains(&greeting.agent.zone))
        };
        let mut foreign = sort_out(&greeting.held, is_of_zone);
        let wanted = foreign.uids.len();
        let permit = self.permits_for(wanted);
        let had = permit.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        if had < wanted {
            if class == AdmissionClass::Newcomer {
                let message = "agents claim too many accounts that are none of their zones";
                return Err(HelloRefusal::for_now(Reason::Overloaded, message, LIMIT_REACHED_RETRY));
            }
            foreign.uids = std::mem::take(&mut foreign.uids).into_iter().take(had).collect();
            foreign.more = true;
        }
        foreign.permit = permit;
        let uids = &foreign.uids;
        greeting.held.retain(|claim| uids.contains(&claim.uid) || is_of_zone(&claim.uid));
        greeting.held.shrink_to_fit();
        let held: HashSet<_> = greeting.held.iter().map(|claim| claim.uid.as_str()).collect();
        greeting.cached.retain(|(uid, _)| held.contains(uid.as_str()));
        greeting.cached.shrink_to_fit();
        Ok(foreign)
    }

    /// Takes permits for up to `wanted` foreign accounts: those that are free, even if there are none.
    fn permits_for(&self, wanted: usize) -> Option<OwnedSemaphorePermit> {
        loop {
            let free = self.foreign_claims.available_permits().min(wanted);
            match Arc::clone(&self.foreign_claims).try_acquire_many_owned(u32::try_from(free).ok()?) {
                Ok(permit) => return Some(permit),
                // Another hello has taken some of them meanwhile.
                Err(TryAcquireError::NoPermits) => {}
                Err(TryAcquireError::Closed) => return None,
            }
        }
    }
}

/// Returns the first [`MAX_FOREIGN`] accounts of other zones. Looks up each claim once.
fn sort_out(held: &[HeldClaim], is_of_zone: impl Fn(&str) -> bool) -> ForeignClaims {
    let mut foreign = ForeignClaims::default();
    for HeldClaim { uid, .. } in held {
        if is_of_zone(uid) || foreign.uids.contains(uid) {
            continue;
        }
        if foreign.uids.len() == MAX_FOREIGN {
            foreign.more = true;
            break;
        }
        foreign.uids.insert(uid.clone());
    }
    foreign
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_thousand_foreign_claims_are_accepted_at_once_and_each_is_checked_once() {
        let claim = HeldClaim::of_test;
        let looks = std::cell::Cell::new(0);
        let is_of_zone = |uid: &str| {
            looks.set(looks.get() + 1);
            uid.starts_with("known")
        };
        let mut held: Vec<_> = (0..5000).map(|one| claim(&format!("known-{one}"))).collect();
        held.extend((0..10_000).map(|one| claim(&format!("unknown-{one}"))));
        let foreign = sort_out(&held, is_of_zone);
        assert_eq!((foreign.uids.len(), foreign.more, looks.get()), (10_000, false, 15_000));
        held.push(claim("unknown-0"));
        assert!(!sort_out(&held, is_of_zone).more, "it was counted");
        held.push(claim("unknown-more"));
        let foreign = sort_out(&held, is_of_zone);
        assert!(foreign.more && foreign.uids.len() == MAX_FOREIGN && !foreign.uids.contains("unknown-more"));
    }
}
