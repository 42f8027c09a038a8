//! The identity and location of this replica.

use kube::{Client, Config};

use super::arguments::RunArguments;
use super::{kube_client, kube_connection};
use crate::config::operator::OperatorSettings;

/// The identity and location of this replica.
pub(super) struct RunLocation {
    pub(super) client: Client,
    /// Configuration that the client was built from.
    pub(super) config: Config,
    pub(super) namespace: String,
    pub(super) replica_id: String,
    /// The namespaces to watch; a `None` stands for all.
    pub(super) watched: Vec<Option<String>>,
}

impl RunLocation {
    /// Determines them, and checks that the API server has what kubesvc needs.
    ///
    /// # Errors
    /// One line that says what is missing and what to do.
    pub(super) async fn find(arguments: &RunArguments, settings: &OperatorSettings) -> Result<Self, String> {
        let mut config = kube_client::config(arguments).await?;
        let namespace = arguments.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
        config.default_namespace.clone_from(&namespace);
        let server = config.cluster_url.to_string();
        let client = kube_connection::client(config.clone())?;
        let watched = match settings.watch_namespaces.as_slice() {
            [] => vec![Some(namespace.clone())],
            all if all.iter().any(|one| one == "*") => vec![None],
            some => some.iter().cloned().map(Some).collect(),
        };
        kube_client::check(&client, &server, &watched).await?;
        let replica_id = std::env::var("POD_NAME").unwrap_or_else(|_| {
            format!("{}-{}", gethostname::gethostname().to_string_lossy(), std::process::id())
        });
        Ok(Self { client, config, namespace, replica_id, watched })
    }

    /// Whether only accounts of the operator's own namespace are watched.
    pub(super) fn watches_own_alone(&self) -> bool {
        self.watched.iter().all(|watched| watched.as_ref() == Some(&self.namespace))
    }

    /// Whether accounts of this namespace are watched.
    pub(super) fn watches(&self, namespace: &str) -> bool {
        self.watched.iter().any(|watched| watched.as_deref().is_none_or(|one| one == namespace))
    }
}
