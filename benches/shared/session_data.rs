//! The data of an agent's session, read from the bytes of its connection to the hub, which is HTTP/2 without TLS.

/// HTTP/2 stream of the agent's session: the first that it opens.
const SESSION_STREAM: u32 = 1;
/// Bytes of a client before its first frame.
const PREFACE_BYTES: usize = 24;
const FRAME_HEAD_BYTES: usize = 9;
const DATA: u8 = 0;

/// One direction of a connection.
#[derive(Default)]
pub(crate) struct SessionData {
    /// Bytes until the next frame begins.
    left: usize,
    /// Whether they are data of the session.
    is_session: bool,
    /// The head of the next frame, as far as it is there.
    head: Vec<u8>,
}

impl SessionData {
    /// The direction from the agent.
    pub(crate) fn from_agent() -> Self {
        Self { left: PREFACE_BYTES, ..Self::default() }
    }

    /// The direction from the hub.
    pub(crate) fn from_hub() -> Self {
        Self::default()
    }

    /// The data of the session in the next bytes of this direction.
    pub(crate) fn of(&mut self, mut bytes: &[u8]) -> Vec<u8> {
        let mut data = Vec::new();
        loop {
            let (content, rest) = bytes.split_at(self.left.min(bytes.len()));
            self.left -= content.len();
            if self.is_session {
                data.extend_from_slice(content);
            }
            let (head, rest) = rest.split_at((FRAME_HEAD_BYTES - self.head.len()).min(rest.len()));
            self.head.extend_from_slice(head);
            bytes = rest;
            let Ok([a, b, c, kind, _flags, stream @ ..]) = <[u8; FRAME_HEAD_BYTES]>::try_from(&*self.head)
            else {
                return data;
            };
            self.head.clear();
            self.left = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
            self.is_session = kind == DATA && u32::from_be_bytes(stream) == SESSION_STREAM;
        }
    }
}
