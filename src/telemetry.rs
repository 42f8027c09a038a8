//! What the programs say about themselves: log lines, error texts, metrics.
//!
//! Nothing here is global but the one subscriber that `tracing` itself keeps, set by [`logs::init`], and whether the API
//! server answers ([`outages`]): whoever logs has to know.

pub mod errors;
pub mod logs;
pub mod metrics;
pub mod outages;
