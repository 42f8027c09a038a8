//! Bytes between replicas in signed frames: answers of relayed requests, and both ways after an upgrade. What was cut,
//! changed, left out or moved is noticed; where the whole ends is for the frames to say.
//!
//! A frame is its length (4 bytes, big endian), its bytes, and its signature (32 bytes).

use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::BoxStream;
use prost::bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use tokio::time::{Instant, timeout_at};

use super::key::SigningKey;
use super::signature::{FRAME_SIGNATURE_BYTES, FrameSide, frame_fits, sign_frame};
use kubesvc_runtime::telemetry::errors::chain;

/// Maximum size of a frame, in bytes.
pub const MAX_FRAME_BYTES: usize = 160 * 1024;
/// Interval at which an empty frame is sent when there is no other.
pub const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// Time without a byte after which the other side counts as gone.
const IDLE_LIMIT: Duration = Duration::from_secs(30);
/// Length of the length of a frame, in bytes.
const LENGTH_BYTES: usize = 4;

/// Bytes as they arrive.
pub type IncomingBytes = BoxStream<'static, io::Result<Bytes>>;

/// Why frames cannot be read on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the frames {of} cannot be read: {why}")]
pub struct FrameError {
    of: String,
    why: String,
}

/// Signs the frames of one side.
pub struct FrameSigner {
    key: Arc<SigningKey>,
    nonce: String,
    side: FrameSide,
    next: u64,
}

impl FrameSigner {
    pub(super) fn new(key: &Arc<SigningKey>, nonce: &str, side: FrameSide) -> Self {
        Self { key: Arc::clone(key), nonce: nonce.to_owned(), side, next: 0 }
    }

    /// The next frame, with at most [`MAX_FRAME_BYTES`].
    pub fn sign(&mut self, frame: &[u8]) -> Bytes {
        debug_assert!(frame.len() <= MAX_FRAME_BYTES, "the writer keeps to the limit");
        let signature = sign_frame(&self.key, &self.nonce, (self.side, self.next), frame);
        self.next += 1;
        let mut signed = BytesMut::with_capacity(LENGTH_BYTES + frame.len() + FRAME_SIGNATURE_BYTES);
        signed.put_u32(u32::try_from(frame.len()).unwrap_or(u32::MAX));
        signed.extend_from_slice(frame);
        signed.extend_from_slice(&signature);
        signed.freeze()
    }
}

/// Frames of the other side. Dropped, the call ends.
pub struct PeerFrames {
    of: String,
    source: IncomingBytes,
    key: Arc<SigningKey>,
    nonce: String,
    side: FrameSide,
    next: u64,
    /// What was read and is not a whole frame yet.
    rest: BytesMut,
    /// When the other side counts as gone; `None` while nobody reads. Time in which nobody reads does not count: the
    /// other side cannot send then.
    idle_at: Option<Instant>,
}

impl PeerFrames {
    pub(super) fn new(
        of: &str,
        source: IncomingBytes,
        key: &Arc<SigningKey>,
        nonce: &str,
        side: FrameSide,
    ) -> Self {
        Self {
            of: of.to_owned(),
            source,
            key: Arc::clone(key),
            nonce: nonce.to_owned(),
            side,
            next: 0,
            rest: BytesMut::new(),
            idle_at: None,
        }
    }

    /// The next frame; `None` if the other side sends no more. Cancel safe.
    ///
    /// # Errors
    /// The connection broke, nothing came in time, or a frame that the other side did not sign.
    pub async fn next(&mut self) -> Result<Option<Bytes>, FrameError> {
        loop {
            if let Some(frame) = self.whole_frame()? {
                self.idle_at = None;
                return Ok(Some(frame));
            }
            let idle_at = *self.idle_at.get_or_insert_with(|| Instant::now() + IDLE_LIMIT);
            match timeout_at(idle_at, self.source.next()).await {
                Err(_) => return Err(self.error(&format!("nothing came within {} s", IDLE_LIMIT.as_secs()))),
                Ok(None) if self.rest.is_empty() => return Ok(None),
                Ok(None) => return Err(self.error("the last one is cut")),
                Ok(Some(Err(error))) => return Err(self.error(&chain(&error))),
                Ok(Some(Ok(bytes))) => {
                    self.idle_at = Some(Instant::now() + IDLE_LIMIT);
                    self.rest.extend_from_slice(&bytes);
                }
            }
        }
    }

    fn whole_frame(&mut self) -> Result<Option<Bytes>, FrameError> {
        let Some(length) = self.rest.first_chunk::<LENGTH_BYTES>() else { return Ok(None) };
        let length = usize::try_from(u32::from_be_bytes(*length)).unwrap_or(usize::MAX);
        if length > MAX_FRAME_BYTES {
            return Err(self.error("one is too long"));
        }
        if self.rest.len() < LENGTH_BYTES + length + FRAME_SIGNATURE_BYTES {
            return Ok(None);
        }
        self.rest.advance(LENGTH_BYTES);
        let frame = self.rest.split_to(length).freeze();
        let signature = self.rest.split_to(FRAME_SIGNATURE_BYTES);
        if !frame_fits(&self.key, &self.nonce, (self.side, self.next), &frame, &signature) {
            return Err(self.error("one is not signed for this call"));
        }
        self.next += 1;
        Ok(Some(frame))
    }

    fn error(&self, why: &str) -> FrameError {
        FrameError { of: self.of.clone(), why: why.to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use futures::stream;
    use proptest::prelude::*;

    use super::*;

    fn key(byte: u8) -> Arc<SigningKey> {
        Arc::new(SigningKey::new(vec![byte; 32]).expect("long enough"))
    }

    fn signed(frames: &[&[u8]]) -> Vec<Bytes> {
        let mut signer = FrameSigner::new(&key(1), "n", FrameSide::Answerer);
        frames.iter().map(|frame| signer.sign(frame)).collect()
    }

    async fn read(bytes: Vec<Bytes>) -> Result<Vec<Bytes>, FrameError> {
        let source = stream::iter(bytes.into_iter().map(Ok)).boxed();
        let mut frames = PeerFrames::new("of a test", source, &key(1), "n", FrameSide::Answerer);
        let mut all = Vec::new();
        while let Some(frame) = frames.next().await? {
            all.push(frame);
        }
        Ok(all)
    }

    #[tokio::test]
    async fn frames_that_were_changed_moved_or_left_out_are_refused() {
        let good = signed(&[b"one", b"", b"three"]);
        assert_eq!(read(good.clone()).await.expect("good"), [&b"one"[..], b"", b"three"]);
        assert!(read(vec![good[1].clone(), good[0].clone()]).await.is_err());
        assert!(read(vec![good[0].clone(), good[2].clone()]).await.is_err());
        assert!(read(vec![good[0].slice(..20)]).await.is_err(), "cut");
        let source = || stream::iter(signed(&[b"one"]).into_iter().map(Ok)).boxed();
        for (by, nonce, side) in
            [(2, "n", FrameSide::Answerer), (1, "m", FrameSide::Answerer), (1, "n", FrameSide::Caller)]
        {
            assert!(PeerFrames::new("", source(), &key(by), nonce, side).next().await.is_err());
        }
        assert!(read(vec![Bytes::from_static(&[0xff; 64])]).await.is_err(), "too long");
    }

    #[tokio::test(start_paused = true)]
    async fn a_side_that_says_nothing_counts_as_gone() {
        let began = Instant::now();
        let mut silent = PeerFrames::new("", stream::pending().boxed(), &key(1), "n", FrameSide::Answerer);
        assert!(silent.next().await.is_err());
        assert_eq!(began.elapsed(), IDLE_LIMIT);
    }

    #[tokio::test(start_paused = true)]
    async fn time_in_which_nobody_reads_is_not_silence() {
        let sent = signed(&[b"one", b"two"]);
        let late = tokio::time::sleep(IDLE_LIMIT * 3);
        let source =
            stream::iter([Ok(sent[0].clone())]).chain(stream::once(late).map(move |()| Ok(sent[1].clone())));
        let mut frames = PeerFrames::new("", source.boxed(), &key(1), "n", FrameSide::Answerer);
        assert_eq!(frames.next().await.expect("a frame").as_deref(), Some(&b"one"[..]));
        tokio::time::sleep(IDLE_LIMIT * 5 / 2).await;
        assert_eq!(frames.next().await.expect("the next frame").as_deref(), Some(&b"two"[..]));
    }

    proptest! {
        #[test]
        fn a_changed_byte_gives_an_error_or_fewer_frames(at in 0_usize..160, value in any::<u8>(), cut in 1_usize..40) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
            let good: Vec<u8> = signed(&[b"one", b"two", b"three"]).concat();
            let at = at % good.len();
            prop_assume!(good[at] != value);
            let mut bad = good;
            bad[at] = value;
            let parts = bad.chunks(cut).map(Bytes::copy_from_slice).collect();
            prop_assert!(runtime.block_on(read(parts)).is_err());
        }
    }
}
