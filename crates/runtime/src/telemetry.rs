//! What the programs report about themselves: log lines, error texts, metrics.
//!
//! Only two things here are global: the subscriber that `tracing` keeps, set by [`logs::init`], and whether
//! the API server answers ([`outages`]), because everything that logs needs to know that.

pub mod errors;
pub mod logs;
pub mod metrics;
pub mod outages;
