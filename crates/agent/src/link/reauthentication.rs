//! The token that a session's hub knows, and the frame that tells it of another one.

use std::future::pending;
use std::sync::Arc;

use tokio::sync::watch;

use crate::hub_token::HubToken;
use kubesvc_core::wire::ops::Reauthenticate;

/// Tells the hub of a session of each further token.
#[derive(Debug)]
pub(super) struct Reauthentication {
    token: Arc<HubToken>,
    current: watch::Receiver<u64>,
    /// Number of the token that the hub knows.
    told: u64,
}

impl Reauthentication {
    /// For a session that was opened with the token of this number.
    pub(super) fn new(token: &Arc<HubToken>, told: u64) -> Self {
        Self { token: Arc::clone(token), current: token.number(), told }
    }

    /// Waits until the hub is to be told of another token.
    pub(super) async fn due(&mut self) {
        let told = self.told;
        if self.current.wait_for(|number| *number != told).await.is_err() {
            pending::<()>().await;
        }
    }

    /// The frame with the token of now; `None` if the hub knows it.
    pub(super) fn frame(&mut self) -> Option<Reauthenticate> {
        let (number, token) = self.token.current();
        if number == std::mem::replace(&mut self.told, number) {
            return None;
        }
        token.map(|token| Reauthenticate { token: token.expose().to_owned() })
    }
}
