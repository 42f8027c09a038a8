//! Signatures of calls between replicas: HMAC-SHA-256 over everything that a call does. Pure.
//!
//! The REST port may be plain text, so the key itself is never sent, and a call that somebody has listened to is good
//! for one replica, once, for half a minute. Answers are signed as well: over status, body and the nonce of the call, so
//! that an answer is good for one call.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use hmac::{Hmac, KeyInit, Mac};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use percent_encoding::{CONTROLS, utf8_percent_encode};
use sha2::{Digest, Sha256};

use super::key::SigningKey;

/// Maximum difference of two replicas' clocks, with the time a call takes.
pub(super) const MAX_CLOCK_SKEW: Duration = Duration::from_secs(30);
/// The longest nonce and id that are taken, in bytes.
const MAX_HEADER_BYTES: usize = 512;

const FROM: HeaderName = HeaderName::from_static("x-kubesvc-from");
const TO: HeaderName = HeaderName::from_static("x-kubesvc-to");
const TIME: HeaderName = HeaderName::from_static("x-kubesvc-time");
const NONCE: HeaderName = HeaderName::from_static("x-kubesvc-nonce");
const KEY: HeaderName = HeaderName::from_static("x-kubesvc-key");
const SIGNATURE: HeaderName = HeaderName::from_static("x-kubesvc-signature");

/// Why a call was not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SignatureError {
    /// It has no signature, or not all that belongs to one.
    #[error("this call is for replicas of kubesvc, which sign it: the header {0} is missing or malformed")]
    Unsigned(String),
    /// There is no key, since there are no other replicas.
    #[error("calls between replicas are not taken: kubesvc.cluster is local")]
    Alone,
    /// It was signed for somebody else.
    #[error("the call was signed for replica {to:?}, and this is {here:?}")]
    Elsewhere {
        /// Whom it was signed for.
        to: String,
        /// Who got it.
        here: String,
    },
    /// It is too old, or from the future.
    #[error(
        "the call was signed {apart} s {when} by this replica's clock, and {} s are allowed; set the clocks right",
        MAX_CLOCK_SKEW.as_secs()
    )]
    Untimely {
        /// How many seconds lie between.
        apart: u64,
        /// `ago` or `ahead`.
        when: &'static str,
    },
    /// It was signed before this process began, and may have been taken by the one before, whose memory is gone.
    #[error("the call was signed before this replica started, by its clock; sign it anew")]
    BeforeStart,
    /// It names a key that is not one of those in use.
    #[error(
        "the call is signed under a key that is not in use; both replicas must have the key of the same Secret kubesvc-peer"
    )]
    UnknownKey,
    /// It was signed with another key, or changed on its way.
    #[error(
        "the signature does not fit the call; both replicas must have the key of the same Secret kubesvc-peer"
    )]
    Wrong,
    /// It was seen before.
    #[error("the call was seen before, and each is taken once")]
    Replayed,
    /// More calls have come within a minute than can be remembered.
    #[error("too many calls of other replicas within a minute; try again")]
    TooMany,
}

impl SignatureError {
    /// One word for the metric.
    pub fn word(&self) -> &'static str {
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

/// What is signed beside the stamp.
#[derive(Clone, Copy, Debug)]
pub(super) struct SignedCall<'a> {
    /// `GET`, `POST`.
    pub(super) method: &'a str,
    /// Path and query, as sent.
    pub(super) path: &'a str,
    pub(super) body: &'a [u8],
}

/// Who signed a call, for whom, and when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CallStamp {
    from: String,
    to: String,
    /// Epoch milliseconds.
    time: i64,
    /// Never the same twice.
    pub(super) nonce: String,
}

/// A signature as it came, not checked yet.
#[derive(Clone, Debug)]
pub(super) struct CallSignature {
    pub(super) stamp: CallStamp,
    /// The id of the key that it says it is signed with.
    pub(super) key_id: String,
    signature: Vec<u8>,
}

impl CallStamp {
    /// A stamp of one call. `to`: the id of the replica it is for; where no object names its pod, its address and port.
    pub(super) fn new(from: &str, to: &str, now_ms: i64, nonce: String) -> Self {
        Self { from: spelled(from), to: spelled(to), time: now_ms, nonce }
    }

    /// The headers of the call.
    ///
    /// # Errors
    /// An id that cannot stand in a header.
    pub(super) fn headers(
        &self,
        key: &SigningKey,
        call: SignedCall<'_>,
    ) -> Result<[(HeaderName, HeaderValue); 6], String> {
        let value = |text: &str| {
            HeaderValue::from_str(text).map_err(|_| format!("{text:?} cannot stand in a header"))
        };
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
        // None of these can hold a line break, so no two calls have the same text.
        for line in
            ["kubesvc-peer-1", call.method, call.path, &digest, &time, &self.nonce, &self.from, &self.to]
        {
            mac.update(line.as_bytes());
            mac.update(b"\n");
        }
        mac
    }
}

/// The headers of an answer to the call with this nonce.
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

/// Whether an answer says that it is signed with this key; looked at before its body is read.
pub(super) fn names_key(headers: &HeaderMap, key: &SigningKey) -> bool {
    headers.get(KEY).is_some_and(|id| id.as_bytes() == key.id().as_bytes()) && headers.contains_key(SIGNATURE)
}

/// Whether the signature of an answer fits it and the call with this nonce; takes the same time wherever it differs.
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

/// A digest of these parts under the key. No call has it for its signature: the first line differs.
pub(super) fn digest(key: &SigningKey, parts: &[&[u8]]) -> [u8; 32] {
    let mut mac = Hmac::<Sha256>::new_from_slice(key.bytes()).expect("HMAC takes a key of any length");
    mac.update(b"kubesvc-digest-1\n");
    for part in parts {
        mac.update(&(part.len() as u64).to_be_bytes());
        mac.update(part);
    }
    mac.finalize().into_bytes().into()
}

/// Who gets a call, and since when.
#[derive(Clone, Copy, Debug)]
pub(super) struct Recipient<'a> {
    /// This replica's id.
    pub(super) id: &'a str,
    /// The address that the call was sent to, where it is known.
    pub(super) address: Option<SocketAddr>,
    /// When this process began, in epoch milliseconds.
    pub(super) since_ms: i64,
}

impl Recipient<'_> {
    /// Whether a call that was signed for this one is meant. Where the caller knew only an address, it is the one that the
    /// call has come to; of a name, or behind a proxy on the same machine, that cannot be told.
    fn is(&self, to: &str) -> bool {
        let of_proxy = |ip: IpAddr, to: IpAddr| ip.is_loopback() && !to.is_loopback();
        match (to.parse::<SocketAddr>(), self.address) {
            _ if to == spelled(self.id) => true,
            (Ok(_), None) => true,
            (Ok(to), Some(address)) => {
                let ip = address.ip().to_canonical();
                (ip, address.port()) == (to.ip().to_canonical(), to.port()) || of_proxy(ip, to.ip())
            }
            // A name and a port, as no pod is called.
            (Err(_), _) => to.contains(':'),
        }
    }
}

impl CallSignature {
    /// Reads the headers of a call, and looks whether it is for this replica and of now.
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

    /// Whether the signature fits the call; takes the same time wherever it differs.
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

/// An id as it stands in a header.
fn spelled(id: &str) -> String {
    utf8_percent_encode(id, CONTROLS).to_string()
}

#[cfg(test)]
mod tests;
