use crate::GrantEpoch;
use crate::failure::{Failure, FailureClass};
use crate::lifecycle::{AgentReport, ClusterIdentity};
use crate::report_outbox::*;

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
    let all = || (0..2500).map(|number| failed(AnswerUrgency::Standing, number)).chain((0..500).map(held));
    let (mut cursor, mut seen) = (PackingCursor::new(), std::collections::BTreeSet::new());
    for _ in 0..4 {
        let packed = packed(all().collect(), &cursor);
        seen.extend(packed.entries.into_iter().map(|entry| (entry.uid, entry.result as u8)));
        cursor = packed.next;
    }
    assert_eq!(seen.len(), 3000);
}
