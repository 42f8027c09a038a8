//! A second API server of a control plane on the same etcd, as in a highly available cluster.

use kube::Client;

use super::{ControlPlane, START, client_from, ready};
use crate::harness::{etcd_proxy::EtcdProxy, ports, process::Process, wait::try_eventually};

/// A second API server. Its watches can be held back while its reads and writes continue, so that its watchers see
/// the past.
#[derive(Debug)]
pub(crate) struct SecondServer {
    // Dropped in this order: without its etcd an API server hangs.
    process: Process,
    proxy: EtcdProxy,
    port: u16,
}

impl ControlPlane {
    /// Starts a second API server on the same etcd and waits until it is ready. [`ControlPlane::writes`] includes its
    /// writes.
    ///
    /// # Errors
    ///
    /// It ends, or is not ready in time. The message contains the last lines of its log.
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

/// Waits until kubesvc's objects can be watched. Until its cache is filled, a server refuses watches, and a client
/// that retries then lists the current state.
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
    /// Rewrites a kubeconfig of the control plane to use this server instead of the first.
    pub(crate) fn instead(&self, kubeconfig: &str, plane: &ControlPlane) -> String {
        kubeconfig.replace(&plane.server_url(), &format!("https://127.0.0.1:{}", self.port))
    }

    /// Holds back its watches, and thereby its cache. Reads that request the latest state still return it.
    pub(crate) fn hold_watches(&self) {
        self.proxy.hold_watches(Some(""));
    }

    /// Like [`SecondServer::hold_watches`], but only for accounts.
    pub(crate) fn hold_watches_of_accounts(&self) {
        self.proxy.hold_watches(Some("/kubesvc.io/kubesvcaccounts/"));
    }

    /// Like [`SecondServer::hold_watches`], but only for the agents' objects.
    pub(crate) fn hold_watches_of_agents(&self) {
        self.proxy.hold_watches(Some("/kubesvc.io/kubesvcagents/"));
    }

    /// Releases the watches: delivers all events that were held, and all further ones.
    pub(crate) fn let_watches_go(&self) {
        self.proxy.hold_watches(None);
    }
}
