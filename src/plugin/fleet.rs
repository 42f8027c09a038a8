//! Lists agents.

use kube::Api;
use kube::api::ListParams;

use super::failure::{AGENTS, ApiRequest, CommandError};
use super::session::ApiSession;
use crate::account::KubesvcAgent;

impl ApiSession {
    /// Lists all agents of a namespace, or of all namespaces if `None`; by namespace, zone and id.
    pub(super) async fn list_agents(
        &self,
        namespace: Option<&str>,
    ) -> Result<Vec<KubesvcAgent>, CommandError> {
        let asked = ApiRequest { verb: "list", resource: AGENTS, namespace };
        match self.read_agents(namespace).await? {
            Ok(agents) => Ok(agents),
            Err(error) => Err(CommandError::Failed(asked.explain(&self.server, &error))),
        }
    }

    async fn read_agents(
        &self,
        namespace: Option<&str>,
    ) -> Result<kube::Result<Vec<KubesvcAgent>>, CommandError> {
        let api: Api<KubesvcAgent> = match namespace {
            Some(namespace) => self.api(namespace),
            None => Api::all(self.client.clone()),
        };
        let mut agents = Vec::new();
        let mut parameters = ListParams::default().limit(self.page);
        loop {
            let page = match self.try_ask(api.list(&parameters)).await? {
                Ok(page) => page,
                Err(error) => return Ok(Err(error)),
            };
            agents.extend(page.items);
            parameters.continue_token = page.metadata.continue_.filter(|token| !token.is_empty());
            if parameters.continue_token.is_none() {
                break;
            }
        }
        agents.sort_by(|a, b| key(a).cmp(&key(b)));
        Ok(Ok(agents))
    }

    /// Lists the agents that may hold an account of this namespace: those in the same namespace, which is the
    /// operator's unless the operator watches several, else those of all namespaces. `None` if the user may not list
    /// them.
    pub(super) async fn fleet_for(&self, namespace: &str) -> Result<Option<Vec<KubesvcAgent>>, CommandError> {
        let here = self.agents_if_allowed(Some(namespace)).await?;
        if here.as_ref().is_some_and(|agents| !agents.is_empty()) {
            return Ok(here);
        }
        let everywhere = self.agents_if_allowed(None).await?;
        Ok(everywhere.or(here))
    }

    async fn agents_if_allowed(
        &self,
        namespace: Option<&str>,
    ) -> Result<Option<Vec<KubesvcAgent>>, CommandError> {
        let asked = ApiRequest { verb: "list", resource: AGENTS, namespace };
        match self.read_agents(namespace).await? {
            Ok(agents) => Ok(Some(agents)),
            Err(kube::Error::Api(status)) if status.code == 403 => Ok(None),
            Err(error) => Err(CommandError::Failed(asked.explain(&self.server, &error))),
        }
    }
}

fn key(agent: &KubesvcAgent) -> (Option<&str>, &str, &str) {
    (agent.metadata.namespace.as_deref(), &agent.spec.zone_id, &agent.spec.agent_id)
}
