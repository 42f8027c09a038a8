//! Which zones matter to an account.

use sha2::{Digest, Sha256};

use super::{DesiredState, GrantPhase, KubesvcAccount, State};

/// The zones that an account has to do with: of its grant, of its spec, and of its last grant where the spec names none.
pub fn zones_of(account: &KubesvcAccount) -> Vec<String> {
    let status = account.status_or_default();
    let pinned = account.spec.zone_id.as_deref();
    let last = if pinned.is_none() { status.zone_id.as_deref() } else { None };
    let mut zones = Vec::with_capacity(2);
    for zone in [status.granted_zone(), pinned, last].into_iter().flatten() {
        if !zones.iter().any(|one| one == zone) {
            zones.push(zone.to_owned());
        }
    }
    zones
}

/// Whether any zone that has agents may matter to the account: it is pinned to none, and granted to none or not well
/// where it is.
pub fn takes_any_zone(account: &KubesvcAccount) -> bool {
    let status = account.status_or_default();
    let may_leave = matches!(status.state(), State::Activating | State::Orphaned | State::Failed);
    account.spec.zone_id.is_none() && (status.granted_zone().is_none() || may_leave)
}

/// Whether the account looks for a zone by asking every agent.
pub fn needs_zone_probe(account: &KubesvcAccount) -> bool {
    let status = account.status_or_default();
    status.state() == State::ToMigrate
        && status.phase() == GrantPhase::None
        && account.desired() == DesiredState::Active
        && account.spec.zone_id.is_none()
        && !account.is_being_deleted()
}

/// Names the round of asking that the account is in; absent: it does not ask. What was answered in another round counts
/// no more: a new spec, a new credential, a failed try, a retry that someone asked for, and each time it begins to ask.
pub fn probe_round(account: &KubesvcAccount) -> Option<String> {
    if !needs_zone_probe(account) {
        return None;
    }
    let status = account.status_or_default();
    // Stored objects keep whole seconds.
    let since = status.last_transition_time.as_ref().map(|time| time.0.as_second());
    let texts =
        [&status.credential_version, &status.retry_handled].map(|text| text.as_deref().unwrap_or("-"));
    let mut digest = Sha256::new();
    for number in
        [account.generation(), status.epoch.0, status.failed_count.into(), since.unwrap_or_default()]
    {
        digest.update(number.to_be_bytes());
    }
    texts.iter().for_each(|text| digest.update(Sha256::digest(text)));
    Some(hex::encode(&digest.finalize()[..8]))
}
