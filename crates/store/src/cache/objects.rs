//! The statements of `kubesvc_cache`.

use super::limits::report;
use super::{AccountBatch, ObjectBody, ObjectRow};
use crate::StoreError;
use crate::dialect::Dialect;
use crate::sql::SqlSession;
use crate::sql::columns::table;
use crate::sql::statement::{OnRefusal, Statement, assignments, write_rows};

table! {
    /// `kubesvc_cache`.
    pub(crate) const OBJECTS = "kubesvc_cache", key &["id"], ours None;
    fn values<'b>(object: &Object<'b>) {
        id: Varchar(512) = &object.row.id,
        agent: Varchar(191) = object.agent,
        kind: Varchar(320) = &object.row.kind,
        account: Varchar(255) = object.account,
        application: Varchar(255) = &object.row.application,
        namespace: Varchar(63) = &object.row.namespace,
        name: Varchar(253) = &object.row.name,
        api_version: Varchar(320) = &object.row.api_version,
        uid: Varchar(64) = &object.row.uid,
        resource_version: Varchar(64) = &object.row.resource_version,
        body_hash: Varchar(64) = &object.row.body_hash,
        body: Text = object.body().0,
        body_z: Blob = object.body().1,
    }
}

/// An object to write.
#[derive(Clone, Copy, Debug)]
pub(super) struct Object<'b> {
    /// Index of its batch in the transaction.
    pub(super) batch: usize,
    pub(super) account: &'b str,
    agent: &'b str,
    pub(super) row: &'b ObjectRow,
    with_body: bool,
}

impl<'b> Object<'b> {
    /// The body to write, as a text or as bytes.
    fn body(&self) -> (Option<&'b str>, Option<&'b [u8]>) {
        match &self.row.body {
            ObjectBody::Text(text) if self.with_body => (Some(text), None),
            ObjectBody::Zstd(bytes) if self.with_body => (None, Some(bytes)),
            _ => (None, None),
        }
    }

    /// The approximate size of the row in a statement, in bytes.
    fn weight(&self) -> usize {
        const OTHERS_BYTES: usize = 512;
        let (text, bytes) = self.body();
        let body = text.map_or(0, str::len) + bytes.map_or(0, <[u8]>::len);
        OTHERS_BYTES
            + self.row.id.len()
            + self.row.name.len()
            + self.row.kind.len()
            + self.account.len()
            + body
    }

    fn without_body(self) -> Self {
        Self { with_body: false, ..self }
    }

    fn has_body(&self) -> bool {
        self.body() != (None, None)
    }
}

/// Why a row without its body does not fit this database; `None` if it fits.
fn unfit<D: Dialect>(object: &Object<'_>) -> Option<String> {
    if object.row.id.is_empty() || object.row.kind.is_empty() {
        return Some("it has no id or no kind".to_owned());
    }
    OBJECTS.unfit(&values(object)).or_else(|| D::unfit_key(&object.row.id).map(str::to_owned))
}

/// The objects of one batch that fit, and reports of the others.
pub(super) fn fitting<'b, D: Dialect>(
    batch: (usize, &'b AccountBatch),
    reports: &mut Vec<String>,
) -> Vec<Object<'b>> {
    let (at, batch) = batch;
    let mut fitting = Vec::with_capacity(batch.upserts.len());
    for row in &batch.upserts {
        let (account, agent) = (&batch.account, batch.agent_id.as_str());
        let mut object = Object { batch: at, account, agent, row, with_body: false };
        if let Some(why) = unfit::<D>(&object) {
            reports.push(report(OBJECTS.name, &row.id, "left out", &why));
            continue;
        }
        object.with_body = true;
        if let Some(why) = OBJECTS.unfit(&values(&object)) {
            reports.push(report(OBJECTS.name, &row.id, "written without its body", &why));
            object.with_body = false;
        }
        fitting.push(object);
    }
    fitting
}

/// Sorts objects by id, as every transaction writes them; of two with the same id the later one comes first.
pub(super) fn sort(objects: &mut [Object<'_>]) {
    objects.reverse();
    objects.sort_by(|one, other| one.row.id.cmp(&other.row.id));
}

/// Those of the sorted objects whose batches passed, each id once. Batches of two accounts of one name, of which only
/// one can pass, have the same ids.
pub(super) fn passed<'b>(sorted: &[Object<'b>], passed: &[bool]) -> Vec<Object<'b>> {
    let mut objects: Vec<_> = sorted.iter().filter(|object| passed[object.batch]).copied().collect();
    objects.dedup_by(|other, kept| other.row.id == kept.row.id);
    objects
}

/// An `INSERT` of objects that overwrites rows with the same id. A stored body of the same hash is not written again,
/// which costs a database more than all other columns together.
fn upsert<D: Dialect>(objects: &[Object<'_>], now: i64) -> Statement<D> {
    let rows: Vec<_> = objects.iter().map(values).collect();
    let kept = |column: &str| {
        let table = OBJECTS.name;
        format!(
            "{column}=CASE WHEN {table}.body_hash={} AND ({table}.body IS NOT NULL OR {table}.body_z IS NOT NULL) \
             THEN {table}.{column} ELSE {} END",
            D::inserted("body_hash"),
            D::inserted(column)
        )
    };
    // The bodies come first, because MySQL assigns from left to right: they must still see the old hash.
    let others: Vec<&str> = OBJECTS
        .column_names()
        .into_iter()
        .filter(|column| !["id", "body", "body_z"].contains(column))
        .chain(["last_updated"])
        .collect();
    OBJECTS.insert(&rows, now).text(&format!(
        " {}{},{},{}",
        D::on_same_key("id"),
        kept("body"),
        kept("body_z"),
        assignments::<D>(&others)
    ))
}

/// Writes objects, which are sorted, and adds reports of those that this database refuses to those of their batch.
/// Returns the ones that were written.
pub(super) async fn write<'b, D: Dialect>(
    session: &mut SqlSession<'_, D>,
    mut objects: Vec<Object<'b>>,
    now: i64,
    on_refusal: OnRefusal,
    reports: &mut [Vec<String>],
) -> Result<Vec<Object<'b>>, StoreError> {
    let most = session.dialect.max_row_bytes();
    for object in objects.iter_mut().filter(|object| object.has_body() && object.weight() > most) {
        *object = object.without_body();
        let why = "it is larger than the server takes at once";
        reports[object.batch].push(report(OBJECTS.name, &object.row.id, "written without its body", why));
    }
    let statement = |piece: &[Object<'b>]| upsert(piece, now);
    let refused = write_rows(session, &objects, on_refusal, Object::weight, statement).await?;
    let mut left_out = Vec::new();
    for (object, error) in refused {
        let bare = [object.without_body()];
        let written = object.has_body()
            && write_rows(session, &bare, on_refusal, Object::weight, statement).await?.is_empty();
        let what = if written { "written without its body" } else { "left out" };
        let why = error.refusal();
        reports[object.batch].push(report(OBJECTS.name, &object.row.id, what, &why));
        if !written {
            left_out.push(object.row.id.as_str());
        }
    }
    objects.retain(|object| !left_out.contains(&object.row.id.as_str()));
    Ok(objects)
}

/// Deletes objects with their relations.
pub(super) async fn delete<D: Dialect>(
    session: &mut SqlSession<'_, D>,
    ids: &[&str],
) -> Result<(), StoreError> {
    for piece in session.dialect.pieces(ids, |_| 0) {
        if D::DELETE_THEIR_RELATIONS.is_some() {
            let relations = Statement::new("DELETE FROM kubesvc_cache_rel WHERE rel1_id ").one_of(piece);
            session.execute(relations).await?;
        }
        session.execute(Statement::new("DELETE FROM kubesvc_cache WHERE id ").one_of(piece)).await?;
    }
    Ok(())
}
