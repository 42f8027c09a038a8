//! Accounts that a GitOps tool keeps: REST leaves them alone, the operator writes nothing of what the tool applied, and
//! Argo CD and Flux understand how an account is.

mod fields;
mod health;
mod judge;
mod rest;
