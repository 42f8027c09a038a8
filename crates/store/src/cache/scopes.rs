//! What is watched of an account: how changes of scopes are applied, and the statements of `kubesvc_resourceversion`.
//!
//! A transaction reads the rows of the scopes that it changes, applies the changes in order, and writes the rows that
//! differ: the fences of the accounts are locked, so nothing else writes these rows meanwhile. [`FencedScope::apply`]
//! decides without reading or writing anything.

use std::collections::BTreeMap;

use super::limits::{report, unfit_change};
use super::{AccountBatch, ScopeChange, ScopeKey, ScopeRow, ScopeState, StoredScope};
use crate::StoreError;
use crate::dialect::Dialect;
use crate::sql::columns::table;
use crate::sql::driver::{ColumnValue as _, Driver as _};
use crate::sql::statement::{OnRefusal, Statement, assignments, write_rows};
use crate::sql::{RowOf, SqlSession};
use kubesvc_core::CachingEpoch;

/// Maximum length of a stored problem, in characters.
const MAX_PROBLEM_CHARS: usize = 2048;

table! {
    /// `kubesvc_resourceversion`, with its columns in the order of [`read`]. `last_updated` is one of them: it is the age
    /// of the checkpoint, and does not change with everything in the row.
    pub(crate) const SCOPES = "kubesvc_resourceversion", key &["id"], ours None;
    fn values<'c>(changed: &'c Changed<'_>) {
        id: Text = &changed.id,
        account: Text = changed.account,
        account_uid: Text = &changed.scope.stored.account_uid,
        ns_group_kind: Text = &changed.ns_group_kind,
        kind: Text = &changed.scope.stored.cached_kind,
        namespace: Text = &changed.scope.stored.key.namespace,
        resourceversion: Text = &changed.scope.stored.resource_version,
        state: Text = changed.scope.stored.state.as_str(),
        shape: Text = &changed.scope.stored.shape,
        filter: Text = &changed.scope.stored.filter,
        problem: Text = &changed.scope.stored.problem,
        epoch: Bigint = changed.scope.epoch.0,
        sync_key: Text = &changed.scope.sync_key,
        objects: Int = changed.scope.stored.objects.map(|objects| i32::try_from(objects).unwrap_or(i32::MAX)),
        last_updated: Bigint = changed.scope.stored.last_updated_ms,
    }
}

impl ScopeChange {
    /// The scope that changes.
    pub fn scope(&self) -> &ScopeKey {
        match self {
            Self::Added(row) => &row.key,
            Self::Removed(scope)
            | Self::SyncStarted { scope, .. }
            | Self::Checkpoint { scope, .. }
            | Self::Synced { scope, .. }
            | Self::Problem { scope, .. } => scope,
        }
    }
}

impl ScopeState {
    fn as_str(self) -> &'static str {
        match self {
            Self::Listing => "LISTING",
            Self::Synced => "SYNCED",
            Self::Removed => "REMOVED",
        }
    }

    /// A state that this version does not know is read as one in which the scope must be listed.
    fn parse(text: &str) -> Self {
        match text {
            "SYNCED" => Self::Synced,
            "REMOVED" => Self::Removed,
            _ => Self::Listing,
        }
    }
}

/// Who changes a scope, and when.
#[derive(Clone, Copy, Debug)]
pub struct ScopeWriter<'b> {
    /// uid of the account.
    pub account_uid: &'b str,
    /// The epoch under which its objects are written.
    pub epoch: CachingEpoch,
    /// In epoch milliseconds.
    pub now: i64,
}

/// A row of `kubesvc_resourceversion`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FencedScope {
    /// What of it is read for an agent.
    pub stored: StoredScope,
    epoch: CachingEpoch,
    sync_key: Option<String>,
}

impl FencedScope {
    /// A scope that begins to be watched, in place of the stored one.
    fn added(before: Option<Self>, row: &ScopeRow, writer: ScopeWriter<'_>) -> Self {
        let before = before
            .filter(|one| one.is_watched_by(writer) && one.stored.shape.as_deref() == Some(&*row.shape));
        let same_filter = |one: &Self| one.stored.filter.as_deref() == Some(&*row.filter);
        match before {
            Some(mut same) if same_filter(&same) => {
                same.epoch = writer.epoch;
                same.stored.cached_kind.clone_from(&row.cached_kind);
                // Its problem stays: who watches it takes that back once it is read.
                same
            }
            before => Self {
                stored: StoredScope {
                    key: row.key.clone(),
                    cached_kind: row.cached_kind.clone(),
                    account_uid: writer.account_uid.to_owned(),
                    resource_version: None,
                    state: ScopeState::Listing,
                    shape: Some(row.shape.clone()),
                    filter: Some(row.filter.clone()),
                    // Without it, rows of another shape would be taken for rows of this one after a list that broke
                    // off, and never be written again.
                    objects: before.and_then(|one| one.stored.objects),
                    problem: None,
                    last_updated_ms: writer.now,
                },
                epoch: writer.epoch,
                sync_key: None,
            },
        }
    }

    fn is_watched_by(&self, writer: ScopeWriter<'_>) -> bool {
        self.stored.state != ScopeState::Removed && self.stored.account_uid == writer.account_uid
    }

    fn must_list(&mut self, state: ScopeState, sync_key: Option<&str>, writer: ScopeWriter<'_>) {
        self.stored.state = state;
        self.stored.resource_version = None;
        self.sync_key = sync_key.map(str::to_owned);
        self.stored.last_updated_ms = writer.now;
        self.epoch = writer.epoch;
    }

    fn reach(&mut self, resource_version: &str, writer: ScopeWriter<'_>) {
        self.stored.resource_version = Some(resource_version.to_owned());
        self.stored.last_updated_ms = writer.now;
        self.epoch = writer.epoch;
    }

    /// Applies a change to the stored scope, if any.
    pub fn apply(before: Option<Self>, change: &ScopeChange, writer: ScopeWriter<'_>) -> Option<Self> {
        let mut scope = match (before, change) {
            (before, ScopeChange::Added(row)) => return Some(Self::added(before, row, writer)),
            (None, _) => return None,
            (Some(mut scope), ScopeChange::Removed(_)) => {
                // The fence has the account's name, so what another uid left under it is the account's to remove.
                if scope.stored.state != ScopeState::Removed {
                    scope.must_list(ScopeState::Removed, None, writer);
                }
                return Some(scope);
            }
            (Some(scope), _) if !scope.is_watched_by(writer) => return Some(scope),
            (Some(scope), _) => scope,
        };
        match change {
            ScopeChange::Added(_) | ScopeChange::Removed(_) => {}
            ScopeChange::SyncStarted { sync_key, .. } => {
                scope.must_list(ScopeState::Listing, Some(sync_key), writer);
            }
            ScopeChange::Checkpoint { resource_version, .. } => {
                if scope.stored.state == ScopeState::Synced {
                    scope.reach(resource_version, writer);
                }
            }
            ScopeChange::Synced { sync_key, resource_version, objects, .. } => {
                if scope.sync_key.as_deref() == Some(sync_key) {
                    scope.reach(resource_version, writer);
                    scope.stored.state = ScopeState::Synced;
                    scope.stored.objects = Some((*objects).clamp(0, i64::from(i32::MAX)));
                    scope.stored.problem = None;
                    scope.sync_key = None;
                }
            }
            // The age of the checkpoint stays: it is not read now.
            ScopeChange::Problem { problem, .. } => scope.stored.problem = problem.as_deref().map(shorten),
        }
        Some(scope)
    }
}

/// A problem as it is stored: at most [`MAX_PROBLEM_CHARS`], without NUL.
fn shorten(problem: &str) -> String {
    problem.chars().filter(|one| *one != '\0').take(MAX_PROBLEM_CHARS).collect()
}

/// A scope to write.
struct Changed<'b> {
    batch: usize,
    account: &'b str,
    id: String,
    ns_group_kind: String,
    scope: FencedScope,
}

/// The changes of one transaction that fit, by id of their scope, each with the index of its batch.
#[derive(Default)]
pub(super) struct ScopeChanges<'b>(BTreeMap<String, Vec<(usize, &'b ScopeChange)>>);

impl<'b> ScopeChanges<'b> {
    /// Adds the changes of a batch, and reports those that fit no database.
    pub(super) fn add(&mut self, at: usize, batch: &'b AccountBatch, reports: &mut Vec<String>) {
        for change in &batch.scopes {
            let id = change.scope().row_id(&batch.account);
            match unfit_change(batch, change) {
                Some(why) => reports.push(report(SCOPES.name, &id, "left unchanged", &why)),
                None => self.0.entry(id).or_default().push((at, change)),
            }
        }
    }

    /// Applies the changes of the batches that passed, and writes the scopes that differ from the stored ones.
    pub(super) async fn write<D: Dialect>(
        &self,
        session: &mut SqlSession<'_, D>,
        batches: &[AccountBatch],
        passed: &[bool],
        now: i64,
        on_refusal: OnRefusal,
        reports: &mut [Vec<String>],
    ) -> Result<(), StoreError> {
        let due = |changes: &&Vec<(usize, &ScopeChange)>| changes.iter().any(|(at, _)| passed[*at]);
        let ids: Vec<&str> =
            self.0.iter().filter(|(_, changes)| due(changes)).map(|(id, _)| id.as_str()).collect();
        let mut stored = read_by_id(session, &ids).await?;
        let mut changed = Vec::new();
        for id in ids {
            let before = stored.remove(id);
            let mut scope = before.clone();
            let mut batch = 0;
            for (at, change) in self.0.get(id).into_iter().flatten().filter(|(at, _)| passed[*at]) {
                let claim = &batches[*at].claim;
                let writer = ScopeWriter { account_uid: &claim.uid, epoch: claim.epoch, now };
                scope = FencedScope::apply(scope, change, writer);
                batch = *at;
            }
            if let Some(scope) = scope.filter(|scope| before.as_ref() != Some(scope)) {
                let ns_group_kind = scope.stored.key.to_string();
                let account = batches[batch].account.as_str();
                changed.push(Changed { batch, account, id: id.to_owned(), ns_group_kind, scope });
            }
        }
        let weigh = |one: &Changed<'_>| 512 + one.scope.stored.problem.as_ref().map_or(0, String::len);
        for (one, error) in write_rows(session, &changed, on_refusal, weigh, upsert).await? {
            reports[one.batch].push(report(SCOPES.name, &one.id, "left unchanged", &error.refusal()));
        }
        Ok(())
    }
}

/// An `INSERT` of scopes that overwrites rows with the same id.
fn upsert<D: Dialect>(changed: &[Changed<'_>]) -> Statement<D> {
    let rows: Vec<_> = changed.iter().map(values).collect();
    let columns = SCOPES.column_names();
    let into = format!("INSERT INTO {} ({}) ", SCOPES.name, columns.join(","));
    let others: Vec<&str> = columns.into_iter().filter(|column| *column != "id").collect();
    D::rows(Statement::new(&into), &SCOPES, &rows, None).text(&format!(
        " {}{}",
        D::on_same_key("id"),
        assignments::<D>(&others)
    ))
}

/// Selects scopes, in the column order of [`read`].
fn select<D: Dialect>(condition: &str) -> Statement<D> {
    Statement::new(&format!(
        "SELECT {} FROM {} WHERE {condition} ",
        SCOPES.column_names().join(","),
        SCOPES.name
    ))
}

/// Reads a scope with the id of its row; `None` if its key was edited by hand and names no scope. Such a row counts as
/// missing, and is written over when the scope is added.
fn read<D: Dialect>(row: &RowOf<D>) -> Result<Option<(String, FencedScope)>, sqlx::Error> {
    let Ok(key) = String::required::<D::Database>(row, 3)?.parse::<ScopeKey>() else { return Ok(None) };
    let stored = StoredScope {
        key,
        cached_kind: String::required::<D::Database>(row, 4)?,
        account_uid: String::required::<D::Database>(row, 2)?,
        resource_version: D::Database::text(row, 6)?,
        state: ScopeState::parse(&String::required::<D::Database>(row, 7)?),
        shape: D::Database::text(row, 8)?,
        filter: D::Database::text(row, 9)?,
        objects: i32::read::<D::Database>(row, 13)?.map(i64::from),
        problem: D::Database::text(row, 10)?,
        last_updated_ms: i64::required::<D::Database>(row, 14)?,
    };
    let epoch = CachingEpoch(i64::required::<D::Database>(row, 11)?);
    let sync_key = D::Database::text(row, 12)?;
    Ok(Some((String::required::<D::Database>(row, 0)?, FencedScope { stored, epoch, sync_key })))
}

/// Reads scopes by the ids of their rows.
async fn read_by_id<D: Dialect>(
    session: &mut SqlSession<'_, D>,
    ids: &[&str],
) -> Result<BTreeMap<String, FencedScope>, StoreError> {
    let mut found = BTreeMap::new();
    for piece in session.dialect.pieces(ids, |_| 0) {
        found.extend(session.all(select("id").one_of(piece), read::<D>).await?.into_iter().flatten());
    }
    Ok(found)
}

/// Reads all scopes under the name of an account, by namespace, group and kind.
pub(super) async fn read_of_account<D: Dialect>(
    session: &mut SqlSession<'_, D>,
    account: &str,
) -> Result<Vec<StoredScope>, StoreError> {
    let scopes = session.all(select("account = ?").bind(account), read::<D>).await?;
    let mut scopes: Vec<_> = scopes.into_iter().flatten().map(|(_, scope)| scope.stored).collect();
    scopes.sort_unstable_by(|one, other| one.key.cmp(&other.key));
    Ok(scopes)
}

/// Marks the scopes of accounts with these uids as removed. The caller has locked or deleted their fences.
pub(crate) async fn mark_removed<D: Dialect>(
    session: &mut SqlSession<'_, D>,
    uids: &[&str],
    now: i64,
) -> Result<u64, StoreError> {
    let update = Statement::new(
        "UPDATE kubesvc_resourceversion SET state = 'REMOVED', resourceversion = NULL, sync_key = NULL, \
         last_updated = ? WHERE state <> 'REMOVED' AND account_uid ",
    );
    session.execute(update.bind(now).one_of(uids)).await
}

#[cfg(test)]
mod tests;
