use std::time::Duration;

use super::*;

/// A source that does as it is told.
#[derive(Default)]
struct Scripted {
    /// Names of its accounts; `None`: it cannot be read.
    names: Mutex<Option<Vec<&'static str>>>,
    reads: AtomicUsize,
    /// Duration of a read.
    takes: Duration,
}

impl Scripted {
    fn set(&self, names: Option<&[&'static str]>) {
        *self.names.lock() = names.map(<[_]>::to_vec);
    }

    fn reads(&self) -> usize {
        self.reads.load(Ordering::Relaxed)
    }
}

struct Handle(Arc<str>, Arc<Scripted>);

#[async_trait]
impl CredentialsSource for Handle {
    fn interval(&self) -> Duration {
        Duration::from_secs(60)
    }

    async fn read(&self) -> Result<Arc<SourceSnapshot>, SourceReadError> {
        self.1.reads.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(self.1.takes).await;
        let Some(names) = self.1.names.lock().clone() else {
            return Err(SourceReadError::Status { url: "http://config".to_owned(), code: 503 });
        };
        let items: Vec<SourceItem> =
            names.into_iter().map(|name| read_row(&self.0, name, "{}", "1".to_owned())).collect();
        Ok(Arc::new(SourceSnapshot::of(&self.0, items, Completeness::Complete)))
    }
}

fn sources(scripted: &[(&str, &Arc<Scripted>)]) -> Arc<CredentialsSources> {
    let readers = scripted.iter().map(|(name, one)| {
        let name: Arc<str> = Arc::from(*name);
        let reader: Box<dyn CredentialsSource> = Box::new(Handle(Arc::clone(&name), Arc::clone(one)));
        (name, reader)
    });
    Arc::new(CredentialsSources::of(readers.collect()))
}

fn scripted(names: &[&'static str]) -> Arc<Scripted> {
    let one = Arc::new(Scripted { takes: Duration::from_secs(1), ..Scripted::default() });
    one.set(Some(names));
    one
}

const WITHIN: Duration = Duration::from_secs(10);

#[tokio::test(start_paused = true)]
async fn unreadable_source_is_unknown_never_absent() {
    let (sql, yaml) = (scripted(&["s"]), scripted(&["y"]));
    let sources = sources(&[("sql", &sql), ("yaml", &yaml)]);
    let read = sources.read_now(WITHIN).await;
    assert!(
        matches!(read.lookup("s"), NameLookup::Found(_)) && matches!(read.lookup("y"), NameLookup::Found(_))
    );
    assert_eq!(read.lookup("x"), NameLookup::Absent);
    sql.set(None);
    let read = sources.read_now(WITHIN).await;
    for name in ["s", "y", "x"] {
        assert!(matches!(read.lookup(name), NameLookup::Unknown { source: "sql", .. }), "{name}");
    }
    // What was read last is kept, and is no proof that an account is gone.
    let latest = sources.latest();
    assert!(matches!(latest.lookup("s"), NameLookup::Found(_)), "as it was");
    assert!(
        matches!(latest.lookup("y"), NameLookup::Unknown { source: "sql", .. }),
        "sql may have it by now"
    );
    assert_eq!(latest.accounts().map(|entry| entry.name.as_str()).collect::<Vec<_>>(), ["s", "y"]);
    assert!(matches!(latest.lookup("x"), NameLookup::Unknown { source: "sql", why } if why.contains("503")));
    sql.set(Some(&[]));
    assert_eq!(sources.read_now(WITHIN).await.lookup("s"), NameLookup::Absent);
    assert_eq!(sources.latest().lookup("s"), NameLookup::Absent);
}

#[tokio::test(start_paused = true)]
async fn callers_at_once_share_reads_that_began_after_they_came() {
    let sql = scripted(&["a"]);
    let sources = sources(&[("sql", &sql)]);
    let first = tokio::spawn({
        let sources = Arc::clone(&sources);
        async move { sources.read_now(WITHIN).await }
    });
    tokio::time::sleep(Duration::from_millis(500)).await;
    // The read under way may have missed what these callers know of.
    let later = (0..20).map(|_| sources.read_now(WITHIN));
    let later = futures::future::join_all(later).await;
    assert!(later.iter().all(|read| matches!(read.lookup("a"), NameLookup::Found(_))));
    first.await.expect("no panic");
    assert_eq!(sql.reads(), 2);
}

#[tokio::test(start_paused = true)]
async fn source_that_hangs_is_given_up_in_time_and_is_unknown() {
    let hangs = Arc::new(Scripted { takes: Duration::from_secs(3600), ..Scripted::default() });
    let yaml = scripted(&["y"]);
    let sources = sources(&[("yaml", &yaml), ("sql", &hangs)]);
    let began = tokio::time::Instant::now();
    let read = sources.read_now(WITHIN).await;
    assert!(began.elapsed() <= WITHIN + Duration::from_millis(10));
    assert!(matches!(read.lookup("y"), NameLookup::Found(_)), "an earlier source has it");
    assert!(
        matches!(read.lookup("x"), NameLookup::Unknown { source: "sql", why } if why.contains("within 10 s"))
    );
}

#[tokio::test(start_paused = true)]
async fn caller_who_gives_up_takes_no_answer_from_another() {
    let slow = Arc::new(Scripted { takes: Duration::from_secs(8), ..Scripted::default() });
    slow.set(Some(&["a"]));
    let sources = sources(&[("sql", &slow)]);
    let (patient, hasty) =
        tokio::join!(sources.read_now(Duration::from_secs(60)), sources.read_now(Duration::from_secs(1)));
    assert!(matches!(hasty.lookup("a"), NameLookup::Unknown { .. }));
    assert!(matches!(patient.lookup("a"), NameLookup::Found(_)));
    assert!(matches!(sources.latest().lookup("a"), NameLookup::Found(_)));
}

#[tokio::test(start_paused = true)]
async fn sources_are_read_again_only_while_they_are_needed() {
    let sql = scripted(&["a"]);
    let sources = sources(&[("sql", &sql)]);
    assert!(matches!(sources.latest().lookup("a"), NameLookup::Unknown { .. }), "not read yet");
    let following = tokio::spawn({
        let sources = Arc::clone(&sources);
        async move { sources.follow().await }
    });
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(sql.reads(), 0);
    let needed = sources.need();
    tokio::time::sleep(Duration::from_secs(610)).await;
    assert_eq!(sql.reads(), 10);
    assert!(matches!(sources.latest().lookup("a"), NameLookup::Found(_)));
    drop(needed);
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(sql.reads(), 10);
    following.abort();
}

#[tokio::test(start_paused = true)]
async fn age_of_what_is_known_is_a_metric() {
    let sql = scripted(&["a", "b"]);
    let sources = sources(&[("sql", &sql)]);
    let mut metrics = kubesvc_runtime::telemetry::metrics::Metrics::new();
    sources.register(&mut metrics.registry);
    assert!(!metrics.encode().contains("source_age_seconds{"), "never read");
    let _ = sources.read_now(WITHIN).await;
    sql.set(None);
    tokio::time::sleep(Duration::from_secs(99)).await;
    let _ = sources.read_now(WITHIN).await;
    let text = metrics.encode();
    for line in [
        "kubesvc_credentials_source_age_seconds{source=\"sql\"} 101",
        "kubesvc_credentials_source_accounts{source=\"sql\"} 2",
        "kubesvc_credentials_source_bad_entries{source=\"sql\"} 0",
        "kubesvc_credentials_source_read_failures_total{source=\"sql\"} 1",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
}
