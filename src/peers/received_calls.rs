//! Calls from other replicas: verification of their signatures, refusal of a call that was received before, and
//! signing of the answers.

use std::collections::{HashSet, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use jiff::Timestamp;

use super::frames::{FrameSigner, IncomingBytes, PeerFrames};
use super::key::SigningKey;
use super::signature::{
    self, CallSignature, FrameSide, MAX_CLOCK_SKEW, RELAYED_FOR, Recipient, SignatureError, SignedCall,
};
use super::{PeerTransport, Peers};

/// Maximum number of calls remembered; further calls within a minute are refused.
const MAX_CALLS: usize = 100_000;

/// A call from another replica whose signature is not verified yet, because its body has not been read.
pub struct UncheckedCall {
    signed: CallSignature,
    key: Arc<SigningKey>,
}

/// Signs the answer to an admitted call.
#[derive(Clone)]
pub struct AnswerSigner {
    key: Arc<SigningKey>,
    nonce: String,
}

impl AnswerSigner {
    /// Returns the headers that sign an answer.
    pub fn sign(&self, status: StatusCode, body: &[u8]) -> [(HeaderName, HeaderValue); 2] {
        signature::answer_headers(&self.key, &self.nonce, status, body)
    }

    /// What writes the frames of an answer that is sent in frames. The headers of such an answer are signed over an empty
    /// body.
    pub fn frames(&self) -> FrameSigner {
        FrameSigner::new(&self.key, &self.nonce, FrameSide::Answerer)
    }

    /// The frames that the caller sends after an upgrade.
    pub fn caller_frames(&self, from: IncomingBytes) -> PeerFrames {
        PeerFrames::new("of the caller", from, &self.key, &self.nonce, FrameSide::Caller)
    }
}

impl Peers {
    /// Checks the headers of a call from another replica, before its body is read. `address` is the local
    /// address that received the call. An unknown key id makes it read the Secret again, in case the key was
    /// rotated.
    ///
    /// # Errors
    /// The call has no signature, is not for this replica or not of this time, or is signed with a key that
    /// is not in use.
    pub async fn check_headers(
        &self,
        headers: &HeaderMap,
        address: Option<SocketAddr>,
    ) -> Result<UncheckedCall, SignatureError> {
        let since_ms = self.started.as_millisecond();
        let here = Recipient { id: self.replica_id.as_str(), address, since_ms };
        let read = match &self.transport {
            None => Err(SignatureError::Alone),
            Some(link) => match CallSignature::read(headers, here, Timestamp::now().as_millisecond()) {
                Err(refusal) => Err(refusal),
                Ok(signed) => {
                    let key = link.key.named(&signed.key_id).await;
                    key.map(|key| UncheckedCall { signed, key }).ok_or(SignatureError::UnknownKey)
                }
            },
        };
        read.map_err(|refusal| self.count(refusal))
    }

    /// Verifies a call from another replica as a whole. Returns what signs its answer. The same call is never
    /// admitted again.
    ///
    /// # Errors
    /// The signature does not match, or the call was seen before.
    pub fn admit(
        &self,
        call: UncheckedCall,
        parts: &Parts,
        body: &[u8],
    ) -> Result<AnswerSigner, SignatureError> {
        let Some(link) = &self.transport else { return Err(self.count(SignatureError::Alone)) };
        let method = parts.method.as_str();
        let path = parts.uri.path_and_query().map_or("", |path| path.as_str());
        let relayed_for = parts.headers.get(RELAYED_FOR).map(HeaderValue::as_bytes);
        link.admit(call, SignedCall { method, path, body, relayed_for })
            .map_err(|refusal| self.count(refusal))
    }

    fn count(&self, refusal: SignatureError) -> SignatureError {
        self.metrics.refused.get_or_create(&[("reason", refusal.label())]).inc();
        refusal
    }
}

impl PeerTransport {
    fn admit(
        &self,
        UncheckedCall { signed, key }: UncheckedCall,
        call: SignedCall<'_>,
    ) -> Result<AnswerSigner, SignatureError> {
        if !signed.fits(&key, call) {
            return Err(SignatureError::Wrong);
        }
        let nonce = signed.stamp.nonce;
        // Only nonces of correctly signed calls are remembered, so that strangers cannot fill the memory.
        self.replays.lock().take(nonce.clone(), self.began.elapsed())?;
        Ok(AnswerSigner { key, nonce })
    }
}

/// Nonces of admitted calls while their signatures are valid. Bounded: at the limit, further calls are refused, and
/// nothing is forgotten early. Pure: time is passed in as the time since the start.
#[derive(Debug)]
pub(super) struct Replays {
    seen: HashSet<String>,
    order: VecDeque<(Duration, String)>,
    most: usize,
}

impl Default for Replays {
    fn default() -> Self {
        Self { seen: HashSet::new(), order: VecDeque::new(), most: MAX_CALLS }
    }
}

impl Replays {
    /// Records the nonce of a correctly signed call.
    ///
    /// # Errors
    /// The nonce was seen before, or too many are remembered.
    fn take(&mut self, nonce: String, now: Duration) -> Result<(), SignatureError> {
        // A call from a clock that is ahead remains valid for twice the window.
        let forgettable = |at: &Duration| now.saturating_sub(*at) > MAX_CLOCK_SKEW * 2;
        while self.order.front().is_some_and(|(at, _)| forgettable(at)) {
            if let Some((_, nonce)) = self.order.pop_front() {
                self.seen.remove(&nonce);
            }
        }
        if self.seen.contains(&nonce) {
            return Err(SignatureError::Replayed);
        }
        if self.order.len() >= self.most {
            return Err(SignatureError::TooMany);
        }
        self.seen.insert(nonce.clone());
        self.order.push_back((now, nonce));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_call_is_taken_once_for_as_long_as_its_signature_is_good() {
        let mut replays = Replays::default();
        assert_eq!(replays.take("a".into(), at(0)), Ok(()));
        assert_eq!(replays.take("a".into(), at(0)), Err(SignatureError::Replayed));
        assert_eq!(replays.take("b".into(), at(30)), Ok(()));
        assert_eq!(replays.take("a".into(), at(60)), Err(SignatureError::Replayed));
        assert_eq!(replays.take("a".into(), at(61)), Ok(()), "by then its time is refused");
        assert_eq!(replays.take("b".into(), at(61)), Err(SignatureError::Replayed));
    }

    #[test]
    fn a_full_memory_takes_nothing_rather_than_forget() {
        let mut replays = Replays { most: 2, ..Replays::default() };
        assert_eq!(replays.take("a".into(), at(0)), Ok(()));
        assert_eq!(replays.take("b".into(), at(10)), Ok(()));
        assert_eq!(replays.take("c".into(), at(20)), Err(SignatureError::TooMany));
        assert_eq!(replays.take("a".into(), at(20)), Err(SignatureError::Replayed));
        assert_eq!(replays.take("c".into(), at(61)), Ok(()), "a is forgotten");
        assert_eq!(replays.seen.len(), replays.order.len());
    }
}
