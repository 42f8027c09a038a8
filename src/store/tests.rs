//! The contract of the store, run against every database, and what each database has beyond it.

pub(super) mod contract;
mod copying;
mod faults;
mod fence_contract;
mod harness;
mod manual_edits;
mod mysql;
mod postgres;
mod sqlite;
