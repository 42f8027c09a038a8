//! The rows are the objects: each object of the namespace has one row with its uid, version, application, body and
//! relations, and there is no other row.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use kube::api::{DynamicObject, ListParams};
use kube::{Client, ResourceExt as _};
use serde_json::Value;

use super::kinds::{CANARIES, WrittenKind, application};
use crate::world::{CachedRow, Connection, World};
use kubesvc_testkit::wait::try_eventually;

/// Number of differences that are named.
const NAMED: usize = 6;

/// Kind and name.
type ObjectKey = (String, String);

/// Waits until the rows of an account are the objects of these kinds in the world's namespace.
///
/// # Errors
///
/// They are not in time; the text says what differs.
pub(crate) async fn rows_are_objects(
    world: &World,
    account: &str,
    kinds: &[WrittenKind],
    limit: Duration,
) -> Result<(), String> {
    let client = world.control_plane().client().await;
    rows_are_objects_of(world, (&client, world.namespace()), account, kinds, limit).await
}

/// The same for the objects in a namespace of any cluster.
///
/// # Errors
///
/// Same as [`rows_are_objects`].
pub(super) async fn rows_are_objects_of(
    world: &World,
    cluster: (&Client, &str),
    account: &str,
    kinds: &[WrittenKind],
    limit: Duration,
) -> Result<(), String> {
    let what = format!("rows of {account} that are the objects of {}", cluster.1);
    try_eventually(&what, limit, async || compare_with(world, cluster, account, kinds).await).await
}

/// Compares rows and objects once.
///
/// # Errors
///
/// They differ, or one of both cannot be read.
pub(crate) async fn compare(world: &World, account: &str, kinds: &[WrittenKind]) -> Result<(), String> {
    let client = world.control_plane().client().await;
    compare_with(world, (&client, world.namespace()), account, kinds).await
}

async fn compare_with(
    world: &World,
    (client, namespace): (&Client, &str),
    account: &str,
    kinds: &[WrittenKind],
) -> Result<(), String> {
    let objects = objects(client, namespace, kinds).await?;
    let of = |error: sqlx::Error| format!("the database: {error}");
    let mut database = world.open_database().await.map_err(of)?;
    let rows = database.cached_rows().await.map_err(of)?;
    let relations = database.cached_relations().await.map_err(of)?;
    if let Some(row) = rows.iter().find(|row| {
        let body = row.body.as_deref().unwrap_or_default();
        row.kind == "secret" && CANARIES.iter().any(|canary| body.contains(canary))
    }) {
        return Err(format!("the row of the Secret {} has its data", row.name));
    }
    let names: BTreeSet<_> = kinds.iter().map(|kind| kind.cached(namespace)).collect();
    let is_ours =
        |row: &CachedRow| row.account == account && row.namespace == namespace && names.contains(&row.kind);
    let mut rows: BTreeMap<ObjectKey, CachedRow> =
        rows.into_iter().filter(is_ours).map(|row| ((row.kind.clone(), row.name.clone()), row)).collect();
    let mut wrong = Vec::new();
    for (key, (kind, object)) in &objects {
        match rows.remove(key) {
            None => wrong.push(format!("{key:?} has no row")),
            Some(row) => wrong.extend(difference(*kind, object, &row, &relations)),
        }
    }
    wrong.extend(rows.into_keys().map(|key| format!("{key:?} has a row and is no object")));
    if wrong.is_empty() {
        return Ok(());
    }
    let named: Vec<_> = wrong.iter().take(NAMED).map(String::as_str).collect();
    Err(format!("{} of {} objects differ:\n  {}", wrong.len(), objects.len(), named.join("\n  ")))
}

/// The newest version of all rows. The versions of the tests' API servers are numbers that grow.
pub(super) async fn newest_version(database: &mut Connection) -> sqlx::Result<u64> {
    let rows = database.cached_rows().await?;
    Ok(rows.iter().filter_map(|row| row.resource_version.parse().ok()).max().unwrap_or_default())
}

async fn objects(
    client: &Client,
    namespace: &str,
    kinds: &[WrittenKind],
) -> Result<BTreeMap<ObjectKey, (WrittenKind, DynamicObject)>, String> {
    let mut objects = BTreeMap::new();
    for kind in kinds {
        let cached = kind.cached(namespace);
        let listed = kind.api(client.clone(), namespace).list(&ListParams::default()).await;
        match listed {
            Ok(listed) => objects.extend(
                listed.items.into_iter().map(|object| ((cached.clone(), object.name_any()), (*kind, object))),
            ),
            // Its CRD is gone.
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(error) => return Err(format!("{kind:?}: {error}")),
        }
    }
    Ok(objects)
}

/// How a row differs from its object.
fn difference(
    kind: WrittenKind,
    object: &DynamicObject,
    row: &CachedRow,
    relations: &[(String, String, String)],
) -> Option<String> {
    let name = format!("{kind:?} {}", row.name);
    let (uid, version) = (object.uid(), object.resource_version().unwrap_or_default());
    if (row.uid.as_ref(), &row.resource_version) != (uid.as_ref(), &version) {
        let (shown, wanted) = ((&row.uid, &row.resource_version), (uid, version));
        return Some(format!("{name} has the row {shown:?}, not {wanted:?}"));
    }
    let wanted = application(object);
    if row.application.as_ref() != Some(&wanted) {
        return Some(format!("{name} is in {:?}, not {wanted}", row.application));
    }
    let mut body: Value =
        row.body.as_deref().and_then(|body| serde_json::from_str(body).ok()).unwrap_or_default();
    let mut wanted = kind.body(object);
    // A body of which nothing else has changed is not written again.
    for body in [&mut body, &mut wanted] {
        body["metadata"]["resourceVersion"] = Value::Null;
    }
    if body != wanted {
        return Some(format!("{name} has the body {body}, not {wanted}"));
    }
    let related = relations.iter().filter(|(from, ..)| *from == row.id);
    let related: Vec<_> = related.map(|(_, kind, to)| (kind.clone(), to.clone())).collect();
    let wanted = kind.relations(&row.account, object);
    (related != wanted).then(|| format!("{name} is related to {related:?}, not {wanted:?}"))
}
