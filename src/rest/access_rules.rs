//! What callers need for each route. A route and its rule are one: [`GuardedRoutes`] takes no handler without one.

use axum::Router;
use axum::extract::Request;
use axum::handler::Handler;
use axum::http::Method;
use axum::middleware::{Next, from_fn};
use axum::routing::{MethodFilter, MethodRouter};

use super::RestState;
use super::call_guard::admit;

/// What a caller needs for a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AccessRule {
    /// Nothing: anybody may call.
    Open,
    /// To be known: there is nothing at this path.
    Nothing,
    /// This verb on the accounts that the call is about. The handler has it reviewed, once it knows them.
    Accounts(&'static str),
    /// `get` on what is cached of an account, reviewed in the same way.
    Cache,
    /// This verb on KubesvcAgents in the operator's namespace.
    Agents(&'static str),
    /// The method's verb on Clouddriver's account management.
    Clouddriver,
    /// The same if unknown paths are passed on to Clouddriver, else [`AccessRule::Nothing`].
    UnknownPath,
    /// `get` on this path.
    Path(&'static str),
    /// What [`Operations`](crate::operations::Operations) ask for, in each mode.
    Operations,
}

impl AccessRule {
    /// Verb of RBAC of a call with this method.
    pub(super) fn verb(self, method: &Method) -> &'static str {
        match self {
            Self::Accounts(verb) | Self::Agents(verb) => verb,
            Self::Clouddriver | Self::UnknownPath => match *method {
                Method::GET | Method::HEAD | Method::OPTIONS => "get",
                Method::POST => "create",
                Method::DELETE => "delete",
                _ => "update",
            },
            Self::Open | Self::Nothing | Self::Cache | Self::Path(_) | Self::Operations => "get",
        }
    }
}

/// Methods of a route, each with its rule.
pub(super) struct GuardedMethods<S = RestState>(MethodRouter<S>);

impl<S: Clone + Send + Sync + 'static> GuardedMethods<S> {
    fn on<H, T>(self, method: MethodFilter, rule: AccessRule, handler: H) -> Self
    where
        H: Handler<T, S>,
        T: 'static,
    {
        let guard = from_fn(move |request: Request, next: Next| admit(rule, request, next));
        Self(if rule == AccessRule::Open {
            self.0.on(method, handler)
        } else {
            self.0.on(method, handler.layer(guard))
        })
    }

    /// All methods that have no handler of their own.
    pub(super) fn others<H, T>(self, rule: AccessRule, handler: H) -> Self
    where
        H: Handler<T, S>,
        T: 'static,
    {
        let guard = from_fn(move |request: Request, next: Next| admit(rule, request, next));
        Self(self.0.fallback(handler.layer(guard)))
    }
}

macro_rules! methods {
    ($($name:ident $method:ident),+) => {
        impl<S: Clone + Send + Sync + 'static> GuardedMethods<S> {
            $(pub(super) fn $name<H, T>(self, rule: AccessRule, handler: H) -> Self
            where
                H: Handler<T, S>,
                T: 'static,
            {
                self.on(MethodFilter::$method, rule, handler)
            })+
        }
    };
}

methods!(get GET, post POST, put PUT, patch PATCH, delete DELETE);

macro_rules! first_methods {
    ($($name:ident),+) => {
        $(pub(super) fn $name<H, T, S>(rule: AccessRule, handler: H) -> GuardedMethods<S>
        where
            H: Handler<T, S>,
            T: 'static,
            S: Clone + Send + Sync + 'static,
        {
            GuardedMethods(MethodRouter::new()).$name(rule, handler)
        })+
    };
}

first_methods!(get, post, delete);

/// Any method.
pub(super) fn any<H, T, S>(rule: AccessRule, handler: H) -> GuardedMethods<S>
where
    H: Handler<T, S>,
    T: 'static,
    S: Clone + Send + Sync + 'static,
{
    GuardedMethods(MethodRouter::new()).others(rule, handler)
}

/// Routes with their rules.
pub(super) struct GuardedRoutes<S = RestState>(Router<S>);

impl<S: Clone + Send + Sync + 'static> Default for GuardedRoutes<S> {
    fn default() -> Self {
        Self(Router::new())
    }
}

impl<S: Clone + Send + Sync + 'static> GuardedRoutes<S> {
    pub(super) fn route(self, path: &str, methods: GuardedMethods<S>) -> Self {
        Self(self.0.route(path, methods.0))
    }

    /// A route, and the same one with a slash at its end, as Spring services answer it. Not for the parent of a route with a
    /// name, where an empty name would stand for all of them.
    pub(super) fn slashed(self, path: &str, methods: GuardedMethods<S>) -> Self {
        let GuardedMethods(methods) = methods;
        Self(self.0.route(&format!("{path}/"), methods.clone()).route(path, methods))
    }

    /// All other paths.
    pub(super) fn fallback<H, T>(self, rule: AccessRule, handler: H) -> Self
    where
        H: Handler<T, S>,
        T: 'static,
    {
        let guard = from_fn(move |request: Request, next: Next| admit(rule, request, next));
        Self(self.0.fallback(handler.layer(guard)))
    }

    pub(super) fn merge(self, other: Self) -> Self {
        Self(self.0.merge(other.0))
    }

    pub(super) fn into_router(self) -> Router<S> {
        self.0
    }
}
