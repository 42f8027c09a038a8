//! A client that reads a log again and again, in a process of its own.

use std::time::{Duration, Instant};

use http_body_util::BodyExt as _;
use hyper::body::Bytes;
use kubesvc_testkit::{folder::Folder, process::Process, wait::try_eventually};
use serde::{Deserialize, Serialize};

use crate::{
    callers::{Call, Caller, Door},
    parts::Part,
    scripted_cluster::LOG_BYTES,
};

/// Bytes between two lines of the process's output.
const LINE_BYTES: usize = 50_000_000;
/// Time limit for the first line.
const START: Duration = Duration::from_secs(30);

/// What the process reads.
#[derive(Serialize, Deserialize)]
pub(crate) struct Reading {
    door: Door,
    path: String,
}

/// The running process. It is killed when it is dropped.
pub(crate) struct LogReader {
    process: Process,
    _folder: Folder,
}

impl LogReader {
    /// Starts to read. Returns when the log flows.
    pub(crate) async fn start(door: Door, path: String) -> Result<Self, String> {
        let folder = Folder::new("bench-log-reader")?;
        let process = Part::LogReader(Reading { door, path }).start("log-reader", &folder)?;
        let reader = Self { process, _folder: folder };
        try_eventually("a log that is read", START, async || reader.rate()).await?;
        Ok(reader)
    }

    /// MB a second, from its start until the last line of its output.
    ///
    /// # Errors
    ///
    /// It has ended, or has not read enough for a line.
    pub(crate) fn rate(&self) -> Result<f64, String> {
        self.process.check_running()?;
        let text = self.process.log_text();
        let line = text.lines().last().ok_or("it has read little so far")?;
        line.parse().map_err(|_| format!("the log reader says {line:?}"))
    }
}

impl Reading {
    /// Reads the log to its end, again and again, and writes the rate so far.
    pub(crate) async fn read(self) -> Result<(), String> {
        let (begun, mut bytes) = (Instant::now(), 0);
        let mut caller = Caller::connect(&self.door).await?;
        let call = Call::get(&self.path);
        loop {
            let mut answer = caller.begin(&call).await?;
            if !answer.status().is_success() {
                return Err(format!("the log: {}", answer.status()));
            }
            let before = bytes;
            while let Some(frame) = answer.body_mut().frame().await {
                let read = frame.map_err(|e| e.to_string())?.data_ref().map_or(0, Bytes::len);
                bytes += read;
                if bytes / LINE_BYTES > (bytes - read) / LINE_BYTES {
                    #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
                    let rate = bytes as f64 / 1e6 / begun.elapsed().as_secs_f64();
                    eprintln!("{rate}");
                }
            }
            let read = bytes - before;
            if read < LOG_BYTES / 10 * 9 {
                return Err(format!("the log has {read} bytes"));
            }
        }
    }
}
