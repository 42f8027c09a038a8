//! Answers of the hub: commits, resume positions, and the resulting commands for readers.

use super::*;

impl AccountSender {
    /// Records that the batches up to `seq` are committed.
    pub fn ack(&mut self, seq: u64) {
        if seq > self.head {
            return;
        }
        while let Some(first) = self.unacked.pop_up_to(seq) {
            self.acked = first.seq;
        }
        let acked = self.acked;
        if let Some(scopes) = &mut self.scopes {
            for scope in scopes.values_mut() {
                if matches!(scope.added, Some(AddedIn::Batch(added)) if added <= acked) {
                    scope.added = None;
                    scope.is_declared = true;
                }
            }
            scopes.retain(|_, scope| scope.leaves_after.is_none_or(|last| last > acked));
        }
    }

    /// Handles a Rewind: the chain does not follow the committed batch, so Begin is sent again.
    pub fn rewind(&mut self, memory: &mut QueueMemory) -> Vec<ReaderCommand> {
        if self.stage != Stage::Streaming {
            // The Begin in flight already does that.
            return Vec::new();
        }
        self.must_restart = true;
        let commands = self.stop_readers();
        self.discard_read(memory);
        self.queue.forget_added(memory);
        for scope in self.scopes.iter_mut().flat_map(BTreeMap::values_mut) {
            scope.is_declared = true;
            scope.added = None;
        }
        self.begin();
        commands
    }

    /// Discards what was read and not acknowledged.
    fn discard_read(&mut self, memory: &mut QueueMemory) {
        self.queue.forget_read(memory);
        if let Some(scopes) = &mut self.scopes {
            let key = |leaves: bool| {
                let scopes = scopes.values().filter(move |scope| scope.leaves_after.is_some() == leaves);
                scopes.map(SenderScope::key).collect::<BTreeSet<_>>()
            };
            // Their removal may be discarded, and a Begin that named them kept the hub from requesting it.
            for gone in key(true).difference(&key(false)) {
                self.queue.keep(gone, memory);
                self.queue.removed(gone.clone(), memory);
            }
            scopes.retain(|_, scope| scope.leaves_after.is_none());
        }
        for unacked in self.unacked.take().into_iter().rev() {
            for (scope_id, problem) in unacked.batch.problems {
                if self.scopes.as_ref().is_some_and(|scopes| scopes.contains_key(&scope_id)) {
                    self.queue.problem_again(scope_id, problem, memory);
                }
            }
        }
    }

    /// Handles a frame of the hub's answer to Begin or to added scopes.
    pub fn resume(&mut self, frame: Resume, memory: &mut QueueMemory) -> Vec<ReaderCommand> {
        if frame.delivery != 0 && frame.delivery != self.numbers.delivery {
            // An answer to a former delivery on this stream, under the same fence.
            return Vec::new();
        }
        let scopes = self.scopes.as_ref();
        let is_known = |id: u32| scopes.is_some_and(|scopes| scopes.contains_key(&id));
        match self.stage {
            Stage::Detached | Stage::Beginning(_) => Vec::new(),
            Stage::AwaitingResume => {
                let Some(answer) = self.resume.take(frame, is_known) else { return Vec::new() };
                let covers =
                    |(id, scope): (&u32, &SenderScope)| !scope.is_begun || answer.scopes.contains_key(id);
                if !scopes.into_iter().flatten().all(covers) {
                    // An answer for scopes added before this Begin.
                    return Vec::new();
                }
                self.resumed(answer, memory)
            }
            Stage::Streaming => {
                let Some(answer) = self.resume.take(frame, is_known) else { return Vec::new() };
                let committed = answer.committed_seq;
                answer.scopes.into_iter().filter_map(|(id, at)| self.start(id, &at, committed)).collect()
            }
        }
    }

    /// Whether the read events follow this batch.
    fn follows(&self, committed_seq: u64) -> bool {
        self.acked == committed_seq || self.unacked.iter().any(|unacked| unacked.seq == committed_seq)
    }

    fn resumed(&mut self, answer: ResumeAnswer, memory: &mut QueueMemory) -> Vec<ReaderCommand> {
        let mut commands = Vec::new();
        if self.must_restart || !self.follows(answer.committed_seq) {
            commands.extend(self.stop_readers());
            self.discard_read(memory);
            self.acked = answer.committed_seq;
            self.head = answer.committed_seq;
            self.numbers.seq = self.numbers.seq.max(answer.committed_seq);
            self.must_restart = false;
            self.add_again(memory);
        } else {
            self.ack(answer.committed_seq);
            self.add_unanswered(memory);
        }
        self.stage = Stage::Streaming;
        self.repeat_problems(memory);
        for (id, at) in &answer.scopes {
            let waits = |list: &ListAttempt| list.is_sent && list.basis.is_some();
            let scope = self.scope_mut(*id);
            if let Some(scope) = scope.filter(|scope| scope.list.as_ref().is_some_and(waits)) {
                // The basis was lost with the former stream.
                let all_bodies = scope.all_bodies || at.resend;
                commands.push(self.list(*id, at.objects, all_bodies, at.rv.clone()));
            } else {
                // Added scopes get an answer of their own.
                commands.extend(self.start(*id, at, 0));
            }
        }
        self.remove_others(answer, memory);
        commands
    }

    /// Queues the problems of scopes and kinds again, since the hub may be another one.
    fn repeat_problems(&mut self, memory: &mut QueueMemory) {
        let (scopes, left_out) = (self.scopes.as_ref(), &self.left_out);
        let is_left_out: BTreeSet<u32> = left_out.values().copied().collect();
        let is_known = |id: &u32| is_left_out.contains(id) || scopes.is_some_and(|all| all.contains_key(id));
        self.problems.retain(|id, _| is_known(id));
        for (id, problem) in &self.problems {
            self.queue.problem_again(*id, problem.clone(), memory);
        }
    }

    /// Queues the scopes again whose adding batch was discarded.
    fn add_again(&mut self, memory: &mut QueueMemory) {
        for scope in self.scopes.iter_mut().flat_map(BTreeMap::values_mut) {
            if let Some(AddedIn::Batch(_)) = scope.added {
                scope.added = Some(AddedIn::Queue);
                self.queue.added(scope.declaration.clone(), memory);
            }
        }
    }

    /// Queues the scopes again whose batch is committed but whose answer was lost with the former stream: Begin did not
    /// name them, so this hub does not know them.
    fn add_unanswered(&mut self, memory: &mut QueueMemory) {
        for scope in self.scopes.iter_mut().flat_map(BTreeMap::values_mut) {
            if scope.added.is_none() && !scope.is_begun && scope.leaves_after.is_none() {
                scope.added = Some(AddedIn::Queue);
                self.queue.added(scope.declaration.clone(), memory);
            }
        }
    }

    fn remove_others(&mut self, answer: ResumeAnswer, memory: &mut QueueMemory) {
        if answer.others.is_empty() {
            return;
        }
        let scopes = self.scopes.iter().flat_map(BTreeMap::values);
        let known: BTreeSet<String> =
            scopes.filter(|scope| scope.leaves_after.is_none()).map(SenderScope::key).collect();
        for other in answer.others {
            if !known.contains(&other) {
                self.queue.keep(&other, memory);
                self.queue.removed(other, memory);
            }
        }
    }

    /// Lists a scope anew on the hub's request.
    pub fn relist(&mut self, scope_id: u32) -> Option<ReaderCommand> {
        let scope = self.scope_mut(scope_id).filter(|scope| scope.reader.is_some())?;
        let (objects, all_bodies) = (scope.objects, scope.all_bodies);
        let known = self.queue.last_read(scope_id).unwrap_or_default().to_owned();
        Some(self.list(scope_id, objects, all_bodies, known))
    }

    /// Handles a frame of a basis. Frames of any but the scope's newest list are ignored.
    pub fn basis(&mut self, frame: SyncBasis) -> Option<ReaderCommand> {
        let scope = self.scope_mut(frame.scope_id)?;
        let reader = scope.reader?;
        let list = scope.list.as_mut().filter(|list| list.sync_key == frame.sync_key)?;
        let mut rows = list.basis.take()?;
        let result = frame.rows.map_or(Ok(()), |blob| rows.push(blob));
        let rows = match result {
            Ok(()) if !frame.last => {
                list.basis = Some(rows);
                return None;
            }
            result => result.map(|()| rows),
        };
        Some(ReaderCommand::Basis { reader, sync_key: frame.sync_key, rows })
    }

    /// Ends the delivery: nothing more is accepted or sent.
    pub fn end(&mut self, memory: &mut QueueMemory) -> Vec<ReaderCommand> {
        self.unacked.take();
        self.queue.clear(memory);
        self.stage = Stage::Detached;
        self.stop_readers()
    }
}

/// Maximum number of scopes that an answer names for removal; the next answer names the rest.
const MAX_OTHERS: usize = 20_000;

/// Frames of an incomplete answer.
#[derive(Clone, Debug, Default)]
pub(super) struct ResumeAssembly {
    answer: ResumeAnswer,
}

/// A complete answer.
#[derive(Clone, Debug, Default)]
pub(super) struct ResumeAnswer {
    /// Number of the last committed batch.
    pub(super) committed_seq: u64,
    /// Checkpoints by scope.
    pub(super) scopes: BTreeMap<u32, ScopeCheckpoint>,
    /// Further scopes in the table, as `<namespace>:<group>.<Kind>`.
    pub(super) others: BTreeSet<String>,
}

impl ResumeAssembly {
    /// Takes a frame, without unknown scopes. Returns the answer once it is complete.
    pub(super) fn take(&mut self, frame: Resume, is_known: impl Fn(u32) -> bool) -> Option<ResumeAnswer> {
        let Resume { committed_seq, scopes, others, last, .. } = frame;
        self.answer.committed_seq = committed_seq;
        let known = scopes.into_iter().filter(|scope| is_known(scope.scope_id));
        self.answer.scopes.extend(known.map(|scope| (scope.scope_id, scope)));
        let free = MAX_OTHERS - self.answer.others.len().min(MAX_OTHERS);
        self.answer.others.extend(others.into_iter().take(free));
        last.then(|| std::mem::take(&mut self.answer))
    }
}
