//! A second API server of a control plane, on the same etcd, as a highly available cluster has them.

use kube::Client;

use super::{ControlPlane, START, client_from, ready};
use crate::harness::{etcd_proxy::EtcdProxy, ports, process::Process, wait::try_eventually};

/// A second API server. Its watches can be held back, while its reads and writes go on: whoever watches through it
/// lives in the past.
#[derive(Debug)]
pub(crate) struct SecondServer {
    // Dropped in this order: without its etcd an API server hangs.
    process: Process,
    proxy: EtcdProxy,
    port: u16,
}

impl ControlPlane {
    /// Starts a second API server on the same etcd, and waits until it is ready. What it writes is in
    /// [`ControlPlane::writes`] too.
    ///
    /// # Errors
    ///
    /// It ends, or is not ready in time; the text has the last lines of its log.
    pub(crate) async fn second(&self) -> Result<SecondServer, String> {
        let proxy = EtcdProxy::to(&self.folder.file("etcd.sock")).await?;
        let port = ports::free();
        let name = format!("kube-apiserver-{port}");
        let command = self.apiserver_command_at(port, &proxy.url(), &format!("certificates-{port}"));
        let process = Process::spawn(&name, &command, &self.folder.file(&format!("{name}.log")))?;
        let second = SecondServer { process, proxy, port };
        let client = client_from(&second.instead(&self.admin_kubeconfig(), self)).await?;
        try_eventually("a second kube-apiserver", START, async || match second.process.check_running() {
            Err(reason) => Ok(Err(reason)),
            Ok(()) => async {
                ready(&client).await?;
                watched(&client).await
            }
            .await
            .map(Ok),
        })
        .await
        .map_err(|reason| format!("{reason}\n{}", second.process.log_tail(20)))??;
        Ok(second)
    }
}

/// Our objects can be watched. Until its cache is filled a server refuses that, and whoever tries again lists what is so
/// now.
async fn watched(client: &Client) -> Result<(), String> {
    for plural in ["kubesvcaccounts", "kubesvcagents"] {
        let path =
            format!("/apis/kubesvc.io/v1alpha1/{plural}?watch=true&resourceVersion=0&timeoutSeconds=1");
        let request = http::Request::get(&path).body(Vec::new()).map_err(|e| e.to_string())?;
        client.request_text(request).await.map_err(|e| format!("{path}: {e}"))?;
    }
    Ok(())
}

impl SecondServer {
    /// A kubeconfig of the control plane, for this server instead of the first.
    pub(crate) fn instead(&self, kubeconfig: &str, plane: &ControlPlane) -> String {
        kubeconfig.replace(&plane.server_url(), &format!("https://127.0.0.1:{}", self.port))
    }

    /// From now on its watches stand still, and its cache with them. Reads that ask for what is so now still hear it.
    pub(crate) fn hold_watches(&self) {
        self.proxy.hold_watches(Some(""));
    }

    /// As [`SecondServer::hold_watches`], of the accounts alone.
    pub(crate) fn hold_watches_of_accounts(&self) {
        self.proxy.hold_watches(Some("/kubesvc.io/kubesvcaccounts/"));
    }

    /// As [`SecondServer::hold_watches`], of the agents' objects alone.
    pub(crate) fn hold_watches_of_agents(&self) {
        self.proxy.hold_watches(Some("/kubesvc.io/kubesvcagents/"));
    }

    /// All that was kept back reaches whoever watches, and so does what comes.
    pub(crate) fn let_watches_go(&self) {
        self.proxy.hold_watches(None);
    }
}
