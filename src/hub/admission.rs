//! From a TCP connection to a session: the port and its bounds, the hello, and when an agent comes that cannot be
//! registered now or whose replica stops.
//!
//! | module | owns |
//! |---|---|
//! | [`listener`], [`transport`], [`streams`] | the port: bounds, deadlines, and an answer to whoever speaks something else |
//! | [`server`] | the gRPC services and the limits of HTTP/2 |
//! | [`hello`] | which agents may stay; pure |
//! | [`handshake`] | an opened stream until its session stands, and its end |
//! | [`foreign_claims`] | how much of what an agent claims to hold is taken in |
//! | [`queue`], [`waiting`], [`unapproved_agents`] | agents that wait to be registered, here or away until their time |
//! | [`drain`], [`isolation`] | when agents dial again whose replica stops, or alone does not reach the API server |

pub(super) mod drain;
pub(super) mod foreign_claims;
pub(super) mod handshake;
pub(super) mod hello;
pub(super) mod isolation;
pub(super) mod listener;
pub(super) mod queue;
pub(super) mod server;
pub(super) mod streams;
pub(super) mod transport;
pub(super) mod unapproved_agents;
pub(super) mod waiting;
