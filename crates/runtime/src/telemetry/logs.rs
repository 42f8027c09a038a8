//! Log lines on standard output: text for people, JSON for machines.
//!
//! A JSON line is one object: `timestamp` (RFC 3339, UTC, milliseconds), `level`, `target`, `message`,
//! `program`, then the constant fields from the settings, the fields of the surrounding spans from the
//! outside in, and the fields of the event. Later fields override earlier ones of the same name. Field names
//! are camelCase: `agentId`, `account`, `kind`, `operationId`. A field that would hide one of the first five
//! is written as `field.NAME`.

use std::collections::BTreeMap;
use std::fmt;
use std::io::IsTerminal as _;

use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::{DefaultFields, Format, Full, JsonFields, Writer};
use tracing_subscriber::fmt::time::FormatTime;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, FormattedFields, MakeWriter, format};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry::{LookupSpan, Scope};
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::config::{LogFormat, LogLevel, LoggingSettings};

/// Reason why logging cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// `RUST_LOG` is not a list of `target=level`.
    #[error("the environment variable RUST_LOG is malformed; write for example info,kubesvc=debug")]
    Filter(#[from] tracing_subscriber::filter::ParseError),
    /// The process already has a subscriber.
    #[error("logs are set up already")]
    Twice(#[from] tracing_subscriber::util::TryInitError),
}

/// Sends this process's log lines to standard output from now on. `program` is the name of the binary.
///
/// `RUST_LOG`, if set, alone decides what is written. Otherwise `settings.level` decides, except that
/// libraries stay at `info` if it is `debug` or `trace`. Text is coloured on a terminal, unless `NO_COLOR` is
/// set.
///
/// # Errors
/// `RUST_LOG` is malformed, or this is not the first call in the process.
pub fn init(settings: &LoggingSettings, program: &str) -> Result<(), LogError> {
    let terminal = std::io::stdout().is_terminal();
    let set = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
    let output = Output { terminal, colour: terminal && set("NO_COLOR").is_none() };
    subscriber(settings, program, output, set("RUST_LOG").as_deref(), std::io::stdout)?.try_init()?;
    Ok(())
}

/// Properties of the output.
#[derive(Debug, Clone, Copy)]
struct Output {
    terminal: bool,
    colour: bool,
}

/// Like [`init`], but with the output and the environment as parameters.
fn subscriber<W>(
    settings: &LoggingSettings,
    program: &str,
    output: Output,
    rust_log: Option<&str>,
    writer: W,
) -> Result<Box<dyn Subscriber + Send + Sync>, LogError>
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let filter = EnvFilter::builder().parse(rust_log.unwrap_or(directives(settings.level)))?;
    let json = match settings.format {
        LogFormat::Json => true,
        LogFormat::Text => false,
        LogFormat::Auto => !output.terminal,
    };
    let base = tracing_subscriber::registry().with(filter);
    // A closed standard output must not cause a panic about standard error.
    let layer = tracing_subscriber::fmt::layer().with_writer(writer).log_internal_errors(false);
    Ok(if json {
        let lines = JsonLines { program: program.to_owned(), constant: settings.fields.clone() };
        Box::new(base.with(layer.fmt_fields(JsonFields::new()).with_ansi(false).event_format(lines)))
    } else {
        let lines = TextLines {
            line: format().with_timer(Milliseconds).with_ansi(output.colour),
            constant: constant_text(&settings.fields),
        };
        let layer = layer.fmt_fields(DefaultFields::new()).with_ansi(output.colour);
        Box::new(base.with(layer.event_format(lines)))
    })
}

/// [`EnvFilter`] directives for a log level. The Kubernetes client warns about each watch that is cut; that
/// is silenced, because [`outages`](super::outages) reports the error that the client also returns.
fn directives(level: LogLevel) -> &'static str {
    match level {
        LogLevel::Error => "error",
        LogLevel::Warn => "warn,kube_client::client=error",
        LogLevel::Info => "info,kube_client::client=error",
        LogLevel::Debug => "info,kube_client::client=error,kubesvc=debug,kubectl_kubesvc=debug",
        LogLevel::Trace => "info,kube_client::client=error,kubesvc=trace,kubectl_kubesvc=trace",
    }
}

/// Timestamp of a line: RFC 3339, UTC, milliseconds.
struct Milliseconds;

impl FormatTime for Milliseconds {
    fn format_time(&self, w: &mut Writer<'_>) -> fmt::Result {
        write!(w, "{}", now())
    }
}

fn now() -> impl fmt::Display {
    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S%.3fZ").to_string()
}

/// Formats lines for people, with the constant fields at the end.
struct TextLines {
    line: Format<Full, Milliseconds>,
    constant: String,
}

fn constant_text(fields: &BTreeMap<String, String>) -> String {
    fields.iter().map(|(name, value)| format!(" {name}={value:?}")).collect()
}

impl<S, N> FormatEvent<S, N> for TextLines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, ctx: &FmtContext<'_, S, N>, mut w: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        if self.constant.is_empty() {
            return self.line.format_event(ctx, w, event);
        }
        let mut line = String::new();
        self.line.format_event(ctx, Writer::new(&mut line), event)?;
        writeln!(w, "{}{}", line.trim_end_matches('\n'), self.constant)
    }
}

/// Formats lines for machines.
struct JsonLines {
    program: String,
    constant: BTreeMap<String, String>,
}

/// The fields that each line has, in the order in which they are written.
#[derive(serde::Serialize)]
struct LogLine<'a> {
    timestamp: String,
    level: &'a str,
    target: &'a str,
    message: &'a str,
    program: &'a str,
    #[serde(flatten)]
    fields: &'a Map<String, Value>,
}

const CONSTANT_KEYS: [&str; 5] = ["timestamp", "level", "target", "message", "program"];

impl<S, N> FormatEvent<S, N> for JsonLines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, ctx: &FmtContext<'_, S, N>, mut w: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let mut fields = EventFields::default();
        for (name, value) in &self.constant {
            fields.put(name, value.as_str());
        }
        for span in ctx.event_scope().into_iter().flat_map(Scope::from_root) {
            let extensions = span.extensions();
            let Some(text) = extensions.get::<FormattedFields<N>>() else { continue };
            if let Ok(Value::Object(of_span)) = serde_json::from_str(text) {
                for (name, value) in of_span {
                    fields.put(&name, value);
                }
            }
        }
        let mut own = EventFields::default();
        event.record(&mut own);
        for (name, value) in own.map {
            fields.map.insert(name, value);
        }
        let meta = event.metadata();
        let line = LogLine {
            timestamp: now().to_string(),
            level: meta.level().as_str(),
            target: own.log_target.as_deref().unwrap_or(meta.target()),
            message: own.message.as_deref().unwrap_or_default(),
            program: &self.program,
            fields: &fields.map,
        };
        writeln!(w, "{}", serde_json::to_string(&line).map_err(|_| fmt::Error)?)
    }
}

/// The fields of an event.
#[derive(Default)]
struct EventFields {
    map: Map<String, Value>,
    message: Option<String>,
    /// Target of a line that came through the `log` crate.
    log_target: Option<String>,
}

impl EventFields {
    fn put(&mut self, name: &str, value: impl Into<Value>) {
        let name = name.strip_prefix("r#").unwrap_or(name);
        let key = if CONSTANT_KEYS.contains(&name) { format!("field.{name}") } else { name.to_owned() };
        self.map.insert(key, value.into());
    }

    fn text(&mut self, name: &str, value: String) {
        match name {
            "message" => self.message = Some(value),
            "log.target" => self.log_target = Some(value),
            name if name.starts_with("log.") => {}
            name => self.put(name, value),
        }
    }
}

impl Visit for EventFields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.text(field.name(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.text(field.name(), value.to_owned());
    }

    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        self.text(field.name(), super::errors::chain(value));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field.name(), value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        if field.name() != "log.line" {
            self.put(field.name(), value);
        }
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field.name(), value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field.name(), value);
    }
}

#[cfg(test)]
mod tests;
