//! What a failure of one agent means for a request. Pure.

use kubesvc_core::requests::streams::{LOST, UNSENT};
use kubesvc_core::wire::common::Failure;
use kubesvc_core::wire::common::failure::Class;

use crate::connected_agents::{
    AnsweringAgent, Repetition, RequestError, RequestErrorKind as Kind, Retry, Suspects,
};

/// The agent ended the request.
pub(super) fn stopped(failure: Failure, repetition: Repetition) -> RequestError {
    let class = failure.class();
    let (kind, retry) = match class {
        Class::Forbidden if failure.before_send => (Kind::Forbidden, Retry::Never),
        Class::BadReference if failure.before_send => (Kind::Invalid, Retry::Never),
        Class::TooLarge if failure.before_send => (Kind::TooLarge, Retry::Never),
        _ if failure.before_send => (Kind::NotSent, Retry::Elsewhere),
        _ if repetition != Repetition::Any => return RequestError::unknown(&failure.message),
        Class::Timeout => (Kind::Timeout, Retry::Never),
        _ => (Kind::NoAnswer, Retry::Elsewhere),
    };
    RequestError { kind, message: failure.message, retry }
}

/// The stream to this process was lost, or a frame was not in order.
pub(super) fn broken(why: &str, repetition: Repetition, agent: AnsweringAgent) -> RequestError {
    match repetition {
        _ if why == UNSENT => RequestError::new(Kind::NotSent, why).then(Retry::Later),
        Repetition::Recalled => RequestError::recallable(Suspects::certain(agent)),
        Repetition::Once => RequestError::unknown("the connection to the agent was lost"),
        // The agent has just died.
        Repetition::Any if why == LOST => RequestError::new(Kind::NoAnswer, why).then(Retry::Later),
        Repetition::Any => RequestError::new(Kind::NoAnswer, why).then(Retry::Elsewhere),
    }
}

/// The time limit passed.
pub(super) fn timed_out(repetition: Repetition) -> RequestError {
    given_up(Kind::Timeout, "the cluster did not answer in time", repetition)
}

/// The account was taken from its zone.
pub(super) fn taken(repetition: Repetition) -> RequestError {
    given_up(Kind::NoAnswer, "the account was taken from its zone while the request ran", repetition)
}

/// The end of a request that was sent: of this kind if it may be executed twice, else unknown.
pub(super) fn given_up(kind: Kind, why: &str, repetition: Repetition) -> RequestError {
    if repetition == Repetition::Any { RequestError::new(kind, why) } else { RequestError::unknown(why) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WRITE: Repetition = Repetition::Recalled;
    const READ: Repetition = Repetition::Any;

    fn process() -> AnsweringAgent {
        AnsweringAgent { agent_id: "agent".into(), boot_id: "boot".into() }
    }

    fn stopped(class: Class, before_send: bool, repetition: Repetition) -> RequestError {
        super::stopped(Failure { class: class.into(), before_send, ..Failure::default() }, repetition)
    }

    fn broken(why: &str, repetition: Repetition) -> RequestError {
        super::broken(why, repetition, process())
    }

    #[test]
    fn a_write_goes_to_another_agent_only_if_certainly_nothing_was_executed() {
        let all =
            [Class::Unreachable, Class::Timeout, Class::Internal, Class::OutcomeUnknown, Class::NotFound];
        for class in all {
            assert!(stopped(class, true, WRITE).goes_elsewhere(), "{class:?}");
            let unknown = stopped(class, false, WRITE);
            assert_eq!((unknown.kind, unknown.retry), (Kind::Unknown, Retry::Never), "{class:?}");
        }
        assert!(broken(UNSENT, WRITE).goes_elsewhere());
        for why in [LOST, "it has two heads"] {
            assert_eq!(broken(why, WRITE).retry, Retry::Recall(Suspects::certain(process())));
            assert_eq!(broken(why, Repetition::Once).retry, Retry::Never);
        }
        for error in [timed_out(WRITE), taken(WRITE), broken(LOST, WRITE), broken(LOST, Repetition::Once)] {
            assert_eq!(error.kind, Kind::Unknown);
        }
        assert_eq!(timed_out(WRITE).retry, Retry::Never);
    }

    #[test]
    fn a_read_goes_to_another_agent_unless_its_time_is_over_or_its_owner_forbids_it() {
        assert!(stopped(Class::Unreachable, false, READ).goes_elsewhere());
        assert!(broken(LOST, READ).goes_elsewhere());
        for error in [timed_out(READ), stopped(Class::Timeout, false, READ)] {
            assert_eq!((error.kind, error.retry), (Kind::Timeout, Retry::Never));
        }
        let forbidden = stopped(Class::Forbidden, true, READ);
        assert_eq!((forbidden.kind, forbidden.retry), (Kind::Forbidden, Retry::Never));
    }

    #[test]
    fn what_is_said_of_an_outcome_agrees_with_whether_something_may_have_been_executed() {
        for repetition in [READ, WRITE, Repetition::Once] {
            for error in [stopped(Class::Overloaded, true, repetition), broken(UNSENT, repetition)] {
                assert!(error.goes_elsewhere() && error.is_before_send());
            }
            assert!(!broken(LOST, repetition).is_before_send());
        }
    }

    #[test]
    fn a_caller_is_told_to_try_again_when_the_agent_has_just_died() {
        assert_eq!(broken(UNSENT, WRITE).retry, Retry::Later);
        assert_eq!(broken(LOST, READ).retry, Retry::Later);
        assert_eq!(broken("it has two heads", READ).retry, Retry::Elsewhere);
        assert_eq!(stopped(Class::NotFound, true, READ).retry, Retry::Elsewhere);
    }
}
