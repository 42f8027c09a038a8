//! The agent's bearer token for the hub: where it comes from.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;

use super::DAY;
use kubesvc_runtime::config::{
    ConfigError, FromSetting, Password, SettingType, TEXTS_WITH_COMMAS, TOKEN, Values, group, key, seconds,
};
use kubesvc_runtime::settings;

const PATH: SettingType = SettingType::Optional(4096);

settings! {
    /// The keys below `clouddriver.auth`.
    pub(super) struct TokenKeys {
        /// bearer token for the hub, sent with each stream
        token: Option<Password> = key("token", TOKEN, "");
        /// file with that token, read again when it changes; one of the three sources at most
        file: Option<PathBuf> = key("tokenFile", PATH, "");
        /// Or a command.
        command: TokenCommandKeys = group("tokenCommand");
    }

    pub(super) struct TokenCommandKeys {
        /// program that prints that token, in the agent's PATH or a path; it is run without a shell
        command: Option<String> = key("command", PATH, "");
        /// its arguments
        args: Vec<String> = key("args", SettingType::List(TEXTS_WITH_COMMAS), "");
        /// json or empty: it prints an object with a text "token"; raw: the bare token
        format: Option<TokenFormat> = key("format", SettingType::OptionalChoice(&["raw", "json"]), "");
        /// interval between runs; 0: when a fifth of the token's life is left, or without one before each dial
        refresh: Duration = key("refreshIntervalSeconds", seconds(0, 365 * DAY), "0");
    }
}

/// Where the token comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenSettings {
    /// The settings.
    Fixed(Password),
    /// A file that holds nothing else.
    File(PathBuf),
    /// What a command prints.
    Command(TokenCommandSettings),
}

/// A command that prints the token. `Debug` omits its arguments, which may be secret.
#[derive(Clone, PartialEq, Eq)]
pub struct TokenCommandSettings {
    /// Its bare name, or its path.
    pub command: String,
    /// Its arguments.
    pub args: Vec<String>,
    /// What it prints.
    pub format: TokenFormat,
    /// Interval between runs; zero: there is none.
    pub refresh: Duration,
}

/// What a command prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TokenFormat {
    /// The bare token.
    Raw,
    /// A JSON object with a text `token`.
    Json,
}

impl FromSetting for TokenFormat {}

impl fmt::Debug for TokenCommandSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenCommandSettings").field("command", &self.command).finish_non_exhaustive()
    }
}

const TOKEN_KEY: &str = "clouddriver.auth.token";
const FILE_KEY: &str = "clouddriver.auth.tokenFile";
const COMMAND_KEY: &str = "clouddriver.auth.tokenCommand.command";
const INSECURE: &str = "clouddriver.insecure";

impl TokenSettings {
    /// The setting that names the source.
    pub fn setting(&self) -> &'static str {
        match self {
            Self::Fixed(_) => TOKEN_KEY,
            Self::File(_) => FILE_KEY,
            Self::Command(_) => COMMAND_KEY,
        }
    }

    /// Lets a relative path count from the folder of the settings.
    pub(super) fn resolve_path(&mut self, dir: &Path) {
        match self {
            Self::File(path) => *path = dir.join(&path),
            Self::Command(one) if one.command.contains('/') => {
                one.command = dir.join(&one.command).to_string_lossy().into_owned();
            }
            Self::Fixed(_) | Self::Command(_) => {}
        }
    }
}

/// The one source that is set, if one is.
pub(super) fn token(keys: TokenKeys, values: &Values) -> Result<Option<TokenSettings>, ConfigError> {
    let TokenKeys { token, file, command } = keys;
    let TokenCommandKeys { command, args, format, refresh } = command;
    if command.is_none() {
        let details = [
            ("clouddriver.auth.tokenCommand.args", !args.is_empty()),
            ("clouddriver.auth.tokenCommand.format", format.is_some()),
            ("clouddriver.auth.tokenCommand.refreshIntervalSeconds", !refresh.is_zero()),
        ];
        if let Some((key, _)) = details.into_iter().find(|(_, is_set)| *is_set) {
            return Err(values.rule(key, format!("is set, but {COMMAND_KEY} is not; set both")).into());
        }
    }
    let command = command.map(|command| {
        let format = format.unwrap_or(TokenFormat::Json);
        TokenSettings::Command(TokenCommandSettings { command, args, format, refresh })
    });
    let sources = [token.map(TokenSettings::Fixed), file.map(TokenSettings::File), command];
    let mut sources = sources.into_iter().flatten();
    let source = sources.next();
    match (&source, sources.next()) {
        (Some(first), Some(second)) => {
            let why = format!("is set, and so is {}; keep one of the sources of the token", first.setting());
            Err(values.rule(second.setting(), why).into())
        }
        _ => Ok(source),
    }
}

/// A warning about a token that everybody on the way can read.
pub(super) fn notes(values: &Values) -> Option<String> {
    let key = [TOKEN_KEY, FILE_KEY, COMMAND_KEY].into_iter().find(|key| values.text(key).is_some())?;
    let origin = values.origin(key);
    let flag = values.origin(INSECURE);
    values.is_true(INSECURE).then(|| {
        format!(
            "{origin}: the token of `{key}` is sent without TLS, since {INSECURE} is true ({flag}): it can be read on the \
             network; set {INSECURE}: false"
        )
    })
}
