//! Lines of a watch, in whatever chunks they arrive.

use proptest::prelude::*;

use super::*;

fn texts(lines: &[Bytes]) -> Vec<&str> {
    lines.iter().map(|line| std::str::from_utf8(line).unwrap()).collect()
}

#[test]
fn line_within_a_chunk_is_not_copied() {
    let chunk = Bytes::from_static(b"one\ntwo\nthr");
    let mut splitter = LineSplitter::default();
    splitter.push(chunk.clone());
    let line = splitter.next_line().unwrap().unwrap();
    assert_eq!(line.as_ptr(), chunk.as_ptr());
    assert_eq!(splitter.next_line().unwrap().unwrap(), "two");
    assert_eq!(splitter.next_line().unwrap(), None);
    assert_eq!(splitter.pending_bytes(), 3);
}

#[test]
fn last_line_without_newline_is_reported_and_discarded() {
    let (lines, rest) = split_lines(LineSplitter::default(), chunks(b"one\ntwo", 2)).unwrap();
    assert_eq!(texts(&lines), ["one"]);
    assert_eq!(rest, 3);
    assert_eq!(split_lines(LineSplitter::default(), chunks(b"one\n", 2)).unwrap().1, 0);
    assert_eq!(split_lines(LineSplitter::default(), Vec::new()).unwrap().1, 0);
}

#[test]
fn blank_lines_are_skipped() {
    let (lines, rest) = split_lines(LineSplitter::default(), chunks(b"\n\r\none\r\n  \ntwo\n", 3)).unwrap();
    assert_eq!(texts(&lines), ["one\r", "two"]);
    assert_eq!(rest, 0);
}

#[test]
fn chunks_pushed_at_once_are_split_in_order() {
    let mut splitter = LineSplitter::default();
    splitter.push(Bytes::from_static(b"one\ntw"));
    splitter.push(Bytes::from_static(b"o\n"));
    assert_eq!(splitter.next_line().unwrap().unwrap(), "one");
    assert_eq!(splitter.next_line().unwrap().unwrap(), "two");
}

#[test]
fn line_of_the_maximum_length_passes_and_a_longer_one_fails_for_good() {
    for size in [1, 4, 100] {
        let (lines, _) = split_lines(LineSplitter::with_max(8), chunks(b"12345678\n", size)).unwrap();
        assert_eq!(texts(&lines), ["12345678"]);
        let mut splitter = LineSplitter::with_max(8);
        let mut failed = None;
        for chunk in chunks(b"123456789\nshort\n", size) {
            splitter.push(chunk);
            failed = splitter.next_line().err().or(failed);
        }
        assert_eq!(failed, Some(LineTooLong { max: 8 }), "chunks of {size}");
        assert_eq!(splitter.next_line(), Err(LineTooLong { max: 8 }));
        assert_eq!(splitter.pending_bytes(), 0);
    }
}

#[test]
fn line_of_20_mib_needs_no_more_memory_than_the_maximum() {
    let mut splitter = LineSplitter::default();
    let chunk = Bytes::from(vec![b'x'; 64 * 1024]);
    let failed = (0..20 * 16).find_map(|_| {
        splitter.push(chunk.clone());
        assert!(splitter.pending_bytes() <= MAX_LINE_BYTES);
        splitter.next_line().err()
    });
    assert_eq!(failed, Some(LineTooLong { max: MAX_LINE_BYTES }));
}

proptest! {
    #[test]
    fn chunks_make_no_difference(text in "[a{}\"\\n\\r ]{0,40}", cuts in prop::collection::vec(1..9usize, 0..40)) {
        let (lines, incomplete) = split_lines(LineSplitter::default(), cut(text.as_bytes(), &cuts)).unwrap();
        let (whole, last) = text.rsplit_once('\n').unwrap_or(("", &text));
        let expected: Vec<&str> = whole.split('\n').filter(|line| !line.trim_ascii().is_empty()).collect();
        prop_assert_eq!(texts(&lines), expected);
        prop_assert_eq!(incomplete, last.len());
    }
}
