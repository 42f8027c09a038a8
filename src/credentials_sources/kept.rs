//! The sources in the order of the settings, and what is known of each.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::future::join_all;
use parking_lot::RwLock;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tokio::sync::{Mutex, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::clouddriver_api::ClouddriverApiSource;
use super::config_server::ConfigServerSource;
use super::files::{FileSource, TextReader};
use super::http::HttpAccess;
use super::object::ObjectSource;
use super::sql::SqlSource;
use super::{CredentialsSource, SourcePlace, SourceReadError, SourceSettings};
use kubesvc_clouddriver::sources::{MergedSources, SourceSnapshot};
use kubesvc_runtime::background_tasks::BackgroundTasks;
use kubesvc_runtime::kube_access::KubeAccess;
use kubesvc_runtime::telemetry::errors::chain;

/// Time limit for a read of a source that is followed.
const READ_TIMEOUT: Duration = Duration::from_secs(120);
/// Why nothing is known of a source yet.
const NOT_READ: &str = "it has not been read yet";

/// All credentials sources.
pub struct CredentialsSources {
    sources: Vec<KeptSource>,
    /// Number of those who need current snapshots.
    needed: watch::Sender<usize>,
    /// Number of reads that found something else than the one before.
    news: Arc<AtomicU64>,
}

/// One source, and what is known of it.
struct KeptSource {
    name: Arc<str>,
    reader: Box<dyn CredentialsSource>,
    /// Held by the one read that is under way.
    turn: Mutex<()>,
    state: RwLock<ReadState>,
    failures: AtomicU64,
    news: Arc<AtomicU64>,
}

#[derive(Default)]
struct ReadState {
    /// The last read.
    last: Option<LastRead>,
    /// When the last good read began, and its snapshot.
    good: Option<(Instant, Arc<SourceSnapshot>)>,
}

struct LastRead {
    began: Instant,
    result: Result<Arc<SourceSnapshot>, String>,
    /// Whether it ran to its end, so that its result is also that of others who wait. A caller who gave up says nothing
    /// about a read that others still wait for.
    is_whole: bool,
}

/// Keeps the sources followed until it is dropped.
pub struct NeededSources(Arc<CredentialsSources>);

impl Drop for NeededSources {
    fn drop(&mut self) {
        self.0.needed.send_modify(|needed| *needed = needed.saturating_sub(1));
    }
}

impl CredentialsSources {
    /// The sources of the settings. `vars` resolve placeholders in files; Clouddriver's table is read again every
    /// `table_reload`; objects without a namespace are in `own_namespace`.
    pub fn new(
        settings: &[SourceSettings],
        vars: BTreeMap<String, String>,
        table_reload: Duration,
        kube: &KubeAccess,
        own_namespace: &str,
    ) -> Self {
        let vars = Arc::new(vars);
        let readers = settings.iter().map(|one| {
            let name: Arc<str> = Arc::from(one.name.as_str());
            (Arc::clone(&name), reader(name, one.place.clone(), &vars, table_reload, kube, own_namespace))
        });
        Self::of(readers.collect())
    }

    /// Sources with these readers, by name.
    pub fn of(readers: Vec<(Arc<str>, Box<dyn CredentialsSource>)>) -> Self {
        let news = Arc::<AtomicU64>::default();
        let sources = readers.into_iter().map(|(name, reader)| KeptSource {
            name,
            reader,
            turn: Mutex::default(),
            state: RwLock::default(),
            failures: AtomicU64::new(0),
            news: Arc::clone(&news),
        });
        Self { sources: sources.collect(), needed: watch::Sender::new(0), news }
    }

    /// The names of the sources, in their order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.sources.iter().map(|source| &*source.name)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.sources.is_empty()
    }

    /// Whether the source of this name reads Clouddriver's table.
    pub fn is_table(&self, name: &str) -> bool {
        self.sources.iter().any(|source| &*source.name == name && source.reader.is_table())
    }

    /// Reads all sources now, at once, each within this time. Of a source that cannot be read, nothing is known.
    pub async fn read_now(&self, within: Duration) -> MergedSources {
        let now = Instant::now();
        let reads = self.sources.iter().map(|source| async move {
            let read = source.read_since(now, within).await;
            read.unwrap_or_else(|why| Arc::new(SourceSnapshot::unread(&source.name, why)))
        });
        MergedSources::of(join_all(reads).await)
    }

    /// What is known without reading: the last good snapshot of each source. It is not complete if a later read failed.
    pub fn latest(&self) -> MergedSources {
        MergedSources::of(self.sources.iter().map(KeptSource::latest).collect())
    }

    /// Changes whenever something else is known of a source.
    pub fn version(&self) -> u64 {
        self.news.load(Ordering::Relaxed)
    }

    /// Time since the oldest of the last reads began, those that failed included; `None` before the first ones.
    pub fn age(&self) -> Option<Duration> {
        let began = |source: &KeptSource| source.state.read().last.as_ref().map(|last| last.began);
        let oldest: Option<Vec<Instant>> = self.sources.iter().map(began).collect();
        oldest.map(|began| began.into_iter().min().map(|began| began.elapsed()).unwrap_or_default())
    }

    /// Keeps all sources read again at their intervals until the result is dropped.
    #[must_use]
    pub fn need(self: &Arc<Self>) -> NeededSources {
        self.needed.send_modify(|needed| *needed += 1);
        NeededSources(Arc::clone(self))
    }

    /// Starts the task that reads the sources while they are needed.
    pub fn start(self: &Arc<Self>, background: &BackgroundTasks, stop: CancellationToken) {
        if self.is_empty() {
            return;
        }
        let sources = Arc::clone(self);
        let what = "Reads Clouddriver's credentials sources while they are needed";
        background.spawn("credentials sources", what, async move {
            stop.run_until_cancelled(sources.follow()).await;
        });
    }

    /// Reads the sources while they are needed; never ends.
    pub(super) async fn follow(&self) {
        join_all(self.sources.iter().map(|source| source.follow(self.needed.subscribe()))).await;
    }

    /// Registers the metrics of the sources, if there are any.
    pub fn register(self: &Arc<Self>, registry: &mut Registry) {
        if !self.is_empty() {
            registry.register_collector(Box::new(SourceMetrics(Arc::clone(self))));
        }
    }
}

fn reader(
    name: Arc<str>,
    place: SourcePlace,
    vars: &Arc<BTreeMap<String, String>>,
    table_reload: Duration,
    kube: &KubeAccess,
    own_namespace: &str,
) -> Box<dyn CredentialsSource> {
    match place {
        SourcePlace::Sql { url, password_file, authority } => {
            Box::new(SqlSource::new(name, url, password_file, authority, table_reload))
        }
        SourcePlace::Files { paths, profiles } => {
            Box::new(FileSource::new(paths, TextReader::new(name, profiles, Arc::clone(vars))))
        }
        SourcePlace::Object { kind, namespace, name: object, keys, profiles } => Box::new(ObjectSource {
            kube: kube.clone(),
            kind,
            namespace: namespace.unwrap_or_else(|| own_namespace.to_owned()),
            name: object,
            keys,
            reader: TextReader::new(name, profiles, Arc::clone(vars)),
        }),
        SourcePlace::ConfigServer {
            uri,
            application,
            profile,
            label,
            username,
            password_file,
            authority,
        } => {
            let login = username.map(|user| (user, password_file));
            let access = HttpAccess { authority, login, spinnaker_user: None };
            let what = (uri.as_str(), application.as_str(), profile.as_str());
            Box::new(ConfigServerSource::new(name, what, label.as_deref(), access, Arc::clone(vars)))
        }
        SourcePlace::Api { uri, username, authority } => {
            let access = HttpAccess { authority, login: None, spinnaker_user: username };
            Box::new(ClouddriverApiSource::new(name, &uri, access))
        }
    }
}

impl KeptSource {
    /// The result of a read that began at `since` or later: of the one that is under way, if it began late enough, or
    /// of a new one.
    async fn read_since(&self, since: Instant, within: Duration) -> Result<Arc<SourceSnapshot>, String> {
        let read = async {
            let _turn = self.turn.lock().await;
            if let Some(last) = &self.state.read().last
                && last.is_whole
                && last.began >= since
            {
                return last.result.clone();
            }
            let began = Instant::now();
            let result = self.reader.read().await;
            self.note(began, result, true)
        };
        match tokio::time::timeout(within, read).await {
            Ok(result) => result,
            Err(_) => self.note(since, Err(SourceReadError::Timeout(within)), false),
        }
    }

    /// Keeps the result of a read, and logs what is new about it.
    fn note(
        &self,
        began: Instant,
        result: Result<Arc<SourceSnapshot>, SourceReadError>,
        is_whole: bool,
    ) -> Result<Arc<SourceSnapshot>, String> {
        let source = &*self.name;
        let cause = result.as_ref().err().map(|error| chain(error));
        let mut result = result.map_err(|error| error.to_string());
        let mut state = self.state.write();
        let before = state.last.as_ref().map(|last| &last.result);
        let known = match (before, &result) {
            (Some(Ok(before)), Ok(now)) if before.says_the_same_as(now) => Some(Arc::clone(before)),
            _ => None,
        };
        let is_same_failure = matches!((before, &result), (Some(Err(before)), Err(now)) if before == now);
        if let Some(known) = known {
            // Who knows the snapshot sees by its address that it is the same.
            result = Ok(known);
        } else if !is_same_failure {
            self.news.fetch_add(1, Ordering::Relaxed);
        }
        let failed_before = before.and_then(|before| before.as_ref().err());
        if let Some(error) = cause {
            self.failures.fetch_add(1, Ordering::Relaxed);
            if failed_before != result.as_ref().err() {
                warn!(source, error, "cannot read a credentials source; what was read of it last is kept");
            }
        } else if failed_before.is_some() {
            info!(source, "a credentials source can be read again");
        }
        if let Ok(snapshot) = &result {
            let is_known = state.good.as_ref().is_some_and(|(_, known)| known.bad == snapshot.bad);
            if let (false, Some(first)) = (is_known, snapshot.bad.first()) {
                let count = snapshot.bad.len();
                warn!(source, count, %first, "a credentials source has entries that are no accounts");
            }
            state.good = Some((began, Arc::clone(snapshot)));
        }
        state.last = Some(LastRead { began, result: result.clone(), is_whole });
        result
    }

    fn latest(&self) -> Arc<SourceSnapshot> {
        let state = self.state.read();
        match (state.last.as_ref().map(|last| &last.result), &state.good) {
            (Some(Ok(snapshot)), _) => Arc::clone(snapshot),
            (Some(Err(why)), Some((_, good))) => Arc::new(good.outdated(why.clone())),
            (Some(Err(why)), None) => Arc::new(SourceSnapshot::unread(&self.name, why.clone())),
            (None, _) => Arc::new(SourceSnapshot::unread(&self.name, NOT_READ.to_owned())),
        }
    }

    /// Reads the source at its interval while it is needed; never ends.
    async fn follow(&self, mut needed: watch::Receiver<usize>) {
        while needed.wait_for(|needed| *needed > 0).await.is_ok() {
            // The result is kept.
            let _ = self.read_since(Instant::now(), READ_TIMEOUT).await;
            tokio::time::sleep(self.reader.interval()).await;
        }
    }
}

/// Metrics of the sources, computed at each scrape.
struct SourceMetrics(Arc<CredentialsSources>);

impl fmt::Debug for SourceMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SourceMetrics").finish_non_exhaustive()
    }
}

impl Collector for SourceMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        type Label = [(&'static str, String); 1];
        let (age, accounts, bad) = (
            Family::<Label, Gauge>::default(),
            Family::<Label, Gauge>::default(),
            Family::<Label, Gauge>::default(),
        );
        let failures = Family::<Label, Counter>::default();
        let number = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        for source in &self.0.sources {
            let label = [("source", source.name.to_string())];
            failures.get_or_create(&label).inc_by(source.failures.load(Ordering::Relaxed));
            if let Some((began, good)) = &source.state.read().good {
                let seconds = i64::try_from(began.elapsed().as_secs()).unwrap_or(i64::MAX);
                age.get_or_create(&label).set(seconds);
                accounts.get_or_create(&label).set(number(good.entries.len()));
                bad.get_or_create(&label).set(number(good.bad.len()));
            }
        }
        let mut encode = |name: &str, help: &str, metric: &dyn EncodeMetric| {
            metric.encode(encoder.encode_descriptor(name, help, None, metric.metric_type())?)
        };
        encode(
            "kubesvc_credentials_source_age_seconds",
            "Time since the last good read of a credentials source began",
            &age,
        )?;
        encode(
            "kubesvc_credentials_source_accounts",
            "Accounts of a credentials source when it was last read",
            &accounts,
        )?;
        encode("kubesvc_credentials_source_bad_entries", "Entries of it that are no accounts", &bad)?;
        encode("kubesvc_credentials_source_read_failures", "Failed reads of a credentials source", &failures)
    }
}
