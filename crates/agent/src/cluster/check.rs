//! What a client asks on each new connection before anything else is sent on it.

use std::fmt::Debug;

use http::StatusCode;
use hyper::body::Bytes;

use crate::cluster::tls::ServerCertificate;

/// The next step of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CheckStep {
    /// Send a GET request; its answer comes with the next call.
    Ask {
        /// Path of the request.
        path: &'static str,
        /// Media type that is accepted.
        accept: &'static str,
    },
    /// The connection may be used.
    Passed,
    /// The connection must not be used; why.
    Failed(String),
}

/// An answer to a request of a check.
#[derive(Clone, Debug)]
pub struct CheckAnswer {
    /// Its status, which is neither 401 nor 429 nor one of 500 and above.
    pub status: StatusCode,
    /// Its body.
    pub body: Bytes,
}

/// Decides whether a connection may be used. It does not ask without end.
pub trait ConnectionCheck: Debug + Send + Sync {
    /// The next step, given the answers so far, in the order in which they were asked for.
    fn step(&self, answers: &[CheckAnswer], server: &ServerCertificate) -> CheckStep;
}
