//! Who calls, and what they may: at the beginning of a call, and again while a stream lasts.

use std::sync::Arc;
use std::time::Duration;

use http::header::AUTHORIZATION;
use http::{HeaderMap, Method};
use tokio::time::{MissedTickBehavior, interval};

use super::listener::ConnectionInfo;
use super::paths::AccountPath;
use super::status::Refusal;
use super::{Call, Gateway};
use crate::access::{Access, AccessError, AccessResource, Caller, Principal, RequestedAccess, Via};
use crate::connected_agents::RequestClass;
use kubesvc_runtime::crash_points;

/// Interval between two checks of a stream, in seconds.
const RECHECK_SECONDS: u64 = 60;
/// Number of checks in a row that nobody could answer, after which a stream is cut.
const MAX_UNANSWERED_CHECKS: u32 = 3;

impl Gateway {
    /// Finds out who calls.
    pub(super) async fn authenticate(
        &self,
        call: &Call,
        from: &ConnectionInfo,
    ) -> Result<Principal, Refusal> {
        let caller = Caller { headers: &call.headers, certificates: &from.certificates };
        self.ports.access.authenticate(caller).await.map_err(|error| {
            let refusal = Refusal::from(error);
            self.refused_stranger(call, &refusal);
            refusal
        })
    }

    /// Checks what the caller may. Returns what is checked again while a stream lasts.
    pub(super) async fn authorize(
        &self,
        call: &Call,
        principal: &Principal,
        wanted: Vec<RequestedAccess>,
    ) -> Result<Recheck, Refusal> {
        for access in &wanted {
            self.ports.access.authorize(principal, access).await?;
        }
        let mut headers = HeaderMap::new();
        if let (Via::Token, Some(token)) = (principal.via, call.headers.get(AUTHORIZATION)) {
            headers.insert(AUTHORIZATION, token.clone());
        }
        let (access, principal) = (Arc::clone(&self.ports.access), principal.clone());
        Ok(Recheck { access, principal, wanted, headers })
    }
}

/// What a request needs. Class connect needs a right of its own besides.
pub(super) fn wanted(
    method: &Method,
    class: RequestClass,
    account: &AccountPath,
) -> Result<Vec<RequestedAccess>, Refusal> {
    let AccountPath { namespace, object } = account;
    let access = |verb, resource| RequestedAccess {
        verb,
        resource,
        namespace: namespace.clone(),
        object: object.clone(),
    };
    let mut wanted = vec![access(verb(method)?, AccessResource::Proxy)];
    if class == RequestClass::Connect {
        wanted.push(access("create", AccessResource::Connect));
    }
    Ok(wanted)
}

fn verb(method: &Method) -> Result<&'static str, Refusal> {
    match *method {
        Method::GET | Method::HEAD => Ok("get"),
        Method::POST => Ok("create"),
        Method::PUT => Ok("update"),
        Method::PATCH => Ok("patch"),
        Method::DELETE => Ok("delete"),
        _ => Err(Refusal::method_not_allowed()),
    }
}

/// The checks of a stream.
pub(super) struct Recheck {
    access: Arc<dyn Access>,
    /// Who called at the beginning.
    principal: Principal,
    wanted: Vec<RequestedAccess>,
    /// The token; empty if the API server said who calls.
    headers: HeaderMap,
}

impl Recheck {
    /// Checks again and again. Returns why the stream must end.
    pub(super) async fn until_refused(self) -> String {
        let seconds = crash_points::seconds("KUBESVC_GATEWAY_RECHECK_SECONDS", RECHECK_SECONDS);
        let mut checks = interval(Duration::from_secs(seconds.max(1)));
        checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        checks.tick().await;
        let mut unanswered = 0;
        loop {
            checks.tick().await;
            match self.check().await {
                Ok(()) => unanswered = 0,
                Err(error @ (AccessError::Unavailable(_) | AccessError::Busy)) => {
                    unanswered += 1;
                    if unanswered >= MAX_UNANSWERED_CHECKS {
                        return error.to_string();
                    }
                }
                Err(error) => return error.to_string(),
            }
        }
    }

    async fn check(&self) -> Result<(), AccessError> {
        let reviewed = self.reviewed().await?;
        let principal = reviewed.as_ref().unwrap_or(&self.principal);
        for access in &self.wanted {
            self.access.authorize(principal, access).await?;
        }
        Ok(())
    }

    /// Who calls by the token now: groups change. `None`: the API server said who called, and cannot be asked again.
    async fn reviewed(&self) -> Result<Option<Principal>, AccessError> {
        if self.headers.is_empty() {
            return Ok(None);
        }
        let caller = Caller { headers: &self.headers, certificates: &[] };
        let now = self.access.authenticate(caller).await?;
        if now.name != self.principal.name {
            return Err(AccessError::Unauthenticated("the token is another user's now".to_owned()));
        }
        Ok(Some(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_verb_follows_the_method_and_connecting_needs_a_right_of_its_own() {
        let account = AccountPath { namespace: "ns".to_owned(), object: "prod".to_owned() };
        for (method, class, verbs) in [
            (Method::GET, RequestClass::Read, vec!["get"]),
            (Method::HEAD, RequestClass::Read, vec!["get"]),
            (Method::POST, RequestClass::Read, vec!["create"]),
            (Method::PUT, RequestClass::Write, vec!["update"]),
            (Method::PATCH, RequestClass::Write, vec!["patch"]),
            (Method::DELETE, RequestClass::Write, vec!["delete"]),
            (Method::GET, RequestClass::Connect, vec!["get", "create"]),
        ] {
            let wanted = wanted(&method, class, &account).expect("a method");
            assert_eq!(wanted.iter().map(|one| one.verb).collect::<Vec<_>>(), verbs, "{method}");
            assert_eq!(wanted[0].resource, AccessResource::Proxy);
            assert_eq!(wanted.len() == 2, class == RequestClass::Connect);
        }
        for method in [Method::OPTIONS, Method::TRACE, Method::CONNECT] {
            assert!(wanted(&method, RequestClass::Read, &account).is_err());
        }
    }
}
