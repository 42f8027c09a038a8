//! The statements of `kubesvc_cache_rel`. A relation is identified by a hash of both ids and the type of the second, so
//! the stored relations of an object are compared with the wanted ones by their hashes alone, and those that are the
//! same are not touched.

use std::collections::{BTreeMap, HashSet};

use super::Relation;
use super::limits::report;
use super::objects::Object;
use crate::StoreError;
use crate::dialect::Dialect;
use crate::sql::SqlSession;
use crate::sql::columns::table;
use crate::sql::statement::{OnRefusal, Statement, write_rows};
use kubesvc_core::cache::keys::rel_hash;

table! {
    /// `kubesvc_cache_rel`.
    pub(crate) const RELATIONS = "kubesvc_cache_rel", key &["rel_hash"], ours None;
    fn values<'v>(one: &'v Related<'_>) {
        rel_hash: Varchar(64) = &one.hash,
        rel1_id: Varchar(512) = one.from_id,
        rel2_id: Varchar(512) = &one.relation.to_id,
        rel1_type: Varchar(320) = &one.relation.from_type,
        rel2_type: Varchar(320) = &one.relation.to_type,
    }
}

/// Minimum number of objects of a run that is looked up by its first and last id.
const MIN_RUN: usize = 16;
/// Maximum number of runs in a statement.
const MAX_RANGES: usize = 16;

/// A relation to write.
#[derive(Clone, Debug)]
struct Related<'b> {
    batch: usize,
    hash: String,
    from_id: &'b str,
    relation: &'b Relation,
}

/// The relations of these objects that fit, by hash; the others are reported.
fn wanted<'b>(objects: &[Object<'b>], reports: &mut [Vec<String>]) -> BTreeMap<String, Related<'b>> {
    let mut wanted = BTreeMap::new();
    for object in objects {
        for relation in &object.row.relations {
            let from_id = object.row.id.as_str();
            let hash = rel_hash(from_id, &relation.to_id, &relation.to_type);
            let related = Related { batch: object.batch, hash: hash.clone(), from_id, relation };
            if let Some(why) = RELATIONS.unfit(&values(&related)) {
                let key = format!("{from_id} to {}", relation.to_id);
                reports[object.batch].push(report(RELATIONS.name, &key, "left out", &why));
                continue;
            }
            wanted.insert(hash, related);
        }
    }
    wanted
}

/// Makes the relations of these objects, which are written already, the stored ones. Reads which there are: the fences
/// of the accounts are locked, so nothing else writes them meanwhile.
pub(super) async fn write<D: Dialect>(
    session: &mut SqlSession<'_, D>,
    objects: &[Object<'_>],
    now: i64,
    on_refusal: OnRefusal,
    reports: &mut [Vec<String>],
) -> Result<(), StoreError> {
    let mut wanted = wanted(objects, reports);
    let ids = possibly_related(session, objects).await?;
    for piece in session.dialect.pieces(&ids, |_| 0) {
        let dropped = difference(session, piece, &mut wanted).await?;
        for hashes in session.dialect.pieces(&dropped, |_| 0) {
            // By their first object too: PostgreSQL finds a `char` that equals a text through no index.
            let delete = Statement::new("DELETE FROM kubesvc_cache_rel WHERE rel1_id ")
                .one_of(piece)
                .text(" AND rel_hash ")
                .one_of(hashes);
            session.execute(delete).await?;
        }
    }
    let missing: Vec<Related<'_>> = wanted.into_values().collect();
    insert(session, &missing, now, on_refusal, reports).await
}

/// Ids of those objects, which are sorted by id, that may have relations or want some.
///
/// Of a long run of objects of one kind and account that want none, as lists of ConfigMaps are, the index is asked once
/// whether it has an id between the first and the last one. That costs far less than to look each of them up.
async fn possibly_related<'b, D: Dialect>(
    session: &mut SqlSession<'_, D>,
    objects: &[Object<'b>],
) -> Result<Vec<&'b str>, StoreError> {
    // All objects of a run are alike in what the first one is asked for.
    let (long, others): (Vec<_>, Vec<_>) =
        objects.chunk_by(is_same_run).partition(|run| run.len() >= MIN_RUN && is_unrelated(&run[0]));
    let mut asked = Vec::with_capacity(long.len());
    for piece in long.chunks(MAX_RANGES) {
        let range = |sql: Statement<D>, (at, run): (usize, &&[Object<'_>])| {
            sql.text(if at == 0 { "" } else { " UNION ALL " })
                .text("SELECT MIN(rel1_id) FROM kubesvc_cache_rel WHERE rel1_id >= ? AND rel1_id <= ?")
                .bind(run[0].row.id.as_str())
                .bind(run[run.len() - 1].row.id.as_str())
        };
        let statement = piece.iter().enumerate().fold(Statement::new(""), range);
        asked.extend(session.select::<Option<String>>(statement).await?);
    }
    // The order of the answers is not promised: any id found makes all of these runs looked up.
    let is_any_related = asked.iter().any(Option::is_some);
    let runs = if is_any_related { vec![objects] } else { others };
    Ok(runs.into_iter().flatten().map(|object| object.row.id.as_str()).collect())
}

fn is_same_run(one: &Object<'_>, next: &Object<'_>) -> bool {
    one.account == next.account && one.row.kind == next.row.kind && is_unrelated(one) == is_unrelated(next)
}

/// Whether an object wants no relation. One whose id has a character below `!` counts as one that may: databases do not
/// agree on where it is sorted.
fn is_unrelated(object: &Object<'_>) -> bool {
    object.row.relations.is_empty() && object.row.id.bytes().all(|byte| byte > b' ')
}

/// Takes the stored relations of these objects out of `wanted`. Returns the hashes of those that are stored and not
/// wanted.
async fn difference<D: Dialect>(
    session: &mut SqlSession<'_, D>,
    ids: &[&str],
    wanted: &mut BTreeMap<String, Related<'_>>,
) -> Result<Vec<String>, StoreError> {
    let stored: HashSet<String> = session.select(D::relations_of(ids)).await?.into_iter().collect();
    let mut dropped: Vec<String> =
        stored.into_iter().filter(|hash| wanted.remove(hash.as_str()).is_none()).collect();
    dropped.sort_unstable();
    Ok(dropped)
}

async fn insert<D: Dialect>(
    session: &mut SqlSession<'_, D>,
    missing: &[Related<'_>],
    now: i64,
    on_refusal: OnRefusal,
    reports: &mut [Vec<String>],
) -> Result<(), StoreError> {
    let weigh = |one: &Related<'_>| 256 + one.from_id.len() + one.relation.to_id.len();
    let statement = |piece: &[Related<'_>]| {
        let rows: Vec<_> = piece.iter().map(values).collect();
        RELATIONS.upsert(&rows, now)
    };
    for (one, error) in write_rows(session, missing, on_refusal, weigh, statement).await? {
        let key = format!("{} to {}", one.from_id, one.relation.to_id);
        reports[one.batch].push(report(RELATIONS.name, &key, "left out", &error.refusal()));
    }
    Ok(())
}
