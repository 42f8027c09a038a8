//! By what agents are identified: the index of KubesvcIdentities, and what verifies tokens.

use std::sync::Arc;

use prometheus_client::registry::Registry;
use tokio_util::sync::CancellationToken;

use super::OperatorError;
use super::kube_client::RunLocation;
use super::settings::OperatorSettings;
use crate::agent_tokens::BearerTokens;
use crate::hub::{AgentIdentities, IdentityMode, KubeIdentityObjects};
use crate::informers::{IdentityIndex, watch_identities};
use kubesvc_runtime::background_tasks::BackgroundTasks;

/// What identifies agents, where they are asked for an identity.
pub(super) struct IdentityPorts {
    mode: IdentityMode,
    index: Arc<IdentityIndex>,
    tokens: Arc<BearerTokens>,
}

impl IdentityPorts {
    /// Reads the files that the settings name; `None`: nobody is asked for an identity.
    ///
    /// # Errors
    /// A file cannot be used.
    pub(super) async fn read(
        settings: &OperatorSettings,
        location: &RunLocation,
    ) -> Result<Option<Self>, OperatorError> {
        let Some(mode) = settings.agent_identities else { return Ok(None) };
        let index = Arc::<IdentityIndex>::default();
        let known = Arc::clone(&index);
        let secrets = Arc::new(move || known.token_secrets());
        let bearer = settings.bearer.clone().unwrap_or_default();
        let tokens = BearerTokens::read(&bearer, &location.kube, &location.namespace, secrets).await?;
        Ok(Some(Self { mode, index, tokens }))
    }

    /// Starts the watch of KubesvcIdentities, and the tasks that read keys and Secrets.
    pub(super) fn start(
        &self,
        location: &RunLocation,
        background: &BackgroundTasks,
        stop: &CancellationToken,
    ) -> AgentIdentities {
        let (kube, namespace) = (location.kube.clone(), location.namespace.clone());
        let objects = Arc::new(KubeIdentityObjects::new(&kube, &namespace));
        let watched = watch_identities(kube, namespace, Arc::clone(&self.index), stop.clone());
        background.spawn("watch of identities", "Keeps the index of KubesvcIdentities", watched);
        self.tokens.start(background);
        let (index, tokens) = (Arc::clone(&self.index), Arc::<BearerTokens>::clone(&self.tokens));
        AgentIdentities { mode: self.mode, index, tokens, objects }
    }

    /// Adds the metrics to a registry.
    pub(super) fn register(&self, registry: &mut Registry) {
        self.tokens.register(registry);
    }
}
