//! What the condition `SpinnakerRegistered` of an account says.

use kubesvc_core::lifecycle::Fact;
use kubesvc_core::registration::{AlsoCondition, RegistrationCondition, RegistrationReason};
use kubesvc_core::{KubesvcAccount, ORIGIN_LABEL, ORIGIN_MIGRATED};

use super::definition::unsent_fields;
use super::{Eligibility, FailureKind, LoadedNames, NameSituation, RegisteredRow, RowState};

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
    situation: &NameSituation<'_>,
    clouddriver: ClouddriverSituation,
) -> Fact<Option<RegistrationCondition>> {
    let own = situation.row.filter(|row| row.account_uid == account.uid());
    let is_not =
        |reason, message: String| Fact::Known(Some(RegistrationCondition { holds: false, reason, message }));
    if let Eligibility::Unfit { reason, why } = eligibility {
        return is_not(*reason, why.clone());
    }
    match own {
        Some(_) if situation.attempts.has_left(situation.name, situation.listing) => Fact::Known(None),
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
        Some(row) => stored(account, row, situation, clouddriver),
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
fn not_stored(situation: &NameSituation<'_>) -> Fact<Option<RegistrationCondition>> {
    let failure = situation.attempts.failure().or(situation.listing.failure());
    let is_known =
        matches!(situation.wanted, super::Wanted::Registered { .. }) && !situation.attempts.is_unresolved();
    match failure.filter(|_| is_known) {
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
    row: &RegisteredRow,
    situation: &NameSituation<'_>,
    clouddriver: ClouddriverSituation,
) -> Fact<Option<RegistrationCondition>> {
    let (listing, attempts) = (situation.listing, situation.attempts);
    let is_not = |reason, message: &str| {
        Fact::Known(Some(RegistrationCondition { holds: false, reason, message: message.to_owned() }))
    };
    let is_current = match situation.wanted {
        super::Wanted::Registered { hash, .. } => row.body_hash.as_ref() == Some(hash),
        super::Wanted::Kept { .. } | super::Wanted::Absent => true,
    };
    if attempts.is_hidden() && !is_current {
        return is_not(
            RegistrationReason::Forbidden,
            "Clouddriver shows kubesvc no row of the account, so that its change is not sent: \
             kubesvc.clouddriver.push.user must be an admin in Fiat; or somebody deleted the row",
        );
    }
    if attempts.has_drifted() && is_current {
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
    if !listing.lacks(situation.name) {
        return Fact::Unknown;
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

/// What the condition `ClouddriverAlso` of an account says; `listing` is `None` where Clouddriver is not called, and
/// `is_own` says that kubesvc registered the account. Only migrated accounts have it.
pub fn also_condition(
    account: &KubesvcAccount,
    listing: Option<&LoadedNames>,
    is_own: bool,
) -> Fact<Option<AlsoCondition>> {
    let said = |holds, reason, message: String| Fact::Known(Some(AlsoCondition { holds, reason, message }));
    if account.label(ORIGIN_LABEL) != Some(ORIGIN_MIGRATED) {
        return Fact::Known(None);
    }
    let name = account.account_name();
    match listing {
        None => said(
            None,
            "NoClouddriver",
            "whether Clouddriver has the account too is not known: set kubesvc.clouddriver.baseUrl"
                .to_owned(),
        ),
        Some(listing) if !is_own && listing.has(name) => said(
            Some(true),
            "ListedByClouddriver",
            format!(
                "Clouddriver has an account {name:?} of its own, and deploys to the cluster itself: remove it there, or \
                 give it a kubeconfig for the API of accounts (docs/beside-clouddriver.md)"
            ),
        ),
        Some(listing) if is_own || listing.lacks(name) => said(
            Some(false),
            "OnlyKubesvc",
            "Clouddriver has no account of this name but the one that kubesvc registered, if any".to_owned(),
        ),
        Some(_) => Fact::Unknown,
    }
}
