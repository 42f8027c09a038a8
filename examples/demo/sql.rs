//! The rows that Spinnaker reads, straight from the database's file.

use std::path::Path;

use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions, Connection, Row};

/// What the demo asks, here and in the command that it suggests.
pub(crate) const QUERY: &str =
    "SELECT name, status, zone_id, kube_version, failed_count FROM kubesvc_accounts ORDER BY name";

/// The answer, a cell for each column; an absent value is empty. The first row names the columns.
pub(crate) async fn rows(file: &Path) -> Result<Vec<Vec<String>>, String> {
    let problem = |e: sqlx::Error| format!("{}: {e}", file.display());
    let options = SqliteConnectOptions::new().filename(file).read_only(true);
    let mut connection = options.connect().await.map_err(problem)?;
    let rows = sqlx::query(QUERY).fetch_all(&mut connection).await.map_err(problem)?;
    connection.close().await.map_err(problem)?;
    let mut table =
        vec![["name", "status", "zone_id", "kube_version", "failed_count"].map(str::to_owned).to_vec()];
    for row in rows {
        let text = |column| row.get::<Option<String>, _>(column).unwrap_or_default();
        let count = row.get::<i64, _>("failed_count").to_string();
        table.push(vec![text("name"), text("status"), text("zone_id"), text("kube_version"), count]);
    }
    Ok(table)
}

/// What the demo asks of a cached object, here and in the command that it suggests.
pub(crate) const CACHED_QUERY: &str = "SELECT account, kind, namespace, name, json_extract(body, '$.spec.replicas') AS replicas \
     FROM kubesvc_cache WHERE kind = 'deployment'";

/// Replicas of the cached Deployment of a name; `None` if it has no row.
pub(crate) async fn cached_replicas(file: &Path, name: &str) -> Result<Option<i64>, String> {
    let problem = |e: sqlx::Error| format!("{}: {e}", file.display());
    let options = SqliteConnectOptions::new().filename(file).read_only(true);
    let mut connection = options.connect().await.map_err(problem)?;
    let rows = sqlx::query(CACHED_QUERY).fetch_all(&mut connection).await.map_err(problem)?;
    connection.close().await.map_err(problem)?;
    let row = rows.iter().find(|row| row.get::<String, _>("name") == name);
    Ok(row.map(|row| row.get("replicas")))
}

/// As `sqlite3 -header -column` prints them.
pub(crate) fn print(table: &[Vec<String>]) -> String {
    let columns = table.first().map_or(0, Vec::len);
    let width = |column: usize| table.iter().map(|row| row[column].chars().count()).max().unwrap_or_default();
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |cells: &[String]| {
        let padded = cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    let rule: Vec<String> = widths.iter().map(|width| "-".repeat(*width)).collect();
    let mut lines: Vec<String> = table.iter().map(|row| line(row)).collect();
    lines.insert(1, line(&rule));
    lines.join("\n")
}
