//! Accounts that another installation serves. This one leaves them alone, tells of them once, and takes them over when the
//! namespace of that installation is gone.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::Duration;

use k8s_openapi::api::core::v1::Namespace;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::Controller;
use super::account_rows::first_of;
use crate::informers::ForeignAccount;
use kubesvc_core::Installation;
use kubesvc_core::lifecycle::EventDraft;
use kubesvc_runtime::background_tasks::{AttemptOutcome, TaskSpec};
use kubesvc_runtime::telemetry::errors::chain;

/// Interval between checks whether the other installations are still there.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);

/// What was told of foreign accounts. Bounded by their number.
#[derive(Debug, Default)]
pub(super) struct ForeignAccounts {
    /// Namespace of the installation, by the account's uid.
    events: Mutex<HashMap<String, String>>,
    /// The namespaces that are shared with an installation, by its namespace.
    shared: Mutex<BTreeMap<String, BTreeSet<String>>>,
    /// Installations of which it cannot be seen whether they are there.
    unchecked: Mutex<BTreeSet<Installation>>,
}

/// Checks at the start and once a minute.
pub(super) async fn run(controller: &Controller, stop: &CancellationToken) {
    let task = TaskSpec::new("other installations", "Takes accounts of installations over that are gone");
    let task = task.every(CHECK_INTERVAL).at_start().logs_itself();
    controller.context.tasks.drive(task, stop, |_: Vec<()>| check(controller)).await;
}

pub(super) async fn check(controller: &Controller) -> AttemptOutcome {
    let (accounts, told) = (&controller.context.accounts, &controller.foreign_accounts);
    let foreign = accounts.foreign();
    let uids: HashSet<_> = foreign.iter().map(|one| one.account.uid()).collect();
    told.events.lock().retain(|uid, _| uids.contains(uid.as_str()));
    let mut shared = BTreeMap::<_, BTreeSet<_>>::new();
    for one in &foreign {
        controller.tell_foreign(one);
        let namespace = one.account.metadata.namespace.clone().unwrap_or_default();
        shared.entry(one.operator.clone()).or_default().insert(namespace);
    }
    for (operator, namespaces) in &shared {
        if told.shared.lock().get(operator) != Some(namespaces) {
            let namespaces = first_of(namespaces);
            warn!(
                operator,
                namespaces,
                "accounts of watched namespaces are served by the installation in another namespace; leaving them alone (kubectl kubesvc adopt takes accounts over)"
            );
        }
    }
    *told.shared.lock() = shared;

    let operators = foreign.iter().filter_map(|one| one.account.status.as_ref()?.operator.clone());
    let (mut gone, mut unchecked, mut problem) = (HashSet::new(), BTreeSet::new(), None);
    let to_check = operators.filter(|operator| !accounts.is_operator_gone(operator));
    for operator in to_check.collect::<BTreeSet<_>>() {
        match controller.context.kube.all::<Namespace>().get(&operator.namespace).await {
            Ok(Some(there)) if there.metadata.uid.as_ref() == Some(&operator.uid) => {}
            Ok(_) => {
                info!(%operator, "its namespace is gone; taking its accounts over");
                gone.insert(operator);
            }
            Err(error) if error.status().is_some_and(|status| status.code == 403) => {
                if !told.unchecked.lock().contains(&operator) {
                    warn!(%operator, "may not see whether its namespace exists (get namespaces); if it is gone, its accounts are taken over only by kubectl kubesvc adopt");
                }
                unchecked.insert(operator);
            }
            Err(error) => problem = Some(chain(&error)),
        }
    }
    *told.unchecked.lock() = unchecked;
    accounts.operators_gone(gone);
    problem.map_or(AttemptOutcome::Done, AttemptOutcome::Refused)
}

impl Controller {
    /// Publishes the Event that another installation serves an account, once for each installation.
    pub(super) fn tell_foreign(&self, foreign: &ForeignAccount) {
        let ForeignAccount { account, operator } = foreign;
        let mut told = self.foreign_accounts.events.lock();
        if told.get(account.uid()) == Some(operator) {
            return;
        }
        told.insert(account.uid().to_owned(), operator.clone());
        drop(told);
        let own = self.context.policy.installation.as_ref();
        let own = own.map(|own| own.namespace.as_str()).unwrap_or_default();
        let draft = EventDraft {
            warning: true,
            reason: "ForeignAccount".to_owned(),
            message: format!(
                "the installation in namespace {operator} serves this account; the one in namespace {own} leaves it alone"
            ),
        };
        if !self.events.publish(account, &draft) {
            self.context.metrics.dropped_events.inc();
        }
    }
}
