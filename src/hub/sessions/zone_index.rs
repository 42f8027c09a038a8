//! Index of accounts by zone: an agent that connects or leaves costs no walk over all accounts.

use std::collections::{HashMap, HashSet};

use crate::account::zones::{takes_any_zone, zones_of};
use crate::account::{DesiredState, KubesvcAccount};
use crate::hub::zone_probes::probe::ProbeRound;
use crate::objects::AccountKey;

#[derive(Debug, PartialEq, Eq)]
struct IndexedAccount {
    uid: String,
    /// Zones of the grant, of the spec and of the last grant, without duplicates.
    zones: Vec<String>,
}

/// Accounts by zone.
#[derive(Debug, Default)]
pub(in crate::hub) struct ZoneIndex {
    by_key: HashMap<AccountKey, IndexedAccount>,
    by_zone: HashMap<String, HashSet<String>>,
    anywhere: HashSet<String>,
    probing: HashSet<String>,
}

impl ZoneIndex {
    /// Updates or removes the account of a key. Returns its uids before and after.
    pub(in crate::hub) fn put(&mut self, key: &AccountKey, account: Option<&KubesvcAccount>) -> Vec<String> {
        let mut uids = Vec::with_capacity(2);
        if let Some(old) = self.by_key.remove(key) {
            self.leave(&old);
            uids.push(old.uid);
        }
        let Some(account) = account else { return uids };
        let place = IndexedAccount { uid: account.uid().to_owned(), zones: zones_of(account) };
        if takes_any_zone(account) && account.desired() == DesiredState::Active {
            self.anywhere.insert(place.uid.clone());
        }
        if ProbeRound::of(account).is_some() {
            self.probing.insert(place.uid.clone());
        }
        for zone in &place.zones {
            self.by_zone.entry(zone.clone()).or_default().insert(place.uid.clone());
        }
        if !uids.contains(&place.uid) {
            uids.push(place.uid.clone());
        }
        self.by_key.insert(key.clone(), place);
        uids
    }

    /// Returns the accounts that are granted to the zone, pinned to it, or were granted to it last.
    pub(in crate::hub) fn of_zone(&self, zone: &str) -> Vec<String> {
        self.by_zone.get(zone).map(|uids| uids.iter().cloned().collect()).unwrap_or_default()
    }

    /// Returns the accounts that wait for any zone.
    pub(in crate::hub) fn without_zone(&self) -> Vec<String> {
        self.anywhere.iter().cloned().collect()
    }

    /// Returns the accounts that every agent is probed for.
    pub(in crate::hub) fn probing(&self) -> Vec<String> {
        self.probing.iter().cloned().collect()
    }

    fn leave(&mut self, place: &IndexedAccount) {
        self.anywhere.remove(&place.uid);
        self.probing.remove(&place.uid);
        for zone in &place.zones {
            if let Some(uids) = self.by_zone.get_mut(zone) {
                uids.remove(&place.uid);
                if uids.is_empty() {
                    self.by_zone.remove(zone);
                }
            }
        }
    }
}
