//! The requests of one stream for async code, at either end: [`RequestStreams`] behind a lock, with wake-ups.
//!
//! The task of the stream feeds in what arrives and sends [`RequestChannel::next_frame`]; each request is an
//! [`Exchange`], which may be used from any task. Neither waits for the other: credit bounds what is queued.

use std::collections::HashMap;
use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue};
use parking_lot::Mutex;
use prost::bytes::Bytes;
use tokio::sync::Notify;

use kubesvc_core::requests::credit::CreditBudget;
use kubesvc_core::requests::streams::{
    End, Event, Frame, NumberedFrame, Received, RequestNumber, RequestStreams,
};
use kubesvc_core::wire::ops::Header;

/// Headers of a message as a map; `None` if one cannot be sent, or if they are more than a map takes.
pub fn header_map(headers: Vec<Header>) -> Option<HeaderMap> {
    let mut map = HeaderMap::new();
    for Header { name, value } in headers {
        let (name, value) = (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_bytes(&value));
        map.try_append(name.ok()?, value.ok()?).ok()?;
    }
    Some(map)
}

/// Headers as a message has them.
pub fn wire_headers(headers: &HeaderMap) -> Vec<Header> {
    let all = headers.iter();
    all.map(|(name, value)| Header { name: name.as_str().to_owned(), value: value.as_bytes().to_vec() })
        .collect()
}

/// The requests of one stream.
pub struct RequestChannel<E: End> {
    state: Mutex<ChannelState<E>>,
    /// Notified when there may be a frame to send.
    outgoing: Notify,
}

struct ChannelState<E: End> {
    streams: RequestStreams<E>,
    wakes: HashMap<RequestNumber, Arc<RequestWakes>>,
    /// Whether the stream has ended; no request is opened any more.
    is_lost: bool,
}

#[derive(Default)]
struct RequestWakes {
    readable: Notify,
    writable: Notify,
}

impl RequestWakes {
    fn wake(&self) {
        self.readable.notify_one();
        self.writable.notify_one();
    }
}

/// Request that a frame began, if any.
pub enum NewRequest<E: End> {
    /// A request, which ends early if the exchange is dropped.
    Opened(Exchange<E>, E::Hears),
    /// Nothing: the frame was dropped, or its request aborted.
    Nothing,
}

impl<E: End> RequestChannel<E> {
    /// Creates the channel of a new stream.
    pub fn new(budget: Arc<CreditBudget>) -> Arc<Self> {
        let streams = RequestStreams::new(budget);
        let state = ChannelState { streams, wakes: HashMap::new(), is_lost: false };
        Arc::new(Self { state: Mutex::new(state), outgoing: Notify::new() })
    }

    /// Number of requests.
    pub fn len(&self) -> usize {
        self.state.lock().streams.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Opens a request; `head` is given the credit for its answer. `None` if the stream has ended.
    pub fn open(self: &Arc<Self>, head: impl FnOnce(u32) -> E::Says) -> Option<Exchange<E>> {
        self.open_with(head, |_, _| {})
    }

    /// Opens a request that has all of its body. Head, body and end leave together, as far as the credit allows.
    pub fn open_whole(
        self: &Arc<Self>,
        head: impl FnOnce(u32) -> E::Says,
        body: Bytes,
    ) -> Option<Exchange<E>> {
        self.open_with(head, |streams, id| {
            streams.send(id, body);
            streams.end(id);
        })
    }

    fn open_with(
        self: &Arc<Self>,
        head: impl FnOnce(u32) -> E::Says,
        send: impl FnOnce(&mut RequestStreams<E>, RequestNumber),
    ) -> Option<Exchange<E>> {
        let mut state = self.state.lock();
        if state.is_lost {
            return None;
        }
        let id = state.streams.open(head);
        send(&mut state.streams, id);
        let exchange = self.exchange(&mut state, id);
        drop(state);
        self.outgoing.notify_one();
        Some(exchange)
    }

    fn exchange(self: &Arc<Self>, state: &mut ChannelState<E>, id: RequestNumber) -> Exchange<E> {
        let wakes = Arc::<RequestWakes>::default();
        state.wakes.insert(id, Arc::clone(&wakes));
        Exchange { channel: Arc::clone(self), id, wakes }
    }

    /// Handles a frame that opens a request, whose answer has `credit` bytes.
    pub fn receive_opening(
        self: &Arc<Self>,
        id: RequestNumber,
        head: E::Hears,
        credit: u32,
    ) -> NewRequest<E> {
        let mut state = self.state.lock();
        let opening = match state.streams.receive_opening(id, head, credit) {
            Received::Opened(head) => NewRequest::Opened(self.exchange(&mut state, id), head),
            Received::Changed | Received::Unknown | Received::Broken(_) => NewRequest::Nothing,
        };
        state.wake(id);
        drop(state);
        self.outgoing.notify_one();
        opening
    }

    /// Handles a frame of a request. Returns whether the request is known and the frame in order.
    pub fn receive(&self, id: RequestNumber, frame: Frame<E::Hears, E::IsStopped>) -> bool {
        let mut state = self.state.lock();
        let grants = matches!(frame, Frame::Credit(_));
        let is_good = matches!(state.streams.receive(id, frame), Received::Changed);
        state.wake(id);
        let sends = grants || state.streams.has_control();
        drop(state);
        if sends {
            self.outgoing.notify_one();
        }
        is_good
    }

    /// Handles the other side's list of requests; `opens` says whether this side opens them.
    pub fn reconcile(&self, theirs: &[RequestNumber], opens: bool) {
        let mut state = self.state.lock();
        for id in state.streams.reconcile(theirs, opens) {
            state.wake(id);
        }
        drop(state);
        self.outgoing.notify_one();
    }

    /// Ids of the requests that both sides should have.
    pub fn running(&self) -> Vec<RequestNumber> {
        self.state.lock().streams.running()
    }

    /// Number of frames that were dropped because their request was not known.
    pub fn dropped(&self) -> u64 {
        self.state.lock().streams.dropped()
    }

    /// The stream has ended: every request that is not over ends.
    pub fn lost(&self) {
        let mut state = self.state.lock();
        state.is_lost = true;
        for id in state.streams.lost() {
            state.wake(id);
        }
    }

    /// The next frame to send, if there is one.
    pub fn next_frame(&self) -> Option<NumberedFrame<E>> {
        let mut state = self.state.lock();
        let (id, frame) = state.streams.next_frame()?;
        if matches!(frame, Frame::Data(_))
            && let Some(wakes) = state.wakes.get(&id)
        {
            wakes.writable.notify_one();
        }
        Some((id, frame))
    }

    /// Waits until there may be a frame to send.
    pub async fn outgoing(&self) {
        self.outgoing.notified().await;
    }
}

impl<E: End> ChannelState<E> {
    fn wake(&self, id: RequestNumber) {
        if let Some(wakes) = self.wakes.get(&id) {
            wakes.wake();
        }
    }
}

/// One request at this end. Dropping it before it is over ends the request early, at both ends.
pub struct Exchange<E: End> {
    channel: Arc<RequestChannel<E>>,
    id: RequestNumber,
    wakes: Arc<RequestWakes>,
}

impl<E: End> Exchange<E> {
    /// Waits for the next event. Nothing follows `End`, `Stopped` and `Broken`.
    pub async fn event(&self) -> Event<E::Hears, E::IsStopped> {
        loop {
            if let Some(event) = self.try_event() {
                return event;
            }
            self.wakes.readable.notified().await;
        }
    }

    /// The next event, if there is one by now.
    fn try_event(&self) -> Option<Event<E::Hears, E::IsStopped>> {
        let mut state = self.channel.state.lock();
        let event = state.streams.next_event(self.id)?;
        // There may be credit to grant.
        let sends = state.streams.has_control();
        drop(state);
        if sends {
            self.channel.outgoing.notify_one();
        }
        Some(event)
    }

    /// Begins this end's direction.
    pub fn send_head(&self, head: E::Says) -> bool {
        let is_sent = self.channel.state.lock().streams.send_head(self.id, head);
        self.channel.outgoing.notify_one();
        is_sent
    }

    /// Begins this end's direction with its first bytes, and completes it if they are all. They leave together, as far as
    /// the credit allows.
    pub fn send_start(&self, head: E::Says, bytes: Bytes, is_all: bool) -> bool {
        let mut state = self.channel.state.lock();
        let is_sent = state.streams.send_head(self.id, head) && state.streams.send(self.id, bytes);
        if is_all {
            state.streams.end(self.id);
        }
        drop(state);
        self.channel.outgoing.notify_one();
        is_sent
    }

    /// Sends bytes once there is room for them. Returns false if the request is over.
    pub async fn send(&self, bytes: Bytes) -> bool {
        loop {
            {
                let mut state = self.channel.state.lock();
                match state.streams.has_room(self.id) {
                    None => return false,
                    Some(true) => {
                        let is_queued = state.streams.send(self.id, bytes);
                        drop(state);
                        self.channel.outgoing.notify_one();
                        return is_queued;
                    }
                    Some(false) => {}
                }
            }
            self.wakes.writable.notified().await;
        }
    }

    /// Completes this end's direction.
    pub fn end(&self) {
        self.channel.state.lock().streams.end(self.id);
        self.channel.outgoing.notify_one();
    }

    /// Waits until everything that this end sends was taken, or the request is over.
    pub async fn flushed(&self) {
        while !self.channel.state.lock().streams.is_flushed(self.id) {
            self.wakes.writable.notified().await;
        }
    }

    /// Waits until the request was ended early, by the other side or with the stream. Other events are dropped.
    pub async fn ended_early(&self) {
        while !matches!(self.event().await, Event::Stopped(_) | Event::Broken(_)) {}
    }

    /// Ends the request early.
    pub fn stop(&self, why: E::Stops) {
        self.channel.state.lock().streams.stop(self.id, why);
        self.channel.outgoing.notify_one();
    }
}

impl<E: End> Drop for Exchange<E> {
    fn drop(&mut self) {
        let mut state = self.channel.state.lock();
        state.streams.close(self.id, E::stop("it was given up"));
        state.wakes.remove(&self.id);
        drop(state);
        self.channel.outgoing.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use kubesvc_core::requests::credit::{INITIAL_CREDIT, MAX_CREDIT_OF_AGENT};
    use kubesvc_core::requests::wire::{AgentEnd, HubEnd, Opening};
    use kubesvc_core::wire::ops::{Head, Open};

    use super::*;

    fn channel<E: End>() -> Arc<RequestChannel<E>> {
        RequestChannel::new(CreditBudget::new(MAX_CREDIT_OF_AGENT, None))
    }

    fn frames<E: End>(channel: &RequestChannel<E>) -> Vec<Frame<E::Says, E::Stops>> {
        std::iter::from_fn(|| channel.next_frame()).map(|(_, frame)| frame).collect()
    }

    #[test]
    fn a_request_with_its_body_leaves_at_once() {
        let hub = channel::<HubEnd>();
        let open = |_| Opening::Open(Box::default());
        let _empty = hub.open_whole(open, Bytes::new()).expect("the stream is open");
        assert!(matches!(frames(&hub)[..], [Frame::Head(_), Frame::End]));
        let _full = hub.open_whole(open, Bytes::from_static(b"body")).expect("the stream is open");
        assert!(matches!(frames(&hub)[..], [Frame::Head(_), Frame::Data(_), Frame::End]));
        hub.lost();
        assert!(hub.open_whole(open, Bytes::new()).is_none());
    }

    #[test]
    fn a_short_answer_leaves_with_its_head() {
        let agent = channel::<AgentEnd>();
        let head = || Head { status: 200, headers: Vec::new() };
        let opened =
            |id| match agent.receive_opening(id, Opening::Open(Box::<Open>::default()), INITIAL_CREDIT) {
                NewRequest::Opened(exchange, _) => exchange,
                NewRequest::Nothing => unreachable!("the id is new"),
            };
        let (whole, begun) = (opened(1), opened(2));
        assert!(whole.send_start(head(), Bytes::from_static(b"all"), true));
        assert!(matches!(frames(&agent)[..], [Frame::Head(_), Frame::Data(_), Frame::End]));
        assert!(begun.send_start(head(), Bytes::new(), false));
        assert!(matches!(frames(&agent)[..], [Frame::Head(_)]));
        assert!(!begun.send_start(head(), Bytes::new(), false), "it has begun");
    }
}
