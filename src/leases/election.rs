//! What a replica is to do about the leader's Lease, from what it has seen of it. Pure: the clock is handed in, and
//! counts from any moment of this process.

use std::time::Duration;

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;

/// A moment on the replica's own monotonic clock.
pub(super) type Moment = Duration;

/// The times of Leases. Each is longer than the next: a leader gives up well before others take its Lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// A Lease that has not changed for so long has run out.
    pub duration: Duration,
    /// A leader that could not renew its Lease for so long leads no more.
    pub renew_deadline: Duration,
    /// The time between two tries.
    pub retry_period: Duration,
}

impl Default for Times {
    fn default() -> Self {
        Self {
            duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
        }
    }
}

impl Times {
    /// How often a replica renews its own Lease.
    pub(super) fn renewal(self) -> Duration {
        self.duration / 3
    }
}

/// The leader's Lease as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LeaseRecord {
    /// The replica that holds it; empty: it was released.
    pub(super) holder: String,
    /// The resourceVersion.
    pub(super) version: String,
}

/// What is known of the leader's Lease.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum LeaseView {
    /// Nobody has looked yet.
    #[default]
    Unknown,
    /// There is none.
    Absent,
    /// It has looked so since this moment.
    Seen(LeaseRecord, Moment),
}

/// What is to be done now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LeaseAction {
    /// The Lease is free: take it.
    Acquire,
    /// It is ours, and due.
    Renew,
    /// Nothing before this time has passed.
    Wait(Duration),
    /// This replica led, and leads no more.
    Lost,
}

/// A replica that leads or would.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    id: String,
    times: Times,
    sight: LeaseView,
    /// When the last renewal that succeeded was sent; absent: it does not lead.
    renewed: Option<Moment>,
    /// No write before this moment.
    not_before: Moment,
}

impl Candidate {
    pub(super) fn new(id: &str, times: Times) -> Self {
        Self { id: id.to_owned(), times, sight: LeaseView::Unknown, renewed: None, not_before: Moment::ZERO }
    }

    /// What is to be done now.
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
            // Somebody else has it, or it was deleted: whoever took it may lead already.
            (Some(_), _) => LeaseAction::Lost,
            (None, LeaseView::Unknown) => LeaseAction::Wait(self.times.retry_period),
            (None, sight) => match self.free_at(sight).max(self.not_before).checked_sub(now) {
                None | Some(Duration::ZERO) => LeaseAction::Acquire,
                Some(left) => LeaseAction::Wait(left),
            },
        }
    }

    /// When a Lease that looks so is free. One that we hold is of an earlier process of ours, which is gone.
    fn free_at(&self, sight: &LeaseView) -> Moment {
        match sight {
            LeaseView::Seen(record, since) if !record.holder.is_empty() && record.holder != self.id => {
                *since + self.times.duration
            }
            _ => Moment::ZERO,
        }
    }

    /// The Lease was read; absent: there is none.
    pub(super) fn saw(&mut self, record: Option<LeaseRecord>, now: Moment) {
        match (record, &self.sight) {
            (None, _) => self.sight = LeaseView::Absent,
            (Some(record), LeaseView::Seen(before, _)) if before.version == record.version => {}
            (Some(record), _) => self.sight = LeaseView::Seen(record, now),
        }
    }

    /// The Lease was written as this record. What counts is when that was sent: nobody has seen it earlier.
    pub(super) fn wrote(&mut self, record: LeaseRecord, sent: Moment) {
        self.sight = LeaseView::Seen(record, sent);
        self.renewed = Some(sent);
        self.not_before = sent + self.times.retry_period;
    }

    /// A write did not succeed: none before this pause is over.
    pub(super) fn pause(&mut self, now: Moment, pause: Duration) {
        self.not_before = now + pause;
    }

    /// It leads no more.
    pub(super) fn step_down(&mut self) {
        self.renewed = None;
    }

    /// When the last renewal was sent; absent: it does not lead.
    pub(super) fn renewed(&self) -> Option<Moment> {
        self.renewed
    }

    /// Until when this replica leads unless it renews; absent: it does not.
    pub(super) fn end(&self) -> Option<Moment> {
        self.renewed.map(|renewed| renewed + self.times.renew_deadline)
    }

    /// Who holds the Lease, unless it has run out.
    pub(super) fn holder(&self, now: Moment) -> Option<&str> {
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
