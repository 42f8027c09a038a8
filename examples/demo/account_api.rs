//! The API of accounts in the demo: what serves it, and the person who uses it with kubectl.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::Demo;
use super::screen::Screen;
use super::stage::{NAMESPACE, program};
use kubesvc_testkit::{controlplane::ControlPlane, kubectl};

/// The person who deploys.
pub(crate) const PERSON: &str = "jane";
/// A Deployment, as a person has it in a file.
const DEPLOYMENT: &str = "\
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: web, image: web}]}
";

/// An address of this machine at which API servers pass calls on: a loopback one is refused by them.
pub(crate) fn address() -> Result<IpAddr, String> {
    let socket = UdpSocket::bind("0.0.0.0:0").and_then(|socket| {
        // Sends nothing.
        socket.connect("203.0.113.1:9")?;
        socket.local_addr()
    });
    match socket.as_ref().map(SocketAddr::ip) {
        Ok(address) if !address.is_loopback() => Ok(address),
        _ => Err(format!("the demo needs an IPv4 address that is not a loopback one: {socket:?}")),
    }
}

/// What `config/gateway` has, for an operator outside of the cluster; and rights for a person.
pub(crate) async fn install(home: &ControlPlane, address: IpAddr, port: u16) -> Result<(), String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("config");
    let read = |file: &str| {
        let file = folder.join("gateway").join(file);
        let text = std::fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
        Ok::<_, String>(
            text.replace("namespace: kubesvc\n", &format!("namespace: {NAMESPACE}\n"))
                .replace("port: 6443", &format!("port: {port}")),
        )
    };
    let service = format!(
        "---
apiVersion: v1
kind: Service
metadata: {{name: kubesvc-operator}}
spec: {{ports: [{{name: kube-api, port: {port}, targetPort: {port}}}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: kubesvc-operator, labels: {{kubernetes.io/service-name: kubesvc-operator}}}}
addressType: IPv4
ports: [{{name: kube-api, port: {port}, protocol: TCP}}]
endpoints: [{{addresses: ['{address}'], conditions: {{ready: true}}}}]
"
    );
    let cluster_wide = [read("api-service.yaml")?, read("rbac.yaml")?].join("---\n");
    // Objects without a namespace go into that of the operator; the others keep theirs.
    for objects in [cluster_wide, service] {
        let (namespaced, fixed): (Vec<_>, Vec<_>) =
            objects.split("---\n").partition(|object| !object.contains("namespace: kube-system"));
        let (namespaced, fixed) = (namespaced.join("---\n"), fixed.join("---\n"));
        home.kubectl_with_input(["apply", "-n", NAMESPACE, "-f", "-"], &namespaced).await.ok()?;
        if !fixed.is_empty() {
            home.kubectl_with_input(["apply", "-f", "-"], &fixed).await.ok()?;
        }
    }
    home.kubectl(["apply", "-k", &folder.join("people").display().to_string()]).await.ok()?;
    for role in ["kubesvc-view", "kubesvc-api-edit"] {
        let (name, role) = (format!("{PERSON}-{role}"), format!("--clusterrole={role}"));
        let user = format!("--user={PERSON}");
        home.kubectl(["create", "rolebinding", &name, &role, &user, "-n", NAMESPACE]).await.ok()?;
    }
    Ok(())
}

impl Demo {
    /// Runs `kubectl kubesvc` as the person.
    async fn plugin(&self, args: &[&str], input: &str) -> Result<String, String> {
        let environment = [
            format!("KUBECTL={}", self.kubectl.display()),
            format!("KUBESVC_OPERATOR_URL={}", self.url()),
            program("kubectl-kubesvc")?.display().to_string(),
        ];
        let all = environment.iter().map(String::as_str).chain(args.iter().copied());
        kubectl::run(Path::new("/usr/bin/env"), &self.person_kubeconfig(), all, input).await?.ok()
    }

    pub(super) fn person_kubeconfig(&self) -> PathBuf {
        self.files.folder.file("jane.kubeconfig")
    }

    /// A Deployment, by kubectl through the agent; its row follows.
    pub(super) async fn deploy(&self, screen: &Screen) -> Result<(), String> {
        screen
            .step("the API of accounts: served behind the operator's API server", async {
                let available = "--for=condition=Available";
                let service = "apiservice/v1alpha1.proxy.kubesvc.io";
                self.kubectl(&["wait", available, service, "--timeout=30s"]).await?.ok().map(drop)
            })
            .await?;
        screen
            .step("jane: kubectl apply of a Deployment, through the agent", async {
                self.plugin(&["on", "good", "--", "apply", "-f", "-"], DEPLOYMENT).await?;
                self.cached("web", Some(1)).await
            })
            .await?;
        screen
            .step("… scaled to 3 with a kubeconfig of its own: so is its row", async {
                let printed = self.plugin(&["kubeconfig", "good"], "").await?;
                let kubeconfig = self.files.folder.write("good.kubeconfig", &printed)?;
                let scale = ["scale", "deployment", "web", "--replicas=3", "-n", "shop"];
                kubectl::run(&self.kubectl, &kubeconfig, scale, "").await?.ok()?;
                self.cached("web", Some(3)).await
            })
            .await?;
        screen
            .step("the history has both, with her name", async {
                kubesvc_testkit::wait::try_eventually(
                    "records of what was done",
                    std::time::Duration::from_secs(15),
                    async || {
                        let text = self.plugin(&["operations", "good", "-o", "json"], "").await?;
                        let records: Vec<Value> = serde_json::from_str(&text).map_err(|e| e.to_string())?;
                        let hers = records
                            .iter()
                            .filter(|one| one["principal"] == PERSON && one["finalOutcome"] == "completed");
                        if hers.count() >= 2 { Ok(()) } else { Err(text) }
                    },
                )
                .await
            })
            .await
    }

    /// The object, its row and the history, as the person sees them.
    pub(super) async fn show_deployed(&self, screen: &Screen) -> Result<(), String> {
        for args in [
            &["on", "good", "--", "get", "deployment", "web", "-n", "shop"][..],
            &["cache", "good", "deployment/web", "-n", "shop"],
            &["operations", "good"],
        ] {
            let output = self.plugin(args, "").await?;
            screen.command(&format!("kubectl kubesvc {}", args.join(" ")), &output);
        }
        Ok(())
    }
}
