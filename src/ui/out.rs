//! Standard output and standard error. Colors are written only to a terminal, and not if `NO_COLOR` is set. A closed
//! pipe (`… | head`) is not an error.

use std::io::{self, IsTerminal, Write};

/// Why something cannot be shown.
#[derive(Debug, thiserror::Error)]
pub enum OutputError {
    /// Standard output takes nothing.
    #[error("standard output cannot be written")]
    Closed(#[source] io::Error),
    /// It is no JSON.
    #[error("no JSON")]
    Json(#[source] serde_json::Error),
    /// It is no YAML, which is to be a subset of JSON.
    #[error("no YAML")]
    YamlValue(#[source] serde_json::Error),
    /// It is no YAML.
    #[error("no YAML")]
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

fn write(to: &mut impl Write, text: &str) -> io::Result<()> {
    to.write_all(text.trim_end_matches('\n').as_bytes())?;
    to.write_all(b"\n")?;
    to.flush()
}
