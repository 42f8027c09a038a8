//! Answers of another replica that are read line by line, each line signed, for as long as this replica wants. In place
//! of a deadline there is a limit on the time without a line.

use std::sync::Arc;
use std::time::Duration;

use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::time::{Instant, timeout_at};

use super::client::{CallError, unreachable};
use super::key::SigningKey;
use super::membership::Replica;
use super::signature::line_fits;

/// Time without a line after which the other replica counts as gone. It sends an empty line more often.
const IDLE_LIMIT: Duration = Duration::from_secs(30);
/// Maximum length of a line with its signature, in bytes.
const MAX_LINE_BYTES: usize = 64 * 1024;

/// The lines of one answer. Dropped, the call ends.
pub struct PeerLines {
    replica: Replica,
    body: Incoming,
    key: Arc<SigningKey>,
    nonce: String,
    next: u64,
    /// What was read and is not a whole line yet.
    rest: Vec<u8>,
    /// When the other replica counts as gone.
    idle_at: Instant,
}

impl PeerLines {
    pub(super) fn new(replica: &Replica, body: Incoming, key: Arc<SigningKey>, nonce: String) -> Self {
        Self {
            replica: replica.clone(),
            body,
            key,
            nonce,
            next: 0,
            rest: Vec::new(),
            idle_at: Instant::now() + IDLE_LIMIT,
        }
    }

    /// The next line without its line feed; `None` if the other replica has ended the answer. Cancel safe.
    ///
    /// # Errors
    /// The connection broke, no line came in time, or one that the other replica did not sign.
    pub async fn next(&mut self) -> Result<Option<String>, CallError> {
        loop {
            if let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.rest.drain(..=end).collect();
                return self.verified(&line[..end]).map(Some);
            }
            if self.rest.len() > MAX_LINE_BYTES {
                return Err(self.malformed("a line is too long"));
            }
            match timeout_at(self.idle_at, self.body.frame()).await {
                Err(_) => {
                    let seconds = IDLE_LIMIT.as_secs();
                    return Err(unreachable(&self.replica, format!("no line within {seconds} s")));
                }
                Ok(None) => return Ok(None),
                Ok(Some(Err(problem))) => return Err(unreachable(&self.replica, problem.to_string())),
                Ok(Some(Ok(frame))) => {
                    self.idle_at = Instant::now() + IDLE_LIMIT;
                    self.rest.extend(frame.into_data().unwrap_or_default());
                }
            }
        }
    }

    fn verified(&mut self, line: &[u8]) -> Result<String, CallError> {
        let text = std::str::from_utf8(line).map_err(|_| self.malformed("a line is not UTF-8"))?;
        let signed = text
            .split_once(' ')
            .filter(|(signature, line)| line_fits(&self.key, &self.nonce, self.next, line, signature));
        let (_, line) = signed.ok_or_else(|| self.malformed("a line is not signed for this call"))?;
        self.next += 1;
        Ok(line.to_owned())
    }

    fn malformed(&self, why: &str) -> CallError {
        CallError::Malformed { replica: self.replica.id.clone(), why: why.to_owned() }
    }
}
