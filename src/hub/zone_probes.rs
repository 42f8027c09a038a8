//! Zone probes: asks agents whether they can reach an account that has no zone.
//!
//! | module | owns |
//! |---|---|
//! | [`probe`] | the probes of one session and their retry times; pure |
//! | [`prober`] | the prober of one session: looks up the target, sends probes, records answers |
//!
//! [`ZoneProbes`] has the answers of all sessions, by account and zone.

pub(super) mod probe;
pub(super) mod prober;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::OnceCell;

use crate::hub::context::{CredentialReader, HubContext};
use crate::hub::sessions::Sessions;
use crate::hub::sessions::events::SessionEvent;
use crate::hub::sessions::session::Session;
use kubesvc_core::ZoneId;
use kubesvc_core::lifecycle::{Offer, SessionFact};
use kubesvc_core::wire::ops::probe::Target;
use probe::ProbeRound;

/// Maximum number of sessions of one zone with the same answer that the leader sees.
const MAX_EQUAL_ANSWERS_SHOWN: usize = 16;
/// Maximum number of probed sessions that the leader sees, beside those of the account's last zone.
const MAX_PROBED_SESSIONS_SHOWN: usize = 256;

/// Answers of all sessions to zone probes.
pub(super) struct ZoneProbes {
    context: Arc<HubContext>,
    sessions: Arc<Sessions>,
    credentials: Arc<CredentialReader>,
    offers: Mutex<Offers>,
}

impl ZoneProbes {
    pub(super) fn new(
        context: Arc<HubContext>,
        sessions: Arc<Sessions>,
        credentials: Arc<CredentialReader>,
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
    pub(super) fn speaker(&self, uid: &str, round: ProbeRound, zone: &ZoneId) -> Option<u64> {
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
    pub(super) fn asked(&self, uid: &str, round: ProbeRound, except: &[ZoneId]) -> Vec<SessionFact> {
        let (mut offering, mut silent, mut unable) = (Vec::new(), Vec::new(), Vec::new());
        self.sessions.registry.in_zones(|zones| {
            let offers = self.offers.lock();
            for (zone_id, zone) in zones.iter().filter(|(zone_id, _)| !except.contains(*zone_id)) {
                let answers = offers.in_zone(uid, round, zone_id);
                let (mut yes, mut no) = (0, 0);
                for (serial, offer) in answers.into_iter().flatten() {
                    let may_offer = |one: &&Arc<Session>| one.is_approved() && one.may_offer();
                    let Some(session) = zone.connected.get(serial).filter(may_offer) else {
                        continue;
                    };
                    let (count, kind) = match offer {
                        Offer::Yes => (&mut yes, &mut offering),
                        Offer::No(_) => (&mut no, &mut unable),
                    };
                    *count += 1;
                    if *count <= MAX_EQUAL_ANSWERS_SHOWN {
                        kind.push(session.unlisted_fact(Some((round.generation, offer.clone()))));
                    }
                }
                let has_answered = |serial: &u64| answers.is_some_and(|all| all.contains_key(serial));
                if answers.map_or(0, BTreeMap::len) < zone.connected.len() {
                    let owing = zone.connected.iter().filter(|(serial, _)| !has_answered(serial));
                    let owing = owing.map(|(_, session)| session);
                    let owing = owing.filter(|session| session.is_approved() && session.may_offer());
                    silent.extend(
                        owing.take(MAX_EQUAL_ANSWERS_SHOWN).map(|session| session.unlisted_fact(None)),
                    );
                }
            }
        });
        offering.into_iter().chain(silent).chain(unable).take(MAX_PROBED_SESSIONS_SHOWN).collect()
    }
}

/// Target of a probe, looked up once for all sessions. Contains no credential.
type SharedTarget = Arc<OnceCell<Target>>;

/// Answers of one zone, by session serial.
type ZoneAnswers = BTreeMap<u64, Offer>;

struct ProbedAccount {
    round: ProbeRound,
    /// Whether the sessions were woken for the round.
    announced: bool,
    target: SharedTarget,
    /// Sessions with an outstanding answer.
    open: HashSet<u64>,
    zones: BTreeMap<ZoneId, ZoneAnswers>,
    /// For each zone that can reach the account, the first session that said so and still does: it reports for the
    /// zone.
    speakers: BTreeMap<ZoneId, u64>,
}

/// Effect of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct OfferChange {
    /// Whether it may change a decision of the leader.
    pub(super) matters: bool,
    /// Session that reports for its zone from now on.
    pub(super) speaker: Option<u64>,
}

impl ProbedAccount {
    /// Elects the session that reports for a zone, after an answer came or went.
    fn elect(&mut self, zone: &ZoneId) -> Option<u64> {
        let says_yes = |serial: &u64| self.zones.get(zone)?.get(serial).filter(|offer| **offer == Offer::Yes);
        let before = self.speakers.get(zone).copied();
        if before.is_some_and(|serial| says_yes(&serial).is_some()) {
            return None;
        }
        let next = self.zones.get(zone).and_then(|answers| {
            answers.iter().find(|(_, offer)| **offer == Offer::Yes).map(|(serial, _)| *serial)
        });
        match next {
            Some(serial) => self.speakers.insert(zone.clone(), serial),
            None => self.speakers.remove(zone),
        };
        next
    }
}

/// Probed accounts; bounded by the number of accounts and of sessions.
#[derive(Default)]
struct Offers {
    by_uid: HashMap<String, ProbedAccount>,
}

impl Offers {
    /// Starts a round for an account. Returns whether the sessions must be woken.
    pub(super) fn announce(&mut self, uid: &str, round: ProbeRound) -> bool {
        !std::mem::replace(&mut self.at(uid, round).announced, true)
    }

    /// Ends the probing of an account. Returns the sessions that were asked.
    pub(super) fn close(&mut self, uid: &str) -> Vec<u64> {
        let Some(asked) = self.by_uid.remove(uid) else { return Vec::new() };
        let answered = asked.zones.into_values().flat_map(BTreeMap::into_keys);
        answered.chain(asked.open).collect()
    }

    /// Records that a session is being asked, and returns the shared target.
    pub(super) fn ask(&mut self, uid: &str, round: ProbeRound, serial: u64) -> SharedTarget {
        let asked = self.at(uid, round);
        asked.open.insert(serial);
        Arc::clone(&asked.target)
    }

    /// Records an answer. It matters to the leader if it changes whether the zone can reach the account, or if it is
    /// the last outstanding one.
    pub(super) fn answer(
        &mut self,
        uid: &str,
        round: ProbeRound,
        zone: &ZoneId,
        serial: u64,
        offer: Offer,
    ) -> OfferChange {
        let asked = self.at(uid, round);
        let was_last = asked.open.remove(&serial) && asked.open.is_empty();
        let answers = asked.zones.entry(zone.clone()).or_default();
        let offered = offers(answers);
        answers.insert(serial, offer);
        let matters = was_last || offered != offers(answers);
        OfferChange { matters, speaker: asked.elect(zone) }
    }

    /// Withdraws a session that is not asked any more or has ended.
    pub(super) fn leave(&mut self, uid: &str, zone: &ZoneId, serial: u64) -> OfferChange {
        let Some(asked) = self.by_uid.get_mut(uid) else { return OfferChange::default() };
        let was_last = asked.open.remove(&serial) && asked.open.is_empty();
        let mut changed = false;
        if let Some(answers) = asked.zones.get_mut(zone) {
            let offered = offers(answers);
            answers.remove(&serial);
            changed = offered != offers(answers);
            if answers.is_empty() {
                asked.zones.remove(zone);
            }
        }
        let speaker = asked.elect(zone);
        // A session may have started a probe after the account's round had ended.
        if !asked.announced && asked.open.is_empty() && asked.zones.is_empty() {
            self.by_uid.remove(uid);
        }
        OfferChange { matters: was_last || changed, speaker }
    }

    /// Returns the session that reports for a zone in this round.
    pub(super) fn speaker(&self, uid: &str, round: ProbeRound, zone: &ZoneId) -> Option<u64> {
        self.by_uid.get(uid).filter(|asked| asked.round == round)?.speakers.get(zone).copied()
    }

    /// Returns the answer of one session in this round.
    pub(super) fn of(&self, uid: &str, round: ProbeRound, zone: &ZoneId, serial: u64) -> Option<Offer> {
        self.in_zone(uid, round, zone)?.get(&serial).cloned()
    }

    /// Returns the answers of a zone in this round.
    pub(super) fn in_zone(&self, uid: &str, round: ProbeRound, zone: &ZoneId) -> Option<&ZoneAnswers> {
        self.by_uid.get(uid).filter(|asked| asked.round == round)?.zones.get(zone)
    }

    fn at(&mut self, uid: &str, round: ProbeRound) -> &mut ProbedAccount {
        let new = || ProbedAccount {
            round,
            announced: false,
            target: SharedTarget::default(),
            open: HashSet::new(),
            zones: BTreeMap::new(),
            speakers: BTreeMap::new(),
        };
        let asked = self.by_uid.entry(uid.to_owned()).or_insert_with(new);
        if asked.round != round {
            *asked = new();
        }
        asked
    }
}

fn offers(answers: &ZoneAnswers) -> bool {
    answers.values().any(|offer| *offer == Offer::Yes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kubesvc_core::failure::{Failure, FailureClass};
    use probe::tests::{asking, round};

    fn no() -> Offer {
        Offer::No(Failure::new(FailureClass::Unreachable, "no route"))
    }

    #[test]
    fn the_leader_is_woken_by_the_first_offer_of_a_zone_and_by_the_last_answer() {
        let (mut offers, round) = (Offers::default(), round(&asking()));
        for serial in 1..=4 {
            offers.ask("u", round, serial);
        }
        assert!(!offers.answer("u", round, &"z".into(), 1, no()).matters, "others are still to answer");
        assert!(offers.answer("u", round, &"z".into(), 2, Offer::Yes).matters);
        assert!(!offers.answer("u", round, &"z".into(), 3, Offer::Yes).matters, "the zone offers already");
        assert!(offers.answer("u", round, &"y".into(), 4, no()).matters, "nobody is waited for any longer");
        assert_eq!(offers.of("u", round, &"z".into(), 2), Some(Offer::Yes));
    }

    #[test]
    fn an_offer_goes_with_its_session() {
        let (mut offers, round) = (Offers::default(), round(&asking()));
        offers.ask("u", round, 1);
        offers.answer("u", round, &"z".into(), 1, Offer::Yes);
        assert!(offers.leave("u", &"z".into(), 1).matters);
        assert!(offers.in_zone("u", round, &"z".into()).is_none());
        assert!(!offers.leave("u", &"z".into(), 1).matters);
        assert!(offers.by_uid.is_empty(), "nothing is kept of an account that was never announced");
    }

    #[test]
    fn first_offering_session_is_the_speaker_of_its_zone() {
        let (mut offers, round) = (Offers::default(), round(&asking()));
        let yes =
            |offers: &mut Offers, serial| offers.answer("u", round, &"z".into(), serial, Offer::Yes).speaker;
        assert_eq!(yes(&mut offers, 5), Some(5));
        assert_eq!(yes(&mut offers, 3), None, "another one has spoken");
        assert_eq!(offers.speaker("u", round, &"z".into()), Some(5));
        assert_eq!(offers.leave("u", &"z".into(), 5).speaker, Some(3));
        assert_eq!(
            offers.answer("u", round, &"z".into(), 3, no()),
            OfferChange { matters: true, speaker: None }
        );
        assert_eq!(offers.speaker("u", round, &"z".into()), None);
    }

    #[test]
    fn a_new_round_begins_without_answers_and_is_announced_once() {
        let (mut offers, mut account) = (Offers::default(), asking());
        let first = round(&account);
        assert!(offers.announce("u", first) && !offers.announce("u", first));
        offers.ask("u", first, 1);
        offers.answer("u", first, &"z".into(), 1, Offer::Yes);
        account.metadata.generation = Some(9);
        let second = round(&account);
        assert_eq!(offers.of("u", second, &"z".into(), 1), None);
        // A session may see the new round before the routing of changes does.
        offers.ask("u", second, 1);
        assert!(offers.announce("u", second));
        assert_eq!(offers.of("u", first, &"z".into(), 1), None);
        assert_eq!(offers.close("u"), [1]);
        assert!(offers.close("u").is_empty());
    }
}
