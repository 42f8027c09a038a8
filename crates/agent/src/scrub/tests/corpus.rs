//! The files of `corpus/`: what comes of each, whatever the chunks.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use kubesvc_core::wire::events::event::Operation;

use super::*;

/// Name and content of each file of a folder.
pub(super) fn files(folder: &str) -> BTreeMap<String, Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(folder);
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries
        .map(|path| (path.file_name().unwrap().to_str().unwrap().to_owned(), fs::read(path).unwrap()))
        .collect()
}

/// Compares what came of each file with the table of the folder, whose lines are `file: outcome`. To write a line for a
/// new file, copy it from the message of the failure, and think about whether it is right.
fn compare(folder: &str, outcomes: &BTreeMap<String, String>) {
    let outcomes: Vec<String> = outcomes.iter().map(|(file, outcome)| format!("{file}: {outcome}")).collect();
    let table = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(format!("{folder}.txt"));
    let table = fs::read_to_string(table).unwrap();
    let table: Vec<&str> = table.lines().collect();
    assert!(outcomes == table, "{folder}:\n{}", outcomes.join("\n"));
}

fn rules() -> ObjectRules {
    ObjectRules { meta_keys: ["moniker.spinnaker.io/".to_owned(), "kubectl".to_owned()].into(), ..secrets() }
}

/// What comes of an object; shortened, and shown on one line.
fn object_outcome(object: &RawObject<'_>) -> String {
    let scrubbed = Scrubber::new(rules()).scrub(object, 1, Operation::Upsert, &mut raw_encoder());
    assert!(!format!("{scrubbed:?}").contains("CANARY"));
    let outcome = outcome(&scrubbed);
    assert!(!outcome.contains("CANARY"), "{outcome}");
    let outcome = outcome.replace("nnnnnnnnnn", "").replace("ssssssssss", "").replace('\n', " ");
    outcome
        .replace("an object of kind Secret with the name", "an object")
        .replace("cannot be identified; it is left out", "x")
}

#[test]
fn objects() {
    let outcomes =
        files("objects").into_iter().map(|(file, bytes)| (file, object_outcome(&RawObject::read(&bytes))));
    compare("objects", &outcomes.collect());
}

#[test]
fn lists() {
    let mut outcomes = BTreeMap::new();
    for (file, bytes) in files("lists") {
        let whole = split_items(ItemSplitter::default(), chunks(&bytes, bytes.len()));
        for size in 1..bytes.len().min(70) {
            assert_eq!(
                split_items(ItemSplitter::default(), chunks(&bytes, size)),
                whole,
                "{file} in chunks of {size}"
            );
        }
        let (items, page) = whole;
        let page = match page {
            Ok(page) => format!(
                "{} {} {} {:?}",
                page.api_version, page.kind, page.resource_version, page.continue_token
            ),
            Err(error) => error.to_string(),
        };
        let items: Vec<_> = items.iter().map(|item| String::from_utf8_lossy(item)).collect();
        outcomes.insert(file, format!("{page} | {}", items.join(" ")));
    }
    compare("lists", &outcomes);
}

#[test]
fn watches() {
    let mut outcomes = BTreeMap::new();
    for (file, bytes) in files("watches") {
        let whole = split_lines(LineSplitter::default(), chunks(&bytes, bytes.len())).unwrap();
        for size in 1..bytes.len().min(70) {
            let split = split_lines(LineSplitter::default(), chunks(&bytes, size)).unwrap();
            assert_eq!(split, whole, "{file} in chunks of {size}");
        }
        let (lines, incomplete) = whole;
        let lines = lines.iter().map(|line| match read_watch_line(line) {
            Ok(WatchLine::Object(change, object)) => format!("{change:?} {}", object_outcome(&object)),
            Ok(other) => format!("{other:?}"),
            Err(error) => error.to_string(),
        });
        for (number, line) in (1..).zip(lines) {
            outcomes.insert(format!("{file}:{number:02}"), line);
        }
        if incomplete > 0 {
            outcomes.insert(format!("{file}:end"), format!("{incomplete} bytes without newline"));
        }
    }
    compare("watches", &outcomes);
}
