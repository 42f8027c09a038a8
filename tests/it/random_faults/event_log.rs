//! Records events in order, as far as they may be needed to understand a violation, and the violations.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::{self, Write as _};
use std::io::Write as _;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Number of lines kept for each account.
const MAX_LINES_PER_ACCOUNT: usize = 60;
/// Number of lines kept about processes.
const MAX_PROCESS_LINES: usize = 40;
/// Number of violations reported in full; further ones are counted.
const MAX_REPORTED_VIOLATIONS: usize = 5;

/// A line, and the time at which it was written.
type Line = (Duration, String);

/// The event log of a run.
#[derive(Debug)]
pub(super) struct EventLog {
    title: String,
    begun: Instant,
    events: Mutex<Events>,
}

#[derive(Debug, Default)]
struct Events {
    accounts: BTreeMap<String, VecDeque<Line>>,
    processes: VecDeque<Line>,
    counts: BTreeMap<String, u64>,
    violations: Vec<String>,
}

impl EventLog {
    /// Creates an empty log. The title says how to repeat the run.
    pub(super) fn new(title: String) -> Self {
        Self { title, begun: Instant::now(), events: Mutex::default() }
    }

    /// Time since the start.
    pub(super) fn now(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Records an event of one account.
    pub(super) fn of_account(&self, account: &str, what: impl fmt::Display) {
        let line = (self.now(), what.to_string());
        let mut events = self.events.lock();
        let lines = events.accounts.entry(account.to_owned()).or_default();
        if lines.len() == MAX_LINES_PER_ACCOUNT {
            lines.pop_front();
        }
        lines.push_back(line);
    }

    /// Records something that was done to a process, or its end.
    pub(super) fn of_process(&self, what: impl fmt::Display) {
        let line = (self.now(), what.to_string());
        let processes = &mut self.events.lock().processes;
        if processes.len() == MAX_PROCESS_LINES {
            processes.pop_front();
        }
        processes.push_back(line);
    }

    /// Counts an event for the summary.
    pub(super) fn count(&self, what: impl fmt::Display) {
        *self.events.lock().counts.entry(what.to_string()).or_default() += 1;
    }

    /// The counts whose names start with `start`, without that prefix.
    pub(super) fn counts(&self, start: &str) -> String {
        let events = self.events.lock();
        let counts =
            events.counts.iter().filter_map(|(name, count)| Some((name.strip_prefix(start)?, count)));
        counts.map(|(name, count)| format!("{name} {count}")).collect::<Vec<_>>().join(", ")
    }

    /// Records a violation of an invariant. It is reported at once, with the events that led to it.
    pub(super) fn violation(&self, account: Option<&str>, what: impl fmt::Display) {
        let mut text = format!("{}: after {:.1} s: {what}", self.title, self.now().as_secs_f64());
        let mut events = self.events.lock();
        if let Some(account) = account {
            let lines = events.accounts.get(account).into_iter().flatten();
            append(&mut text, &format!("the account {account}"), lines);
        }
        append(&mut text, "the processes", events.processes.iter());
        events.violations.push(text.clone());
        if events.violations.len() <= MAX_REPORTED_VIOLATIONS {
            let _ = writeln!(std::io::stderr(), "VIOLATION {text}");
        }
    }

    /// Number of violations.
    pub(super) fn violations(&self) -> usize {
        self.events.lock().violations.len()
    }

    /// Returns `Ok` if there was no violation.
    ///
    /// # Errors
    ///
    /// The first violations.
    pub(super) fn verdict(&self) -> Result<(), String> {
        let violations = &self.events.lock().violations;
        if violations.is_empty() {
            return Ok(());
        }
        let reported = violations
            .iter()
            .take(MAX_REPORTED_VIOLATIONS)
            .map(String::as_str)
            .collect::<Vec<_>>()
            .join("\n\n");
        Err(format!("{} violations, the first of them:\n{reported}", violations.len()))
    }
}

fn append<'l>(text: &mut String, of: &str, lines: impl Iterator<Item = &'l Line>) {
    let _ = write!(text, "\n  {of}:");
    for (at, line) in lines {
        let _ = write!(text, "\n    {:8.2} {line}", at.as_secs_f64());
    }
}
