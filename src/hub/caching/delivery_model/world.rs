//! The world, and what may happen to it.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use kubesvc_agent::caching::{AccountDelivery, DeliveryNumbers, NextFrame, QueueMemory, ReaderCommand};
use kubesvc_core::wire::common::Fence;
use kubesvc_core::wire::events::{cache_down, cache_up};

use super::cluster::{Cluster, NAMES, Reader};
use super::database::Database;
use super::hub::HubStream;
use super::{Broken, Property, Rule, Rules, declaration, decoded, fence};

/// Age up to which a checkpoint counts.
const MAX_RESUMABLE_AGE: Duration = Duration::from_secs(86_400);
/// Maximum size of a message of the hub, in bytes.
const MAX_MESSAGE_BYTES: usize = 4 * 1024 * 1024;

/// Credit that is enough for a batch of one event.
const SMALL_BATCH_BYTES: usize = 95;

/// How often each thing may happen.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Budget {
    pub(super) writes: u8,
    pub(super) deletes: u8,
    pub(super) others: u8,
    pub(super) compactions: u8,
    pub(super) cuts: u8,
    pub(super) crashes: u8,
    pub(super) moves: u8,
    pub(super) off_on: u8,
    pub(super) relists: u8,
    pub(super) losses: u8,
    /// Readers that go on after their end.
    pub(super) late_reads: u8,
    /// Batches that hold one event each, where there is a choice.
    pub(super) small_batches: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Write(usize),
    Delete(usize),
    Other,
    Compact,
    Read(usize),
    LateRead(usize),
    Bookmark(usize),
    Send(usize),
    SendSmall(usize),
    HubReceives(usize),
    HubReads(usize),
    HubCommits(usize),
    /// All batches that wait, in one transaction.
    HubCommitsAll(usize),
    AgentReceives(usize),
    Cut(usize),
    Connect(usize),
    Crash(usize),
    Move(usize),
    OffOn(usize),
    Relist(usize),
    /// A hub that slept commits a batch of a stream that is gone.
    SleeperCommits(usize),
    SleeperEnds(usize),
    LoseCommit,
}

impl Step {
    /// Whether it needs no fault and no change.
    pub(super) fn happens_by_itself(self) -> bool {
        matches!(
            self,
            Self::Read(_)
                | Self::Send(_)
                | Self::SendSmall(_)
                | Self::HubReceives(_)
                | Self::HubReads(_)
                | Self::HubCommits(_)
                | Self::HubCommitsAll(_)
                | Self::AgentReceives(_)
                | Self::Connect(_)
        )
    }
}

/// An agent process.
#[derive(Clone, Debug, Default)]
struct Process {
    delivery: Option<AccountDelivery>,
    used: DeliveryNumbers,
    memory: QueueMemory,
    reader: Option<Reader>,
    former: Vec<Reader>,
    stream: Option<HubStream>,
    /// Frames on their way to the hub.
    up: VecDeque<cache_up::Frame>,
}

#[derive(Clone, Debug)]
pub(super) struct World {
    pub(super) cluster: Cluster,
    pub(super) database: Database,
    /// What the database was before each commit of this epoch.
    history: Vec<Database>,
    processes: [Process; 2],
    sleepers: Vec<HubStream>,
    keys: u64,
    contents: BTreeMap<(u64, u64), Vec<u8>>,
    has_lost: bool,
    pub(super) budget: Budget,
    left_out: Rules,
    now: Instant,
}

impl World {
    pub(super) fn new(budget: Budget, left_out: Rules) -> Self {
        let mut world = Self {
            cluster: Cluster::default(),
            database: Database::default(),
            history: Vec::new(),
            processes: [Process::default(), Process::default()],
            sleepers: Vec::new(),
            keys: 0,
            contents: BTreeMap::new(),
            has_lost: false,
            budget: Budget { moves: budget.moves + 1, ..budget },
            left_out,
            now: Instant::now(),
        };
        world.cluster.change("a", true);
        world.elect(0);
        world
    }

    /// All that can happen next.
    pub(super) fn steps(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        let mut may = |budget: u8, step| {
            if budget > 0 {
                steps.push(step);
            }
        };
        let Budget { writes, deletes, others, compactions, losses, .. } = self.budget;
        for (index, name) in NAMES.iter().enumerate() {
            may(writes, Step::Write(index));
            may(deletes * u8::from(self.cluster.objects.contains_key(name)), Step::Delete(index));
        }
        may(others, Step::Other);
        may(compactions * u8::from(self.cluster.compacted < self.cluster.version), Step::Compact);
        may(losses * u8::from(!self.history.is_empty()), Step::LoseCommit);
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
        if let Some(reader) = &process.reader {
            may(u8::from(reader.is_ready(&self.cluster)), Step::Read(index));
            may(u8::from(reader.bookmark(&self.cluster).is_some()), Step::Bookmark(index));
        }
        let is_late = process.former.iter().any(|reader| reader.is_ready(&self.cluster));
        may(late_reads * u8::from(is_late), Step::LateRead(index));
        let Some(stream) = &process.stream else {
            may(u8::from(has_delivery), Step::Connect(index));
            return;
        };
        may(cuts, Step::Cut(index));
        may(u8::from(self.can_send(process, usize::MAX)), Step::Send(index));
        may(small_batches * u8::from(self.can_send(process, SMALL_BATCH_BYTES)), Step::SendSmall(index));
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
        let spend = |budget: &mut u8| *budget = budget.saturating_sub(1);
        match step {
            Step::Write(name) => {
                spend(&mut self.budget.writes);
                self.cluster.change(NAMES[name], true);
            }
            Step::Delete(name) => {
                spend(&mut self.budget.deletes);
                self.cluster.change(NAMES[name], false);
            }
            Step::Other => {
                spend(&mut self.budget.others);
                self.cluster.version += 1;
            }
            Step::Compact => {
                spend(&mut self.budget.compactions);
                self.cluster.compacted = self.cluster.version;
            }
            Step::Read(process) => self.read(process, None),
            Step::LateRead(process) => {
                spend(&mut self.budget.late_reads);
                let former = &self.processes[process].former;
                let ready = former.iter().position(|reader| reader.is_ready(&self.cluster));
                self.read(process, ready);
            }
            Step::Bookmark(process) => self.bookmark(process),
            Step::Send(process) => return self.send(process, usize::MAX),
            Step::SendSmall(process) => {
                spend(&mut self.budget.small_batches);
                return self.send(process, SMALL_BATCH_BYTES);
            }
            Step::Cut(process) => {
                spend(&mut self.budget.cuts);
                self.cut(process);
            }
            Step::Crash(process) => {
                spend(&mut self.budget.crashes);
                self.cut(process);
                self.processes[process] = Process::default();
            }
            Step::Move(process) => {
                spend(&mut self.budget.moves);
                self.elect(process);
            }
            Step::OffOn(process) => {
                spend(&mut self.budget.off_on);
                self.off_on(process);
            }
            Step::Relist(process) => {
                spend(&mut self.budget.relists);
                let delivery = self.processes[process].delivery.as_mut();
                let command = delivery.and_then(|delivery| delivery.relist(delivery.numbers().scope()));
                self.carry_out(process, command.into_iter().collect());
            }
            Step::LoseCommit => {
                spend(&mut self.budget.losses);
                self.has_lost = true;
                self.database = self.history.pop().unwrap_or_default();
            }
            step => return self.take_hub_step(step),
        }
        Ok(())
    }

    fn take_hub_step(&mut self, step: Step) -> Result<(), Broken> {
        let left_out = self.left_out;
        match step {
            Step::Connect(index) => {
                let process = &mut self.processes[index];
                process.stream = Some(HubStream::default());
                process.delivery.iter_mut().for_each(|delivery| delivery.attach(MAX_MESSAGE_BYTES));
            }
            Step::HubReceives(index) => {
                let process = &mut self.processes[index];
                if let (Some(stream), Some(frame)) = (&mut process.stream, process.up.pop_front()) {
                    stream.receive(frame, &self.database, left_out);
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
            Step::AgentReceives(index) => return self.agent_receives(index),
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
        self.budget.moves = self.budget.moves.saturating_sub(1);
        self.begin_delivery(index, fence(self.database.epoch), false);
    }

    fn off_on(&mut self, index: usize) {
        let delivery = self.processes[index].delivery.as_ref();
        if let Some(fence) = delivery.map(|delivery| delivery.fence().clone()) {
            self.begin_delivery(index, fence, self.left_out == Some(Rule::NumbersAreNotReused));
        }
    }

    fn begin_delivery(&mut self, index: usize, fence: Fence, reuses_numbers: bool) {
        let process = &mut self.processes[index];
        if let Some(mut delivery) = process.delivery.take() {
            process.used = process.used.max(delivery.numbers());
            let commands = delivery.end(&mut process.memory);
            assert!(commands.iter().all(|command| matches!(command, ReaderCommand::StopAll)));
            process.former.extend(process.reader.take());
        }
        let used = if reuses_numbers { DeliveryNumbers::default() } else { process.used };
        let mut delivery = AccountDelivery::new(fence, MAX_RESUMABLE_AGE, used);
        let id = delivery.next_scope_id();
        delivery.declare(vec![declaration(id)], &mut process.memory).expect("it can be declared");
        if process.stream.is_some() {
            delivery.attach(MAX_MESSAGE_BYTES);
        }
        process.delivery = Some(delivery);
    }

    fn cut(&mut self, index: usize) {
        let process = &mut self.processes[index];
        process.up.clear();
        process.delivery.iter_mut().for_each(AccountDelivery::detach);
        if let Some(stream) = process.stream.take().filter(HubStream::has_batches) {
            self.sleepers.push(stream);
        }
    }

    /// The reader, or a former one, reads.
    fn read(&mut self, index: usize, former: Option<usize>) {
        let process = &mut self.processes[index];
        let current = process.reader.as_ref().map(|reader| reader.id);
        let reader = match former {
            None => process.reader.as_mut(),
            Some(former) => process.former.get_mut(former),
        };
        let (Some(reader), Some(delivery)) = (reader, &mut process.delivery) else { return };
        if let (Some(Rule::FormerReadersAreIgnored), Some(current)) = (self.left_out, current) {
            reader.id = current;
        }
        reader.step(&self.cluster, &mut self.keys, delivery, &mut process.memory, self.now);
    }

    fn bookmark(&mut self, index: usize) {
        let process = &mut self.processes[index];
        let (Some(reader), Some(delivery)) = (&mut process.reader, &mut process.delivery) else { return };
        if let Some(version) = reader.bookmark(&self.cluster) {
            delivery.bookmark(reader.id, version.to_string());
            reader.skip_to(version);
        }
    }

    fn send(&mut self, index: usize, credit: usize) -> Result<(), Broken> {
        let process = &mut self.processes[index];
        let Some(delivery) = &mut process.delivery else { return Ok(()) };
        let (NextFrame::Free(frame) | NextFrame::Batch(frame, _)) =
            delivery.next_frame(credit, self.now, &mut process.memory)
        else {
            return Ok(());
        };
        let bytes = frame.bytes().to_vec();
        let frame = decoded(&frame);
        if let cache_up::Frame::Batch(batch) = &frame {
            let number = (delivery.fence().caching_epoch, batch.seq);
            if self.contents.insert(number, bytes.clone()).is_some_and(|before| before != bytes) {
                return Err((Property::OneContentForEachNumber, format!("{number:?}")));
            }
        }
        process.up.push_back(frame);
        Ok(())
    }

    fn agent_receives(&mut self, index: usize) -> Result<(), Broken> {
        let process = &mut self.processes[index];
        let frame = process.stream.as_mut().and_then(|stream| stream.down.pop_front());
        let (Some(delivery), Some(frame)) = (&mut process.delivery, frame) else { return Ok(()) };
        let here = delivery.fence().clone();
        let memory = &mut process.memory;
        let is_ours = |fence: &Option<Fence>| fence.as_ref() == Some(&here);
        let commands = match frame {
            cache_down::Frame::Resume(resume) if is_ours(&resume.fence) => delivery.resume(resume, memory),
            cache_down::Frame::Rewind(rewind) if is_ours(&rewind.fence) => delivery.rewind(memory).1,
            cache_down::Frame::SyncBasis(basis) if is_ours(&basis.fence) => {
                delivery.basis(basis).into_iter().collect()
            }
            cache_down::Frame::Ack(ack) if is_ours(&ack.fence) => {
                let is_current = here == fence(self.database.epoch);
                let committed = u64::try_from(self.database.committed).expect("it is positive");
                if is_current && !self.has_lost && ack.seq > committed {
                    let what = format!("{} is acknowledged, {} committed", ack.seq, self.database.committed);
                    return Err((Property::AcknowledgedIsCommitted, what));
                }
                delivery.ack(ack.seq);
                Vec::new()
            }
            cache_down::Frame::Revoked(revoked) if is_ours(&revoked.fence) => {
                process.used = process.used.max(delivery.numbers());
                let commands = delivery.end(memory);
                process.delivery = None;
                commands
            }
            _ => Vec::new(),
        };
        self.carry_out(index, commands);
        Ok(())
    }

    fn carry_out(&mut self, index: usize, commands: Vec<ReaderCommand>) {
        let process = &mut self.processes[index];
        for command in commands {
            match &command {
                ReaderCommand::Watch { .. } | ReaderCommand::List { .. } => {
                    process.former.extend(process.reader.take());
                    process.reader = Reader::of(&command);
                }
                ReaderCommand::Stop { .. } | ReaderCommand::StopAll => {
                    process.former.extend(process.reader.take());
                }
                ReaderCommand::Basis { .. } => {}
            }
            if let ReaderCommand::Basis { sync_key, rows, .. } = command {
                let rows = rows.expect("it is small").into_frames().flat_map(|rows| rows.expect("rows"));
                let rows = rows.map(|row| (row.name, row.rv.parse().expect("a version")));
                let mut rows: BTreeMap<String, u64> = rows.collect();
                if self.left_out == Some(Rule::ListHasABasis) {
                    rows.clear();
                }
                if let Some(reader) = &mut process.reader {
                    reader.list(&sync_key, &rows, &self.cluster);
                }
            }
        }
        if self.budget.late_reads == 0 {
            process.former.clear();
        }
    }

    /// Takes steps that need no fault until there is none.
    pub(super) fn list_first(&mut self, taken: &mut Vec<Step>) -> Result<(), Broken> {
        while let Some(step) = self.steps().into_iter().find(|step| step.happens_by_itself()) {
            taken.push(step);
            self.take(step)?;
        }
        Ok(())
    }

    /// Lets everything happen that needs no fault, then compares the rows with the objects.
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
        // The next bookmark shows commits that were lost.
        self.cluster.version += 1;
        self.now += Duration::from_secs(61);
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
        let objects = self.cluster.objects.iter().map(|(name, version)| ((*name).to_owned(), *version));
        self.database.rows == objects.collect() && self.database.checkpoint().is_some()
    }
}
