//! Where a watch that is to end ends: at the end of a line, so that its last event is whole. Pure.

use prost::bytes::Bytes;

/// Whether each event of an answered watch is a line: only in JSON, and as it is. In other encodings an event has bytes
/// that look like the end of a line.
pub fn has_event_lines<'h>(status: u32, headers: impl IntoIterator<Item = (&'h str, &'h [u8])>) -> bool {
    let (mut is_json, mut is_encoded) = (false, false);
    for (name, value) in headers {
        if name.eq_ignore_ascii_case("content-type") {
            let media = value.split(|byte| *byte == b';').next().unwrap_or_default();
            is_json = media.trim_ascii().eq_ignore_ascii_case(b"application/json");
        }
        is_encoded |= name.eq_ignore_ascii_case("content-encoding");
    }
    (200..300).contains(&status) && is_json && !is_encoded
}

/// The lines of one watch, as they are passed on.
#[derive(Debug)]
pub struct WatchLines {
    is_at_line_end: bool,
}

impl Default for WatchLines {
    fn default() -> Self {
        Self { is_at_line_end: true }
    }
}

impl WatchLines {
    /// Whether all that was passed on are whole lines, so that the watch may end.
    pub fn is_at_line_end(&self) -> bool {
        self.is_at_line_end
    }

    /// The bytes to pass on: of a watch that is to end, those up to the end of the last line, if there is one.
    pub fn pass_on(&mut self, mut bytes: Bytes, is_ending: bool) -> Bytes {
        if is_ending && let Some(end) = bytes.iter().rposition(|byte| *byte == b'\n') {
            bytes.truncate(end + 1);
        }
        if let Some(last) = bytes.last() {
            self.is_at_line_end = *last == b'\n';
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_events_of_an_answer_in_plain_json_are_lines() {
        let of = |status: u32, headers: &[(&'static str, &'static str)]| {
            has_event_lines(status, headers.iter().map(|(name, value)| (*name, value.as_bytes())))
        };
        assert!(of(200, &[("Content-Type", "application/json")]));
        assert!(of(200, &[("content-type", "application/json;stream=watch"), ("date", "x")]));
        assert!(!of(200, &[("content-type", "application/vnd.kubernetes.protobuf;stream=watch")]));
        assert!(!of(200, &[("content-type", "application/json"), ("content-encoding", "gzip")]));
        assert!(!of(200, &[("content-type", "text/plain")]));
        assert!(!of(200, &[]));
        assert!(!of(410, &[("content-type", "application/json")]));
    }

    #[test]
    fn a_watch_that_is_to_end_passes_on_whole_lines() {
        let mut lines = WatchLines::default();
        assert!(lines.is_at_line_end());
        assert_eq!(lines.pass_on(Bytes::from_static(b"{1}\n{2"), false), b"{1}\n{2"[..]);
        assert_eq!(lines.pass_on(Bytes::from_static(b",3"), true), b",3"[..]);
        assert!(!lines.is_at_line_end(), "the line is passed on to its end");
        assert_eq!(lines.pass_on(Bytes::from_static(b"}\n{4"), true), b"}\n"[..]);
        assert!(lines.is_at_line_end());
    }
}
