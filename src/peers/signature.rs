//! Signatures of calls between replicas: HMAC-SHA-256 over everything that determines the effect of a call.
//! Pure.
//!
//! The REST port may be plain text. The key itself is therefore never sent, and an intercepted call is valid
//! for one replica, once, for half a minute. Answers are signed too: over status, body and the nonce of the
//! call, so that an answer is valid for one call only.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use hmac::{Hmac, KeyInit, Mac};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use percent_encoding::{CONTROLS, utf8_percent_encode};
use sha2::{Digest, Sha256};

use super::key::SigningKey;

/// Maximum difference between the clocks of two replicas, including the time that a call takes.
pub(super) const MAX_CLOCK_SKEW: Duration = Duration::from_secs(30);
/// Maximum length of a header value that is accepted, in bytes.
const MAX_HEADER_BYTES: usize = 512;

const FROM: HeaderName = HeaderName::from_static("x-kubesvc-from");
const TO: HeaderName = HeaderName::from_static("x-kubesvc-to");
const TIME: HeaderName = HeaderName::from_static("x-kubesvc-time");
const NONCE: HeaderName = HeaderName::from_static("x-kubesvc-nonce");
const KEY: HeaderName = HeaderName::from_static("x-kubesvc-key");
const SIGNATURE: HeaderName = HeaderName::from_static("x-kubesvc-signature");
/// For whom a request is relayed. Only calls that relay a request have it.
pub(super) const RELAYED_FOR: HeaderName = HeaderName::from_static("x-kubesvc-for");

/// Reason why a call was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SignatureError {
    /// A signature header is missing or malformed.
    #[error("this call is for replicas of kubesvc, which sign it: the header {0} is missing or malformed")]
    Unsigned(String),
    /// This replica runs alone and has no key.
    #[error("calls between replicas are disabled: kubesvc.cluster is local")]
    Alone,
    /// The call was signed for another replica.
    #[error("the call was signed for replica {to:?}, and this is {here:?}")]
    Elsewhere {
        /// The replica that it was signed for.
        to: String,
        /// The replica that received it.
        here: String,
    },
    /// The call is too old, or from the future.
    #[error(
        "the call was signed {apart} s {when} by this replica's clock, and {} s are allowed; set the clocks right",
        MAX_CLOCK_SKEW.as_secs()
    )]
    Untimely {
        /// Difference, in seconds.
        apart: u64,
        /// `ago` or `ahead`.
        when: &'static str,
    },
    /// The call was signed before this process started. The previous process may have admitted it, and its
    /// nonces are lost.
    #[error("the call was signed before this replica started, by its clock; sign it anew")]
    BeforeStart,
    /// The call names a key that is not in use.
    #[error(
        "the call is signed under a key that is not in use; both replicas must have the key of the same Secret kubesvc-peer"
    )]
    UnknownKey,
    /// The call was signed with another key, or modified in transit.
    #[error(
        "the signature does not match the call; both replicas must have the key of the same Secret kubesvc-peer"
    )]
    Wrong,
    /// The call was seen before.
    #[error("the call was already received; sign each call anew")]
    Replayed,
    /// More calls arrived within a minute than can be remembered.
    #[error("too many calls of other replicas within a minute; try again")]
    TooMany,
}

impl SignatureError {
    /// One word for the metric label.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Unsigned(_) => "unsigned",
            Self::Alone => "alone",
            Self::Elsewhere { .. } => "elsewhere",
            Self::Untimely { .. } => "untimely",
            Self::BeforeStart => "before-start",
            Self::UnknownKey => "unknown-key",
            Self::Wrong => "wrong",
            Self::Replayed => "replayed",
            Self::TooMany => "too-many",
        }
    }
}

/// What is signed in addition to the stamp.
#[derive(Clone, Copy, Debug)]
pub(super) struct SignedCall<'a> {
    /// HTTP method, such as `GET` or `POST`.
    pub(super) method: &'a str,
    /// Path and query, as sent.
    pub(super) path: &'a str,
    pub(super) body: &'a [u8],
    /// The header [`RELAYED_FOR`], if the call has it.
    pub(super) relayed_for: Option<&'a [u8]>,
}

/// Sender, recipient and time of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CallStamp {
    from: String,
    to: String,
    /// Send time, in epoch milliseconds.
    time: i64,
    /// Never used twice.
    pub(super) nonce: String,
}

/// A signature as received, not verified yet.
#[derive(Clone, Debug)]
pub(super) struct CallSignature {
    pub(super) stamp: CallStamp,
    /// Id of the key that the call claims to be signed with.
    pub(super) key_id: String,
    signature: Vec<u8>,
}

/// A text that is not a valid header value.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} cannot stand in a header")]
pub(super) struct InvalidHeader(String);

impl CallStamp {
    /// Creates the stamp of one call. `to` is the id of the recipient; if no object names its pod, that is
    /// its address and port.
    pub(super) fn new(from: &str, to: &str, now_ms: i64, nonce: String) -> Self {
        Self { from: spelled(from), to: spelled(to), time: now_ms, nonce }
    }

    /// Returns the headers of the call.
    ///
    /// # Errors
    /// An id is not a valid header value.
    pub(super) fn headers(
        &self,
        key: &SigningKey,
        call: SignedCall<'_>,
    ) -> Result<[(HeaderName, HeaderValue); 6], InvalidHeader> {
        let value = |text: &str| HeaderValue::from_str(text).map_err(|_| InvalidHeader(text.to_owned()));
        let signature = hex::encode(self.mac(key, call).finalize().into_bytes());
        Ok([
            (FROM, value(&self.from)?),
            (TO, value(&self.to)?),
            (TIME, value(&self.time.to_string())?),
            (NONCE, value(&self.nonce)?),
            (KEY, value(key.id())?),
            (SIGNATURE, value(&signature)?),
        ])
    }

    fn mac(&self, key: &SigningKey, call: SignedCall<'_>) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new_from_slice(key.bytes()).expect("HMAC takes a key of any length");
        let digest = hex::encode(Sha256::digest(call.body));
        let time = self.time.to_string();
        // None of these can contain a line break, so no two calls produce the same text.
        for line in
            ["kubesvc-peer-1", call.method, call.path, &digest, &time, &self.nonce, &self.from, &self.to]
        {
            mac.update(line.as_bytes());
            mac.update(b"\n");
        }
        if let Some(relayed_for) = call.relayed_for {
            mac.update(hex::encode(Sha256::digest(relayed_for)).as_bytes());
            mac.update(b"\n");
        }
        mac
    }
}

/// Returns the headers of an answer to the call with this nonce.
pub(super) fn answer_headers(
    key: &SigningKey,
    nonce: &str,
    status: StatusCode,
    body: &[u8],
) -> [(HeaderName, HeaderValue); 2] {
    let signature = hex::encode(answer_mac(key, nonce, status, body).finalize().into_bytes());
    let value = |text: &str| HeaderValue::from_str(text).expect("hexadecimal digits");
    [(KEY, value(key.id())), (SIGNATURE, value(&signature))]
}

/// Whether an answer claims to be signed with this key. Checked before its body is read.
pub(super) fn names_key(headers: &HeaderMap, key: &SigningKey) -> bool {
    headers.get(KEY).is_some_and(|id| id.as_bytes() == key.id().as_bytes()) && headers.contains_key(SIGNATURE)
}

/// Whether the signature matches the answer and the nonce of the call. Compares in constant time.
pub(super) fn answer_fits(
    headers: &HeaderMap,
    key: &SigningKey,
    nonce: &str,
    status: StatusCode,
    body: &[u8],
) -> bool {
    let signature = headers.get(SIGNATURE).and_then(|value| hex::decode(value.as_bytes()).ok());
    signature.is_some_and(|one| answer_mac(key, nonce, status, body).verify_slice(&one).is_ok())
}

fn answer_mac(key: &SigningKey, nonce: &str, status: StatusCode, body: &[u8]) -> Hmac<Sha256> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key.bytes()).expect("HMAC takes a key of any length");
    for line in ["kubesvc-peer-answer-1", status.as_str(), &hex::encode(Sha256::digest(body)), nonce] {
        mac.update(line.as_bytes());
        mac.update(b"\n");
    }
    mac
}

/// Length of the signature of a frame, in bytes.
pub(super) const FRAME_SIGNATURE_BYTES: usize = 32;

/// Which side of a call sends a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FrameSide {
    /// The replica that calls.
    Caller,
    /// The replica that answers.
    Answerer,
}

/// Signs one frame of an answer that is sent in frames, or of an upgraded call. Each side counts its frames from 0.
pub(super) fn sign_frame(
    key: &SigningKey,
    nonce: &str,
    (side, number): (FrameSide, u64),
    frame: &[u8],
) -> [u8; FRAME_SIGNATURE_BYTES] {
    frame_mac(key, nonce, (side, number), frame).finalize().into_bytes().into()
}

/// Whether the signature matches a frame. Compares in constant time.
pub(super) fn frame_fits(
    key: &SigningKey,
    nonce: &str,
    (side, number): (FrameSide, u64),
    frame: &[u8],
    signature: &[u8],
) -> bool {
    frame_mac(key, nonce, (side, number), frame).verify_slice(signature).is_ok()
}

fn frame_mac(key: &SigningKey, nonce: &str, (side, number): (FrameSide, u64), frame: &[u8]) -> Hmac<Sha256> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key.bytes()).expect("HMAC takes a key of any length");
    let side = match side {
        FrameSide::Caller => "caller",
        FrameSide::Answerer => "answerer",
    };
    for part in ["kubesvc-peer-frame-1", nonce, side, &number.to_string()] {
        mac.update(part.as_bytes());
        mac.update(b"\n");
    }
    mac.update(frame);
    mac
}

/// Digest of the parts under the key. It can never equal a call's signature, because the first line differs.
pub(super) fn digest(key: &SigningKey, parts: &[&[u8]]) -> [u8; 32] {
    let mut mac = Hmac::<Sha256>::new_from_slice(key.bytes()).expect("HMAC takes a key of any length");
    mac.update(b"kubesvc-digest-1\n");
    for part in parts {
        mac.update(&(part.len() as u64).to_be_bytes());
        mac.update(part);
    }
    mac.finalize().into_bytes().into()
}

/// The replica that receives a call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Recipient<'a> {
    /// Id of this replica.
    pub(super) id: &'a str,
    /// Address that the call was sent to, if known.
    pub(super) address: Option<SocketAddr>,
    /// Start of this process, in epoch milliseconds.
    pub(super) since_ms: i64,
}

impl Recipient<'_> {
    /// Whether a call signed for `to` is for this replica. If the caller knew only an address, it must be the
    /// one that received the call. For a host name, or behind a proxy on the same machine, that cannot be
    /// checked and counts as a match.
    fn is(&self, to: &str) -> bool {
        let of_proxy = |ip: IpAddr, to: IpAddr| ip.is_loopback() && !to.is_loopback();
        match (to.parse::<SocketAddr>(), self.address) {
            _ if to == spelled(self.id) => true,
            (Ok(_), None) => true,
            (Ok(to), Some(address)) => {
                let ip = address.ip().to_canonical();
                (ip, address.port()) == (to.ip().to_canonical(), to.port()) || of_proxy(ip, to.ip())
            }
            // A host name and port; ids from pod names contain no colon.
            (Err(_), _) => to.contains(':'),
        }
    }
}

impl CallSignature {
    /// Reads the headers of a call, and checks its recipient and time.
    pub(super) fn read(
        headers: &HeaderMap,
        here: Recipient<'_>,
        now_ms: i64,
    ) -> Result<Self, SignatureError> {
        let text = |name: &HeaderName| {
            let value = headers.get(name).and_then(|value| value.to_str().ok());
            let good = value.filter(|text| !text.is_empty() && text.len() <= MAX_HEADER_BYTES);
            good.map(str::to_owned).ok_or_else(|| SignatureError::Unsigned(name.to_string()))
        };
        let unsigned = |name: HeaderName| move || SignatureError::Unsigned(name.to_string());
        let signature = hex::decode(text(&SIGNATURE)?).map_err(|_| unsigned(SIGNATURE)())?;
        let key_id = text(&KEY)?;
        let time: i64 = text(&TIME)?.parse().map_err(|_| unsigned(TIME)())?;
        let stamp = CallStamp { from: text(&FROM)?, to: text(&TO)?, time, nonce: text(&NONCE)? };
        if !here.is(&stamp.to) {
            return Err(SignatureError::Elsewhere { to: stamp.to, here: here.id.to_owned() });
        }
        timely(time, now_ms)?;
        if time < here.since_ms {
            return Err(SignatureError::BeforeStart);
        }
        Ok(Self { stamp, key_id, signature })
    }

    /// Whether the signature matches the call. Compares in constant time.
    pub(super) fn fits(&self, key: &SigningKey, call: SignedCall<'_>) -> bool {
        self.stamp.mac(key, call).verify_slice(&self.signature).is_ok()
    }
}

fn timely(time: i64, now_ms: i64) -> Result<(), SignatureError> {
    let apart = time.abs_diff(now_ms);
    if u128::from(apart) <= MAX_CLOCK_SKEW.as_millis() {
        return Ok(());
    }
    Err(SignatureError::Untimely { apart: apart / 1000, when: if time < now_ms { "ago" } else { "ahead" } })
}

/// An id in the form that is used in headers: control and non-ASCII characters percent-encoded.
fn spelled(id: &str) -> String {
    utf8_percent_encode(id, CONTROLS).to_string()
}

#[cfg(test)]
mod tests;
