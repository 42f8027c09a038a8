//! Callers with tokens and rights, and their calls.

use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::Value;

use crate::world::{Answer, Call, Operator, World};
use kubesvc_testkit::must;

/// A service account that calls.
pub(crate) struct Caller {
    pub(crate) token: String,
}

impl World {
    /// Lets a user of the target cluster do everything there.
    pub(crate) async fn let_write(&self, user: &str) {
        let namespace = self.namespace();
        let name = format!("{namespace}-{user}-writes");
        let account = format!("--serviceaccount={namespace}:{user}");
        let create = ["create", "clusterrolebinding", &name, "--clusterrole=cluster-admin", &account];
        must(self.control_plane().kubectl(create).await.ok());
    }

    /// Creates a caller with these verbs on the accounts of the world's namespace.
    pub(crate) async fn caller(&self, name: &str, verbs: &[&str]) -> Caller {
        let (namespace, plane) = (self.namespace(), self.control_plane());
        let verbs = verbs.join(",");
        let objects = format!(
            "apiVersion: v1\nkind: ServiceAccount\nmetadata: {{name: {name}, namespace: {namespace}}}\n---\n\
             apiVersion: rbac.authorization.k8s.io/v1\nkind: Role\nmetadata: {{name: {name}, namespace: {namespace}}}\n\
             rules: [{{apiGroups: [proxy.kubesvc.io], resources: [accounts/proxy], verbs: [{verbs}]}}]\n---\n\
             apiVersion: rbac.authorization.k8s.io/v1\nkind: RoleBinding\nmetadata: {{name: {name}, namespace: {namespace}}}\n\
             roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: Role, name: {name}}}\n\
             subjects: [{{kind: ServiceAccount, name: {name}, namespace: {namespace}}}]\n"
        );
        must(plane.kubectl_with_input(["apply", "-f", "-"], &objects).await.ok());
        Caller { token: self.token_of(name, "kubesvc").await }
    }

    /// A token of a service account for an audience.
    pub(crate) async fn token_of(&self, name: &str, audience: &str) -> String {
        let audience = format!("--audience={audience}");
        let create = ["create", "token", name, "-n", self.namespace(), &audience];
        must(self.control_plane().kubectl(create).await.ok()).trim().to_owned()
    }

    /// The value of `key` in a ConfigMap.
    pub(crate) async fn config_map_value(&self, name: &str) -> Option<String> {
        let found = must(self.api::<ConfigMap>().get_opt(name).await.map_err(|e| e.to_string()))?;
        found.data?.get("key").cloned()
    }
}

impl Caller {
    fn signed(&self, call: Call) -> Call {
        call.header("authorization", &format!("Bearer {}", self.token))
    }

    /// Calls a replica.
    pub(crate) async fn call(&self, replica: &Operator, call: Call) -> Answer {
        must(replica.call(self.signed(call)).await)
    }

    /// Reads from a replica.
    pub(crate) async fn get(&self, replica: &Operator, path: &str) -> Answer {
        self.call(replica, Call::get(path)).await
    }

    /// Like [`Caller::get`], but returns errors.
    pub(crate) async fn try_get(&self, replica: &Operator, path: &str) -> Result<Answer, String> {
        replica.call(self.signed(Call::get(path))).await
    }

    /// Runs an operation.
    pub(crate) async fn run(&self, replica: &Operator, query: &str, body: &Value) -> Answer {
        must(self.try_run(replica, query, body).await)
    }

    /// Like [`Caller::run`], but returns errors.
    pub(crate) async fn try_run(
        &self,
        replica: &Operator,
        query: &str,
        body: &Value,
    ) -> Result<Answer, String> {
        let call = Call::new("POST", &format!("/armory/agent/operations{query}")).json(body);
        replica.call(self.signed(call)).await
    }
}
