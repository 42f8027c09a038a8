//! The rows of cached objects, while something dies: a cluster changes at random, and when it stops, rows and objects are
//! the same, version by version. No row goes back meanwhile, unless the database has lost commits.
//!
//! `make test` has each fault once, `make faults` has them longer, and those that concern the database on each. Commits are
//! lost where a standby takes over (PostgreSQL), or an earlier copy of the data is put back (MariaDB, SQLite).
//!
//! | file | provides |
//! |---|---|
//! | `kinds.rs`, `writer.rs` | the cluster that changes |
//! | `history.rs` | a bare watch of it, and what the rows have shown |
//! | `row_oracle.rs` | rows and objects are the same |
//! | `load.rs` | a fault while the cluster changes |
//! | `agents.rs`, `hubs.rs`, `databases.rs`, `files.rs`, `clusters.rs`, `replaced.rs`, `rights.rs`, `clocks.rs` | the faults |
//! | `odd_objects.rs` | what a cluster may have and hardly ever has |

mod agents;
#[cfg(target_os = "linux")]
mod clocks;
mod clusters;
mod databases;
#[cfg(target_os = "linux")]
mod files;
pub(crate) mod history;
mod hubs;
pub(crate) mod kinds;
mod load;
mod odd_objects;
mod replaced;
mod rights;
pub(crate) mod row_oracle;
pub(crate) mod writer;
