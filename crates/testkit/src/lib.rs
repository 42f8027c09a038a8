//! What the tests, the demo and the benchmarks start: real control planes, and programs that never outlive them.
//!
//! | file | contents |
//! |---|---|
//! | `assets.rs` | the programs etcd, kube-apiserver and kubectl: found, or built once from `controlplane/`; kube-controller-manager from `tests/controllers`, Helm from `tests/helm`, kubelet and more from `tests/node-programs` |
//! | `controlplane.rs`, `controlplane/start.rs` | a Kubernetes API server with its own etcd, ready in a few seconds; several can run side by side |
//! | `controlplane/second.rs` | a second API server on the same etcd, with watches that can be held back |
//! | `node.rs`, `node/` | a node with real pods on a control plane, and images put together without an engine |
//! | `kubectl.rs`, `helm.rs` | the real kubectl and Helm, run against a control plane |
//! | `clouddriver.rs`, `clouddriver/` | what stands in for Spinnaker's Clouddriver, built once from `tests/clouddriver` |
//! | `config_server.rs` | a Spring Cloud config server on a git repository of its own, built once from `tests/config-server` |
//! | `java.rs`, `java/` | servers in Java: built by Maven, started, killed and started again |
//! | `nginx.rs` | nginx with a server of a sample |
//! | `audit.rs` | the writes that the API server received |
//! | `certificates.rs` | authorities, their certificates and revocation lists, and folders of files that change at once |
//! | `kubeconfig.rs` | kubeconfigs for any user, and the certificates behind them |
//! | `namespace.rs` | a separate namespace for each test |
//! | `process.rs`, `folder.rs` | child processes and folders that are removed however the test ends |
//! | `databases.rs`, `databases/` | private MariaDB and PostgreSQL servers, including full ones, and ones that go back to a copy of their data |
//! | `simulated_agent.rs` | an agent without clusters that speaks the real protocol and answers as configured |
//! | `wall_clock.rs`, `wall_clock.c` | a wall clock that jumps under running programs |
//! | `wait.rs`, `ports.rs` | waiting for a condition, progress output, and free ports |
//!
//! Setting `KUBESVC_TEST_KEEP` to anything keeps the folders, with every log in them.

pub mod assets;
pub mod audit;
pub mod certificates;
pub mod clouddriver;
pub mod config_server;
pub mod controlplane;
pub mod databases;
pub mod folder;
pub mod helm;
mod java;
pub mod kubeconfig;
pub mod kubectl;
pub mod namespace;
pub mod nginx;
pub mod node;
pub mod ports;
pub mod process;
pub mod simulated_agent;
pub mod wait;
pub mod wall_clock;

pub use wait::must;
