//! What a request does to an account in each state: the documented table as a pure function.
//!
//! `State` is the state that is shown. Where the table names a state after the request, the account shows it once the
//! effect is stored: TO_MIGRATE, TO_DEACTIVATE and DELETING are shown for a desired state that nothing has handled
//! yet.

use axum::http::StatusCode;

use kubesvc_core::{DesiredState, State};

/// A request about one account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AccountVerb {
    /// POST, on either path.
    Add,
    /// PATCH or PUT with `state: ACTIVE`.
    Activate,
    /// PATCH or PUT with `state: INACTIVE`.
    Deactivate,
    /// PUT without a state.
    Put,
    /// DELETE.
    Delete,
}

/// What the request stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestEffect {
    /// Only the body's changes to the spec.
    Store,
    /// The body's changes and this desired state.
    Desire(DesiredState),
    /// The body's changes and a new value of the retry annotation, which resets the failure count to 0.
    Retry,
    /// The body's changes, this desired state and a new value of the retry annotation.
    DesireAndRetry(DesiredState),
    /// A new object.
    Create,
    /// Deletion of the object.
    Delete,
    /// Only a new value of the retry annotation, so that the deletion is retried at once.
    RetryDelete,
    /// Nothing.
    Nothing,
}

/// Status of the answer, and what is stored before it is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RequestDecision {
    /// Status code. The effect is `Nothing` unless this is a success.
    pub(super) status: StatusCode,
    /// What the request stores.
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

/// Decides about an account with its shown and desired state; `None` if there is no account.
pub(super) fn decide(now: Option<(State, DesiredState)>, request: AccountVerb) -> RequestDecision {
    let Some((shown, desired)) = now else { return unknown(request) };
    match (request, shown) {
        (AccountVerb::Add, _) => RequestDecision::refused(StatusCode::CONFLICT),
        (AccountVerb::Delete, State::Deleting) => RequestDecision::accepted(RequestEffect::Nothing),
        (AccountVerb::Delete, State::DeleteFailed) => RequestDecision::accepted(RequestEffect::RetryDelete),
        (_, State::Deleting | State::DeleteFailed) => RequestDecision::refused(StatusCode::CONFLICT),
        (AccountVerb::Delete, _) => RequestDecision::accepted(RequestEffect::Delete),
        (AccountVerb::Activate, _) => RequestDecision::accepted(activate(shown, desired)),
        (AccountVerb::Deactivate, _) => RequestDecision::accepted(deactivate(shown, desired)),
        (AccountVerb::Put, State::Failed) if desired == DesiredState::Active => {
            RequestDecision::accepted(RequestEffect::Retry)
        }
        (AccountVerb::Put, _) => RequestDecision::accepted(RequestEffect::Store),
    }
}

fn unknown(request: AccountVerb) -> RequestDecision {
    match request {
        AccountVerb::Add => RequestDecision::accepted(RequestEffect::Create),
        AccountVerb::Put => RequestDecision::refused(StatusCode::NOT_FOUND),
        AccountVerb::Activate | AccountVerb::Deactivate | AccountVerb::Delete => {
            RequestDecision::refused(StatusCode::BAD_REQUEST)
        }
    }
}

fn activate(shown: State, desired: DesiredState) -> RequestEffect {
    match (desired, shown) {
        (DesiredState::Active, State::Active) => RequestEffect::Store,
        // The account is being activated, or was active: reset its failure count and retry at once.
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

    /// One row of the table: the account before, and the results of ADD, PATCH ACTIVE, PATCH INACTIVE, PUT and
    /// DELETE.
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
        let requests = [
            AccountVerb::Add,
            AccountVerb::Activate,
            AccountVerb::Deactivate,
            AccountVerb::Put,
            AccountVerb::Delete,
        ];
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
    fn refused_request_stores_nothing() {
        let requests = [
            AccountVerb::Add,
            AccountVerb::Activate,
            AccountVerb::Deactivate,
            AccountVerb::Put,
            AccountVerb::Delete,
        ];
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
