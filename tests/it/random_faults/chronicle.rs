//! What happened, in order, as far as it may be needed to understand a violation; and the violations.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::{self, Write as _};
use std::io::Write as _;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// How many lines of each account are kept.
const LINES: usize = 60;
/// How many lines of what was done to processes are kept.
const DONE: usize = 40;
/// How many violations are told in full; more are counted.
const TOLD: usize = 5;

/// A line, and when it was written.
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
    /// An empty one. The title says how the run is repeated.
    pub(super) fn new(title: String) -> Self {
        Self { title, begun: Instant::now(), pages: Mutex::default() }
    }

    /// The time since the begin.
    pub(super) fn now(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Something of one account.
    pub(super) fn of_account(&self, account: &str, what: impl fmt::Display) {
        let line = (self.now(), what.to_string());
        let mut pages = self.pages.lock();
        let lines = pages.accounts.entry(account.to_owned()).or_default();
        if lines.len() == LINES {
            lines.pop_front();
        }
        lines.push_back(line);
    }

    /// Something that was done to a process, or that became of one.
    pub(super) fn done(&self, what: impl fmt::Display) {
        let line = (self.now(), what.to_string());
        let done = &mut self.pages.lock().done;
        if done.len() == DONE {
            done.pop_front();
        }
        done.push_back(line);
    }

    /// Counts something for the summary.
    pub(super) fn count(&self, what: impl fmt::Display) {
        *self.pages.lock().counts.entry(what.to_string()).or_default() += 1;
    }

    /// What was counted under names that start like this, without that start.
    pub(super) fn counts(&self, start: &str) -> String {
        let pages = self.pages.lock();
        let counts = pages.counts.iter().filter_map(|(name, count)| Some((name.strip_prefix(start)?, count)));
        counts.map(|(name, count)| format!("{name} {count}")).collect::<Vec<_>>().join(", ")
    }

    /// Something that must never be. It is told at once, with what led to it.
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

    /// How many violations there are.
    pub(super) fn violations(&self) -> usize {
        self.pages.lock().violations.len()
    }

    /// Nothing that must never be has been.
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
