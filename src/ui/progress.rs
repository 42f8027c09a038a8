//! A bar on a terminal while many things are waited for; elsewhere nothing.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::out;

/// Interval between redraws of the bar while nothing changes.
const REDRAW_INTERVAL: Duration = Duration::from_millis(500);

/// How many of so many are there. Lines for standard output are printed above the bar.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// A bar of this length on standard error, if a person looks at it.
    pub fn new(length: u64) -> Self {
        let bar = ProgressBar::with_draw_target(Some(length), ProgressDrawTarget::stderr());
        if let Ok(style) = ProgressStyle::with_template("[{elapsed}] {wide_bar} {pos}/{len}  {msg}") {
            bar.set_style(style.progress_chars("=> "));
        }
        if out::is_watched() {
            bar.enable_steady_tick(REDRAW_INTERVAL);
        }
        Self { bar }
    }

    /// How many are there, and what the others are at.
    pub fn show(&self, there: u64, message: String) {
        self.bar.set_message(message);
        self.bar.set_position(there);
    }

    /// Prints a line to standard output without disturbing the bar.
    ///
    /// # Errors
    ///
    /// As [`out::print`].
    pub fn print(&self, line: &str) -> Result<(), String> {
        self.bar.suspend(|| out::print(line))
    }

    /// Takes the bar away.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.finish();
    }
}
