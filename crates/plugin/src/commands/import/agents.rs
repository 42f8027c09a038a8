//! The files of the vendor's agents: a folder, or a ConfigMap with the Deployments that mount it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Volume};
use kube::api::ListParams;
use serde::Serialize;

use crate::api_session::{ApiSession, ResourceRequest};
use crate::arguments::CommandError;
use crate::program_settings::{AgentFiles, ProgramSettings};

/// Names of the agent's file, without its ending; the last one is that of old versions.
const NAMES: [&str; 3] = ["armory-agent", "armory-agent-local", "kubesvc"];
const ENDINGS: [&str; 2] = [".yml", ".yaml"];

/// Where an agent's files are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum AgentConfig {
    Folder(PathBuf),
    ConfigMap { namespace: Option<String>, name: String },
}

impl FromStr for AgentConfig {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let object = ["configmap/", "configmaps/", "cm/"].iter().find_map(|kind| text.strip_prefix(kind));
        Ok(match object.map(|object| object.split_once('/').map_or((None, object), |(n, o)| (Some(n), o))) {
            Some((namespace, name)) => {
                Self::ConfigMap { namespace: namespace.map(str::to_owned), name: name.to_owned() }
            }
            None => Self::Folder(PathBuf::from(text)),
        })
    }
}

/// What an agent's files say.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct VendorAgent {
    /// The folder or ConfigMap.
    pub(super) config: String,
    /// The zones that kubesvc's agents set as `zoneId`; empty: not known.
    pub(super) zone_ids: Vec<String>,
    /// Whether the files name the zone.
    pub(super) zone_is_written: bool,
    pub(super) accounts: Vec<AgentAccount>,
    /// What keeps kubesvc's agent from starting with the files.
    pub(super) refused: Vec<String>,
    /// What it ignores.
    pub(super) ignored: Vec<String>,
}

/// An account of an agent's own file.
#[derive(Clone, Debug, Serialize)]
pub(super) struct AgentAccount {
    pub(super) name: String,
    pub(super) credential: String,
}

/// Reads the files of an agent.
pub(super) async fn read(
    session: &ApiSession,
    config: &AgentConfig,
    programs: ProgramSettings,
) -> Result<VendorAgent, CommandError> {
    match config {
        AgentConfig::Folder(folder) => {
            let shown = folder.display().to_string();
            let files = files_in(folder).map_err(|error| format!("{shown}: {error}"))?;
            let read = read_copy(&shown, &files, programs)?;
            Ok(report(shown, read, Vec::new()))
        }
        AgentConfig::ConfigMap { namespace, name } => {
            let namespace = namespace.as_deref().unwrap_or(&session.namespace);
            let asked = ResourceRequest { verb: "get", resource: "configmaps", namespace: Some(namespace) };
            let map = session.ask(asked, session.api::<ConfigMap>(namespace).get(name)).await?;
            let shown = format!("configmap/{namespace}/{name}");
            let read = read_copy(&shown, &map.data.unwrap_or_default(), programs)?;
            let zones = match read.zone_id {
                Some(_) => Vec::new(),
                None => zones_of_deployments(session, namespace, name).await?,
            };
            Ok(report(shown, read, zones))
        }
    }
}

fn files_in(folder: &Path) -> std::io::Result<BTreeMap<String, String>> {
    let mut files = BTreeMap::new();
    for (name, ending) in NAMES.iter().flat_map(|name| ENDINGS.map(|ending| (name, ending))) {
        let name = format!("{name}{ending}");
        match fs::read_to_string(folder.join(&name)) {
            Ok(text) => drop(files.insert(name, text)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(std::io::Error::new(error.kind(), format!("{name}: {error}"))),
        }
    }
    Ok(files)
}

/// Reads the files from a folder that only the user may read, where the old name is replaced by the present one.
fn read_copy(
    shown: &str,
    files: &BTreeMap<String, String>,
    programs: ProgramSettings,
) -> Result<AgentFiles, CommandError> {
    let folder =
        tempfile::tempdir().map_err(|error| format!("no folder for the files of {shown}: {error}"))?;
    let of = |name: &str, stem: &str| ENDINGS.iter().any(|ending| name.strip_suffix(ending) == Some(stem));
    let has_present = files.keys().any(|name| NAMES[..2].iter().any(|stem| of(name, stem)));
    let (mut written, mut renamed) = (0, None);
    for (name, text) in files {
        let present = NAMES[..2].iter().any(|stem| of(name, stem));
        let old = !has_present && of(name, NAMES[2]);
        if !present && !old {
            continue;
        }
        let target = if old { name.replacen(NAMES[2], NAMES[0], 1) } else { name.clone() };
        fs::write(folder.path().join(&target), text).map_err(|error| format!("{shown}: {name}: {error}"))?;
        written += 1;
        if old {
            renamed = Some(format!("{name} is not read: mount it as {target}"));
        }
    }
    if written == 0 {
        return Err(CommandError::Failed(format!("{shown}: no armory-agent.yml is there")));
    }
    let mut read = (programs.agent)(folder.path());
    let prefix = format!("{}/", folder.path().display());
    for line in read.refused.iter_mut().chain(&mut read.ignored) {
        *line = line.replace(&prefix, "");
    }
    read.refused.extend(renamed);
    Ok(read)
}

fn report(config: String, read: AgentFiles, zones: Vec<String>) -> VendorAgent {
    let accounts = read.accounts.unwrap_or_default().into_iter();
    let zone_is_written = read.zone_id.is_some();
    VendorAgent {
        config,
        zone_ids: read.zone_id.into_iter().chain(zones).collect(),
        zone_is_written,
        accounts: accounts.map(|one| AgentAccount { name: one.name, credential: one.credential }).collect(),
        refused: read.refused,
        ignored: read.ignored,
    }
}

/// The zones of the vendor's agents that mount a ConfigMap and name no zone: Deployment and namespace. None if the user may
/// not list Deployments.
async fn zones_of_deployments(
    session: &ApiSession,
    namespace: &str,
    map: &str,
) -> Result<Vec<String>, CommandError> {
    let api = session.api::<Deployment>(namespace);
    let (deployments, _) = session.pages(&api, ListParams::default()).await?;
    let mounts = |volume: &Volume| {
        let projected = volume.projected.iter().flat_map(|projected| projected.sources.iter().flatten());
        let mut maps = projected.filter_map(|source| source.config_map.as_ref()).map(|one| &one.name);
        volume.config_map.as_ref().is_some_and(|one| one.name == map) || maps.any(|name| name == map)
    };
    let deployments = deployments.iter().filter(|one| {
        let pod = one.spec.as_ref().and_then(|spec| spec.template.spec.as_ref());
        pod.is_some_and(|pod| pod.volumes.iter().flatten().any(mounts))
    });
    Ok(deployments.filter_map(|one| Some(format!("{}_{namespace}", one.metadata.name.as_ref()?))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_config_map_is_told_from_a_folder() {
        let map = |namespace: Option<&str>, name: &str| AgentConfig::ConfigMap {
            namespace: namespace.map(str::to_owned),
            name: name.to_owned(),
        };
        for (text, expected) in [
            ("configmap/agent", map(None, "agent")),
            ("cm/spin/agent", map(Some("spin"), "agent")),
            ("./configmap", AgentConfig::Folder("./configmap".into())),
        ] {
            assert_eq!(text.parse(), Ok(expected), "{text}");
        }
    }
}
