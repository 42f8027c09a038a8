//! A target cluster of an account: an API server and a user.

use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use kube::api::{Api, PostParams};
use serde_json::json;

use super::{World, rights};
use kubesvc_testkit::{kubeconfig::Proof, must};

/// A service account on the world's control plane that may read everything, and its token. Each token is unique, so
/// that a test can search for it.
pub(crate) struct Cluster {
    token: String,
    server: String,
    authority: String,
}

impl World {
    /// Creates a user of the world's own control plane, which also serves as target cluster.
    pub(crate) async fn cluster(&self, user: &str) -> Cluster {
        let cluster = self.cluster_without_rights(user).await;
        self.let_read(user, &format!("system:serviceaccount:{}:{user}", self.namespace())).await;
        cluster
    }

    /// Like [`World::cluster`], but the user has only the permissions of every service account.
    pub(crate) async fn cluster_without_rights(&self, user: &str) -> Cluster {
        let accounts = self.api::<ServiceAccount>();
        let mut account = ServiceAccount::default();
        account.metadata.name = Some(user.to_owned());
        must(accounts.create(&PostParams::default(), &account).await.map_err(|e| format!("{user}: {e}")));
        let request = TokenRequest {
            spec: TokenRequestSpec { expiration_seconds: Some(7200), ..TokenRequestSpec::default() },
            ..TokenRequest::default()
        };
        let answer = accounts.create_token_request(user, &PostParams::default(), &request).await;
        let token = must(answer.map_err(|e| format!("a token for {user}: {e}")));
        Cluster {
            token: token.status.expect("the API server fills it").token,
            server: self.plane.server_url(),
            authority: self.plane.ca_pem(),
        }
    }

    /// Like [`World::cluster`], but the user may read these resources alone.
    pub(crate) async fn cluster_with_rights(&self, user: &str, resources: &[&str]) -> Cluster {
        let cluster = self.cluster_without_rights(user).await;
        self.may_read(user, resources).await;
        let name = format!("{}-{user}", self.namespace());
        let account = format!("system:serviceaccount:{}:{user}", self.namespace());
        rights::bind_everywhere(&self.client, &name, &account).await;
        cluster
    }

    /// Changes what a user of [`World::cluster_with_rights`] may read.
    pub(crate) async fn may_read(&self, user: &str, resources: &[&str]) {
        let name = format!("{}-{user}", self.namespace());
        let rule = json!([{"apiGroups": ["*"], "resources": resources, "verbs": ["get", "list", "watch"]}]);
        rights::write_role(&self.client, &name, serde_json::from_value(rule).expect("a fixed rule")).await;
    }

    /// Creates a namespace in the cluster; its name begins with that of the world's own namespace.
    pub(crate) async fn add_namespace(&self, suffix: &str) -> String {
        let mut namespace = Namespace::default();
        let name = format!("{}-{suffix}", self.namespace());
        namespace.metadata.name = Some(name.clone());
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        let created = namespaces.create(&PostParams::default(), &namespace).await;
        must(created.map_err(|e| format!("{name}: {e}")));
        name
    }

    /// Allows a user of the control plane to read everything, under a role whose name ends in `suffix`.
    pub(crate) async fn let_read(&self, suffix: &str, user: &str) {
        let name = format!("{}-{suffix}", self.namespace());
        let may_read = json!([{"apiGroups": ["*"], "resources": ["*"], "verbs": ["get", "list", "watch"]}]);
        rights::write_role(&self.client, &name, serde_json::from_value(may_read).expect("a fixed rule"))
            .await;
        rights::bind_everywhere(&self.client, &name, user).await;
    }
}

impl Cluster {
    /// Returns a kubeconfig that an agent can use.
    pub(crate) fn kubeconfig(&self) -> String {
        self.kubeconfig_with(Proof::Token(&self.token))
    }

    /// Returns a kubeconfig for the same API server with another credential.
    pub(crate) fn kubeconfig_with(&self, proof: Proof<'_>) -> String {
        kubesvc_testkit::kubeconfig::yaml(&self.server, &self.authority, proof)
    }

    /// Like [`Cluster::kubeconfig`], with another address of the API server.
    pub(crate) fn kubeconfig_at(&self, server: &str) -> String {
        kubesvc_testkit::kubeconfig::yaml(server, &self.authority, Proof::Token(&self.token))
    }

    /// Returns a kubeconfig on one line and without an exclamation mark, as a secret reference may contain it.
    pub(crate) fn kubeconfig_in_one_line(&self) -> String {
        let (server, token) = (&self.server, &self.token);
        format!(
            "{{kind: Config, current-context: c, contexts: [{{name: c, context: {{cluster: c, user: u}}}}], \
             clusters: [{{name: c, cluster: {{server: '{server}', insecure-skip-tls-verify: true}}}}], \
             users: [{{name: u, user: {{token: '{token}'}}}}]}}"
        )
    }

    /// Token of the user.
    pub(crate) fn token(&self) -> &str {
        &self.token
    }

    /// URL of the API server.
    pub(crate) fn server(&self) -> &str {
        &self.server
    }

    /// Authority of the API server's certificate, as PEM.
    pub(crate) fn authority(&self) -> &str {
        &self.authority
    }
}
