//! A second connection to the hub, which is dialled when the agent's client certificate is another one, or its token, if the
//! hub takes no other token on the first one.

use std::fmt;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::dial::AcceptedStream;
use super::transport::{DialError, HubChannel, HubDialer};
use super::{DialBackoff, LinkEnd};
use kubesvc_runtime::telemetry::errors::chain;

/// The connection that is to take over from that of a session.
pub(super) struct Renewal {
    dialer: Arc<HubDialer>,
    /// What the session's connection and stream show.
    shown: ShownNumbers,
    /// The client certificate; `None`: there is none.
    certificate: Option<watch::Receiver<u64>>,
    /// The token; `None`: there is none, or the session itself is told of another one.
    token: Option<watch::Receiver<u64>>,
    backoff: DialBackoff,
    /// Earliest time of the next attempt, after one that failed, and what it showed.
    failed: Option<(Instant, ShownNumbers)>,
    dialling: Option<BoxFuture<'static, Result<HubChannel, DialError>>>,
    /// The last problem that was logged.
    problem: Option<String>,
}

/// Numbers of the credentials that the hub is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ShownNumbers {
    certificate: u64,
    token: u64,
}

impl fmt::Debug for Renewal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Renewal").field("shown", &self.shown).finish_non_exhaustive()
    }
}

impl Renewal {
    /// For the session of a stream.
    pub(super) fn new(dialer: Arc<HubDialer>, stream: &AcceptedStream, backoff: DialBackoff) -> Self {
        let certificate = dialer.certificate();
        let token = dialer.token().filter(|_| !stream.takes_tokens()).map(|token| token.number());
        let shown = ShownNumbers { certificate: stream.hub.certificate, token: stream.token };
        Self { dialer, shown, certificate, token, backoff, failed: None, dialling: None, problem: None }
    }

    /// Waits for another credential, and dials with it. May be dropped and called again meanwhile.
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
        let (until, tried) = match self.failed {
            Some((until, shown)) => (Some(until), shown),
            None => (None, self.shown),
        };
        let certificate = is_other(self.certificate.as_mut(), tried.certificate);
        let token = is_other(self.token.as_mut(), tried.token);
        tokio::select! {
            () = certificate => {}
            () = token => {}
            () = sleep_until(until.unwrap_or_else(Instant::now)), if until.is_some() => {}
        }
    }

    /// The credentials of now.
    fn current(&self) -> ShownNumbers {
        let number =
            |one: &Option<watch::Receiver<u64>>, shown| one.as_ref().map_or(shown, |one| *one.borrow());
        ShownNumbers {
            certificate: number(&self.certificate, self.shown.certificate),
            token: number(&self.token, self.shown.token),
        }
    }

    /// Records that the hub did not accept the connection. The session goes on.
    pub(super) fn refused(&mut self, ended: &LinkEnd) {
        match ended {
            LinkEnd::Refused(refusal) => {
                if refusal.of_credential
                    && let Some(token) = self.dialer.token()
                {
                    token.refused();
                }
                self.failed(refusal.problem.clone(), refusal.retry_after);
            }
            LinkEnd::Broken(problem) => self.failed(problem.clone(), Duration::ZERO),
            LinkEnd::Stopped | LinkEnd::Drained(_) | LinkEnd::TakenOver(_) => {}
        }
    }

    fn failed(&mut self, problem: String, at_least: Duration) {
        let shown = self.current();
        self.failed = Some((Instant::now() + self.backoff.next().max(at_least), shown));
        if self.problem.as_ref() != Some(&problem) {
            let (what, setting) =
                match self.dialer.token().filter(|_| shown.certificate == self.shown.certificate) {
                    Some(token) => ("token", token.setting()),
                    None => ("client certificate", "clouddriver.tls.clientCertFile"),
                };
            tracing::warn!(
                "cannot connect with the new {what} ({setting}), and the session goes on with the former one: {problem}"
            );
            self.problem = Some(problem);
        }
    }
}

/// Waits until a credential is another one.
async fn is_other(credential: Option<&mut watch::Receiver<u64>>, shown: u64) {
    let Some(credential) = credential else { return pending().await };
    if credential.wait_for(|number| *number != shown).await.is_err() {
        pending::<()>().await;
    }
}
