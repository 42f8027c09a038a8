//! Leases: which replica leads, and which replicas are alive.
//!
//! One Lease, `kubesvc-operator`, is held by the replica that leads; beside it each replica keeps one of its own. That
//! a Lease has run out is seen by its not changing for a time on the observer's own clock; no times of different
//! machines are ever compared. A Lease does not fence: a replica that slept may believe for a moment that it still
//! leads. What it writes then is refused by resourceVersions, and in the database by the [term](crate::store::Term).
//!
//! | module | owns |
//! |---|---|
//! | [`election`] | what a replica is to do about the leader's Lease: pure |
//! | [`elector`] | doing it |
//! | [`leadership`] | who leads, for everybody else: [`Leadership`], [`Mandate`] |
//! | [`own_lease`] | the Lease of this replica |
//! | [`liveness`], [`replicas`] | which replicas are alive: the first is pure |
//! | [`backlog_age`] | for how long agents have waited to be registered: pure |
//! | [`isolation`] | whether this replica alone is cut off from the API server: pure |
//! | [`objects`] | the Leases at the API server |
//!
//! Leases stand outside the budgets of writes: a busy operator must not lose its lead over its own work.

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
