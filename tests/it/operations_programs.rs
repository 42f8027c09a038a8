//! The programs of operations against a real API server, without an agent and without the operator.
//!
//! | file | contents |
//! |---|---|
//! | `driver.rs` | runs a program over plain HTTP, whole or request by request |
//! | `twins.rs`, `manifests.rs` | random deploys beside `kubectl apply` in a twin namespace: equal objects, managers and last-applied |
//! | `deploys.rs` | the modes of deploying, Secrets, dry runs, other writers in between |
//! | `verbs.rs` | delete, patch, scale, reads |
//! | `rollouts.rs` | pause, restart, revisions and undo, with a real kube-controller-manager |
//! | `merge_keys.rs` | how lists are merged, by the API server's own description |

mod deploys;
mod driver;
mod manifests;
mod merge_keys;
mod rollouts;
mod twins;
mod verbs;
