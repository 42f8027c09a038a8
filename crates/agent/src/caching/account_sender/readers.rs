//! Scopes of an account and their readers: declarations, current readers, and their reports.

use super::*;
use kubesvc_core::cache::left_out_objects;
use kubesvc_core::wire::common::failure::Class;

impl AccountSender {
    /// Number for the next scope; never reused.
    pub fn next_scope_id(&mut self) -> u32 {
        self.numbers.scope = self.numbers.scope.saturating_add(1);
        self.numbers.scope
    }

    /// Declares the initial scopes. Required even for none: nothing is sent before.
    ///
    /// # Errors
    ///
    /// If one of them cannot be declared; then none is.
    pub fn declare(
        &mut self,
        declarations: Vec<ScopeDeclaration>,
        memory: &mut QueueMemory,
    ) -> Result<(), DeclarationError> {
        let mut ids = BTreeSet::new();
        for declaration in &declarations {
            self.check(declaration)?;
            if !ids.insert(declaration.scope_id) {
                return Err(DeclarationError::NumberUsed(declaration.scope_id));
            }
        }
        // Removed scopes are removed by an earlier batch.
        let live = self.scopes.iter().flat_map(BTreeMap::values).filter(|scope| scope.leaves_after.is_none());
        if live.count() + declarations.len() > MAX_SCOPES {
            return Err(DeclarationError::TooManyScopes);
        }
        let is_first = self.scopes.is_none();
        self.scopes.get_or_insert_default();
        for declaration in declarations {
            self.insert(declaration, is_first, memory);
        }
        Ok(())
    }

    fn check(&self, declaration: &ScopeDeclaration) -> Result<(), DeclarationError> {
        let id = declaration.scope_id;
        if declaration.scope.as_ref().is_none_or(|scope| scope.kind.is_empty()) {
            return Err(DeclarationError::NoKind(id));
        }
        let is_used = self.scopes.as_ref().is_some_and(|scopes| scopes.contains_key(&id));
        if is_used || id < self.first_scope_id {
            return Err(DeclarationError::NumberUsed(id));
        }
        Ok(())
    }

    fn insert(&mut self, declaration: ScopeDeclaration, is_first: bool, memory: &mut QueueMemory) {
        let id = declaration.scope_id;
        let declaration = Arc::new(declaration);
        self.numbers.scope = self.numbers.scope.max(id);
        let scope = SenderScope {
            declaration: declaration.clone(),
            is_declared: is_first,
            added: (!is_first).then_some(AddedIn::Queue),
            leaves_after: None,
            is_begun: false,
            reader: None,
            list: None,
            has_problem: None,
            left_out: None,
            all_bodies: false,
            objects: 0,
        };
        self.queue.keep(&scope.key(), memory);
        if !is_first {
            self.queue.added(declaration, memory);
        }
        self.scopes.get_or_insert_default().insert(id, scope);
    }

    /// Declares a scope again with another shape or filter. It restarts once the hub has answered for it.
    ///
    /// # Errors
    ///
    /// If the number belongs to no scope, or to one of another kind or namespace.
    pub fn redeclare_scope(
        &mut self,
        declaration: ScopeDeclaration,
        memory: &mut QueueMemory,
    ) -> Result<Option<ReaderCommand>, DeclarationError> {
        let id = declaration.scope_id;
        let key = scope_key(&declaration);
        let scope = self.scope_mut(id).filter(|scope| scope.leaves_after.is_none());
        let scope = scope.filter(|scope| Some(scope.key()) == key).ok_or(DeclarationError::OtherScope(id))?;
        let declaration = Arc::new(declaration);
        scope.declaration = declaration.clone();
        scope.added = Some(AddedIn::Queue);
        scope.list = None;
        let reader = scope.reader.take();
        self.queue.forget(id, memory);
        self.queue.added(declaration, memory);
        Ok(reader.map(|reader| {
            self.readers.remove(&reader);
            ReaderCommand::Stop { reader }
        }))
    }

    /// Removes a scope, and its rows unless another scope is declared for the same kind and namespace.
    pub fn remove_scope(&mut self, scope_id: u32, memory: &mut QueueMemory) -> Option<ReaderCommand> {
        let (acked, head) = (self.acked, self.head);
        let scopes = self.scopes.as_mut()?;
        let scope = scopes.get_mut(&scope_id).filter(|scope| scope.leaves_after.is_none())?;
        let (key, reader) = (scope.key(), scope.reader.take());
        scope.leaves_after = Some(head);
        scope.list = None;
        if head == acked {
            scopes.remove(&scope_id);
        }
        let mut others = scopes.values().filter(|other| other.leaves_after.is_none());
        let is_replaced = others.any(|other| other.key() == key);
        self.queue.forget(scope_id, memory);
        if !is_replaced {
            self.queue.removed(key, memory);
        }
        let reader = reader?;
        self.readers.remove(&reader);
        Some(ReaderCommand::Stop { reader })
    }

    /// Starts a scope at the hub's checkpoint, unless it is started. An added scope needs an answer that covers its
    /// batch.
    pub(super) fn start(
        &mut self,
        scope_id: u32,
        at: &ScopeCheckpoint,
        committed_seq: u64,
    ) -> Option<ReaderCommand> {
        let max_age = self.max_resumable_age;
        let scope = self.scope_mut(scope_id)?;
        let is_answered = match scope.added {
            None => true,
            Some(AddedIn::Queue) => false,
            Some(AddedIn::Batch(seq)) => seq <= committed_seq,
        };
        if scope.reader.is_some() || scope.leaves_after.is_some() || !is_answered {
            return None;
        }
        let is_fresh = !at.rv.is_empty() && Duration::from_millis(at.age_ms) < max_age;
        let is_resumable = is_fresh && !at.resend && !at.must_list && scope.left_out.is_none();
        if !is_resumable {
            return Some(self.list(scope_id, at.objects, at.resend, at.rv.clone()));
        }
        scope.objects = at.objects;
        let reader = self.new_reader(scope_id);
        self.queue.watch_from(scope_id, &at.rv);
        Some(ReaderCommand::Watch { reader, scope_id, resource_version: at.rv.clone() })
    }

    /// Gives a scope a new reader that lists.
    pub(super) fn list(
        &mut self,
        scope_id: u32,
        objects: u64,
        all_bodies: bool,
        known_version: String,
    ) -> ReaderCommand {
        let reader = self.new_reader(scope_id);
        if let Some(scope) = self.scope_mut(scope_id) {
            scope.all_bodies = all_bodies;
            scope.objects = objects;
        }
        ReaderCommand::List { reader, scope_id, objects, all_bodies, known_version }
    }

    fn new_reader(&mut self, scope_id: u32) -> ReaderId {
        self.numbers.reader += 1;
        let reader = ReaderId(self.numbers.reader);
        let former = self.scope_mut(scope_id).and_then(|scope| {
            scope.list = None;
            scope.reader.replace(reader)
        });
        if let Some(former) = former {
            self.readers.remove(&former);
        }
        self.readers.insert(reader, scope_id);
        reader
    }

    pub(super) fn stop_readers(&mut self) -> Vec<ReaderCommand> {
        for scope in self.scopes.iter_mut().flat_map(BTreeMap::values_mut) {
            scope.reader = None;
            scope.list = None;
            scope.all_bodies = false;
        }
        let had_readers = !self.readers.is_empty();
        self.readers.clear();
        if had_readers { vec![ReaderCommand::StopAll] } else { Vec::new() }
    }

    /// Queues an event of an object. Events of former readers are dropped.
    ///
    /// # Errors
    ///
    /// Returns the event if there is no room; it counts as unread. The reader then closes its watch, and reopens it
    /// after the last accepted event once half of the queue is free; a list waits.
    pub fn event(
        &mut self,
        reader: ReaderId,
        mut event: Event,
        now: Instant,
        memory: &mut QueueMemory,
    ) -> Result<(), Box<Event>> {
        let Some(scope_id) = self.readers.get(&reader) else { return Ok(()) };
        event.scope_id = *scope_id;
        self.queue.event(event, now, memory)
    }

    /// Records that the scope is read up to this version.
    pub fn bookmark(&mut self, reader: ReaderId, resource_version: String) {
        if let Some(scope_id) = self.readers.get(&reader) {
            self.queue.bookmark(*scope_id, resource_version);
        }
    }

    /// Version up to which a scope is read, where its watch is reopened. `None` during a list.
    pub fn last_read(&self, reader: ReaderId) -> Option<&str> {
        self.queue.last_read(*self.readers.get(&reader)?)
    }

    /// Starts a list. Its basis follows as [`ReaderCommand::Basis`].
    pub fn sync_start(&mut self, reader: ReaderId, sync_key: String, memory: &mut QueueMemory) {
        let Some(scope_id) = self.readers.get(&reader).copied() else { return };
        if let Some(scope) = self.scope_mut(scope_id) {
            let basis = Some(ScopeBasis::default());
            scope.list = Some(ListAttempt { sync_key: sync_key.clone(), is_sent: false, basis });
        }
        self.queue.sync_start(SyncStart { scope_id, sync_key }, memory);
    }

    /// Completes a list; the scope is then watched from its version on. Only the newest list of a scope counts.
    pub fn synced(&mut self, reader: ReaderId, synced: Synced, memory: &mut QueueMemory) {
        let Some(scope_id) = self.readers.get(&reader).copied() else { return };
        let objects = synced.kept.saturating_add(synced.sent);
        if self.queue.synced(Synced { scope_id, ..synced }, memory)
            && let Some(scope) = self.scope_mut(scope_id)
        {
            scope.list = None;
            scope.all_bodies = false;
            scope.objects = objects;
        }
    }

    /// Records why a scope is not read; `None` withdraws the reason, and reports the scope's left-out objects.
    pub fn problem(&mut self, scope_id: u32, problem: Option<Failure>, memory: &mut QueueMemory) {
        let Some(scope) = self.scope_mut(scope_id) else { return };
        let left_out = scope.left_out.as_deref().filter(|_| problem.is_none()).cloned();
        let failure = problem.or_else(|| {
            let message = left_out_objects::text(left_out.as_ref()?)?;
            Some(Failure { class: Class::Internal.into(), message, ..Failure::default() })
        });
        scope.has_problem = Some(failure.is_some());
        let problem = ScopeProblem { scope: scope.declaration.scope.clone(), failure, left_out };
        self.note_problem(scope_id, problem, memory);
    }

    /// Records the objects of a scope that are left out.
    pub fn left_out_objects(&mut self, reader: ReaderId, objects: LeftOutObjects, memory: &mut QueueMemory) {
        let Some(scope_id) = self.readers.get(&reader).copied() else { return };
        let said = self.problems.get(&scope_id);
        let is_unread = said.is_some_and(|said| said.failure.is_some() && said.left_out.is_none());
        let Some(scope) = self.scope_mut(scope_id) else { return };
        let objects = (objects.count > 0).then(|| Box::new(objects));
        if scope.left_out != objects {
            scope.left_out = objects;
            if !is_unread {
                self.problem(scope_id, None, memory);
            }
        }
    }

    /// Records the kinds, each as `Kind.group`, that a setting requests but that are not watched, with the reason.
    pub fn left_out(&mut self, kinds: BTreeMap<String, ScopeProblem>, memory: &mut QueueMemory) {
        let is_known = |kind: &String| kinds.contains_key(kind);
        let gone: Vec<_> = self.left_out.keys().filter(|kind| !is_known(kind)).cloned().collect();
        for id in gone.iter().filter_map(|kind| self.left_out.remove(kind)).collect::<Vec<_>>() {
            if let Some(problem) = self.problems.get(&id) {
                let problem = ScopeProblem { scope: problem.scope.clone(), ..ScopeProblem::default() };
                self.note_problem(id, problem, memory);
            }
        }
        for (kind, problem) in kinds {
            let next = self.numbers.scope.saturating_add(1);
            let id = *self.left_out.entry(kind).or_insert(next);
            self.numbers.scope = self.numbers.scope.max(id);
            if self.problems.get(&id) != Some(&problem) {
                self.note_problem(id, problem, memory);
            }
        }
    }

    fn note_problem(&mut self, id: u32, problem: ScopeProblem, memory: &mut QueueMemory) {
        if problem.failure.is_some() {
            self.problems.insert(id, problem.clone());
        } else {
            self.problems.remove(&id);
        }
        self.queue.problem(id, problem, memory);
    }

    /// Records that the scope is read, and withdraws the problem of a former reader or process. During a list, the
    /// problem of another process stays until the list is complete: it may be about left-out objects.
    pub fn is_read(&mut self, reader: ReaderId, memory: &mut QueueMemory) {
        let Some(scope_id) = self.readers.get(&reader).copied() else { return };
        let is_taken_back = self.scope_mut(scope_id).is_some_and(|scope| match scope.has_problem {
            None => scope.list.is_none(),
            Some(has_problem) => has_problem,
        });
        if is_taken_back {
            self.problem(scope_id, None, memory);
        }
    }

    /// Whether readers of the account close their watches, because an event was refused.
    pub fn is_full(&self, memory: &QueueMemory) -> bool {
        self.queue.is_full(memory)
    }

    /// Whether readers of the account reopen their watches.
    pub fn is_half_free(&self, memory: &QueueMemory) -> bool {
        self.queue.is_half_free(memory)
    }
}
