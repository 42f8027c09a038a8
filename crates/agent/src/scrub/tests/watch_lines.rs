//! What lines of a watch say.

use super::*;

fn shown(line: &str) -> String {
    match read_watch_line(line.as_bytes()) {
        Ok(WatchLine::Object(change, object)) => {
            format!("{change:?} {} {:?}", String::from_utf8_lossy(object.bytes()), object.problem())
        }
        Ok(WatchLine::Bookmark { resource_version }) => format!("bookmark {resource_version}"),
        Ok(WatchLine::Error(status)) => {
            format!("error {} {} {}", status.code, status.reason, status.is_expired())
        }
        Err(error) => error.to_string(),
    }
}

#[test]
fn type_and_object_come_in_either_order() {
    assert_eq!(shown(r#"{"type":"ADDED","object":{"a":1}}"#), r#"Added {"a":1} None"#);
    assert_eq!(
        shown(r#" { "object" : {"a":1} , "x":[] , "type" : "MODIFIED" } "#),
        r#"Modified {"a":1} None"#
    );
    assert_eq!(shown(r#"{"object":{},"type":"DEL\u0045TED"}"#), "Deleted {} None");
}

#[test]
fn bookmark_has_the_version_of_its_object() {
    let line =
        r#"{"type":"BOOKMARK","object":{"kind":"Pod","metadata":{"resourceVersion":"12","annotations":{}}}}"#;
    assert_eq!(shown(line), "bookmark 12");
    let missing = "a bookmark of the watch has no usable metadata.resourceVersion";
    assert_eq!(shown(r#"{"type":"BOOKMARK","object":{"metadata":{}}}"#), missing);
    assert_eq!(shown(r#"{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":12}}}"#), missing);
}

#[test]
fn error_is_read_and_410_means_expired() {
    let line = r#"{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired","message":"old"}}"#;
    assert_eq!(shown(line), "error 410 Expired true");
    let line = r#"{"type":"ERROR","object":{"kind":"Status","code":500,"reason":"InternalError"}}"#;
    assert_eq!(shown(line), "error 500 InternalError false");
    assert_eq!(shown(r#"{"type":"ERROR","object":{"kind":"Pod"}}"#), "error 0  false");
}

#[test]
fn object_of_a_line_that_is_not_json_is_found() {
    let line = b"{\"type\":\"ADDED\",\"object\":{\"metadata\":{\"name\":\"a\"},\"b\":\"\xff\"}}";
    let Ok(WatchLine::Object(WatchEventType::Added, object)) = read_watch_line(line) else {
        panic!("not found")
    };
    assert_eq!(object.problem(), Some(&BodyError::InvalidUtf8 { at: 30 }));
    assert!(object.bytes().starts_with(b"{\"metadata\"") && object.bytes().ends_with(b"\"}"));
}

#[test]
fn line_that_is_no_event_is_an_error() {
    let malformed = |what: &str| format!("a line of the watch is no event: it lacks {what}, or is not JSON");
    for line in ["", "null", "[]", "<html>", "{}", r#"{"object":{}}"#, r#"{"type":5,"object":{}}"#] {
        assert_eq!(shown(line), malformed("type"), "{line}");
    }
    for line in [r#"{"type":"ADDED"}"#, r#"{"type":"ADDED","object":"#, r#"{"type":"ADDED","object":{"a":"#] {
        assert_eq!(shown(line), malformed("object"), "{line}");
    }
    assert_eq!(
        shown(r#"{"type":"X\u0000","object":{}}"#),
        r#"a line of the watch has the unknown type "X\0""#
    );
    assert_eq!(
        shown(r#"{"type":"ADDED","type":"ADDED","object":{}}"#),
        r#"a line of the watch has "type" twice"#
    );
    assert_eq!(
        shown(r#"{"type":"ADDED","object":{},"object":{}}"#),
        r#"a line of the watch has "object" twice"#
    );
}
