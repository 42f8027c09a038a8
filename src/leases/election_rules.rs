//! The next action for the leader's Lease, decided from what this replica has seen of it. Pure: the caller
//! passes the time, counted from an arbitrary moment in this process.

use kubesvc_core::ReplicaId;
use std::time::Duration;

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;

/// A point in time on this process's monotonic clock.
pub(super) type Moment = Duration;

/// Lease timing. Each value is longer than the next: a leader gives up well before others take its Lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// Time without a change after which a Lease has expired.
    pub duration: Duration,
    /// Time without a successful renewal after which a leader stops leading.
    pub renew_deadline: Duration,
    /// Interval between two attempts.
    pub retry_period: Duration,
}

impl Times {
    /// Interval at which a replica renews its own Lease.
    pub(super) fn renewal(self) -> Duration {
        self.duration / 3
    }
}

/// Content of the leader's Lease, as last read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LeaseRecord {
    /// Id of the replica that holds the Lease; empty if the Lease was released.
    pub(super) holder: ReplicaId,
    /// The resourceVersion.
    pub(super) version: String,
}

/// What this replica knows about the leader's Lease.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum LeaseView {
    /// Not read yet.
    #[default]
    Unknown,
    /// The Lease does not exist.
    Absent,
    /// Content of the Lease, and the time since which it has not changed.
    Seen(LeaseRecord, Moment),
}

/// Next action of a [`Candidate`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LeaseAction {
    /// Take the Lease: it is free.
    Acquire,
    /// Renew the Lease: this replica holds it, and renewal is due.
    Renew,
    /// Do nothing for this long.
    Wait(Duration),
    /// Stop leading: this replica led and no longer does.
    Lost,
}

/// A replica that leads or wants to lead.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    id: ReplicaId,
    times: Times,
    sight: LeaseView,
    /// Send time of the last successful renewal; `None` if this replica does not lead.
    renewed: Option<Moment>,
    /// No write is sent before this moment.
    not_before: Moment,
}

impl Candidate {
    pub(super) fn new(id: &ReplicaId, times: Times) -> Self {
        Self { id: id.to_owned(), times, sight: LeaseView::Unknown, renewed: None, not_before: Moment::ZERO }
    }

    /// Returns the action that is due at `now`.
    pub(super) fn step(&self, now: Moment) -> LeaseAction {
        match (self.renewed, &self.sight) {
            (Some(renewed), LeaseView::Seen(record, _)) if record.holder == self.id => {
                let end = renewed + self.times.renew_deadline;
                if now >= end {
                    LeaseAction::Lost
                } else if now >= self.not_before {
                    LeaseAction::Renew
                } else {
                    LeaseAction::Wait(self.not_before.min(end) - now)
                }
            }
            // Another replica holds it, or it was deleted: another replica may already lead.
            (Some(_), _) => LeaseAction::Lost,
            (None, LeaseView::Unknown) => LeaseAction::Wait(self.times.retry_period),
            (None, sight) => match self.free_at(sight).max(self.not_before).checked_sub(now) {
                None | Some(Duration::ZERO) => LeaseAction::Acquire,
                Some(left) => LeaseAction::Wait(left),
            },
        }
    }

    /// Time at which a Lease in this state becomes free. A Lease with this replica's own id comes from an
    /// earlier process, which is gone, so it is free at once.
    fn free_at(&self, sight: &LeaseView) -> Moment {
        match sight {
            LeaseView::Seen(record, since) if !record.holder.is_empty() && record.holder != self.id => {
                *since + self.times.duration
            }
            _ => Moment::ZERO,
        }
    }

    /// Records the Lease as read; `None` if it does not exist.
    pub(super) fn saw(&mut self, record: Option<LeaseRecord>, now: Moment) {
        match (record, &self.sight) {
            (None, _) => self.sight = LeaseView::Absent,
            (Some(record), LeaseView::Seen(before, _)) if before.version == record.version => {}
            (Some(record), _) => self.sight = LeaseView::Seen(record, now),
        }
    }

    /// Records a successful write. The send time counts, not the response time: no other replica can have
    /// seen the write earlier.
    pub(super) fn wrote(&mut self, record: LeaseRecord, sent: Moment) {
        self.sight = LeaseView::Seen(record, sent);
        self.renewed = Some(sent);
        self.not_before = sent + self.times.retry_period;
    }

    /// Records a failed write: the next one is sent after `pause` at the earliest.
    pub(super) fn pause(&mut self, now: Moment, pause: Duration) {
        self.not_before = now + pause;
    }

    pub(super) fn step_down(&mut self) {
        self.renewed = None;
    }

    /// Send time of the last successful renewal; `None` if this replica does not lead.
    pub(super) fn renewed(&self) -> Option<Moment> {
        self.renewed
    }

    /// Time until which this replica leads unless it renews; `None` if it does not lead.
    pub(super) fn end(&self) -> Option<Moment> {
        self.renewed.map(|renewed| renewed + self.times.renew_deadline)
    }

    /// Holder of the Lease, unless the Lease has expired.
    pub(super) fn holder(&self, now: Moment) -> Option<&ReplicaId> {
        match &self.sight {
            LeaseView::Seen(record, since)
                if !record.holder.is_empty() && now < *since + self.times.duration =>
            {
                Some(&record.holder)
            }
            _ => None,
        }
    }
}
