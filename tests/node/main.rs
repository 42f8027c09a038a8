//! Stories of an installation on a node with real pods: kubelet, scheduler, controllers, kube-proxy and containerd.
//!
//! They need root and `tests/node/inside.sh`, so they are ignored otherwise: `make node-test` runs them, one after the
//! other, on one node.

mod cluster;
mod first_account;
mod gateway;
mod pages;
mod removal;
mod replicas;
mod restore;
mod strangers;
mod two_clusters;
mod upgrade;
