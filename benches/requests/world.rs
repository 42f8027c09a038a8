//! What the benchmarks run in: the operator's cluster, which is also an aggregating API server, a cluster of accounts, two
//! replicas on PostgreSQL, and an agent at the second. The first replica relays.

use std::{net::UdpSocket, time::Duration};

use k8s_openapi::api::{
    authentication::v1::{TokenRequest, TokenRequestSpec},
    core::v1::{Secret, ServiceAccount},
};
use kube::{Api, api::PostParams, runtime::wait::await_condition};
use kubesvc_core::{KubesvcAccount, State};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::{
    agent,
    callers::{Call, Caller, Door},
    objects::{self, Form},
    operator::{Database, Operator, Site},
};
use kubesvc_testkit::{
    controlplane::{ControlPlane, StartOptions},
    databases::Kind,
    folder::Folder,
    namespace::TestNamespace,
    process::Process,
    wait::try_eventually,
};

const GRACE: Duration = Duration::from_secs(120);
const MAX_WAIT: Duration = Duration::from_secs(120);
/// Name of the Service by which replicas find one another.
const PEERS: &str = "spin-clouddriver";

/// Number of accounts.
pub(crate) const ACCOUNTS: usize = 100;

/// The servers of all benchmarks.
pub(crate) struct World {
    pub(crate) home: ControlPlane,
    pub(crate) target: ControlPlane,
    /// Namespace of operator and accounts.
    pub(crate) namespace: TestNamespace,
    /// Namespace of the objects in the accounts' cluster.
    pub(crate) objects: TestNamespace,
    sites: [Site; 2],
}

impl World {
    pub(crate) async fn start() -> Result<Self, String> {
        let mut home = StartOptions::without_audit();
        home.aggregates = true;
        let (home, target) = tokio::try_join!(
            ControlPlane::start_with(home),
            ControlPlane::start_with(StartOptions::without_audit())
        )?;
        objects::install(&home).await?;
        let (namespace, objects) = (home.namespace().await, target.namespace().await);
        let first = Site::on(Database::Server(Kind::PostgreSql), &home, namespace.name(), GRACE).await?;
        let first = first.with_gateway(GRACE)?;
        let second = first.beside("bench-operator-2", GRACE)?.with_gateway(GRACE)?;
        Ok(Self { home, target, namespace, objects, sites: [first, second] })
    }

    /// Starts the replicas, and an agent that dials the second at this address; `None`: its own.
    pub(crate) async fn run(&self, hub: Option<&str>) -> Result<Running<'_>, String> {
        self.publish().await?;
        let first = self.sites[0].start()?;
        first.ready().await?;
        let second = self.sites[1].start()?;
        second.ready().await?;
        let folder = Folder::new("bench-agent")?;
        let agent = agent::start("agent-0", &folder, hub.unwrap_or(&self.sites[1].hub()))?;
        let mut running = Running {
            world: self,
            operators: [first, second],
            agent,
            authority: String::new(),
            token: String::new(),
            folder,
        };
        running.authority = running.authority().await?;
        running.token = self.token("caller").await?;
        Ok(running)
    }

    /// URL of the database of both replicas.
    pub(crate) fn database(&self) -> &str {
        self.sites[0].database()
    }

    /// Address of the hub that has the agent.
    pub(crate) fn hub(&self) -> String {
        self.sites[1].hub()
    }

    /// Tells replicas and API server where the replicas are.
    async fn publish(&self) -> Result<(), String> {
        let (namespace, address) = (self.namespace.name(), own_address()?);
        let slice = |name: &str, service: &str, ports: &[(&str, u16)], pod: &str| {
            let port = |(name, port): &(&str, u16)| json!({"name": name, "port": port, "protocol": "TCP"});
            let ports: Vec<_> = ports.iter().map(port).collect();
            json!({
                "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
                "metadata": {"name": name, "namespace": namespace, "labels": {"kubernetes.io/service-name": service}},
                "addressType": "IPv4",
                "endpoints": [{
                    "addresses": [address], "conditions": {"ready": true},
                    "targetRef": {"kind": "Pod", "name": pod, "namespace": namespace},
                }],
                "ports": ports,
            })
        };
        let [first, second] = &self.sites;
        let gateway = second.gateway();
        let list = json!({"apiVersion": "v1", "kind": "List", "items": [
            slice("peer-1", PEERS, &[("http", first.rest()), ("replicas", first.calls())], first.id()),
            slice("peer-2", PEERS, &[("http", second.rest()), ("replicas", second.calls())], second.id()),
            slice("gateway", "kubesvc-operator", &[("kube-api", gateway)], second.id()),
            {
                "apiVersion": "v1", "kind": "Service", "metadata": {"name": "kubesvc-operator", "namespace": namespace},
                "spec": {"ports": [{"name": "kube-api", "port": gateway, "targetPort": gateway}]},
            },
            {
                "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
                "metadata": {"name": "v1alpha1.proxy.kubesvc.io"},
                "spec": {
                    "group": "proxy.kubesvc.io", "version": "v1alpha1", "groupPriorityMinimum": 1000, "versionPriority": 10,
                    "service": {"name": "kubesvc-operator", "namespace": namespace, "port": gateway},
                },
            },
        ]});
        self.home.kubectl_with_input(["apply", "-f", "-"], &list.to_string()).await.ok().map(drop)
    }

    /// A token of a service account of this name, which may use every account.
    pub(crate) async fn token(&self, name: &str) -> Result<String, String> {
        let namespace = self.namespace.name();
        let object = |kind: &str| json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": {"name": name, "namespace": namespace}});
        let (mut role, mut binding) = (object("Role"), object("RoleBinding"));
        role["rules"] =
            json!([{"apiGroups": ["proxy.kubesvc.io"], "resources": ["accounts/proxy"], "verbs": ["*"]}]);
        binding["roleRef"] = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name});
        binding["subjects"] = json!([{"kind": "ServiceAccount", "name": name, "namespace": namespace}]);
        let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": namespace}});
        let list = json!({"apiVersion": "v1", "kind": "List", "items": [role, binding, account]});
        self.home.kubectl_with_input(["apply", "-f", "-"], &list.to_string()).await.ok()?;
        let spec = TokenRequestSpec {
            audiences: vec!["kubesvc".to_owned()],
            expiration_seconds: Some(7200),
            ..TokenRequestSpec::default()
        };
        let request = TokenRequest { spec, ..TokenRequest::default() };
        let accounts: Api<ServiceAccount> = self.namespace.api();
        let made = accounts.create_token_request(name, &PostParams::default(), &request).await;
        made.map_err(|e| e.to_string())?.status.map(|status| status.token).ok_or_else(|| "no token".into())
    }

    /// The cluster of the accounts, as its own clients use it, at this address; `None`: its own.
    pub(crate) fn direct(&self, address: Option<&str>) -> Result<Door, String> {
        let own = self.target.server_url();
        let own = own.trim_start_matches("https://");
        Ok(Door {
            address: address.unwrap_or(own).to_owned(),
            authority: Some(self.target.ca_pem()),
            token: token_of(&self.target)?,
        })
    }

    /// The door behind the operator's API server.
    pub(crate) fn aggregated(&self) -> Result<Door, String> {
        let address = self.home.server_url().trim_start_matches("https://").to_owned();
        Ok(Door { address, authority: Some(self.home.ca_pem()), token: token_of(&self.home)? })
    }

    /// Path of an account's API.
    pub(crate) fn account_path(&self, number: usize) -> String {
        let (namespace, name) = (self.namespace.name(), objects::name(number));
        format!("/apis/proxy.kubesvc.io/v1alpha1/namespaces/{namespace}/accounts/{name}/proxy")
    }

    /// Creates accounts from this number on, whose cluster is at this address.
    pub(crate) async fn create_accounts(
        &self,
        numbers: std::ops::Range<usize>,
        kubeconfig: &str,
    ) -> Result<(), String> {
        let (client, first) = (self.home.client().await, numbers.start);
        objects::each(numbers.len(), async |number| {
            objects::create_one(&client, self.namespace.name(), first + number, Form::Applied, kubeconfig)
                .await
        })
        .await
    }

    /// Waits until an account is ACTIVE.
    pub(crate) async fn one_active(&self, number: usize) -> Result<(), String> {
        let (accounts, name): (Api<KubesvcAccount>, _) = (self.namespace.api(), objects::name(number));
        let is_active = |account: Option<&KubesvcAccount>| {
            account.is_some_and(|account| account.status_or_default().state() == State::Active)
        };
        match timeout(MAX_WAIT, await_condition(accounts, &name, is_active)).await {
            Ok(watched) => watched.map(drop).map_err(|e| format!("{name}: {e}")),
            Err(_) => Err(format!("{name} is not ACTIVE")),
        }
    }

    /// Waits until accounts are ACTIVE.
    pub(crate) async fn active(&self, numbers: std::ops::Range<usize>) -> Result<(), String> {
        let accounts: Api<KubesvcAccount> = self.namespace.api();
        let wanted: std::collections::HashSet<_> = numbers.map(objects::name).collect();
        try_eventually("ACTIVE accounts", MAX_WAIT, async || {
            let list = accounts.list(&kube::api::ListParams::default()).await.map_err(|e| e.to_string())?;
            let active = list.items.iter().filter(|one| {
                wanted.contains(one.account_name()) && one.status_or_default().state() == State::Active
            });
            let count = active.count();
            if count == wanted.len() { Ok(()) } else { Err(format!("{count} of {} are", wanted.len())) }
        })
        .await
    }
}

/// The running programs.
pub(crate) struct Running<'w> {
    pub(crate) world: &'w World,
    pub(crate) operators: [Operator<'w>; 2],
    pub(crate) agent: Process,
    authority: String,
    token: String,
    folder: Folder,
}

impl Running<'_> {
    async fn authority(&self) -> Result<String, String> {
        let secrets: Api<Secret> = self.world.namespace.api();
        try_eventually("a certificate of the gateway", MAX_WAIT, async || {
            let secret = secrets.get("kubesvc-gateway").await.map_err(|e| e.to_string())?;
            let data = secret.data.unwrap_or_default().remove("ca.crt").ok_or("no authority")?;
            Ok::<_, String>(String::from_utf8_lossy(&data.0).into_owned())
        })
        .await
        .map_err(|reason| self.operators[0].explain(&reason))
    }

    /// Ends the agent, and starts it again at another place: it dials the hub at this address.
    pub(crate) async fn move_agent(&mut self, hub: &str) -> Result<(), String> {
        self.agent.terminate(Duration::from_secs(20)).await?;
        self.agent = agent::start("agent-0", &self.folder, hub)?;
        for replica in [1, 0] {
            self.answers(&self.gateway(replica), 0).await?;
        }
        Ok(())
    }

    /// The API of accounts at a replica; the agent is at the second, 1.
    pub(crate) fn gateway(&self, replica: usize) -> Door {
        Door {
            address: format!("localhost:{}", self.world.sites[replica].gateway()),
            authority: Some(self.authority.clone()),
            token: self.token.clone(),
        }
    }

    /// REST of a replica.
    pub(crate) fn rest(&self, replica: usize) -> Door {
        Door {
            address: format!("localhost:{}", self.world.sites[replica].rest()),
            authority: None,
            token: self.token.clone(),
        }
    }

    /// Waits until an account answers at a door.
    pub(crate) async fn answers(&self, door: &Door, account: usize) -> Result<(), String> {
        let call = Call::get(&format!("{}/version", self.world.account_path(account)));
        let answered = try_eventually("an answer of an account", MAX_WAIT, async || {
            Caller::connect(door).await?.timed(&call).await
        })
        .await;
        answered.map(drop).map_err(|reason| self.explain(&reason))
    }

    /// Waits until every account answers. An agent that was moved takes its accounts one after another.
    pub(crate) async fn all_answer(&self) -> Result<(), String> {
        for number in 0..ACCOUNTS {
            self.answers(&self.gateway(1), number).await?;
        }
        Ok(())
    }

    /// Appends the last lines of the programs' logs to an error message.
    pub(crate) fn explain(&self, reason: &str) -> String {
        let reason = self.operators[0].explain(reason);
        format!("{}\nthe agent's:\n{}", self.operators[1].explain(&reason), self.agent.log_tail(12))
    }

    /// The processes, to be measured.
    pub(crate) fn programs(&self) -> crate::processes::Programs {
        let (target, target_etcd) = self.world.target.process_ids();
        let (home, _) = self.world.home.process_ids();
        crate::processes::Programs::new(&[
            ("operator", self.operators[1].id()),
            ("relaying operator", self.operators[0].id()),
            ("agent", self.agent.id()),
            ("target kube-apiserver", target.unwrap_or_default()),
            ("target etcd", target_etcd),
            ("kube-apiserver", home.unwrap_or_default()),
        ])
    }
}

/// The administrator's token of a control plane.
fn token_of(plane: &ControlPlane) -> Result<String, String> {
    let kubeconfig = plane.admin_kubeconfig();
    let token = kubeconfig.lines().find_map(|line| line.split_once("{token: ")).map(|(_, token)| token);
    let token = token.map(|token| token.trim_end_matches('}').trim_matches('"').to_owned());
    token.ok_or_else(|| "a kubeconfig without a token".into())
}

/// The address that this machine uses for outgoing traffic. Sends nothing.
fn own_address() -> Result<String, String> {
    let found = UdpSocket::bind("0.0.0.0:0").and_then(|socket| {
        socket.connect("203.0.113.1:9")?;
        socket.local_addr()
    });
    found.map(|address| address.ip().to_string()).map_err(|e| format!("no address of this machine: {e}"))
}

/// A Deployment whose replicas are changed.
pub(crate) fn deployment(namespace: &str, name: &str) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "replicas": 1, "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {"containers": [{"name": "main", "image": "registry.example/shop:1"}]},
            },
        },
    })
}
