//! Random mutations of the corpus: for splitters and scrubber, what a fuzzer does that knows no coverage. It needs no
//! compiler of its own, so every run of the tests has some, and `make fuzz` as many as fit into its time.
//!
//! `KUBESVC_SEED` repeats a run, `KUBESVC_FUZZ_SECONDS` sets the time of each target. A failure prints the input: it
//! belongs into the corpus.

use std::panic::AssertUnwindSafe;
use std::time::{Duration, Instant};

use fastrand::Rng;
use serde_json::Value;

use super::corpus::files;
use super::*;

/// Number of inputs of each target in every run of the tests.
const INPUTS: usize = 4_000;
/// Time of each target in `make fuzz`, in seconds.
const LONG_RUN_SECONDS: u64 = 60;
/// Maximum size of an input, in bytes.
const MAX_INPUT: usize = 4_096;
/// Texts on which the code decides.
const TOKENS: [&str; 27] = [
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "\"",
    "\\",
    "\n",
    "\r\n",
    "null",
    "\\u0061",
    "\\ud800",
    "\u{0}",
    "1e999",
    "\"items\"",
    "\"metadata\"",
    "\"data\"",
    "\"d\\u0061ta\"",
    "\"stringData\"",
    "\"name\"",
    "\"resourceVersion\"",
    "\"annotations\"",
    "\"managedFields\"",
    "\"type\"",
    "\"object\"",
    "\"kubectl.kubernetes.io/last-applied-configuration\"",
];

/// When a run ends.
#[derive(Clone, Copy)]
enum Limit {
    Inputs(usize),
    Time(Duration),
}

fn from_environment(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Gives mutations of the files of a folder to a target.
fn run(folder: &str, limit: Limit, target: fn(&[u8], &mut Rng)) {
    let seed = from_environment("KUBESVC_SEED").unwrap_or_else(|| fastrand::u64(..1_000_000));
    let mut random = Rng::with_seed(seed);
    let corpus: Vec<Vec<u8>> = files(folder).into_values().collect();
    let (begun, mut inputs) = (Instant::now(), 0_usize);
    let goes_on = |inputs: usize| match limit {
        Limit::Inputs(most) => inputs < most,
        Limit::Time(most) => begun.elapsed() < most,
    };
    while goes_on(inputs) {
        let mut input = corpus[random.usize(0..corpus.len())].clone();
        for _ in 0..random.usize(1..8) {
            mutate(&mut input, &corpus, &mut random);
        }
        input.truncate(MAX_INPUT);
        let mut chances = random.fork();
        let result = std::panic::catch_unwind(AssertUnwindSafe(|| target(&input, &mut chances)));
        assert!(
            result.is_ok(),
            "KUBESVC_SEED={seed}, input {inputs} of {folder}: {}",
            String::from_utf8_lossy(&input)
        );
        inputs += 1;
    }
    eprintln!("{folder}: {inputs} inputs, KUBESVC_SEED={seed}, {:.1} s", begun.elapsed().as_secs_f64());
}

fn range(length: usize, random: &mut Rng) -> std::ops::Range<usize> {
    let start = random.usize(0..=length);
    start..random.usize(start..=length.min(start + 64))
}

/// Changes a few bytes.
fn mutate(input: &mut Vec<u8>, corpus: &[Vec<u8>], random: &mut Rng) {
    let at = range(input.len(), random);
    match random.u8(0..7) {
        0 => drop(input.drain(at)),
        1 => {
            let copy = input[at.clone()].to_vec();
            drop(input.splice(at.end..at.end, copy));
        }
        2 | 3 => {
            let token = TOKENS[random.usize(0..TOKENS.len())].as_bytes();
            drop(input.splice(at.start..at.start, token.iter().copied()));
        }
        4 => {
            let other = &corpus[random.usize(0..corpus.len())];
            let part = other[range(other.len(), random)].to_vec();
            drop(input.splice(at, part));
        }
        5 => input.truncate(at.start.max(1)),
        _ => {
            if let Some(byte) = input.get_mut(at.start) {
                *byte = random.u8(..);
            }
        }
    }
}

/// Chunks of random sizes.
fn random_chunks(input: &[u8], random: &mut Rng) -> Vec<Bytes> {
    let cuts: Vec<usize> = std::iter::repeat_with(|| random.usize(0..40)).take(200).collect();
    cut(input, &cuts)
}

/// Lines are the same whatever the chunks, and their events can be read or refused.
fn lines(input: &[u8], random: &mut Rng) {
    let whole = split_lines(LineSplitter::default(), chunks(input, input.len())).unwrap();
    assert_eq!(split_lines(LineSplitter::default(), random_chunks(input, random)).unwrap(), whole);
    for line in whole.0 {
        assert!(!line.contains(&b'\n'));
        if let Ok(WatchLine::Object(_, object)) = read_watch_line(&line) {
            let _ = Scrubber::new(pods()).scrub(&object, 1, Operation::Upsert, &mut raw_encoder());
        }
    }
}

/// Items are the same whatever the chunks, and those of a tree if the list is one.
fn items(input: &[u8], random: &mut Rng) {
    let whole = split_items(ItemSplitter::default(), chunks(input, input.len()));
    assert_eq!(split_items(ItemSplitter::default(), random_chunks(input, random)), whole);
    let (items, page) = whole;
    let tree: Result<Value, _> = serde_json::from_slice(input);
    if let (Ok(page), Ok(tree)) = (page, tree) {
        let expected = tree["items"].as_array().cloned().unwrap_or_default();
        let items: Vec<Value> = items.iter().map(|item| serde_json::from_slice(item).unwrap()).collect();
        assert_eq!(items, expected);
        assert_eq!(page.items, expected.len() as u64);
        assert_eq!(tree["metadata"]["resourceVersion"], page.resource_version);
    }
}

/// What is left of an object once the parts are cut that no row has.
fn without_cut_parts(tree: &mut Value, rules: &ObjectRules) {
    let is_secret = rules.is_secret;
    let Some(members) = tree.as_object_mut() else { return };
    members.retain(|key, _| key == "metadata" || !(is_secret || key == "apiVersion" || key == "kind"));
    let Some(metadata) = members.get_mut("metadata").and_then(Value::as_object_mut) else { return };
    metadata.remove("managedFields");
    metadata.remove("selfLink");
    if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
        annotations.retain(|key, value| !rules.cuts_annotation(key, value.as_str().map(str::len)));
    }
}

/// The body of an object is its tree without what is cut.
fn object(input: &[u8], random: &mut Rng) {
    let is_secret = random.bool();
    let rules = if is_secret { secrets() } else { pods() };
    let Scrubbed::Event(scrubbed) = scrub(rules.clone(), input) else { return };
    if scrubbed.omitted.is_some() {
        return;
    }
    let Ok(mut expected) = serde_json::from_slice::<Value>(input) else { return };
    let body = body(&scrubbed.event);
    let mut body: Value = serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error}: {body}"));
    without_cut_parts(&mut body, &rules);
    without_cut_parts(&mut expected, &rules);
    assert_eq!(body, expected);
}

#[test]
fn mutated_watches_are_split_and_read_without_panic() {
    run("watches", Limit::Inputs(INPUTS), lines);
}

#[test]
fn mutated_lists_are_split_as_trees_are() {
    run("lists", Limit::Inputs(INPUTS), items);
}

#[test]
fn mutated_objects_are_cut_as_trees_are() {
    run("objects", Limit::Inputs(INPUTS), object);
}

#[test]
#[ignore = "three minutes: make fuzz"]
fn mutations_of_the_whole_corpus_for_as_long_as_asked() {
    let time = from_environment("KUBESVC_FUZZ_SECONDS").unwrap_or(LONG_RUN_SECONDS);
    let limit = Limit::Time(Duration::from_secs(time));
    run("watches", limit, lines);
    run("lists", limit, items);
    run("objects", limit, object);
}
