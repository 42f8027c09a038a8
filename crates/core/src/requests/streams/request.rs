//! One request at one end: where its two directions are, what waits to be sent and to be read, and the order of frames.

use std::collections::VecDeque;
use std::sync::Arc;

use prost::bytes::{Bytes, BytesMut};

use super::{End, Event, Frame, MAX_DATA_BYTES};
use crate::requests::credit::{OVERRUN, Window};

/// One request at this end.
pub(super) struct Request<E: End> {
    /// Until the other direction has ended and is consumed.
    pub(super) window: Option<Window>,
    pub(super) grant: u32,
    pub(super) events: VecDeque<Event<E::Hears, E::IsStopped>>,
    pub(super) hears: Direction,
    pub(super) says: Direction,
    /// Bytes to send, in order.
    pub(super) queue: VecDeque<Bytes>,
    pub(super) queued: usize,
    /// Bytes that the other side takes.
    pub(super) credit: u64,
    /// Uid of its account.
    pub(super) account: Arc<str>,
    /// When it sends data, among the requests of its account: the smallest comes first.
    pub(super) turn: u64,
}

/// Where one direction is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    /// Its head has not come.
    New,
    /// Data may come.
    Begun,
    /// Its end follows what is queued.
    Ending,
    /// It is complete, or the request was stopped.
    Ended,
}

impl<E: End> Request<E> {
    pub(super) fn new(window: Window, hears: Direction, says: Direction, credit: u64) -> Self {
        Self {
            window: Some(window),
            grant: 0,
            events: VecDeque::new(),
            hears,
            says,
            queue: VecDeque::new(),
            queued: 0,
            credit,
            account: Arc::from(""),
            turn: 0,
        }
    }

    /// Its place among the requests that can send data: the next account after the one that was served comes first, from
    /// the first one again after the last.
    pub(super) fn turn_after(&self, served: &str) -> (bool, &str, u64) {
        (*self.account <= *served, &self.account, self.turn)
    }

    /// Gives the memory back once nothing more comes.
    pub(super) fn release_window(&mut self) {
        if self.hears == Direction::Ended {
            self.window.take_if(|window| window.is_drained());
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.hears == Direction::Ended && self.says == Direction::Ended
    }

    pub(super) fn finish(&mut self) {
        (self.hears, self.says) = (Direction::Ended, Direction::Ended);
        self.queue.clear();
        self.queued = 0;
        self.release_window();
    }

    pub(super) fn end_with(&mut self, event: Event<E::Hears, E::IsStopped>) {
        self.finish();
        self.events.push_back(event);
    }

    pub(super) fn receive(&mut self, frame: Frame<E::Hears, E::IsStopped>) -> Result<(), &'static str> {
        match (frame, self.hears) {
            (Frame::Head(head), Direction::New) => {
                self.hears = Direction::Begun;
                self.events.push_back(Event::Head(head));
            }
            (Frame::Data(bytes), Direction::Begun) => {
                if bytes.len() > MAX_DATA_BYTES {
                    return Err("a frame has more than 32 KiB");
                }
                self.window.as_mut().ok_or(OVERRUN)?.received(bytes.len())?;
                if !bytes.is_empty() {
                    self.events.push_back(Event::Data(bytes));
                }
            }
            (Frame::End, Direction::Begun) => {
                self.hears = Direction::Ended;
                self.events.push_back(Event::End);
                self.release_window();
            }
            (Frame::Stop(why), _) => self.end_with(Event::Stopped(why)),
            (Frame::Credit(bytes), _) => {
                self.credit = self.credit.saturating_add(bytes.into());
                if self.credit > u64::from(u32::MAX) {
                    return Err("more credit was granted than any request has");
                }
            }
            (Frame::Head(_), _) => return Err("it has two heads"),
            (Frame::Data(_) | Frame::End, Direction::New) => return Err("its head did not come first"),
            (Frame::Data(_) | Frame::End, _) => return Err("something came after its end"),
        }
        Ok(())
    }

    /// The bytes of the next frame. Pieces that wait are sent together: a frame costs more than a copy of its bytes.
    pub(super) fn next_bytes(&mut self) -> Option<Bytes> {
        let most = MAX_DATA_BYTES.min(usize::try_from(self.credit).unwrap_or(usize::MAX));
        let first = self.next_piece(most)?;
        let rest = most.min(self.queued) - first.len();
        let bytes = if rest == 0 {
            first
        } else {
            let mut bytes = BytesMut::with_capacity(first.len() + rest);
            bytes.extend_from_slice(&first);
            while let Some(piece) = self.next_piece(most - bytes.len()) {
                bytes.extend_from_slice(&piece);
            }
            bytes.freeze()
        };
        self.queued -= bytes.len();
        self.credit -= bytes.len() as u64;
        Some(bytes)
    }

    /// Takes at most so many bytes of the first piece that waits.
    fn next_piece(&mut self, most: usize) -> Option<Bytes> {
        let front = self.queue.front_mut().filter(|_| most > 0)?;
        if front.len() > most { Some(front.split_to(most)) } else { self.queue.pop_front() }
    }
}
