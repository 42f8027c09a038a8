//! Which zones matter to an account.

use sha2::{Digest, Sha256};

use super::{DesiredState, GrantPhase, KubesvcAccount, State};

/// The zones relevant to an account: of its grant, of its spec, and, if the spec names none, of its last grant.
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

/// Whether any zone with agents may matter to the account: it is pinned to none, and is granted to none or has
/// trouble in the current one.
pub fn takes_any_zone(account: &KubesvcAccount) -> bool {
    let status = account.status_or_default();
    let may_leave = matches!(status.state(), State::Activating | State::Orphaned | State::Failed);
    account.spec.zone_id.is_none() && (status.granted_zone().is_none() || may_leave)
}

/// Whether the account is looking for a zone by asking every agent.
pub fn needs_zone_probe(account: &KubesvcAccount) -> bool {
    let status = account.status_or_default();
    status.state() == State::ToMigrate
        && status.phase() == GrantPhase::None
        && account.desired() == DesiredState::Active
        && account.spec.zone_id.is_none()
        && !account.is_being_deleted()
}

/// An id of the account's current probe round; `None` if it does not probe. A new round starts, and answers of
/// earlier ones no longer count, with each new spec, new credential, failed attempt and requested retry, and each
/// time that probing begins.
pub fn probe_round(account: &KubesvcAccount) -> Option<String> {
    if !needs_zone_probe(account) {
        return None;
    }
    let status = account.status_or_default();
    // Stored objects have a resolution of one second.
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
