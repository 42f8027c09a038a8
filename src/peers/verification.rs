//! Which of the discovered addresses are replicas: those that have answered with a certificate of the replicas' authority. Next
//! to a real Clouddriver, the default Service prefix also matches Clouddriver's own pods.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::join_all;
use parking_lot::Mutex;
use tracing::info;

use super::PeerTransport;
use super::calls::ReachAnswer;
use super::client::PeerCall;
use super::membership::{Membership, Replica};
use kubesvc_core::ReplicaId;
use kubesvc_runtime::background_tasks::{AttemptOutcome, BackgroundTasks, TaskSpec};

/// Interval between scans for replicas that are due for verification.
const SCAN_INTERVAL: Duration = Duration::from_millis(500);
/// First delay after a question without a signed answer; it doubles up to [`MAX_RETRY_DELAY`].
const FIRST_RETRY_DELAY: Duration = Duration::from_secs(1);
/// Maximum delay between two questions to an address that has never answered.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(60);

/// Verified replicas, by id and by where they take calls.
#[derive(Debug, Default)]
pub(super) struct VerifiedPeers(Mutex<HashMap<(ReplicaId, String), Verification>>);

#[derive(Clone, Copy, Debug)]
enum Verification {
    /// The replica has answered.
    Given,
    /// The replica has not answered; it is asked again at `ask_at`, after `wait`.
    Missing { ask_at: Instant, wait: Duration },
}

impl VerifiedPeers {
    /// Whether this replica has answered.
    pub(super) fn has(&self, replica: &Replica) -> bool {
        matches!(self.0.lock().get(&of(replica)), Some(Verification::Given))
    }

    /// Records that this replica has answered.
    pub(super) fn given(&self, replica: &Replica) {
        self.0.lock().insert(of(replica), Verification::Given);
    }

    /// Forgets all replicas but these, and returns those that must be asked now. They count as asked.
    fn due(&self, replicas: &[Replica], now: Instant) -> Vec<Replica> {
        let mut proofs = self.0.lock();
        proofs.retain(|(id, at), _| replicas.iter().any(|one| one.id == *id && one.calls_at == *at));
        let is_due = |replica: &&Replica| {
            let wait = match proofs.get(&of(replica)) {
                Some(Verification::Given) => return false,
                Some(Verification::Missing { ask_at, .. }) if *ask_at > now => return false,
                Some(Verification::Missing { wait, .. }) => (*wait * 2).min(MAX_RETRY_DELAY),
                None => FIRST_RETRY_DELAY,
            };
            proofs.insert(of(replica), Verification::Missing { ask_at: now + wait, wait });
            true
        };
        replicas.iter().filter(is_due).cloned().collect()
    }
}

fn of(replica: &Replica) -> (ReplicaId, String) {
    (replica.id.clone(), replica.calls_at.clone())
}

/// Asks each unverified replica until the process stops. `is_self` identifies this replica, which is not asked.
pub(super) fn start(
    background: &BackgroundTasks,
    link: Arc<PeerTransport>,
    membership: Arc<Membership>,
    is_self: impl Fn(&Replica) -> bool + Send + Sync + 'static,
) {
    let task = TaskSpec::new("proofs of the other replicas", "Asks who does not count as a replica yet");
    background.start(task.every(SCAN_INTERVAL).at_start(), move |_| {
        let others: Vec<_> = membership.replicas().iter().filter(|one| !is_self(one)).cloned().collect();
        ask_due(Arc::clone(&link), others)
    });
}

async fn ask_due(link: Arc<PeerTransport>, others: Vec<Replica>) -> AttemptOutcome {
    let due = link.verified.due(&others, Instant::now());
    let ask = PeerCall::get("/internal/v1/reach");
    join_all(due.iter().map(|replica| async {
        // `ask` records every answer, whatever it says: the connection has proved who gives it.
        let answer = link.client.ask::<ReachAnswer>(replica, &ask).await;
        match answer {
            _ if link.verified.has(replica) => {}
            Ok(_) => {}
            Err(problem) => info!(
                replica = replica.id.as_str(),
                address = replica.calls_at,
                error = %problem,
                "not counted as a replica until it answers with a certificate of the replicas' authority"
            ),
        }
    }))
    .await;
    AttemptOutcome::Done
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    fn replica(id: &str, calls_at: &str) -> Replica {
        Replica {
            calls_at: calls_at.to_owned(),
            id: id.into(),
            base_url: String::new(),
            ready: true,
            last_updated: Timestamp::UNIX_EPOCH,
            named: true,
        }
    }

    #[test]
    fn one_without_a_proof_is_asked_ever_less_often_and_one_with_a_proof_not_at_all() {
        let (proofs, begun) = (VerifiedPeers::default(), Instant::now());
        let all = [replica("a", "a:7004"), replica("b", "b:7004")];
        let due = |seconds| {
            let due = proofs.due(&all, begun + Duration::from_secs(seconds));
            due.into_iter().map(|one| one.id).collect::<Vec<_>>()
        };
        assert_eq!(due(0), ["a", "b"]);
        proofs.given(&all[0]);
        assert!(proofs.has(&all[0]) && !proofs.has(&all[1]));
        let asked: Vec<_> = (0..200).filter(|second| !due(*second).is_empty()).collect();
        assert_eq!(asked, [1, 3, 7, 15, 31, 63, 123, 183]);
    }

    #[test]
    fn a_proof_goes_with_the_address_and_with_its_replica() {
        let (proofs, now) = (VerifiedPeers::default(), Instant::now());
        let old = replica("a", "10.0.0.1:7004");
        proofs.due(std::slice::from_ref(&old), now);
        proofs.given(&old);
        let moved = replica("a", "10.0.0.2:7004");
        assert_eq!(proofs.due(std::slice::from_ref(&moved), now), [moved]);
        assert!(!proofs.has(&old), "it is not remembered");
    }
}
