//! What the command lines of the programs share.

use std::process::ExitCode;

use clap::ValueEnum;

use crate::config::UnknownKeys;

/// Exit code of a usage or configuration error.
pub const USAGE: u8 = 2;
/// Exit code of everything else that ends a program before its time.
pub const FAILURE: u8 = 1;

/// What an unknown key in a settings file is.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum UnknownKey {
    /// An error.
    Error,
    /// A warning.
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

/// Prints the output of a command.
#[expect(clippy::print_stdout, reason = "the output of a command")]
pub fn say(text: &str) {
    println!("{}", text.trim_end());
}

/// Prints the one line that says why the program ends.
#[expect(clippy::print_stderr, reason = "the one line that says why the program ends")]
pub fn complain(program: &str, reason: &str, code: u8) -> ExitCode {
    eprintln!("{program}: {reason}");
    ExitCode::from(code)
}
