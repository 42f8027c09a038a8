//! What the objects of agents say of their accounts: written when it changed, seldom, and after everything else.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::{StreamExt, stream};
use tokio_util::sync::CancellationToken;

use super::ledger::Moment;
use super::registration::AgentNote;
use super::session::Session;
use super::{Hub, MAX_CONCURRENT_REGISTRATIONS};
use crate::telemetry::outages::warn_unless_away;

/// How often it is looked what is due.
const LOOK: Duration = Duration::from_secs(1);
/// An object is written at most so often.
const PAUSE: Duration = Duration::from_secs(5);
/// Sessions that are taken up in one look.
const MANY: usize = 100_000;
/// Objects that are written at once.
const AT_ONCE: usize = 4;
/// How long the API server may take for one.
const WRITE_WAIT: Duration = Duration::from_secs(10);

/// When an agent's object was written last, and what it was told.
#[derive(Debug, Default)]
struct Told {
    at: Moment,
    note: Option<AgentNote>,
}

/// What was told of each session that stands. Pure.
#[derive(Debug, Default)]
pub(super) struct Notes {
    told: HashMap<u64, Told>,
    pending: HashSet<u64>,
}

impl Notes {
    /// There may be news of these sessions.
    pub(super) fn mark(&mut self, serials: impl IntoIterator<Item = u64>, now: Moment) {
        for serial in serials {
            self.pending.insert(serial);
            // A session that has just begun has more to tell in a moment.
            self.told.entry(serial).or_insert(Told { at: now, note: None });
        }
    }

    /// Takes the sessions that may be written now.
    pub(super) fn due(&mut self, now: Moment) -> Vec<u64> {
        let is_due = |serial: &u64| self.told.get(serial).is_none_or(|told| now >= told.at + PAUSE);
        let due: Vec<_> = self.pending.iter().copied().filter(is_due).collect();
        due.iter().for_each(|serial| {
            self.pending.remove(serial);
        });
        due
    }

    /// Whether the session was told of in other words.
    pub(super) fn is_news(&self, serial: u64, note: &AgentNote) -> bool {
        self.told.get(&serial).is_none_or(|told| told.note.as_ref() != Some(note))
    }

    /// The object says it now; without a note, it could not be written.
    pub(super) fn wrote(&mut self, serial: u64, note: Option<AgentNote>, now: Moment) {
        if note.is_none() {
            self.pending.insert(serial);
        }
        let before = self.told.remove(&serial).and_then(|told| told.note);
        self.told.insert(serial, Told { at: now, note: note.or(before) });
    }

    /// It could not be its turn yet.
    pub(super) fn later(&mut self, serial: u64) {
        self.pending.insert(serial);
    }

    /// The session has ended.
    pub(super) fn forget(&mut self, serial: u64) {
        self.told.remove(&serial);
        self.pending.remove(&serial);
    }
}

/// Keeps the objects in step until stopped.
pub(super) async fn keep(hub: Arc<Hub>, stop: CancellationToken) {
    let mut notes = Notes::default();
    let mut look = tokio::time::interval(LOOK);
    look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = look.tick() => {}
        }
        notes.mark(hub.noteworthy.try_take(MANY), hub.moment());
        if hub.registering.available_permits() < MAX_CONCURRENT_REGISTRATIONS {
            continue;
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = write_due(&hub, &mut notes) => {}
        }
    }
}

async fn write_due(hub: &Hub, notes: &mut Notes) {
    let mut news = Vec::new();
    for serial in notes.due(hub.moment()) {
        let Some(session) = hub.registry.by_serial(serial) else {
            notes.forget(serial);
            continue;
        };
        let note = note_of(&session);
        if notes.is_news(serial, &note) {
            news.push((session, note));
        }
    }
    // When there is no room for one, there is none for the others.
    let full = &AtomicBool::new(false);
    let mut written = stream::iter(news)
        .map(|(session, note)| async move {
            let registering = hub.registering.available_permits() < MAX_CONCURRENT_REGISTRATIONS;
            let written = if registering || full.load(Ordering::Relaxed) {
                Some(false)
            } else {
                write(hub, &session, &note).await
            };
            full.fetch_or(written == Some(false), Ordering::Relaxed);
            (session.serial, note, written)
        })
        .buffer_unordered(AT_ONCE);
    while let Some((serial, note, written)) = written.next().await {
        match written {
            Some(true) => notes.wrote(serial, Some(note), hub.moment()),
            Some(false) => notes.later(serial),
            None => notes.wrote(serial, None, hub.moment()),
        }
    }
}

/// Writes what is to be told of a session now. Whether it stands.
pub(super) async fn tell_now(hub: &Hub, session: &Session) -> bool {
    write(hub, session, &note_of(session)).await == Some(true)
}

/// Whether it was written; false: not its turn; absent: the API server did not take it.
async fn write(hub: &Hub, session: &Session, note: &AgentNote) -> Option<bool> {
    let writing = hub.agents.note(&session.agent_id, &session.zone, &session.id, note);
    let problem = match tokio::time::timeout(WRITE_WAIT, writing).await {
        Ok(Ok(written)) => return Some(written),
        Ok(Err(problem)) => problem.to_string(),
        Err(_) => "the API server does not answer".to_owned(),
    };
    if hub.may_complain("notes", None) {
        warn_unless_away!(
            agentId = session.agent_id,
            error = problem,
            "cannot write how many accounts the agent has"
        );
    }
    None
}

fn note_of(session: &Session) -> AgentNote {
    let (held, failed) = session.counts();
    let listing = session.listing();
    let count = |number| i32::try_from(number).unwrap_or(i32::MAX);
    AgentNote {
        held: count(held),
        failed: count(failed),
        static_accounts: listing.as_ref().map(|listing| listing.name_digests()),
        static_sources: listing.as_ref().map(|listing| listing.source_digests()),
        kept_from: session.all_kept_from().map(|(count, first)| {
            let more = if count > 1 { format!("; and {} more accounts", count - 1) } else { String::new() };
            format!("{first}{more}")
        }),
        problem: session.list_problem().map(|problem| (problem.reason.to_owned(), problem.message)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Moment = Duration::from_secs(100);

    fn held(held: i32) -> AgentNote {
        AgentNote { held, ..AgentNote::default() }
    }

    #[test]
    fn an_object_is_written_at_most_once_in_five_seconds() {
        let mut notes = Notes::default();
        let mut writes = 0;
        // A thousand activations in ten seconds.
        for tenth in 0..=150_u32 {
            let now = NOW + Duration::from_millis(100) * tenth;
            let count = i32::try_from(tenth.min(100) * 10).expect("it is small");
            notes.mark([1], now);
            for serial in notes.due(now) {
                if notes.is_news(serial, &held(count)) {
                    writes += 1;
                    notes.wrote(serial, Some(held(count)), now);
                }
            }
        }
        assert_eq!(writes, 2);
        assert!(!notes.is_news(1, &held(1000)));
    }

    #[test]
    fn what_could_not_be_written_is_due_again_after_the_pause() {
        let mut notes = Notes::default();
        notes.mark([1], NOW);
        assert!(notes.due(NOW).is_empty(), "it has just begun");
        let later = NOW + PAUSE;
        assert_eq!(notes.due(later), [1]);
        notes.wrote(1, None, later);
        assert!(notes.due(later).is_empty());
        assert_eq!(notes.due(later + PAUSE), [1]);
        assert!(notes.is_news(1, &held(0)));
    }

    #[test]
    fn nothing_is_kept_of_a_session_that_has_ended() {
        let mut notes = Notes::default();
        notes.mark([1], NOW);
        notes.forget(1);
        assert!(notes.told.is_empty() && notes.pending.is_empty());
    }
}
