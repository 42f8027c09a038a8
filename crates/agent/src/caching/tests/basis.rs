//! The basis of a list.

use super::super::basis::ScopeBasis;
use super::*;

fn rows(basis: ScopeBasis) -> Result<Vec<String>, BasisError> {
    let mut names = Vec::new();
    for frame in basis.into_frames() {
        names.extend(frame?.into_iter().map(|row| row.name));
    }
    Ok(names)
}

fn blob_of(rows: &[(&str, u64)]) -> Blob {
    basis_frame(&fence("u", 1), "k", rows, true).rows.expect("it has rows")
}

#[test]
fn compressed_and_plain_frames_are_read() {
    let plain = blob_of(&[("a", 1), ("b", 2)]);
    let data = zstd::bulk::compress(&plain.data, 1).expect("it can be compressed");
    let compressed = Blob { encoding: blob::Encoding::Zstd.into(), data, ..plain.clone() };
    let mut basis = ScopeBasis::default();
    basis.push(plain).expect("it is small");
    basis.push(compressed).expect("it is small");
    assert_eq!(rows(basis).expect("they can be read"), ["a", "b", "a", "b"]);
}

#[test]
fn a_frame_that_expands_further_than_it_says_is_refused() {
    let data = zstd::bulk::compress(&vec![0; 1 << 20], 1).expect("it can be compressed");
    let mut basis = ScopeBasis::default();
    basis
        .push(Blob { encoding: blob::Encoding::Zstd.into(), size: 1000, data })
        .expect("it says to be small");
    assert!(matches!(rows(basis), Err(BasisError::Compressed(_))));
}

#[test]
fn a_basis_without_bound_is_refused() {
    let frame = Blob { encoding: blob::Encoding::Raw.into(), size: 8 << 20, data: Vec::new() };
    let mut basis = ScopeBasis::default();
    let refused = (0..40).find_map(|_| basis.push(frame.clone()).err());
    assert!(matches!(refused, Some(BasisError::TooLarge { .. })));
    let large = Blob { size: u32::MAX, ..frame };
    assert!(matches!(basis.push(large), Err(BasisError::FrameSize { .. })));
}

#[test]
fn unknown_encodings_and_other_messages_are_refused() {
    for (encoding, data) in [(0, vec![]), (7, vec![]), (blob::Encoding::Raw.into(), vec![0xff; 3])] {
        let mut basis = ScopeBasis::default();
        basis.push(Blob { encoding, size: 3, data }).expect("it is small");
        assert!(rows(basis).is_err(), "{encoding}");
    }
}
