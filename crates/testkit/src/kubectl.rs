//! The real kubectl.

use std::{ffi::OsStr, path::Path, process::Command, time::Duration};

use super::{
    folder::Folder,
    process::{Process, Streams},
};

/// Time limit for a call. A slower one is killed.
const LIMIT: Duration = Duration::from_secs(60);

/// Output and exit code of a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    /// Exit code; `None` if a signal ended the program.
    pub code: Option<i32>,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Output {
    /// Returns standard output if the exit code is 0.
    ///
    /// # Errors
    ///
    /// The exit code is not 0. The message contains both outputs.
    pub fn ok(self) -> Result<String, String> {
        match self.code {
            Some(0) => Ok(self.stdout),
            code => Err(format!("exit code {code:?}: {}{}", self.stderr, self.stdout)),
        }
    }
}

/// A call that has not ended.
#[derive(Debug)]
pub struct Call {
    process: Process,
    folder: Folder,
}

impl Call {
    /// Starts `program` with these arguments and environment, `kubeconfig`, and `input` on its standard input.
    ///
    /// # Errors
    ///
    /// The program cannot start.
    pub fn start<I, S>(
        program: &Path,
        kubeconfig: &Path,
        args: I,
        environment: &[(&str, &str)],
        input: &str,
    ) -> Result<Self, String>
    where
        I: IntoIterator<Item = S>,
        S: AsRef<OsStr>,
    {
        let folder = Folder::new("kubectl")?;
        let mut command = Command::new(program);
        command
            .args(args)
            .envs(environment.iter().copied())
            .env("KUBECONFIG", kubeconfig)
            .env("KUBERC", "off")
            .env("KUBECACHEDIR", kubeconfig.with_file_name("kubectl-cache"));
        let streams = Streams {
            input: Some(folder.write("input", input)?),
            output: Some(folder.file("stdout")),
            errors: folder.file("stderr"),
        };
        let process = Process::spawn_with("kubectl", &command, &streams)?;
        Ok(Self { process, folder })
    }

    /// The process.
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// Waits for its end.
    ///
    /// # Errors
    ///
    /// It does not end within a minute.
    pub async fn output(self) -> Result<Output, String> {
        let status = self.process.wait(LIMIT).await?;
        let read = |name: &str| {
            std::fs::read(self.folder.file(name))
                .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
                .map_err(|e| format!("kubectl: {name}: {e}"))
        };
        Ok(Output { code: status.code(), stdout: read("stdout")?, stderr: read("stderr")? })
    }
}

/// Runs `program` with these arguments, `kubeconfig`, and `input` on its standard input.
///
/// # Errors
///
/// The program cannot start, or does not end within a minute.
pub async fn run<I, S>(program: &Path, kubeconfig: &Path, args: I, input: &str) -> Result<Output, String>
where
    I: IntoIterator<Item = S>,
    S: AsRef<OsStr>,
{
    Call::start(program, kubeconfig, args, &[], input)?.output().await
}
