//! Limits of HTTP/2 between replicas, the same at both ends.

use std::time::Duration;

use super::client::MAX_CONCURRENT_CALLS;
use super::relays::MAX_RELAYED;

/// Maximum number of calls on one connection at once: all that a replica makes.
pub(super) const MAX_STREAMS: u32 = (MAX_RELAYED + MAX_CONCURRENT_CALLS) as u32;
/// Window of one body, in bytes: what its reader may leave unread.
pub(super) const STREAM_WINDOW: u32 = 64 * 1024;
/// Window of a connection, in bytes. It has room for the windows of all of its bodies, so that one that is not read holds up no
/// other.
pub(super) const CONNECTION_WINDOW: u32 = MAX_STREAMS * STREAM_WINDOW;
/// Maximum size of a frame, in bytes, so that a long body does not keep a short call waiting.
pub(super) const MAX_FRAME_BYTES: u32 = 16 * 1024;
/// Maximum size of the head of a call as HTTP/2 counts it, with 32 bytes for each header: what a caller may send to an account,
/// and who that caller is.
pub(super) const MAX_HEAD_BYTES: u32 = 512 * 1024;
/// Maximum size of what waits to be sent of one body, in bytes.
pub(super) const SEND_BUFFER_BYTES: usize = 64 * 1024;
/// Maximum number of calls that were cancelled and are not forgotten yet.
pub(super) const MAX_PENDING_RESETS: usize = MAX_STREAMS as usize;
/// Interval between two pings.
pub(super) const PING_INTERVAL: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 10 });
/// Time without an answer to a ping after which the other side counts as gone: a machine that lost power closes no connection.
pub(super) const PING_TIMEOUT: Duration = Duration::from_secs(if cfg!(test) { 5 } else { 20 });
