//! Connections that wait for a request head: their deadlines, and which one is closed first when there are too many.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};
use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::connection_limits::ClientAddress;

/// Time for which a connection is not displaced after an answer: its last bytes are on their way.
const ANSWER_FLUSH: Duration = Duration::from_secs(1);

/// Deadlines of a connection that waits for its caller.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionDeadlines {
    /// Maximum time from the accept, or from the first byte of a further request, to the end of the head.
    pub head: Duration,
    /// Maximum pause between two requests.
    pub idle: Duration,
}

/// Connections of a port that wait for their caller. When there are too many, the longest-waiting one of the caller
/// that has the most is closed, so that a flood displaces its own connections and not that of a probe.
#[derive(Debug)]
pub struct WaitingConnections {
    /// Maximum number of connections that wait.
    most: usize,
    queue: Mutex<WaitQueue>,
}

impl Default for WaitingConnections {
    fn default() -> Self {
        Self::at_most(usize::MAX)
    }
}

#[derive(Debug, Default)]
struct WaitQueue {
    next: u64,
    connections: HashMap<u64, WaitingConnection>,
    /// Waiting connections of each caller, in the order in which the wait began.
    callers: HashMap<ClientAddress, BTreeSet<u64>>,
}

#[derive(Debug)]
struct WaitingConnection {
    close: CancellationToken,
    caller: ClientAddress,
    /// From when on it may be closed: its last answer may still be on its way.
    from: Instant,
    /// Whether it has had an answer, or its caller is identified.
    was_answered: bool,
}

impl WaitQueue {
    fn remove(&mut self, number: u64) -> Option<CancellationToken> {
        let WaitingConnection { close, caller, .. } = self.connections.remove(&number)?;
        if let Some(of_caller) = self.callers.get_mut(&caller) {
            of_caller.remove(&number);
            if of_caller.is_empty() {
                self.callers.remove(&caller);
            }
        }
        Some(close)
    }

    /// Closes the longest-waiting connection of the caller that has the most. Returns `false` if none waits.
    fn displace(&mut self) -> bool {
        let now = Instant::now();
        let may_close = |number: &&u64| self.connections.get(number).is_some_and(|one| one.from <= now);
        let first_of = |numbers: &BTreeSet<u64>| numbers.iter().find(may_close).copied();
        let callers = self.callers.values().filter_map(|numbers| Some((numbers.len(), first_of(numbers)?)));
        let first = callers.max_by_key(|(count, first)| (*count, Reverse(*first))).map(|(_, first)| first);
        self.close(first)
    }

    /// Closes the longest-waiting connection of a caller that has had no answer. Returns `false` if none waits.
    fn displace_unanswered(&mut self, caller: ClientAddress) -> bool {
        let is_new = |number: &&u64| self.connections.get(number).is_some_and(|one| !one.was_answered);
        let first = self.callers.get(&caller).and_then(|numbers| numbers.iter().find(is_new).copied());
        self.close(first)
    }

    fn close(&mut self, number: Option<u64>) -> bool {
        number.and_then(|number| self.remove(number)).map(|close| close.cancel()).is_some()
    }
}

impl WaitingConnections {
    /// Closes one connection whenever more than so many wait.
    pub fn at_most(most: usize) -> Self {
        Self { most, queue: Mutex::default() }
    }

    /// Closes one waiting connection. Returns `false` if none waits.
    pub(super) fn displace(&self) -> bool {
        self.queue.lock().displace()
    }

    /// Keeps a connection from being closed as one that has had no answer.
    fn keep(&self, number: u64) {
        if let Some(waiting) = self.queue.lock().connections.get_mut(&number) {
            waiting.was_answered = true;
        }
    }

    /// Closes a waiting connection of a caller that has had no answer yet. Returns `false` if none waits.
    pub(super) fn displace_unanswered(&self, caller: ClientAddress) -> bool {
        self.queue.lock().displace_unanswered(caller)
    }

    /// Registers a waiting connection. One that has had an answer is not closed before `flush` is over.
    fn enter(&self, caller: ClientAddress, close: &CancellationToken, flush: Option<Duration>) -> u64 {
        let mut queue = self.queue.lock();
        queue.next += 1;
        let number = queue.next;
        let from = Instant::now() + flush.unwrap_or_default();
        let waiting = WaitingConnection { close: close.clone(), caller, from, was_answered: flush.is_some() };
        queue.connections.insert(number, waiting);
        queue.callers.entry(caller).or_default().insert(number);
        if queue.connections.len() > self.most {
            queue.displace();
        }
        number
    }

    fn leave(&self, number: u64) {
        self.queue.lock().remove(number);
    }
}

/// Why a connection was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// The request head did not arrive in time.
    Head,
    /// No further request arrived in time.
    Idle,
    /// It waited for a head while its slot was needed.
    Displaced,
}

/// Current activity of one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConnectionActivity {
    /// Waiting for the rest of a head.
    Head { until: Instant, number: u64 },
    /// Waiting for a further request.
    Idle { until: Instant, number: u64 },
    /// Answering this many requests, at least one.
    Busy { requests: usize },
    /// No longer serving requests: closed or upgraded.
    Ended,
}

/// The phase of one connection, shared by its reader, its request handler and the task that closes it.
#[derive(Debug)]
pub struct ConnectionPhase {
    caller: ClientAddress,
    activity: Mutex<ConnectionActivity>,
    changed: Notify,
    close: CancellationToken,
    waiting: Arc<WaitingConnections>,
    deadlines: ConnectionDeadlines,
    /// Whether the caller may read nothing of an answer for as long as it wants.
    waits_for_reader: AtomicBool,
}

impl ConnectionPhase {
    /// Creates the phase of a new connection.
    pub fn new(
        waiting: Arc<WaitingConnections>,
        caller: ClientAddress,
        deadlines: ConnectionDeadlines,
    ) -> Self {
        let close = CancellationToken::new();
        let number = waiting.enter(caller, &close, None);
        let activity =
            Mutex::new(ConnectionActivity::Head { until: Instant::now() + deadlines.head, number });
        let waits_for_reader = AtomicBool::new(false);
        Self { caller, activity, changed: Notify::new(), close, waiting, deadlines, waits_for_reader }
    }

    /// Sets the time from now to the end of the first head.
    pub fn expect_head(&self, within: Duration) {
        if let ConnectionActivity::Head { until, .. } = &mut *self.activity.lock() {
            *until = Instant::now() + within;
        }
    }

    /// Reports that its caller is identified: others of the same address do not displace it before its first answer.
    pub fn identified(&self) {
        if let ConnectionActivity::Head { number, .. } = *self.activity.lock() {
            self.waiting.keep(number);
        }
    }

    /// Lifts the limit on the time for which the caller may read nothing.
    pub fn wait_for_reader(&self) {
        self.waits_for_reader.store(true, Ordering::Relaxed);
    }

    /// Whether that limit is lifted.
    pub(super) fn waits_for_reader(&self) -> bool {
        self.waits_for_reader.load(Ordering::Relaxed)
    }

    /// Reports that bytes were read. After a pause they begin a new head.
    pub(super) fn read(&self) {
        let mut doing = self.activity.lock();
        if let ConnectionActivity::Idle { number, .. } = *doing {
            *doing = ConnectionActivity::Head { until: Instant::now() + self.deadlines.head, number };
            self.changed.notify_one();
        }
    }

    /// Reports that the caller has taken bytes of an answer. The connection is not idle while it does.
    pub(super) fn written(&self) {
        let mut doing = self.activity.lock();
        if let ConnectionActivity::Idle { until, .. } = &mut *doing {
            // The deadline only moves later; `overdue` checks it again when its sleep ends.
            *until = Instant::now() + self.deadlines.idle;
        }
    }

    /// Reports that a head is complete and its request is being answered.
    pub(super) fn began(&self) {
        let mut doing = self.activity.lock();
        match &mut *doing {
            ConnectionActivity::Busy { requests } => *requests += 1,
            ConnectionActivity::Ended => {}
            waiting => {
                let was = std::mem::replace(waiting, ConnectionActivity::Busy { requests: 1 });
                self.leave(was);
            }
        }
    }

    /// Reports that a request was answered. The connection waits for its caller once none is being answered.
    pub(super) fn answered(&self) {
        let mut doing = self.activity.lock();
        match &mut *doing {
            ConnectionActivity::Busy { requests: 1 } => {
                let until = Instant::now() + self.deadlines.idle;
                let number = self.waiting.enter(self.caller, &self.close, Some(ANSWER_FLUSH));
                *doing = ConnectionActivity::Idle { until, number };
                self.changed.notify_one();
            }
            ConnectionActivity::Busy { requests } => *requests -= 1,
            _ => {}
        }
    }

    /// Reports that the connection serves no more requests: an upgraded one is neither idle nor displaced.
    pub fn end(&self) {
        let was = std::mem::replace(&mut *self.activity.lock(), ConnectionActivity::Ended);
        self.leave(was);
    }

    /// Counts a request until the guard is dropped, with the last byte of its answer.
    pub fn request(self: &Arc<Self>) -> RequestGuard {
        self.began();
        RequestGuard(Arc::clone(self))
    }

    fn leave(&self, was: ConnectionActivity) {
        if let ConnectionActivity::Head { number, .. } | ConnectionActivity::Idle { number, .. } = was {
            self.waiting.leave(number);
        }
    }

    /// Completes when the connection must be closed.
    pub async fn overdue(&self) -> CloseReason {
        loop {
            let (until, why) = match *self.activity.lock() {
                ConnectionActivity::Head { until, .. } => (Some(until), CloseReason::Head),
                ConnectionActivity::Idle { until, .. } => (Some(until), CloseReason::Idle),
                ConnectionActivity::Busy { .. } | ConnectionActivity::Ended => (None, CloseReason::Idle),
            };
            if until.is_some_and(|until| until <= Instant::now()) {
                return why;
            }
            let slept = async {
                match until {
                    Some(until) => sleep_until(until).await,
                    None => pending().await,
                }
            };
            tokio::select! {
                () = self.close.cancelled() => return CloseReason::Displaced,
                () = self.changed.notified() => {}
                () = slept => {}
            }
        }
    }
}

/// A request of a connection that is being answered.
#[derive(Debug)]
pub struct RequestGuard(Arc<ConnectionPhase>);

impl Drop for RequestGuard {
    fn drop(&mut self) {
        self.0.answered();
    }
}

impl Drop for ConnectionPhase {
    fn drop(&mut self) {
        let was = *self.activity.lock();
        self.leave(was);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEADLINES: ConnectionDeadlines =
        ConnectionDeadlines { head: Duration::from_secs(10), idle: Duration::from_secs(15) };

    fn phase(waiting: &Arc<WaitingConnections>) -> Arc<ConnectionPhase> {
        of_caller(waiting, 1)
    }

    fn of_caller(waiting: &Arc<WaitingConnections>, last: u8) -> Arc<ConnectionPhase> {
        Arc::new(ConnectionPhase::new(Arc::clone(waiting), caller(last), DEADLINES))
    }

    /// Returns why the connection is closed, and after how many seconds.
    async fn closed(phase: &ConnectionPhase) -> (CloseReason, u64) {
        let began = Instant::now();
        (phase.overdue().await, began.elapsed().as_secs())
    }

    #[tokio::test]
    async fn only_a_connection_without_an_answer_of_a_caller_that_is_not_identified_is_closed_as_unanswered()
    {
        let waiting = Arc::default();
        let (identified, answered) = (phase(&waiting), phase(&waiting));
        identified.identified();
        drop(answered.request());
        assert!(!waiting.displace_unanswered(caller(1)));
        let _new = phase(&waiting);
        assert!(waiting.displace_unanswered(caller(1)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_head_has_its_time_from_the_first_byte_and_a_pause_between_requests_its_own() {
        let waiting = Arc::default();
        assert_eq!(closed(&phase(&waiting)).await, (CloseReason::Head, 10));

        let dribbling = phase(&waiting);
        dribbling.read();
        assert_eq!(closed(&dribbling).await, (CloseReason::Head, 10), "bytes of a head win no time");

        let idle = phase(&waiting);
        idle.began();
        idle.answered();
        assert_eq!(closed(&idle).await, (CloseReason::Idle, 15));

        let late = phase(&waiting);
        late.began();
        late.answered();
        tokio::time::sleep(Duration::from_secs(14)).await;
        late.read();
        assert_eq!(closed(&late).await, (CloseReason::Head, 10));
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_is_answered_and_an_answer_that_is_read_are_not_cut_off() {
        let waiting = Arc::default();
        let busy = phase(&waiting);
        busy.began();
        let hour = Duration::from_secs(3600);
        assert!(tokio::time::timeout(hour, busy.overdue()).await.is_err());
        busy.answered();
        for _ in 0..10 {
            assert!(tokio::time::timeout(Duration::from_secs(14), busy.overdue()).await.is_err());
            busy.written();
        }
        assert_eq!(closed(&busy).await, (CloseReason::Idle, 15));
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_busy_until_the_last_of_its_requests_is_answered() {
        let waiting = Arc::default();
        let several = phase(&waiting);
        let (first, second) = (several.request(), several.request());
        drop(first);
        assert!(!waiting.displace(), "one is being answered");
        drop(second);
        assert_eq!(closed(&several).await, (CloseReason::Idle, 15));
        let upgraded = phase(&waiting);
        let request = upgraded.request();
        upgraded.end();
        drop((request, several));
        assert!(!waiting.displace(), "an upgraded connection waits for no head");
    }

    #[tokio::test(start_paused = true)]
    async fn the_connection_that_has_waited_longest_for_a_head_is_displaced() {
        let waiting = Arc::default();
        let (busy, first, second) = (phase(&waiting), phase(&waiting), phase(&waiting));
        busy.began();
        let gone = phase(&waiting);
        drop(gone);
        assert!(waiting.displace());
        assert_eq!(closed(&first).await, (CloseReason::Displaced, 0));
        busy.answered();
        assert!(waiting.displace());
        assert_eq!(closed(&second).await, (CloseReason::Displaced, 0));
        assert!(!waiting.displace(), "its answer is on its way");
        tokio::time::sleep(ANSWER_FLUSH).await;
        assert!(waiting.displace());
        assert_eq!(closed(&busy).await, (CloseReason::Displaced, 0));
        assert!(!waiting.displace(), "none waits any more");
    }

    #[tokio::test(start_paused = true)]
    async fn a_crowd_that_waits_for_heads_displaces_its_own_and_not_the_probe_that_came_before_it() {
        let waiting = Arc::default();
        let probe = of_caller(&waiting, 1);
        let crowd = [of_caller(&waiting, 2), of_caller(&waiting, 2)];
        assert!(waiting.displace());
        assert_eq!(closed(&crowd[0]).await, (CloseReason::Displaced, 0));
        let next = of_caller(&waiting, 2);
        assert!(waiting.displace());
        assert_eq!(closed(&crowd[1]).await, (CloseReason::Displaced, 0));
        probe.began();
        probe.answered();
        let _last = of_caller(&waiting, 2);
        assert!(waiting.displace());
        assert_eq!(closed(&next).await, (CloseReason::Displaced, 0));
        assert_eq!(closed(&probe).await, (CloseReason::Idle, 15));
    }

    fn caller(last: u8) -> ClientAddress {
        ClientAddress::of([192, 0, 2, last].into())
    }

    fn is_closed(phase: &ConnectionPhase) -> bool {
        phase.close.is_cancelled()
    }

    #[test]
    fn longest_waiting_connection_is_displaced_at_the_limit() {
        let waiting = Arc::new(WaitingConnections::at_most(2));
        let enter = |one: u8| of_caller(&waiting, one);
        let (first, second) = (enter(0), enter(1));
        assert!(!is_closed(&first) && !is_closed(&second));
        drop(first);
        let third = enter(2);
        assert!(!is_closed(&second), "the first waits no more");
        let fourth = enter(3);
        assert!(is_closed(&second) && !is_closed(&third) && !is_closed(&fourth));
        drop(second);
        assert_eq!(waiting.queue.lock().connections.len(), 2);
    }

    #[test]
    fn flood_displaces_connections_of_its_own_caller() {
        let waiting = Arc::new(WaitingConnections::at_most(10));
        let alone = of_caller(&waiting, 1);
        let crowd: Vec<_> = (0..100).map(|one| of_caller(&waiting, 2 + one % 3)).collect();
        assert!(!is_closed(&alone));
        assert_eq!(crowd.iter().filter(|one| !is_closed(one)).count(), 9);
        drop((alone, crowd));
        let queue = waiting.queue.lock();
        assert!(queue.connections.is_empty() && queue.callers.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_first_head_that_is_expected_anew_has_its_time_from_then_on() {
        let waiting = Arc::default();
        let begun = phase(&waiting);
        tokio::time::sleep(Duration::from_secs(9)).await;
        begun.expect_head(Duration::from_secs(5));
        assert_eq!(closed(&begun).await, (CloseReason::Head, 5));
    }
}
