//! What a failure of one agent means for a request. Pure.

use kubesvc_core::requests::streams::UNSENT;
use kubesvc_core::wire::common::Failure;
use kubesvc_core::wire::common::failure::Class;

use crate::connected_agents::RequestError;

/// How one attempt at an agent failed, before an answer was given on.
#[derive(Clone, Debug)]
pub(super) enum AttemptFailure {
    /// The agent ended it.
    Stopped(Failure),
    /// The stream was lost, or a frame was not in order.
    Broken(&'static str),
    /// The time limit passed.
    TimedOut,
    /// The account was taken from its zone.
    Taken,
}

/// What follows.
#[derive(Clone, Debug)]
pub(super) enum NextStep {
    /// Certainly nothing was executed: another agent may be asked, once; else this is the answer.
    AskAnother(RequestError),
    /// The answer of the write is recalled from the same process.
    Recall,
    /// This is the answer.
    GiveUp(RequestError),
}

/// Decides what follows a failure; `is_write` says that the request may not be executed twice.
pub(super) fn after(failure: AttemptFailure, is_write: bool) -> NextStep {
    match failure {
        AttemptFailure::Stopped(failure) if failure.before_send => of_refusal(failure),
        AttemptFailure::Stopped(failure) if is_write => {
            NextStep::GiveUp(RequestError::Unknown(failure.message))
        }
        AttemptFailure::Stopped(failure) => {
            let is_timeout = failure.class() == Class::Timeout;
            let error = RequestError::NoAnswer { message: failure.message, is_timeout };
            if is_timeout { NextStep::GiveUp(error) } else { NextStep::AskAnother(error) }
        }
        AttemptFailure::Broken(UNSENT) => {
            let message = UNSENT.to_owned();
            NextStep::AskAnother(RequestError::NotSent(Failure {
                message,
                before_send: true,
                ..Failure::default()
            }))
        }
        AttemptFailure::Broken(_) if is_write => NextStep::Recall,
        AttemptFailure::Broken(why) => {
            NextStep::AskAnother(RequestError::NoAnswer { message: why.to_owned(), is_timeout: false })
        }
        AttemptFailure::Taken => {
            let message = "the account was taken from its zone while the request ran".to_owned();
            NextStep::GiveUp(if is_write {
                RequestError::Unknown(message)
            } else {
                RequestError::NoAnswer { message, is_timeout: false }
            })
        }
        AttemptFailure::TimedOut if is_write => {
            NextStep::GiveUp(RequestError::Unknown("the cluster did not answer in time".to_owned()))
        }
        AttemptFailure::TimedOut => {
            let message = "the cluster did not answer in time".to_owned();
            NextStep::GiveUp(RequestError::NoAnswer { message, is_timeout: true })
        }
    }
}

/// What follows when certainly nothing was executed.
fn of_refusal(failure: Failure) -> NextStep {
    match failure.class() {
        Class::Forbidden => NextStep::GiveUp(RequestError::Forbidden(failure.message)),
        Class::BadReference => {
            NextStep::GiveUp(RequestError::Invalid { message: failure.message, is_too_large: false })
        }
        Class::TooLarge => {
            NextStep::GiveUp(RequestError::Invalid { message: failure.message, is_too_large: true })
        }
        _ => NextStep::AskAnother(RequestError::NotSent(failure)),
    }
}

#[cfg(test)]
mod tests {
    use kubesvc_core::requests::streams::LOST;

    use super::*;

    fn stopped(class: Class, before_send: bool) -> AttemptFailure {
        AttemptFailure::Stopped(Failure { class: class.into(), before_send, ..Failure::default() })
    }

    #[test]
    fn a_write_goes_to_another_agent_only_if_certainly_nothing_was_executed() {
        let all =
            [Class::Unreachable, Class::Timeout, Class::Internal, Class::OutcomeUnknown, Class::NotFound];
        for class in all {
            assert!(matches!(after(stopped(class, true), true), NextStep::AskAnother(_)), "{class:?}");
            let unknown = after(stopped(class, false), true);
            assert!(matches!(unknown, NextStep::GiveUp(RequestError::Unknown(_))), "{class:?}");
        }
        assert!(matches!(after(AttemptFailure::Broken(UNSENT), true), NextStep::AskAnother(_)));
        assert!(matches!(after(AttemptFailure::Broken(LOST), true), NextStep::Recall));
        assert!(matches!(after(AttemptFailure::Broken("it has two heads"), true), NextStep::Recall));
        assert!(matches!(after(AttemptFailure::TimedOut, true), NextStep::GiveUp(RequestError::Unknown(_))));
    }

    #[test]
    fn a_read_goes_to_another_agent_unless_its_time_is_over_or_its_owner_forbids_it() {
        assert!(matches!(after(stopped(Class::Unreachable, false), false), NextStep::AskAnother(_)));
        assert!(matches!(after(AttemptFailure::Broken(LOST), false), NextStep::AskAnother(_)));
        assert!(matches!(after(AttemptFailure::TimedOut, false), NextStep::GiveUp(_)));
        let forbidden = after(stopped(Class::Forbidden, true), false);
        assert!(matches!(forbidden, NextStep::GiveUp(RequestError::Forbidden(_))));
    }

    #[test]
    fn what_is_said_of_an_outcome_agrees_with_whether_something_may_have_been_executed() {
        for is_write in [false, true] {
            for failure in [stopped(Class::Overloaded, true), AttemptFailure::Broken(UNSENT)] {
                let NextStep::AskAnother(error) = after(failure, is_write) else {
                    unreachable!("nothing was executed")
                };
                assert!(error.is_before_send());
            }
        }
    }
}
