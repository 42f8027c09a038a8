//! Clouddriver's `GET /credentials/type/kubernetes`, the last choice: it answers with resolved secrets, and leaves out
//! accounts whose secret fails or that the caller may not see. So it is never complete, and a short page is not the last.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::http::{HttpAccess, follow_interval, path_segment};
use super::{CredentialsSource, SourceReadError};
use kubesvc_clouddriver::sources::{Completeness, SourceItem, SourceSnapshot, read_page};

/// Accounts of a page.
const PAGE_ACCOUNTS: usize = 200;
/// Maximum number of pages.
const MAX_PAGES: usize = 500;
/// Maximum size of all pages, in MiB.
const MAX_TOTAL_MIB: u64 = 256;
/// Why the snapshot is never complete.
const WHY_INCOMPLETE: &str = "Clouddriver leaves out accounts that the caller may not see, or whose secret fails; use a source of another type";

/// Reads all pages.
pub(super) struct ClouddriverApiSource {
    name: Arc<str>,
    url: String,
    access: HttpAccess,
}

impl ClouddriverApiSource {
    pub(super) fn new(name: Arc<str>, uri: &str, access: HttpAccess) -> Self {
        let url = format!("{}/credentials/type/kubernetes", uri.trim_end_matches('/'));
        Self { name, url, access }
    }
}

#[async_trait]
impl CredentialsSource for ClouddriverApiSource {
    fn interval(&self) -> Duration {
        follow_interval()
    }

    fn is_table(&self) -> bool {
        true
    }

    async fn read(&self) -> Result<Arc<SourceSnapshot>, SourceReadError> {
        let client = self.access.client(&self.url).await?;
        let (mut items, mut bytes, mut start) = (Vec::new(), 0, None::<String>);
        for _ in 0..MAX_PAGES {
            let mut url = format!("{}?limit={PAGE_ACCOUNTS}", self.url);
            if let Some(start) = &start {
                url.push_str(&format!("&startingAccountName={}", path_segment(start)));
            }
            let page = client.get(&url).await?;
            bytes += page.len() as u64;
            if bytes > MAX_TOTAL_MIB << 20 {
                let what = format!("what GET {} answers", self.url);
                return Err(SourceReadError::TooLarge { what, mib: MAX_TOTAL_MIB });
            }
            let (page, last) = read_page(&self.name, &page)?;
            // A page begins with the account that the last one ended with.
            items.extend(page.into_iter().filter(|item| start.is_none() || name(item) != start.as_deref()));
            if last.is_none() || last == start {
                break;
            }
            start = last;
        }
        let completeness = Completeness::Partial(WHY_INCOMPLETE.to_owned());
        Ok(Arc::new(SourceSnapshot::of(&self.name, items, completeness)))
    }
}

fn name(item: &SourceItem) -> Option<&str> {
    match item {
        SourceItem::Entry(entry) => Some(&entry.name),
        SourceItem::Bad(bad) => bad.name.as_deref(),
        SourceItem::Registered => None,
    }
}
