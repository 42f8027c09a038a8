//! How bodies are sent, and when they are not.

use kubesvc_core::wire::events::event::Omitted;
use prost::Message as _;
use sha2::{Digest as _, Sha256};
use zstd::zstd_safe;

use super::*;

fn object_of(size: usize, seed: u64) -> String {
    let mut random = fastrand::Rng::with_seed(seed);
    let noise: String = std::iter::repeat_with(|| random.alphanumeric()).take(size).collect();
    format!(
        r#"{{"kind":"Pod","apiVersion":"v1","metadata":{{"name":"web","resourceVersion":"7"}},"spec":"{noise}"}}"#
    )
}

fn scrub_with(encoder: &mut BodyEncoder, object: &str) -> ScrubbedEvent {
    let object = RawObject::read(object.as_bytes());
    event(Scrubber::new(pods()).scrub(&object, 7, Operation::Upsert, encoder))
}

fn blob(event: &Event) -> &Blob {
    let Some(Body::Blob(blob)) = &event.body else { panic!("no body") };
    blob
}

#[test]
fn body_is_compressed_from_1_kib_if_the_hub_takes_it() {
    let large = format!(
        r#"{{"kind":"Pod","apiVersion":"v1","metadata":{{"name":"web","resourceVersion":"7"}},"a":"{}"}}"#,
        "x".repeat(1000)
    );
    let small = object_of(100, 1);
    let mut zstd = encoder(true);
    let compressed = scrub_with(&mut zstd, &large).event;
    assert_eq!(blob(&compressed).encoding(), blob::Encoding::Zstd);
    assert_eq!(zstd_safe::get_frame_content_size(&blob(&compressed).data).unwrap(), Some(large.len() as u64));
    assert_eq!(body(&compressed), large);
    assert_eq!(blob(&scrub_with(&mut zstd, &small).event).encoding(), blob::Encoding::Raw);
    let raw = scrub_with(&mut raw_encoder(), &large).event;
    assert_eq!((blob(&raw).encoding(), body(&raw)), (blob::Encoding::Raw, large));
    assert_eq!(raw.hash, compressed.hash);
}

#[test]
fn body_is_compressed_only_if_that_makes_it_smaller() {
    // Random bytes as text in UTF-8 that hardly compresses.
    let mut random = fastrand::Rng::with_seed(3);
    let noise: String = std::iter::repeat_with(|| random.char('\u{4e00}'..'\u{9fff}')).take(400).collect();
    let object = format!(r#"{{"metadata":{{"name":"web","resourceVersion":"7"}},"a":"{noise}"}}"#);
    let event = scrub_with(&mut encoder(true), &object).event;
    assert!(blob(&event).data.len() <= usize::try_from(blob(&event).size).unwrap());
    assert!(body(&event).ends_with(&format!("{noise}\"}}")));
}

#[test]
fn encoder_serves_objects_of_all_sizes_in_turn() {
    let mut zstd = encoder(true);
    for size in [10, 100_000, 2000, 1_000_000, 1024, 3] {
        let object = object_of(size, size as u64);
        assert_eq!(body(&scrub_with(&mut zstd, &object).event), object);
    }
}

#[test]
fn body_above_8_mib_is_left_out_and_named() {
    let object = format!(
        r#"{{"metadata":{{"name":"web","namespace":"shop","resourceVersion":"7"}},"a":"{}"}}"#,
        "x".repeat(MAX_BODY_BYTES)
    );
    let scrubbed = scrub_with(&mut encoder(true), &object);
    assert_eq!(scrubbed.event.body, Some(Body::Omitted(Omitted::TooLarge.into())));
    assert_eq!(scrubbed.event.hash, Sha256::digest([]).to_vec());
    let omitted = scrubbed.omitted.unwrap();
    assert_eq!(omitted.to_string(), "the body of Pod \"web\" in namespace \"shop\" is left out");
    let size = r#"{"kind":"Pod","apiVersion":"v1","#.len() - 1 + object.len();
    assert_eq!(omitted.why, OmissionReason::TooLarge { size, max_event: 3_670_016 });
}

#[test]
fn size_counts_without_what_is_cut() {
    let fields = "x".repeat(MAX_BODY_BYTES);
    let object =
        format!(r#"{{"metadata":{{"name":"web","resourceVersion":"7","managedFields":"{fields}"}}}}"#);
    assert!(body(&scrub_with(&mut raw_encoder(), &object).event).len() < 100);
}

#[test]
fn event_above_the_size_of_a_message_is_left_out() {
    let object = object_of(6_000_000, 5);
    for zstd in [false, true] {
        let scrubbed = scrub_with(&mut encoder(zstd), &object);
        assert_eq!(scrubbed.event.body, Some(Body::Omitted(Omitted::TooLarge.into())), "zstd: {zstd}");
    }
    // Compressed, as many bytes pass.
    let object = object.replace(|byte: char| byte.is_ascii_digit(), "x");
    let small = format!("{}{}", &object[..200], "\"}".to_owned());
    assert!(scrub_with(&mut encoder(true), &small).omitted.is_none());
    let mut narrow = BodyEncoder::new(BodyLimits { zstd: false, max_event_bytes: 300 }).unwrap();
    assert!(scrub_with(&mut narrow, &object_of(100, 1)).omitted.is_none());
    assert!(scrub_with(&mut narrow, &object_of(290, 1)).omitted.is_some());
}

#[test]
fn labels_go_if_not_even_they_fit() {
    let object = format!(
        r#"{{"metadata":{{"name":"web","resourceVersion":"7","labels":{{"a":"{}"}}}}}}"#,
        "x".repeat(1000)
    );
    let rules = ObjectRules { meta_keys: ["a".to_owned()].into(), ..pods() };
    let mut narrow = BodyEncoder::new(BodyLimits { zstd: false, max_event_bytes: 300 }).unwrap();
    let object = RawObject::read(object.as_bytes());
    let scrubbed = event(Scrubber::new(rules).scrub(&object, 7, Operation::Upsert, &mut narrow));
    assert_eq!((scrubbed.event.meta.len(), scrubbed.event.name.as_str()), (0, "web"));
    assert!(scrubbed.event.encoded_len() <= 300);
}

#[test]
fn many_owners_and_labels_are_bounded() {
    let owners = [r#"{"kind":"A","name":"b"}"#; 1001].join(",");
    let object =
        format!(r#"{{"metadata":{{"name":"web","resourceVersion":"7","ownerReferences":[{owners}]}}}}"#);
    let scrubbed = scrub_with(&mut raw_encoder(), &object);
    assert_eq!(
        scrubbed.omitted.unwrap().why,
        OmissionReason::Unparsable(BodyError::TooManyOwners { max: 1000 })
    );
    let labels: Vec<String> = (0..20_000).map(|index| format!("\"k{index}\":\"\"")).collect();
    let object =
        format!(r#"{{"metadata":{{"name":"web","resourceVersion":"7","labels":{{{}}}}}}}"#, labels.join(","));
    let rules = ObjectRules { meta_keys: ["k".to_owned()].into(), ..pods() };
    let scrubbed = event(scrub(rules, object));
    assert_eq!(scrubbed.event.meta.len(), 0);
    assert_eq!(
        scrubbed.omitted.unwrap().why,
        OmissionReason::Unparsable(BodyError::TooMuchMeta { max: 512 * 1024 })
    );
}

#[test]
fn unparsable_body_leaves_the_identity() {
    let scrubbed = event(scrub(
        pods(),
        r#"{"metadata":{"name":"web","namespace":"shop","resourceVersion":"7"},"a":tru}"#,
    ));
    assert_eq!(scrubbed.event.body, Some(Body::Omitted(Omitted::Unparsable.into())));
    assert_eq!((scrubbed.event.name.as_str(), scrubbed.event.rv.as_str()), ("web", "7"));
    assert_eq!(scrubbed.event.hash, Sha256::digest([]).to_vec());
}

#[test]
fn nesting_at_the_limit_passes_and_one_level_more_does_not() {
    let nested = |depth: usize| {
        format!(
            r#"{{"metadata":{{"name":"web","resourceVersion":"7"}},"a":{}{}}}"#,
            "[".repeat(depth - 1),
            "]".repeat(depth - 1)
        )
    };
    assert!(scrub_with(&mut raw_encoder(), &nested(MAX_DEPTH)).omitted.is_none());
    let why = scrub_with(&mut raw_encoder(), &nested(MAX_DEPTH + 1)).omitted.unwrap().why;
    assert_eq!(why, OmissionReason::Unparsable(BodyError::TooDeep { depth: MAX_DEPTH + 1, max: MAX_DEPTH }));
    // Nothing recurses.
    assert!(scrub_with(&mut raw_encoder(), &nested(1_000_000)).omitted.is_some());
}

#[test]
fn number_at_the_limit_passes_and_one_digit_more_does_not() {
    let object = |digits: usize| {
        format!(r#"{{"metadata":{{"name":"web","resourceVersion":"7"}},"a":[{}]}}"#, "9".repeat(digits))
    };
    assert!(scrub_with(&mut raw_encoder(), &object(MAX_NUMBER_BYTES)).omitted.is_none());
    let why = scrub_with(&mut raw_encoder(), &object(MAX_NUMBER_BYTES + 1)).omitted.unwrap().why;
    let expected = BodyError::NumberTooLong { length: MAX_NUMBER_BYTES + 1, max: MAX_NUMBER_BYTES };
    assert_eq!(why, OmissionReason::Unparsable(expected));
}

#[test]
fn debug_shows_no_body() {
    let object = RawObject::read(br#"{"metadata":{"name":"web","resourceVersion":"7"},"data":"CANARY"}"#);
    let scrubber = Scrubber::new(pods());
    let inspected = scrubber.inspect(&object, Operation::Upsert);
    assert!(!format!("{object:?}{inspected:?}").contains("CANARY"));
}
