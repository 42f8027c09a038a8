//! The hub's answer to Begin, put together from its frames.

use std::collections::{BTreeMap, BTreeSet};

use kubesvc_core::wire::events::{Resume, ScopeCheckpoint};

/// Maximum number of scopes that an answer names for removal; those beyond it are named by the next answer.
const MAX_OTHERS: usize = 20_000;

/// Frames of an answer that is not complete.
#[derive(Clone, Debug, Default)]
pub(super) struct ResumeAssembly {
    answer: ResumeAnswer,
}

/// A complete answer.
#[derive(Clone, Debug, Default)]
pub(super) struct ResumeAnswer {
    /// Number of the last committed batch.
    pub(super) committed_seq: u64,
    /// Where to go on, by scope.
    pub(super) scopes: BTreeMap<u32, ScopeCheckpoint>,
    /// Scopes that the table has besides, as `<namespace>:<group>.<Kind>`.
    pub(super) others: BTreeSet<String>,
}

impl ResumeAssembly {
    /// Takes a frame, and of its scopes those that are known; returns the answer once it is complete.
    pub(super) fn take(&mut self, frame: Resume, is_known: impl Fn(u32) -> bool) -> Option<ResumeAnswer> {
        let Resume { committed_seq, scopes, others, last, .. } = frame;
        self.answer.committed_seq = committed_seq;
        let known = scopes.into_iter().filter(|scope| is_known(scope.scope_id));
        self.answer.scopes.extend(known.map(|scope| (scope.scope_id, scope)));
        let free = MAX_OTHERS - self.answer.others.len().min(MAX_OTHERS);
        self.answer.others.extend(others.into_iter().take(free));
        last.then(|| std::mem::take(&mut self.answer))
    }
}
