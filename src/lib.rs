//! kubesvc registers and runs many Kubernetes clusters ("accounts") for Spinnaker.
//!
//! The map of the crate, top down; imports point down only (`tests/it/architecture.rs` holds it):
//!
//! | layer | modules |
//! |---|---|
//! | composition roots | [`app`] (what the three binaries call) |
//! | siblings, never importing one another | [`controller`], [`hub`], [`agent`], [`rest`] |
//! | ports and adapters | [`objects`], [`store`], [`secrets`], [`fleet`], [`wire`], [`telemetry`], [`config`] |
//! | pure core: no I/O, no clock | [`account`] |

pub mod account;
pub mod config;
pub mod telemetry;
