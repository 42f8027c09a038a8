//! Selects the awaited entries that fit into an outbox; the others wait.

use std::collections::BTreeMap;

use super::{MAX_BYTES, MAX_DETAILED, MAX_ENTRIES, OutboxEntry, OutboxResult};
use crate::account::State;

/// How urgently an answer is needed, the most urgent first. The leader does not act on a standing answer until
/// another session reports something else. There may be any number of these, for any time, so they must not displace
/// the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AnswerUrgency {
    /// Ends a revoke.
    Dropped,
    /// Makes an account ACTIVE.
    Held,
    /// Lets an account proceed, or makes it FAILED.
    Failed,
    /// Standing: a FAILED account is held, and its credential is refused.
    StandingHeld,
    /// Standing: one agent of several cannot take an ACTIVE account.
    Standing,
}

/// An awaited entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AwaitedEntry {
    /// The entry.
    pub entry: OutboxEntry,
    /// Its urgency.
    pub need: AnswerUrgency,
}

/// For each urgency whose entries do not all fit, the uid to begin with.
pub type PackingCursor = BTreeMap<AnswerUrgency, String>;

/// An outbox, and where the next one continues.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PackedOutbox {
    /// The entries that fit.
    pub entries: Vec<OutboxEntry>,
    /// Where to begin next time, so that every entry gets its turn; empty if all fit.
    pub next: PackingCursor,
}

impl AnswerUrgency {
    pub(super) fn of(state: State, result: OutboxResult) -> Self {
        let stands = matches!(state, State::Active | State::Failed | State::DeleteFailed);
        match result {
            OutboxResult::Dropped => Self::Dropped,
            OutboxResult::Held if stands => Self::StandingHeld,
            OutboxResult::Held => Self::Held,
            OutboxResult::Failed | OutboxResult::Lost if stands => Self::Standing,
            _ => Self::Failed,
        }
    }
}

/// Packs as many entries as fit, the most urgent first; within an urgency, from where `turn` says. Only the first
/// [`MAX_DETAILED`] carry details. A `Held` is only included together with the cluster's identity.
pub fn packed(mut awaited: Vec<AwaitedEntry>, turn: &PackingCursor) -> PackedOutbox {
    let is_later = |one: &AwaitedEntry| turn.get(&one.need).is_some_and(|begin| one.entry.uid < *begin);
    awaited.sort_by(|one, other| {
        (one.need, is_later(one), &one.entry.uid).cmp(&(other.need, is_later(other), &other.entry.uid))
    });
    let (mut packed, mut detailed, mut bytes) = (PackedOutbox::default(), 0, 0);
    for AwaitedEntry { mut entry, need } in awaited {
        // Without its reason, a report of a differing credential would be read as a mismatch, which it is not.
        if detailed == MAX_DETAILED && entry.is_credential_mismatch().is_none() {
            entry.reason = None;
        }
        let has_details = !entry.is_detailed() || detailed < MAX_DETAILED;
        if has_details && packed.entries.len() < MAX_ENTRIES && bytes + entry.bytes() <= MAX_BYTES {
            bytes += entry.bytes();
            detailed += usize::from(entry.is_detailed());
            packed.entries.push(entry);
        } else {
            packed.next.entry(need).or_insert(entry.uid);
        }
    }
    packed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::account::GrantEpoch;
    use crate::account::failure::{Failure, FailureClass};
    use crate::account::lifecycle::{AgentReport, ClusterIdentity};

    fn awaited(need: AnswerUrgency, number: usize, word: &AgentReport) -> AwaitedEntry {
        AwaitedEntry { entry: OutboxEntry::of(&format!("u{number:04}"), GrantEpoch(1), word), need }
    }

    fn held(number: usize) -> AwaitedEntry {
        awaited(AnswerUrgency::Held, number, &AgentReport::Held(ClusterIdentity::default()))
    }

    fn failed(need: AnswerUrgency, number: usize) -> AwaitedEntry {
        awaited(need, number, &AgentReport::Failed(Failure::new(FailureClass::Unreachable, "x".repeat(2000))))
    }

    fn count(packed: &PackedOutbox, result: OutboxResult) -> usize {
        packed.entries.iter().filter(|entry| entry.result == result).count()
    }

    #[test]
    fn an_outbox_has_a_bound_and_begins_with_what_a_revoke_waits_for() {
        let dropped = |number| awaited(AnswerUrgency::Dropped, number, &AgentReport::Dropped);
        let both = (0..2000).map(held).chain((0..900).map(dropped)).collect();
        let full = packed(both, &PackingCursor::new());
        assert_eq!(full.entries.len(), MAX_ENTRIES);
        assert!(full.entries[..900].iter().all(|entry| entry.result == OutboxResult::Dropped));
        let only_held = packed((0..2000).map(held).collect(), &PackingCursor::new());
        assert_eq!(only_held.entries.len(), MAX_DETAILED, "an entry is there only with its identity");
        let long = ClusterIdentity { host: "h".repeat(2000), ..ClusterIdentity::default() };
        let heavy = (0..200)
            .map(|number| awaited(AnswerUrgency::Held, number, &AgentReport::Held(long.clone())))
            .collect();
        let entries = packed(heavy, &PackingCursor::new()).entries;
        let bytes = serde_json::to_vec(&entries).expect("it is JSON").len();
        assert!(bytes <= MAX_BYTES, "{bytes}");
    }

    #[test]
    fn failures_keep_nobody_out_and_the_first_ones_say_what_happened() {
        let all = (0..300).map(|number| failed(AnswerUrgency::Failed, number)).chain([held(999)]).collect();
        let packed = packed(all, &PackingCursor::new());
        assert_eq!((count(&packed, OutboxResult::Held), count(&packed, OutboxResult::Failed)), (1, 300));
        assert_eq!(packed.entries.iter().filter(|entry| entry.is_detailed()).count(), MAX_DETAILED);
        assert!(packed.entries.iter().all(|entry| entry.report().is_some()) && packed.next.is_empty());
    }

    #[test]
    fn a_report_of_differing_credentials_is_never_packed_as_a_mismatch() {
        let differ = AgentReport::Failed(Failure::new(FailureClass::CredentialDiffers, "they differ"));
        let all = || (0..300).map(|number| awaited(AnswerUrgency::Failed, number, &differ)).collect();
        let first = packed(all(), &PackingCursor::new());
        assert!(first.entries.iter().all(|entry| entry.report().is_some()));
        assert_eq!(first.entries.len(), MAX_DETAILED);
        let next = packed(all(), &first.next);
        assert_eq!(next.entries[0].uid, "u0200", "the others have their turn");
    }

    #[test]
    fn what_stands_comes_last() {
        let standing = (0..1500).map(|number| failed(AnswerUrgency::Standing, number));
        let new = (0..300).map(|number| failed(AnswerUrgency::Failed, number + 5000));
        let packed = packed(standing.chain(new).chain([held(9999)]).collect(), &PackingCursor::new());
        assert_eq!(packed.entries[0].result, OutboxResult::Held);
        assert!(packed.entries[1..301].iter().all(|entry| entry.uid.starts_with("u5")));
        assert!(packed.entries.len() > 900, "{}", packed.entries.len());
    }

    #[test]
    fn everything_gets_its_turn() {
        let all =
            || (0..2500).map(|number| failed(AnswerUrgency::Standing, number)).chain((0..500).map(held));
        let (mut turn, mut seen) = (PackingCursor::new(), std::collections::BTreeSet::new());
        for _ in 0..4 {
            let packed = packed(all().collect(), &turn);
            seen.extend(packed.entries.into_iter().map(|entry| (entry.uid, entry.result as u8)));
            turn = packed.next;
        }
        assert_eq!(seen.len(), 3000);
    }
}
