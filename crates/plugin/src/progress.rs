//! Progress of each account toward a goal of `wait`. Pure: it receives watch events and returns the lines to print.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use clap::ValueEnum;
use kube::runtime::watcher::Event;

use crate::commands::list::counts;
use crate::resources::resource_name;
use kubesvc_core::lifecycle::displayed_state;
use kubesvc_core::{KubesvcAccount, RETRY_ANNOTATION, State};
use kubesvc_runtime::terminal::text;

/// State to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Goal {
    /// An agent holds the account.
    #[value(name = "ACTIVE")]
    Active,
    /// No agent holds the account.
    #[value(name = "INACTIVE")]
    Inactive,
    /// The account's object no longer exists.
    Deleted,
    /// The account is in its desired state, ACTIVE or INACTIVE.
    Ready,
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Active => "ACTIVE",
            Self::Inactive => "INACTIVE",
            Self::Deleted => "deleted",
            Self::Ready => "ready",
        })
    }
}

/// Why the wait is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitEnding {
    /// All accounts have reached the goal.
    AllMet,
    /// At least one account cannot reach the goal without intervention.
    Stalled,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WaitOutcome {
    Pending,
    Stalled,
    Met,
}

#[derive(Debug)]
struct WatchedAccount {
    uid: String,
    outcome: WaitOutcome,
    state: State,
    message: String,
}

/// Namespace and name.
type NamespacedName = (String, String);

/// All accounts that the command waits for.
#[derive(Debug)]
pub(crate) struct GoalProgress {
    goal: Goal,
    keep_going: bool,
    watched: BTreeMap<NamespacedName, WatchedAccount>,
    /// Accounts seen since the watch last restarted.
    listed: BTreeSet<NamespacedName>,
    lines: Vec<String>,
    trouble: Option<String>,
}

impl GoalProgress {
    pub(crate) fn new<'a>(
        goal: Goal,
        keep_going: bool,
        accounts: impl Iterator<Item = &'a KubesvcAccount>,
    ) -> Self {
        let mut progress = Self {
            goal,
            keep_going,
            watched: BTreeMap::new(),
            listed: BTreeSet::new(),
            lines: Vec::new(),
            trouble: None,
        };
        for account in accounts {
            let watched = WatchedAccount {
                uid: account.uid().to_owned(),
                outcome: WaitOutcome::Pending,
                state: displayed_state(account),
                message: String::new(),
            };
            progress.watched.insert(key(account), watched);
            progress.saw(account);
        }
        progress
    }

    pub(crate) fn event(&mut self, event: &Event<KubesvcAccount>) {
        match event {
            Event::Apply(account) => self.saw(account),
            Event::Delete(account) => self.gone(&key(account)),
            Event::Init => self.listed.clear(),
            Event::InitApply(account) => {
                self.listed.insert(key(account));
                self.saw(account);
            }
            Event::InitDone => {
                let absent: Vec<_> =
                    self.watched.keys().filter(|key| !self.listed.contains(*key)).cloned().collect();
                absent.iter().for_each(|key| self.gone(key));
            }
        }
    }

    fn saw(&mut self, account: &KubesvcAccount) {
        let key = key(account);
        let Some(watched) = self.watched.get_mut(&key) else { return };
        if watched.outcome == WaitOutcome::Met {
            return;
        }
        if watched.uid != account.uid() {
            // Deleted and created again under its name.
            self.gone(&key);
            return;
        }
        self.trouble = None;
        watched.state = displayed_state(account);
        watched.message = message(account);
        watched.outcome = judge(account, self.goal);
        if watched.outcome == WaitOutcome::Met {
            let name = resource_name(&key.1);
            self.lines.push(match self.goal {
                Goal::Ready => format!("{name} is ready ({})", watched.state),
                goal => format!("{name} is {goal}"),
            });
        }
    }

    fn gone(&mut self, key: &NamespacedName) {
        let Some(watched) = self.watched.get_mut(key) else { return };
        if watched.outcome == WaitOutcome::Met {
            return;
        }
        if self.goal == Goal::Deleted {
            watched.outcome = WaitOutcome::Met;
            self.lines.push(format!("{} deleted", resource_name(&key.1)));
        } else {
            watched.outcome = WaitOutcome::Stalled;
            watched.state = State::Deleting;
            watched.message = "it was deleted in the meantime".to_owned();
        }
    }

    /// Records why the watch failed; it is retried.
    pub(crate) fn blame(&mut self, trouble: String) {
        self.trouble = Some(trouble);
    }

    pub(crate) fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }

    /// Takes the lines that were not printed yet.
    pub(crate) fn take_lines(&mut self) -> Vec<String> {
        std::mem::take(&mut self.lines)
    }

    pub(crate) fn goal(&self) -> Goal {
        self.goal
    }

    pub(crate) fn len(&self) -> u64 {
        self.watched.len() as u64
    }

    pub(crate) fn met(&self) -> u64 {
        self.watched.values().filter(|watched| watched.outcome == WaitOutcome::Met).count() as u64
    }

    /// Counts of the states of accounts that have not reached the goal.
    pub(crate) fn counts(&self) -> String {
        counts(self.pending().map(|(_, watched)| watched.state))
    }

    fn pending(&self) -> impl Iterator<Item = (&NamespacedName, &WatchedAccount)> {
        self.watched.iter().filter(|(_, watched)| watched.outcome != WaitOutcome::Met)
    }

    pub(crate) fn ending(&self) -> Option<WaitEnding> {
        if self.pending().next().is_none() {
            return Some(WaitEnding::AllMet);
        }
        let stalled = |watched: &WatchedAccount| watched.outcome == WaitOutcome::Stalled;
        let over = if self.keep_going {
            self.pending().all(|(_, watched)| stalled(watched) && watched.state == State::Deleting)
        } else {
            self.pending().any(|(_, watched)| stalled(watched))
        };
        over.then_some(WaitEnding::Stalled)
    }

    /// Returns a line for each account that has not reached the goal; stalled ones come first.
    pub(crate) fn left(&self) -> Vec<String> {
        let mut left: Vec<_> = self.pending().collect();
        left.sort_by_key(|(_, watched)| watched.outcome != WaitOutcome::Stalled);
        let line = |(key, watched): (&NamespacedName, &WatchedAccount)| {
            let why =
                if watched.message.is_empty() { String::new() } else { format!(": {}", watched.message) };
            text::line(&format!("{} is {}{why}", key.1, watched.state))
        };
        left.into_iter().map(line).collect()
    }
}

fn key(account: &KubesvcAccount) -> NamespacedName {
    let metadata = &account.metadata;
    (metadata.namespace.clone().unwrap_or_default(), metadata.name.clone().unwrap_or_default())
}

fn condition<'a>(account: &'a KubesvcAccount, type_: &str) -> Option<(&'a str, &'a str)> {
    let conditions = &account.status.as_ref()?.conditions;
    let one = conditions.iter().find(|condition| condition.type_ == type_)?;
    Some((one.status.as_str(), one.message.as_str()))
}

fn message(account: &KubesvcAccount) -> String {
    let error = account.status.as_ref().and_then(|status| status.error_message.clone());
    error.or_else(|| condition(account, "Ready").map(|(_, message)| message.to_owned())).unwrap_or_default()
}

/// Judges one account. A generation or retry that the operator has not observed yet is pending.
fn judge(account: &KubesvcAccount, goal: Goal) -> WaitOutcome {
    let status = account.status_or_default();
    let asked = account.annotation(RETRY_ANNOTATION);
    let handled = status.observed_generation == account.generation()
        && (asked.is_none() || asked == status.retry_handled.as_deref());
    let stalled = condition(account, "Stalled").is_some_and(|(status, _)| status == "True");
    let deleting = account.is_being_deleted();
    if goal == Goal::Deleted {
        let failed = deleting && stalled && displayed_state(account) == State::DeleteFailed;
        return if failed { WaitOutcome::Stalled } else { WaitOutcome::Pending };
    }
    if !handled || deleting {
        return WaitOutcome::Pending;
    }
    let met = match goal {
        Goal::Active => displayed_state(account) == State::Active,
        Goal::Inactive => displayed_state(account) == State::Inactive,
        Goal::Ready | Goal::Deleted => {
            condition(account, "Ready").is_some_and(|(status, _)| status == "True")
        }
    };
    match (met, stalled) {
        (true, _) => WaitOutcome::Met,
        (false, true) => WaitOutcome::Stalled,
        (false, false) => WaitOutcome::Pending,
    }
}

#[cfg(test)]
mod tests;
