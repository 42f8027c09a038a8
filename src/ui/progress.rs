//! A progress bar on a terminal; nothing elsewhere.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::out::{self, OutputError};

/// Interval between redraws of the bar while nothing changes.
const REDRAW_INTERVAL: Duration = Duration::from_millis(500);

/// A progress bar. Lines for standard output are printed above it.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// Creates a bar of this length on standard error; it is drawn only on a terminal.
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

    /// Sets the position and the message of the bar.
    pub fn show(&self, there: u64, message: String) {
        self.bar.set_message(message);
        self.bar.set_position(there);
    }

    /// Prints a line to standard output without disturbing the bar.
    ///
    /// # Errors
    ///
    /// Same as [`out::print`].
    pub fn print(&self, line: &str) -> Result<(), OutputError> {
        self.bar.suspend(|| out::print(line))
    }

    /// Removes the bar.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.finish();
    }
}
