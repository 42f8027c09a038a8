//! Several sources as one: the first source in the list that has a name wins.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::snapshot::{BadEntry, SourceEntry, SourceSnapshot};

/// What is known about a name.
#[derive(Clone, Debug, PartialEq)]
pub enum NameLookup<'s> {
    /// This entry has it.
    Found(&'s SourceEntry),
    /// The source that would win has it, but not in a usable form.
    Broken {
        /// Name of the source.
        source: &'s str,
        /// The entry.
        entry: &'s BadEntry,
    },
    /// No source has it, and all of them were read completely.
    Absent,
    /// A source that may have it, and would win, could not be read completely.
    Unknown {
        /// Name of the source.
        source: &'s str,
        /// Why it may have the name.
        why: String,
    },
}

/// An entry that does not count, because an earlier one has its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shadowed {
    /// Name of the account.
    pub name: String,
    /// Name of the source that has the entry.
    pub source: Arc<str>,
    /// Name of the source whose entry wins.
    pub by: Arc<str>,
}

/// The accounts of all sources.
#[derive(Clone, Debug, Default)]
pub struct MergedSources {
    snapshots: Vec<Arc<SourceSnapshot>>,
    /// Index of the snapshot, and the entry, by name.
    winners: BTreeMap<String, (usize, Winner)>,
    shadowed: Vec<Shadowed>,
}

#[derive(Clone, Debug)]
enum Winner {
    Entry(Arc<SourceEntry>),
    Broken(Arc<BadEntry>),
}

impl MergedSources {
    /// Merges snapshots, in the order of the sources.
    pub fn of(snapshots: Vec<Arc<SourceSnapshot>>) -> Self {
        let mut merged = Self { snapshots: Vec::new(), winners: BTreeMap::new(), shadowed: Vec::new() };
        for (at, snapshot) in snapshots.iter().enumerate() {
            let good = snapshot.entries.iter().map(|entry| (&entry.name, Winner::Entry(Arc::clone(entry))));
            // After the good ones: of two entries of one source with the same name, the usable one counts.
            let bad = snapshot.bad.iter().filter_map(|bad| {
                let name = bad.name.as_ref().filter(|name| !name.is_empty())?;
                Some((name, Winner::Broken(Arc::clone(bad))))
            });
            for (name, winner) in good.chain(bad) {
                if let Some((first, _)) = merged.winners.get(name) {
                    let by = snapshots.get(*first).unwrap_or(snapshot);
                    merged.shadowed.push(Shadowed {
                        name: name.clone(),
                        source: Arc::clone(&snapshot.source),
                        by: Arc::clone(&by.source),
                    });
                } else {
                    merged.winners.insert(name.clone(), (at, winner));
                }
            }
        }
        Self { snapshots, ..merged }
    }

    /// What is known about a name.
    pub fn lookup(&self, name: &str) -> NameLookup<'_> {
        let winner = self.winners.get(name);
        let before = winner.map_or(self.snapshots.len(), |(at, _)| *at);
        let unsure =
            self.snapshots.iter().take(before).find_map(|snapshot| Some((snapshot, snapshot.gap()?)));
        match (unsure, winner) {
            (Some((snapshot, why)), _) => NameLookup::Unknown { source: &snapshot.source, why },
            (None, Some((_, Winner::Entry(entry)))) => NameLookup::Found(entry),
            (None, Some((at, Winner::Broken(entry)))) => {
                NameLookup::Broken { source: self.snapshots.get(*at).map_or("", |of| &of.source), entry }
            }
            (None, None) => NameLookup::Absent,
        }
    }

    /// The usable entry that wins for a name. Whether it is certain, [`MergedSources::lookup`] says.
    pub fn entry(&self, name: &str) -> Option<&Arc<SourceEntry>> {
        match self.winners.get(name) {
            Some((_, Winner::Entry(entry))) => Some(entry),
            Some((_, Winner::Broken(_))) | None => None,
        }
    }

    /// The source whose entry wins for a name.
    pub fn winner(&self, name: &str) -> Option<&str> {
        let (at, _) = self.winners.get(name)?;
        self.snapshots.get(*at).map(|snapshot| &*snapshot.source)
    }

    /// The accounts that win, by name. Which of them are certain, [`MergedSources::lookup`] says.
    pub fn accounts(&self) -> impl Iterator<Item = &Arc<SourceEntry>> {
        self.winners.values().filter_map(|(_, winner)| match winner {
            Winner::Entry(entry) => Some(entry),
            Winner::Broken(_) => None,
        })
    }

    /// The entries that do not count, in the order of the sources.
    pub fn shadowed(&self) -> &[Shadowed] {
        &self.shadowed
    }

    /// The names of all accounts, sorted, those without a usable entry included.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.winners.keys().map(String::as_str)
    }

    /// The snapshots, in the order of the sources.
    pub fn snapshots(&self) -> &[Arc<SourceSnapshot>] {
        &self.snapshots
    }
}
