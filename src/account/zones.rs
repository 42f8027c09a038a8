//! Which zones matter to an account.

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
pub fn asks(account: &KubesvcAccount) -> bool {
    let status = account.status_or_default();
    status.state() == State::ToMigrate
        && status.phase() == GrantPhase::None
        && account.desired() == DesiredState::Active
        && account.spec.zone_id.is_none()
        && !account.is_being_deleted()
}
