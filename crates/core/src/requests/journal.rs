//! The agent's record of writes: an id that it knows is never sent again, and an answer is kept until the hub has it.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use prost::bytes::Bytes;

use super::MAX_WRITE_ANSWER_BYTES;
use crate::wire::common::Failure;
use crate::wire::ops::Head;

/// Maximum number of writes that run or whose answer is kept.
pub const MAX_WRITES: usize = 4096;
/// Maximum size of the kept answers together, in bytes. An answer that ends beyond it is kept without its body.
pub const MAX_ANSWER_BYTES: usize = 32 * 1024 * 1024;
/// Time for which an answer is kept, and after that its id.
pub const KEEP_TIME: Duration = Duration::from_secs(600);
/// Maximum number of ids that are kept without an answer; the oldest go.
const MAX_SPENT_IDS: usize = 100_000;

/// The answer of a write.
#[derive(Clone, Debug, PartialEq)]
pub struct WriteAnswer {
    /// Its head.
    pub head: Head,
    /// Its body; `None`: larger than [`MAX_WRITE_ANSWER_BYTES`], or not kept since there was no room.
    pub body: Option<Bytes>,
}

/// How a write ended.
pub type WriteOutcome = Result<WriteAnswer, Failure>;

/// Whether a write may be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteStart {
    /// It may, and is recorded as running.
    New,
    /// Its id is known: it is not sent again.
    Known,
    /// There is no room for another.
    Full,
}

/// What is known of a write.
#[derive(Clone, Debug, PartialEq)]
pub enum RecalledWrite {
    /// It runs.
    Running,
    /// It ended.
    Done(Arc<WriteOutcome>),
    /// Its answer was received, or is too old.
    Forgotten,
    /// Its id never came.
    Never,
}

#[derive(Debug)]
enum JournalEntry {
    Running,
    Done { outcome: Arc<WriteOutcome>, bytes: usize, at: Instant },
    Spent,
}

/// The writes of this process.
#[derive(Debug, Default)]
pub struct Journal {
    entries: HashMap<String, JournalEntry>,
    /// Kept answers, oldest first; those that were forgotten are skipped.
    done: VecDeque<(Instant, String)>,
    /// Ids without an answer, oldest first.
    spent: VecDeque<(Instant, String)>,
    /// Writes that run or whose answer is kept.
    count: usize,
    bytes: usize,
}

impl Journal {
    /// Records that a write is about to be sent.
    pub fn begin(&mut self, request_id: &str, now: Instant) -> WriteStart {
        self.expire(now);
        if self.entries.contains_key(request_id) {
            return WriteStart::Known;
        }
        if self.count >= MAX_WRITES || self.room() < MAX_WRITE_ANSWER_BYTES {
            return WriteStart::Full;
        }
        self.count += 1;
        self.entries.insert(request_id.to_owned(), JournalEntry::Running);
        WriteStart::New
    }

    /// Records how a write ended. Returns the outcome for those who wait for it: it has its body also where that is not
    /// kept, because many writes that ran at once took the room.
    pub fn done(&mut self, request_id: &str, outcome: WriteOutcome, now: Instant) -> Arc<WriteOutcome> {
        self.expire(now);
        let outcome = Arc::new(outcome.map(|answer| {
            let body = answer.body.filter(|body| body.len() <= MAX_WRITE_ANSWER_BYTES);
            WriteAnswer { body, ..answer }
        }));
        let kept = fitting(&outcome, self.room());
        let bytes = size(&kept);
        if let Some(entry) =
            self.entries.get_mut(request_id).filter(|entry| matches!(entry, JournalEntry::Running))
        {
            *entry = JournalEntry::Done { outcome: kept, bytes, at: now };
            self.bytes += bytes;
            self.done.push_back((now, request_id.to_owned()));
        }
        outcome
    }

    /// Drops the answers of these writes, which the hub has; their ids stay.
    pub fn forget<'a>(&mut self, request_ids: impl IntoIterator<Item = &'a str>, now: Instant) {
        request_ids.into_iter().for_each(|id| self.spend(id, now));
        self.expire(now);
    }

    /// What is known of a write.
    pub fn recall(&self, request_id: &str) -> RecalledWrite {
        match self.entries.get(request_id) {
            None => RecalledWrite::Never,
            Some(JournalEntry::Running) => RecalledWrite::Running,
            Some(JournalEntry::Done { outcome, .. }) => RecalledWrite::Done(Arc::clone(outcome)),
            Some(JournalEntry::Spent) => RecalledWrite::Forgotten,
        }
    }

    /// Number of writes that run or whose answer is kept, and the bytes of the answers.
    pub fn size(&self) -> (usize, usize) {
        (self.count, self.bytes)
    }

    /// Bytes that further answers may take.
    fn room(&self) -> usize {
        MAX_ANSWER_BYTES.saturating_sub(self.bytes)
    }

    fn spend(&mut self, request_id: &str, now: Instant) {
        let Some(entry) = self.entries.get_mut(request_id) else { return };
        if let JournalEntry::Done { bytes, .. } = entry {
            (self.bytes, self.count) = (self.bytes - *bytes, self.count - 1);
            *entry = JournalEntry::Spent;
            self.spent.push_back((now, request_id.to_owned()));
        }
    }

    fn expire(&mut self, now: Instant) {
        let is_old = |at: Instant| now.saturating_duration_since(at) >= KEEP_TIME;
        while let Some((at, id)) = self.done.front() {
            let is_kept =
                matches!(self.entries.get(id), Some(JournalEntry::Done { at: since, .. }) if since == at);
            if is_kept && !is_old(*at) {
                break;
            }
            let (_, id) = self.done.pop_front().unwrap_or((now, String::new()));
            if is_kept {
                self.spend(&id, now);
            }
        }
        while self.spent.front().is_some_and(|(at, _)| is_old(*at)) || self.spent.len() > MAX_SPENT_IDS {
            let Some((_, id)) = self.spent.pop_front() else { break };
            self.entries.remove(&id);
        }
    }
}

fn size(outcome: &WriteOutcome) -> usize {
    match outcome {
        Ok(WriteAnswer { head, body }) => headers_size(head) + body.as_ref().map_or(0, Bytes::len),
        Err(failure) => failure.message.len(),
    }
}

fn headers_size(head: &Head) -> usize {
    head.headers.iter().map(|one| one.name.len() + one.value.len()).sum()
}

/// What of an outcome fits: all of it, the head without the body, or the bare status or class.
fn fitting(outcome: &Arc<WriteOutcome>, room: usize) -> Arc<WriteOutcome> {
    if size(outcome) <= room {
        return Arc::clone(outcome);
    }
    Arc::new(match &**outcome {
        Ok(WriteAnswer { head, .. }) => {
            let headers = if headers_size(head) <= room { head.headers.clone() } else { Vec::new() };
            Ok(WriteAnswer { head: Head { status: head.status, headers }, body: None })
        }
        Err(failure) => Err(Failure { message: String::new(), ..failure.clone() }),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::wire::ops::Header;

    fn answer(bytes: usize) -> WriteOutcome {
        Ok(WriteAnswer { head: Head { status: 200, headers: Vec::new() }, body: Some(vec![0; bytes].into()) })
    }

    #[test]
    fn an_answer_is_kept_until_it_is_forgotten_and_its_id_for_ten_minutes_more() {
        let (mut journal, start) = (Journal::default(), Instant::now());
        assert_eq!(journal.recall("a"), RecalledWrite::Never);
        assert_eq!(journal.begin("a", start), WriteStart::New);
        assert_eq!(journal.begin("a", start), WriteStart::Known);
        assert_eq!(journal.recall("a"), RecalledWrite::Running);
        journal.done("a", answer(10), start);
        assert!(matches!(journal.recall("a"), RecalledWrite::Done(_)));
        journal.forget(["a"], start);
        assert_eq!(journal.recall("a"), RecalledWrite::Forgotten);
        assert_eq!(journal.begin("a", start), WriteStart::Known);
        assert_eq!(journal.size(), (0, 0));
        assert_eq!(journal.begin("b", start + KEEP_TIME), WriteStart::New);
        assert_eq!(journal.recall("a"), RecalledWrite::Never);
    }

    #[test]
    fn an_answer_that_nobody_fetches_goes_after_ten_minutes() {
        let (mut journal, start) = (Journal::default(), Instant::now());
        journal.begin("a", start);
        journal.done("a", answer(10), start);
        journal.forget([], start + KEEP_TIME);
        assert_eq!((journal.recall("a"), journal.size()), (RecalledWrite::Forgotten, (0, 0)));
    }

    #[test]
    fn a_large_answer_keeps_its_head_and_a_full_journal_takes_no_more() {
        let (mut journal, now) = (Journal::default(), Instant::now());
        journal.begin("large", now);
        let kept = journal.done("large", answer(MAX_WRITE_ANSWER_BYTES + 1), now);
        assert!(matches!(&*kept, Ok(WriteAnswer { body: None, .. })));
        let begun =
            (0..MAX_WRITES).filter(|one| journal.begin(&one.to_string(), now) == WriteStart::New).count();
        assert_eq!(begun, MAX_WRITES - 1);
        assert_eq!(journal.begin("more", now), WriteStart::Full);
        journal.forget(["large"], now);
        assert_eq!(journal.begin("more", now), WriteStart::New);
    }

    #[test]
    fn answers_that_end_at_once_beyond_the_bound_keep_their_heads_and_those_who_wait_have_them_whole() {
        const WHOLE: usize = MAX_ANSWER_BYTES / MAX_WRITE_ANSWER_BYTES;
        let (mut journal, now) = (Journal::default(), Instant::now());
        let ids: Vec<_> = (0..2 * WHOLE).map(|one| one.to_string()).collect();
        assert!(ids.iter().all(|id| journal.begin(id, now) == WriteStart::New));
        for id in &ids {
            let given = journal.done(id, answer(MAX_WRITE_ANSWER_BYTES), now);
            assert!(matches!(&*given, Ok(WriteAnswer { body: Some(_), .. })), "{id}");
        }
        let kept = ids.iter().filter(|id| {
            let RecalledWrite::Done(outcome) = journal.recall(id) else { return false };
            matches!(&*outcome, Ok(WriteAnswer { body: Some(_), .. }))
        });
        assert_eq!((kept.count(), journal.size()), (WHOLE, (2 * WHOLE, MAX_ANSWER_BYTES)));
        assert_eq!(journal.begin("more", now), WriteStart::Full);
        journal.forget(["0"], now);
        assert_eq!(journal.begin("more", now), WriteStart::New);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

        #[test]
        fn kept_answers_never_take_more_than_their_bound(answers in proptest::collection::vec((0_usize..4, 0_usize..2, any::<bool>(), any::<bool>()), 1..60)) {
            let (mut journal, now) = (Journal::default(), Instant::now());
            let ids: Vec<_> = (0..answers.len()).map(|one| one.to_string()).collect();
            for id in &ids {
                prop_assert_eq!(journal.begin(id, now), WriteStart::New);
            }
            for (id, (body, headers, is_answered, is_forgotten)) in ids.iter().zip(answers) {
                let body = [0, 1000, MAX_WRITE_ANSWER_BYTES, MAX_WRITE_ANSWER_BYTES + 1][body];
                let value = vec![0; headers << 20];
                let outcome = if is_answered {
                    let head = Head { status: 201, headers: vec![Header { name: "x".to_owned(), value }] };
                    Ok(WriteAnswer { head, body: Some(vec![0; body].into()) })
                } else {
                    Err(Failure { message: "x".repeat(value.len()), before_send: true, ..Failure::default() })
                };
                let given = match &*journal.done(id, outcome, now) {
                    Ok(answer) => answer.body.as_ref().map(Bytes::len),
                    Err(failure) => Some(failure.message.len()),
                };
                let all = if is_answered { body } else { headers << 20 };
                prop_assert_eq!(given, Some(all).filter(|_| !is_answered || body <= MAX_WRITE_ANSWER_BYTES));
                let kept = match journal.recall(id) {
                    RecalledWrite::Done(outcome) => match &*outcome {
                        Ok(answer) => is_answered && answer.head.status == 201,
                        Err(failure) => !is_answered && failure.before_send,
                    },
                    _ => false,
                };
                prop_assert!(kept, "its status, or what it means, is kept");
                prop_assert!(journal.size().1 <= MAX_ANSWER_BYTES);
                if is_forgotten {
                    journal.forget([id.as_str()], now);
                }
            }
        }
    }

    proptest! {
        #[test]
        fn no_id_is_started_twice_within_ten_minutes(steps in proptest::collection::vec((0_u8..4, 0_u8..6, 0_u64..200), 1..200)) {
            let (mut journal, mut now) = (Journal::default(), Instant::now());
            let mut started: HashMap<u8, Instant> = HashMap::new();
            let mut running = std::collections::HashSet::new();
            for (step, id, wait) in steps {
                let name = id.to_string();
                match step {
                    0 => if journal.begin(&name, now) == WriteStart::New {
                        prop_assert!(!running.contains(&id));
                        prop_assert!(started.insert(id, now).is_none_or(|before| now - before >= KEEP_TIME));
                        running.insert(id);
                    },
                    1 => { journal.done(&name, answer(100), now); running.remove(&id); }
                    2 => journal.forget([name.as_str()], now),
                    _ => now += Duration::from_secs(wait),
                }
                let (count, bytes) = journal.size();
                prop_assert!(count <= 6 && bytes <= 600);
                prop_assert!(count >= running.len());
            }
        }
    }
}
