//! The memory of a process that may be written: heap, stacks, and what an allocator has freed and not returned.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use memchr::memmem;

/// Size of a read. Reads overlap by the longest needle.
const CHUNK_BYTES: usize = 1024 * 1024;
const MAX_NEEDLE_BYTES: usize = 256;

/// The needles that are in the memory of a process, each with some bytes around it.
///
/// # Errors
///
/// The memory cannot be read.
pub(super) fn found_in(process: u32, needles: &[&str]) -> Result<Vec<(String, String)>, String> {
    assert!(needles.iter().all(|needle| needle.len() <= MAX_NEEDLE_BYTES), "a needle is too long");
    let file = |name: &str| format!("/proc/{process}/{name}");
    let error = |error: std::io::Error| format!("the memory of process {process}: {error}");
    let maps = std::fs::read_to_string(file("maps")).map_err(error)?;
    let memory = File::open(file("mem")).map_err(error)?;
    let (mut found, mut searched) = (Vec::new(), 0);
    let mut chunk = vec![0; CHUNK_BYTES + MAX_NEEDLE_BYTES];
    for (start, end) in maps.lines().filter_map(writable) {
        let mut at = start;
        while at < end {
            let wanted = chunk.len().min(usize::try_from(end - at).unwrap_or(usize::MAX));
            // A mapping may have gone since.
            let Ok(read @ 1..) = memory.read_at(&mut chunk[..wanted], at) else { break };
            searched += read;
            for needle in needles {
                let Some(position) = memmem::find(&chunk[..read], needle.as_bytes()) else { continue };
                let around = position.saturating_sub(200)..read.min(position + 200);
                found.push(((*needle).to_owned(), String::from_utf8_lossy(&chunk[around]).into_owned()));
            }
            at += u64::try_from(read.min(CHUNK_BYTES)).expect("a chunk is small");
        }
    }
    if searched == 0 { Err(format!("process {process} has no memory that can be read")) } else { Ok(found) }
}

/// Bounds of a mapping that can be read and written, from its line in `/proc/PID/maps`.
fn writable(line: &str) -> Option<(u64, u64)> {
    let mut fields = line.split(' ');
    let (bounds, rights) = (fields.next()?, fields.next()?);
    let (start, end) = bounds.split_once('-')?;
    let bound = |text| u64::from_str_radix(text, 16).ok();
    if rights.starts_with("rw") { bound(start).zip(bound(end)) } else { None }
}

#[test]
fn a_text_in_the_memory_of_a_process_is_found_across_chunks() {
    let needle = ["spread", "across", "two", "chunks"].join("-");
    let mut heap = vec![b'.'; 3 * CHUNK_BYTES];
    for at in [CHUNK_BYTES - 10, 2 * CHUNK_BYTES - 3] {
        heap[at..at + needle.len()].copy_from_slice(needle.as_bytes());
    }
    let found = found_in(std::process::id(), &[&needle]).expect("own memory can be read");
    assert!(found.len() >= 2 && found.iter().all(|(what, _)| *what == needle), "{found:?}");
    drop(heap);
}

#[test]
fn only_mappings_that_can_be_written_are_searched() {
    assert_eq!(writable("7f00-7f10 rw-p 00000000 00:00 0    [heap]"), Some((0x7f00, 0x7f10)));
    assert_eq!(writable("7f00-7f10 r-xp 00000000 08:01 12   /bin/sh"), None);
}
