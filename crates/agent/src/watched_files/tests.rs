//! Files as they change.

use std::os::unix::fs::symlink;

use tempfile::TempDir;

use super::*;

const MAX: u64 = 1000;

fn of(text: &str) -> Content {
    Content::File(Sha256::digest(text).into())
}

fn folder() -> TempDir {
    tempfile::tempdir().expect("a folder")
}

fn write(path: &Path, text: &str) {
    fs::write(path, text).expect("written");
}

/// A folder as the kubelet mounts it: `name` leads through `..data` to the folder `moment`.
fn mounted(folder: &Path, moment: &str, name: &str, text: &str) {
    let data = folder.join(moment);
    fs::create_dir(&data).expect("a folder");
    write(&data.join(name), text);
    symlink(moment, folder.join("..new")).expect("a link");
    fs::rename(folder.join("..new"), folder.join("..data")).expect("swapped");
    if !folder.join(name).exists() {
        symlink(Path::new("..data").join(name), folder.join(name)).expect("a link");
    }
}

#[test]
fn a_file_is_seen_as_it_changes() {
    let folder = folder();
    let path = folder.path().join("file");
    let mut files = WatchedFiles::new(MAX);
    assert_eq!(files.content(&path), Content::Missing);
    write(&path, "one");
    assert_eq!(files.content(&path), of("one"));
    write(&path, "two");
    assert_eq!(files.content(&path), of("two"), "written in place, as long as before, at the same moment");
    let next = folder.path().join("next");
    write(&next, "six");
    fs::rename(&next, &path).expect("renamed");
    assert_eq!(files.content(&path), of("six"), "replaced by renaming");
    fs::remove_file(&path).expect("removed");
    assert_eq!(files.content(&path), Content::Missing);
    write(&path, "six");
    assert_eq!(files.content(&path), of("six"), "made again");
}

#[test]
fn a_mounted_file_is_seen_to_be_swapped() {
    let folder = folder();
    let path = folder.path().join("file");
    mounted(folder.path(), "..1", "file", "one");
    let mut files = WatchedFiles::new(MAX);
    assert_eq!(files.content(&path), of("one"));
    mounted(folder.path(), "..2", "file", "two");
    fs::remove_dir_all(folder.path().join("..1")).expect("removed");
    assert_eq!(files.content(&path), of("two"));
}

#[test]
fn a_file_that_has_been_still_is_not_read_again() {
    let folder = folder();
    let path = folder.path().join("file");
    write(&path, "one");
    let long_ago = SystemTime::now() - Duration::from_secs(3600);
    let file = File::options().write(true).open(&path).expect("a file");
    file.set_modified(long_ago).expect("an old file");
    let mut files = WatchedFiles::new(MAX);
    assert_eq!(files.content(&path), of("one"));
    // The file's timestamps are too recent to be trusted; old ones are trusted.
    assert_eq!(files.known[&path].stamp, None);
    let settled =
        KnownFile { stamp: Some(stamp(&fs::metadata(&path).expect("a file"))), content: of("said") };
    files.known.insert(path.clone(), settled);
    assert_eq!(files.content(&path), of("said"));
    write(&path, "three");
    assert_eq!(files.content(&path), of("three"));
}

#[test]
fn directory_or_large_file_is_reported_as_unreadable() {
    let folder = folder();
    let mut files = WatchedFiles::new(MAX);
    assert_eq!(files.content(folder.path()), Content::Unreadable("it is no regular file".to_owned()));
    let path = folder.path().join("file");
    write(&path, &"x".repeat(1001));
    assert_eq!(files.content(&path), Content::Unreadable("it is larger than 1000 bytes".to_owned()));
    write(&path, &"x".repeat(1000));
    assert_eq!(files.content(&path), of(&"x".repeat(1000)));
    let ring = folder.path().join("ring");
    symlink(&ring, &ring).expect("a link");
    assert!(matches!(files.content(&ring), Content::Unreadable(_)));
}

/// One account's use of a file.
fn in_use(path: &Path, text: &str) -> HashSet<ReadFile> {
    HashSet::from([ReadFile { path: path.to_owned(), digest: Sha256::digest(text).into() }])
}

#[test]
fn each_change_of_a_file_in_use_is_reported_once() {
    let folder = folder();
    let path = folder.path().join("file");
    write(&path, "one");
    let used = in_use(&path, "one");
    let mut files = AccountFiles::new(MAX);
    assert!(files.poll(&used).is_empty());
    write(&path, "two");
    assert_eq!(files.poll(&used), in_use(&path, "two").into_iter().collect::<Vec<_>>());
    assert!(files.poll(&used).is_empty(), "the account could not use it, and is not asked again");
    fs::remove_file(&path).expect("removed");
    assert!(files.poll(&used).is_empty());
    write(&path, "two");
    assert_eq!(files.poll(&used).len(), 1, "made again");
    write(&path, "one");
    assert!(files.poll(&used).is_empty(), "it is what the account uses");
    write(&path, "two");
    assert_eq!(files.poll(&used).len(), 1);
}

#[test]
fn a_change_before_the_first_check_is_reported() {
    let folder = folder();
    let path = folder.path().join("file");
    write(&path, "two");
    let mut files = AccountFiles::new(MAX);
    assert_eq!(files.poll(&in_use(&path, "one")).len(), 1);
}

#[test]
fn a_file_read_differently_by_two_accounts_is_reported() {
    let folder = folder();
    let path = folder.path().join("file");
    write(&path, "two");
    let mut files = AccountFiles::new(MAX);
    let used = in_use(&path, "one").into_iter().chain(in_use(&path, "two")).collect();
    assert_eq!(files.poll(&used).len(), 1);
    assert!(files.poll(&used).is_empty());
}

#[test]
fn unused_files_are_forgotten() {
    let folder = folder();
    let path = folder.path().join("file");
    write(&path, "two");
    let mut files = AccountFiles::new(MAX);
    files.poll(&in_use(&path, "one"));
    files.poll(&HashSet::new());
    assert!(files.files.known.is_empty() && files.reported.is_empty());
}
