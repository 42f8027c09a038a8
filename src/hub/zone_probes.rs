//! Zone probes: asks agents whether they can reach an account that has no zone.
//!
//! | module | owns |
//! |---|---|
//! | [`probe`] | the probes of one session and their retry times; pure |
//! | [`offers`] | answers of all sessions, by account and zone; pure |
//! | [`prober`] | the prober of one session: looks up the target, sends probes, records answers |

pub(super) mod offers;
pub(super) mod probe;
pub(super) mod prober;

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::account::lifecycle::{Offer, SessionFact};
use crate::hub::context::HubContext;
use crate::hub::credentials::Credentials;
use crate::hub::sessions::Sessions;
use crate::hub::sessions::events::SessionEvent;
use crate::hub::sessions::session::Session;
use offers::{OfferChange, Offers};
use probe::ProbeRound;

/// Maximum number of sessions of one zone with the same answer that the leader sees.
const MAX_EQUAL_ANSWERS_SHOWN: usize = 16;
/// Maximum number of probed sessions that the leader sees, beside those of the account's last zone.
const MAX_PROBED_SESSIONS_SHOWN: usize = 256;

/// Answers of all sessions to zone probes.
pub(super) struct ZoneProbes {
    context: Arc<HubContext>,
    sessions: Arc<Sessions>,
    credentials: Arc<Credentials>,
    offers: Mutex<Offers>,
}

impl ZoneProbes {
    pub(super) fn new(
        context: Arc<HubContext>,
        sessions: Arc<Sessions>,
        credentials: Arc<Credentials>,
    ) -> Self {
        Self { context, sessions, credentials, offers: Mutex::default() }
    }

    /// Starts a round for an account. Returns the sessions to wake; none if the round has started already.
    pub(super) fn announce(&self, uid: &str, round: ProbeRound) -> Vec<Arc<Session>> {
        let is_new = self.offers.lock().announce(uid, round);
        if is_new { self.sessions.registry.connected() } else { Vec::new() }
    }

    /// Ends the probing of an account. Returns the sessions that were asked.
    pub(super) fn close(&self, uid: &str) -> Vec<Arc<Session>> {
        let asked = self.offers.lock().close(uid);
        asked.into_iter().filter_map(|serial| self.sessions.registry.by_serial(serial)).collect()
    }

    /// Returns the session that reports the offer of a zone in this round.
    pub(super) fn speaker(&self, uid: &str, round: ProbeRound, zone: &str) -> Option<u64> {
        self.offers.lock().speaker(uid, round, zone)
    }

    /// Returns the answer of a session in this round, with the round's generation.
    pub(super) fn offer(&self, uid: &str, round: ProbeRound, session: &Session) -> Option<(i64, Offer)> {
        let offer = self.offers.lock().of(uid, round, &session.agent.zone, session.serial)?;
        Some((round.generation, offer))
    }

    /// Withdraws all answers of a session that has ended.
    pub(super) fn withdraw_all(&self, session: &Session) {
        let asked = session.zone_probes.lock().uids();
        asked.iter().for_each(|uid| self.withdraw(session, uid));
    }

    /// Withdraws the answer of a session about one account.
    fn withdraw(&self, session: &Session, uid: &str) {
        let changed = self.offers.lock().leave(uid, &session.agent.zone, session.serial);
        self.offer_changed(session, uid, changed);
    }

    /// Publishes that an answer of a session came or was withdrawn.
    fn offer_changed(&self, session: &Session, uid: &str, changed: OfferChange) {
        self.sessions.publish(session, SessionEvent::OfferChanged(uid, changed));
    }

    /// Returns connected and approved sessions of all zones except these, for an account that is probed: first those that
    /// can reach it, then those without an answer, then those that cannot. At most 16 of a kind from one zone and 256 in
    /// all, so the leader sees which zones offer and whether an answer is outstanding, with any number of agents.
    pub(super) fn asked(&self, uid: &str, round: ProbeRound, except: &[String]) -> Vec<SessionFact> {
        let (mut offering, mut silent, mut unable) = (Vec::new(), Vec::new(), Vec::new());
        self.sessions.registry.in_zones(|zones| {
            let offers = self.offers.lock();
            for (zone_id, zone) in zones.iter().filter(|(zone_id, _)| !except.contains(*zone_id)) {
                let answers = offers.in_zone(uid, round, zone_id);
                let (mut yes, mut no) = (0, 0);
                for (serial, offer) in answers.into_iter().flatten() {
                    let Some(session) = zone.connected.get(serial).filter(|one| one.is_approved()) else {
                        continue;
                    };
                    let (count, kind) = match offer {
                        Offer::Yes => (&mut yes, &mut offering),
                        Offer::No(_) => (&mut no, &mut unable),
                    };
                    *count += 1;
                    if *count <= MAX_EQUAL_ANSWERS_SHOWN {
                        kind.push(session.stranger(Some((round.generation, offer.clone()))));
                    }
                }
                let has_answered = |serial: &u64| answers.is_some_and(|all| all.contains_key(serial));
                if answers.map_or(0, BTreeMap::len) < zone.connected.len() {
                    let owing = zone.connected.iter().filter(|(serial, _)| !has_answered(serial));
                    let owing = owing.map(|(_, session)| session).filter(|session| session.is_approved());
                    silent.extend(owing.take(MAX_EQUAL_ANSWERS_SHOWN).map(|session| session.stranger(None)));
                }
            }
        });
        offering.into_iter().chain(silent).chain(unable).take(MAX_PROBED_SESSIONS_SHOWN).collect()
    }
}
