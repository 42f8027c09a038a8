//! HTTP requests to an account's API server, as hub and agent carry them over one stream: pure, without I/O or a clock.
//!
//! | module | owns |
//! |---|---|
//! | [`streams`] | all requests of one stream, for both ends: order of frames, turns, credit, what is unknown |
//! | [`credit`] | how many bytes a side may send, and the memory that all requests share |
//! | [`journal`] | the agent's record of writes, so that none is sent twice and each answer is kept |
//! | [`target`] | path and query as the API server reads them: validity, class, namespace, kind |
//! | [`access`] | what the agent's owner and the account's namespaces allow |
//! | [`apply_settings`] | what an agent's owner says of applying |
//! | [`watch_lines`] | where a watch may end |
//! | [`wire`] | the two ends in the messages of `proto/ops.proto` |
//! | [`headers`] | which headers are passed on |

pub mod access;
#[cfg(feature = "operations")]
pub mod apply_settings;
pub mod credit;
pub mod headers;
pub mod journal;
pub mod streams;
pub mod target;
pub mod watch_lines;
pub mod wire;

/// Capability of both sides that have this stream.
pub const CAPABILITY: &str = "requests/1";
/// Maximum size of the body of a request, in bytes.
pub const MAX_REQUEST_BODY_BYTES: usize = 8 * 1024 * 1024;
/// Maximum size of the headers of a request or an answer, in bytes.
pub const MAX_HEADERS_BYTES: usize = 64 * 1024;
/// Maximum size of the path and query of a request, in bytes.
pub const MAX_TARGET_BYTES: usize = 32 * 1024;
/// Maximum size of the answer of a write that is kept and given on, in bytes.
pub const MAX_WRITE_ANSWER_BYTES: usize = 2 * 1024 * 1024;
/// Maximum number of requests of one agent at once.
pub const MAX_REQUESTS_OF_AGENT: usize = 4096;
