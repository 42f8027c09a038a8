//! Who keeps an object: what a GitOps tool has applied is changed there, or the tool would set it back.

pub(super) use crate::account::gitops_owner::gitops_owner;
