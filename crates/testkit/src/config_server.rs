//! A Spring Cloud config server on a git repository of its own.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use http::StatusCode;

use super::java::{JavaProgram, JavaServer, Properties};

static PROGRAM: JavaProgram = JavaProgram::new("config-server", "configserver", "the config server");
/// The branch that is served if none is asked for.
const MAIN: &str = "main";
/// Whether the server decrypts values that begin with `{cipher}`.
const DECRYPTS: &str = "spring.cloud.config.server.encrypt.enabled";

/// Returns the folder with the jars, and builds them unless the cache folder contains them.
///
/// Blocks. Call it from async code only where blocking is allowed.
///
/// # Errors
///
/// The message says what is missing and which command installs it.
pub fn ensure() -> Result<PathBuf, String> {
    PROGRAM.ensure()
}

/// A running config server on a port of 127.0.0.1. Killed on drop, or when the test process ends.
#[derive(Debug)]
pub struct ConfigServer {
    server: JavaServer,
    properties: Properties,
}

impl ConfigServer {
    /// Starts one that only this user may call, on an empty branch `main`. It leaves values encrypted.
    ///
    /// # Errors
    ///
    /// The message names the missing part, or contains the last output.
    pub async fn start((user, password): (&str, &str)) -> Result<Self, String> {
        // Nobody may see whether it is ready.
        let mut server = JavaServer::new("config-server", &PROGRAM, StatusCode::UNAUTHORIZED)?;
        let path = |name: &str| server.folder().file(name).display().to_string();
        let properties = vec![
            ("spring.cloud.config.server.git.uri", path("repository")),
            ("spring.cloud.config.server.git.basedir", path("clone")),
            ("spring.cloud.config.server.git.default-label", MAIN.to_owned()),
            ("spring.security.user.name", user.to_owned()),
            ("spring.security.user.password", password.to_owned()),
            (DECRYPTS, "false".to_owned()),
        ];
        let repository = server.folder().file("repository");
        std::fs::create_dir(&repository).map_err(|e| format!("{}: {e}", repository.display()))?;
        git(&repository, &["init", "--quiet", "--initial-branch", MAIN])?;
        git(&repository, &["commit", "--quiet", "--allow-empty", "--message", "empty"])?;
        server.start(&properties, &[]).await?;
        Ok(Self { server, properties })
    }

    /// Commits these files, by name and text, to a branch, which begins at `main`.
    ///
    /// # Errors
    ///
    /// git refuses.
    pub fn commit(&self, branch: &str, files: &[(&str, &str)]) -> Result<(), String> {
        let repository = self.server.folder().file("repository");
        if git(&repository, &["checkout", "--quiet", branch]).is_err() {
            git(&repository, &["checkout", "--quiet", "-b", branch, MAIN])?;
        }
        for (name, text) in files {
            std::fs::write(repository.join(name), text).map_err(|e| format!("{name}: {e}"))?;
        }
        git(&repository, &["add", "--all"])?;
        git(&repository, &["commit", "--quiet", "--message", "changed"])
    }

    /// Base URL.
    pub fn base_url(&self) -> String {
        self.server.base_url()
    }

    /// Lets it decrypt values from its next start on, though it has no key.
    pub fn set_decrypts(&mut self, decrypts: bool) {
        self.properties.retain(|(name, _)| *name != DECRYPTS);
        self.properties.push((DECRYPTS, decrypts.to_string()));
    }

    /// Kills it.
    pub fn kill(&self) {
        self.server.kill();
    }

    /// Starts it again on its port.
    ///
    /// # Errors
    ///
    /// It ended, or does not answer in time.
    pub async fn restart(&self) -> Result<(), String> {
        self.server.restart(&self.properties, &[]).await
    }
}

/// Runs git without the settings of whoever runs the test.
fn git(repository: &Path, arguments: &[&str]) -> Result<(), String> {
    let mut git = Command::new("git");
    git.arg("-C").arg(repository).args(["-c", "user.name=test", "-c", "user.email=test@example.com"]);
    git.args(arguments).env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1");
    let ended = git.output().map_err(|e| format!("git: {e}"))?;
    match ended.status.success() {
        true => Ok(()),
        false => Err(format!("git {arguments:?}: {}", String::from_utf8_lossy(&ended.stderr))),
    }
}
