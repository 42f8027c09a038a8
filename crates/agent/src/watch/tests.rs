//! What the tests of a scope's machine share.
#![expect(clippy::panic, clippy::unwrap_used, reason = "this is how a test fails")]

use std::time::Instant;

use super::*;
use crate::scrub::{ClusterStatus, ListPage, ObjectIdentity, WatchEventType};

mod basis;
mod cluster;
mod failures;
mod listing;
mod properties;
mod requests;
mod watching;

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

/// A machine with a clock.
struct Scope {
    machine: ScopeWatch,
    start: Instant,
    now: Instant,
    syncs: u32,
}

impl Scope {
    fn new(start: ScopeStart) -> Self {
        let timing = ScopeTiming { max_resumable_age: 5 * MINUTE, audit_interval: DEFAULT_AUDIT_INTERVAL };
        let now = Instant::now();
        Self { machine: ScopeWatch::new(timing, start, 1, now), start: now, now, syncs: 0 }
    }

    fn unknown() -> Self {
        Self::new(ScopeStart::default())
    }

    /// A scope that begins at version 100, which the hub has.
    fn resuming() -> Self {
        Self::new(ScopeStart { resource_version: "100".to_owned(), ..ScopeStart::default() })
    }

    /// A scope whose watch, resumed at version 100, has opened.
    fn watching() -> Self {
        let mut scope = Self::resuming();
        scope.check_version("100");
        scope.watch_version("100");
        scope.machine.watch_opened(scope.now);
        scope
    }

    /// Lets time pass without a tick.
    fn sleep(&mut self, time: Duration) {
        self.now += time;
    }

    /// Lets time pass in the steps that the machine asks for. Returns the checkpoints that were due.
    fn pass(&mut self, time: Duration) -> Vec<String> {
        let until = self.now + time;
        let mut checkpoints = Vec::new();
        while let Some(due) = self.machine.next_tick().filter(|due| *due <= until) {
            self.now = self.now.max(due);
            checkpoints.extend(self.machine.tick(self.now));
        }
        self.now = until;
        checkpoints
    }

    fn begin_sync(&mut self) -> String {
        assert_eq!(self.machine.action(), ScopeAction::BeginSync);
        self.syncs += 1;
        let key = format!("sync-{}", self.syncs);
        assert!(self.machine.begin_sync(key.clone(), self.now));
        assert_eq!(self.machine.action(), ScopeAction::AwaitBasis);
        key
    }

    /// Begins a list whose basis has these rows.
    fn begin_list(&mut self, basis: &[ObjectIdentity]) -> String {
        let key = self.begin_sync();
        for row in basis {
            let ObjectIdentity { namespace, name, uid, resource_version } = row;
            self.machine.basis_row(&key, namespace, name, uid, resource_version).unwrap();
        }
        self.machine.basis_end(&key, self.now);
        key
    }

    fn page_request(&self) -> PageRequest {
        match self.machine.action() {
            ScopeAction::ListPage(request) => request,
            other => panic!("no page: {other:?}"),
        }
    }

    fn watch_request(&self) -> WatchRequest {
        match self.machine.action() {
            ScopeAction::Watch(request) => request,
            other => panic!("no watch: {other:?}"),
        }
    }

    /// Answers that the cluster is at this version, and is to be watched from the version that was known.
    #[track_caller]
    fn check_version(&mut self, version: &str) {
        assert!(matches!(self.machine.action(), ScopeAction::CheckVersion(_)), "{:?}", self.machine.action());
        self.machine.version_checked(version, self.now);
    }

    #[track_caller]
    fn watch_version(&self, version: &str) {
        assert_eq!(self.watch_request().resource_version, version);
    }

    fn page_end(&mut self, version: &str, token: Option<&str>) -> PageStep {
        let page = ListPage {
            resource_version: version.to_owned(),
            continue_token: token.map(str::to_owned),
            ..ListPage::default()
        };
        self.machine.page_end(page, self.now)
    }

    fn complete(&mut self, version: &str) -> SyncEnd {
        match self.page_end(version, None) {
            PageStep::Complete(end) => *end,
            other => panic!("not complete: {other:?}"),
        }
    }

    fn item(&mut self, item: &ObjectIdentity) -> ItemStep {
        self.machine.item(item, None, self.now)
    }

    fn modified(&mut self, name: &str, version: &str) -> ObjectStep {
        self.machine.object(WatchEventType::Modified, &object(name, version), None, self.now)
    }

    fn status(&mut self, code: u16) {
        let status = ClusterStatus { code, ..ClusterStatus::default() };
        self.machine.failed(&status.into(), self.now);
    }

    fn broken(&mut self) {
        self.machine.failed(&RequestFailure::stalled(SECOND), self.now);
    }

    /// Time until the machine stops waiting.
    fn waits(&self, reason: WaitReason) -> Duration {
        assert_eq!(self.machine.action(), ScopeAction::Wait(reason));
        self.machine.next_tick().unwrap() - self.now
    }
}

fn object(name: &str, version: &str) -> ObjectIdentity {
    ObjectIdentity {
        namespace: "shop".to_owned(),
        name: name.to_owned(),
        uid: format!("uid-{name}"),
        resource_version: version.to_owned(),
    }
}
