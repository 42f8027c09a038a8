//! Accounts that name no zone: which agents to ask, and which of them could reach the account.
//!
//! | module | owns |
//! |---|---|
//! | [`probe`] | what one session was asked and when it is asked again; pure |
//! | [`offers`] | the answers of all sessions, by account and zone; pure |
//! | [`prober`] | a session's questions: looks up where a cluster is, asks, and takes in the answer |

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

/// Maximum number of sessions of a zone with the same answer shown to an account that is probed.
const MAX_EQUAL_ANSWERS_SHOWN: usize = 16;
/// Maximum number of sessions shown to an account that is probed, beside those of its last zone.
const MAX_PROBED_SESSIONS_SHOWN: usize = 256;

/// The answers of agents about accounts without a zone.
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

    /// An account asks in this round. Answers with the sessions that are to be told.
    pub(super) fn announce(&self, uid: &str, round: ProbeRound) -> Vec<Arc<Session>> {
        let is_new = self.offers.lock().announce(uid, round);
        if is_new { self.sessions.registry.connected() } else { Vec::new() }
    }

    /// An account asks no more. Answers with the sessions that were asked.
    pub(super) fn close(&self, uid: &str) -> Vec<Arc<Session>> {
        let asked = self.offers.lock().close(uid);
        asked.into_iter().filter_map(|serial| self.sessions.registry.by_serial(serial)).collect()
    }

    /// The session that speaks for a zone that offers in this round.
    pub(super) fn speaker(&self, uid: &str, round: ProbeRound, zone: &str) -> Option<u64> {
        self.offers.lock().speaker(uid, round, zone)
    }

    /// What a session has answered in this round, with the round's generation.
    pub(super) fn offer(&self, uid: &str, round: ProbeRound, session: &Session) -> Option<(i64, Offer)> {
        let offer = self.offers.lock().of(uid, round, &session.agent.zone, session.serial)?;
        Some((round.generation, offer))
    }

    /// Whatever a session has answered counts no more: it has ended.
    pub(super) fn withdraw_all(&self, session: &Session) {
        let asked = session.zone_probes.lock().uids();
        asked.iter().for_each(|uid| self.withdraw(session, uid));
    }

    /// Whatever a session has answered about an account that asks counts no more.
    fn withdraw(&self, session: &Session, uid: &str) {
        let changed = self.offers.lock().leave(uid, &session.agent.zone, session.serial);
        self.offer_changed(session, uid, changed);
    }

    /// A session has answered whether it could reach an account, or its answer counts no more.
    fn offer_changed(&self, session: &Session, uid: &str, changed: OfferChange) {
        self.sessions.publish(session, SessionEvent::OfferChanged(uid, changed));
    }

    /// Connected and approved sessions of all zones but these, for an account that asks: those that offer it a place
    /// first, then those that have not answered, then those that cannot reach it. Of each zone at most 16 of a kind,
    /// and at most 256 in all; so whether a zone offers, and whether any is still to answer, is seen however many agents
    /// there are.
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
