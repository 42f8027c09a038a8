//! What would become of each account that a migration selects. A dry run shows this.
//!
//! The first source that has a name wins, as in Clouddriver. An entry that an incomplete source may override is not used,
//! and absence is a fact only if every source was read completely.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kubesvc_core::ZoneId;
use kubesvc_core::lifecycle::Tick;

use super::declined::DeclinedNames;
use super::selection::MigrationSelection;
use crate::definition::{
    Choice, Conversion, ConversionSettings, EntryRefusal, MigratedAccount, Report, case_twins, convert,
};
use crate::sources::{Completeness, MergedSources, NameLookup, Shadowed, SourceEntry};

/// What would become of one account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlanOutcome {
    /// It is created.
    Create,
    /// It exists, and is left unchanged.
    Exists,
    /// A person deleted it since, and its entry has not changed.
    Declined,
    /// Its entry becomes no account, for this reason, a word in CamelCase.
    Refused {
        /// The reason.
        reason: &'static str,
        /// What is wrong and what to do, without a value.
        message: String,
    },
    /// It is listed by name, and in no source.
    Missing,
    /// A source that may have it cannot be read completely.
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
            Self::Refused { .. } => "refused",
            Self::Missing => "missing",
            Self::Undecided { .. } => "undecided",
        }
    }

    fn refused(refusal: &EntryRefusal) -> Self {
        Self::Refused { reason: refusal.reason().as_str(), message: refusal.to_string() }
    }
}

/// What an entry would become, without its credential. Depends on nothing but the entry, the selection and the settings.
#[derive(Clone, Debug)]
pub struct AssessedEntry {
    /// Hash of the entry.
    pub hash: String,
    /// Why it becomes no account.
    pub refusal: Option<EntryRefusal>,
    /// Zone of the account, if a rule names it.
    pub zone: Option<ZoneId>,
    /// Kind of its credential.
    pub credential: Option<&'static str>,
    /// What a person should know of the entry.
    pub report: Report,
}

impl AssessedEntry {
    /// Assesses an entry. `check`: whether an account may use its credential.
    pub fn of(
        entry: &SourceEntry,
        choice: &Choice,
        settings: ConversionSettings<'_>,
        check: impl FnOnce(&MigratedAccount) -> Result<(), EntryRefusal>,
    ) -> Self {
        let Conversion { hash, account, report } = convert(entry, choice, settings);
        let checked = account.and_then(|account| check(&account).map(|()| account));
        let assessed = Self { hash, refusal: None, zone: None, credential: None, report };
        match checked {
            Ok(account) => {
                let credential = Some(account.credential.kind());
                Self { zone: account.object.spec.zone_id, credential, ..assessed }
            }
            Err(refusal) => Self { refusal: Some(refusal), ..assessed },
        }
    }
}

/// One account that a migration selects.
#[derive(Clone, Debug)]
pub struct PlannedAccount {
    /// What would become of it.
    pub outcome: PlanOutcome,
    /// The entry that counts, and what it would become.
    pub entry: Option<(Arc<SourceEntry>, Arc<AssessedEntry>)>,
    /// Sentences about its name.
    pub warnings: Vec<String>,
}

impl PlannedAccount {
    fn without_entry(outcome: PlanOutcome) -> Self {
        Self { outcome, entry: None, warnings: Vec::new() }
    }

    fn assessed(&self) -> Option<&AssessedEntry> {
        self.entry.as_ref().map(|(_, assessed)| &**assessed)
    }

    /// The source whose entry counts.
    pub fn source(&self) -> Option<&str> {
        self.entry.as_ref().map(|(entry, _)| &*entry.source)
    }

    /// Hash of the entry.
    pub fn hash(&self) -> Option<&str> {
        self.assessed().map(|assessed| assessed.hash.as_str())
    }

    /// Whether the entry describes an account.
    pub fn is_account(&self) -> bool {
        self.assessed().is_some_and(|assessed| assessed.refusal.is_none())
    }

    /// The zone of the account, if a rule names it.
    pub fn zone(&self) -> Option<&ZoneId> {
        self.assessed()?.zone.as_ref()
    }
}

/// What would become of the accounts that a migration selects.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// The accounts by name.
    pub accounts: BTreeMap<String, PlannedAccount>,
    /// The selected entries that do not count.
    pub shadowed: Vec<Shadowed>,
    /// Warnings about the selection.
    pub warnings: Vec<String>,
    /// Names of all entries of all sources.
    names: BTreeSet<String>,
    /// When the oldest of the last reads of the sources began, if each was complete.
    read: Option<Tick>,
    /// The first source that could not be read, or that may have a selected account.
    unread: Option<String>,
}

impl Plan {
    /// Whether the sources have an account of this name; `None` if that is not known.
    pub fn is_in_sources(&self, name: &str) -> Option<bool> {
        if self.names.contains(name) { Some(true) } else { self.read.map(|_| false) }
    }

    /// When the oldest of the last reads of the sources began, if each of them was complete.
    pub fn complete_read(&self) -> Option<Tick> {
        self.read
    }

    /// Takes in that the sources were read again and have the same accounts.
    pub fn was_read_again(&mut self, read: Tick) {
        self.read = self.read.map(|_| read);
    }

    /// The first source that could not be read, or that may have a selected account and was not read completely.
    pub fn unread_source(&self) -> Option<&str> {
        self.unread.as_deref()
    }
}

/// Plans.
///
/// - `assess`: what an entry would become; [`AssessedEntry::of`], or a copy of it.
/// - `exists`: whether kubesvc has an account of this name.
/// - `read`: when the oldest of the last reads of the sources began.
pub fn plan(
    selection: &MigrationSelection,
    sources: &MergedSources,
    mut assess: impl FnMut(&Arc<SourceEntry>) -> Arc<AssessedEntry>,
    exists: impl Fn(&str) -> bool,
    declined: &DeclinedNames,
    read: Tick,
) -> Plan {
    let snapshots = sources.snapshots();
    let is_complete = snapshots.iter().all(|snapshot| snapshot.gap().is_none());
    let is_unread = |completeness: &Completeness| matches!(completeness, Completeness::Unread(_));
    let unread = snapshots.iter().find(|snapshot| is_unread(&snapshot.completeness));
    let mut plan = Plan {
        read: is_complete.then_some(read),
        unread: unread.map(|snapshot| snapshot.source.to_string()),
        names: sources.names().map(str::to_owned).collect(),
        ..Plan::default()
    };
    let is_shown =
        |one: &&Shadowed| selection.selects(&one.name, &one.by) || selection.selects(&one.name, &one.source);
    plan.shadowed = sources.shadowed().iter().filter(is_shown).cloned().collect();
    // The account that Clouddriver uses may be that of a source that this migration does not read.
    for Shadowed { name, source, by } in &plan.shadowed {
        if !selection.selects(name, by) {
            plan.warnings.push(format!("account {name:?} is that of source {by:?}, and not of {source:?}"));
        }
    }
    let twins = case_twins(sources.names());
    for name in sources.names() {
        let Some(winner) = sources.winner(name) else { continue };
        if !selection.selects(name, winner) {
            continue;
        }
        let planned = planned(name, selection, sources, &mut assess, &exists, declined);
        let twins = twins.get(name).map(|twins| {
            let twins = twins.iter().take(3).map(|twin| format!("{twin:?}")).collect::<Vec<_>>();
            format!("the name differs only in case from {}", twins.join(", "))
        });
        plan.accounts
            .insert(name.to_owned(), PlannedAccount { warnings: twins.into_iter().collect(), ..planned });
    }
    for name in selection.listed().filter(|name| !plan.names.contains(*name)) {
        let outcome = match (exists(name), sources.lookup(name)) {
            (true, _) => PlanOutcome::Exists,
            (false, NameLookup::Unknown { source, .. }) => {
                PlanOutcome::Undecided { source: source.to_owned() }
            }
            (false, _) => PlanOutcome::Missing,
        };
        plan.accounts.insert(name.to_owned(), PlannedAccount::without_entry(outcome));
    }
    let undecided = plan.accounts.values().find_map(|planned| match &planned.outcome {
        PlanOutcome::Undecided { source } => Some(source.clone()),
        _ => None,
    });
    plan.unread = plan.unread.or(undecided);
    let names: Vec<&str> = sources.names().collect();
    plan.warnings.extend(selection.partial_matches(&names).iter().map(ToString::to_string));
    if snapshots.is_empty() {
        plan.warnings.push(
            "no credentials source is configured: list Clouddriver's in kubesvc.clouddriver.sources"
                .to_owned(),
        );
    }
    let known: Vec<&str> = snapshots.iter().map(|snapshot| &*snapshot.source).collect();
    let unknown = selection.unknown_sources(&known);
    plan.warnings
        .extend(unknown.map(|name| {
            format!("spec.sources names {name:?}, which is none of kubesvc.clouddriver.sources")
        }));
    plan
}

/// What would become of an account that some source has.
fn planned(
    name: &str,
    selection: &MigrationSelection,
    sources: &MergedSources,
    assess: &mut impl FnMut(&Arc<SourceEntry>) -> Arc<AssessedEntry>,
    exists: &impl Fn(&str) -> bool,
    declined: &DeclinedNames,
) -> PlannedAccount {
    let entry = sources.entry(name).map(|entry| (Arc::clone(entry), assess(entry)));
    let assessed = entry.as_ref().map(|(_, assessed)| assessed);
    let is_declined = |hash: &str| !selection.names(name) && declined.has(name, hash);
    let outcome = match (sources.lookup(name), assessed) {
        _ if exists(name) => PlanOutcome::Exists,
        (NameLookup::Unknown { source, .. }, _) => PlanOutcome::Undecided { source: source.to_owned() },
        (NameLookup::Broken { entry, .. }, _) => {
            PlanOutcome::Refused { reason: "BrokenEntry", message: entry.to_string() }
        }
        (_, Some(assessed)) if is_declined(&assessed.hash) => PlanOutcome::Declined,
        (_, Some(assessed)) => match &assessed.refusal {
            Some(refusal) => PlanOutcome::refused(refusal),
            None => PlanOutcome::Create,
        },
        (NameLookup::Found(_) | NameLookup::Absent, None) => PlanOutcome::Missing,
    };
    PlannedAccount { outcome, entry, warnings: Vec::new() }
}
