//! Progress of long work on standard error: a spinner on a terminal, otherwise a line every 15 s.

use std::{
    io::{IsTerminal, stderr},
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressStyle};

const EVERY: Duration = Duration::from_secs(15);

/// A long piece of work.
#[derive(Debug)]
pub(crate) struct Progress {
    what: String,
    start: Instant,
    said: Instant,
    spinner: Option<ProgressBar>,
}

impl Progress {
    /// Announces the work.
    pub(crate) fn start(what: &str) -> Self {
        let spinner = stderr().is_terminal().then(|| {
            let style =
                ProgressStyle::with_template("{spinner} {msg} ({elapsed})").expect("a fixed template");
            ProgressBar::new_spinner().with_style(style).with_message(what.to_owned())
        });
        if spinner.is_none() {
            eprintln!("{what} …");
        }
        let now = Instant::now();
        Self { what: what.into(), start: now, said: now, spinner }
    }

    /// Updates the output. Call it often while the work runs.
    pub(crate) fn tick(&mut self) {
        match &self.spinner {
            Some(spinner) => spinner.tick(),
            None if self.said.elapsed() >= EVERY => {
                self.said = Instant::now();
                eprintln!("{} … {} s", self.what, self.start.elapsed().as_secs());
            }
            None => {}
        }
    }

    /// Announces the end of the work.
    pub(crate) fn finish(self, how: &str) {
        if let Some(spinner) = &self.spinner {
            spinner.finish_and_clear();
        }
        eprintln!("{}: {how} after {} s", self.what, self.start.elapsed().as_secs());
    }
}
