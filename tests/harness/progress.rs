//! Says on standard error what takes long: a spinner on a terminal, otherwise a line each 15 s.

use std::{
    io::{IsTerminal, stderr},
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressStyle};

const EVERY: Duration = Duration::from_secs(15);

/// One long piece of work.
#[derive(Debug)]
pub(crate) struct Progress {
    what: String,
    start: Instant,
    said: Instant,
    spinner: Option<ProgressBar>,
}

impl Progress {
    /// Announces it.
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

    /// To be called often while it goes on.
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

    /// Says that it is over.
    pub(crate) fn finish(self, how: &str) {
        if let Some(spinner) = &self.spinner {
            spinner.finish_and_clear();
        }
        eprintln!("{}: {how} after {} s", self.what, self.start.elapsed().as_secs());
    }
}
