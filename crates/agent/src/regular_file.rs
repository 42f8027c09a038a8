//! Reading a regular file within a bound. A named pipe, or a device, would block.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use secrecy::zeroize::Zeroizing;

/// Why a file is not read.
#[derive(Debug, thiserror::Error)]
pub enum RegularFileError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("it is no regular file")]
    Irregular,
    #[error("it is larger than {0} bytes")]
    TooLarge(u64),
}

/// Reads a regular file of at most `max` bytes. Blocks.
///
/// # Errors
/// It cannot be read, is none, or is larger.
pub fn read(path: &Path, max: u64) -> Result<Zeroizing<Vec<u8>>, RegularFileError> {
    // Opening a named pipe would block, so check first, and check the opened file again.
    if !fs::metadata(path)?.is_file() {
        return Err(RegularFileError::Irregular);
    }
    let file = File::open(path)?;
    if !file.metadata()?.is_file() {
        return Err(RegularFileError::Irregular);
    }
    let mut bytes = Zeroizing::new(Vec::with_capacity(8 * 1024));
    file.take(max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > max {
        return Err(RegularFileError::TooLarge(max));
    }
    Ok(bytes)
}
