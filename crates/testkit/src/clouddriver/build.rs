//! The program, built once by Maven from `tests/clouddriver` into the cache folder.

use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

use sha2::{Digest, Sha256};

use crate::{
    assets::{cache_home, lock, look_up},
    process::Process,
    wait::Progress,
};

/// Name of the folder with the jars, in the cache folder.
const PROGRAM: &str = "program";
const NEED: &str = "`make java` installs them (Debian packages default-jdk-headless and maven)";

/// Result for the whole process, including an error.
static FOUND: OnceLock<Result<PathBuf, String>> = OnceLock::new();

/// Returns the folder with the jars, and builds them unless the cache folder contains them.
///
/// Blocks. Call it from async code only where blocking is allowed.
///
/// # Errors
///
/// The message says what is missing and which command installs it.
pub fn ensure() -> Result<PathBuf, String> {
    FOUND.get_or_init(find).clone()
}

/// Returns the path of `java`.
///
/// # Errors
///
/// There is none on `PATH`.
pub(super) fn java() -> Result<PathBuf, String> {
    look_up("java").ok_or_else(|| format!("there is no `java` on PATH, which runs Clouddriver: {NEED}"))
}

fn find() -> Result<PathBuf, String> {
    let source = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/clouddriver"));
    let cache = cache_home()?.join("kubesvc/clouddriver").join(&key(source)?[..16]);
    let program = cache.join(PROGRAM);
    if !program.is_dir() {
        build(source, &cache, &program)?;
    }
    java()?;
    Ok(program)
}

/// Returns a digest of the files that determine the build.
fn key(source: &Path) -> Result<String, String> {
    let code = source.join("src/main/java/io/kubesvc/clouddriver");
    let problem = |path: &Path, e: &std::io::Error| {
        format!("{}: {e}: is the checkout whole? `git status` tells", path.display())
    };
    let mut files = vec![source.join("pom.xml")];
    for entry in std::fs::read_dir(&code).map_err(|e| problem(&code, &e))? {
        files.push(entry.map_err(|e| problem(&code, &e))?.path());
    }
    files.sort();
    let mut digest = Sha256::new();
    for file in files {
        digest.update(std::fs::read(&file).map_err(|e| problem(&file, &e))?);
    }
    Ok(hex::encode(digest.finalize()))
}

fn build(source: &Path, cache: &Path, program: &Path) -> Result<(), String> {
    std::fs::create_dir_all(cache).map_err(|e| format!("{}: {e}", cache.display()))?;
    let _lock = lock(cache, "clouddriver")?;
    if program.is_dir() {
        return Ok(());
    }
    for tool in ["javac", "mvn"] {
        look_up(tool).ok_or_else(|| {
            format!("tests/clouddriver is built with Maven and Java 17 or newer, and there is no `{tool}` on PATH: {NEED}")
        })?;
    }
    let part = cache.join("part");
    let log = cache.join("log");
    // Left behind by an interrupted build. No other process builds while this one holds the lock.
    if part.exists() {
        std::fs::remove_dir_all(&part).map_err(|e| format!("{}: {e}", part.display()))?;
    }
    let mut command = Command::new("mvn");
    command.current_dir(source).args(["--batch-mode", "--quiet", "package"]);
    command.arg(format!("-Dbuild.folder={}", part.display()));
    let mut progress = Progress::start("building what stands in for Clouddriver (once, a minute or two)");
    let process = Process::spawn("Maven", &command, &log)?;
    let status = process.wait_shown(&mut progress);
    if !status.success() {
        progress.finish("failed");
        return Err(format!(
            "building tests/clouddriver failed; the end of {}:\n{}\nIf it cannot reach Maven Central, name a mirror that \
             it can reach in ~/.m2/settings.xml",
            log.display(),
            process.log_tail(15)
        ));
    }
    std::fs::rename(&part, program).map_err(|e| format!("{}: {e}", program.display()))?;
    progress.finish(&format!("{}", program.display()));
    Ok(())
}
