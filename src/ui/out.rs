//! Standard output and standard error. Colours reach a terminal only, and none where `NO_COLOR` is set. A reader that
//! has gone away (`… | head`) is no error.

use std::io::{self, IsTerminal, Write};

/// Writes to standard output.
///
/// # Errors
///
/// It cannot be written, for another reason than that nobody reads it any more.
pub fn print(text: &str) -> Result<(), String> {
    match write(&mut anstream::stdout().lock(), text) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(format!("standard output cannot be written: {error}"))
        }
        _ => Ok(()),
    }
}

/// Writes a line to standard error. Where that cannot be, there is nobody left to tell.
pub fn note(text: &str) {
    let _ = write(&mut anstream::stderr().lock(), text);
}

/// Whether a person looks at standard error.
pub fn is_watched() -> bool {
    io::stderr().is_terminal()
}

fn write(to: &mut impl Write, text: &str) -> io::Result<()> {
    to.write_all(text.trim_end_matches('\n').as_bytes())?;
    to.write_all(b"\n")?;
    to.flush()
}
