//! Additional operators of a world: replicas on the same API server and database.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};

use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use super::operator::{Launch, Operator};
use super::rest::{self, Answer, Call};
use super::{World, prepare};
use kubesvc_testkit::{must, ports};

/// Default name of the Service that selects the replicas.
pub(crate) const SERVICE: &str = "spin-clouddriver";

impl World {
    /// Starts another replica with this id and the settings of the first, and waits until it is ready.
    pub(crate) async fn replica(&self, id: &str) -> Operator {
        let replica = self.unstarted_replica(id);
        replica.start().await;
        replica
    }

    /// Like [`World::replica`], but does not start it.
    pub(crate) fn unstarted_replica(&self, id: &str) -> Operator {
        self.differing_replica(id, &[], str::to_owned)
    }

    /// Like [`World::unstarted_replica`], with settings overridden by their dotted paths, and a kubeconfig derived
    /// from the first replica's.
    pub(crate) fn differing_replica(
        &self,
        id: &str,
        differing: &[(&str, Value)],
        kubeconfig: impl Fn(&str) -> String,
    ) -> Operator {
        let (rest, hub, calls) = (ports::free(), ports::free(), ports::free());
        let text = std::fs::read_to_string(self.folder.file("kubesvc.yml")).map_err(|e| e.to_string());
        let mut settings: Value = serde_json::from_str(&must(text)).expect("settings are written as JSON");
        prepare::set(&mut settings, "server.port", json!(rest));
        prepare::set(&mut settings, "kubesvc.grpc.server.port", json!(hub));
        prepare::set(&mut settings, "kubesvc.replicas.port", json!(calls));
        for (path, value) in differing {
            prepare::set(&mut settings, path, value.clone());
        }
        let log = self.folder.file(&format!("{id}.log"));
        self.logs.lock().push((id.to_owned(), log.clone()));
        let first = self.operator.launch();
        let text = must(std::fs::read_to_string(&first.kubeconfig).map_err(|e| e.to_string()));
        Operator::new(Launch {
            id: id.to_owned(),
            config: must(self.folder.write(&format!("kubesvc-{id}.yml"), &format!("{settings:#}"))),
            kubeconfig: must(self.folder.write(&format!("{id}.kubeconfig"), &kubeconfig(&text))),
            namespace: first.namespace.clone(),
            environment: first.environment.clone(),
            log,
            bears_file_limits: first.bears_file_limits,
            rest,
            hub,
            calls,
        })
    }

    /// Publishes a replica as Kubernetes would: in an EndpointSlice of the Service with the replica's pod. The
    /// address is one of this machine that is not loopback, because the API server rejects loopback addresses.
    pub(crate) async fn publish(&self, id: &str, replica: &Operator, ready: bool) {
        self.publish_at(id, replica, replica.calls_port(), ready).await;
    }

    /// Like [`World::publish`], with the port at which the others call the replica.
    pub(crate) async fn publish_at(&self, id: &str, replica: &Operator, calls: u16, ready: bool) {
        self.slice(
            id,
            json!({
                "metadata": {"name": id, "labels": {"kubernetes.io/service-name": SERVICE}},
                "addressType": "IPv4",
                "endpoints": [{
                    "addresses": [address().to_string()],
                    "conditions": {"ready": ready},
                    "targetRef": {"kind": "Pod", "name": id, "namespace": self.namespace()},
                }],
                "ports": [
                    {"name": "http", "port": replica.rest_port(), "protocol": "TCP"},
                    {"name": "replicas", "port": calls, "protocol": "TCP"},
                ],
            }),
        )
        .await;
    }

    async fn slice(&self, name: &str, mut slice: Value) {
        slice["apiVersion"] = json!("discovery.k8s.io/v1");
        slice["kind"] = json!("EndpointSlice");
        let params = PatchParams::apply("test").force();
        let answer = self.api::<EndpointSlice>().patch(name, &params, &Patch::Apply(slice)).await;
        must(answer.map_err(|e| format!("EndpointSlice {name}: {e}")));
    }
}

impl Operator {
    /// Calls the replica's REST API.
    ///
    /// # Errors
    ///
    /// There is no answer.
    pub(crate) async fn call(&self, call: Call) -> Result<Answer, String> {
        rest::send(self.rest_port(), call).await
    }

    /// Sends a `GET` request.
    ///
    /// # Errors
    ///
    /// There is no answer.
    pub(crate) async fn get(&self, path: &str) -> Result<Answer, String> {
        self.call(Call::get(path)).await
    }
}

/// Returns the address that this machine uses for outgoing traffic. Sends nothing.
pub(crate) fn address() -> Ipv4Addr {
    let found = UdpSocket::bind("0.0.0.0:0").and_then(|socket| {
        socket.connect("203.0.113.1:9")?;
        socket.local_addr()
    });
    match found {
        Ok(SocketAddr::V4(address)) if !address.ip().is_loopback() => *address.ip(),
        found => must(Err(format!("these tests need an IPv4 address that is not a loopback one: {found:?}"))),
    }
}
