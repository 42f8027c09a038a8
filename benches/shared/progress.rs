//! Progress output: bars on a terminal, and a line for each completed step.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// A progress bar of known length.
#[derive(Debug)]
pub(crate) struct Bar(ProgressBar);

impl Bar {
    /// Starts a bar.
    pub(crate) fn start(what: &str, length: usize) -> Self {
        let style = ProgressStyle::with_template("{spinner} {msg} {wide_bar} {pos}/{len} ({elapsed})")
            .expect("a fixed template");
        let bar = ProgressBar::new(length as u64).with_style(style).with_message(what.to_owned());
        bar.enable_steady_tick(Duration::from_millis(200));
        Self(bar)
    }

    /// Advances the bar by one.
    pub(crate) fn step(&self) {
        self.0.inc(1);
    }

    /// Sets the position of the bar.
    pub(crate) fn set(&self, done: usize) {
        self.0.set_position(done as u64);
    }

    /// Removes the bar.
    pub(crate) fn finish(&self) {
        self.0.finish_and_clear();
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.finish();
    }
}

/// Prints a permanent line to standard error.
pub(crate) fn say(line: &str) {
    eprintln!("{line}");
}
