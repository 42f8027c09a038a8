//! What the leader sweeps next, within the bounds of a pass. Pure: a pass is the only time here.

use std::collections::{HashMap, VecDeque};

use kubesvc_store::{RemovedScope, RowLimit};

/// Maximum number of rows deleted in one transaction; fewer where transactions take long.
const MAX_ROWS: usize = 1_000;
/// Maximum number of transactions of a pass: at most 100,000 rows.
pub(super) const MAX_STEPS: u32 = 100;
/// Maximum number of accounts whose scopes are marked in a pass.
const MAX_MARKED: usize = 32;
/// Maximum number of passes between two marks of an account, about 10 minutes.
const MAX_MARK_INTERVAL: u64 = 64;
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
    /// By uid: number of marks so far, and the pass of the next one.
    marked: HashMap<String, (u32, u64)>,
    /// Maximum number of rows of the next transaction.
    pub(super) limit: RowLimit,
}

impl Default for SweepPlan {
    fn default() -> Self {
        Self {
            pass: 0,
            left: 0,
            steps: VecDeque::new(),
            marked: HashMap::new(),
            limit: RowLimit::at_most(MAX_ROWS),
        }
    }
}

impl SweepPlan {
    /// Begins a pass. Returns the uids of the accounts whose scopes are to be marked as removed, of `inactive`: at
    /// once, and again after ever more passes, since the fence may have named an agent until then.
    pub(super) fn begin(&mut self, inactive: Vec<String>) -> Vec<String> {
        self.pass += 1;
        self.left = MAX_STEPS;
        // Removed scopes are read anew, because an account may watch them again.
        self.steps.retain(|step| matches!(step, SweepStep::Events(_)));
        let mut before = std::mem::take(&mut self.marked);
        let pass = self.pass;
        let marks = inactive.into_iter().map(|uid| {
            let mark = before.remove(&uid).unwrap_or((0, pass));
            (uid, mark)
        });
        self.marked = marks.collect();
        let mut due: Vec<_> = self.marked.iter_mut().filter(|(_, (_, next))| *next <= pass).collect();
        // Who has waited for longest is first, so that every account has its turn.
        due.sort_by(|(one, (_, one_next)), (other, (_, other_next))| {
            (one_next, one).cmp(&(other_next, other))
        });
        due.truncate(MAX_MARKED);
        let marked = due.into_iter().map(|(uid, (count, next))| {
            *next = pass + 1_u64.checked_shl(*count).unwrap_or(u64::MAX).min(MAX_MARK_INTERVAL);
            *count = count.saturating_add(1);
            uid.clone()
        });
        marked.collect()
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

    /// Whether the pass ended before its steps.
    pub(super) fn is_cut_off(&self) -> bool {
        !self.steps.is_empty()
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
    fn an_inactive_account_is_marked_at_once_and_then_less_and_less_often() {
        let mut plan = SweepPlan::default();
        let passes: Vec<_> = (1..=300).filter(|_| !plan.begin(uids(1)).is_empty()).collect();
        assert_eq!(passes, [1, 2, 4, 8, 16, 32, 64, 128, 192, 256]);
        plan.begin(Vec::new());
        assert_eq!(plan.begin(uids(1)), uids(1), "it was active meanwhile");
    }

    #[test]
    fn marks_of_a_pass_are_bounded_and_every_account_has_its_turn() {
        let mut plan = SweepPlan::default();
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..200 {
            let due = plan.begin(uids(3_000));
            assert!(due.len() <= MAX_MARKED);
            seen.extend(due);
        }
        assert_eq!(seen.len(), 3_000);
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
