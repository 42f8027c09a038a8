//! The two ends of a stream in their messages.

use super::credit::NO_MEMORY;
use super::streams::{End, Frame, RequestNumber};
use crate::wire::common::Failure;
use crate::wire::common::failure::Class;
use crate::wire::ops::{
    Abort, Cancel, Credit, Data, End as EndFrame, Head, Open, Recall, RequestDown, RequestUp, request_down,
    request_up,
};

/// What begins a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Opening {
    /// A new request.
    Open(Box<Open>),
    /// The answer of a former one is asked for.
    Recall(Recall),
}

/// The hub's end.
#[derive(Clone, Copy, Debug)]
pub struct HubEnd;

/// The agent's end.
#[derive(Clone, Copy, Debug)]
pub struct AgentEnd;

impl Opening {
    /// Uid of the account; a recall names none.
    fn account(&self) -> &str {
        match self {
            Self::Open(open) => open.account.as_ref().map_or("", |account| &account.uid),
            Self::Recall(_) => "",
        }
    }
}

impl End for HubEnd {
    type Says = Opening;
    type Stops = ();
    type Hears = Head;
    type IsStopped = Failure;

    fn stop(_: &'static str) {}

    fn account_said(opening: &Opening) -> &str {
        opening.account()
    }

    fn tells_credit(opening: &Opening) -> bool {
        matches!(opening, Opening::Open(_))
    }
}

impl End for AgentEnd {
    type Says = Head;
    type Stops = Failure;
    type Hears = Opening;
    type IsStopped = ();

    fn stop(why: &'static str) -> Failure {
        let before_send = why == NO_MEMORY;
        let class = if before_send { Class::Overloaded } else { Class::OutcomeUnknown };
        let message = format!("the agent ended the request: {why}");
        Failure { class: class.into(), retryable: before_send, message, http_status: 0, before_send }
    }

    fn account_heard(opening: &Opening) -> &str {
        opening.account()
    }
}

/// A frame of the hub as a message.
pub fn down(id: RequestNumber, frame: Frame<Opening, ()>) -> RequestDown {
    use request_down::Frame as Down;
    let frame = match frame {
        Frame::Head(Opening::Open(open)) => Down::Open(*open),
        Frame::Head(Opening::Recall(recall)) => Down::Recall(recall),
        Frame::Data(bytes) => Down::Data(Data { bytes }),
        Frame::End => Down::End(EndFrame {}),
        Frame::Stop(()) => Down::Cancel(Cancel {}),
        Frame::Credit(bytes) => Down::Credit(Credit { bytes }),
    };
    RequestDown { id, frame: Some(frame) }
}

/// A frame of the agent as a message.
pub fn up(id: RequestNumber, frame: Frame<Head, Failure>) -> RequestUp {
    use request_up::Frame as Up;
    let frame = match frame {
        Frame::Head(head) => Up::Head(head),
        Frame::Data(bytes) => Up::Data(Data { bytes }),
        Frame::End => Up::End(EndFrame {}),
        Frame::Stop(failure) => Up::Abort(Abort { failure: Some(failure) }),
        Frame::Credit(bytes) => Up::Credit(Credit { bytes }),
    };
    RequestUp { id, frame: Some(frame) }
}
