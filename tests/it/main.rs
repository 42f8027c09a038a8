//! The integration tests, in one binary: real control planes, the real programs, and nothing else between them.

#[path = "../harness/mod.rs"]
mod harness;

mod agent_cluster;
