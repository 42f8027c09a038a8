//! The basis of a list: the objects of a scope in SQL, with their versions.
//!
//! Frames stay compressed until the list reads them, one at a time, because the list keeps its own index of the rows.

use prost::Message as _;

use kubesvc_core::wire::events::blob::Encoding;
use kubesvc_core::wire::events::{BasisRow, BasisRows, Blob};

/// Maximum uncompressed size of a frame's rows, in bytes.
const MAX_FRAME_BYTES: usize = 8 * 1024 * 1024;
/// Maximum uncompressed size of a basis, in bytes: some 2.5 million objects.
const MAX_BASIS_BYTES: usize = 256 * 1024 * 1024;

/// Reason for which a basis cannot be used. The list restarts under another key.
#[derive(Debug, thiserror::Error)]
pub enum BasisError {
    #[error(
        "the rows of the scope take {bytes} bytes, but the agent accepts {MAX_BASIS_BYTES}; cache fewer kinds or namespaces"
    )]
    TooLarge {
        /// Uncompressed size.
        bytes: usize,
    },
    /// A frame exceeds its limit, or differs from its declared size.
    #[error("a frame of the scope's rows declares {said} bytes; the limit is {MAX_FRAME_BYTES}")]
    FrameSize { said: usize },
    /// A frame without an encoding, or with an unknown one.
    #[error("a frame of the rows of the scope has the unknown encoding {0}; update the agent")]
    Encoding(i32),
    #[error("a frame of the rows of the scope cannot be decompressed")]
    Compressed(#[source] std::io::Error),
    #[error("a frame of the rows of the scope cannot be read")]
    Rows(#[source] prost::DecodeError),
}

/// The rows of a scope as sent by the hub.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ScopeBasis {
    frames: Vec<Blob>,
    bytes: usize,
}

impl ScopeBasis {
    pub(super) fn push(&mut self, frame: Blob) -> Result<(), BasisError> {
        let said = frame.size as usize;
        if said > MAX_FRAME_BYTES || frame.data.len() > MAX_FRAME_BYTES {
            return Err(BasisError::FrameSize { said: said.max(frame.data.len()) });
        }
        let bytes = self.bytes + said;
        if bytes > MAX_BASIS_BYTES {
            return Err(BasisError::TooLarge { bytes });
        }
        self.bytes = bytes;
        self.frames.push(frame);
        Ok(())
    }

    /// Uncompressed size of the rows, in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The rows by frame; each frame is released once read.
    pub fn into_frames(self) -> impl Iterator<Item = Result<Vec<BasisRow>, BasisError>> {
        self.frames.into_iter().map(|frame| rows(&frame))
    }
}

fn rows(frame: &Blob) -> Result<Vec<BasisRow>, BasisError> {
    let size = frame.size as usize;
    let plain = match Encoding::try_from(frame.encoding) {
        Ok(Encoding::Raw) => BasisRows::decode(&*frame.data),
        Ok(Encoding::Zstd) => {
            let plain = zstd::bulk::decompress(&frame.data, size).map_err(BasisError::Compressed)?;
            if plain.len() != size {
                return Err(BasisError::FrameSize { said: size });
            }
            BasisRows::decode(&*plain)
        }
        Ok(Encoding::Unspecified) | Err(_) => return Err(BasisError::Encoding(frame.encoding)),
    };
    plain.map(|rows| rows.rows).map_err(BasisError::Rows)
}
