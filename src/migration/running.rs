//! One migration: what it selects, what would become of that, and how far it is.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use tracing::warn;

use super::Scanner;
use super::facts::FactIndex;
use crate::source_accounts::{Assessments, ReadDeclined, SourceAccounts};
use kubesvc_clouddriver::migration::{
    MigrationAction, MigrationObservation, MigrationProgress, MigrationRules, MigrationSelection, Plan,
    SelectionError, decide,
};
use kubesvc_core::lifecycle::Tick;
use kubesvc_core::migration::NotableAccount;
use kubesvc_core::not_watched;
use kubesvc_core::{FORCE_ROLLBACK_ANNOTATION, KubesvcMigration, KubesvcMigrationStatus, RETRY_ANNOTATION};

/// Where a migration is described.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum MigrationOrigin {
    /// In the documented settings.
    Settings,
    /// In the object of this name.
    Object(String),
}

/// See the module.
pub(super) struct RunningMigration {
    name: String,
    /// The object as last seen; `None`: the documented settings describe it.
    object: Option<Arc<KubesvcMigration>>,
    selection: Result<MigrationSelection, SelectionError>,
    rules: MigrationRules,
    /// Minimum number of ticks between two plans.
    interval: Tick,
    plan: Option<Plan>,
    /// What the plan was made from, and when.
    planned: Option<(PlanInputs, Tick)>,
    assessments: Assessments,
    progress: MigrationProgress,
    /// The status as last written.
    status: Option<KubesvcMigrationStatus>,
    /// What the last decision was made from, if it was to do nothing, and when to look again.
    rest: Option<(RestInputs, Option<Tick>)>,
    /// Since when it runs here.
    began: Option<Tick>,
}

/// Number of changes of the sources, of accounts that disappeared, and version of the declined accounts.
type PlanInputs = (u64, u64, Option<String>);
/// What the plan was made from and when the sources were read, number of changes of accounts, and version of the object.
type RestInputs = (Option<PlanInputs>, Option<Tick>, u64, Option<String>);

impl RunningMigration {
    fn new(
        name: &str,
        selection: Result<MigrationSelection, SelectionError>,
        rules: MigrationRules,
        interval: Tick,
    ) -> Self {
        Self {
            name: name.to_owned(),
            object: None,
            selection,
            rules,
            interval,
            plan: None,
            planned: None,
            assessments: Assessments::default(),
            progress: MigrationProgress::default(),
            status: None,
            rest: None,
            began: None,
        }
    }

    /// The migration that the documented settings describe.
    pub(super) fn of_settings(name: &str, scanner: &Scanner, accounts: &SourceAccounts) -> Self {
        let selection = watched(accounts).map(|()| scanner.selection.clone());
        Self::new(name, selection, scanner.rules.clone(), scanner.interval)
    }

    /// The migration of an object.
    pub(super) fn of_object(name: &str, object: &Arc<KubesvcMigration>, accounts: &SourceAccounts) -> Self {
        let (selection, rules) = (selection(object, accounts), MigrationRules::from(&object.spec));
        let running = Self::new(name, selection, rules, 0);
        Self { object: Some(Arc::clone(object)), status: object.status.clone(), ..running }
    }

    /// Takes in the object as it is now.
    pub(super) fn take_object(&mut self, object: &Arc<KubesvcMigration>, accounts: &SourceAccounts) {
        let Some(before) = self.object.replace(Arc::clone(object)) else { return };
        if before.metadata.uid != object.metadata.uid {
            *self = Self::of_object(&self.name, object, accounts);
            return;
        }
        self.status.clone_from(&object.status);
        if before.metadata.generation != object.metadata.generation {
            self.selection = selection(object, accounts);
            self.rules = MigrationRules::from(&object.spec);
            (self.planned, self.assessments) = (None, Assessments::default());
        }
    }

    /// Plans, if the sources, the declined accounts or the selection changed.
    pub(super) async fn take_sources(
        &mut self,
        accounts: &Arc<SourceAccounts>,
        declined: &ReadDeclined,
        facts: &FactIndex,
        now: Tick,
    ) {
        let (Ok(selection), Some(age)) = (&self.selection, accounts.sources.age()) else { return };
        let began = *self.began.get_or_insert(now);
        let age = age.as_secs() + 1;
        if self.plan.is_none() && age > now.saturating_sub(began) + 1 {
            return; // What an earlier leadership read may be old.
        }
        let read = now.saturating_sub(age);
        let inputs = (accounts.sources.version(), facts.removals, declined.version());
        match &self.planned {
            Some((from, _)) if *from == inputs => {
                if let Some(plan) = &mut self.plan {
                    plan.was_read_again(read);
                }
            }
            Some((_, at)) if now < at + self.interval => {}
            _ => {
                let (sources, known) = (accounts.sources.latest(), std::mem::take(&mut self.assessments));
                let (selection, declined) = (selection.clone(), declined.names.clone());
                let planning = accounts.plan_apart(selection, sources, declined, known, read);
                let (plan, known) = planning.await;
                (self.plan, self.assessments) = (Some(plan), known);
                self.planned = Some((inputs, now));
            }
        }
    }

    /// The next action; `None`: nothing is to be done now.
    pub(super) fn decide(
        &mut self,
        facts: &FactIndex,
        declined: &ReadDeclined,
        now: Tick,
    ) -> Option<MigrationAction> {
        let metadata = self.object.as_ref().map(|object| &object.metadata);
        let annotations = metadata.and_then(|metadata| metadata.annotations.as_ref());
        let annotation = |key: &str| annotations?.get(key).map(String::as_str);
        let inputs = (
            self.planned.as_ref().map(|(from, _)| from.clone()),
            self.plan.as_ref().and_then(Plan::complete_read).filter(|_| self.progress.awaits_read()),
            facts.changes,
            metadata.and_then(|metadata| metadata.resource_version.clone()),
        );
        if let Some((rested, wake)) = &self.rest
            && *rested == inputs
            && wake.is_none_or(|wake| now < wake)
        {
            return None;
        }
        let observation = MigrationObservation {
            migration: &self.name,
            generation: metadata.and_then(|metadata| metadata.generation).unwrap_or_default(),
            retry: annotation(RETRY_ANNOTATION),
            force_rollback: annotation(FORCE_ROLLBACK_ANNOTATION).is_some(),
            rules: &self.rules,
            selection: self.selection.as_ref(),
            plan: self.plan.as_ref(),
            accounts: &facts.by_name,
            declined: &declined.names,
            status: self.status.as_ref(),
            now,
            time: &Time(Timestamp::now()),
        };
        let decision = decide(&observation, &mut self.progress);
        self.rest = decision.action.is_none().then_some((inputs, decision.wake));
        decision.action
    }

    /// Name of the migration, as in the accounts' annotation.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The object as last seen.
    pub(super) fn object(&self) -> Option<&Arc<KubesvcMigration>> {
        self.object.as_ref()
    }

    /// The selection, once it is usable, and the plan, once there is one.
    pub(super) fn planned(&self) -> Option<(&MigrationSelection, &Plan)> {
        self.selection.as_ref().ok().zip(self.plan.as_ref())
    }

    /// The status as last written.
    pub(super) fn status(&self) -> Option<&KubesvcMigrationStatus> {
        self.status.as_ref()
    }

    /// Takes in a status that was written. That of the documented settings is in no object, so the log has what someone
    /// should look at.
    pub(super) fn put_status(&mut self, status: KubesvcMigrationStatus) {
        if self.object.is_none() {
            let known = self.status.iter().flat_map(|status| &status.notable).collect::<Vec<_>>();
            for NotableAccount { name, reason, message } in
                status.notable.iter().filter(|one| !known.contains(one))
            {
                warn!(migration = self.name, account = name, reason, "{message}");
            }
        }
        self.status = Some(status);
    }

    /// What the machine remembers.
    pub(super) fn progress(&mut self) -> &mut MigrationProgress {
        &mut self.progress
    }
}

fn selection(
    object: &KubesvcMigration,
    accounts: &SourceAccounts,
) -> Result<MigrationSelection, SelectionError> {
    watched(accounts)?;
    MigrationSelection::compile(&object.spec)
}

/// Refuses to create accounts that nothing would reconcile.
fn watched(accounts: &SourceAccounts) -> Result<(), SelectionError> {
    if accounts.is_watched {
        Ok(())
    } else {
        Err(SelectionError::NotWatched(not_watched(&accounts.namespace)))
    }
}
