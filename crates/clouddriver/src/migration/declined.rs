//! The accounts that a person deleted although their source still has them. They are not migrated again until their entry
//! changes, or a migration lists them by name.

use std::collections::BTreeMap;
use std::fmt;

use kubesvc_core::object_names::digest;

/// Maximum number of declined accounts.
pub const MAX_DECLINED: usize = 10_000;
/// Length of the digests of a name and of an entry, in hex digits: 10,000 of them fit into a ConfigMap.
const DIGEST_CHARS: usize = 16;

/// No further account can be declined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{MAX_DECLINED} accounts are declined, and no more can be; remove some from the ConfigMap kubesvc-migration-declined"
)]
pub struct DeclinedFull;

/// Digests of the declined accounts' names, with those of their entries. As text, one line for each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeclinedNames(BTreeMap<String, String>);

impl DeclinedNames {
    /// Reads the text form. Lines that are none are dropped.
    pub fn parse(text: &str) -> Self {
        let is_digest =
            |text: &str| text.len() == DIGEST_CHARS && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let pairs = text.lines().filter_map(|line| line.split_once(' '));
        let pairs = pairs.filter(|(name, entry)| is_digest(name) && is_digest(entry));
        Self(pairs.take(MAX_DECLINED).map(|(name, entry)| (name.to_owned(), entry.to_owned())).collect())
    }

    /// Whether the account is declined as long as its entry has this hash.
    pub fn has(&self, name: &str, entry_hash: &str) -> bool {
        self.0.get(&digest(name)).is_some_and(|declined| *declined == shortened(entry_hash))
    }

    /// Adds an account with the hash of its entry.
    ///
    /// # Errors
    /// There are [`MAX_DECLINED`] others.
    pub fn add(&mut self, name: &str, entry_hash: &str) -> Result<(), DeclinedFull> {
        let name = digest(name);
        if self.0.len() >= MAX_DECLINED && !self.0.contains_key(&name) {
            return Err(DeclinedFull);
        }
        self.0.insert(name, shortened(entry_hash));
        Ok(())
    }

    /// Whether no further account can be added.
    pub fn is_full(&self) -> bool {
        self.0.len() >= MAX_DECLINED
    }
}

fn shortened(hash: &str) -> String {
    hash.chars().take(DIGEST_CHARS).collect()
}

impl fmt::Display for DeclinedNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|(name, entry)| writeln!(f, "{name} {entry}"))
    }
}
