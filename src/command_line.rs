//! Exit codes and output shared by the programs' command lines.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::ValueEnum;

use crate::config::UnknownKeys;

/// Exit code of a usage or configuration error.
pub const USAGE: u8 = 2;
/// Exit code of any other failure that ends a program.
pub const FAILURE: u8 = 1;

/// How to treat an unknown key in a settings file.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum UnknownKey {
    /// Exit with an error.
    Error,
    /// Log a warning and ignore the key.
    Warn,
}

impl From<UnknownKey> for UnknownKeys {
    fn from(key: UnknownKey) -> Self {
        match key {
            UnknownKey::Error => Self::Error,
            UnknownKey::Warn => Self::Warn,
        }
    }
}

/// Prints the output of a command and returns its exit code. A closed pipe (`… | head`) is not an error.
pub fn say(program: &str, text: &str) -> ExitCode {
    match write(&mut io::stdout().lock(), text.trim_end()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            complain(program, &format!("standard output cannot be written: {error}"), FAILURE)
        }
        _ => ExitCode::SUCCESS,
    }
}

/// Prints the one line that says why the program ends, and returns the exit code. Errors of standard error are
/// ignored.
pub fn complain(program: &str, reason: &str, code: u8) -> ExitCode {
    let _ = write(&mut io::stderr().lock(), &format!("{program}: {reason}"));
    ExitCode::from(code)
}

fn write(to: &mut impl Write, text: &str) -> io::Result<()> {
    to.write_all(text.as_bytes())?;
    to.write_all(b"\n")?;
    to.flush()
}
