//! Which files an account may name as its kubeconfig.

use std::path::{Component, Path, PathBuf};

use crate::account::kubeconfig::error::KubeconfigError;

/// Vets the path of a `kubeconfig.file`: absolute, without `..` and control characters, and a file below one of the
/// `allowed` folders. An allowed folder that is not absolute allows nothing.
///
/// Checks only the path: before it opens the file, the caller must resolve links and vet the resolved path as well.
///
/// # Errors
///
/// A [`KubeconfigError`] of the field `kubeconfig.file` that names the allowed folders.
pub fn vet_file_path<'a>(path: &'a str, allowed: &[PathBuf]) -> Result<&'a Path, KubeconfigError> {
    let refusal = |problem: &'static str| {
        let folders: Vec<_> = allowed.iter().map(|folder| folder.display().to_string()).collect();
        let remedy = match folders.as_slice() {
            [] => "the agent allows no folder for kubeconfigs; set one in its settings".to_owned(),
            folders => format!("give the path of a file on the agent under {}", folders.join(", ")),
        };
        KubeconfigError::new("kubeconfig.file", problem, remedy)
    };
    let as_path = Path::new(path);
    if path.is_empty() {
        return Err(refusal("is empty"));
    }
    if path.contains(char::is_control) {
        return Err(refusal("holds a NUL or another control character"));
    }
    if !as_path.is_absolute() {
        return Err(refusal("is not an absolute path"));
    }
    if as_path.components().any(|component| component == Component::ParentDir) {
        return Err(refusal("holds `..`"));
    }
    if path.ends_with('/') || path.ends_with("/.") {
        return Err(refusal("is a folder"));
    }
    let below = |folder: &PathBuf| folder.is_absolute() && as_path.starts_with(folder) && as_path != folder;
    if !allowed.iter().any(below) {
        return Err(refusal("is outside the folders that the agent allows"));
    }
    Ok(as_path)
}
