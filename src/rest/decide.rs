//! What a request does to an account in each state: the table, as a function. No I/O.
//!
//! The state is the shown one. Where the table names a state after the request, that is what the account shows once
//! the effect is stored: TO_MIGRATE, TO_DEACTIVATE and DELETING are shown for what is asked and not yet handled.

use axum::http::StatusCode;

use crate::account::{DesiredState, State};

/// What is asked for one account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Request {
    /// One of the two POSTs.
    Add,
    /// PATCH with `state: ACTIVE`, or PUT with it.
    Activate,
    /// PATCH with `state: INACTIVE`, or PUT with it.
    Deactivate,
    /// PUT.
    Put,
    /// DELETE.
    Delete,
}

/// What is to be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestEffect {
    /// Nothing, but what the body changes in the spec.
    Store,
    /// The body's changes, and this desired state.
    Desire(DesiredState),
    /// The body's changes, and a new value of the retry annotation, which sets the count of failures to 0.
    Retry,
    /// All three.
    DesireAndRetry(DesiredState),
    /// A new object.
    Create,
    /// The object is deleted.
    Delete,
    /// Only a new value of the retry annotation: the deletion goes on now.
    RetryDelete,
    /// Nothing at all.
    Nothing,
}

/// The answer's code, and what is stored before it is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RequestDecision {
    /// The code; the effect is `Nothing` unless it is a success.
    pub(super) status: StatusCode,
    /// What to store.
    pub(super) effect: RequestEffect,
}

impl RequestDecision {
    fn accepted(effect: RequestEffect) -> Self {
        Self { status: StatusCode::ACCEPTED, effect }
    }

    fn refused(status: StatusCode) -> Self {
        Self { status, effect: RequestEffect::Nothing }
    }
}

/// Decides for an account, as it is shown and desired, or for none.
pub(super) fn decide(now: Option<(State, DesiredState)>, request: Request) -> RequestDecision {
    let Some((shown, desired)) = now else { return unknown(request) };
    match (request, shown) {
        (Request::Add, _) => RequestDecision::refused(StatusCode::CONFLICT),
        (Request::Delete, State::Deleting) => RequestDecision::accepted(RequestEffect::Nothing),
        (Request::Delete, State::DeleteFailed) => RequestDecision::accepted(RequestEffect::RetryDelete),
        (_, State::Deleting | State::DeleteFailed) => RequestDecision::refused(StatusCode::CONFLICT),
        (Request::Delete, _) => RequestDecision::accepted(RequestEffect::Delete),
        (Request::Activate, _) => RequestDecision::accepted(activate(shown, desired)),
        (Request::Deactivate, _) => RequestDecision::accepted(deactivate(shown, desired)),
        (Request::Put, State::Failed) if desired == DesiredState::Active => {
            RequestDecision::accepted(RequestEffect::Retry)
        }
        (Request::Put, _) => RequestDecision::accepted(RequestEffect::Store),
    }
}

fn unknown(request: Request) -> RequestDecision {
    match request {
        Request::Add => RequestDecision::accepted(RequestEffect::Create),
        Request::Put => RequestDecision::refused(StatusCode::NOT_FOUND),
        Request::Activate | Request::Deactivate | Request::Delete => {
            RequestDecision::refused(StatusCode::BAD_REQUEST)
        }
    }
}

fn activate(shown: State, desired: DesiredState) -> RequestEffect {
    match (desired, shown) {
        (DesiredState::Active, State::Active) => RequestEffect::Store,
        // It is on its way, or was: what failed until now is forgotten, and it is tried at once.
        (DesiredState::Active, _) => RequestEffect::Retry,
        (DesiredState::Inactive, State::Failed) => RequestEffect::DesireAndRetry(DesiredState::Active),
        (DesiredState::Inactive, _) => RequestEffect::Desire(DesiredState::Active),
    }
}

fn deactivate(shown: State, desired: DesiredState) -> RequestEffect {
    match (desired, shown) {
        (DesiredState::Active, _) => RequestEffect::Desire(DesiredState::Inactive),
        (DesiredState::Inactive, State::Failed) => RequestEffect::Retry,
        (DesiredState::Inactive, _) => RequestEffect::Store,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ACTIVE: DesiredState = DesiredState::Active;
    const INACTIVE: DesiredState = DesiredState::Inactive;
    const ACCEPTED: u16 = 202;

    /// One line of the table: the account now, and what ADD, PATCH ACTIVE, PATCH INACTIVE, PUT and DELETE do.
    type Line = (Option<(State, DesiredState)>, [(u16, RequestEffect); 5]);

    fn line(state: State, desired: DesiredState, others: [(u16, RequestEffect); 4]) -> Line {
        let [activate, deactivate, put, delete] = others;
        (Some((state, desired)), [(409, RequestEffect::Nothing), activate, deactivate, put, delete])
    }

    fn table() -> Vec<Line> {
        let refused = (409, RequestEffect::Nothing);
        let store = (ACCEPTED, RequestEffect::Store);
        let retry = (ACCEPTED, RequestEffect::Retry);
        let on = (ACCEPTED, RequestEffect::Desire(ACTIVE));
        let off = (ACCEPTED, RequestEffect::Desire(INACTIVE));
        let delete = (ACCEPTED, RequestEffect::Delete);
        let unknown = (400, RequestEffect::Nothing);
        vec![
            (
                None,
                [(ACCEPTED, RequestEffect::Create), unknown, unknown, (404, RequestEffect::Nothing), unknown],
            ),
            line(State::Inactive, INACTIVE, [on, store, store, delete]),
            line(State::ToMigrate, ACTIVE, [retry, off, store, delete]),
            line(State::Activating, ACTIVE, [retry, off, store, delete]),
            line(State::Active, ACTIVE, [store, off, store, delete]),
            line(State::ToDeactivate, INACTIVE, [on, store, store, delete]),
            line(State::Deactivating, INACTIVE, [on, store, store, delete]),
            line(State::Deactivating, ACTIVE, [retry, off, store, delete]),
            line(State::Deleting, ACTIVE, [refused, refused, refused, (ACCEPTED, RequestEffect::Nothing)]),
            line(State::Deleting, INACTIVE, [refused, refused, refused, (ACCEPTED, RequestEffect::Nothing)]),
            line(
                State::DeleteFailed,
                ACTIVE,
                [refused, refused, refused, (ACCEPTED, RequestEffect::RetryDelete)],
            ),
            line(
                State::DeleteFailed,
                INACTIVE,
                [refused, refused, refused, (ACCEPTED, RequestEffect::RetryDelete)],
            ),
            line(State::Failed, ACTIVE, [retry, off, retry, delete]),
            line(
                State::Failed,
                INACTIVE,
                [(ACCEPTED, RequestEffect::DesireAndRetry(ACTIVE)), retry, store, delete],
            ),
            line(State::Orphaned, ACTIVE, [retry, off, store, delete]),
        ]
    }

    #[test]
    fn every_cell_of_the_table() {
        let requests = [Request::Add, Request::Activate, Request::Deactivate, Request::Put, Request::Delete];
        let mut cells = 0;
        for (now, expected) in table() {
            for (request, (status, effect)) in requests.into_iter().zip(expected) {
                let verdict = decide(now, request);
                assert_eq!(
                    (verdict.status.as_u16(), verdict.effect),
                    (status, effect),
                    "{now:?} {request:?}"
                );
                cells += 1;
            }
        }
        assert_eq!(cells, 75);
    }

    #[test]
    fn every_state_has_a_line() {
        for state in State::ALL {
            assert!(table().iter().any(|(now, _)| now.is_some_and(|(shown, _)| shown == state)), "{state}");
        }
    }

    #[test]
    fn what_is_refused_stores_nothing() {
        let requests = [Request::Add, Request::Activate, Request::Deactivate, Request::Put, Request::Delete];
        for state in State::ALL {
            for desired in [ACTIVE, INACTIVE] {
                for request in requests {
                    let verdict = decide(Some((state, desired)), request);
                    assert_eq!(!verdict.status.is_success(), verdict.status == StatusCode::CONFLICT);
                    assert!(verdict.status.is_success() || verdict.effect == RequestEffect::Nothing);
                }
            }
        }
    }
}
