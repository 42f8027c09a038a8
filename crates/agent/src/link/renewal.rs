//! A second connection to the hub, which is dialled when the agent's client certificate is another one.

use std::fmt;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::dial::shown;
use super::transport::{DialError, HubChannel, HubDialer};
use super::{DialBackoff, LinkEnd, MAX_RETRY_AFTER};
use kubesvc_runtime::telemetry::errors::chain;

/// The connection that is to take over from that of a session.
pub(super) struct Renewal {
    dialer: Arc<HubDialer>,
    /// Number of the identity that the session's connection shows.
    identity: u64,
    /// `None`: there are no certificates.
    current: Option<watch::Receiver<u64>>,
    backoff: DialBackoff,
    /// Earliest time of the next attempt, after one that failed, and the identity that it showed.
    failed: Option<(Instant, u64)>,
    dialling: Option<BoxFuture<'static, Result<HubChannel, DialError>>>,
    /// The last problem that was logged.
    problem: Option<String>,
}

impl fmt::Debug for Renewal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Renewal").field("identity", &self.identity).finish_non_exhaustive()
    }
}

impl Renewal {
    pub(super) fn new(dialer: Arc<HubDialer>, identity: u64, backoff: DialBackoff) -> Self {
        let current = dialer.identity();
        Self { dialer, identity, current, backoff, failed: None, dialling: None, problem: None }
    }

    /// Waits for another client certificate, and dials with it. May be dropped and called again meanwhile.
    pub(super) async fn dialled(&mut self) -> HubChannel {
        loop {
            if let Some(dialling) = &mut self.dialling {
                let dialled = dialling.await;
                self.dialling = None;
                match dialled {
                    Ok(hub) => return hub,
                    Err(error) => self.failed(chain(&error), Duration::ZERO),
                }
            }
            self.until_due().await;
            self.failed = None;
            let dialer = Arc::clone(&self.dialer);
            self.dialling = Some(async move { dialer.channel().await }.boxed());
        }
    }

    async fn until_due(&mut self) {
        let Some(current) = &mut self.current else { return pending().await };
        let (until, tried) = match self.failed {
            Some((until, identity)) => (Some(until), identity),
            None => (None, self.identity),
        };
        let no_more = async { current.wait_for(|now| *now != tried).await.is_err() };
        tokio::select! {
            no_more = no_more => if no_more { pending().await },
            () = sleep_until(until.unwrap_or_else(Instant::now)), if until.is_some() => {}
        }
    }

    /// Records that the hub did not accept the connection. The session goes on.
    pub(super) fn refused(&mut self, ended: &LinkEnd) {
        match ended {
            LinkEnd::Refused(refused) => {
                let asked = Duration::from_millis(refused.retry_after_ms.into()).min(MAX_RETRY_AFTER);
                let reason = refused.reason().as_str_name();
                self.failed(format!("the hub refuses it: {reason}: {}", shown(&refused.message)), asked);
            }
            LinkEnd::Broken(problem) => self.failed(problem.clone(), Duration::ZERO),
            LinkEnd::Stopped | LinkEnd::Drained(_) | LinkEnd::TakenOver(_) => {}
        }
    }

    fn failed(&mut self, problem: String, at_least: Duration) {
        let shown = self.current.as_ref().map_or(self.identity, |current| *current.borrow());
        self.failed = Some((Instant::now() + self.backoff.next().max(at_least), shown));
        if self.problem.as_ref() != Some(&problem) {
            tracing::warn!(
                "cannot connect with the new client certificate (clouddriver.tls.clientCertFile), and the session goes on \
                 with the former one: {problem}"
            );
            self.problem = Some(problem);
        }
    }
}
