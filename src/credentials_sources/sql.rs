//! Clouddriver's table `accounts`.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;

use super::bounded_files::read_password;
use super::{CredentialsSource, SourceReadError};
use kubesvc_clouddriver::sources::{BadEntry, Completeness, SourceItem, SourceSnapshot, read_row};
use kubesvc_store::{ClouddriverBody, ClouddriverDatabase, ClouddriverRow, scan_clouddriver_accounts};

/// Reads the table. Bodies that were read stay in memory, as what they mean.
pub(super) struct SqlSource {
    name: Arc<str>,
    url: String,
    password_file: Option<PathBuf>,
    authority: Option<PathBuf>,
    /// Interval of reads while the table is followed.
    interval: Duration,
    /// What was read last, by id.
    rows: Mutex<HashMap<String, KnownRow>>,
}

#[derive(Clone)]
struct KnownRow {
    last_modified_at: i64,
    item: SourceItem,
}

impl SqlSource {
    pub(super) fn new(
        name: Arc<str>,
        url: String,
        password_file: Option<PathBuf>,
        authority: Option<PathBuf>,
        interval: Duration,
    ) -> Self {
        Self { name, url, password_file, authority, interval, rows: Mutex::default() }
    }

    /// What a row is.
    fn item(&self, row: &ClouddriverRow) -> SourceItem {
        let broken = |reason: &str| {
            let name = Some(row.id.clone());
            let (place, reason) = ("its row".to_owned(), reason.to_owned());
            SourceItem::Bad(Arc::new(BadEntry { name, place, reason }))
        };
        match &row.body {
            ClouddriverBody::Text(body) => {
                read_row(&self.name, &row.id, body, row.last_modified_at.to_string())
            }
            ClouddriverBody::TooLarge => broken("its body is larger than 1 MiB"),
            ClouddriverBody::Known | ClouddriverBody::Missing => broken("it has no body"),
        }
    }
}

#[async_trait]
impl CredentialsSource for SqlSource {
    fn interval(&self) -> Duration {
        self.interval
    }

    fn is_table(&self) -> bool {
        true
    }

    async fn read(&self) -> Result<Arc<SourceSnapshot>, SourceReadError> {
        let password = match &self.password_file {
            Some(path) => Some(read_password(path).await?),
            None => None,
        };
        let database =
            ClouddriverDatabase { url: self.url.clone(), password, authority: self.authority.clone() };
        let mut known = self.rows.lock().clone();
        let times = known.iter().map(|(id, row)| (id.clone(), row.last_modified_at)).collect();
        let scan = scan_clouddriver_accounts(&database, &times).await?;
        let mut rows = HashMap::with_capacity(scan.rows.len());
        let mut items = Vec::with_capacity(scan.rows.len());
        for row in scan.rows {
            let item = match (&row.body, known.remove(&row.id)) {
                (ClouddriverBody::Known, Some(known)) => known.item,
                _ => self.item(&row),
            };
            items.push(item.clone());
            rows.insert(row.id, KnownRow { last_modified_at: row.last_modified_at, item });
        }
        *self.rows.lock() = rows;
        let completeness = match scan.unread {
            None => Completeness::Complete,
            Some(why) => Completeness::Partial(why.to_owned()),
        };
        Ok(Arc::new(SourceSnapshot::of(&self.name, items, completeness)))
    }
}
