//! A connection to the hub that sends the token with each stream.

use std::sync::Arc;
use std::task::{Context, Poll};

use http::Request;
use http::header::AUTHORIZATION;
use tonic::body::Body;
use tonic::transport::Channel;
use tower::Service;

use super::HubToken;
use kubesvc_core::failure::truncate;

/// Maximum length of a text of the hub in a log line, in bytes.
const MAX_SHOWN_BYTES: usize = 512;

/// A connection to the hub. Each stream that is opened over it has the token of that time.
#[derive(Clone, Debug)]
pub struct HubService {
    channel: Channel,
    token: Option<Arc<HubToken>>,
}

impl HubService {
    pub fn new(channel: Channel, token: Option<Arc<HubToken>>) -> Self {
        Self { channel, token }
    }

    /// The token that is sent; `None`: none is.
    pub fn token(&self) -> Option<&Arc<HubToken>> {
        self.token.as_ref()
    }

    /// A text of the hub, made safe for a log line.
    pub fn shown(&self, text: &str) -> String {
        let text = self.token.as_ref().map_or_else(|| text.to_owned(), |token| token.removed_from(text));
        shown(&text)
    }
}

/// A text of the hub that cannot hold a token, made safe for a log line.
pub fn shown(text: &str) -> String {
    let mut text: String = text.chars().filter(|letter| !letter.is_control()).collect();
    truncate(&mut text, MAX_SHOWN_BYTES);
    text
}

impl Service<Request<Body>> for HubService {
    type Response = <Channel as Service<Request<Body>>>::Response;
    type Error = <Channel as Service<Request<Body>>>::Error;
    type Future = <Channel as Service<Request<Body>>>::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Service::<Request<Body>>::poll_ready(&mut self.channel, context)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        if let Some(value) = self.token.as_ref().and_then(|token| token.header()) {
            // Exactly one, whatever was there.
            request.headers_mut().insert(AUTHORIZATION, value);
        }
        self.channel.call(request)
    }
}
