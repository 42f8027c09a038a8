//! All requests of one stream, at either end: which frames may come, whose turn it is to send, and within which credit.
//!
//! The hub begins a request with [`RequestStreams::open`]; at the agent it begins when its first frame arrives. From then
//! on both ends are alike: each sends (head, data, end), or stops early. A request is known until both directions have
//! ended or one side has stopped it, and until this side has [closed](RequestStreams::close) it. Frames of an id that is
//! not known are dropped. A frame out of order, or beyond the credit, aborts its request alone.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use prost::bytes::Bytes;

use super::credit::{CreditBudget, INITIAL_ANSWER_CREDIT, INITIAL_CREDIT, Window};
use request::{Direction, Request};

mod request;

/// Maximum size of the bytes of one frame.
pub const MAX_DATA_BYTES: usize = 32 * 1024;
/// Bytes of one request that wait to be sent, at which the sender waits.
pub const MAX_QUEUED_BYTES: usize = 128 * 1024;

/// The hub's number of a request.
pub type RequestNumber = u64;

/// A frame of one request. `H` is what begins this direction; `S` says why it ends early.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame<H, S> {
    /// Begins the direction.
    Head(H),
    /// Bytes.
    Data(Bytes),
    /// Completes the direction.
    End,
    /// Ends the request early.
    Stop(S),
    /// The other side may send so many bytes more.
    Credit(u32),
}

/// What a request has for this side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event<H, S> {
    /// The other direction begins.
    Head(H),
    /// Bytes.
    Data(Bytes),
    /// The other direction is complete.
    End,
    /// The other side has ended the request early.
    Stopped(S),
    /// The request cannot go on: the stream is lost, or a frame was not in order.
    Broken(&'static str),
}

/// What became of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Received<H> {
    /// A request begins; only where the other side opens them.
    Opened(H),
    /// The request has something new.
    Changed,
    /// The id is not known.
    Unknown,
    /// The request was aborted.
    Broken(&'static str),
}

/// What one end says to the other, and hears of it.
pub trait End {
    /// Begins a direction of this end.
    type Says;
    /// Ends a request early, said by this end.
    type Stops;
    /// Begins a direction of the other end.
    type Hears;
    /// Ends a request early, said by the other end.
    type IsStopped;
    /// Why this end stops a request that is broken.
    fn stop(why: &'static str) -> Self::Stops;
    /// The account of a request that this end opens.
    fn account_said(_: &Self::Says) -> &str {
        ""
    }
    /// The account of a request that the other end opens.
    fn account_heard(_: &Self::Hears) -> &str {
        ""
    }
    /// Whether what opens a request tells the credit of its answer. Else the other side counts on [`INITIAL_CREDIT`].
    fn tells_credit(_: &Self::Says) -> bool {
        true
    }
}

/// A frame that an end sends, with the number of its request.
pub type NumberedFrame<E> = (RequestNumber, Frame<<E as End>::Says, <E as End>::Stops>);

/// The requests of a stream.
pub struct RequestStreams<E: End> {
    requests: BTreeMap<RequestNumber, Request<E>>,
    /// Frames without data, of known and of former requests, in their order.
    control: VecDeque<(RequestNumber, Control<E>)>,
    /// The account that sent data last.
    served: Arc<str>,
    /// The last turn that was given.
    last_turn: u64,
    last_opened: RequestNumber,
    budget: Arc<CreditBudget>,
    dropped: u64,
}

enum Control<E: End> {
    Head(E::Says),
    End,
    Stop(E::Stops),
    /// What the window grants by then.
    Credit,
}

impl<E: End> RequestStreams<E> {
    /// Creates the requests of a stream whose memory is this budget's.
    pub fn new(budget: Arc<CreditBudget>) -> Self {
        Self {
            requests: BTreeMap::new(),
            control: VecDeque::new(),
            served: Arc::from(""),
            last_turn: 0,
            last_opened: 0,
            budget,
            dropped: 0,
        }
    }

    /// Number of requests.
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Number of frames that were dropped because their request was not known.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Whether a frame without data is to be sent.
    pub fn has_control(&self) -> bool {
        !self.control.is_empty()
    }

    /// Ids of the requests that both sides should have.
    pub fn running(&self) -> Vec<RequestNumber> {
        self.requests.iter().filter(|(_, request)| !request.is_over()).map(|(id, _)| *id).collect()
    }

    /// Opens a request; `head` is given the credit that the other side has.
    pub fn open(&mut self, head: impl FnOnce(u32) -> E::Says) -> RequestNumber {
        let window = Window::open(&self.budget, INITIAL_ANSWER_CREDIT);
        self.last_opened += 1;
        let (id, head) = (self.last_opened, head(window.size()));
        let window = if E::tells_credit(&head) {
            window
        } else {
            Window::open_uncounted(&self.budget, INITIAL_CREDIT)
        };
        let account = Arc::from(E::account_said(&head));
        let request = Request::new(window, Direction::New, Direction::Begun, INITIAL_CREDIT.into());
        self.insert(id, account, request);
        self.control.push_back((id, Control::Head(head)));
        id
    }

    /// Handles a frame that may open a request, whose answer has `credit` bytes.
    pub fn receive_opening(&mut self, id: RequestNumber, head: E::Hears, credit: u32) -> Received<E::Hears> {
        if id <= self.last_opened {
            self.dropped += 1;
            return match self.requests.get(&id) {
                Some(_) => self.break_off(id, "it was opened twice"),
                None => Received::Unknown,
            };
        }
        self.last_opened = id;
        let window = Window::open_unreserved(&self.budget, INITIAL_CREDIT);
        let account = Arc::from(E::account_heard(&head));
        let request = Request::new(window, Direction::Begun, Direction::New, credit.into());
        self.insert(id, account, request);
        Received::Opened(head)
    }

    fn insert(&mut self, id: RequestNumber, account: Arc<str>, request: Request<E>) {
        self.last_turn += 1;
        self.requests.insert(id, Request { account, turn: self.last_turn, ..request });
    }

    /// Handles a frame of the other side.
    pub fn receive(&mut self, id: RequestNumber, frame: Frame<E::Hears, E::IsStopped>) -> Received<E::Hears> {
        let Some(request) = self.requests.get_mut(&id).filter(|request| !request.is_over()) else {
            self.dropped += 1;
            return Received::Unknown;
        };
        match request.receive(frame) {
            Ok(()) => Received::Changed,
            Err(why) => self.break_off(id, why),
        }
    }

    /// Aborts a request, at both sides.
    fn break_off(&mut self, id: RequestNumber, why: &'static str) -> Received<E::Hears> {
        if let Some(request) = self.requests.get_mut(&id) {
            request.end_with(Event::Broken(why));
        }
        self.control.retain(|(of, _)| *of != id);
        self.control.push_back((id, Control::Stop(E::stop(why))));
        Received::Broken(why)
    }

    /// Handles the other side's list of requests: what one side lacks is aborted. The side that opens requests may have
    /// opened some since the list was made, and is told of those that the other lacks in answer to its own list.
    /// Returns the requests that were aborted here.
    pub fn reconcile(&mut self, theirs: &[RequestNumber], opens: bool) -> Vec<RequestNumber> {
        let theirs: BTreeSet<_> = theirs.iter().copied().collect();
        let waiting: BTreeSet<_> = self.control.iter().map(|(of, _)| *of).collect();
        for id in theirs.iter().filter(|id| **id <= self.last_opened && !waiting.contains(id)) {
            if self.requests.get(id).is_none_or(Request::is_over) {
                self.control.push_back((*id, Control::Stop(E::stop(UNKNOWN))));
            }
        }
        if opens {
            return Vec::new();
        }
        let lacking: Vec<_> = self.running().into_iter().filter(|id| !theirs.contains(id)).collect();
        for id in &lacking {
            if let Some(request) = self.requests.get_mut(id) {
                request.end_with(Event::Broken(UNKNOWN));
            }
        }
        self.control.retain(|(of, _)| lacking.binary_search(of).is_err());
        lacking
    }

    /// The stream is lost: every request that is not over ends. Returns their ids.
    pub fn lost(&mut self) -> Vec<RequestNumber> {
        let unsent: BTreeSet<_> = std::mem::take(&mut self.control)
            .into_iter()
            .filter_map(|(id, control)| matches!(control, Control::Head(_)).then_some(id))
            .collect();
        let running = self.running();
        for id in &running {
            if let Some(request) = self.requests.get_mut(id) {
                let is_unsent = request.hears == Direction::New && unsent.contains(id);
                request.end_with(Event::Broken(if is_unsent { UNSENT } else { LOST }));
            }
        }
        running
    }

    /// The next event of a request. `None`: nothing yet.
    pub fn next_event(&mut self, id: RequestNumber) -> Option<Event<E::Hears, E::IsStopped>> {
        let request = self.requests.get_mut(&id)?;
        let event = request.events.pop_front()?;
        if let Event::Data(bytes) = &event {
            let more = request.window.as_mut().map_or(0, |window| window.consumed(bytes.len()));
            request.release_window();
            if more > 0 && request.hears == Direction::Begun && !request.is_over() {
                let is_waiting = request.grant > 0;
                request.grant += more;
                if !is_waiting {
                    self.control.push_back((id, Control::Credit));
                }
            }
        }
        Some(event)
    }

    /// Sends the head of this side's direction. Returns false if the request is over, or if it was sent.
    pub fn send_head(&mut self, id: RequestNumber, head: E::Says) -> bool {
        let Some(request) = self.requests.get_mut(&id).filter(|one| one.says == Direction::New) else {
            return false;
        };
        request.says = Direction::Begun;
        self.control.push_back((id, Control::Head(head)));
        true
    }

    /// Whether more bytes may be queued; `None` if this side's direction is over.
    pub fn has_room(&self, id: RequestNumber) -> Option<bool> {
        let request = self.requests.get(&id).filter(|request| request.says == Direction::Begun)?;
        Some(request.queued < MAX_QUEUED_BYTES)
    }

    /// Queues bytes. Returns false if this side's direction is over, or has not begun.
    pub fn send(&mut self, id: RequestNumber, bytes: Bytes) -> bool {
        let Some(request) = self.requests.get_mut(&id).filter(|one| one.says == Direction::Begun) else {
            return false;
        };
        request.queued += bytes.len();
        if !bytes.is_empty() {
            request.queue.push_back(bytes);
        }
        true
    }

    /// Completes this side's direction after what is queued.
    pub fn end(&mut self, id: RequestNumber) {
        let Some(request) = self.requests.get_mut(&id).filter(|one| one.says == Direction::Begun) else {
            return;
        };
        request.says = Direction::Ending;
        self.complete(id);
    }

    /// Whether everything that this side sends was taken, or the request is over.
    pub fn is_flushed(&self, id: RequestNumber) -> bool {
        self.requests.get(&id).is_none_or(|request| request.says == Direction::Ended)
    }

    /// Ends a request early.
    pub fn stop(&mut self, id: RequestNumber, why: E::Stops) {
        let Some(request) = self.requests.get_mut(&id).filter(|request| !request.is_over()) else { return };
        request.finish();
        // What is complete stays so: only the rest is ended early.
        self.control.retain(|(of, control)| *of != id || matches!(control, Control::Head(_) | Control::End));
        self.control.push_back((id, Control::Stop(why)));
    }

    /// Forgets a request. One that is not over is ended early, for this reason.
    pub fn close(&mut self, id: RequestNumber, why: E::Stops) {
        self.stop(id, why);
        self.requests.remove(&id);
    }

    /// Pushes the end of a direction whose data is sent.
    fn complete(&mut self, id: RequestNumber) {
        let Some(request) = self.requests.get_mut(&id) else { return };
        if request.says == Direction::Ending && request.queue.is_empty() {
            request.says = Direction::Ended;
            self.control.push_back((id, Control::End));
        }
    }

    /// The next frame to send. Frames without data come first; then one frame of data of each account in turn, and of
    /// its requests in turn, so that many of one account take no more of the stream than one of another.
    pub fn next_frame(&mut self) -> Option<NumberedFrame<E>> {
        while let Some((id, control)) = self.control.pop_front() {
            let frame = match control {
                Control::Head(head) => Frame::Head(head),
                Control::End => Frame::End,
                Control::Stop(why) => Frame::Stop(why),
                Control::Credit => {
                    let Some(request) = self.requests.get_mut(&id) else { continue };
                    Frame::Credit(std::mem::take(&mut request.grant))
                }
            };
            return Some((id, frame));
        }
        let ready = self.requests.iter_mut().filter(|(_, one)| one.credit > 0 && !one.queue.is_empty());
        let served = &*self.served;
        let (id, request) =
            ready.min_by(|(_, one), (_, other)| one.turn_after(served).cmp(&other.turn_after(served)))?;
        let (id, bytes) = (*id, request.next_bytes()?);
        self.last_turn += 1;
        request.turn = self.last_turn;
        self.served = Arc::clone(&request.account);
        self.complete(id);
        Some((id, Frame::Data(bytes)))
    }
}

/// Why a request that the other side lacks is aborted.
const UNKNOWN: &str = "the other side does not know the request";
/// Why a request ends with its stream.
pub const LOST: &str = "the stream was lost";
/// Why a request ends with its stream of which the other side has seen nothing.
pub const UNSENT: &str = "the stream was lost before the request was sent";

#[cfg(test)]
mod tests;
