use std::io::Write;
use std::sync::Arc;

use parking_lot::Mutex;
use tracing::Level;

use super::*;

#[derive(Clone, Default)]
struct Buffer(Arc<Mutex<Vec<u8>>>);

impl Write for Buffer {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn settings(level: LogLevel, format: LogFormat, fields: &[(&str, &str)]) -> LoggingSettings {
    let fields = fields.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    LoggingSettings { level, format, fields }
}

fn written(settings: &LoggingSettings, terminal: bool, rust_log: Option<&str>, act: impl FnOnce()) -> String {
    let buffer = Buffer::default();
    let writer = buffer.clone();
    let output = Output { terminal, colour: false };
    let subscriber =
        subscriber(settings, "kubesvc-test", output, rust_log, move || writer.clone()).expect("a subscriber");
    tracing::subscriber::with_default(subscriber, act);
    let bytes = buffer.0.lock().clone();
    String::from_utf8(bytes).expect("log lines are UTF-8")
}

#[test]
fn a_json_line_has_its_fields_at_the_top() {
    let settings = settings(LogLevel::Info, LogFormat::Json, &[("team", "x"), ("kind", "constant")]);
    let text = written(&settings, true, None, || {
        let span =
            tracing::info_span!("outer", account = "prod", agentId = "outer", late = tracing::field::Empty);
        let _outer = span.enter();
        span.record("late", 1.5);
        let _inner = tracing::info_span!("inner", agentId = "a-1", level = "hidden").entered();
        let error = std::io::Error::other("disk full");
        let error = &error as &dyn std::error::Error;
        tracing::warn!(kind = "Pod", operationId = %"01H", count = 3, ok = true, error, "line\n\"two\" {}", 5);
    });
    assert_eq!(text.matches('\n').count(), 1, "{text}");
    let names = ["{\"timestamp\":", ",\"level\":", ",\"target\":", ",\"message\":", ",\"program\":"];
    let places: Vec<_> = names.iter().map(|n| text.find(n)).collect();
    assert!(places.is_sorted() && places[0] == Some(0), "{text}");
    let mut line: Value = serde_json::from_str(&text).expect("a line is JSON");
    let timestamp = line["timestamp"].take().as_str().map(str::to_owned).expect("a time");
    assert!(timestamp.parse::<jiff::Timestamp>().is_ok() && timestamp.len() == 24, "{timestamp}");
    let want = serde_json::json!({
        "timestamp": null, "level": "WARN", "target": module_path!(), "message": "line\n\"two\" 5",
        "program": "kubesvc-test", "team": "x", "kind": "Pod", "account": "prod", "agentId": "a-1", "late": 1.5,
        "field.level": "hidden", "operationId": "01H", "count": 3, "ok": true, "error": "disk full",
    });
    assert_eq!(line, want);
}

#[test]
fn a_text_line_ends_with_the_constant_fields() {
    for (fields, end) in
        [(&[][..], "hello account=\"a\"\n"), (&[("team", "x y")], "hello account=\"a\" team=\"x y\"\n")]
    {
        let settings = settings(LogLevel::Info, LogFormat::Text, fields);
        let text = written(&settings, false, None, || tracing::info!(account = "a", "hello"));
        assert!(text.ends_with(end), "{text}");
        assert!(text.contains(concat!("Z  INFO ", module_path!(), ": ")), "{text}");
        assert_eq!(text.matches('\n').count(), 1, "{text}");
    }
}

#[test]
fn auto_is_text_on_a_terminal_only() {
    let cases = [
        (LogFormat::Auto, true, false),
        (LogFormat::Auto, false, true),
        (LogFormat::Text, false, false),
        (LogFormat::Json, true, true),
    ];
    for (format, terminal, json) in cases {
        let text = written(&settings(LogLevel::Info, format, &[]), terminal, None, || tracing::info!("x"));
        assert_eq!(text.starts_with('{'), json, "{format:?} {terminal}");
    }
}

#[test]
fn levels_open_our_own_lines_and_rust_log_decides_alone() {
    let emit = || {
        tracing::event!(target: "kubesvc::hub", Level::TRACE, "1");
        tracing::event!(target: "kubesvc_agent", Level::DEBUG, "2");
        tracing::event!(target: "kubesvc::hub", Level::INFO, "3");
        tracing::event!(target: "h2", Level::DEBUG, "4");
        tracing::event!(target: "h2", Level::INFO, "5");
        tracing::event!(target: "h2", Level::WARN, "6");
        tracing::event!(target: "kubesvc", Level::ERROR, "7");
    };
    let cases = [
        (LogLevel::Error, None, "7"),
        (LogLevel::Warn, None, "67"),
        (LogLevel::Info, None, "3567"),
        (LogLevel::Debug, None, "23567"),
        (LogLevel::Trace, None, "123567"),
        (LogLevel::Error, Some("h2=debug"), "456"),
        (LogLevel::Trace, Some("off"), ""),
    ];
    for (level, rust_log, want) in cases {
        let text = written(&settings(level, LogFormat::Json, &[]), false, rust_log, emit);
        let said: String = text
            .lines()
            .filter_map(|l| serde_json::from_str::<Value>(l).ok()?["message"].as_str().map(str::to_owned))
            .collect();
        assert_eq!(said, want, "{level:?} {rust_log:?}");
    }
}

#[test]
fn a_malformed_rust_log_is_refused() {
    let settings = LoggingSettings::default();
    let output = Output { terminal: false, colour: false };
    let result = subscriber(&settings, "x", output, Some("kubesvc=loud"), std::io::sink);
    let message = result.map(|_| ()).expect_err("no such level").to_string();
    assert!(message.starts_with("the environment variable RUST_LOG is malformed"), "{message}");
}
