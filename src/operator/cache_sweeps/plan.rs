//! What the leader sweeps next, within the bounds of a pass. Pure: a pass is the only time here.

use std::collections::VecDeque;

use kubesvc_store::{RemovedScope, RowLimit};

/// Maximum number of rows deleted in one transaction; fewer where transactions take long.
const MAX_ROWS: usize = 1_000;
/// Maximum number of transactions of a pass: at most 100,000 rows.
pub(super) const MAX_STEPS: u32 = 100;
/// Maximum number of accounts whose scopes are marked in a pass.
const MAX_MARKED: usize = 32;
/// Number of passes between two sweeps of Kubernetes events, a minute.
const EVENT_INTERVAL: u64 = 6;

/// One transaction, repeated until nothing is left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SweepStep {
    /// The objects of a removed scope.
    Scope(RemovedScope),
    /// The old Kubernetes events of this account.
    Events(String),
}

/// The order of steps under one lead.
#[derive(Debug)]
pub(super) struct SweepPlan {
    /// Number of the pass, from 1.
    pass: u64,
    /// Transactions left in this pass.
    left: u32,
    steps: VecDeque<SweepStep>,
    /// Accounts whose scopes may still be marked in this pass.
    marks_left: usize,
    /// uid of the last account whose scopes were marked.
    last_marked: Option<String>,
    /// Whether accounts are left whose scopes are to be marked.
    leaves_marks: bool,
    /// Maximum number of rows of the next transaction.
    pub(super) limit: RowLimit,
}

impl Default for SweepPlan {
    fn default() -> Self {
        Self {
            pass: 0,
            left: 0,
            steps: VecDeque::new(),
            marks_left: 0,
            last_marked: None,
            leaves_marks: false,
            limit: RowLimit::at_most(MAX_ROWS),
        }
    }
}

impl SweepPlan {
    /// Begins a pass. Returns the uids of the inactive accounts in the order in which their scopes are marked: those after
    /// the last one come first, so that every account has its turn.
    pub(super) fn begin(&mut self, mut inactive: Vec<String>) -> Vec<String> {
        self.pass += 1;
        self.left = MAX_STEPS;
        self.marks_left = MAX_MARKED;
        self.leaves_marks = false;
        // Removed scopes are read anew, because an account may watch them again.
        self.steps.retain(|step| matches!(step, SweepStep::Events(_)));
        inactive.sort_unstable();
        let next = inactive.partition_point(|uid| self.last_marked.as_ref().is_some_and(|last| uid <= last));
        inactive.rotate_left(next);
        inactive
    }

    /// Whether the scopes of this account are marked in this pass.
    pub(super) fn marks(&mut self, uid: &str) -> bool {
        let Some(left) = self.marks_left.checked_sub(1) else {
            self.leaves_marks = true;
            return false;
        };
        self.marks_left = left;
        self.last_marked = Some(uid.to_owned());
        true
    }

    /// Whether the accounts with events are to be read in this pass.
    pub(super) fn is_time_for_events(&self) -> bool {
        self.steps.is_empty() && self.pass % EVENT_INTERVAL == 1
    }

    /// Adds steps after those that wait.
    pub(super) fn add(&mut self, steps: impl IntoIterator<Item = SweepStep>) {
        self.steps.extend(steps);
    }

    /// The next step of this pass.
    pub(super) fn next(&mut self) -> Option<SweepStep> {
        self.left = self.left.checked_sub(1)?;
        self.steps.pop_front()
    }

    /// Takes a step up again after all others, because it left something.
    pub(super) fn again(&mut self, step: SweepStep) {
        self.steps.push_back(step);
    }

    /// Whether the pass ended before its marks or its steps.
    pub(super) fn is_cut_off(&self) -> bool {
        self.leaves_marks || !self.steps.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kubesvc_store::ScopeKey;

    fn scope(account: &str) -> SweepStep {
        let key = ScopeKey { namespace: String::new(), group: String::new(), kind: "Pod".into() };
        SweepStep::Scope(RemovedScope { account: account.into(), key })
    }

    fn uids(count: usize) -> Vec<String> {
        (0..count).map(|i| format!("uid-{i}")).collect()
    }

    #[test]
    fn marks_of_a_pass_are_bounded_and_every_account_has_its_turn() {
        let mut plan = SweepPlan::default();
        let mut seen = std::collections::BTreeSet::new();
        // All of them are refused: without turns, the first ones would hold up the rest.
        for _ in 0..3_000_usize.div_ceil(MAX_MARKED) {
            let inactive = plan.begin(uids(3_000));
            let marked: Vec<_> = inactive.into_iter().take_while(|uid| plan.marks(uid)).collect();
            assert_eq!(marked.len(), MAX_MARKED);
            assert!(plan.is_cut_off());
            seen.extend(marked);
        }
        assert_eq!(seen.len(), 3_000);
        assert_eq!(plan.begin(uids(2)).len(), 2);
        assert!(!plan.is_cut_off());
    }

    #[test]
    fn steps_take_turns_within_the_bound_of_a_pass() {
        let mut plan = SweepPlan::default();
        plan.begin(Vec::new());
        plan.add([scope("a"), scope("b")]);
        let mut turns = Vec::new();
        while let Some(step) = plan.next() {
            turns.push(step.clone());
            plan.again(step);
        }
        assert_eq!(turns.len(), MAX_STEPS as usize);
        assert_eq!(turns[..4], [scope("a"), scope("b"), scope("a"), scope("b")]);
        assert!(plan.is_cut_off());
        plan.begin(Vec::new());
        assert_eq!(plan.next(), None, "scopes are read anew");
        assert!(!plan.is_cut_off());
    }

    #[test]
    fn events_are_read_once_a_minute_and_what_is_left_waits_for_the_next_pass() {
        let mut plan = SweepPlan::default();
        let mut reads = Vec::new();
        for pass in 1..=14 {
            plan.begin(Vec::new());
            if plan.is_time_for_events() {
                reads.push(pass);
            }
        }
        assert_eq!(reads, [1, 7, 13]);
        plan.add([SweepStep::Events("one".into()), scope("a")]);
        plan.begin(Vec::new());
        assert!(!plan.is_time_for_events());
        assert_eq!((plan.next(), plan.next()), (Some(SweepStep::Events("one".into())), None));
    }
}
