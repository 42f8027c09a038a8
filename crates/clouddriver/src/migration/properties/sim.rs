//! A migration with two sources, its accounts, and the people and agents around them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};

use kubesvc_core::lifecycle::Tick;
use kubesvc_core::migration::{MigrationPhase, MigrationRollback, OnSourceChange, OnSourceRemoval};
use kubesvc_core::{DesiredState, KubesvcMigrationSpec, KubesvcMigrationStatus, State, ZoneId};

use super::{Deed, Edit, MigrationStep, NAMES};
use crate::definition::{ConversionSettings, convert};
use crate::migration::observation::Standing;
use crate::migration::*;
use crate::sources::{Completeness, MergedSources, SourceEntry, SourceItem, SourceSnapshot};

const SETTINGS: ConversionSettings<'static> =
    ConversionSettings { namespace: "spinnaker", file_roots: &[], hash_key: b"key" };
const MIGRATION: &str = "m";

pub(super) struct SimAccount {
    fact: AccountFact,
    /// Number of the leader that created it, and whether it was activated since.
    created_by: Option<usize>,
    was_activated: bool,
    /// Whether a person deleted it.
    deleted_by_person: bool,
}

pub(super) struct Sim {
    pub(super) now: Tick,
    leader: usize,
    spec: KubesvcMigrationSpec,
    selection: MigrationSelection,
    rules: MigrationRules,
    generation: i64,
    force: bool,
    retry: u32,
    entries: [BTreeMap<&'static str, u8>; 2],
    /// What was last read.
    read_entries: [BTreeMap<&'static str, u8>; 2],
    pub(super) completeness: [Completeness; 2],
    pub(super) accounts: BTreeMap<&'static str, SimAccount>,
    /// Accounts whose writes are refused.
    refusing: BTreeSet<&'static str>,
    declined: DeclinedNames,
    declined_as: BTreeMap<&'static str, String>,
    gone_by_person: BTreeSet<&'static str>,
    /// Number of complete reads in a row that lacked a name.
    absent_reads: BTreeMap<&'static str, u32>,
    pub(super) status: Option<KubesvcMigrationStatus>,
    last_write: Option<Tick>,
    pub(super) progress: MigrationProgress,
}

pub(super) type Checked = Result<(), String>;

fn name_of(text: &str) -> &'static str {
    NAMES.into_iter().find(|name| *name == text).expect("a name of the test")
}

fn check(holds: bool, broken: impl Into<String>) -> Checked {
    if holds { Ok(()) } else { Err(broken.into()) }
}

impl Sim {
    pub(super) fn new() -> Self {
        let spec: KubesvcMigrationSpec = serde_json::from_value(json!({
            "patterns": ["a.*"], "zoneRules": [{"pattern": "a[01]", "zoneId": "east"}],
        }))
        .expect("a spec");
        let rules = MigrationRules {
            wave_size: Share::Count(2),
            soak: 2,
            max_failed: Share::Count(2),
            max_in_flight: 2,
            max_per_zone: Some(1),
            ..MigrationRules::from(&spec)
        };
        Self {
            now: 0,
            leader: 0,
            selection: MigrationSelection::compile(&spec).expect("it compiles"),
            spec,
            rules,
            generation: 1,
            force: false,
            retry: 0,
            entries: [NAMES.into_iter().map(|name| (name, 0)).collect(), BTreeMap::new()],
            read_entries: Default::default(),
            completeness: [Completeness::Complete, Completeness::Complete],
            accounts: BTreeMap::new(),
            refusing: BTreeSet::new(),
            declined: DeclinedNames::default(),
            declined_as: BTreeMap::new(),
            gone_by_person: BTreeSet::new(),
            absent_reads: BTreeMap::new(),
            status: None,
            last_write: None,
            progress: MigrationProgress::default(),
        }
    }

    fn entry(name: &str, version: u8, source: usize) -> SourceEntry {
        // Version 2 is refused.
        let definition = match version {
            2 => json!({"serviceAccount": true}),
            _ => json!({"kubeconfigFile": format!("encryptedFile:k8s!n:x{version}!k:k")}),
        };
        let Value::Object(definition) = definition else { unreachable!("an object") };
        let source = format!("s{source}").into();
        SourceEntry { name: name.to_owned(), definition, source, version: String::new() }
    }

    fn hash(name: &str, version: u8) -> String {
        crate::definition::source_hash(b"key", name, &Self::entry(name, version, 0).definition)
    }

    fn is_complete(&self) -> bool {
        self.completeness.iter().all(|one| *one == Completeness::Complete)
    }

    /// Reads the sources, and plans.
    fn plan(&mut self) -> Plan {
        for source in 0..2 {
            if matches!(self.completeness[source], Completeness::Unread(_)) {
                continue;
            }
            let read = &mut self.read_entries[source];
            read.clone_from(&self.entries[source]);
            if self.completeness[source] != Completeness::Complete {
                read.retain(|_, version| *version == 0);
            }
        }
        if self.is_complete() {
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
        let snapshots = (0..2).map(|source| {
            let entries = self.read_entries[source].iter();
            let items = entries
                .map(|(name, version)| SourceItem::Entry(Arc::new(Self::entry(name, *version, source))));
            let name = format!("s{source}").into();
            Arc::new(SourceSnapshot::of(&name, items, self.completeness[source].clone()))
        });
        let sources = MergedSources::of(snapshots.collect());
        let assess = |entry: &Arc<SourceEntry>| {
            Arc::new(AssessedEntry::of(entry, &self.selection.choice(&entry.name), SETTINGS, |_| Ok(())))
        };
        let exists = |name: &str| self.accounts.contains_key(name);
        plan(&self.selection, &sources, assess, exists, &self.declined, self.now)
    }

    fn decide(&mut self) -> Result<(MigrationDecision, Plan), String> {
        let plan = self.plan();
        let facts: BTreeMap<String, AccountFact> =
            self.accounts.iter().map(|(name, account)| ((*name).to_owned(), account.fact.clone())).collect();
        let retry = (self.retry > 0).then(|| self.retry.to_string());
        let observation = MigrationObservation {
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
        if let Some(MigrationAction::WriteStatus(status)) = &decision.action {
            check(self.last_write != Some(self.now), "a second status in a second")?;
            check(self.status.as_ref() != Some(status), "a status that says nothing new")?;
            check(status.done <= status.total && status.notable.len() <= 16, format!("{status:?}"))?;
        }
        Ok((decision, plan))
    }

    /// Acts on the first accounts of an action.
    fn act(&mut self, action: &MigrationAction, plan: &Plan, acts_on: usize) -> Checked {
        match action {
            MigrationAction::WriteStatus(status) => {
                self.last_write = Some(self.now);
                if acts_on > 0 {
                    self.status = Some((**status).clone());
                }
                Ok(())
            }
            MigrationAction::Create(names) => {
                self.each(names, acts_on, plan, |sim, name| sim.created(name, plan))
            }
            MigrationAction::Activate(names) => self.each(names, acts_on, plan, Self::activated),
            MigrationAction::Update(names) => {
                self.each(names, acts_on, plan, |sim, name| sim.updated(name, plan))
            }
            MigrationAction::Deactivate(names) => {
                self.each(names, acts_on, plan, |sim, name| sim.taken_back(name, false))
            }
            MigrationAction::Delete(names) => {
                self.each(names, acts_on, plan, |sim, name| sim.taken_back(name, true))
            }
            MigrationAction::Decline(names) => {
                names.iter().take(acts_on).try_for_each(|(name, hash)| self.declined(name_of(name), hash))
            }
            MigrationAction::Release(names) => {
                for name in names.iter().take(acts_on) {
                    let account = self.accounts.get_mut(name_of(name)).ok_or("it is there")?;
                    check(account.fact.is_being_deleted, format!("{name} is not being deleted"))?;
                    account.fact.is_held = false;
                }
                Ok(())
            }
        }
    }

    /// Writes the first accounts of an action, unless they are refused.
    fn each(
        &mut self,
        names: &[String],
        acts_on: usize,
        plan: &Plan,
        write: impl Fn(&mut Self, &'static str) -> Checked,
    ) -> Checked {
        for name in names.iter().take(acts_on) {
            if !self.refusing.contains(name.as_str()) {
                write(self, name_of(name))?;
                continue;
            }
            check(!self.progress.is_refused(name), format!("{name} was refused a moment ago"))?;
            let hash = plan.accounts.get(name).and_then(PlannedAccount::hash);
            self.progress.record_refused_write(name, hash, "no");
        }
        Ok(())
    }

    /// The entry that counts, if it is known.
    fn winner(&self, name: &str) -> Option<(usize, u8)> {
        for source in 0..2 {
            if let Some(version) = self.read_entries[source].get(name) {
                return Some((source, *version));
            }
            if self.completeness[source] != Completeness::Complete {
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
        let (entry, _) = planned.entry.as_ref().ok_or("it has no entry")?;
        let account = convert(entry, &self.selection.choice(name), SETTINGS).account;
        let mut object = account.map_err(|refusal| refusal.to_string())?.object;
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
        check(account.fact.hash.as_deref() != planned.hash(), "its entry is the same")?;
        account.fact.hash = planned.hash().map(str::to_owned);
        account.fact.source = planned.source().map(str::to_owned);
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
                    !is_in_source && reads >= 2 && self.is_complete(),
                    format!("{name} may be there: {reads}"),
                )?;
                check(!self.rules.paused, "removed while paused")?;
                check(self.rules.on_source_removal != OnSourceRemoval::Keep, "removed though it is kept")?;
                self.rules.on_source_removal == OnSourceRemoval::Delete
            }
            rollback => {
                check(!self.rules.paused, "taken back while paused")?;
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

    fn declined(&mut self, name: &'static str, hash: &str) -> Checked {
        let by_person = match self.accounts.get(name) {
            // A new leader does not know what the last one deleted.
            Some(account) => account.fact.is_being_deleted && (account.deleted_by_person || self.leader > 0),
            None => self.gone_by_person.contains(name),
        };
        check(by_person, format!("nobody deleted {name}"))?;
        let takes_back = self.rules.rollback == MigrationRollback::Delete;
        let is_own = |account: &SimAccount| account.fact.migration.is_some() && account.fact.is_unchanged;
        let is_taken_back = takes_back && self.accounts.get(name).is_some_and(is_own);
        check(!is_taken_back, format!("{name} is taken back, not declined"))?;
        check(!self.declined.has(name, hash), "it is declined already")?;
        self.declined.add(name, hash).map_err(|full| full.to_string())?;
        self.declined_as.insert(name, hash.to_owned());
        Ok(())
    }

    fn person(&mut self, deed: Deed, name: &'static str) {
        if let Deed::Create = deed {
            let fact = AccountFact {
                state: State::Active,
                desired: DesiredState::Active,
                is_being_deleted: false,
                is_held: false,
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

    pub(super) fn edit(&mut self, edit: Edit) {
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
        self.selection = MigrationSelection::compile(&self.spec).expect("it compiles");
    }

    fn vanish(&mut self, name: &'static str) {
        if let Some(account) =
            self.accounts.get(name).filter(|account| account.fact.is_being_deleted && !account.fact.is_held)
        {
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

    pub(super) fn step(&mut self, step: &MigrationStep) -> Checked {
        match step {
            MigrationStep::Decide { acts_on } => {
                let (decision, plan) = self.decide()?;
                decision.action.iter().try_for_each(|action| self.act(action, &plan, *acts_on))?;
            }
            MigrationStep::NewLeader => {
                self.progress = MigrationProgress::default();
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
            MigrationStep::Retry(name) => {
                if let Some(account) =
                    self.accounts.get_mut(NAMES[*name]).filter(|one| one.fact.state == State::Failed)
                {
                    account.fact.state = State::Activating;
                }
            }
            MigrationStep::Vanish(name) => self.vanish(NAMES[*name]),
            MigrationStep::Refuse(name, true) => drop(self.refusing.insert(NAMES[*name])),
            MigrationStep::Refuse(name, false) => drop(self.refusing.remove(NAMES[*name])),
            MigrationStep::Entry { source, name, version } => {
                let entries = &mut self.entries[*source];
                match version {
                    Some(version) => drop(entries.insert(NAMES[*name], *version)),
                    None => drop(entries.remove(NAMES[*name])),
                }
            }
            MigrationStep::Completeness { source, completeness } => {
                self.completeness[*source].clone_from(completeness);
            }
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
    pub(super) fn work(&mut self) -> Result<bool, String> {
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
    pub(super) fn heal(&mut self) -> Checked {
        self.completeness = [Completeness::Complete, Completeness::Complete];
        self.refusing.clear();
        self.retry += 1;
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
        check(decision == MigrationDecision::default(), format!("it does not rest: {decision:?}"))
    }
}
