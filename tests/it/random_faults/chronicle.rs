//! Records events in order, as far as they may be needed to understand a violation, and the violations.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::{self, Write as _};
use std::io::Write as _;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Number of lines kept for each account.
const LINES: usize = 60;
/// Number of lines kept about processes.
const DONE: usize = 40;
/// Number of violations reported in full; further ones are counted.
const TOLD: usize = 5;

/// A line, and the time at which it was written.
type Line = (Duration, String);

/// The chronicle of a run.
#[derive(Debug)]
pub(super) struct Chronicle {
    title: String,
    begun: Instant,
    pages: Mutex<Pages>,
}

#[derive(Debug, Default)]
struct Pages {
    accounts: BTreeMap<String, VecDeque<Line>>,
    done: VecDeque<Line>,
    counts: BTreeMap<String, u64>,
    violations: Vec<String>,
}

impl Chronicle {
    /// Creates an empty chronicle. The title says how to repeat the run.
    pub(super) fn new(title: String) -> Self {
        Self { title, begun: Instant::now(), pages: Mutex::default() }
    }

    /// Time since the start.
    pub(super) fn now(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Records an event of one account.
    pub(super) fn of_account(&self, account: &str, what: impl fmt::Display) {
        let line = (self.now(), what.to_string());
        let mut pages = self.pages.lock();
        let lines = pages.accounts.entry(account.to_owned()).or_default();
        if lines.len() == LINES {
            lines.pop_front();
        }
        lines.push_back(line);
    }

    /// Records something done to a process, or its end.
    pub(super) fn done(&self, what: impl fmt::Display) {
        let line = (self.now(), what.to_string());
        let done = &mut self.pages.lock().done;
        if done.len() == DONE {
            done.pop_front();
        }
        done.push_back(line);
    }

    /// Counts an event for the summary.
    pub(super) fn count(&self, what: impl fmt::Display) {
        *self.pages.lock().counts.entry(what.to_string()).or_default() += 1;
    }

    /// The counts whose names start with `start`, without that prefix.
    pub(super) fn counts(&self, start: &str) -> String {
        let pages = self.pages.lock();
        let counts = pages.counts.iter().filter_map(|(name, count)| Some((name.strip_prefix(start)?, count)));
        counts.map(|(name, count)| format!("{name} {count}")).collect::<Vec<_>>().join(", ")
    }

    /// Records a violation of an invariant. It is reported at once, with the events that led to it.
    pub(super) fn violation(&self, account: Option<&str>, what: impl fmt::Display) {
        let mut text = format!("{}: after {:.1} s: {what}", self.title, self.now().as_secs_f64());
        let mut pages = self.pages.lock();
        if let Some(account) = account {
            let lines = pages.accounts.get(account).into_iter().flatten();
            append(&mut text, &format!("the account {account}"), lines);
        }
        append(&mut text, "what was done", pages.done.iter());
        pages.violations.push(text.clone());
        if pages.violations.len() <= TOLD {
            let _ = writeln!(std::io::stderr(), "VIOLATION {text}");
        }
    }

    /// Number of violations.
    pub(super) fn violations(&self) -> usize {
        self.pages.lock().violations.len()
    }

    /// Returns `Ok` if there was no violation.
    ///
    /// # Errors
    ///
    /// The first violations.
    pub(super) fn verdict(&self) -> Result<(), String> {
        let violations = &self.pages.lock().violations;
        if violations.is_empty() {
            return Ok(());
        }
        let told = violations.iter().take(TOLD).map(String::as_str).collect::<Vec<_>>().join("\n\n");
        Err(format!("{} violations, the first of them:\n{told}", violations.len()))
    }
}

fn append<'l>(text: &mut String, of: &str, lines: impl Iterator<Item = &'l Line>) {
    let _ = write!(text, "\n  {of}:");
    for (at, line) in lines {
        let _ = write!(text, "\n    {:8.2} {line}", at.as_secs_f64());
    }
}
