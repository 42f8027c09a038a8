//! Terminal output for people: standard output and standard error, tables, colors, progress, the formats of `-o`.
//!
//! Colors are written only to a terminal, and not if `NO_COLOR` is set. A closed pipe (`… | head`) is not an error.

pub mod format;
mod table;
pub mod text;

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

pub use format::Format;
pub use table::{Fields, Table};

/// Interval between redraws of the bar while nothing changes.
const REDRAW_INTERVAL: Duration = Duration::from_millis(500);

/// Why something cannot be shown.
#[derive(Debug, thiserror::Error)]
pub enum OutputError {
    /// Standard output takes nothing.
    #[error("standard output cannot be written")]
    Closed(#[source] io::Error),
    /// It has no form in JSON.
    #[error("cannot serialize as JSON")]
    Json(#[source] serde_json::Error),
    /// It has no form in YAML.
    #[error("cannot serialize as YAML")]
    Yaml(#[source] serde_saphyr::SerializeError),
}

/// Prints to standard output.
///
/// # Errors
///
/// The write failed for another reason than a closed pipe.
pub fn print(text: &str) -> Result<(), OutputError> {
    match write(&mut anstream::stdout().lock(), text) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(OutputError::Closed(error)),
        _ => Ok(()),
    }
}

/// Prints a line to standard error. Errors are ignored.
pub fn note(text: &str) {
    let _ = write(&mut anstream::stderr().lock(), text);
}

/// Whether standard error is a terminal.
pub fn is_watched() -> bool {
    io::stderr().is_terminal()
}

/// Writes the text and one line feed.
pub(crate) fn write(to: &mut impl Write, text: &str) -> io::Result<()> {
    to.write_all(text.trim_end_matches('\n').as_bytes())?;
    to.write_all(b"\n")?;
    to.flush()
}

/// A progress bar on a terminal; nothing elsewhere. Lines for standard output are printed above it.
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
        if is_watched() {
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
    /// Same as [`print`].
    pub fn print(&self, line: &str) -> Result<(), OutputError> {
        self.bar.suspend(|| print(line))
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
