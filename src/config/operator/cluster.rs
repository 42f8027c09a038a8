//! How replicas find one another.

use std::path::PathBuf;

use crate::config::error::ConfigProblem;
use crate::config::layer::Values;

const MODE: &str = "kubesvc.cluster";

/// How replicas find one another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterSettings {
    /// Whether they look for one another at all.
    pub mode: ClusterMode,
    /// The kubeconfig of the API server that has their Endpoints; `None`: the operator's own API server.
    pub kubeconfig_file: Option<PathBuf>,
    /// Whether that API server's certificate must be trusted.
    pub verify_ssl: bool,
    /// Namespace of their Endpoints; `None`: the operator's own.
    pub namespace: Option<String>,
    /// Name of the REST port in their Service.
    pub http_port_name: String,
    /// Prefix of their Service's name.
    pub service_name_prefix: String,
    /// Whether the operator exits if it may not list and watch their Endpoints and EndpointSlices.
    pub fail_fast: bool,
    /// Domain of the pod names by which replicas are reached; `None`: they are reached by address.
    pub pod_domain: Option<String>,
}

/// Whether replicas look for one another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClusterMode {
    /// There is a single replica.
    Local,
    /// They watch their own Endpoints and EndpointSlices.
    Kubernetes,
}

pub(super) fn build(v: &Values) -> Result<ClusterSettings, ConfigProblem> {
    let by_name = v.boolean("kubesvc.cluster-kubernetes.useDNS")?;
    let domain = v.string("kubesvc.cluster-kubernetes.domainName")?;
    Ok(ClusterSettings {
        mode: mode(v)?,
        kubeconfig_file: v.optional("kubesvc.cluster-kubernetes.kubeconfigFile")?.map(PathBuf::from),
        verify_ssl: v.boolean("kubesvc.cluster-kubernetes.verifySsl")?,
        namespace: v.optional("kubesvc.cluster-kubernetes.namespace")?,
        http_port_name: v.string("kubesvc.cluster-kubernetes.httpPortName")?,
        service_name_prefix: v.string("kubesvc.cluster-kubernetes.clouddriverServiceNamePrefix")?,
        fail_fast: v.boolean("kubesvc.cluster-kubernetes.failFast")?,
        pod_domain: by_name.then_some(domain),
    })
}

/// A SQLite file belongs to one process, so there are no other replicas. Several replicas, each with its own file,
/// would each lead.
fn mode(v: &Values) -> Result<ClusterMode, ConfigProblem> {
    Ok(match (v.optional(MODE)?.as_deref(), is_sqlite(v)?) {
        (Some("local"), _) | (None, true) => ClusterMode::Local,
        (None, false) | (Some(_), false) => ClusterMode::Kubernetes,
        (Some(_), true) => {
            return Err(ConfigProblem::Rule {
                place: v.origin(MODE),
                key: MODE.to_owned(),
                why: format!(
                    "is for several replicas, and kubesvc.database.url names SQLite, which serves one: give the \
                     replicas MySQL, MariaDB or PostgreSQL, or set {MODE}: local"
                ),
            });
        }
    })
}

fn is_sqlite(v: &Values) -> Result<bool, ConfigProblem> {
    Ok(v.string("kubesvc.database.url")?.starts_with("sqlite:"))
}

/// Warnings about these settings, one line each.
pub(crate) fn notes(v: &Values) -> Result<Vec<String>, ConfigProblem> {
    let mode = v.optional(MODE)?;
    let mut notes = Vec::new();
    if mode.as_deref() == Some("database") {
        notes.push(format!(
            "`{MODE}: database` is treated as kubernetes: replicas find one another through the API server"
        ));
    }
    Ok(notes)
}
