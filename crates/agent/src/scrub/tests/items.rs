//! Items of a list, in whatever chunks they arrive.

use super::*;

const LIST: &str = r#"{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"9","continue":"t"},"items":[{"a":"}]"},{"b":[{}]}]}"#;

#[test]
fn item_within_a_chunk_is_not_copied() {
    let chunk = Bytes::from_static(LIST.as_bytes());
    let mut splitter = ItemSplitter::default();
    splitter.push(chunk.clone());
    let item = splitter.next_item().unwrap().unwrap();
    assert!(chunk.as_ptr_range().contains(&item.as_ptr()));
    assert_eq!(item, r#"{"a":"}]"}"#);
}

#[test]
fn page_has_version_token_and_kind() {
    for size in 1..LIST.len() {
        let (items, page) = split_items(ItemSplitter::default(), chunks(LIST.as_bytes(), size));
        assert_eq!(items, [r#"{"a":"}]"}"#, r#"{"b":[{}]}"#], "chunks of {size}");
        let expected = ListPage {
            api_version: "v1".to_owned(),
            kind: "PodList".to_owned(),
            resource_version: "9".to_owned(),
            continue_token: Some("t".to_owned()),
            items: 2,
        };
        assert_eq!(page, Ok(expected));
    }
}

#[test]
fn list_that_ends_early_is_an_error_wherever_it_ends() {
    for end in 0..LIST.len() {
        let (items, page) = split_items(ItemSplitter::default(), chunks(&LIST.as_bytes()[..end], 7));
        assert_eq!(page, Err(ListError::Truncated { items: items.len() as u64 }), "ends at {end}");
    }
}

#[test]
fn item_of_the_maximum_size_passes_and_a_larger_one_fails() {
    let list = |size: usize| {
        let item = format!("{{\"a\":\"{}\"}}", "x".repeat(size - 8));
        format!("{{\"metadata\":{{\"resourceVersion\":\"1\"}},\"items\":[{item}]}}")
    };
    for size in [3, 1000] {
        let (items, page) = split_items(ItemSplitter::with_max(64), chunks(list(64).as_bytes(), size));
        assert_eq!((items.len(), page.is_ok()), (1, true), "chunks of {size}");
        let (items, page) = split_items(ItemSplitter::with_max(64), chunks(list(65).as_bytes(), size));
        assert_eq!((items.len(), page), (0, Err(ListError::ItemTooLarge { max: 64 })), "chunks of {size}");
    }
}

#[test]
fn memory_is_one_item_at_most() {
    let item = format!("{{\"a\":\"{}\"}}", "x".repeat(4000));
    let list = format!(
        "{{\"items\":[{}],\"metadata\":{{\"resourceVersion\":\"1\"}}}}",
        [&item; 50].map(String::as_str).join(",")
    );
    let mut splitter = ItemSplitter::default();
    let mut items = 0;
    for chunk in chunks(list.as_bytes(), 512) {
        splitter.push(chunk);
        while splitter.next_item().unwrap().is_some() {
            items += 1;
        }
        assert!(splitter.pending_bytes() <= item.len() + 64);
    }
    assert_eq!((items, splitter.finish().unwrap().items), (50, 50));
}

#[test]
fn members_that_nobody_reads_take_no_memory() {
    let list = format!(
        "{{\"x\":\"{0}\",\"y\":[{{\"{0}\":1}}],\"metadata\":{{\"resourceVersion\":\"1\"}},\"items\":[]}}",
        "z".repeat(1024 * 1024)
    );
    let mut splitter = ItemSplitter::default();
    for chunk in chunks(list.as_bytes(), 4096) {
        splitter.push(chunk);
        assert_eq!(splitter.next_item(), Ok(None));
        assert!(splitter.pending_bytes() < 1024);
    }
    assert!(splitter.finish().is_ok());
}

#[test]
fn metadata_that_does_not_end_is_an_error() {
    let list = format!("{{\"metadata\":{{\"a\":\"{}", "z".repeat(1024 * 1024));
    let (_, page) = split_items(ItemSplitter::default(), chunks(list.as_bytes(), 4096));
    assert_eq!(page, Err(ListError::HeadTooLarge { max: 256 * 1024 }));
}

#[test]
fn status_in_place_of_a_list_is_read() {
    let status = br#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"too\u0000 old","reason":"Expired","details":{"retryAfterSeconds":3},"code":410}"#;
    let expected = ClusterStatus {
        code: 410,
        reason: "Expired".to_owned(),
        message: "too old".to_owned(),
        retry_after: Some(std::time::Duration::from_secs(3)),
    };
    let (items, page) = split_items(ItemSplitter::default(), chunks(status, 5));
    assert_eq!((items.len(), page), (0, Err(ListError::Status(expected.clone()))));
    assert_eq!(ClusterStatus::read(status), Some(expected));
    assert_eq!(ClusterStatus::read(b"{\"kind\":\"Pod\"}"), None);
    assert_eq!(ClusterStatus::read(b"<html>"), None);
}
