//! The caller's own entries of the current kubeconfig: the cluster and the user of the context, in a form that can be
//! copied elsewhere.

use std::path::{Path, PathBuf};

use k8s_openapi::ByteString;
use kube::Config;
use kube::config::{AuthInfo, Cluster, Kubeconfig};

use crate::api_session::{is_absent, kubeconfig};
use crate::arguments::{CommandError, ScopeArguments};
use kubesvc_runtime::telemetry::errors::chain;

/// Name of the user that a pod is.
const POD_USER: &str = "pod";
/// Where a pod has its token and the certificate authority of its cluster.
const POD_FOLDER: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// The cluster and the user of the context. All paths in it are absolute.
#[derive(Clone, Debug)]
pub(super) struct OwnEntries {
    pub(super) cluster: Cluster,
    pub(super) user_name: String,
    pub(super) user: AuthInfo,
    /// Whether they are in a file, or those of a pod.
    pub(super) is_in_file: bool,
}

/// Reads the entries of the context, or those of the pod's service account if there is no kubeconfig.
///
/// # Errors
///
/// There is no kubeconfig, or it has no such context or cluster.
pub(super) fn read(scope: &ScopeArguments) -> Result<OwnEntries, CommandError> {
    let (read, whence) = kubeconfig(scope);
    match read {
        Ok(read) => of_context(read, scope.context.as_deref(), &whence),
        Err(error) if scope.kubeconfig.is_none() && scope.context.is_none() && is_absent(&error) => {
            of_pod().ok_or_else(|| CommandError::Failed(format!("{whence}: {}", chain(&error))))
        }
        Err(error) => Err(CommandError::Failed(format!("{whence}: {}", chain(&error)))),
    }
}

/// The files that the kubeconfig is read from: `--kubeconfig`, else those of KUBECONFIG, else `~/.kube/config`.
pub(super) fn files(scope: &ScopeArguments) -> Vec<PathBuf> {
    if let Some(path) = &scope.kubeconfig {
        return vec![path.clone()];
    }
    let listed = std::env::var_os("KUBECONFIG").unwrap_or_default();
    let listed: Vec<_> = std::env::split_paths(&listed).filter(|path| !path.as_os_str().is_empty()).collect();
    let default = std::env::home_dir().map(|home| home.join(".kube/config"));
    if listed.is_empty() { default.into_iter().collect() } else { listed }
}

fn of_context(
    kubeconfig: Kubeconfig,
    context: Option<&str>,
    whence: &str,
) -> Result<OwnEntries, CommandError> {
    let name = context.or(kubeconfig.current_context.as_deref());
    let context = kubeconfig.contexts.iter().find(|one| Some(one.name.as_str()) == name);
    let context = context.and_then(|one| one.context.clone());
    let cluster = context.as_ref().map(|context| &context.cluster);
    let entry = kubeconfig.clusters.into_iter().find(|one| Some(&one.name) == cluster);
    let mut cluster = entry
        .and_then(|one| one.cluster)
        .ok_or_else(|| format!("{whence} has no cluster for the context"))?;
    let user_name = context.and_then(|context| context.user).unwrap_or_default();
    let user = kubeconfig.auth_infos.into_iter().find(|one| one.name == user_name);
    let mut user = user.and_then(|one| one.auth_info).unwrap_or_default();
    // Paths are relative to the folder of their file, which may itself be relative to the working folder.
    for path in [
        &mut cluster.certificate_authority,
        &mut user.client_certificate,
        &mut user.client_key,
        &mut user.token_file,
    ] {
        make_absolute(path)?;
    }
    if let Some(exec) = &mut user.exec
        && exec.command.as_ref().is_some_and(|command| command.contains(std::path::MAIN_SEPARATOR))
    {
        make_absolute(&mut exec.command)?;
    }
    Ok(OwnEntries { cluster, user_name, user, is_in_file: true })
}

fn make_absolute(path: &mut Option<String>) -> Result<(), CommandError> {
    // An empty path is an absent one.
    if let Some(path) = path.as_mut().filter(|path| !path.is_empty()) {
        *path = absolute(Path::new(path))?;
    }
    Ok(())
}

/// A path as it reads from every folder.
pub(super) fn absolute(path: &Path) -> Result<String, CommandError> {
    let absolute = std::path::absolute(path).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(absolute
        .into_os_string()
        .into_string()
        .map_err(|path| format!("{}: the path is no UTF-8", path.display()))?)
}

fn of_pod() -> Option<OwnEntries> {
    let server = Config::incluster().ok()?.cluster_url.to_string();
    let cluster = Cluster {
        server: Some(server),
        certificate_authority: Some(format!("{POD_FOLDER}/ca.crt")),
        ..Cluster::default()
    };
    let user = AuthInfo { token_file: Some(format!("{POD_FOLDER}/token")), ..AuthInfo::default() };
    Some(OwnEntries { cluster, user_name: POD_USER.to_owned(), user, is_in_file: false })
}

/// Replaces the path of the certificate authority by its content, since only that can travel.
pub(super) fn inline_authority(entry: &mut Cluster) -> Result<(), CommandError> {
    let path = entry.certificate_authority.take().filter(|path| !path.is_empty());
    let Some(path) = path else { return Ok(()) };
    if entry.certificate_authority_data.is_none() {
        let bytes = std::fs::read(&path)
            .map_err(|error| format!("certificate-authority {path} of the kubeconfig: {error}"))?;
        entry.certificate_authority_data = Some(base64(bytes)?);
    }
    Ok(())
}

/// Replaces the paths of a user's certificate, key and token by what is in them.
pub(super) fn inline_user(user: &mut AuthInfo) -> Result<(), CommandError> {
    let read = |path: &str| {
        std::fs::read(path)
            .map_err(|error| format!("{path}, which the user of the kubeconfig names: {error}"))
    };
    if let Some(path) = user.client_certificate.take().filter(|path| !path.is_empty())
        && user.client_certificate_data.is_none()
    {
        user.client_certificate_data = Some(base64(read(&path)?)?);
    }
    if let Some(path) = user.client_key.take().filter(|path| !path.is_empty())
        && user.client_key_data.is_none()
    {
        user.client_key_data = Some(base64(read(&path)?)?.into());
    }
    if let Some(path) = user.token_file.take().filter(|path| !path.is_empty())
        && user.token.is_none()
    {
        let token = String::from_utf8(read(&path)?).map_err(|_| format!("{path} is no token"))?;
        user.token = Some(token.trim().to_owned().into());
    }
    Ok(())
}

fn base64(bytes: Vec<u8>) -> Result<String, CommandError> {
    let encoded = serde_json::to_value(ByteString(bytes)).map_err(|error| format!("no base64: {error}"))?;
    Ok(encoded.as_str().unwrap_or_default().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const KUBECONFIG: &str = "apiVersion: v1\nkind: Config\n\
        clusters: [{name: c, cluster: {server: 'https://c', certificate-authority: ca.crt}}]\n\
        users:\n- name: u\n  user: {client-certificate: /etc/u.crt, client-key: u.key, tokenFile: '', \
        exec: {apiVersion: client.authentication.k8s.io/v1, command: bin/login, args: [a], env: [{name: N, value: v}]}}\n\
        - name: path\n  user: {exec: {command: aws}}\n\
        contexts: [{name: x, context: {cluster: c, user: u}}, {name: y, context: {cluster: c, user: path}}]\n\
        current-context: x\n";

    fn entries(context: Option<&str>) -> Result<OwnEntries, CommandError> {
        of_context(Kubeconfig::from_yaml(KUBECONFIG).expect("a kubeconfig"), context, "it")
    }

    #[test]
    fn paths_become_absolute_and_programs_of_path_stay() {
        let here = std::env::current_dir().expect("a folder");
        let own = entries(None).expect("its context");
        let at = |name: &str| Some(here.join(name).display().to_string());
        assert_eq!(own.cluster.certificate_authority, at("ca.crt"));
        assert_eq!(own.user.client_key, at("u.key"));
        assert_eq!(own.user.client_certificate.as_deref(), Some("/etc/u.crt"));
        assert_eq!(own.user.token_file.as_deref(), Some(""));
        let exec = own.user.exec.expect("a login program");
        assert_eq!(exec.command, at("bin/login"));
        assert!(exec.args.is_some_and(|args| args == ["a"]) && exec.env.is_some_and(|env| env.len() == 1));
        let other = entries(Some("y")).expect("another context");
        assert_eq!(other.user.exec.and_then(|exec| exec.command).as_deref(), Some("aws"));
        assert!(matches!(entries(Some("z")), Err(CommandError::Failed(_))));
    }
}
