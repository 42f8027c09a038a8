//! The readers of one account whose objects are streamed: the choice of its scopes, and a reader for each.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::channel::mpsc;
use futures::future::OptionFuture;
use futures::{FutureExt as _, StreamExt as _};
use tokio::task::{AbortHandle, Id, JoinError, JoinSet};
use tokio::time::{Instant, sleep_until};
use tokio_util::task::TaskTracker;
use tracing::Instrument as _;

use crate::account_runtimes::caching_supervisor::{LostAccount, ReadingParts};
use crate::account_runtimes::look_schedule::{AfterFailedLook, LookSchedule};
use crate::account_runtimes::reader_sink::{LookRequests, ScopeSink};
use crate::account_runtimes::synthetic_reader;
use crate::account_table;
use crate::activation::{Activator, DefinitionOrigin, DiscoveryTags, ServedKinds};
use crate::caching::{BasisError, ReaderCommand, ReaderId, ScopeBasis, SharedStream};
use crate::cluster::ClusterClient;
use crate::scrub::{ClusterScopedKinds, ObjectRules, Scrubber, splice_version};
use crate::watch::{ReaderContext, ReaderInput, ScopeReader, ScopeStart, ScopeTiming, ScopeWatch};
use crate::watch_registry::RegisteredWatch;
use crate::wire_failure::after_send;
use kubesvc_core::cache::fingerprints;
use kubesvc_core::cache::left_out::{LeftOut, Why};
use kubesvc_core::cache::object_filter::ObjectFilter;
use kubesvc_core::cache::rules::{AccountRules, OperatorRules};
use kubesvc_core::cache::selection::{SelectedScope, select, selects_nothing};
use kubesvc_core::cache::synthetic::{SyntheticObject, SyntheticScope, synthetic_objects};
use kubesvc_core::wire::common::failure::Class;
use kubesvc_core::wire::common::{Failure, Scope};
use kubesvc_core::wire::events::{ScopeDeclaration, ScopeProblem};
use kubesvc_runtime::telemetry::errors::chain;

/// Time without any scope after which the hub is told why, so that another agent may read the account.
const UNREAD_TIMEOUT: Duration = Duration::from_secs(60);
/// What the hub is told then, unless a look has failed.
const HANGS: &str = "the cluster has not said what it serves";
/// Maximum number of inputs that wait for a reader. It has one basis at a time, and is told little else.
const MAX_READER_INPUTS: usize = 8;
/// Maximum number of kinds that the hub is told are left out.
const MAX_KINDS_LEFT_OUT: usize = 1_000;

/// Input of the readers of an account.
#[derive(Debug)]
pub(super) enum ReadersInput {
    /// A command for its readers.
    Command(ReaderCommand),
    /// Its definition or its rules are others now.
    Changed(account_table::CachedAccount),
}

/// Reads the objects of one account under one fence, until it is dropped.
#[derive(Debug)]
pub(super) struct ScopeReaders {
    pub(super) account: account_table::CachedAccount,
    /// Connects to the account's cluster, and where its definition comes from.
    pub(super) activator: (Activator, DefinitionOrigin),
    pub(super) shared: Arc<SharedStream>,
    pub(super) context: ReaderContext,
    pub(super) inputs: mpsc::Receiver<ReadersInput>,
    pub(super) parts: ReadingParts,
    /// All that reads the account.
    pub(super) tracker: TaskTracker,
    /// Set once the account is found lost: nothing of it is read any more.
    pub(super) is_lost: Arc<AtomicBool>,
    pub(super) state: AccountState,
}

/// What runs of an account at present.
#[derive(Debug, Default)]
pub(super) struct AccountState {
    /// `None` until the cluster was first reached; no scope is declared before.
    client: Option<ClusterClient>,
    /// Tags of what the cluster serves.
    tags: DiscoveryTags,
    /// Declared scopes by their numbers.
    scopes: BTreeMap<u32, WatchedScope>,
    is_declared: bool,
    cluster_scoped_kinds: Arc<ClusterScopedKinds>,
    readers: HashMap<ReaderId, RunningReader>,
    running: JoinSet<()>,
    look: Arc<LookRequests>,
}

#[derive(Clone, Debug, PartialEq)]
struct WatchedScope {
    selected: SelectedScope,
    shape: String,
    filter: String,
    /// Objects that follow from the account's settings, in place of what would be read.
    synthetic: Option<Arc<[SyntheticObject]>>,
}

#[derive(Debug)]
struct RunningReader {
    scope_id: u32,
    inputs: mpsc::Sender<ReaderInput>,
    task: AbortHandle,
}

impl Drop for RunningReader {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A cluster, as it was looked at.
struct SeenCluster {
    client: ClusterClient,
    /// Whether the client is another one than before.
    is_new: bool,
    /// What it serves; `None` if that is the same as before.
    served: Option<ServedKinds>,
}

impl WatchedScope {
    fn declaration(&self, scope_id: u32) -> ScopeDeclaration {
        ScopeDeclaration {
            scope_id,
            scope: Some(self.selected.scope.clone()),
            shape: self.shape.clone(),
            filter: self.filter.clone(),
        }
    }
}

impl ScopeReaders {
    /// Reads the account, for ever. Inputs are taken at any time, while the cluster is being asked too.
    pub(super) async fn run(mut self) {
        let begun = Instant::now();
        let mut schedule = LookSchedule::new(self.reads_objects(), begun.into_std());
        self.look_if_refused(&mut schedule);
        self.release_idle();
        let look = Arc::clone(&self.state.look);
        let mut looking = OptionFuture::from(None);
        let mut unread = std::pin::pin!(sleep_until(begun + UNREAD_TIMEOUT));
        let (mut is_late, mut last_failure) = (false, None);
        loop {
            tokio::select! {
                input = self.inputs.next() => match input {
                    Some(ReadersInput::Command(command)) => self.execute(command),
                    Some(ReadersInput::Changed(account)) => {
                        self.account = account;
                        looking = OptionFuture::from(None);
                        // Over new connections, so that what is served is applied anew, whatever that is.
                        schedule.changed(self.reads_objects(), now());
                        self.look_if_refused(&mut schedule);
                        self.release_idle();
                    }
                    None => return,
                },
                Some(ended) = self.state.running.join_next_with_id() => self.ended(ended),
                must_connect = look.asked() => schedule.asked(must_connect, now()),
                () = &mut unread, if !is_late => {
                    is_late = true;
                    let why = last_failure.take();
                    // A cluster that hangs holds the first look up for longer.
                    self.tell_unread(why.unwrap_or_else(|| after_send(Class::Timeout, HANGS)));
                }
                Some(()) = OptionFuture::from(schedule.due_at().map(|due| sleep_until(due.into()))) => {
                    let must_connect = schedule.begins();
                    looking = OptionFuture::from(Some(self.look(must_connect).boxed()));
                }
                Some(seen) = &mut looking => {
                    looking = OptionFuture::from(None);
                    match seen {
                        Ok(seen) => {
                            schedule.succeeded(seen.is_new, now());
                            if seen.is_new {
                                self.judge_credential(None);
                            }
                            self.saw(seen);
                            self.release_idle();
                        }
                        Err(failure) => {
                            let class = failure.class().as_str_name();
                            tracing::warn!(class, "the objects of the account cannot be read: {}", failure.message);
                            match schedule.failed(&failure, now()) {
                                AfterFailedLook::Lose => return self.lose(failure).await,
                                AfterFailedLook::TellRefused => self.judge_credential(Some(failure.clone())),
                                AfterFailedLook::GoOn => {}
                            }
                            if is_late {
                                self.tell_unread(failure);
                            } else {
                                last_failure = Some(failure);
                            }
                        }
                    }
                }
            }
        }
    }

    /// Asks for a look at a credential that was refused, and may be accepted by now.
    fn look_if_refused(&self, schedule: &mut LookSchedule) {
        if self.parts.credentials.is_refused(&self.account.account.uid) {
            schedule.asked(true, now());
        }
    }

    fn reads_objects(&self) -> bool {
        let (operator, account) = self.rules();
        !selects_nothing(&operator, &account)
    }

    fn rules(&self) -> (OperatorRules, AccountRules) {
        let rules = &self.account.rules;
        let (operator, _) = OperatorRules::from_wire(rules);
        let (account, _) = AccountRules::from_wire(self.account.definition.spec(), rules);
        (operator, account)
    }

    /// Gives up scopes and connection of an account none of whose objects are read: accounts that are only held are many.
    fn release_idle(&mut self) {
        if self.reads_objects() {
            return;
        }
        let commands = self.declare(BTreeMap::new(), &ServedKinds::default());
        self.tell_left_out(&[]);
        commands.into_iter().for_each(|command| self.execute(command));
        (self.state.client, self.state.tags) = Default::default();
    }

    /// Tells the delivery why no scope is known yet, unless some are.
    fn tell_unread(&self, failure: Failure) {
        self.shared.change(|stream, _| {
            if let Some((delivery, _)) = stream.account(&self.account.account.uid) {
                delivery.unread(failure);
            }
        });
    }

    /// Says why the cluster refuses the credential, or that it accepts it.
    fn judge_credential(&self, refused: Option<Failure>) {
        let ScopeReaders { account, parts, .. } = self;
        parts.credentials.record(&account.account.uid, &account.definition, refused);
    }

    /// Stops reading, says why, and waits to be stopped.
    async fn lose(mut self, failure: Failure) {
        self.is_lost.store(true, Ordering::Relaxed);
        self.state.readers.clear();
        let definition = Arc::clone(&self.account.definition);
        let lost = LostAccount { uid: self.account.account.uid.clone(), definition, failure };
        let losses = self.parts.losses.clone();
        let mut telling = std::pin::pin!(losses.send(lost));
        let mut is_told = false;
        loop {
            tokio::select! {
                // Fails if the agent is stopping.
                _ = &mut telling, if !is_told => is_told = true,
                // Whoever sends them must not wait.
                input = self.inputs.next() => if input.is_none() { return },
            }
        }
    }

    /// Looks at what the cluster serves; over new connections, with the credential as it is now, if it must connect.
    fn look(
        &self,
        must_connect: bool,
    ) -> impl Future<Output = Result<SeenCluster, Failure>> + Send + 'static {
        let known = self.state.client.clone().filter(|_| !must_connect);
        let tags = known.as_ref().map(|_| self.state.tags.clone()).unwrap_or_default();
        let ((activator, origin), account) = (self.activator.clone(), self.account.clone());
        async move {
            let is_new = known.is_none();
            let client = match known {
                Some(client) => client,
                None => activator.connect(&account.definition, origin, &account.cluster).await?,
            };
            let served = Activator::changed_kinds(client.clone(), &tags).await?;
            Ok(SeenCluster { client, is_new, served })
        }
    }

    fn saw(&mut self, seen: SeenCluster) {
        let SeenCluster { client, is_new, served } = seen;
        if is_new {
            for reader in self.state.readers.values_mut() {
                // One without room for it fails with the former client, and asks for another look.
                let _ = reader.inputs.try_send(ReaderInput::Client(client.clone()));
            }
            self.state.client = Some(client);
        }
        if let Some(served) = served {
            self.apply(&served);
            self.state.tags = served.tags;
        }
    }

    fn apply(&mut self, served: &ServedKinds) {
        let kinds = &served.kinds;
        let rules = &self.account.rules;
        let (operator, account) = self.rules();
        let mut selection = select(kinds, &operator, &account);
        selection
            .left_out
            .retain(|left_out| left_out.why != Why::OmitsNothing || !served.may_have(&left_out.kind));
        if !self.state.is_declared {
            for left_out in selection.left_out.iter().filter(|left_out| !left_out.is_expected()) {
                let what = if left_out.why == Why::OmitsNothing { "not omitted" } else { "not cached" };
                tracing::info!("{what}: {left_out}");
            }
        }
        let is_unanswered = |group: &str| served.unanswered.iter().any(|(of, _)| of == group);
        let known = self.state.cluster_scoped_kinds.of_groups(is_unanswered);
        let cluster_scoped = kinds.iter().filter(|kind| !kind.namespaced);
        let cluster_scoped = cluster_scoped.map(|kind| (kind.group.clone(), kind.kind.clone()));
        self.state.cluster_scoped_kinds.replace(cluster_scoped.chain(known));
        let shape = |scope: &Scope| {
            let version = splice_version(&scope.group, &scope.kind);
            fingerprints::shape(scope, version, &rules.meta_keys, &rules.mapping)
        };
        let wanted = selection.scopes.into_iter().map(|selected| {
            let shape = shape(&selected.scope);
            let filter = ObjectFilter::of(&account, &selected).digest();
            (selected.key().to_string(), WatchedScope { selected, shape, filter, synthetic: None })
        });
        let synthetic = synthetic_objects(kinds, &operator, &account).into_iter().map(|of| {
            let SyntheticScope { scope: selected, filter, objects } = of;
            let shape = shape(&selected.scope);
            let synthetic = Some(objects.into());
            (selected.key().to_string(), WatchedScope { selected, shape, filter, synthetic })
        });
        let commands = self.declare(wanted.chain(synthetic).collect(), served);
        // What is watched on, although nobody answers for it now, says itself why it cannot be read.
        let is_watched = |left_out: &LeftOut| {
            let (kind, group) = left_out.kind.split_once('.').unwrap_or((&left_out.kind, ""));
            let mut scopes = self.state.scopes.values().map(|scope| &scope.selected.scope);
            left_out.why == Why::NotServed
                && scopes.any(|one| {
                    one.kind.eq_ignore_ascii_case(kind) && (group.is_empty() || one.group == group)
                })
        };
        let left_out: Vec<_> = selection.left_out.into_iter().filter(|one| !is_watched(one)).collect();
        self.tell_left_out(&left_out);
        commands.into_iter().for_each(|command| self.execute(command));
    }

    /// Tells the delivery which kinds are not watched although a setting asks for them, and which names omit nothing.
    fn tell_left_out(&self, left_out: &[LeftOut]) {
        let unexpected = left_out.iter().filter(|one| !one.is_expected()).take(MAX_KINDS_LEFT_OUT);
        let kinds = unexpected.map(|one| {
            let (kind, group) = one.kind.split_once('.').unwrap_or((&one.kind, ""));
            let scope = Scope { kind: kind.to_owned(), group: group.to_owned(), ..Scope::default() };
            let failure = Some(after_send(Class::Discovery, one.reason()));
            (one.kind.clone(), ScopeProblem { scope: Some(scope), failure, left_out: None })
        });
        let kinds = kinds.collect();
        self.shared.change(|stream, _| {
            if let Some((delivery, memory)) = stream.account(&self.account.account.uid) {
                delivery.left_out(kinds, memory);
            }
        });
    }

    /// Tells the delivery which scopes have come, changed and gone. One of which it is not known whether the cluster still
    /// serves it stays as it is.
    fn declare(
        &mut self,
        mut wanted: BTreeMap<String, WatchedScope>,
        served: &ServedKinds,
    ) -> Vec<ReaderCommand> {
        let uid = &self.account.account.uid;
        let AccountState { scopes, is_declared, .. } = &mut self.state;
        self.shared.change(|stream, _| {
            let Some((delivery, memory)) = stream.account(uid) else { return Vec::new() };
            let mut commands = Vec::new();
            scopes.retain(|id, scope| match wanted.remove(&scope.selected.key().to_string()) {
                _ if served.is_unanswered(&scope.selected.scope.group, &scope.selected.scope.version) => true,
                None => {
                    commands.extend(delivery.remove_scope(*id, memory));
                    false
                }
                Some(now) => {
                    if now != *scope {
                        *scope = now;
                        match delivery.redeclare_scope(scope.declaration(*id), memory) {
                            Ok(command) => commands.extend(command),
                            Err(error) => tracing::error!("{error}"),
                        }
                    }
                    true
                }
            });
            if wanted.is_empty() && *is_declared {
                return commands;
            }
            let mut declarations = Vec::new();
            for scope in wanted.into_values() {
                let id = delivery.next_scope_id();
                declarations.push(scope.declaration(id));
                scopes.insert(id, scope);
            }
            *is_declared = true;
            if let Err(error) = delivery.declare(declarations, memory) {
                tracing::error!("{error}");
            }
            commands
        })
    }

    fn execute(&mut self, command: ReaderCommand) {
        match command {
            ReaderCommand::Watch { reader, scope_id, resource_version } => {
                self.start(reader, scope_id, ScopeStart { resource_version, ..ScopeStart::default() }, 0);
            }
            ReaderCommand::List { reader, scope_id, objects, all_bodies, known_version } => {
                // The version is not resumed, at whatever age.
                let age = Duration::MAX;
                let start = ScopeStart { resource_version: known_version, age, resend: all_bodies };
                self.start(reader, scope_id, start, objects);
            }
            ReaderCommand::Basis { reader, sync_key, rows } => self.tell_basis(reader, sync_key, rows),
            ReaderCommand::Stop { reader } => drop(self.state.readers.remove(&reader)),
            ReaderCommand::StopAll => self.state.readers.clear(),
        }
    }

    fn tell_basis(&mut self, reader: ReaderId, sync_key: String, rows: Result<ScopeBasis, BasisError>) {
        let Some(running) = self.state.readers.get_mut(&reader) else { return };
        let failure = |error: BasisError| after_send(Class::Internal, chain(&error));
        let (rows, error) = match rows {
            Ok(rows) => (Some(rows), None),
            Err(error) => (None, Some(Err(failure(error)))),
        };
        let frames = rows.into_iter().flat_map(ScopeBasis::into_frames);
        let frames = frames.map(move |frame| frame.map_err(failure)).chain(error);
        let input = ReaderInput::Basis { sync_key, frames: Box::new(frames) };
        if running.inputs.try_send(input).is_err() {
            let scope_id = running.scope_id;
            self.restart(scope_id);
        }
    }

    /// Begins the list of a scope anew.
    fn restart(&mut self, scope_id: u32) {
        let uid = &self.account.account.uid;
        let command = self
            .shared
            .change(|stream, _| stream.account(uid).and_then(|(account, _)| account.relist(scope_id)));
        if let Some(command) = command {
            self.execute(command);
        }
    }

    fn start(&mut self, reader: ReaderId, scope_id: u32, start: ScopeStart, objects: u64) {
        self.state.readers.retain(|_, running| running.scope_id != scope_id);
        let (Some(scope), Some(client)) = (self.state.scopes.get(&scope_id), &self.state.client) else {
            // The scope is gone.
            return;
        };
        let (inputs, receiver) = mpsc::channel(MAX_READER_INPUTS);
        let sink = ScopeSink {
            shared: Arc::clone(&self.shared),
            account_uid: self.account.account.uid.as_str().into(),
            reader,
            scope_id,
            look: Arc::clone(&self.state.look),
            watch: Arc::new(self.register(reader, &scope.selected.scope)),
            metrics: self.parts.metrics.clone(),
        };
        if let Some(objects) = &scope.synthetic {
            // A scope with a checkpoint of whatever age has the same objects: they are part of its filter.
            if start.resource_version.is_empty() || start.resend {
                let reading = synthetic_reader::run(Arc::clone(objects), receiver, sink);
                let task = self.state.running.spawn(self.tracker.track_future(reading));
                self.state.readers.insert(reader, RunningReader { scope_id, inputs, task });
            }
            return;
        }
        let rules = &self.account.rules;
        let spec = self.account.definition.spec();
        let (account_rules, _) = AccountRules::from_wire(spec, rules);
        let filter = ObjectFilter::of(&account_rules, &scope.selected);
        let scope = &scope.selected.scope;
        let is_secret = scope.group.is_empty() && scope.kind == "Secret";
        let object_rules = ObjectRules {
            api_version: fingerprints::api_version(scope),
            kind: scope.kind.clone(),
            namespace: scope.namespace.clone(),
            meta_keys: rules.meta_keys.clone().into(),
            filter,
            is_secret,
            is_crd: scope.group == "apiextensions.k8s.io" && scope.kind == "CustomResourceDefinition",
            cluster_scoped_kinds: Arc::clone(&self.state.cluster_scoped_kinds),
        };
        let machine =
            ScopeWatch::new(ScopeTiming::from(&**rules), start, fastrand::u64(..), Instant::now().into_std());
        let running = ScopeReader::new(
            (client.clone(), scope),
            (Scrubber::new(object_rules), is_secret),
            (machine, objects),
            self.context.clone(),
            (receiver, sink),
        );
        let span = tracing::debug_span!("scope", kind = %scope.kind, group = %scope.group, namespace = %scope.namespace);
        let reading = self.tracker.track_future(Box::pin(running.run()).instrument(span));
        let task = self.state.running.spawn(reading);
        self.state.readers.insert(reader, RunningReader { scope_id, inputs, task });
    }

    fn register(&self, reader: ReaderId, scope: &Scope) -> RegisteredWatch {
        let account: Arc<str> = self.account.account.name.as_str().into();
        let uid: Arc<str> = self.account.account.uid.as_str().into();
        self.parts.watches.register((&account, &uid), scope, reader)
    }

    /// A reader has ended: it was stopped, or it has panicked, and its list begins anew.
    fn ended(&mut self, ended: Result<(Id, ()), JoinError>) {
        let Err(error) = ended else { return };
        if error.is_cancelled() {
            return;
        }
        let id = error.id();
        tracing::error!("the reader of a scope has panicked, and begins anew");
        let scope = self.state.readers.values().find(|running| running.task.id() == id);
        if let Some(scope_id) = scope.map(|running| running.scope_id) {
            self.restart(scope_id);
        }
    }
}

fn now() -> std::time::Instant {
    Instant::now().into_std()
}
