//! What the condition `SpinnakerRegistered` of an account says.

use kubesvc_core::KubesvcAccount;
use kubesvc_core::lifecycle::Fact;
use kubesvc_core::registration::{RegistrationCondition, RegistrationReason};

use super::definition::unsent_fields;
use super::{Eligibility, FailureKind, RegisteredRow, RowState, Situation};

/// What is so of Clouddriver as a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClouddriverSituation {
    /// Registered accounts that have been stored since before the last two lists.
    pub stored: usize,
    /// Those of them that the newest list has.
    pub loaded: usize,
}

/// What the condition of an account shall say; `Unknown`: what it says already.
pub fn condition(
    account: &KubesvcAccount,
    eligibility: &Eligibility,
    situation: &Situation<'_>,
    clouddriver: ClouddriverSituation,
) -> Fact<Option<RegistrationCondition>> {
    let own = situation.row.filter(|row| row.account_uid == account.uid());
    let is_not =
        |reason, message: String| Fact::Known(Some(RegistrationCondition { holds: false, reason, message }));
    if let Eligibility::NotPortable(why) = eligibility {
        return is_not(RegistrationReason::NameNotPortable, why.clone());
    }
    match own {
        Some(row) if row.state == RowState::Removing => match situation.attempts.failure() {
            Some(failure) => is_not(reason(failure.kind), format!("still registered: {}", failure.message)),
            None => {
                is_not(RegistrationReason::LeavingClouddriver, "it is removed from Clouddriver".to_owned())
            }
        },
        None if *eligibility == Eligibility::Excluded => Fact::Known(None),
        None if situation.attempts.is_in_conflict() => is_not(
            RegistrationReason::Conflict,
            format!(
                "Clouddriver has an account {:?} that kubesvc did not register, and it is left: remove it there, or give \
                 this account another spec.accountName",
                situation.name
            ),
        ),
        None | Some(RegisteredRow { state: RowState::Adding, .. }) => not_stored(situation),
        Some(_) => stored(account, situation, clouddriver),
    }
}

fn reason(kind: FailureKind) -> RegistrationReason {
    match kind {
        FailureKind::Rejected => RegistrationReason::Rejected,
        FailureKind::Forbidden => RegistrationReason::Forbidden,
        FailureKind::StorageOff => RegistrationReason::StorageOff,
        FailureKind::Unreachable => RegistrationReason::Unreachable,
    }
}

/// An account that is to be stored.
fn not_stored(situation: &Situation<'_>) -> Fact<Option<RegistrationCondition>> {
    let failure = situation.attempts.failure().or(situation.listing.failure());
    let is_wanted = matches!(situation.wanted, super::Wanted::Registered { .. });
    match failure.filter(|_| is_wanted) {
        Some(failure) => Fact::Known(Some(RegistrationCondition {
            holds: false,
            reason: reason(failure.kind),
            message: failure.message.clone(),
        })),
        None => Fact::Unknown,
    }
}

/// An account that is stored. That is no proof that it is loaded: a definition with a mistake is stored too.
fn stored(
    account: &KubesvcAccount,
    situation: &Situation<'_>,
    clouddriver: ClouddriverSituation,
) -> Fact<Option<RegistrationCondition>> {
    let (listing, attempts) = (situation.listing, situation.attempts);
    let is_not = |reason, message: &str| {
        Fact::Known(Some(RegistrationCondition { holds: false, reason, message: message.to_owned() }))
    };
    if attempts.has_drifted() {
        return is_not(
            RegistrationReason::Drift,
            "its row in Clouddriver was changed there, and is left: change it back, or set \
             kubesvc.clouddriver.push.force: true",
        );
    }
    let is_read_twice = attempts.stored_since().is_some_and(|since| listing.is_read_twice_since(since));
    if !listing.is_current() || !is_read_twice {
        return Fact::Unknown;
    }
    if listing.has(situation.name) {
        let unsent = unsent_fields(account);
        let mut message = "Clouddriver has the account".to_owned();
        if !unsent.is_empty() {
            message.push_str(&format!("; without effect there: {}", unsent.join(", ")));
        }
        return Fact::Known(Some(RegistrationCondition {
            holds: true,
            reason: RegistrationReason::Pushed,
            message,
        }));
    }
    if clouddriver.stored > 0 && clouddriver.loaded == 0 {
        return is_not(
            RegistrationReason::PollerOff,
            "Clouddriver has stored the accounts and loads none of them: set credentials.poller.enabled and \
             account.storage.kubernetes.enabled there",
        );
    }
    is_not(
        RegistrationReason::NotLoaded,
        "Clouddriver has stored the account and does not load it, or does not show it to kubesvc: see Clouddriver's log",
    )
}
