//! Where a token comes from: the settings, a file, or what a command prints.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use secrecy::ExposeSecret as _;
use secrecy::zeroize::Zeroizing;
use serde::Deserialize;
use tokio::process::Command;
use tokio::time::timeout;

use super::bearer::{BearerToken, BearerTokenError};
use crate::program_run::{self, RunError};
use crate::regular_file::{self, RegularFileError};
use crate::settings::{TokenCommandSettings, TokenFormat, TokenSettings};

/// Maximum size of a file with a token, and of what a command prints, in bytes.
const MAX_SOURCE_BYTES: u64 = 64 * 1024;
/// Time limit for reading the file, whose mount may hang.
const FILE_TIMEOUT: Duration = Duration::from_secs(10);

/// Why there is no token. No message has any of it.
#[derive(Debug, thiserror::Error)]
pub enum TokenProblem {
    #[error("{} cannot be read", path.display())]
    File { path: PathBuf, source: RegularFileError },
    #[error("{} could not be read within {} s", .0.display(), FILE_TIMEOUT.as_secs())]
    SlowFile(PathBuf),
    #[error("{} has no token", path.display())]
    FileContent { path: PathBuf, source: BearerTokenError },
    #[error("there is no program {0:?}, or it cannot be executed")]
    UnknownProgram(String),
    #[error("the program {program:?} failed{}", unlogged(*.silent))]
    Program {
        program: String,
        source: RunError,
        /// Whether it has written nothing to its standard error.
        silent: bool,
    },
    #[error("the program {0:?} has printed no JSON object with a text \"token\"")]
    NoJson(String),
    #[error("the program {program:?} has printed no token")]
    Printed { program: String, source: BearerTokenError },
    #[error("the value of the setting is no token")]
    Setting(#[source] BearerTokenError),
}

fn unlogged(silent: bool) -> &'static str {
    match silent {
        true => "",
        false => {
            " (what it wrote to its standard error is not logged, since that may hold a token: run it by hand)"
        }
    }
}

impl TokenProblem {
    /// Whether it may be gone at the next attempt although nobody changes anything.
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Program { source, .. } => !matches!(source, RunError::Start(_) | RunError::TooLong(_)),
            Self::SlowFile(_) => true,
            _ => false,
        }
    }

    /// What to do about it.
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::File { .. } | Self::SlowFile(_) => "name a file that the agent can read",
            Self::FileContent { .. } => "name a file that holds the token and nothing else",
            Self::UnknownProgram(_) => "name a program in the agent's PATH, or the path of one",
            Self::Program { .. } => "name a program that prints a token, and its arguments",
            Self::NoJson(_) => {
                "have it print {\"token\": \"...\"}, or set clouddriver.auth.tokenCommand.format: raw if it prints the bare \
                 token"
            }
            Self::Printed { .. } => "have it print the token and nothing else",
            Self::Setting(_) => "set it to the token and nothing else",
        }
    }
}

/// A source of tokens.
#[derive(Debug)]
pub struct TokenSource {
    settings: TokenSettings,
    path: Option<OsString>,
}

impl TokenSource {
    pub fn new(settings: TokenSettings) -> Self {
        Self { settings, path: std::env::var_os("PATH") }
    }

    /// The setting that names it.
    pub fn setting(&self) -> &'static str {
        self.settings.setting()
    }

    /// The command, if a command prints the tokens.
    pub fn command(&self) -> Option<&TokenCommandSettings> {
        match &self.settings {
            TokenSettings::Command(command) => Some(command),
            TokenSettings::Fixed(_) | TokenSettings::File(_) => None,
        }
    }

    /// Whether another token can come of it.
    pub fn may_change(&self) -> bool {
        !matches!(self.settings, TokenSettings::Fixed(_))
    }

    /// Reads the token.
    ///
    /// # Errors
    /// There is none.
    pub async fn read(&self) -> Result<BearerToken, TokenProblem> {
        match &self.settings {
            TokenSettings::Fixed(token) => {
                BearerToken::parse(token.secret().expose_secret().as_bytes()).map_err(TokenProblem::Setting)
            }
            TokenSettings::File(path) => of_file(path).await,
            TokenSettings::Command(command) => self.of_command(command).await,
        }
    }

    async fn of_command(&self, settings: &TokenCommandSettings) -> Result<BearerToken, TokenProblem> {
        let name = || settings.command.clone();
        let program = match settings.command.contains('/') {
            true => Some(PathBuf::from(&settings.command)).filter(|path| program_run::is_program(path)),
            false => program_run::in_path(&settings.command, self.path.as_deref()),
        };
        let program = program.ok_or_else(|| TokenProblem::UnknownProgram(name()))?;
        let failed = |source, silent| TokenProblem::Program { program: name(), source, silent };
        let ended = program_run::run(Command::new(program).args(&settings.args), MAX_SOURCE_BYTES).await;
        let ended = ended.map_err(|error| failed(error, true))?;
        let silent = ended.errors.is_empty();
        let printed = ended.output().map_err(|error| failed(error, silent))?;
        let token = match settings.format {
            TokenFormat::Raw => printed,
            // The parser's own error may quote what was printed.
            TokenFormat::Json => of_json(&printed).ok_or_else(|| TokenProblem::NoJson(name()))?,
        };
        BearerToken::parse(&token).map_err(|source| TokenProblem::Printed { program: name(), source })
    }
}

async fn of_file(path: &Path) -> Result<BearerToken, TokenProblem> {
    let opened = path.to_owned();
    let reading = tokio::task::spawn_blocking(move || regular_file::read(&opened, MAX_SOURCE_BYTES));
    let read = timeout(FILE_TIMEOUT, reading).await.map_err(|_| TokenProblem::SlowFile(path.to_owned()))?;
    let read = read.unwrap_or_else(|error| Err(io::Error::other(error).into()));
    let bytes = read.map_err(|source| TokenProblem::File { path: path.to_owned(), source })?;
    BearerToken::parse(&bytes).map_err(|source| TokenProblem::FileContent { path: path.to_owned(), source })
}

fn of_json(printed: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
    #[derive(Deserialize)]
    struct Printed {
        token: String,
    }
    let printed: Printed = serde_json::from_slice(printed).ok()?;
    Some(Zeroizing::new(printed.token.into_bytes()))
}
