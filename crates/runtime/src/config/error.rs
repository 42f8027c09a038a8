//! Errors in a configuration, with what a person needs to fix them.

use std::fmt;
use std::sync::Arc;

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// The program's default.
    Default,
    /// A line of a configuration file.
    File {
        /// The file as named on the command line, or as found in the folder.
        file: Arc<str>,
        /// The line, counted from 1; 0 stands for the whole file.
        line: usize,
    },
    /// An environment variable, by name.
    Environment(String),
    /// A command-line flag, by name.
    Flag(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { file, line: 0 } => f.write_str(file),
            Self::File { file, line } => write!(f, "{file}:{line}"),
            Self::Environment(name) => write!(f, "environment {name}"),
            Self::Flag(name) => write!(f, "flag {name}"),
        }
    }
}

/// One problem. Its text names the position, and never a secret value.
#[derive(Debug, thiserror::Error)]
pub enum ConfigProblem {
    /// The file or folder cannot be read.
    #[error("{file}: cannot be read: {why}")]
    Unreadable {
        /// The file or folder.
        file: Arc<str>,
        /// The error from the system, or what is at the path instead.
        why: String,
    },
    /// The text is not YAML, or is YAML of a shape that settings never have.
    #[error("{origin}: not valid YAML settings: {why}")]
    Malformed {
        /// File and line.
        origin: Origin,
        /// What the parser expected.
        why: String,
    },
    /// The key is not one of the program's settings.
    #[error("{origin}: unknown setting `{key}`{}", hint(.nearest.as_deref()))]
    Unknown {
        /// Where it is written.
        origin: Origin,
        /// The key as written.
        key: String,
        /// The most similar known key.
        nearest: Option<String>,
    },
    /// The value has the wrong type or is out of bounds.
    #[error("{origin}: `{key}` is {read}, but must be {allowed}")]
    Value {
        /// Where it is written.
        origin: Origin,
        /// The key in its documented spelling.
        key: String,
        /// The value; "a value not shown here" for a secret.
        read: String,
        /// The allowed values.
        allowed: String,
    },
    /// The value is allowed by itself, but not in combination with others.
    #[error("{origin}: `{key}` {why}")]
    Rule {
        /// Where it is written, or the group in which it is missing.
        origin: Origin,
        /// The key as written.
        key: String,
        /// What is wrong, and what to do.
        why: String,
    },
    /// A setting is given twice in one file, possibly in two spellings.
    #[error("{second}: `{key}` was already set in line {first}; keep one of the two")]
    Twice {
        /// The key as written the second time.
        key: String,
        /// Line of the first.
        first: usize,
        /// File and line of the second.
        second: Origin,
    },
}

impl ConfigProblem {
    /// Where it is written; `None`: it is about a file.
    pub(super) fn origin(&self) -> Option<&Origin> {
        match self {
            Self::Unreadable { .. } => None,
            Self::Malformed { origin, .. }
            | Self::Unknown { origin, .. }
            | Self::Value { origin, .. }
            | Self::Rule { origin, .. }
            | Self::Twice { second: origin, .. } => Some(origin),
        }
    }

    /// The line of a file, counted from 1; `None`: it is not of one line.
    pub fn line(&self) -> Option<usize> {
        match self.origin()? {
            Origin::File { line, .. } => Some(*line).filter(|line| *line > 0),
            _ => None,
        }
    }

    /// What is wrong, without the place, the key and the value.
    pub fn reason(&self) -> String {
        match self {
            Self::Unreadable { why, .. } | Self::Malformed { why, .. } | Self::Rule { why, .. } => {
                why.clone()
            }
            Self::Unknown { nearest, .. } => format!("is unknown{}", hint(nearest.as_deref())),
            Self::Value { allowed, .. } => format!("must be {allowed}"),
            Self::Twice { first, .. } => format!("was already set in line {first}; keep one of the two"),
        }
    }

    /// The problem without a value, for reports about other people's files.
    pub fn without_value(&self) -> String {
        match self {
            Self::Value { origin, key, .. } => format!("{origin}: `{key}` {}", self.reason()),
            problem => problem.to_string(),
        }
    }
}

fn hint(nearest: Option<&str>) -> String {
    nearest.map(|n| format!("; did you mean `{n}`?")).unwrap_or_default()
}

/// All problems of a configuration, found in one pass. `Display` prints one line each.
#[derive(Debug)]
pub struct ConfigError {
    /// At least one problem, in the order of the files.
    pub problems: Vec<ConfigProblem>,
}

/// Maximum number of problems printed; the rest is only counted.
const MAX_PROBLEMS_SHOWN: usize = 20;

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, problem) in self.problems.iter().take(MAX_PROBLEMS_SHOWN).enumerate() {
            if i > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{problem}")?;
        }
        match self.problems.len().checked_sub(MAX_PROBLEMS_SHOWN) {
            None | Some(0) => Ok(()),
            Some(more) => write!(f, "\nand {more} more problems"),
        }
    }
}

impl std::error::Error for ConfigError {}

impl From<ConfigProblem> for ConfigError {
    fn from(problem: ConfigProblem) -> Self {
        Self { problems: vec![problem] }
    }
}
