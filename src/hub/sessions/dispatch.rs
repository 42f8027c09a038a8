//! Routing of account changes to sessions.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::hub::sessions::Sessions;
use crate::hub::zone_probes::ZoneProbes;
use crate::hub::zone_probes::probe::ProbeRound;
use crate::objects::AccountKey;

/// Maximum number of changes routed in one pass.
const MAX_CHANGES_PER_PASS: usize = 1000;

/// Wakes, for each changed account, the sessions of the zone that has the grant and the sessions that have the account in
/// their ledger.
pub(in crate::hub) async fn route_changes(
    sessions: Arc<Sessions>,
    zone_probes: Arc<ZoneProbes>,
    stop: CancellationToken,
) {
    let accounts = &sessions.context.accounts;
    let changed = accounts.follow();
    let mut synced = false;
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = accounts.synced(), if !synced => {
                synced = true;
                // Accounts without an object may be dropped only from now on.
                for session in sessions.registry.connected() {
                    session.wakes.wake_all(session.uids());
                }
            }
            keys = changed.take(MAX_CHANGES_PER_PASS) => {
                keys.iter().for_each(|key| route(&sessions, &zone_probes, key));
            }
        }
    }
}

fn route(sessions: &Sessions, zone_probes: &ZoneProbes, key: &AccountKey) {
    let account = sessions.context.accounts.get(key);
    let uids = sessions.zone_index.lock().put(key, account.as_deref());
    let round = account.as_deref().and_then(|account| Some((account.uid(), ProbeRound::of(account)?)));
    for uid in uids {
        sessions.account_changed(&uid);
        if round.is_none_or(|(asking, _)| asking != uid) {
            for session in zone_probes.close(&uid) {
                session.wakes.wake(uid.clone());
            }
        }
    }
    let Some(account) = &account else { return };
    if let Some((uid, round)) = round {
        let told = zone_probes.announce(uid, round);
        told.iter().for_each(|session| session.wakes.wake(uid.to_owned()));
    }
    if let Some(zone) = account.spec.zone_id.as_deref().filter(|_| account.is_static()) {
        sessions.registry.in_zone(zone, |zone| {
            zone.connected.values().for_each(|session| session.own.changed.notify_one());
        });
    }
    if let Some(zone) = account.status_or_default().granted_zone() {
        sessions.registry.in_zone(zone, |zone| {
            for session in zone.connected.values() {
                session.wakes.wake(account.uid().to_owned());
            }
        });
    }
}
