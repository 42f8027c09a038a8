//! The contract of every database about cached objects, as tests: a harness, and the tests by what they are about.

use std::sync::Arc;

use async_trait::async_trait;
use sha2::{Digest as _, Sha256};

use crate::dialect::Dialect;
use crate::mysql::MySql;
use crate::postgres::Postgres;
use crate::sql::SqlStore;
use crate::sql::driver::{ColumnValue as _, Driver as _};
use crate::sql::pools::PoolUse;
use crate::sql::statement::Statement;
use crate::sqlite::Sqlite;
use crate::tests::contract::row;
use crate::{
    AccountBatch, BatchClaim, BatchOutcome, CacheStore, Fence, ObjectBody, ObjectRow, Relation, ScopeChange,
    ScopeKey, ScopeRow, Store, StoreError,
};
use kubesvc_core::CachingEpoch;

pub(super) use limits::*;
pub(super) use races::*;
pub(super) use scopes::*;
pub(super) use sweeping::*;
pub(super) use writing::*;

mod limits;
mod races;
mod scopes;
mod sweeping;
mod writing;

/// Generates one test for each function. The expression is a future of two replicas' stores of one database, and of
/// what keeps it alive. If only one process can open the database, both are the same store.
macro_rules! contract_tests {
    ($fresh:expr) => {
        $crate::tests::cache_contract::contract_tests! { @each $fresh,
            objects_are_written_read_and_deleted, stored_body_of_same_hash_is_kept,
            body_is_stored_as_the_row_carries_it, unchanged_relations_are_not_touched,
            relations_go_with_their_object, object_among_many_without_relations_loses_its_own, thousand_objects_are_one_transaction,
            accounts_that_do_not_pass_are_left_out_with_their_outcome, batch_is_written_once,
            longest_names_of_any_characters_fit, row_that_no_database_takes_is_left_out_and_named,
            row_that_the_database_refuses_is_found_and_left_out, refused_scope_leaves_the_others,
            progress_is_told_by_the_fence, checkpoints_are_kept_by_scope, problem_leaves_the_age_of_a_checkpoint,
            basis_comes_in_pages, scopes_of_a_deleted_account_are_removed_unless_its_objects_stay,
            scopes_are_removed_only_while_no_agent_is_named,
            swept_scope_leaves_what_another_one_covers, scope_that_is_watched_again_is_not_swept,
            swept_and_deleted_objects_take_their_relations_along,
            sweep_of_an_ended_term_deletes_nothing, old_events_are_swept,
            concurrent_writers_of_one_batch_write_it_once, writer_of_an_ended_epoch_writes_nothing_beside_the_next,
            former_account_of_a_name_takes_nothing_from_the_next,
            sweep_beside_a_first_list_deletes_nothing_of_it
        }
    };
    (@each $fresh:expr, $($story:ident),+) => {
        $(#[tokio::test(flavor = "multi_thread")]
        async fn $story() {
            let (one, other, _kept) = $fresh.await;
            $crate::tests::cache_contract::$story(&one, &other).await;
        })+
    };
}
pub(super) use contract_tests;

/// A store of both ports that also runs SQL of a test.
#[async_trait]
pub(super) trait Cached: Store + CacheStore {
    /// The first column of a query's rows.
    async fn numbers(&self, sql: &str) -> Vec<i64>;

    /// The first column of a query's rows.
    async fn texts(&self, sql: &str) -> Vec<Option<String>>;

    /// Runs a statement.
    async fn run(&self, sql: &str);

    /// Makes the database refuse objects named `poison…`: `poison-body` with a body, others always.
    async fn poison(&self);
}

/// The port of both.
pub(super) type CachedStore = Arc<dyn Cached>;

/// What makes this database refuse rows.
pub(super) trait Poisoned: Dialect {
    const POISON: &'static [&'static str];
}

impl Poisoned for Sqlite {
    const POISON: &'static [&'static str] = &["CREATE TRIGGER poison BEFORE INSERT ON kubesvc_cache \
        WHEN NEW.name LIKE 'poison%' AND (NEW.name <> 'poison-body' OR NEW.body IS NOT NULL) \
        BEGIN SELECT RAISE(ABORT, 'classified'); END"];
}

impl Poisoned for MySql {
    const POISON: &'static [&'static str] =
        &["CREATE TRIGGER poison BEFORE INSERT ON kubesvc_cache FOR EACH ROW \
        IF NEW.name LIKE 'poison%' AND (NEW.name <> 'poison-body' OR NEW.body IS NOT NULL) \
        THEN SIGNAL SQLSTATE '22007' SET MYSQL_ERRNO = 1366, MESSAGE_TEXT = 'classified'; END IF"];
}

impl Poisoned for Postgres {
    const POISON: &'static [&'static str] = &[
        "CREATE FUNCTION poison() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
        IF NEW.name LIKE 'poison%' AND (NEW.name <> 'poison-body' OR NEW.body IS NOT NULL) \
        THEN RAISE EXCEPTION 'classified' USING ERRCODE = '22P05'; END IF; RETURN NEW; END $$",
        "CREATE TRIGGER poison BEFORE INSERT ON kubesvc_cache FOR EACH ROW EXECUTE FUNCTION poison()",
    ];
}

#[async_trait]
impl<D: Poisoned> Cached for SqlStore<D> {
    async fn numbers(&self, sql: &str) -> Vec<i64> {
        let read = self.read(async |session| {
            session.all(Statement::new(sql), |row| i64::required::<D::Database>(row, 0)).await
        });
        read.await.unwrap_or_else(|error| unreachable!("{sql}: {}", error.in_full()))
    }

    async fn texts(&self, sql: &str) -> Vec<Option<String>> {
        let read = self
            .read(async |session| session.all(Statement::new(sql), |row| D::Database::text(row, 0)).await);
        read.await.unwrap_or_else(|error| unreachable!("{sql}: {}", error.in_full()))
    }

    async fn run(&self, sql: &str) {
        let run = self.read_on(PoolUse::Write, async |session| session.execute(Statement::new(sql)).await);
        run.await.unwrap_or_else(|error| unreachable!("{sql}: {error}"));
    }

    async fn poison(&self) {
        for statement in D::POISON {
            self.run(statement).await;
        }
    }
}

/// An object, with a body of its name and version.
pub(super) fn object(account: &str, kind: &str, namespace: &str, name: &str, version: &str) -> ObjectRow {
    let body = format!(r#"{{"metadata":{{"name":{name:?},"resourceVersion":{version:?}}}}}"#);
    ObjectRow {
        id: format!("{account}:{kind}:{namespace}:{name}"),
        kind: kind.to_owned(),
        application: Some("app".to_owned()),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        api_version: Some("v1".to_owned()),
        uid: Some(format!("uid-of-{}", name.len())),
        resource_version: version.to_owned(),
        body_hash: hash(&body),
        body: ObjectBody::Text(body),
        relations: Vec::new(),
    }
}

/// A hash of 64 hexadecimal digits.
pub(super) fn hash(of: &str) -> String {
    hex::encode(Sha256::digest(of))
}

pub(super) fn relation(to_id: &str, to_type: &str) -> Relation {
    Relation { to_id: to_id.to_owned(), from_type: "pod".to_owned(), to_type: to_type.to_owned() }
}

pub(super) fn scope(namespace: &str, kind: &str) -> ScopeKey {
    ScopeKey { namespace: namespace.to_owned(), group: String::new(), kind: kind.to_owned() }
}

/// The kind as it is cached: in camel form.
pub(super) fn cached_kind(kind: &str) -> String {
    let mut letters = kind.chars();
    letters.next().map(|first| first.to_ascii_lowercase()).into_iter().chain(letters).collect()
}

pub(super) fn added(namespace: &str, kind: &str) -> ScopeChange {
    ScopeChange::Added(ScopeRow {
        key: scope(namespace, kind),
        cached_kind: cached_kind(kind),
        shape: "shape".to_owned(),
        filter: "filter".to_owned(),
    })
}

pub(super) fn sync_started(namespace: &str, kind: &str, sync_key: &str) -> ScopeChange {
    ScopeChange::SyncStarted { scope: scope(namespace, kind), sync_key: sync_key.to_owned() }
}

pub(super) fn synced(namespace: &str, kind: &str, sync_key: &str, version: &str) -> ScopeChange {
    ScopeChange::Synced {
        scope: scope(namespace, kind),
        sync_key: sync_key.to_owned(),
        resource_version: version.to_owned(),
        objects: 3,
    }
}

/// A batch of the account whose uid is `uid-of-NAME`, in epoch 1.
pub(super) fn batch(account: &str, committed: i64, last: i64) -> AccountBatch {
    AccountBatch {
        claim: BatchClaim { uid: format!("uid-of-{account}"), epoch: CachingEpoch(1), committed, last },
        account: account.to_owned(),
        agent_id: "agent".into(),
        upserts: Vec::new(),
        deletes: Vec::new(),
        scopes: Vec::new(),
    }
}

/// The first batch of an account, with these objects.
pub(super) fn first_batch(account: &str, upserts: Vec<ObjectRow>) -> AccountBatch {
    AccountBatch { upserts, ..batch(account, 0, 1) }
}

/// Declares accounts and raises their fences to epoch 1.
pub(super) async fn fenced(store: &CachedStore, accounts: &[&str]) {
    let rows: Vec<_> = accounts.iter().map(|name| row(name, &format!("uid-of-{name}"))).collect();
    store.put_accounts(&rows).await.expect("written");
    let fences: Vec<_> = rows.iter().map(|row| fence(&row.uid, 1, Some("agent"))).collect();
    store.raise_fences(&fences).await.expect("raised");
}

pub(super) fn fence(uid: &str, epoch: i64, agent: Option<&str>) -> Fence {
    Fence {
        uid: uid.to_owned(),
        epoch: CachingEpoch(epoch),
        agent_id: agent.map(Into::into),
        boot_id: None,
        replica_id: None,
    }
}

/// Writes one batch, again while the database is busy.
pub(super) async fn write(store: &CachedStore, batch: &AccountBatch) -> BatchOutcome {
    for _ in 0..100 {
        match store.write_objects(std::slice::from_ref(batch)).await {
            Ok(mut outcomes) => return outcomes.pop().expect("one for each batch"),
            Err(StoreError::Unavailable(_)) => tokio::task::yield_now().await,
            Err(error) => unreachable!("{}", error.in_full()),
        }
    }
    unreachable!("the database is busy all the time")
}

/// The number of objects that a batch wrote, and the rows of it that were refused.
fn committed(outcome: BatchOutcome) -> (usize, Vec<String>) {
    match outcome {
        BatchOutcome::Committed { written, refused } => (written, refused),
        BatchOutcome::Stopped(check) => unreachable!("{check:?}"),
    }
}

/// Writes one batch, of which nothing may be refused.
pub(super) async fn commit(store: &CachedStore, batch: &AccountBatch) {
    let (_, refused) = committed(write(store, batch).await);
    assert_eq!(refused, Vec::<String>::new());
}

pub(super) async fn ids(store: &CachedStore) -> Vec<String> {
    store.texts("SELECT id FROM kubesvc_cache ORDER BY id").await.into_iter().flatten().collect()
}

pub(super) async fn body_of(store: &CachedStore, name: &str) -> Option<String> {
    let sql = format!("SELECT body FROM kubesvc_cache WHERE name = '{name}'");
    store.texts(&sql).await.pop().expect("a row")
}
