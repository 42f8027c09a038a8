//! Random lists and objects against a reader that makes trees of them, and random bytes against everything.

use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::*;

/// Text with what matters to a splitter.
fn text() -> impl Strategy<Value = String> {
    prop_oneof!["[a-z]{0,8}", "[\\[\\]{}\",:\\\\ \u{e9}\u{1f600}\n\u{0}]{0,8}", "items|metadata|data|schema"]
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        // Exact in binary, so that it is read as it was written.
        any::<i32>().prop_map(|number| Value::from(f64::from(number) / 8.0)),
        text().prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 24, 5, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::vec((text(), inner), 0..5)
                .prop_map(|members| Value::from(Map::from_iter(members))),
        ]
    })
}

fn object() -> impl Strategy<Value = Value> {
    prop::collection::vec((text(), value()), 0..5).prop_map(|members| Value::from(Map::from_iter(members)))
}

fn written(value: &Value, is_pretty: bool) -> String {
    if is_pretty { format!("{value:#}") } else { value.to_string() }
}

/// An object with metadata, some of which is cut.
fn kubernetes_object() -> impl Strategy<Value = Value> {
    let extra = prop::collection::vec(
        (prop::sample::select(vec!["managedFields", "selfLink", "generation", "labels", "zeta"]), object()),
        0..5,
    );
    let annotations = prop::collection::vec(
        (prop_oneof![Just(LAST_APPLIED_ANNOTATION.to_owned()), "[a-z]{1,4}"], "[a-z{}\"\\\\]{0,9}"),
        0..4,
    );
    let members = prop::collection::vec((prop_oneof!["data|stringData|spec|status", text()], value()), 0..5);
    ("[a-z]{1,9}", "[0-9]{1,9}", extra, annotations, members).prop_map(
        |(name, version, extra, annotations, members)| {
            let mut metadata = Map::from_iter(extra.into_iter().map(|(key, value)| (key.to_owned(), value)));
            let annotations = annotations.into_iter().map(|(key, value)| (key, Value::from(value)));
            metadata.insert("annotations".to_owned(), Value::from(Map::from_iter(annotations)));
            metadata.insert("name".to_owned(), name.into());
            metadata.insert("resourceVersion".to_owned(), version.into());
            // Labels are text.
            metadata.remove("labels");
            let mut object = Map::from_iter(members);
            for key in ["kind", "apiVersion"] {
                object.remove(key);
            }
            object.insert("metadata".to_owned(), metadata.into());
            Value::from(object)
        },
    )
}

/// What should be left of an object.
fn expected(mut object: Value, is_secret: bool) -> Value {
    let metadata = object["metadata"].as_object_mut().unwrap();
    metadata.remove("managedFields");
    metadata.remove("selfLink");
    let annotations = metadata["annotations"].as_object_mut().unwrap();
    annotations.remove(LAST_APPLIED_ANNOTATION);
    if is_secret {
        // None of these keys has a prefix that is kept.
        annotations.clear();
    }
    let members = object.as_object_mut().unwrap();
    if is_secret {
        members.retain(|key, _| key == "metadata");
    }
    members.insert("kind".to_owned(), if is_secret { "Secret" } else { "Pod" }.into());
    members.insert("apiVersion".to_owned(), "v1".into());
    object
}

/// Bytes that look like JSON.
fn rubble() -> impl Strategy<Value = Vec<u8>> {
    let token = prop::sample::select(vec![
        "{",
        "}",
        "[",
        "]",
        ",",
        ":",
        "\"",
        "\\",
        " ",
        "\n",
        "null",
        "1",
        "-",
        "\"items\"",
        "\"metadata\"",
        "\"name\"",
        "\"resourceVersion\"",
        "\"a\"",
        "\"kind\"",
        "\"Status\"",
        "\"type\"",
        "\"object\"",
        "\"ADDED\"",
        "\"BOOKMARK\"",
        "\\u0061",
        "\u{e9}",
        "\"ownerReferences\"",
        "\"annotations\"",
        "\"spec\"",
        "\"versions\"",
    ]);
    prop_oneof![
        prop::collection::vec(token, 0..40).prop_map(|tokens| tokens.concat().into_bytes()),
        prop::collection::vec(any::<u8>(), 0..40),
    ]
}

proptest! {
    #[test]
    fn items_are_those_of_the_list_in_any_chunks(
        items in prop::collection::vec(object(), 0..5),
        is_first in any::<bool>(),
        is_pretty in any::<bool>(),
        extra in value(),
        cuts in prop::collection::vec(1..30usize, 0..60),
        end in any::<prop::sample::Index>(),
    ) {
        let metadata = format!(r#""metadata":{}"#, written(&json!({"resourceVersion": "9", "x": extra}), is_pretty));
        let listed = format!(r#""items":{}"#, written(&Value::from(items.clone()), is_pretty));
        let members = if is_first { [listed, metadata] } else { [metadata, listed] };
        let list = format!(r#"{{"x":{},{}}}"#, written(&extra, is_pretty), members.join(","));
        let (split, page) = split_items(ItemSplitter::default(), cut(list.as_bytes(), &cuts));
        let split: Vec<Value> = split.iter().map(|item| serde_json::from_slice(item).unwrap()).collect();
        prop_assert_eq!(&split, &items);
        prop_assert_eq!(page.unwrap().items, items.len() as u64);

        let end = end.index(list.len());
        let (early, page) = split_items(ItemSplitter::default(), cut(&list.as_bytes()[..end], &cuts));
        prop_assert_eq!(page, Err(ListError::Truncated { items: early.len() as u64 }));
    }

    #[test]
    fn body_is_the_tree_without_what_is_cut(
        object in kubernetes_object(), is_pretty in any::<bool>(), is_secret in any::<bool>(),
    ) {
        let rules = if is_secret { secrets() } else { pods() };
        let event = scrubbed_event(rules, written(&object, is_pretty));
        let body: Value = serde_json::from_str(&body(&event)).unwrap();
        prop_assert_eq!(body, expected(object, is_secret));
    }

    #[test]
    fn hash_changes_only_with_what_is_left(
        one in kubernetes_object(), other in kubernetes_object(), version in "[0-9]{1,5}",
    ) {
        let hash = |object: &Value| scrubbed_event(pods(), object.to_string()).hash;
        let mut later = one.clone();
        later["metadata"]["resourceVersion"] = version.into();
        later["metadata"]["managedFields"] = json!([{"manager": "x"}]);
        prop_assert_eq!(hash(&later), hash(&one));
        let without_version = |object: &Value| {
            let mut object = expected(object.clone(), false);
            object["metadata"]["resourceVersion"] = Value::Null;
            object
        };
        prop_assert_eq!(hash(&one) == hash(&other), without_version(&one) == without_version(&other));
    }

    #[test]
    fn compressed_body_is_the_same(object in kubernetes_object(), repeats in 1..60usize) {
        let mut object = object;
        object["spec"] = Value::from(vec![object.clone(); repeats]);
        let text = object.to_string();
        let raw = RawObject::read(text.as_bytes());
        let scrubber = Scrubber::new(pods());
        let [plain, compressed] = [false, true].map(|zstd| {
            event(scrubber.scrub(&raw, 1, Operation::Upsert, &mut encoder(zstd))).event
        });
        prop_assert_eq!(body(&plain), body(&compressed));
        prop_assert_eq!(plain.hash, compressed.hash);
    }

    #[test]
    fn no_bytes_panic_and_chunks_make_no_difference(bytes in rubble(), size in 1..8usize) {
        let whole = split_items(ItemSplitter::with_max(64), chunks(&bytes, bytes.len()));
        prop_assert_eq!(&split_items(ItemSplitter::with_max(64), chunks(&bytes, size)), &whole);
        for line in [&bytes[..], &[b"{\"type\":\"ADDED\",\"object\":", &bytes[..], b"}"].concat()] {
            if let Ok(WatchLine::Object(_, object)) = read_watch_line(line) {
                let rules = ObjectRules { meta_keys: Arc::from([String::new()]), is_crd: true, ..pods() };
                let result = Scrubber::new(rules).scrub(&object, 1, Operation::Upsert, &mut raw_encoder());
                if let Scrubbed::Event(scrubbed) = &result && scrubbed.omitted.is_none() {
                    let json: Result<Value, _> = serde_json::from_str(&body(&scrubbed.event));
                    prop_assert!(json.is_ok() || object.problem().is_none());
                }
            }
        }
        let _ = ClusterStatus::read(&bytes);
    }

    #[test]
    fn named_rubble_never_leaks_and_is_json(middle in rubble()) {
        let head = br#"{"metadata":{"name":"web","resourceVersion":"7"},"#;
        let bytes = [&head[..], &middle, b"}"].concat();
        let result = scrub(secrets(), &bytes);
        if let Scrubbed::Event(scrubbed) = &result && scrubbed.omitted.is_none() {
            let body: Value = serde_json::from_str(&body(&scrubbed.event)).unwrap();
            let known = ["kind", "apiVersion", "metadata"];
            prop_assert!(body.as_object().unwrap().keys().all(|key| known.contains(&key.as_str())));
        }
    }
}
