//! The clock: a watch of the accounts in one namespace, from the first change until the last account is ACTIVE.

use std::{
    collections::HashSet,
    pin::pin,
    time::{Duration, Instant},
};

use futures::TryStreamExt;
use kube::{Client, Resource, core::WatchEvent};
use kubesvc_core::KubesvcAccount;
use serde::Deserialize;
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use crate::progress::Bar;

/// Delay before a closed watch is reopened.
const AGAIN: Duration = Duration::from_millis(20);

/// State of the watch so far.
#[derive(Debug, Clone, Default)]
struct Seen {
    first: Option<Instant>,
    /// Number of accounts that have been ACTIVE, and in `last`, the time when the number last grew.
    active: usize,
    last: Option<Instant>,
    /// Why the watch has ended for good.
    broken: Option<String>,
}

/// A running watch; stops on drop.
#[derive(Debug)]
pub(crate) struct Follow {
    seen: watch::Receiver<Seen>,
    _watch: AbortOnDropHandle<()>,
}

/// The few fields of an account that the watch needs, so that it costs little.
#[derive(Debug, Clone, Deserialize)]
struct Account {
    metadata: Metadata,
    status: Option<Status>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    name: String,
    resource_version: String,
}

#[derive(Debug, Clone, Deserialize)]
struct Status {
    state: Option<String>,
}

#[derive(Debug, Deserialize)]
struct List {
    metadata: ListMetadata,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ListMetadata {
    resource_version: String,
}

impl Follow {
    /// Starts to follow the accounts of a namespace.
    ///
    /// # Errors
    ///
    /// The accounts cannot be listed.
    pub(crate) async fn start(client: Client, namespace: &str) -> Result<Self, String> {
        let path = KubesvcAccount::url_path(&(), Some(namespace));
        let problem = |e: &dyn std::fmt::Display| format!("watch of {path}: {e}");
        let request =
            http::Request::get(format!("{path}?limit=1")).body(Vec::new()).map_err(|e| problem(&e))?;
        let list: List = client.request(request).await.map_err(|e| problem(&e))?;
        let mut version = list.metadata.resource_version;
        let (tell, seen) = watch::channel(Seen::default());
        let watch = tokio::spawn(async move {
            let mut active = HashSet::new();
            // The API server closes the watch of a slow reader, for example on a busy machine. Resuming loses
            // nothing.
            let ended = loop {
                match observe(&client, &path, &mut version, &mut active, &tell).await {
                    Ok(()) => tokio::time::sleep(AGAIN).await,
                    Err(reason) => break reason,
                }
            };
            tell.send_modify(|seen| seen.broken = Some(ended));
        });
        Ok(Self { seen, _watch: AbortOnDropHandle::new(watch) })
    }

    /// Waits for the first change.
    pub(crate) async fn first(&mut self, max_wait: Duration) -> Result<Instant, String> {
        let first = |seen: &Seen| seen.first;
        self.wait(max_wait, "the first change of an account", None, first).await
    }

    /// Waits until `count` accounts have been ACTIVE and returns the time when that was reached.
    pub(crate) async fn active(&mut self, count: usize, max_wait: Duration) -> Result<Instant, String> {
        let bar = Bar::start("ACTIVE", count);
        let what = format!("{count} ACTIVE accounts");
        let active = |seen: &Seen| seen.last.filter(|_| seen.active >= count);
        self.wait(max_wait, &what, Some(&bar), active).await
    }

    async fn wait(
        &mut self,
        max_wait: Duration,
        what: &str,
        bar: Option<&Bar>,
        done: impl Fn(&Seen) -> Option<Instant>,
    ) -> Result<Instant, String> {
        let wait = async {
            loop {
                let seen = self.seen.borrow_and_update().clone();
                if let Some(bar) = bar {
                    bar.set(seen.active);
                }
                match (done(&seen), seen.broken) {
                    (Some(at), _) => return Ok(at),
                    (None, Some(reason)) => return Err(format!("the watch of accounts ended: {reason}")),
                    (None, None) => {}
                }
                if self.seen.changed().await.is_err() {
                    return Err("the watch of accounts is gone".into());
                }
            }
        };
        let waited = tokio::time::timeout(max_wait, wait).await;
        waited.unwrap_or_else(|_| {
            let active = self.seen.borrow().active;
            Err(format!("waited {} s for {what}; {active} have been ACTIVE", max_wait.as_secs()))
        })
    }
}

/// Observes changes after `version`, which it advances, until the API server closes the watch.
async fn observe(
    client: &Client,
    path: &str,
    version: &mut String,
    active: &mut HashSet<String>,
    tell: &watch::Sender<Seen>,
) -> Result<(), String> {
    let broken = |e: &dyn std::fmt::Display| e.to_string();
    let request = http::Request::get(format!("{path}?watch=1&timeoutSeconds=3600&resourceVersion={version}"))
        .body(Vec::new())
        .map_err(|e| broken(&e))?;
    let mut events = pin!(client.request_events::<Account>(request).await.map_err(|e| broken(&e))?);
    while let Some(event) = events.try_next().await.map_err(|e| broken(&e))? {
        match event {
            WatchEvent::Added(account) | WatchEvent::Modified(account) => {
                let now = Instant::now();
                let Metadata { name, resource_version } = account.metadata;
                *version = resource_version;
                let is_active = account.status.and_then(|status| status.state).as_deref() == Some("ACTIVE");
                let news = is_active && active.insert(name);
                tell.send_if_modified(|seen| {
                    let first = seen.first.is_none();
                    seen.first.get_or_insert(now);
                    if news {
                        seen.active = active.len();
                        seen.last = Some(now);
                    }
                    first || news
                });
            }
            WatchEvent::Error(status) => return Err(status.message),
            WatchEvent::Deleted(_) | WatchEvent::Bookmark(_) => {}
        }
    }
    Ok(())
}

/// Time limit for this many accounts. Exceeding it means that something is broken.
pub(crate) fn max_wait(accounts: usize) -> Duration {
    Duration::from_secs(120 + accounts as u64 / 10)
}
