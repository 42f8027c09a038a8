//! When a failed account is tried again.

use std::borrow::Cow;

use sha2::{Digest, Sha256};

use super::facts::Facts;
use super::observation::{Fact, LifecyclePolicy, Tick};
use crate::GrantPhase;
use crate::failure::{Failure, FailureClass, Outlook};

/// The longest value of the annotation `kubesvc.io/retry` that is kept as it is, in bytes.
const MAX_RETRY_MARK_BYTES: usize = 256;

/// What is kept of a value of the annotation `kubesvc.io/retry`: the value, or the digest of one that is too long.
pub(super) fn mark(asked: &str) -> Cow<'_, str> {
    if asked.len() <= MAX_RETRY_MARK_BYTES {
        return Cow::Borrowed(asked);
    }
    Cow::Owned(format!("sha256:{}", hex::encode(Sha256::digest(asked))))
}

/// What happens after a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RetryPlan {
    /// Ticks until the next try; absent: none by itself.
    pub(super) after: Option<Tick>,
    /// Whether people are told that it stalls.
    pub(super) stalled: bool,
}

/// What happens after a failure of this class, when `failed_count` tries have failed in a row.
///
/// `maxRetries` counts the tries after the first one. What may pass by itself goes on being tried after that, at the
/// slowest pace; what cannot pass stalls at once.
fn plan(class: FailureClass, failed_count: i32, uid: &str, policy: &LifecyclePolicy) -> RetryPlan {
    if waits_for_agents(class) {
        return RetryPlan { after: None, stalled: false };
    }
    let tries_left = i64::from(failed_count) <= i64::from(policy.max_retries);
    match class.outlook() {
        Outlook::CannotPass => RetryPlan { after: None, stalled: true },
        _ if tries_left => RetryPlan { after: Some(backoff(failed_count, uid, policy)), stalled: false },
        Outlook::MayPass => RetryPlan { after: Some(policy.retry_max.max(1)), stalled: true },
        Outlook::NeedsSomeone => RetryPlan { after: None, stalled: true },
    }
}

/// What happens after a failure of this account: as [`plan`] says, with deletion tried without a limit, and with none
/// for a credential that the cluster refuses while an agent holds it.
pub(super) fn after_failure(facts: &Facts<'_>, class: FailureClass, failed_count: i32) -> RetryPlan {
    let (account, policy) = (facts.observation.account, facts.observation.policy);
    if account.is_being_deleted() {
        return RetryPlan { after: Some(backoff(failed_count, account.uid(), policy)), stalled: true };
    }
    if class == FailureClass::Auth && facts.reports().refused.is_some() {
        // The agent that holds it asks the cluster itself; to send it the same credential again would change nothing.
        return RetryPlan { after: None, stalled: true };
    }
    plan(class, failed_count, account.uid(), policy)
}

/// When a FAILED account may be tried again.
pub(super) enum Due {
    /// Now.
    Now,
    /// At this tick, unless something changes before.
    At(Tick),
    /// Only when something changes.
    OnChange,
}

/// When this FAILED or DELETE_FAILED account may be tried again.
pub(super) fn due(facts: &Facts<'_>) -> Due {
    let observation = facts.observation;
    let judged_otherwise = observation.credential_changed && facts.status.phase() != GrantPhase::Revoking;
    let class = facts.failure_class().unwrap_or(FailureClass::Internal);
    let rival_is_gone = class == FailureClass::DuplicateName && observation.rival.is_none();
    let forbidden = |failure: &Failure| failure.class == FailureClass::SourceForbidden;
    let may_use_its_source = class == FailureClass::SourceForbidden
        && !matches!(&observation.credential, Fact::Known(Err(failure)) if forbidden(failure));
    if facts.starts_anew() || judged_otherwise || rival_is_gone || may_use_its_source {
        return Due::Now;
    }
    match after_failure(facts, class, facts.status.failed_count).after {
        None => Due::OnChange,
        Some(after) => {
            let at = observation.in_state_since.saturating_add(after);
            if at <= observation.now { Due::Now } else { Due::At(at) }
        }
    }
}

/// Whether a failure uses no retry up and passes when an agent connects or leaves, or a row that is in the way goes.
pub(super) fn waits_for_agents(class: FailureClass) -> bool {
    matches!(class, FailureClass::NoAgent | FailureClass::ZoneAmbiguous | FailureClass::RowExists)
}

/// Ticks until the retry after `failed_count` failures: the first pace times the multiplier for each further one, with
/// up to a fifth more that differs from account to account, and at most `retry_max`. At least 1.
fn backoff(failed_count: i32, uid: &str, policy: &LifecyclePolicy) -> Tick {
    let exponent = failed_count.max(1) - 1;
    let paced = policy.retry_first as f64 * policy.retry_multiplier.max(1.0).powi(exponent.min(64));
    let jittered = paced * (1.0 + 0.2 * spread(uid, failed_count));
    (jittered.min(policy.retry_max as f64).round() as Tick).max(1)
}

/// A number in 0..1 that is the same for the same account and count: jitter without a source of randomness.
fn spread(uid: &str, failed_count: i32) -> f64 {
    let digest =
        Sha256::new().chain_update(uid.as_bytes()).chain_update(failed_count.to_be_bytes()).finalize();
    f64::from(u16::from_be_bytes([digest[0], digest[1]])) / f64::from(u16::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retries_start_at_the_documented_five_seconds_and_double() {
        let policy = LifecyclePolicy::default();
        for (count, least) in [(1, 5), (2, 10), (3, 20)] {
            let delay = backoff(count, "uid", &policy);
            assert!((least..=least + least / 5 + 1).contains(&delay), "try {count} after {delay}");
        }
    }

    #[test]
    fn a_multiplier_of_one_is_the_documented_fixed_pace() {
        let policy = LifecyclePolicy { retry_multiplier: 1.0, ..LifecyclePolicy::default() };
        assert!((1..=40).all(|count| (5..=6).contains(&backoff(count, "uid", &policy))));
    }

    #[test]
    fn no_wait_exceeds_the_maximum() {
        let policy = LifecyclePolicy::default();
        assert!((1..=200).all(|count| backoff(count, "uid", &policy) <= 300));
    }

    #[test]
    fn four_failures_stall_and_what_may_pass_goes_on() {
        let policy = LifecyclePolicy::default();
        assert!(!plan(FailureClass::Unreachable, 3, "u", &policy).stalled);
        assert_eq!(
            plan(FailureClass::Unreachable, 4, "u", &policy),
            RetryPlan { after: Some(300), stalled: true }
        );
        assert_eq!(plan(FailureClass::Forbidden, 4, "u", &policy), RetryPlan { after: None, stalled: true });
    }

    #[test]
    fn what_cannot_pass_stalls_at_the_first_failure() {
        let plan = plan(FailureClass::ExecForbidden, 1, "u", &LifecyclePolicy::default());
        assert_eq!(plan, RetryPlan { after: None, stalled: true });
    }
}
