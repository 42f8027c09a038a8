//! The real Helm, and commands of pages that use it.

use std::{
    path::Path,
    process::{Command, Stdio},
    sync::OnceLock,
};

use super::{assets, controlplane, folder::Folder, kubectl::Output, must};

/// Helm's own files, apart from those of the person who runs the tests.
static HOME: OnceLock<Folder> = OnceLock::new();

/// Runs Helm in the root of the repository, with this kubeconfig if any. Blocks.
///
/// # Panics
///
/// Helm cannot be built or started.
pub fn run<'a>(kubeconfig: Option<&Path>, arguments: impl IntoIterator<Item = &'a str>) -> Output {
    let mut command = Command::new(must(assets::helm()));
    command.args(arguments);
    output(command, kubeconfig)
}

/// Runs a command line in the root of the repository, as a person would who has kubectl and Helm. Blocks.
///
/// # Panics
///
/// A program that it needs cannot be built or started.
pub fn shell(kubeconfig: &Path, line: &str) -> Output {
    let programs = [must(assets::helm()), must(controlplane::kubectl_path())];
    let folders = programs.iter().filter_map(|program| program.parent().map(Path::to_owned));
    let rest = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths(folders.chain(std::env::split_paths(&rest)));
    let mut command = Command::new("sh");
    command.args(["-c", line]).env("PATH", must(path.map_err(|e| e.to_string())));
    output(command, Some(kubeconfig))
}

fn output(mut command: Command, kubeconfig: Option<&Path>) -> Output {
    let home = HOME.get_or_init(|| must(Folder::new("helm")));
    command
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
        .stdin(Stdio::null())
        .env("KUBECONFIG", kubeconfig.unwrap_or(Path::new("/dev/null")))
        .env("KUBERC", "off")
        .env("KUBECACHEDIR", home.file("kubectl"))
        .env("HELM_CACHE_HOME", home.file("cache"))
        .env("HELM_CONFIG_HOME", home.file("config"))
        .env("HELM_DATA_HOME", home.file("data"));
    let ended = must(command.output().map_err(|e| format!("{command:?}: {e}")));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Output { code: ended.status.code(), stdout: text(&ended.stdout), stderr: text(&ended.stderr) }
}
