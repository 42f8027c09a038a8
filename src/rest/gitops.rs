//! Detection of GitOps tools. REST refuses to change an object that a tool has applied, because the tool would revert
//! the change.

pub(super) use crate::account::gitops_owner::gitops_owner;
