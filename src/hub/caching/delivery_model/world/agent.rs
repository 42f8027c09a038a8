//! Steps of an agent process: it receives accounts and settings, reads, sends, and handles answers.

use std::collections::BTreeMap;
use std::time::Duration;

use kubesvc_agent::{AccountSender, DeliveryNumbers, NextFrame, ReaderCommand};
use kubesvc_core::wire::common::Fence;
use kubesvc_core::wire::events::event::Operation;
use kubesvc_core::wire::events::{Batch, Resume, cache_down, cache_up};

use super::{SMALL_BATCH_BYTES, World};
use crate::hub::caching::delivery_model::cluster::{NAMES, Reader};
use crate::hub::caching::delivery_model::database::Database;
use crate::hub::caching::delivery_model::hub::HubStream;
use crate::hub::caching::delivery_model::journal::Journal;
use crate::hub::caching::delivery_model::settings::Settings;
use crate::hub::caching::delivery_model::steps::BURSTS;
use crate::hub::caching::delivery_model::{Broken, Property, Rule, Rules, declaration, decoded, fence};

/// Maximum age of a resumable checkpoint.
const MAX_RESUMABLE_AGE: Duration = Duration::from_secs(86_400);
/// Maximum size of a message to the hub, in bytes.
const MAX_MESSAGE_BYTES: usize = 4 * 1024 * 1024;

impl World {
    pub(super) fn off_on(&mut self, index: usize) {
        let delivery = self.processes[index].delivery.as_ref();
        if let Some(fence) = delivery.map(|delivery| delivery.fence().clone()) {
            self.begin_delivery(index, fence, self.left_out == Some(Rule::NumbersAreNotReused));
        }
    }

    pub(super) fn begin_delivery(&mut self, index: usize, fence: Fence, reuses_numbers: bool) {
        let settings = self.settings;
        let process = &mut self.processes[index];
        if let Some(mut delivery) = process.delivery.take() {
            process.used = process.used.max(delivery.numbers());
            let commands = delivery.end(&mut process.memory);
            assert!(commands.iter().all(|command| matches!(command, ReaderCommand::StopAll)));
            process.former.extend(process.reader.take());
        }
        process.journal = None;
        let used = if reuses_numbers { DeliveryNumbers::default() } else { process.used };
        let mut delivery = AccountSender::new(fence, MAX_RESUMABLE_AGE, used);
        process.settings = settings;
        process.scope_id = settings.is_watched.then(|| delivery.next_scope_id());
        let declarations = process.scope_id.map(|id| declaration(id, settings)).into_iter().collect();
        delivery.declare(declarations, &mut process.memory).expect("it can be declared");
        if process.stream.is_some() {
            delivery.attach(MAX_MESSAGE_BYTES);
        }
        process.delivery = Some(delivery);
    }

    /// Takes changed settings, and redeclares, adds or removes the scope.
    pub(super) fn take_settings(&mut self, index: usize) {
        let settings = self.settings;
        let process = &mut self.processes[index];
        let Some(delivery) = &mut process.delivery else { return };
        process.journal = None;
        process.settings = settings;
        let memory = &mut process.memory;
        let command = match process.scope_id {
            Some(id) if settings.is_watched => {
                delivery.redeclare_scope(declaration(id, settings), memory).expect("it is the same scope")
            }
            Some(id) => {
                process.scope_id = None;
                delivery.remove_scope(id, memory)
            }
            None if settings.is_watched => {
                let id = delivery.next_scope_id();
                process.scope_id = Some(id);
                delivery.declare(vec![declaration(id, settings)], memory).expect("it can be declared");
                None
            }
            None => None,
        };
        self.carry_out(index, command.into_iter().collect());
    }

    pub(super) fn connect(&mut self, index: usize) {
        let process = &mut self.processes[index];
        process.journal = None;
        process.stream = Some(HubStream::default());
        process.delivery.iter_mut().for_each(|delivery| delivery.attach(MAX_MESSAGE_BYTES));
    }

    pub(super) fn cut(&mut self, index: usize) {
        let now = self.now;
        let process = &mut self.processes[index];
        process.up.clear();
        // Without the rule, sent batches are queued again, to be sent with later changes.
        let journal = process.journal.take();
        if let (Some(Rule::ResendsHaveTheSameBytes), Some(journal)) = (self.left_out, journal) {
            let (delivery, memory) = journal.replay(now);
            (process.delivery, process.memory) = (Some(delivery), memory);
        }
        process.delivery.iter_mut().for_each(AccountSender::detach);
        if let Some(stream) = process.stream.take().filter(HubStream::has_batches) {
            self.sleepers.push(stream);
        }
    }

    /// Changes several objects, and reads all of the changes before anything is sent.
    pub(super) fn burst(&mut self, index: usize, burst: usize) {
        for (name, is_there) in BURSTS[burst] {
            self.cluster.change(NAMES[name], is_there);
        }
        while self.has_changes(index) {
            self.read(index, None);
        }
    }

    fn has_changes(&self, index: usize) -> bool {
        let process = &self.processes[index];
        let reader = process.reader.as_ref().filter(|_| process.delivery.is_some());
        reader.is_some_and(|reader| reader.is_ready(&self.cluster))
    }

    /// Lets the reader, or a former one, read.
    pub(super) fn read(&mut self, index: usize, former: Option<usize>) {
        let left_out = self.left_out;
        // Without the rule, queued changes do not age.
        let now = if left_out == Some(Rule::BusyObjectsKeepTheirPlace) { self.begun } else { self.now };
        let process = &mut self.processes[index];
        let current = process.reader.as_ref().map(|reader| reader.id);
        let reader = match former {
            None => process.reader.as_mut(),
            Some(former) => process.former.get_mut(former),
        };
        let (Some(reader), Some(delivery)) = (reader, &mut process.delivery) else { return };
        if let (Some(Rule::FormerReadersAreIgnored), Some(current)) = (left_out, current) {
            reader.id = current;
        }
        let (id, memory) = (reader.id, &mut process.memory);
        let before = Journal::serves(left_out).then(|| Journal::new(id, delivery.clone(), memory.clone()));
        let change = reader.step(&self.cluster, &mut self.keys, delivery, memory, now);
        if former.is_some() {
            return;
        }
        let Some(change) = change else {
            process.journal = None;
            return;
        };
        if left_out == Some(Rule::ScopesGoOnFromTheCheckpoint) {
            process.read_up_to = change.rv.parse().expect("a version");
        }
        if let Some(before) = before {
            let journal = process.journal.get_or_insert(before);
            journal.push(change, left_out);
            if left_out != Some(Rule::ResendsHaveTheSameBytes) {
                (*delivery, *memory) = journal.replay(now);
            }
        }
    }

    pub(super) fn refuse(&mut self, index: usize) {
        let process = &mut self.processes[index];
        if let (Some(reader), Some(delivery)) = (&mut process.reader, &process.delivery) {
            reader.refuse(&self.cluster, delivery, self.left_out);
        }
    }

    pub(super) fn bookmark(&mut self, index: usize) {
        let process = &mut self.processes[index];
        let (Some(reader), Some(delivery)) = (&mut process.reader, &mut process.delivery) else { return };
        if let Some(version) = reader.bookmark(&self.cluster) {
            process.journal = None;
            delivery.bookmark(reader.id, version.to_string());
            reader.skip_to(version);
        }
    }

    pub(super) fn relist(&mut self, index: usize) {
        let process = &mut self.processes[index];
        process.journal = None;
        let (delivery, scope_id) = (process.delivery.as_mut(), process.scope_id);
        let command = delivery.zip(scope_id).and_then(|(delivery, id)| delivery.relist(id));
        self.carry_out(index, command.into_iter().collect());
    }

    pub(super) fn send(&mut self, index: usize, credit: usize) -> Result<(), Broken> {
        let left_out = self.left_out;
        let process = &mut self.processes[index];
        let Some(delivery) = &mut process.delivery else { return Ok(()) };
        let (NextFrame::Free(frame) | NextFrame::Batch(frame, _)) =
            delivery.next_frame(credit, self.now, &mut process.memory)
        else {
            return Ok(());
        };
        let bytes = frame.bytes().to_vec();
        let mut frame = decoded(&frame);
        if let cache_up::Frame::Batch(batch) = &mut frame {
            assert!(credit > SMALL_BATCH_BYTES || upserts(batch) < 2, "{batch:?}");
            let number = (delivery.fence().caching_epoch, batch.seq);
            let before = self.contents.insert(number, bytes.clone());
            // Without the rule, the consequences of other bytes are explored.
            let is_free = left_out == Some(Rule::ResendsHaveTheSameBytes);
            if !is_free && before.is_some_and(|before| before != bytes) {
                return Err((Property::OneContentForEachNumber, format!("{number:?}")));
            }
            if left_out == Some(Rule::CheckpointIsOfTheLastEvent) {
                let read = process.reader.as_ref().and_then(|reader| delivery.last_read(reader.id));
                for checkpoint in &mut batch.checkpoints {
                    checkpoint.rv = read.unwrap_or(&checkpoint.rv).to_owned();
                }
            }
        }
        // Sent batches are no longer queued, unless they are to be rebuilt.
        if left_out != Some(Rule::ResendsHaveTheSameBytes) {
            process.journal = None;
        }
        process.up.push_back(frame);
        Ok(())
    }

    pub(super) fn agent_receives(&mut self, index: usize) -> Result<(), Broken> {
        let process = &mut self.processes[index];
        let frame = process.stream.as_mut().and_then(|stream| stream.down.pop_front());
        let (Some(delivery), Some(frame)) = (&mut process.delivery, frame) else { return Ok(()) };
        process.journal = None;
        let here = delivery.fence().clone();
        let memory = &mut process.memory;
        let is_ours = |fence: &Option<Fence>| fence.as_ref() == Some(&here);
        let commands = match frame {
            cache_down::Frame::Resume(resume) if is_ours(&resume.fence) => {
                let resume = answer(resume, &self.database, process.settings, self.left_out);
                delivery.resume(resume, memory)
            }
            cache_down::Frame::Rewind(rewind) if is_ours(&rewind.fence) => delivery.rewind(memory),
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
        let left_out = self.left_out;
        let process = &mut self.processes[index];
        for command in commands {
            match &command {
                ReaderCommand::Watch { .. } | ReaderCommand::List { .. } => {
                    process.former.extend(process.reader.take());
                    process.reader = Reader::of(&command, process.settings, left_out);
                }
                ReaderCommand::Stop { .. } | ReaderCommand::StopAll => {
                    process.former.extend(process.reader.take());
                }
                ReaderCommand::Basis { .. } => {}
            }
            if let (Some(Rule::ScopesGoOnFromTheCheckpoint), Some(reader)) = (left_out, &mut process.reader) {
                reader.go_on_after(process.read_up_to);
            }
            if let ReaderCommand::Basis { sync_key, rows, .. } = command {
                let rows = rows.expect("it is small").into_frames().flat_map(|rows| rows.expect("rows"));
                let rows = rows.map(|row| (row.name, row.rv.parse().expect("a version")));
                let mut rows: BTreeMap<String, u64> = rows.collect();
                if left_out == Some(Rule::ListHasABasis) {
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
}

fn upserts(batch: &Batch) -> usize {
    batch.events.iter().filter(|event| event.op() == Operation::Upsert).count()
}

/// The hub's answer, changed as it would be without a rule.
fn answer(mut resume: Resume, database: &Database, settings: Settings, left_out: Rules) -> Resume {
    if left_out == Some(Rule::FormerAnswersAreIgnored) {
        resume.delivery = 0;
    }
    let Some(stored) = database.stored() else { return resume };
    let is_same = match left_out {
        Some(Rule::ShapeIsCompared) => stored.filter.as_deref() == Some(settings.filter),
        Some(Rule::FilterIsCompared) => stored.shape.as_deref() == Some(settings.shape),
        _ => false,
    };
    if let (true, Some(checkpoint)) = (is_same, database.checkpoint()) {
        for scope in resume.scopes.iter_mut().filter(|scope| scope.rv.is_empty()) {
            (scope.rv, scope.resend) = (checkpoint.to_string(), false);
        }
    }
    if left_out == Some(Rule::OthersAreRemoved) {
        resume.others.clear();
    }
    resume
}
