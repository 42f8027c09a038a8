//! A migration under faults: whatever happens in whatever order, these hold.
//!
//! | invariant | checked |
//! |---|---|
//! | an account is created or activated only while the spec selects it and the entry that counts describes it | `Sim::created`, `Sim::activated` |
//! | nothing is created while paused; only what was created right before is activated | the same |
//! | a declined account stays declined | `Sim::created` |
//! | no account of another client, or that somebody changed, is written | `Sim::may_write` |
//! | no more accounts are in flight, in all and in a zone, than the spec admits | `Sim::activated` |
//! | a roll-back leaves what the sources no longer have, unless it is forced | `Sim::taken_back` |
//! | what the sources no longer have is taken back only after two complete reads, and only if the spec says so | the same |
//! | a status is written once a second at most, and says something new | `Sim::decide` |
//! | the same observation and progress decide the same | `Sim::decide` |
//! | once faults stop, every account ends and nothing more is written | `Sim::heal` |

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use proptest::prelude::*;
use serde_json::{Value, json};

use kubesvc_core::lifecycle::Tick;
use kubesvc_core::migration::{MigrationPhase, MigrationRollback, OnSourceChange, OnSourceRemoval};
use kubesvc_core::{DesiredState, KubesvcMigrationSpec, KubesvcMigrationStatus, State, ZoneId};

use super::observation::Standing;
use super::*;
use crate::definition::{ConversionSettings, Entry};

const SETTINGS: ConversionSettings<'static> =
    ConversionSettings { namespace: "spinnaker", file_roots: &[], hash_key: b"key" };
const MIGRATION: &str = "m";
const NAMES: [&str; 8] = ["a0", "a1", "a2", "a3", "a4", "a9", "b0", "b1"];

/// One thing that happens.
#[derive(Clone, Debug)]
enum MigrationStep {
    /// The leader decides and acts, on all accounts of the action or on the first ones.
    Decide {
        acts_on: usize,
    },
    /// Another leader begins.
    NewLeader,
    Wait(u64),
    /// Agents bring an account to an end.
    Agents {
        name: usize,
        fail: bool,
    },
    /// The last agent of an account goes.
    Orphan(usize),
    /// An account that is being deleted goes.
    Vanish(usize),
    /// A source has an entry, in this version, or has it no longer.
    Entry {
        source: usize,
        name: usize,
        version: Option<u8>,
    },
    /// A source can be read completely, in parts, or not.
    Coverage {
        source: usize,
        coverage: Coverage,
    },
    Person(Deed, usize),
    Edit(Edit),
    /// A person asks the migration to resume.
    Resume,
    /// Everything works for some rounds.
    Work(usize),
}

#[derive(Clone, Copy, Debug)]
enum Deed {
    Delete,
    Deactivate,
    Change,
    Create,
}

#[derive(Clone, Copy, Debug)]
enum Edit {
    Paused(bool),
    Rollback(MigrationRollback, bool),
    Activate(bool),
    Names(bool),
    Excluded(bool),
    WaveSize(usize),
    MaxFailed(usize),
    OnChange(OnSourceChange),
    OnRemoval(OnSourceRemoval),
}

fn step() -> impl Strategy<Value = MigrationStep> {
    let name = || 0..NAMES.len();
    let deed =
        prop_oneof![Just(Deed::Delete), Just(Deed::Deactivate), Just(Deed::Change), Just(Deed::Create)];
    let rollback = prop_oneof![
        2 => Just(MigrationRollback::None), 1 => Just(MigrationRollback::Deactivate), 1 => Just(MigrationRollback::Delete)
    ];
    let removal = prop_oneof![
        Just(OnSourceRemoval::Keep),
        Just(OnSourceRemoval::Deactivate),
        Just(OnSourceRemoval::Delete)
    ];
    let coverage =
        prop_oneof![2 => Just(Coverage::Complete), 1 => Just(Coverage::Partial), 2 => Just(Coverage::Unread)];
    let edit = prop_oneof![
        2 => any::<bool>().prop_map(Edit::Paused),
        2 => (rollback, any::<bool>()).prop_map(|(rollback, force)| Edit::Rollback(rollback, force)),
        1 => any::<bool>().prop_map(Edit::Activate),
        1 => any::<bool>().prop_map(Edit::Names),
        1 => any::<bool>().prop_map(Edit::Excluded),
        1 => (1..4_usize).prop_map(Edit::WaveSize),
        1 => (0..3_usize).prop_map(Edit::MaxFailed),
        1 => prop_oneof![Just(OnSourceChange::Report), Just(OnSourceChange::Follow)].prop_map(Edit::OnChange),
        1 => removal.prop_map(Edit::OnRemoval),
    ];
    prop_oneof![
        12 => (0..4_usize).prop_map(|acts_on| MigrationStep::Decide { acts_on }),
        1 => Just(MigrationStep::NewLeader),
        3 => (1..4_u64).prop_map(MigrationStep::Wait),
        6 => (name(), prop::bool::weighted(0.3)).prop_map(|(name, fail)| MigrationStep::Agents { name, fail }),
        1 => name().prop_map(MigrationStep::Orphan),
        2 => name().prop_map(MigrationStep::Vanish),
        5 => (0..2_usize, name(), prop::option::weighted(0.7, 0..3_u8))
            .prop_map(|(source, name, version)| MigrationStep::Entry { source, name, version }),
        2 => (0..2_usize, coverage).prop_map(|(source, coverage)| MigrationStep::Coverage { source, coverage }),
        3 => (deed, name()).prop_map(|(deed, name)| MigrationStep::Person(deed, name)),
        3 => edit.prop_map(MigrationStep::Edit),
        1 => Just(MigrationStep::Resume),
        2 => (1..4_usize).prop_map(MigrationStep::Work),
    ]
}

struct SimAccount {
    fact: AccountFact,
    /// Number of the leader that created it, and whether it was activated since.
    created_by: Option<usize>,
    was_activated: bool,
    /// Whether a person deleted it.
    deleted_by_person: bool,
}

struct Sim {
    now: Tick,
    leader: usize,
    spec: KubesvcMigrationSpec,
    selection: Selection,
    rules: MigrationRules,
    generation: i64,
    force: bool,
    retry: u32,
    entries: [BTreeMap<&'static str, u8>; 2],
    /// What was last read.
    read_entries: [BTreeMap<&'static str, u8>; 2],
    coverage: [Coverage; 2],
    reads: u64,
    accounts: BTreeMap<&'static str, SimAccount>,
    declined: DeclinedNames,
    declined_as: BTreeMap<&'static str, String>,
    gone_by_person: BTreeSet<&'static str>,
    /// Number of complete reads in a row that lacked a name.
    absent_reads: BTreeMap<&'static str, u32>,
    status: Option<KubesvcMigrationStatus>,
    last_write: Option<Tick>,
    progress: Progress,
}

type Checked = Result<(), String>;

fn name_of(text: &str) -> &'static str {
    NAMES.into_iter().find(|name| *name == text).expect("a name of the test")
}

fn check(holds: bool, broken: impl Into<String>) -> Checked {
    if holds { Ok(()) } else { Err(broken.into()) }
}

impl Sim {
    fn new() -> Self {
        let spec: KubesvcMigrationSpec = serde_json::from_value(json!({
            "patterns": ["a.*"], "zoneRules": [{"pattern": "a[01]", "zoneId": "east"}],
        }))
        .expect("a spec");
        let rules = MigrationRules {
            wave_size: Share::Count(2),
            soak: 2,
            max_failed: Share::Count(2),
            max_in_flight: 3,
            max_per_zone: Some(1),
            ..MigrationRules::from(&spec)
        };
        Self {
            now: 0,
            leader: 0,
            selection: Selection::compile(&spec).expect("it compiles"),
            spec,
            rules,
            generation: 1,
            force: false,
            retry: 0,
            entries: [NAMES.into_iter().map(|name| (name, 0)).collect(), BTreeMap::new()],
            read_entries: Default::default(),
            coverage: [Coverage::Complete; 2],
            reads: 0,
            accounts: BTreeMap::new(),
            declined: DeclinedNames::default(),
            declined_as: BTreeMap::new(),
            gone_by_person: BTreeSet::new(),
            absent_reads: BTreeMap::new(),
            status: None,
            last_write: None,
            progress: Progress::default(),
        }
    }

    fn entry(name: &str, version: u8, source: usize) -> Entry {
        // Version 2 is refused.
        let definition = match version {
            2 => json!({"serviceAccount": true}),
            _ => json!({"kubeconfigFile": format!("encryptedFile:k8s!n:x{version}!k:k")}),
        };
        let Value::Object(definition) = definition else { unreachable!("an object") };
        Entry { name: name.to_owned(), definition, source: format!("s{source}") }
    }

    fn hash(name: &str, version: u8) -> String {
        crate::definition::source_hash(b"key", name, &Self::entry(name, version, 0).definition)
    }

    /// Reads the sources, and plans.
    fn plan(&mut self) -> Plan {
        self.reads += 1;
        for source in 0..2 {
            if self.coverage[source] == Coverage::Unread {
                continue;
            }
            let read = &mut self.read_entries[source];
            read.clone_from(&self.entries[source]);
            if self.coverage[source] == Coverage::Partial {
                read.retain(|_, version| *version == 0);
            }
        }
        if self.coverage == [Coverage::Complete; 2] {
            for name in NAMES {
                let is_there = self.read_entries.iter().any(|entries| entries.contains_key(name));
                let reads = self.absent_reads.entry(name).or_default();
                *reads = if is_there { 0 } else { *reads + 1 };
            }
        } else {
            for name in NAMES
                .into_iter()
                .filter(|name| self.read_entries.iter().any(|entries| entries.contains_key(name)))
            {
                self.absent_reads.insert(name, 0);
            }
        }
        let entries: Vec<Vec<Entry>> = (0..2)
            .map(|source| {
                self.read_entries[source]
                    .iter()
                    .map(|(name, version)| Self::entry(name, *version, source))
                    .collect()
            })
            .collect();
        let names = ["s0", "s1"];
        let snapshots: Vec<SourceSnapshot<'_>> = (0..2)
            .map(|source| SourceSnapshot {
                name: names[source],
                entries: &entries[source],
                coverage: self.coverage[source],
            })
            .collect();
        let exists = |name: &str| self.accounts.contains_key(name);
        plan(&self.selection, &snapshots, exists, &self.declined, SETTINGS, self.reads)
    }

    fn decide(&mut self) -> Result<(Decision, Plan), String> {
        let plan = self.plan();
        let facts: BTreeMap<String, AccountFact> =
            self.accounts.iter().map(|(name, account)| ((*name).to_owned(), account.fact.clone())).collect();
        let retry = (self.retry > 0).then(|| self.retry.to_string());
        let observation = Observation {
            migration: MIGRATION,
            generation: self.generation,
            retry: retry.as_deref(),
            force_rollback: self.force,
            rules: &self.rules,
            selection: Ok(&self.selection),
            plan: Some(&plan),
            accounts: &facts,
            declined: &self.declined,
            status: self.status.as_ref(),
            now: self.now,
            time: &Time(k8s_openapi::jiff::Timestamp::UNIX_EPOCH),
        };
        let mut again = self.progress.clone();
        let decision = decide(&observation, &mut self.progress);
        check(
            decide(&observation, &mut again) == decision && again == self.progress,
            "it decides otherwise",
        )?;
        if let Some(Action::WriteStatus(status)) = &decision.action {
            check(self.last_write != Some(self.now), "a second status in a second")?;
            check(self.status.as_ref() != Some(status), "a status that says nothing new")?;
            check(status.done <= status.total && status.notable.len() <= 16, format!("{status:?}"))?;
        }
        Ok((decision, plan))
    }

    /// Acts on the first accounts of an action.
    fn act(&mut self, action: &Action, plan: &Plan, acts_on: usize) -> Checked {
        match action {
            Action::WriteStatus(status) => {
                self.last_write = Some(self.now);
                if acts_on > 0 {
                    self.status = Some((**status).clone());
                }
                Ok(())
            }
            Action::Create(names) => {
                names.iter().take(acts_on).try_for_each(|name| self.created(name_of(name), plan))
            }
            Action::Activate(names) => {
                names.iter().take(acts_on).try_for_each(|name| self.activated(name_of(name)))
            }
            Action::Update(names) => {
                names.iter().take(acts_on).try_for_each(|name| self.updated(name_of(name), plan))
            }
            Action::Deactivate(names) => {
                names.iter().take(acts_on).try_for_each(|name| self.taken_back(name_of(name), false))
            }
            Action::Delete(names) => {
                names.iter().take(acts_on).try_for_each(|name| self.taken_back(name_of(name), true))
            }
            Action::Decline(names) => {
                names.iter().take(acts_on).try_for_each(|name| self.declined(name_of(name), plan))
            }
        }
    }

    /// The entry that counts, if it is known.
    fn winner(&self, name: &str) -> Option<(usize, u8)> {
        for source in 0..2 {
            if let Some(version) = self.read_entries[source].get(name) {
                return Some((source, *version));
            }
            if self.coverage[source] == Coverage::Unread {
                return None;
            }
        }
        None
    }

    fn is_selected(&self, name: &str) -> bool {
        let is_named = self.spec.names.iter().any(|one| one == name);
        let is_excluded = !self.spec.exclude_patterns.is_empty() && name == "a9";
        (name.starts_with('a') || is_named) && !is_excluded
    }

    fn created(&mut self, name: &'static str, plan: &Plan) -> Checked {
        check(!self.rules.paused && self.rules.rollback == MigrationRollback::None, "created while paused")?;
        check(self.is_selected(name), format!("{name} is not selected"))?;
        check(!self.accounts.contains_key(name), format!("{name} is there"))?;
        let (source, version) = self.winner(name).ok_or(format!("nobody knows the entry of {name}"))?;
        check(version != 2, format!("{name} is refused"))?;
        let is_declined = self.declined_as.get(name) == Some(&Self::hash(name, version));
        check(!is_declined || self.spec.names.iter().any(|one| one == name), format!("{name} is declined"))?;
        let planned = &plan.accounts[name];
        let mut object = planned.account.as_ref().ok_or("it has no account")?.object.clone();
        mark(&mut object, MIGRATION);
        let fact = AccountFact::of(&object, true);
        check(fact.is_unchanged && fact.source == Some(format!("s{source}")), format!("{fact:?}"))?;
        check(fact.desired == DesiredState::Inactive, "it is created ACTIVE")?;
        let account = SimAccount {
            fact,
            created_by: Some(self.leader),
            was_activated: false,
            deleted_by_person: false,
        };
        self.accounts.insert(name, account);
        self.gone_by_person.remove(name);
        Ok(())
    }

    fn may_write(&self, name: &str) -> Checked {
        let fact = &self.accounts.get(name).ok_or(format!("{name} is not there"))?.fact;
        let is_own = fact.migration.as_deref() == Some(MIGRATION) && fact.is_unchanged;
        check(is_own && !fact.is_being_deleted, format!("{name} is not the migration's to write: {fact:?}"))
    }

    fn activated(&mut self, name: &'static str) -> Checked {
        self.may_write(name)?;
        let account = &self.accounts[name];
        check(self.rules.activate && self.is_selected(name), format!("{name} is not to be activated"))?;
        check(self.rules.rollback == MigrationRollback::None, "activated during a roll-back")?;
        check(self.read_entries.iter().any(|entries| entries.contains_key(name)), "no source has it")?;
        let is_halfway = account.created_by == Some(self.leader) && !account.was_activated;
        check(!self.rules.paused || is_halfway, format!("{name} is activated while paused"))?;
        let account = self.accounts.get_mut(name).ok_or("it is there")?;
        (account.fact.desired, account.fact.state) = (DesiredState::Active, State::Activating);
        account.was_activated = true;
        let in_flight: Vec<Option<ZoneId>> = self
            .accounts
            .iter()
            .filter(|(name, account)| {
                account.fact.standing() == Standing::InFlight && !self.progress.failed.contains(**name)
            })
            .map(|(_, account)| account.fact.zone.clone())
            .collect();
        check(in_flight.len() <= self.rules.max_in_flight, "too many are in flight")?;
        let zone = |zone: &Option<ZoneId>| in_flight.iter().filter(|one| *one == zone).count();
        check(in_flight.iter().all(|one| zone(one) <= 1), "too many are in flight in a zone")
    }

    fn updated(&mut self, name: &'static str, plan: &Plan) -> Checked {
        self.may_write(name)?;
        check(self.rules.on_source_change == OnSourceChange::Follow, "changes are not followed")?;
        let planned = &plan.accounts[name];
        let account = self.accounts.get_mut(name).ok_or("it is there")?;
        check(account.fact.hash != planned.hash, "its entry is the same")?;
        account.fact.hash.clone_from(&planned.hash);
        account.fact.source.clone_from(&planned.source);
        if account.fact.desired == DesiredState::Active {
            account.fact.state = State::Activating;
        }
        Ok(())
    }

    fn taken_back(&mut self, name: &'static str, deletes: bool) -> Checked {
        self.may_write(name)?;
        let is_in_source = self.read_entries.iter().any(|entries| entries.contains_key(name));
        let wanted = match self.rules.rollback {
            MigrationRollback::None => {
                let reads = self.absent_reads.get(name).copied().unwrap_or_default();
                check(
                    !is_in_source && reads >= 2 && self.coverage == [Coverage::Complete; 2],
                    format!("{name} may be there: {reads}"),
                )?;
                check(!self.rules.paused, "removed while paused")?;
                check(self.rules.on_source_removal != OnSourceRemoval::Keep, "removed though it is kept")?;
                self.rules.on_source_removal == OnSourceRemoval::Delete
            }
            rollback => {
                check(is_in_source || self.force, format!("{name} is in no source"))?;
                rollback == MigrationRollback::Delete
            }
        };
        check(wanted == deletes, "it is not what was asked for")?;
        let account = self.accounts.get_mut(name).ok_or("it is there")?;
        if deletes {
            account.fact.is_being_deleted = true;
        } else {
            check(account.fact.desired == DesiredState::Active, "it is INACTIVE")?;
            (account.fact.desired, account.fact.state) = (DesiredState::Inactive, State::Inactive);
        }
        Ok(())
    }

    fn declined(&mut self, name: &'static str, plan: &Plan) -> Checked {
        let by_person = match self.accounts.get(name) {
            // A new leader does not know what the last one deleted.
            Some(account) => account.fact.is_being_deleted && (account.deleted_by_person || self.leader > 0),
            None => self.gone_by_person.contains(name),
        };
        check(by_person, format!("nobody deleted {name}"))?;
        let hash = plan.accounts[name].hash.clone().ok_or("it has an entry")?;
        check(!self.declined.has(name, &hash), "it is declined already")?;
        self.declined.add(name, &hash).map_err(|full| full.to_string())?;
        self.declined_as.insert(name, hash);
        Ok(())
    }

    fn person(&mut self, deed: Deed, name: &'static str) {
        if let Deed::Create = deed {
            let fact = AccountFact {
                state: State::Active,
                desired: DesiredState::Active,
                is_being_deleted: false,
                migration: None,
                is_unchanged: false,
                zone: None,
                source: None,
                hash: None,
                needs_file: false,
            };
            let account =
                SimAccount { fact, created_by: None, was_activated: false, deleted_by_person: false };
            self.accounts.entry(name).or_insert(account);
            return;
        }
        let Some(account) = self.accounts.get_mut(name).filter(|account| !account.fact.is_being_deleted)
        else {
            return;
        };
        match deed {
            Deed::Delete => {
                account.fact.is_being_deleted = true;
                account.deleted_by_person = true;
            }
            Deed::Deactivate if account.fact.desired == DesiredState::Active => {
                (account.fact.desired, account.fact.state) = (DesiredState::Inactive, State::Inactive);
                account.fact.is_unchanged = false;
            }
            Deed::Change => account.fact.is_unchanged = false,
            Deed::Deactivate | Deed::Create => {}
        }
    }

    fn edit(&mut self, edit: Edit) {
        self.generation += 1;
        match edit {
            Edit::Paused(paused) => self.rules.paused = paused,
            Edit::Rollback(rollback, force) => (self.rules.rollback, self.force) = (rollback, force),
            Edit::Activate(activate) => self.rules.activate = activate,
            Edit::Names(named) => {
                let names = ["a2", "b1"].into_iter().filter(|_| named);
                self.spec.names = names.map(str::to_owned).collect();
            }
            Edit::Excluded(excluded) => {
                self.spec.exclude_patterns = excluded.then(|| "a9".to_owned()).into_iter().collect();
            }
            Edit::WaveSize(size) => self.rules.wave_size = Share::Count(size),
            Edit::MaxFailed(most) => self.rules.max_failed = Share::Count(most),
            Edit::OnChange(change) => self.rules.on_source_change = change,
            Edit::OnRemoval(removal) => self.rules.on_source_removal = removal,
        }
        self.selection = Selection::compile(&self.spec).expect("it compiles");
    }

    fn vanish(&mut self, name: &'static str) {
        if let Some(account) = self.accounts.get(name).filter(|account| account.fact.is_being_deleted) {
            if account.deleted_by_person {
                self.gone_by_person.insert(name);
            }
            self.accounts.remove(name);
        }
    }

    fn agents(&mut self, name: &'static str, fail: bool) {
        let Some(account) = self.accounts.get_mut(name) else { return };
        if account.fact.desired == DesiredState::Active && account.fact.state != State::Active {
            account.fact.state = if fail { State::Failed } else { State::Active };
        }
    }

    fn step(&mut self, step: &MigrationStep) -> Checked {
        match step {
            MigrationStep::Decide { acts_on } => {
                let (decision, plan) = self.decide()?;
                decision.action.iter().try_for_each(|action| self.act(action, &plan, *acts_on))?;
            }
            MigrationStep::NewLeader => {
                self.progress = Progress::default();
                self.leader += 1;
                self.last_write = None;
            }
            MigrationStep::Wait(ticks) => self.now += ticks,
            MigrationStep::Agents { name, fail } => self.agents(NAMES[*name], *fail),
            MigrationStep::Orphan(name) => {
                if let Some(account) =
                    self.accounts.get_mut(NAMES[*name]).filter(|one| one.fact.state == State::Active)
                {
                    account.fact.state = State::Orphaned;
                }
            }
            MigrationStep::Vanish(name) => self.vanish(NAMES[*name]),
            MigrationStep::Entry { source, name, version } => {
                let entries = &mut self.entries[*source];
                match version {
                    Some(version) => drop(entries.insert(NAMES[*name], *version)),
                    None => drop(entries.remove(NAMES[*name])),
                }
            }
            MigrationStep::Coverage { source, coverage } => self.coverage[*source] = *coverage,
            MigrationStep::Person(deed, name) => self.person(*deed, NAMES[*name]),
            MigrationStep::Edit(edit) => self.edit(*edit),
            MigrationStep::Resume => self.retry += 1,
            MigrationStep::Work(rounds) => {
                for _ in 0..*rounds {
                    self.work()?;
                }
            }
        }
        Ok(())
    }

    /// One round in which everything works. Whether anything happened.
    fn work(&mut self) -> Result<bool, String> {
        let (decision, plan) = self.decide()?;
        if let Some(action) = &decision.action {
            self.act(action, &plan, usize::MAX)?;
            return Ok(true);
        }
        let busy = |account: &SimAccount| {
            account.fact.is_being_deleted
                || (account.fact.desired == DesiredState::Active && account.fact.state != State::Active)
        };
        let waiting: Vec<_> =
            self.accounts.iter().filter(|(_, one)| busy(one)).map(|(name, _)| *name).collect();
        for name in &waiting {
            self.agents(name, false);
            self.vanish(name);
        }
        if let Some(wake) = decision.wake {
            check(wake > self.now, "it wakes in the past")?;
            self.now = wake;
            return Ok(true);
        }
        Ok(!waiting.is_empty())
    }

    /// Faults end: the sources can be read, nobody pauses or takes back, and every account ends.
    fn heal(&mut self) -> Checked {
        self.coverage = [Coverage::Complete; 2];
        self.edit(Edit::Rollback(MigrationRollback::None, false));
        self.edit(Edit::Paused(false));
        for round in 0.. {
            check(round < 500, format!("it does not end: {:?}", self.status))?;
            if self.work()? {
                continue;
            }
            let status = self.status.as_ref().ok_or("there is no status")?;
            match status.phase {
                MigrationPhase::Complete => break,
                // A person looks, and resumes.
                MigrationPhase::Paused => self.retry += 1,
                phase => return Err(format!("it rests in {phase:?}")),
            }
        }
        for name in NAMES.into_iter().filter(|name| self.is_selected(name)) {
            let Some((_, version)) = self.winner(name) else { continue };
            let is_listed = self.spec.names.iter().any(|one| one == name);
            let is_declined = self.declined_as.get(name) == Some(&Self::hash(name, version)) && !is_listed;
            match self.accounts.get(name) {
                None => check(version == 2 || is_declined, format!("{name} was forgotten"))?,
                Some(account) => {
                    let fact = &account.fact;
                    let is_own = fact.migration.is_some() && fact.is_unchanged && self.rules.activate;
                    check(
                        !is_own || version == 2 || fact.state == State::Active,
                        format!("{name}: {fact:?}"),
                    )?;
                }
            }
        }
        let (decision, _) = self.decide()?;
        check(decision == Decision::default(), format!("it does not rest: {decision:?}"))
    }
}

fn live(steps: &[MigrationStep]) -> Checked {
    let mut sim = Sim::new();
    for (at, step) in steps.iter().enumerate() {
        sim.step(step).map_err(|broken| format!("{broken}, at step {at}: {:#?}", &steps[..=at]))?;
    }
    sim.heal().map_err(|broken| format!("{broken}, while healing after {steps:#?}\n{:#?}", sim.progress))
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(200),
        failure_persistence: None,
        max_shrink_iters: 20_000,
        ..ProptestConfig::default()
    })]

    #[test]
    fn no_fault_breaks_an_invariant_and_the_migration_ends(steps in prop::collection::vec(step(), 1..80)) {
        if let Err(report) = live(&steps) {
            return Err(TestCaseError::fail(report));
        }
    }
}

#[test]
fn a_migration_without_faults_reaches_every_phase() {
    let mut sim = Sim::new();
    let mut seen = BTreeSet::new();
    let mut work = |sim: &mut Sim, until: MigrationPhase| {
        for _ in 0..200 {
            sim.now += 1;
            let _ = sim.work().unwrap_or_else(|broken| unreachable!("{broken}"));
            let phase = sim.status.as_ref().map(|status| status.phase).unwrap_or_default();
            seen.insert(format!("{phase:?}"));
            if phase == until {
                return;
            }
        }
        unreachable!("it never is {until:?}: {:?}", sim.status);
    };
    sim.coverage[0] = Coverage::Unread;
    work(&mut sim, MigrationPhase::Planning);
    sim.coverage[0] = Coverage::Complete;
    work(&mut sim, MigrationPhase::Complete);
    assert_eq!(sim.accounts.len(), 6);
    sim.edit(Edit::Paused(true));
    work(&mut sim, MigrationPhase::Paused);
    sim.edit(Edit::Rollback(MigrationRollback::Delete, false));
    work(&mut sim, MigrationPhase::RollingBack);
    work(&mut sim, MigrationPhase::Complete);
    assert!(sim.accounts.is_empty());
    let seen: Vec<String> = seen.into_iter().collect();
    assert_eq!(seen, ["Complete", "Paused", "Planning", "RollingBack", "Running", "Soaking"]);
}
