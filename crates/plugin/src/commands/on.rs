//! `kubectl kubesvc on`: becomes kubectl, with the API of an account as its current context.

use std::ffi::OsString;
use std::fs::DirBuilder;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::{self, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use kubesvc_runtime::terminal::format;
use serde_json::json;

use crate::account_api;
use crate::account_kubeconfig::{self, Door};
use crate::api_session::ApiSession;
use crate::arguments::{CommandError, ScopeArguments, names_have_a_namespace};
use crate::own_kubeconfig;

pub(crate) const EXAMPLES: &str = "\
Examples:
  kubectl kubesvc on production -- get pods -n shop
  kubectl kubesvc on production -- exec -it deploy/web -n shop -- sh
  kubectl kubesvc list -l team=a -o name | xargs -I{} kubectl kubesvc on {} -- rollout status deploy/web -n shop

KUBECTL names another kubectl than that of PATH.";

/// Arguments of `on`.
#[derive(Debug, clap::Args)]
pub(crate) struct OnArguments {
    /// Name of the account: of its object or in Spinnaker.
    #[arg(value_name = "ACCOUNT")]
    name: String,
    /// Arguments of kubectl.
    #[arg(last = true, required = true, value_name = "KUBECTL ARGUMENTS")]
    kubectl: Vec<OsString>,
}

/// Runs the command. Returns only if kubectl cannot be run.
pub(crate) async fn run(scope: &ScopeArguments, arguments: &OnArguments) -> Result<(), CommandError> {
    names_have_a_namespace(std::slice::from_ref(&arguments.name), scope)?;
    stays_at_the_account(&arguments.kubectl)?;
    let session = ApiSession::open_without_retries(scope).await?;
    let own = own_kubeconfig::read(scope)?;
    let account = session.one_account(&arguments.name).await?;
    account_api::require(&session).await?;
    let mut files = own_kubeconfig::files(scope);
    let is_in_file = own.is_in_file;
    let door = Door { cluster: own.cluster, user_name: own.user_name, user: own.user };
    let mut kubeconfig = door.kubeconfig(&account_kubeconfig::named(&[account], ""))?;
    if is_in_file {
        // kubectl reads the user where it is, so that no credential is copied.
        kubeconfig["users"] = json!([]);
    }
    files.insert(0, write(&folder()?, &format::yaml(&kubeconfig)?)?);
    let paths = std::env::join_paths(files).map_err(|error| format!("KUBECONFIG: {error}"))?;
    let program =
        std::env::var_os("KUBECTL").filter(|name| !name.is_empty()).unwrap_or_else(|| "kubectl".into());
    let error = Command::new(&program).args(&arguments.kubectl).env("KUBECONFIG", paths).exec();
    let program = program.to_string_lossy();
    Err(CommandError::Failed(match error.kind() {
        io::ErrorKind::NotFound => {
            format!("{program} is not there; install kubectl in PATH, or name it by KUBECTL")
        }
        _ => format!("{program} cannot be run: {error}"),
    }))
}

/// Refuses what would send kubectl elsewhere than to the account.
fn stays_at_the_account(kubectl: &[OsString]) -> Result<(), CommandError> {
    let words: Vec<_> =
        kubectl.iter().map(|word| word.to_string_lossy()).take_while(|word| word != "--").collect();
    let is_of_logs = words.iter().any(|word| word == "logs");
    for word in &words {
        let flag = if names_server(word, is_of_logs) {
            "-s"
        } else {
            word.split_once('=').map_or(&**word, |(flag, _)| flag)
        };
        if matches!(flag, "--kubeconfig" | "--server" | "-s" | "--context" | "--cluster") {
            return Err(CommandError::Usage(format!(
                "kubectl's {flag} would leave the account; give --context and --kubeconfig of the operator's cluster \
                 before the --"
            )));
        }
    }
    Ok(())
}

/// Whether `-s` is among the short flags of a word, its value attached or not. What follows a flag that takes a value is that
/// value; `-f` and `-p` of `logs` take none.
fn names_server(word: &str, is_of_logs: bool) -> bool {
    let Some(flags) = word.strip_prefix('-').filter(|flags| !flags.starts_with('-')) else { return false };
    let takes_value = |flag: &char| "=LPceklnouv".contains(*flag) || (!is_of_logs && "fp".contains(*flag));
    flags.chars().take_while(|flag| !takes_value(flag)).any(|flag| flag == 's')
}

/// The folder of the kubeconfigs, in kubectl's cache.
fn folder() -> Result<PathBuf, CommandError> {
    let cache = std::env::var_os("KUBECACHEDIR").filter(|path| !path.is_empty()).map(PathBuf::from);
    let cache = cache.or_else(|| std::env::home_dir().map(|home| home.join(".kube/cache")));
    Ok(cache.ok_or("no folder for a kubeconfig; set KUBECACHEDIR".to_owned())?.join("kubesvc"))
}

/// Writes a kubeconfig that only this user can read. Its name follows from its content: concurrent runs do not disturb
/// one another, and there is one file for each account and context.
fn write(folder: &Path, text: &str) -> Result<PathBuf, CommandError> {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    let path = folder.join(format!("{:016x}.kubeconfig", hasher.finish()));
    let written = || -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        let mut file = tempfile::Builder::new().tempfile_in(folder)?;
        file.write_all(text.as_bytes())?;
        file.persist(&path).map(drop).map_err(|error| error.error)
    };
    written().map_err(|error| format!("{}: no kubeconfig: {error}", folder.display()))?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn kubectl_stays_at_the_account() {
        for line in [
            "get pods --kubeconfig x",
            "get pods --server=https://c",
            "-s https://c get pods",
            "get pods -s=https://c",
            "-shttps://c get pods",
            "get pods -As https://c",
            "logs -fs https://c web",
            "--context a get ns",
        ] {
            assert!(stays_at_the_account(&words(line)).is_err(), "{line}");
        }
        for line in [
            "get pods -o name",
            "get pods -ns",
            "apply -fs",
            "exec web -- ls -s",
            "create clusterrolebinding b --user=u",
        ] {
            assert_eq!(stays_at_the_account(&words(line)), Ok(()), "{line}");
        }
    }

    #[test]
    fn a_kubeconfig_is_private_and_written_once_for_each_content() {
        let root = tempfile::tempdir().expect("a folder");
        let folder = root.path().join("cache/kubesvc");
        let write = |text| write(&folder, text).expect("it is written");
        let (one, again, other) = (write("one"), write("one"), write("other"));
        assert!(one == again && one != other);
        assert_eq!(std::fs::read_to_string(&one).expect("a file"), "one");
        let mode = |path: &Path| std::fs::metadata(path).expect("it is there").permissions().mode() & 0o777;
        assert_eq!((mode(&folder), mode(&one)), (0o700, 0o600));
        assert_eq!(std::fs::read_dir(&folder).expect("a folder").count(), 2);
    }
}
