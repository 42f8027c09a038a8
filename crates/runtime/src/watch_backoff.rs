//! Watches on the API server: their timeout, the back-off after a failure, and the new list that follows it.

use std::fmt::Debug;
use std::time::{Duration, Instant};

use backon::ExponentialBuilder;
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use kube::runtime::utils::{Backoff, ResetTimerBackoff};
use kube::runtime::watcher::{self, Config, Event, ExponentialBackoff};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;

/// Duration of a watch, in seconds. After it the API server ends the watch, and the client resumes it where it ended.
/// A watch that is silent for five seconds longer has lost its connection and is abandoned.
///
/// The value is a trade-off. Where nothing reports a dead connection, for example behind a load balancer that stays
/// up, a watch can be blind for this long. A lower value costs more requests: with six watches, a replica sends one
/// every five seconds, about as often as it renews its Lease.
pub const WATCH_SECONDS: u32 = 30;

/// First and longest pause between attempts. Jitter at most doubles them.
const RETRY_DELAYS: [Duration; 2] = [Duration::from_millis(500), Duration::from_millis(2500)];
/// Time without a failure after which the back-off starts over.
const BACKOFF_RESET_AFTER: Duration = Duration::from_secs(30);

/// Configuration that all watches share.
pub fn config() -> Config {
    Config::default().timeout(WATCH_SECONDS)
}

/// Pauses between attempts: half a second at first, doubling, and at most five seconds with jitter. They stay short
/// however long the API server was unavailable, because a component that decides by a watch is blind meanwhile. There
/// are few watches, so the API server can bear it.
pub fn pauses() -> impl Backoff {
    let [first, longest] = RETRY_DELAYS;
    let growing = ExponentialBuilder::default().with_min_delay(first).with_max_delay(longest);
    let growing = growing.with_factor(2.0).without_max_times().with_jitter();
    ResetTimerBackoff::new(ExponentialBackoff::from(growing), BACKOFF_RESET_AFTER)
}

/// Beginning or end of an outage of a watch.
#[derive(Debug)]
pub enum WatchOutage {
    /// The watch failed. Reported once: further failures are silent, unless the API server answers meanwhile and the
    /// watch fails for another reason.
    Begun {
        /// The error of the watch.
        problem: watcher::Error,
        /// Whether the API server is the cause: the connection was cut, or the API server does not answer. Callers
        /// report that once for all watches.
        of_api_server: bool,
    },
    /// The watch works again.
    Over {
        /// Duration of the outage.
        lasted: Duration,
        /// As in [`WatchOutage::Begun`].
        of_api_server: bool,
    },
}

/// Whether an HTTP status means that no server was there to answer, as opposed to an answer of the server.
pub(crate) fn is_absence(code: u16) -> bool {
    matches!(code, 502..=504)
}

/// Whether a watch failed because the API server does not answer.
pub fn is_of_api_server(problem: &watcher::Error) -> bool {
    use watcher::Error::{InitialListFailed, NoResourceVersion, WatchError, WatchFailed, WatchStartFailed};
    match problem {
        InitialListFailed(error) | WatchStartFailed(error) | WatchFailed(error) => match error {
            kube::Error::Api(status) => is_absence(status.code),
            kube::Error::HyperError(_) | kube::Error::Service(_) | kube::Error::ReadEvents(_) => true,
            _ => false,
        },
        WatchError(status) => is_absence(status.code),
        NoResourceVersion => false,
    }
}

/// Returns the events of a watch that never ends. After a failure, the watch lists all objects again.
///
/// Resuming from the last seen resource version would be cheaper, but wrong after the API server's data was restored
/// from a backup: its versions then continue from an earlier number, and a watch that starts at a later one shows
/// nothing until they have caught up.
pub fn events<K>(api: Api<K>, config: Config) -> BoxStream<'static, Result<Event<K>, WatchOutage>>
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let begin = move || watcher::watcher(api.clone(), config.clone()).boxed();
    let kept = TrackedWatch {
        events: begin(),
        begin: Box::new(begin),
        pauses: Box::new(pauses()),
        pause: None,
        lost: None,
        next: None,
    };
    stream::unfold(kept, |mut kept| async move { Some((kept.next().await?, kept)) }).boxed()
}

type Watching<K> = BoxStream<'static, watcher::Result<Event<K>>>;

/// A watch and the state of its outage.
struct TrackedWatch<K: 'static> {
    begin: Box<dyn Fn() -> Watching<K> + Send>,
    events: Watching<K>,
    pauses: Box<dyn Backoff>,
    /// Set after a failure: the pause before the watch starts again.
    pause: Option<Duration>,
    /// Start of the current outage, and whether the API server is the cause.
    lost: Option<(Instant, bool)>,
    /// The event to return after [`WatchOutage::Over`].
    next: Option<Event<K>>,
}

impl<K: 'static> TrackedWatch<K> {
    async fn next(&mut self) -> Option<Result<Event<K>, WatchOutage>> {
        if let Some(event) = self.next.take() {
            return Some(Ok(event));
        }
        loop {
            if let Some(pause) = self.pause {
                tokio::time::sleep(pause).await;
                self.events = (self.begin)();
                self.pause = None;
            }
            match self.events.next().await? {
                // The watcher emits this event before it sends any request.
                Ok(Event::Init) => return Some(Ok(Event::Init)),
                Ok(event) => {
                    let Some((since, of_api_server)) = self.lost.take() else { return Some(Ok(event)) };
                    self.next = Some(event);
                    return Some(Err(WatchOutage::Over { lasted: since.elapsed(), of_api_server }));
                }
                Err(problem) => {
                    self.pause = self.pauses.next();
                    // A watch that starts and is cut again and again is reported, since nothing else detects it.
                    let is_cut = matches!(problem, watcher::Error::WatchFailed(_));
                    let of_api_server = is_of_api_server(&problem) && !(is_cut && self.lost.is_some());
                    let since = self.lost.map_or_else(Instant::now, |(since, _)| since);
                    if self.lost.is_none_or(|(_, was_of_api_server)| was_of_api_server && !of_api_server) {
                        self.lost = Some((since, of_api_server));
                        return Some(Err(WatchOutage::Begun { problem, of_api_server }));
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use k8s_openapi::api::core::v1::ConfigMap;
    use parking_lot::Mutex;
    use serde_json::{Value, json};

    use super::*;

    fn settings(version: &str) -> Value {
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "resourceVersion": version}})
    }

    /// An API server that gives these answers in turn and then never answers again, and the queries it received.
    fn server(answers: Vec<(u16, Value)>) -> (Api<ConfigMap>, Arc<Mutex<Vec<String>>>) {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let answers = Arc::new(Mutex::new(answers.into_iter()));
        let queries = Arc::clone(&asked);
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            queries.lock().push(request.uri().query().unwrap_or_default().to_owned());
            let answer = answers.lock().next();
            async move {
                let Some((code, body)) = answer else { return std::future::pending().await };
                let body = kube::client::Body::from(body.to_string().into_bytes());
                http::Response::builder().status(code).body(body)
            }
        });
        (Api::default_namespaced(kube::Client::new(service, "ns")), asked)
    }

    #[tokio::test(start_paused = true)]
    async fn a_failed_watch_lists_anew_and_logs_the_outage_once() {
        let list =
            |version: &str| json!({"metadata": {"resourceVersion": version}, "items": [settings(version)]});
        let away = || {
            (
                503,
                json!({"kind": "Status", "code": 503, "message": "away", "reason": "", "status": "Failure"}),
            )
        };
        let shown = json!({"type": "MODIFIED", "object": settings("5001")});
        // The watch ends, as it does twice a minute, and cannot be started again.
        let answers = vec![(200, list("5000")), (200, shown), away(), away(), away(), (200, list("3000"))];
        let (api, asked) = server(answers);
        let mut events = events(api, config());
        let mut said = Vec::new();
        for _ in 0..10 {
            said.push(match events.next().await.expect("it never ends") {
                Ok(Event::Init) => "list".to_owned(),
                Ok(Event::InitDone) => "listed".to_owned(),
                Ok(Event::InitApply(one) | Event::Apply(one) | Event::Delete(one)) => {
                    one.metadata.resource_version.expect("it has one")
                }
                Err(WatchOutage::Begun { of_api_server, .. }) => {
                    assert!(of_api_server);
                    "away".to_owned()
                }
                Err(WatchOutage::Over { of_api_server, .. }) => {
                    assert!(of_api_server);
                    "back".to_owned()
                }
            });
        }
        let expected = ["list", "5000", "listed", "5001", "away", "list", "list", "list", "back", "3000"];
        assert_eq!(said, expected);
        let watches = asked.lock().iter().filter(|query| query.contains("watch=true")).count();
        assert_eq!(watches, 2, "{asked:?}");
    }

    #[test]
    fn however_often_a_watch_fails_it_is_tried_again_within_five_seconds() {
        let pauses: Vec<_> = pauses().take(1000).collect();
        assert_eq!(pauses.len(), 1000, "it is never given up");
        let longest = pauses.iter().max().expect("there are some");
        assert!(*longest <= Duration::from_secs(5), "{longest:?}");
        assert!(
            pauses[0] < Duration::from_secs(1) && pauses[999] >= Duration::from_millis(2500),
            "{pauses:?}"
        );
    }

    #[test]
    fn a_refusal_is_an_answer_and_a_server_that_is_not_there_is_none() {
        let api = |code| kube::Error::Api(kube::core::Status::failure("", "").with_code(code).boxed());
        for (problem, of_api_server) in [
            (watcher::Error::WatchStartFailed(api(403)), false),
            (watcher::Error::InitialListFailed(api(503)), true),
            (watcher::Error::InitialListFailed(api(500)), false),
            (watcher::Error::WatchFailed(kube::Error::ReadEvents(std::io::Error::other("cut"))), true),
            (watcher::Error::WatchStartFailed(kube::Error::Service("refused".into())), true),
            (watcher::Error::NoResourceVersion, false),
        ] {
            assert_eq!(is_of_api_server(&problem), of_api_server, "{problem:?}");
        }
    }
}
