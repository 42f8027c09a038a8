//! Leases: which replica leads, and which replicas are alive.
//!
//! The replica that leads holds one Lease, `kubesvc-operator`; each replica also holds a Lease of its own. A
//! Lease has expired if it has not changed for its duration on the observer's own clock; timestamps of
//! different machines are never compared. A Lease is not a fence: a replica that was suspended may still
//! believe that it leads. What it writes then is rejected through the resourceVersion of each object and, in
//! the database, through the [term](crate::store::Term).
//!
//! | module | owns |
//! |---|---|
//! | [`election`] | the next action for the leader's Lease: pure |
//! | [`elector`] | executing that action |
//! | [`leadership`] | who leads, for the rest of the process: [`Leadership`], [`Mandate`] |
//! | [`own_lease`] | the Lease of this replica |
//! | [`liveness`], [`replicas`] | which replicas are alive: the first is pure |
//! | [`backlog_age`] | how long agents have been waiting for registration: pure |
//! | [`isolation`] | whether only this replica is cut off from the API server: pure |
//! | [`objects`] | reading and writing Leases at the API server |
//!
//! Lease requests are exempt from the write budgets: a busy operator must not lose leadership because of its
//! own writes.

mod backlog_age;
mod election;
mod elector;
mod isolation;
mod leadership;
mod liveness;
mod objects;
mod own_lease;
mod replicas;

pub use election::Times;
pub use elector::Elector;
pub use isolation::Isolation;
pub use leadership::{Leadership, Mandate};
pub use objects::{LEADER_LEASE, LeaseObjects};
pub use own_lease::OwnLease;
pub use replicas::Replicas;
