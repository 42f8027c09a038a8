//! What the tests, the demo and the benches start: real control planes, and programs that never outlive them.
//!
//! | file | what it gives |
//! |---|---|
//! | `assets.rs` | the programs etcd, kube-apiserver and kubectl: found, or built once from `controlplane/` |
//! | `controlplane.rs` | a Kubernetes API server with its own etcd, ready in a few seconds, any number side by side |
//! | `controlplane/second.rs`, `etcd_proxy.rs` | a second API server on the same etcd, whose watches can be held back |
//! | `kubectl.rs` | the real kubectl against it |
//! | `audit.rs` | the writes that the API server saw |
//! | `kubeconfig.rs`, `pki.rs` | kubeconfigs for any user, and the certificates behind them |
//! | `namespace.rs` | a namespace of its own for each test |
//! | `process.rs`, `reaper.rs`, `folder.rs` | child processes and folders that go away however the test ends |
//! | `databases.rs`, `database_programs.rs`, `database_room.rs` | MariaDB and PostgreSQL servers of the tests' own, full ones too |
//! | `simulated_agent.rs` | an agent without clusters, on the real wire, that answers as it is told |
//! | `wait.rs`, `ports.rs` | waiting for a condition, and free ports |
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
