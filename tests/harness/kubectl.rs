//! The real kubectl.

use std::{ffi::OsStr, path::Path, process::Command, time::Duration};

use super::{
    folder::Folder,
    process::{Process, Streams},
};

/// A call that takes longer is killed.
const LIMIT: Duration = Duration::from_secs(60);

/// What a program printed, and how it ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Output {
    /// Exit code; none if a signal ended it.
    pub(crate) code: Option<i32>,
    /// Standard output.
    pub(crate) stdout: String,
    /// Standard error.
    pub(crate) stderr: String,
}

impl Output {
    /// Standard output if all went well.
    ///
    /// # Errors
    ///
    /// It ended with another code than 0; the text has both outputs.
    pub(crate) fn ok(self) -> Result<String, String> {
        match self.code {
            Some(0) => Ok(self.stdout),
            code => Err(format!("exit code {code:?}: {}{}", self.stderr, self.stdout)),
        }
    }
}

/// Runs `program` with these arguments, `kubeconfig`, and `input` on its standard input.
///
/// # Errors
///
/// It cannot start, or does not end within a minute.
pub(crate) async fn run<I, S>(
    program: &Path,
    kubeconfig: &Path,
    args: I,
    input: &str,
) -> Result<Output, String>
where
    I: IntoIterator<Item = S>,
    S: AsRef<OsStr>,
{
    let folder = Folder::new("kubectl")?;
    let mut command = Command::new(program);
    command
        .args(args)
        .env("KUBECONFIG", kubeconfig)
        .env("KUBERC", "off")
        .env("KUBECACHEDIR", kubeconfig.with_file_name("kubectl-cache"));
    let streams = Streams {
        input: Some(folder.write("input", input)?),
        output: Some(folder.file("stdout")),
        errors: folder.file("stderr"),
    };
    let process = Process::spawn_with("kubectl", &command, &streams)?;
    let status = process.wait(LIMIT).await?;
    let read = |name: &str| {
        std::fs::read(folder.file(name))
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .map_err(|e| format!("kubectl: {name}: {e}"))
    };
    Ok(Output { code: status.code(), stdout: read("stdout")?, stderr: read("stderr")? })
}
