//! What the tests, the demo and the benchmarks start: real control planes, and programs that never outlive them.
//!
//! | file | contents |
//! |---|---|
//! | `assets.rs` | the programs etcd, kube-apiserver and kubectl: found, or built once from `controlplane/` |
//! | `controlplane.rs` | a Kubernetes API server with its own etcd, ready in a few seconds; several can run side by side |
//! | `controlplane/second.rs`, `etcd_proxy.rs` | a second API server on the same etcd, with watches that can be held back |
//! | `kubectl.rs` | the real kubectl, run against a control plane |
//! | `audit.rs` | the writes that the API server received |
//! | `kubeconfig.rs`, `pki.rs` | kubeconfigs for any user, and the certificates behind them |
//! | `namespace.rs` | a separate namespace for each test |
//! | `process.rs`, `reaper.rs`, `folder.rs` | child processes and folders that are removed however the test ends |
//! | `databases.rs`, `database_programs.rs`, `database_room.rs` | private MariaDB and PostgreSQL servers, including full ones |
//! | `simulated_agent.rs` | an agent without clusters that speaks the real protocol and answers as configured |
//! | `wait.rs`, `ports.rs`, `progress.rs` | waiting for a condition, free ports, and progress output |
//!
//! Setting `KUBESVC_TEST_KEEP` to anything keeps the folders, with every log in them.
#![expect(dead_code, reason = "the tests, the demo and the benches each use another part")]

pub(crate) mod assets;
pub(crate) mod audit;
pub(crate) mod controlplane;
pub(crate) mod database_programs;
mod database_room;
pub(crate) mod databases;
mod etcd_proxy;
pub(crate) mod folder;
pub(crate) mod kubeconfig;
pub(crate) mod kubectl;
pub(crate) mod namespace;
pub(crate) mod pki;
pub(crate) mod ports;
pub(crate) mod process;
pub(crate) mod progress;
pub(crate) mod reaper;
pub(crate) mod simulated_agent;
pub(crate) mod wait;

pub(crate) use wait::must;
