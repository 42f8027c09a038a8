//! What would become of each account that a migration selects. A dry run shows this.
//!
//! The first source that has a name wins, as in Clouddriver. An entry that an unread source may override is not used, and
//! absence is a fact only if every source was read completely.

use std::collections::{BTreeMap, BTreeSet};

use kubesvc_core::ZoneId;

use super::declined::DeclinedNames;
use super::selection::MigrationSelection;
use crate::definition::{
    ConversionSettings, Entry, EntryRefusal, MigratedAccount, Report, case_twins, convert,
};

/// The last state of a source that was read.
#[derive(Clone, Copy)]
pub struct PlannedSource<'a> {
    /// Name of the source.
    pub name: &'a str,
    /// Its entries.
    pub entries: &'a [Entry],
    /// What these entries say about those that are not among them.
    pub coverage: Coverage,
}

/// What a read of a source says about entries that it lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coverage {
    /// They do not exist.
    Complete,
    /// Nothing: the source leaves entries out, or some could not be read.
    Partial,
    /// Nothing: the source could not be read, and the entries are those of the last read.
    Unread,
}

/// What would become of one account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlanOutcome {
    /// It is created.
    Create,
    /// It exists, and is left unchanged.
    Exists,
    /// A person deleted it since, and its entry has not changed.
    Declined,
    /// Its entry becomes no account.
    Refused(EntryRefusal),
    /// It is listed by name, and in no source.
    Missing,
    /// A source that may have it cannot be read.
    Undecided {
        /// The source.
        source: String,
    },
}

impl PlanOutcome {
    /// The outcome as reports show it.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Exists => "exists",
            Self::Declined => "declined",
            Self::Refused(_) => "refused",
            Self::Missing => "missing",
            Self::Undecided { .. } => "undecided",
        }
    }
}

/// One account that a migration selects.
#[derive(Clone)]
pub struct PlannedAccount {
    /// What would become of it.
    pub outcome: PlanOutcome,
    /// The source whose entry counts.
    pub source: Option<String>,
    /// Hash of the entry.
    pub hash: Option<String>,
    /// The account of the entry, if it describes one.
    pub account: Option<Box<MigratedAccount>>,
    /// What a person should know of the entry.
    pub report: Report,
}

impl PlannedAccount {
    fn without_entry(outcome: PlanOutcome) -> Self {
        Self { outcome, source: None, hash: None, account: None, report: Report::default() }
    }

    /// The zone of the account, if a rule names it.
    pub fn zone(&self) -> Option<&ZoneId> {
        self.account.as_ref()?.object.spec.zone_id.as_ref()
    }

    /// Kind of its credential.
    pub fn credential(&self) -> Option<&'static str> {
        Some(self.account.as_ref()?.credential.kind())
    }
}

/// An entry that another one overrides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShadowedEntry {
    /// Name of the account.
    pub name: String,
    /// Source of the entry.
    pub source: String,
    /// The source whose entry counts.
    pub by: String,
}

/// What would become of the accounts that a migration selects.
#[derive(Clone, Default)]
pub struct Plan {
    /// The accounts by name.
    pub accounts: BTreeMap<String, PlannedAccount>,
    /// The selected entries that do not count.
    pub shadowed: Vec<ShadowedEntry>,
    /// Warnings about the selection.
    pub warnings: Vec<String>,
    /// Names of all entries of all sources.
    names: BTreeSet<String>,
    /// Number of the read, if it was complete.
    read: Option<u64>,
    /// The first source that could not be read.
    unread: Option<String>,
}

impl Plan {
    /// Whether the sources have an account of this name; `None` if that is not known.
    pub fn is_in_sources(&self, name: &str) -> Option<bool> {
        if self.names.contains(name) { Some(true) } else { self.read.map(|_| false) }
    }

    /// Number of the read of the sources, if all of them were read completely.
    pub fn complete_read(&self) -> Option<u64> {
        self.read
    }

    /// The first source that could not be read.
    pub fn unread_source(&self) -> Option<&str> {
        self.unread.as_deref()
    }
}

/// Plans. `exists`: whether kubesvc has an account of this name. `read`: number of this read of the sources.
pub fn plan(
    selection: &MigrationSelection,
    sources: &[PlannedSource<'_>],
    exists: impl Fn(&str) -> bool,
    declined: &DeclinedNames,
    settings: ConversionSettings<'_>,
    read: u64,
) -> Plan {
    let is_complete = sources.iter().all(|source| source.coverage == Coverage::Complete);
    let mut plan = Plan { read: is_complete.then_some(read), ..Plan::default() };
    let mut winners: BTreeMap<&str, (&Entry, &str)> = BTreeMap::new();
    let mut unread: Option<&str> = None;
    let mut undecided: BTreeMap<&str, &str> = BTreeMap::new();
    for source in sources {
        for entry in source.entries {
            let name = entry.name.as_str();
            plan.names.insert(name.to_owned());
            if let Some((_, by)) = winners.get(name) {
                if selection.selects(name) {
                    let (name, source) = (name.to_owned(), source.name.to_owned());
                    plan.shadowed.push(ShadowedEntry { name, source, by: (*by).to_owned() });
                }
                continue;
            }
            winners.insert(name, (entry, source.name));
            if let Some(unread) = unread {
                undecided.insert(name, unread);
            }
        }
        if source.coverage == Coverage::Unread {
            unread = unread.or(Some(source.name));
        }
    }
    plan.unread = unread.map(str::to_owned);
    let twins = case_twins(winners.keys().copied());
    for (name, (entry, source)) in &winners {
        if !selection.selects(name) {
            continue;
        }
        if !selection.reads(source) {
            // The account that Clouddriver uses is that of a source that this migration does not read.
            let others = sources.iter().filter(|other| other.name != *source && selection.reads(other.name));
            if others.clone().any(|other| other.entries.iter().any(|entry| entry.name == *name)) {
                plan.warnings.push(format!(
                    "account {name:?} is that of source {source:?}, which spec.sources does not name"
                ));
            }
            continue;
        }
        let mut planned = planned(entry, selection, &exists, declined, settings);
        if let Some(twins) = twins.get(name) {
            let twins = twins.iter().take(3).map(|twin| format!("{twin:?}")).collect::<Vec<_>>().join(", ");
            planned.report.warnings.push(format!("the name differs only in case from {twins}"));
        }
        if let Some(unread) = undecided.get(name)
            && planned.outcome != PlanOutcome::Exists
        {
            planned.outcome = PlanOutcome::Undecided { source: (*unread).to_owned() };
        }
        plan.accounts.insert((*name).to_owned(), planned);
    }
    for name in selection.listed().filter(|name| !winners.contains_key(name)) {
        let outcome = match (exists(name), unread) {
            (true, _) => PlanOutcome::Exists,
            (false, Some(source)) => PlanOutcome::Undecided { source: source.to_owned() },
            (false, None) => PlanOutcome::Missing,
        };
        plan.accounts.insert(name.to_owned(), PlannedAccount::without_entry(outcome));
    }
    let names: Vec<&str> = winners.keys().copied().collect();
    plan.warnings.extend(selection.partial_matches(&names).iter().map(ToString::to_string));
    let known: Vec<&str> = sources.iter().map(|source| source.name).collect();
    let unknown = selection.unknown_sources(&known);
    plan.warnings
        .extend(unknown.map(|name| {
            format!("spec.sources names {name:?}, which is none of kubesvc.clouddriver.sources")
        }));
    plan
}

fn planned(
    entry: &Entry,
    selection: &MigrationSelection,
    exists: &impl Fn(&str) -> bool,
    declined: &DeclinedNames,
    settings: ConversionSettings<'_>,
) -> PlannedAccount {
    let conversion = convert(entry, &selection.choice(&entry.name), settings);
    let is_declined = !selection.names(&entry.name) && declined.has(&entry.name, &conversion.hash);
    let (account, refusal) = match conversion.account {
        Ok(account) => (Some(Box::new(account)), None),
        Err(refusal) => (None, Some(refusal)),
    };
    let outcome = match refusal {
        _ if exists(&entry.name) => PlanOutcome::Exists,
        _ if is_declined => PlanOutcome::Declined,
        Some(refusal) => PlanOutcome::Refused(refusal),
        None => PlanOutcome::Create,
    };
    let (source, hash) = (Some(entry.source.clone()), Some(conversion.hash));
    PlannedAccount { outcome, source, hash, account, report: conversion.report }
}
