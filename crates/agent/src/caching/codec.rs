//! Sends frames that are encoded already: `tonic` frames the bytes as they are, so a resend cannot differ.

use prost::Message as _;
use prost::bytes::BufMut as _;
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

use super::batch::EncodedFrame;
use kubesvc_core::wire::events::CacheDown;

/// Path of `events.Caching/Stream`, for `tonic::client::Grpc::streaming`.
pub const STREAM_PATH: &str = "/events.Caching/Stream";

/// [`EncodedFrame`]s out, [`CacheDown`]s in.
#[derive(Clone, Copy, Debug, Default)]
pub struct CachingCodec;

impl Codec for CachingCodec {
    type Encode = EncodedFrame;
    type Decode = CacheDown;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for CachingCodec {
    type Item = EncodedFrame;
    type Error = Status;

    fn encode(&mut self, frame: EncodedFrame, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put_slice(frame.bytes());
        Ok(())
    }
}

impl Decoder for CachingCodec {
    type Item = CacheDown;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<CacheDown>, Status> {
        let frame = CacheDown::decode(buffer);
        frame
            .map(Some)
            .map_err(|error| Status::internal(format!("a frame of the hub cannot be read: {error}")))
    }
}
