//! Programs in Java, each built once by Maven from a folder of `tests` into the cache folder.

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
/// A small heap and the quick compiler: it lives for seconds and does little.
const JVM: [&str; 4] = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx128m", "-Xshare:auto"];
const NEED: &str = "`make java` installs them (Debian packages default-jdk-headless and maven)";

/// A program with its source in a folder of `tests`.
#[derive(Debug)]
pub(crate) struct JavaProgram {
    /// Name of that folder, and of the one in the cache folder.
    folder: &'static str,
    /// The last part of its package's name. Its class `Main` is run.
    package: &'static str,
    /// What it is, for messages.
    pub(super) what: &'static str,
    /// Result for the whole process, including an error.
    found: OnceLock<Result<PathBuf, String>>,
}

impl JavaProgram {
    pub(crate) const fn new(folder: &'static str, package: &'static str, what: &'static str) -> Self {
        Self { folder, package, what, found: OnceLock::new() }
    }

    /// Returns the folder with the jars, and builds them unless the cache folder contains them.
    ///
    /// Blocks. Call it from async code only where blocking is allowed.
    ///
    /// # Errors
    ///
    /// The message says what is missing and which command installs it.
    pub(crate) fn ensure(&self) -> Result<PathBuf, String> {
        self.found.get_or_init(|| self.find()).clone()
    }

    /// The command that runs it, without arguments of its own, with this folder for temporary files.
    pub(super) fn command(&self, temporary: &Path) -> Result<Command, String> {
        let program = self.ensure()?;
        let jars = [program.join(format!("{}.jar", self.folder)), program.join("lib/*")];
        let jars = std::env::join_paths(jars).map_err(|e| format!("{}: {e}", program.display()))?;
        let mut command = Command::new(java(self.what)?);
        command.args(JVM).arg(format!("-Djava.io.tmpdir={}", temporary.display()));
        command.arg("-cp").arg(jars).arg(format!("io.kubesvc.{}.Main", self.package));
        Ok(command)
    }

    fn find(&self) -> Result<PathBuf, String> {
        let source = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests")).join(self.folder);
        let code = source.join("src/main/java/io/kubesvc").join(self.package);
        let cache = cache_home()?.join("kubesvc").join(self.folder).join(&key(&source, &code)?[..16]);
        let program = cache.join(PROGRAM);
        if !program.is_dir() {
            self.build(&source, &cache, &program)?;
        }
        java(self.what)?;
        Ok(program)
    }

    fn build(&self, source: &Path, cache: &Path, program: &Path) -> Result<(), String> {
        std::fs::create_dir_all(cache).map_err(|e| format!("{}: {e}", cache.display()))?;
        let _lock = lock(cache, self.folder)?;
        if program.is_dir() {
            return Ok(());
        }
        for tool in ["javac", "mvn"] {
            look_up(tool).ok_or_else(|| {
            format!(
                "tests/{} is built with Maven and Java 17 or newer, and there is no `{tool}` on PATH: {NEED}",
                self.folder
            )
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
        let mut progress = Progress::start(&format!("building {} (once, a minute or two)", self.what));
        let process = Process::spawn("Maven", &command, &log)?;
        let status = process.wait_shown(&mut progress);
        if !status.success() {
            progress.finish("failed");
            return Err(format!(
                "building tests/{} failed; the end of {}:\n{}\nIf it cannot reach Maven Central, name a mirror that \
             it can reach in ~/.m2/settings.xml",
                self.folder,
                log.display(),
                process.log_tail(15)
            ));
        }
        std::fs::rename(&part, program).map_err(|e| format!("{}: {e}", program.display()))?;
        progress.finish(&format!("{}", program.display()));
        Ok(())
    }
}

fn java(what: &str) -> Result<PathBuf, String> {
    look_up("java").ok_or_else(|| format!("there is no `java` on PATH, which runs {what}: {NEED}"))
}

/// Returns a digest of the files that determine the build.
fn key(source: &Path, code: &Path) -> Result<String, String> {
    let problem = |path: &Path, e: &std::io::Error| {
        format!("{}: {e}: is the checkout whole? `git status` tells", path.display())
    };
    let mut files = vec![source.join("pom.xml")];
    for entry in std::fs::read_dir(code).map_err(|e| problem(code, &e))? {
        files.push(entry.map_err(|e| problem(code, &e))?.path());
    }
    files.sort();
    let mut digest = Sha256::new();
    for file in files {
        digest.update(std::fs::read(&file).map_err(|e| problem(&file, &e))?);
    }
    Ok(hex::encode(digest.finalize()))
}
