//! Accounts managed by a GitOps tool: REST leaves them alone, the operator does not change what the tool
//! applied, and Argo CD and Flux understand an account's health.

mod fields;
mod health;
mod rest;
mod verdict;
