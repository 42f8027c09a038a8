//! Frames waiting to be sent to the agent. The session loop bounds it: it starts no work while the queue is full.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tonic::Status;

use kubesvc_core::wire::ops::{self, hub_frame::Frame};
use kubesvc_runtime::crash_points;

/// Sender into the agent's stream.
pub(crate) type HubFrameSender = mpsc::Sender<Result<ops::HubFrame, Status>>;

/// Number of waiting frames, of at most 1 MiB each, at which no new work starts.
const MAX_QUEUED_FRAMES: usize = 8;
/// Number of waiting frames at which heartbeats are skipped.
const MAX_QUEUED_FRAMES_FOR_HEARTBEAT: usize = 2 * MAX_QUEUED_FRAMES;

pub(crate) struct FrameQueue {
    sink: HubFrameSender,
    waiting: VecDeque<Frame>,
    /// Sequence number of the last frame, from 1.
    seq: u64,
    /// Time since which the first frame waits.
    waiting_since: Option<Instant>,
}

impl FrameQueue {
    pub(crate) fn new(sink: HubFrameSender) -> Self {
        Self { sink, waiting: VecDeque::new(), seq: 0, waiting_since: None }
    }

    pub(crate) fn push(&mut self, frame: Frame) {
        self.waiting_since.get_or_insert_with(Instant::now);
        self.waiting.push_back(frame);
    }

    pub(super) fn push_heartbeat(&mut self, heartbeat: ops::Heartbeat) {
        if self.waiting.len() < MAX_QUEUED_FRAMES_FOR_HEARTBEAT {
            self.push(Frame::Heartbeat(heartbeat));
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(crate) fn has_capacity(&self) -> bool {
        self.waiting.len() < MAX_QUEUED_FRAMES
    }

    /// Time for which the agent has read nothing although frames wait.
    pub(super) fn stuck_for(&self) -> Duration {
        self.waiting_since.map(|since| since.elapsed()).unwrap_or_default()
    }

    /// Returns the sender, to wait for capacity.
    pub(crate) fn sink(&self) -> HubFrameSender {
        self.sink.clone()
    }

    /// Sends the first frame. `ack` is the sequence number of the agent's last handled frame.
    pub(crate) fn send(&mut self, permit: mpsc::Permit<'_, Result<ops::HubFrame, Status>>, ack: u64) -> bool {
        let Some(frame) = self.waiting.pop_front() else { return false };
        self.waiting_since = (!self.waiting.is_empty()).then(Instant::now);
        self.seq += 1;
        let (before, after) = crash_points(&frame);
        before.into_iter().for_each(crash_points::point);
        permit.send(Ok(ops::HubFrame { frame: Some(frame), seq: self.seq, ack }));
        after.into_iter().for_each(crash_points::point);
        true
    }

    /// Sends a frame past those that wait, which are not sent any more, if the stream still accepts one. An Accepted that
    /// waits is sent before it, since nothing else may be the first frame.
    pub(crate) fn send_last(&mut self, frame: Frame, ack: u64) {
        let first = if self.seq == 0 { self.waiting.pop_front() } else { None };
        self.waiting.clear();
        let sink = self.sink.clone();
        for frame in first.into_iter().chain([frame]) {
            let Ok(permit) = sink.try_reserve() else { return };
            self.push(frame);
            self.send(permit, ack);
        }
    }

    /// Ends the stream with a status, if it still accepts one.
    pub(crate) fn end(&self, status: Status) {
        let _ = self.sink.try_send(Err(status));
    }
}

fn crash_points(frame: &Frame) -> (Option<&'static str>, Option<&'static str>) {
    match frame {
        Frame::Accepted(_) => (Some("accepted:before"), Some("accepted:after")),
        Frame::Probe(_) => (Some("probe:before"), Some("probe:after")),
        Frame::AddAccounts(_) => (Some("add-accounts:before"), Some("add-accounts:after")),
        Frame::DeleteAccounts(_) => (Some("delete-accounts:before"), Some("delete-accounts:after")),
        Frame::CachingAssignment(_) => (Some("caching-assignment:before"), Some("caching-assignment:after")),
        _ => (None, None),
    }
}
