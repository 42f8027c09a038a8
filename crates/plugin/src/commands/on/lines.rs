//! Output of several processes as lines that begin with the account. A line is written as a whole.

use std::io::{self, IsTerminal};

use anstream::{AutoStream, ColorChoice};
use anstyle::{AnsiColor, Style};
use kubesvc_runtime::terminal::text;
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncWrite, AsyncWriteExt as _, BufReader};
use tokio::sync::Mutex;

/// Longest line that is kept together, in bytes. A longer one is written in parts.
const MAX_LINE_BYTES: usize = 64 * 1024;
/// Widest column of accounts, in characters.
const MAX_LABEL_CHARS: usize = 40;
/// Colors of the accounts, in turn.
const COLORS: [AnsiColor; 6] = [
    AnsiColor::Cyan,
    AnsiColor::Green,
    AnsiColor::Yellow,
    AnsiColor::Magenta,
    AnsiColor::Blue,
    AnsiColor::BrightCyan,
];

/// Where lines go.
pub(super) struct Sink {
    to: Mutex<Box<dyn AsyncWrite + Send + Unpin>>,
    is_terminal: bool,
    has_colors: bool,
}

impl Sink {
    pub(super) fn new(
        to: impl AsyncWrite + Send + Unpin + 'static,
        is_terminal: bool,
        has_colors: bool,
    ) -> Self {
        Self { to: Mutex::new(Box::new(to)), is_terminal, has_colors }
    }
}

/// Standard output and standard error, and the column of accounts.
pub(super) struct Output {
    pub(super) stdout: Sink,
    pub(super) stderr: Sink,
    /// Names of the accounts, all of one width.
    labels: Vec<String>,
}

impl Output {
    /// The output of this process.
    pub(super) fn of_process<'a>(accounts: impl Iterator<Item = &'a str>) -> Self {
        let (stdout, stderr) = (io::stdout(), io::stderr());
        let colors = |choice| choice != ColorChoice::Never;
        Self::new(
            accounts,
            Sink::new(tokio::io::stdout(), stdout.is_terminal(), colors(AutoStream::choice(&stdout))),
            Sink::new(tokio::io::stderr(), stderr.is_terminal(), colors(AutoStream::choice(&stderr))),
        )
    }

    pub(super) fn new<'a>(accounts: impl Iterator<Item = &'a str>, stdout: Sink, stderr: Sink) -> Self {
        let accounts: Vec<_> = accounts.collect();
        let width = accounts.iter().map(|name| name.chars().count()).max().unwrap_or_default();
        let width = width.min(MAX_LABEL_CHARS);
        let labels = accounts.iter().map(|name| format!("{name:width$}")).collect();
        Self { stdout, stderr, labels }
    }

    /// Copies lines of an account until its process has ended them.
    pub(super) async fn copy(&self, from: impl AsyncRead + Unpin, index: usize, to: &Sink) -> io::Result<()> {
        let mut from = BufReader::new(from);
        let mut line = Vec::new();
        loop {
            let read = from.fill_buf().await?;
            if read.is_empty() {
                return if line.is_empty() { Ok(()) } else { self.write(&line, index, to).await };
            }
            let end = read.iter().position(|byte| *byte == b'\n');
            line.extend_from_slice(&read[..end.unwrap_or(read.len())]);
            let taken = end.map_or(read.len(), |end| end + 1);
            from.consume(taken);
            if end.is_some() || line.len() >= MAX_LINE_BYTES {
                self.write(&line, index, to).await?;
                line.clear();
            }
        }
    }

    async fn write(&self, line: &[u8], index: usize, to: &Sink) -> io::Result<()> {
        let label = self.labels.get(index).map(String::as_str).unwrap_or_default();
        let mut out = Vec::with_capacity(label.len() + line.len() + 16);
        if to.has_colors {
            let style = Style::new().fg_color(Some(COLORS[index % COLORS.len()].into()));
            out.extend_from_slice(format!("{style}{label}{style:#} | ").as_bytes());
        } else {
            out.extend_from_slice(format!("{label} | ").as_bytes());
        }
        if to.is_terminal {
            out.extend_from_slice(for_terminal(line).as_bytes());
        } else {
            out.extend_from_slice(line);
        }
        out.push(b'\n');
        let mut stream = to.to.lock().await;
        stream.write_all(&out).await?;
        stream.flush().await
    }
}

/// A line without what could steer the terminal, which several accounts share. Tabs stay.
fn for_terminal(line: &[u8]) -> String {
    let line = String::from_utf8_lossy(line);
    let line = line.strip_suffix('\r').unwrap_or(&line);
    line.split('\t').map(text::visible).collect::<Vec<_>>().join("\t")
}
