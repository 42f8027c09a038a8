//! The database servers for the adapter tests, from the harness that all tests share.
#![expect(dead_code, reason = "these tests use a part of the harness")]

#[path = "../../../tests/harness/database_programs.rs"]
pub(crate) mod database_programs;
#[path = "../../../tests/harness/database_room.rs"]
mod database_room;
#[path = "../../../tests/harness/databases.rs"]
pub(crate) mod databases;
#[path = "../../../tests/harness/folder.rs"]
pub(crate) mod folder;
#[path = "../../../tests/harness/ports.rs"]
pub(crate) mod ports;
#[path = "../../../tests/harness/process.rs"]
pub(crate) mod process;
#[path = "../../../tests/harness/reaper.rs"]
pub(crate) mod reaper;
#[path = "../../../tests/harness/wait.rs"]
pub(crate) mod wait;

pub(crate) use wait::must;
