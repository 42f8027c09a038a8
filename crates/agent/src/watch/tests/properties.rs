//! A random history of a cluster drives the machine: whatever is cut, compacted, refused or restarted on the way, the
//! receiver has the cluster's objects at the end, and at each checkpoint those of its version.

use std::collections::{BTreeMap, VecDeque};

use proptest::prelude::*;

use super::cluster::Cluster;
use super::*;

/// What happens next.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// An object is created, or changed.
    Put(u8),
    /// An object is made anew under its name.
    Remake(u8),
    Delete(u8),
    /// The cluster forgets its history.
    Compact,
    /// The driver does what the machine asks for, so many times.
    Run(u8),
    /// The response breaks off.
    Cut,
    /// The next request is answered with this status.
    Refuse(u16),
    Pass(u16),
    Pause,
    Unpause,
    Relist,
    /// The agent's process ends, and another one goes on at the receiver's checkpoint.
    Restart,
    /// etcd goes back to an earlier state, and uses its versions again.
    Restore,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0..6u8).prop_map(Step::Put),
        2 => (0..6u8).prop_map(Step::Remake),
        4 => (0..6u8).prop_map(Step::Delete),
        1 => Just(Step::Compact),
        12 => (1..6u8).prop_map(Step::Run),
        3 => Just(Step::Cut),
        2 => prop::sample::select(vec![401, 403, 404, 410, 429, 500, 503]).prop_map(Step::Refuse),
        3 => (0..400u16).prop_map(Step::Pass),
        3 => (0..4u16).prop_map(Step::Pass),
        1 => Just(Step::Pause),
        1 => Just(Step::Unpause),
        1 => Just(Step::Relist),
        2 => Just(Step::Restart),
    ]
}

/// A response that arrives.
#[derive(Clone, Debug)]
enum Response {
    Page {
        items: VecDeque<ObjectIdentity>,
        version: u64,
        token: Option<String>,
    },
    /// A watch has sent what happened up to here.
    Watch {
        sent: u64,
    },
}

/// The receiver: what SQL has.
#[derive(Clone, Debug, Default, PartialEq)]
struct Receiver {
    rows: BTreeMap<String, ObjectIdentity>,
    /// `None`: the scope must be listed.
    checkpoint: Option<String>,
    sync_key: Option<String>,
}

struct World {
    cluster: Cluster,
    receiver: Receiver,
    machine: ScopeWatch,
    now: Instant,
    /// The response to the attempt of this number.
    response: Option<(u64, Response)>,
    refusal: Option<u16>,
    syncs: u32,
    seeds: u64,
    /// The cluster's earlier states, of which one is restored.
    backups: Vec<Cluster>,
    is_restored: bool,
}

fn timing() -> ScopeTiming {
    ScopeTiming { max_resumable_age: 60 * MINUTE, audit_interval: 60 * MINUTE }
}

impl World {
    fn new() -> Self {
        let now = Instant::now();
        Self {
            cluster: Cluster { version: 1000, ..Cluster::default() },
            receiver: Receiver::default(),
            machine: ScopeWatch::new(timing(), ScopeStart::default(), 0, now),
            now,
            response: None,
            refusal: None,
            syncs: 0,
            seeds: 0,
            backups: Vec::new(),
            is_restored: false,
        }
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Put(index) => self.cluster.put(index, false),
            Step::Remake(index) => {
                self.cluster.delete(index);
                self.cluster.put(index, true);
            }
            Step::Delete(index) => self.cluster.delete(index),
            Step::Compact => {
                self.backups.push(self.cluster.clone());
                self.cluster.compact();
            }
            Step::Run(steps) => (0..steps).for_each(|_| self.drive()),
            Step::Cut => self.cut(),
            Step::Refuse(code) => self.refusal = Some(code),
            Step::Pass(seconds) => self.pass(Duration::from_secs(seconds.into())),
            Step::Pause => self.machine.pause(self.now),
            Step::Unpause => self.machine.unpause(self.now),
            Step::Relist => self.machine.relist(false),
            Step::Restart => self.restart(),
            Step::Restore => self.restore(),
        }
    }

    fn restart(&mut self) {
        let resource_version = self.receiver.checkpoint.clone().unwrap_or_default();
        let start = ScopeStart { resource_version, ..ScopeStart::default() };
        self.seeds += 1;
        self.machine = ScopeWatch::new(timing(), start, self.seeds, self.now);
        self.response = None;
    }

    fn restore(&mut self) {
        if let Some(backup) = self.backups.first() {
            let uids = self.cluster.uids;
            self.cluster = Cluster { uids, snapshots: BTreeMap::new(), ..backup.clone() };
            self.is_restored = true;
            // The API servers start anew.
            self.cut();
        }
    }

    fn cut(&mut self) {
        match self.response.take() {
            Some((_, Response::Watch { .. })) => self.machine.watch_ended(self.now),
            Some((_, Response::Page { .. })) => {
                self.machine.failed(&RequestFailure::stalled(SECOND), self.now);
            }
            None => {}
        }
    }

    fn pass(&mut self, time: Duration) {
        let until = self.now + time;
        while let Some(due) = self.machine.next_tick().filter(|due| *due <= until) {
            self.now = self.now.max(due);
            if let Some(version) = self.machine.tick(self.now) {
                self.checkpoint(version);
            }
            (0..20).for_each(|_| self.drive());
        }
        self.now = until;
    }

    fn checkpoint(&mut self, version: String) {
        assert_eq!(self.receiver.sync_key, None, "a checkpoint in a sync makes the scope look complete");
        if !self.is_restored {
            let number: u64 = version.parse().unwrap();
            let objects = self.cluster.states.range(..=number).next_back().map(|(_, objects)| objects);
            assert_eq!(&self.receiver.rows, objects.unwrap_or(&BTreeMap::new()), "rows at version {number}");
        }
        self.receiver.checkpoint = Some(version);
    }

    /// Does one thing that the machine asks for.
    fn drive(&mut self) {
        let action = self.machine.action();
        let attempt = match &action {
            ScopeAction::ListPage(request) => Some(request.attempt),
            ScopeAction::Watch(request) => Some(request.attempt),
            ScopeAction::CheckVersion(attempt) => Some(*attempt),
            _ => None,
        };
        if self.response.as_ref().map(|(number, _)| *number) != attempt {
            self.response = None;
        }
        match (action, self.response.take()) {
            (ScopeAction::Wait(_) | ScopeAction::AwaitBasis, _) => {}
            (ScopeAction::BeginSync, _) => self.begin_sync(),
            (ScopeAction::ListPage(request), None) => self.list(&request),
            (ScopeAction::Watch(request), None) => self.watch(&request),
            (ScopeAction::CheckVersion(_), None) => {
                if !self.is_refused() {
                    self.machine.version_checked(&self.cluster.version.to_string(), self.now);
                }
            }
            (_, Some((number, response))) => self.receive(number, response),
        }
    }

    fn begin_sync(&mut self) {
        self.syncs += 1;
        let key = format!("sync-{}", self.syncs);
        assert!(self.machine.begin_sync(key.clone(), self.now));
        self.receiver.checkpoint = None;
        self.receiver.sync_key = Some(key.clone());
        for row in self.receiver.rows.values() {
            let ObjectIdentity { namespace, name, uid, resource_version } = row;
            self.machine.basis_row(&key, namespace, name, uid, resource_version).unwrap();
        }
        self.machine.basis_end(&key, self.now);
    }

    /// Answers with a status, if the next request is to be refused.
    fn is_refused(&mut self) -> bool {
        let Some(code) = self.refusal.take() else { return false };
        let status = ClusterStatus { code, ..ClusterStatus::default() };
        self.machine.failed(&status.into(), self.now);
        true
    }

    fn list(&mut self, request: &PageRequest) {
        if self.is_refused() {
            return;
        }
        // Three items are a page of the smallest limit.
        let limit = request.limit.map_or(usize::MAX, |limit| if limit == 500 { 3 } else { 5 });
        let (version, offset) = match &request.continue_token {
            Some(token) => {
                let (version, offset) = token.split_once('/').unwrap();
                (version.parse().unwrap(), offset.parse().unwrap())
            }
            None => {
                let snapshot = self.cluster.objects.values().cloned().collect();
                self.cluster.snapshots.insert(self.cluster.version, snapshot);
                (self.cluster.version, 0)
            }
        };
        let Some(snapshot) = self.cluster.snapshots.get(&version) else {
            let status = ClusterStatus { code: 410, ..ClusterStatus::default() };
            self.machine.failed(&status.into(), self.now);
            return;
        };
        let items: VecDeque<_> = snapshot.iter().skip(offset).take(limit).cloned().collect();
        let next = offset + items.len();
        let token = (next < snapshot.len()).then(|| format!("{version}/{next}"));
        self.response = Some((request.attempt, Response::Page { items, version, token }));
    }

    fn watch(&mut self, request: &WatchRequest) {
        if self.is_refused() {
            return;
        }
        let sent: u64 = request.resource_version.parse().unwrap();
        if sent < self.cluster.compacted {
            let status = ClusterStatus { code: 410, ..ClusterStatus::default() };
            self.machine.failed(&status.into(), self.now);
            return;
        }
        self.machine.watch_opened(self.now);
        self.response = Some((request.attempt, Response::Watch { sent }));
    }

    fn receive(&mut self, attempt: u64, response: Response) {
        match response {
            Response::Page { mut items, version, token } => match items.pop_front() {
                Some(item) => {
                    if self.machine.item(&item, None, self.now) == ItemStep::Upsert {
                        self.receiver.rows.insert(item.name.clone(), item);
                    }
                    self.response = Some((attempt, Response::Page { items, version, token }));
                }
                None => self.page_end(version, token),
            },
            Response::Watch { sent } if sent < self.cluster.compacted => {
                // A watch that is too slow ends with an error.
                let status = ClusterStatus { code: 410, ..ClusterStatus::default() };
                self.machine.failed(&status.into(), self.now);
            }
            Response::Watch { sent } => {
                let sent = self.event(sent);
                self.response = Some((attempt, Response::Watch { sent }));
            }
        }
    }

    fn page_end(&mut self, version: u64, continue_token: Option<String>) {
        let resource_version = version.to_string();
        let page = ListPage { resource_version, continue_token, ..ListPage::default() };
        if let PageStep::Complete(end) = self.machine.page_end(page, self.now) {
            for row in end.leftover {
                self.receiver.rows.remove(&row.name);
            }
            assert_eq!(self.receiver.sync_key.take(), Some(end.synced.sync_key));
            assert_eq!(end.synced.listed, end.synced.kept + end.synced.sent);
            self.checkpoint(end.synced.rv);
        }
    }

    /// Sends the next event after a version, or a bookmark. Returns the version that was sent.
    fn event(&mut self, sent: u64) -> u64 {
        let Some(entry) = self.cluster.history.iter().find(|entry| entry.version > sent).cloned() else {
            let version = self.cluster.version;
            if version < sent {
                // The version is yet to come again: the server waits in silence.
                return sent;
            }
            if let Some(version) = self.machine.bookmark(&version.to_string(), self.now) {
                self.checkpoint(version);
            }
            return version;
        };
        let (name, version) = (entry.object.name.clone(), entry.version);
        match self.machine.object(entry.change, &entry.object, None, self.now) {
            ObjectStep::Upsert => {
                self.receiver.rows.insert(name, entry.object);
                self.checkpoint(version.to_string());
            }
            ObjectStep::Delete => {
                self.receiver.rows.remove(&name);
                self.checkpoint(version.to_string());
            }
            ObjectStep::Skip => {}
        }
        version
    }

    /// Lets everything calm down.
    fn settle(&mut self) {
        self.refusal = None;
        self.machine.unpause(self.now);
        for _ in 0..400 {
            self.drive();
            if let ScopeAction::Wait(_) = self.machine.action() {
                self.pass(SECOND);
            }
        }
    }

    fn assert_equal(&self) {
        assert!(matches!(self.machine.action(), ScopeAction::Watch(_)), "{:?}", self.machine.action());
        assert_eq!(self.receiver.rows, self.cluster.objects);
        assert_eq!(self.machine.watched_version(), Some(self.cluster.version.to_string().as_str()));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1024, ..ProptestConfig::default() })]

    #[test]
    fn rows_are_the_objects_of_the_cluster_at_the_end(steps in prop::collection::vec(step(), 0..150)) {
        let mut world = World::new();
        for step in steps {
            world.take(step);
        }
        world.settle();
        world.assert_equal();
    }

    #[test]
    fn rows_are_the_objects_of_a_restored_cluster_once_the_silence_is_noticed(
        steps in prop::collection::vec(prop_oneof![40 => step(), 1 => Just(Step::Restore)], 0..100),
    ) {
        let mut world = World::new();
        for step in steps {
            world.take(step);
        }
        world.settle();
        // Silence is noticed within minutes, and what a restored cluster does again within an audit.
        world.pass(80 * MINUTE);
        world.settle();
        prop_assert!(matches!(world.machine.action(), ScopeAction::Watch(_)));
        let names = |rows: &BTreeMap<String, ObjectIdentity>| -> Vec<_> {
            rows.values().map(|object| (object.name.clone(), object.uid.clone())).collect()
        };
        prop_assert_eq!(names(&world.receiver.rows), names(&world.cluster.objects));
    }
}
