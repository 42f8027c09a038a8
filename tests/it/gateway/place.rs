//! An operator that serves the API of an account, an agent of the account's cluster, and people who call.

use std::path::PathBuf;

use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use kube::api::PostParams;
use kubesvc_core::State;
use serde_json::{Value, json};

use crate::world::{Agent, MAX_WAIT, Prepare, World, address, in_repository};
use kubesvc_testkit::controlplane::{self, Reused};
use kubesvc_testkit::kubeconfig::{self, Proof};
use kubesvc_testkit::kubectl::Output;
use kubesvc_testkit::wait::eventually;
use kubesvc_testkit::{must, ports};

/// The account's object.
pub(crate) const ACCOUNT: &str = "prod";

/// What a person may do with accounts, as rules of a Role.
pub(crate) const EVERYTHING: &str = r#"[{"apiGroups": ["proxy.kubesvc.io"], "resources": ["accounts/proxy", "accounts/connect"], "verbs": ["*"]}]"#;
/// Only reading.
pub(crate) const READING: &str =
    r#"[{"apiGroups": ["proxy.kubesvc.io"], "resources": ["accounts/proxy"], "verbs": ["get"]}]"#;

/// A world with an account whose API is served.
pub(crate) struct Place {
    pub(crate) world: World,
    /// The account's cluster.
    pub(crate) target: Reused,
    pub(crate) agent: Agent,
    /// The gateway's port.
    pub(crate) port: u16,
    /// The authority of its certificate, PEM.
    pub(crate) authority: String,
}

impl Place {
    /// Starts everything, with an APIService if the operator's API server is to pass calls on.
    pub(crate) async fn start(is_aggregated: bool) -> Self {
        Self::logging(is_aggregated, "debug").await
    }

    /// Like [`Place::start`], with programs that log at this level.
    pub(crate) async fn logging(is_aggregated: bool, level: &'static str) -> Self {
        Self::of(World::prepare(), is_aggregated, level).await
    }

    /// Starts everything with these settings.
    pub(crate) async fn of(prepare: Prepare, is_aggregated: bool, level: &'static str) -> Self {
        let port = ports::free();
        let prepared = prepare
            .with_long_timeouts()
            .setting("logging.level", level)
            .setting("kubesvc.gateway.enabled", true)
            .setting("kubesvc.gateway.server.address", "*")
            .setting("kubesvc.gateway.server.port", port)
            .setting("kubesvc.clouddriver.push.gateway", format!("https://localhost:{port}"))
            .operator_env("KUBESVC_GATEWAY_RECHECK_SECONDS", "2")
            .without_operator();
        let prepared = if is_aggregated { prepared.aggregating() } else { prepared.own_control_plane() };
        let (world, target) = tokio::join!(prepared.start(), controlplane::reused());
        install(&world, port, is_aggregated).await;
        world.operator().start().await;
        let agent = world
            .agent("agent-1")
            .log_level(level)
            .setting("kubernetes.requests.allow", json!(["read", "write", "connect"]))
            .start()
            .await;
        world.account(ACCOUNT).zone("east").kubeconfig(&target.admin_kubeconfig()).create().await;
        world.until(ACCOUNT, State::Active).await;
        let authority = eventually("a certificate of the gateway", MAX_WAIT, async || {
            let secret = world.api::<Secret>().get("kubesvc-gateway").await.map_err(|e| e.to_string())?;
            let data = secret.data.unwrap_or_default().remove("ca.crt").ok_or("no authority")?;
            Ok::<_, String>(String::from_utf8_lossy(&data.0).into_owned())
        })
        .await;
        Self { world, target, agent, port, authority }
    }

    /// The path of the account's API.
    pub(crate) fn path(&self) -> String {
        path_of(self.world.namespace(), ACCOUNT)
    }

    /// The path of the account's operations.
    pub(crate) fn operations_path(&self) -> String {
        format!("{}operations", self.path().trim_end_matches("proxy"))
    }

    /// Makes a person with these rights, and a token for this audience; without one, for the API server itself.
    pub(crate) async fn person(&self, name: &str, rules: &str, audience: Option<&str>) -> String {
        let namespace = self.world.namespace();
        let rules: Value = serde_json::from_str(rules).expect("fixed rules");
        let object = |kind: &str| json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": {"name": name}});
        let (mut role, mut binding) = (object("Role"), object("RoleBinding"));
        role["rules"] = rules;
        binding["roleRef"] = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name});
        binding["subjects"] = json!([{"kind": "ServiceAccount", "name": name, "namespace": namespace}]);
        let list = json!({"kind": "List", "apiVersion": "v1", "items": [role, binding]});
        self.world.apply(&list.to_string()).await;
        let accounts = self.world.api::<ServiceAccount>();
        let mut account = ServiceAccount::default();
        account.metadata.name = Some(name.to_owned());
        must(accounts.create(&PostParams::default(), &account).await.map_err(|e| e.to_string()));
        self.token(name, audience).await
    }

    /// Makes a token for a person.
    pub(crate) async fn token(&self, name: &str, audience: Option<&str>) -> String {
        let audiences = audience.map(|audience| vec![audience.to_owned()]).unwrap_or_default();
        let spec =
            TokenRequestSpec { audiences, expiration_seconds: Some(3600), ..TokenRequestSpec::default() };
        let request = TokenRequest { spec, ..TokenRequest::default() };
        let made = self.world.api::<ServiceAccount>();
        let made = made.create_token_request(name, &PostParams::default(), &request).await;
        must(made.map_err(|e| e.to_string())).status.expect("the API server fills it").token
    }

    /// A kubeconfig for the direct door.
    pub(crate) fn direct(&self, token: &str) -> PathBuf {
        let server = format!("https://localhost:{}{}", self.port, self.path());
        self.kubeconfig("direct", &server, &self.authority, token)
    }

    /// A kubeconfig for the door behind the operator's API server.
    pub(crate) fn aggregated(&self, token: &str) -> PathBuf {
        let plane = self.world.control_plane();
        let server = format!("{}{}", plane.server_url(), self.path());
        self.kubeconfig("aggregated", &server, &plane.ca_pem(), token)
    }

    fn kubeconfig(&self, name: &str, server: &str, authority: &str, token: &str) -> PathBuf {
        let text = kubeconfig::yaml(server, authority, Proof::Token(token));
        let name = format!("{name}-{}.kubeconfig", &token[token.len().saturating_sub(12)..]);
        must(self.world.folder().write(&name, &text))
    }
}

/// Path of the API of an account.
pub(crate) fn path_of(namespace: &str, object: &str) -> String {
    format!("/apis/proxy.kubesvc.io/v1alpha1/namespaces/{namespace}/accounts/{object}/proxy")
}

/// Runs kubectl.
pub(crate) async fn kubectl(kubeconfig: &std::path::Path, arguments: &[&str], input: &str) -> Output {
    must(controlplane::kubectl_with(kubeconfig, arguments, input).await)
}

/// Installs what `config/gateway` has, for the operator of this world.
pub(crate) async fn install(world: &World, port: u16, is_aggregated: bool) {
    let namespace = world.namespace();
    let read = |file: &str| {
        let file = in_repository(&format!("config/gateway/{file}"));
        must(std::fs::read_to_string(&file).map_err(|e| format!("{file}: {e}")))
    };
    // Worlds share a control plane, so that each has its own bindings.
    let rbac = read("rbac.yaml")
        .replace("namespace: kubesvc\n", &format!("namespace: {namespace}\n"))
        .replace(
            "name: kubesvc-operator-authentication-reader",
            &format!("name: {namespace}-authentication-reader"),
        )
        .replace("name: kubesvc-operator-gateway", &format!("name: {namespace}-gateway"));
    must(world.control_plane().kubectl_with_input(["apply", "-f", "-"], &rbac).await.ok());
    if !is_aggregated {
        return;
    }
    let service = read("api-service.yaml")
        .replace("namespace: kubesvc\n", &format!("namespace: {namespace}\n"))
        .replace("port: 6443", &format!("port: {port}"));
    must(world.control_plane().kubectl_with_input(["apply", "-f", "-"], &service).await.ok());
    let address = address();
    world
        .apply(&format!(
            r#"
apiVersion: v1
kind: Service
metadata: {{name: kubesvc-operator}}
spec:
  ports: [{{name: kube-api, port: {port}, targetPort: {port}}}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: kubesvc-operator
  labels: {{kubernetes.io/service-name: kubesvc-operator}}
addressType: IPv4
ports: [{{name: kube-api, port: {port}, protocol: TCP}}]
endpoints: [{{addresses: ["{address}"], conditions: {{ready: true}}}}]
"#
        ))
        .await;
}
