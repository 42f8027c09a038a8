//! The pure core: what an account is and how it lives. No I/O, no clock, no async.

pub mod kubeconfig;
