//! Contract tests of the store, run against every database, and tests specific to each database.

mod cache_contract;
mod clouddriver_accounts;
pub(super) mod contract;
mod copy_database;
mod faults;
mod fence_contract;
mod installations;
mod manual_edits;
mod mysql;
mod operation_contract;
mod postgres;
mod sqlite;
