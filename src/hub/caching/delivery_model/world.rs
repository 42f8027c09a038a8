//! The world, and the execution of steps.

mod agent;

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use kubesvc_agent::{AccountSender, DeliveryNumbers, NextFrame, QueueMemory};
use kubesvc_core::wire::events::cache_up;

use super::cluster::{Cluster, NAMES, Reader};
use super::database::{Database, Row};
use super::hub::HubStream;
use super::journal::Journal;
use super::settings::{Setting, Settings, lets_through};
use super::steps::{BURSTS, Budget, Step};
use super::{Broken, Property, Rules, fence};

/// Credit for a batch of one upsert, but not of two.
const SMALL_BATCH_BYTES: usize = 95;
/// Time after which a queued change keeps its place.
const MOVE_TIME: Duration = Duration::from_secs(2);
/// Time after which a checkpoint is sent alone.
const CHECKPOINT_TIME: Duration = Duration::from_secs(61);

/// An agent process.
#[derive(Clone, Debug, Default)]
struct Process {
    delivery: Option<AccountSender>,
    used: DeliveryNumbers,
    memory: QueueMemory,
    /// The settings known to the process.
    settings: Settings,
    /// Number of the watched scope, if any.
    scope_id: Option<u32>,
    reader: Option<Reader>,
    former: Vec<Reader>,
    stream: Option<HubStream>,
    /// Frames in flight to the hub.
    up: VecDeque<cache_up::Frame>,
    /// Present for the rules that it [serves](Journal::serves).
    journal: Option<Journal>,
    /// Version up to which changes were read, for the rule that continues there.
    read_up_to: u64,
}

#[derive(Clone, Debug)]
pub(super) struct World {
    pub(super) cluster: Cluster,
    pub(super) database: Database,
    /// States of the database before each commit of this epoch.
    history: Vec<Database>,
    settings: Settings,
    processes: [Process; 2],
    sleepers: Vec<HubStream>,
    keys: u64,
    contents: BTreeMap<(u64, u64), Vec<u8>>,
    has_lost: bool,
    budget: Budget,
    left_out: Rules,
    begun: Instant,
    now: Instant,
}

impl World {
    pub(super) fn new(budget: Budget, left_out: Rules) -> Self {
        let begun = Instant::now();
        let mut world = Self {
            cluster: Cluster::default(),
            database: Database::default(),
            history: Vec::new(),
            settings: Settings::default(),
            processes: [Process::default(), Process::default()],
            sleepers: Vec::new(),
            keys: 0,
            contents: BTreeMap::new(),
            has_lost: false,
            budget,
            left_out,
            begun,
            now: begun,
        };
        world.cluster.change("a", true);
        world.elect(0);
        world
    }

    /// All possible next steps.
    pub(super) fn steps(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        let mut may = |budget: u8, step| {
            if budget > 0 {
                steps.push(step);
            }
        };
        let Budget { writes, deletes, others, compactions, losses, waits, .. } = self.budget;
        for (index, name) in NAMES.iter().enumerate() {
            may(writes, Step::Write(index));
            may(deletes * u8::from(self.cluster.objects.contains_key(name)), Step::Delete(index));
        }
        may(others, Step::Other);
        may(compactions * u8::from(self.cluster.compacted < self.cluster.version), Step::Compact);
        may(losses * u8::from(!self.history.is_empty()), Step::LoseCommit);
        may(waits, Step::Wait);
        may(self.budget.kinds, Step::Set(Setting::Kind));
        may(self.budget.shapes, Step::Set(Setting::Shape));
        may(self.budget.filters, Step::Set(Setting::Filter));
        may(u8::from(self.database.is_removed()), Step::Sweep);
        for (index, sleeper) in self.sleepers.iter().enumerate() {
            may(u8::from(sleeper.has_batches()), Step::SleeperCommits(index));
            may(1, Step::SleeperEnds(index));
        }
        for (index, process) in self.processes.iter().enumerate() {
            self.steps_of(index, process, &mut may);
        }
        steps
    }

    fn steps_of(&self, index: usize, process: &Process, may: &mut impl FnMut(u8, Step)) {
        let Budget { cuts, crashes, moves, off_on, relists, late_reads, small_batches, .. } = self.budget;
        let has_delivery = process.delivery.is_some();
        may(moves, Step::Move(index));
        may(crashes * u8::from(has_delivery), Step::Crash(index));
        may(off_on * u8::from(has_delivery), Step::OffOn(index));
        may(u8::from(has_delivery && process.settings != self.settings), Step::TakeSettings(index));
        if let Some(reader) = &process.reader {
            may(u8::from(reader.is_ready(&self.cluster)), Step::Read(index));
            may(u8::from(reader.bookmark(&self.cluster).is_some()), Step::Bookmark(index));
            may(self.budget.refusals * u8::from(reader.is_refusable(&self.cluster)), Step::Refuse(index));
            for burst in 0..BURSTS.len() {
                may(self.budget.bursts, Step::Burst(index, burst));
            }
        }
        let is_late = process.former.iter().any(|reader| reader.is_ready(&self.cluster));
        may(late_reads * u8::from(is_late), Step::LateRead(index));
        let Some(stream) = &process.stream else {
            may(u8::from(has_delivery), Step::Connect(index));
            return;
        };
        may(cuts, Step::Cut(index));
        let can_send = self.can_send(process, usize::MAX);
        may(u8::from(can_send), Step::Send(index));
        if can_send && small_batches > 0 {
            may(u8::from(self.can_send(process, SMALL_BATCH_BYTES)), Step::SendSmall(index));
        }
        may(u8::from(!process.up.is_empty()), Step::HubReceives(index));
        may(u8::from(stream.is_reading()), Step::HubReads(index));
        may(u8::from(stream.has_batches()), Step::HubCommits(index));
        may(u8::from(stream.has_several_batches()), Step::HubCommitsAll(index));
        may(u8::from(!stream.down.is_empty()), Step::AgentReceives(index));
        may(relists * u8::from(process.reader.is_some()), Step::Relist(index));
    }

    fn can_send(&self, process: &Process, credit: usize) -> bool {
        let Some(mut delivery) = process.delivery.clone() else { return false };
        let frame = delivery.next_frame(credit, self.now, &mut process.memory.clone());
        matches!(frame, NextFrame::Free(_) | NextFrame::Batch(..))
    }

    /// Takes a step.
    pub(super) fn take(&mut self, step: Step) -> Result<(), Broken> {
        step.spend(&mut self.budget);
        match step {
            Step::Write(name) => self.cluster.change(NAMES[name], true),
            Step::Delete(name) => self.cluster.change(NAMES[name], false),
            Step::Other => self.cluster.version += 1,
            Step::Compact => self.cluster.compacted = self.cluster.version,
            Step::Wait => self.now += MOVE_TIME,
            Step::Set(setting) => self.settings.change(setting),
            Step::Sweep => self.database.sweep(),
            Step::LoseCommit => {
                self.has_lost = true;
                self.database = self.history.pop().unwrap_or_default();
            }
            Step::Move(process) => self.elect(process),
            Step::Crash(process) => {
                self.cut(process);
                self.processes[process] = Process::default();
            }
            Step::Cut(process) => self.cut(process),
            Step::OffOn(process) => self.off_on(process),
            Step::TakeSettings(process) => self.take_settings(process),
            Step::Burst(process, burst) => self.burst(process, burst),
            Step::Read(process) => self.read(process, None),
            Step::LateRead(process) => {
                let former = &self.processes[process].former;
                let ready = former.iter().position(|reader| reader.is_ready(&self.cluster));
                self.read(process, ready);
            }
            Step::Refuse(process) => self.refuse(process),
            Step::Bookmark(process) => self.bookmark(process),
            Step::Relist(process) => self.relist(process),
            Step::Connect(process) => self.connect(process),
            Step::Send(process) => return self.send(process, usize::MAX),
            Step::SendSmall(process) => return self.send(process, SMALL_BATCH_BYTES),
            Step::AgentReceives(process) => return self.agent_receives(process),
            Step::HubReceives(_)
            | Step::HubReads(_)
            | Step::HubCommits(_)
            | Step::HubCommitsAll(_)
            | Step::SleeperCommits(_)
            | Step::SleeperEnds(_) => return self.take_hub_step(step),
        }
        Ok(())
    }

    fn take_hub_step(&mut self, step: Step) -> Result<(), Broken> {
        let left_out = self.left_out;
        match step {
            Step::HubReceives(index) => {
                let process = &mut self.processes[index];
                if let (Some(stream), Some(frame)) = (&mut process.stream, process.up.pop_front()) {
                    stream.receive(frame, &self.database, left_out)?;
                }
            }
            Step::HubReads(index) => {
                if let Some(stream) = &mut self.processes[index].stream {
                    stream.read_progress(&self.database, left_out);
                }
            }
            Step::HubCommits(index) | Step::HubCommitsAll(index) => {
                let before = self.database.clone();
                let is_first_alone = matches!(step, Step::HubCommits(_));
                if let Some(stream) = &mut self.processes[index].stream {
                    stream.commit(is_first_alone, &mut self.database, left_out, &self.cluster)?;
                }
                self.committed(before);
            }
            Step::SleeperCommits(index) => {
                let before = self.database.clone();
                self.sleepers[index].commit(true, &mut self.database, left_out, &self.cluster)?;
                self.committed(before);
            }
            Step::SleeperEnds(index) => {
                self.sleepers.remove(index);
            }
            _ => {}
        }
        Ok(())
    }

    fn committed(&mut self, before: Database) {
        if before.committed != self.database.committed && self.budget.losses > 0 {
            self.history.push(before);
        }
    }

    /// Elects a process: the fence is raised, and the account is assigned under a new epoch.
    fn elect(&mut self, index: usize) {
        self.database.raise();
        self.history.clear();
        self.begin_delivery(index, fence(self.database.epoch), false);
    }

    /// Takes fault-free steps until there is none.
    pub(super) fn list_first(&mut self, taken: &mut Vec<Step>) -> Result<(), Broken> {
        while let Some(step) = self.steps().into_iter().find(|step| step.happens_by_itself()) {
            taken.push(step);
            self.take(step)?;
        }
        Ok(())
    }

    /// Takes all fault-free steps, then compares the rows with the objects.
    pub(super) fn converge(mut self) -> Result<(), Broken> {
        self.budget = Budget::default();
        self.sleepers.clear();
        self.processes.iter_mut().for_each(|process| process.former.clear());
        let epoch = self.database.epoch;
        let holds = |process: &Process| {
            process.delivery.as_ref().is_some_and(|delivery| *delivery.fence() == fence(epoch))
        };
        if !self.processes.iter().any(holds) {
            self.elect(0);
        }
        // The next bookmark reveals lost commits.
        self.cluster.version += 1;
        self.now += CHECKPOINT_TIME;
        for _ in 0..200 {
            for step in self.steps() {
                self.take(step)?;
            }
            if self.is_settled() {
                return Ok(());
            }
        }
        let what = format!("rows {:?}, objects {:?}", self.database.rows, self.cluster.objects);
        Err((Property::RowsBecomeTheObjects, what))
    }

    fn is_settled(&self) -> bool {
        let Settings { is_watched, shape, filter } = self.settings;
        let read = self.cluster.objects.iter().filter(|(name, _)| is_watched && lets_through(filter, name));
        let rows = read.map(|(name, version)| ((*name).to_owned(), Row::new(*version, shape)));
        let is_stored = match self.database.stored() {
            Some(_) => is_watched && self.database.checkpoint().is_some(),
            None => !is_watched,
        };
        self.database.rows == rows.collect() && is_stored
    }
}
