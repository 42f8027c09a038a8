//! What is wrong with a configuration, said so that a person can mend it.

use std::fmt;
use std::sync::Arc;

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// Nobody set it; the program's own default.
    Default,
    /// A line of a configuration file.
    File {
        /// The file as it was named on the command line, or found in the folder.
        file: Arc<str>,
        /// The line, counted from 1; 0 speaks of the file as a whole.
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

/// One thing that is wrong. Its text names the place, and never a secret value.
#[derive(Debug, thiserror::Error)]
pub enum ConfigProblem {
    /// The file or folder cannot be read.
    #[error("{file}: cannot be read: {why}")]
    Unreadable {
        /// The file or folder.
        file: Arc<str>,
        /// What the system said, or what stands there instead.
        why: String,
    },
    /// The text is not YAML, or is YAML of a shape that settings never have.
    #[error("{place}: not valid YAML settings: {why}")]
    Malformed {
        /// File and line.
        place: Origin,
        /// What the parser expected.
        why: String,
    },
    /// The key is not one of the program's settings.
    #[error("{place}: unknown setting `{key}`{}", hint(.nearest.as_deref()))]
    Unknown {
        /// Where it is written.
        place: Origin,
        /// The key as it is written.
        key: String,
        /// The known key that looks most like it.
        nearest: Option<String>,
    },
    /// The value is of the wrong type or out of bounds.
    #[error("{place}: `{key}` is {read}, but must be {allowed}")]
    Value {
        /// Where it is written.
        place: Origin,
        /// The key as the documentation spells it.
        key: String,
        /// What stands there; the words "a value not shown here" for a secret.
        read: String,
        /// What may stand there.
        allowed: String,
    },
    /// The value may stand there, but not beside the others.
    #[error("{place}: `{key}` {why}")]
    Rule {
        /// Where it is written, or the group in which it is missing.
        place: Origin,
        /// The key as it is written.
        key: String,
        /// What is wrong, and what to do.
        why: String,
    },
    /// One setting is given twice in one file, perhaps in two spellings.
    #[error("{second}: `{key}` was already set in line {first}; keep one of the two")]
    Twice {
        /// The key as it is written the second time.
        key: String,
        /// Line of the first.
        first: usize,
        /// File and line of the second.
        second: Origin,
    },
}

fn hint(nearest: Option<&str>) -> String {
    nearest.map(|n| format!("; did you mean `{n}`?")).unwrap_or_default()
}

/// Everything that is wrong with a configuration, found in one go. `Display` gives one line each.
#[derive(Debug)]
pub struct ConfigError {
    /// At least one problem, in the order of the files.
    pub problems: Vec<ConfigProblem>,
}

/// More lines than this help nobody; the rest is counted.
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
