//! Says what goes on: a bar on a terminal, otherwise a line for what has ended.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// One piece of work whose length is known.
#[derive(Debug)]
pub(crate) struct Bar(ProgressBar);

impl Bar {
    /// Begins it.
    pub(crate) fn start(what: &str, length: usize) -> Self {
        let style = ProgressStyle::with_template("{spinner} {msg} {wide_bar} {pos}/{len} ({elapsed})")
            .expect("a fixed template");
        let bar = ProgressBar::new(length as u64).with_style(style).with_message(what.to_owned());
        bar.enable_steady_tick(Duration::from_millis(200));
        Self(bar)
    }

    /// One more is done.
    pub(crate) fn step(&self) {
        self.0.inc(1);
    }

    /// So many are done.
    pub(crate) fn set(&self, done: usize) {
        self.0.set_position(done as u64);
    }

    /// It is over.
    pub(crate) fn finish(&self) {
        self.0.finish_and_clear();
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.finish();
    }
}

/// A line that stays.
pub(crate) fn say(line: &str) {
    eprintln!("{line}");
}
