//! How watches are kept: when one that is silent is given up, how soon one that was lost is tried again, and from where.

use std::fmt::Debug;
use std::time::{Duration, Instant};

use backon::ExponentialBuilder;
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use kube::runtime::utils::{Backoff, ResetTimerBackoff};
use kube::runtime::watcher::{self, Config, Event, ExponentialBackoff};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;

/// After so many seconds the API server ends a watch, and it is taken up where it ended. One that is silent for five
/// seconds longer has lost its other end, and is given up.
///
/// A choice: whoever decides by what a watch shows may be blind for so long where nothing says that a connection is dead,
/// such as behind a load balancer that stays up. In return each watch costs a request in half a minute: with six of them
/// a replica asks once in five seconds, about as often as it renews its Lease.
pub const WATCH_SECONDS: u32 = 30;

/// The first pause, and the longest. Chance adds as much again at most.
const RETRY_DELAYS: [Duration; 2] = [Duration::from_millis(500), Duration::from_millis(2500)];
/// After so long without a failure, the next pause is the first again.
const BACKOFF_RESET_AFTER: Duration = Duration::from_secs(30);

/// What all watches have in common.
pub fn config() -> Config {
    Config::default().timeout(WATCH_SECONDS)
}

/// The pauses between tries: from half a second, doubling, to five seconds at most. Whoever decides by what a watch shows
/// is blind meanwhile, so they stay short, however long the API server was away; there are few watches, so it bears that.
pub fn pauses() -> impl Backoff {
    let [first, longest] = RETRY_DELAYS;
    let growing = ExponentialBuilder::default().with_min_delay(first).with_max_delay(longest);
    let growing = growing.with_factor(2.0).without_max_times().with_jitter();
    ResetTimerBackoff::new(ExponentialBackoff::from(growing), BACKOFF_RESET_AFTER)
}

/// A watch that shows nothing for a while.
#[derive(Debug)]
pub enum WatchOutage {
    /// It has failed. Said once; the tries that follow fail in silence, unless the API server answers by then and the
    /// watch fails for another reason.
    Begun {
        /// Why.
        problem: watcher::Error,
        /// It was cut, or the API server does not answer, which is said once for all watches.
        of_api_server: bool,
    },
    /// It shows what is so again.
    Over {
        /// For how long it did not.
        lasted: Duration,
        /// As it was said at the beginning.
        of_api_server: bool,
    },
}

/// Whether a status of HTTP says that nobody is there to answer, rather than what the answer is.
pub fn is_absence(code: u16) -> bool {
    matches!(code, 502..=504)
}

/// Whether a watch has failed because the API server does not answer.
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

/// The events of a watch that never ends. After a failure, everything is listed anew.
///
/// To go on from the version that was seen last would be cheaper, and wrong after the API server's data were restored
/// from a backup: versions count on from an earlier one there, and a watch that begins at a later one is shown nothing
/// until they have caught up.
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

/// A watch, and what is known of its failures.
struct TrackedWatch<K: 'static> {
    begin: Box<dyn Fn() -> Watching<K> + Send>,
    events: Watching<K>,
    pauses: Box<dyn Backoff>,
    /// It has failed, and is begun anew after this long.
    pause: Option<Duration>,
    /// Since when it shows nothing, and whether because of the API server.
    lost: Option<(Instant, bool)>,
    /// What is said after the end of an outage.
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
                // It comes before anything was asked.
                Ok(Event::Init) => return Some(Ok(Event::Init)),
                Ok(event) => {
                    let Some((since, of_api_server)) = self.lost.take() else { return Some(Ok(event)) };
                    self.next = Some(event);
                    return Some(Err(WatchOutage::Over { lasted: since.elapsed(), of_api_server }));
                }
                Err(problem) => {
                    self.pause = self.pauses.next();
                    // One that was begun and is cut again and again is said: nobody else notices.
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

    /// An API server that gives these answers, one after the other, then none; and the queries it was asked with.
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
        // The watch ends, as it does twice a minute, and then cannot be begun.
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
