//! Command lines of etcd and kube-apiserver.

use std::{path::Path, process::Command};

use tokio::net::UnixStream;

use super::{ControlPlane, START};
use crate::harness::{assets::Assets, folder::Folder, process::Process, wait::try_eventually};

/// A socket in the folder of the control plane, where both programs run. With a TCP port, the API server could
/// connect to another process's etcd that has taken the port first.
const ETCD_URL: &str = "unix://etcd.sock";

impl ControlPlane {
    pub(super) fn apiserver_command(&self) -> Command {
        self.apiserver_command_at(self.port, ETCD_URL, "certificates")
    }

    /// Returns the command of an API server of this control plane on another port, with another URL of etcd and its
    /// own folder for generated certificates.
    pub(super) fn apiserver_command_at(&self, port: u16, etcd: &str, certificates: &str) -> Command {
        let flag = |name: &str, file: &str| format!("--{name}={}", self.folder.file(file).display());
        let mut command = Command::new(&self.assets.kube_apiserver);
        command
            .current_dir(self.folder.path())
            .arg(format!("--etcd-servers={etcd}"))
            .args(["--bind-address=127.0.0.1", &format!("--secure-port={port}")])
            .arg(flag("cert-dir", certificates))
            .arg(flag("tls-cert-file", "server.crt"))
            .arg(flag("tls-private-key-file", "server.key"))
            .arg(flag("client-ca-file", "ca.crt"))
            .arg(flag("token-auth-file", "tokens.csv"))
            .arg("--authorization-mode=RBAC")
            .arg("--service-account-issuer=https://kubernetes.default.svc")
            .arg(flag("service-account-key-file", "service-account.pub"))
            .arg(flag("service-account-signing-key-file", "service-account.key"))
            .arg("--service-cluster-ip-range=10.96.0.0/16")
            // No controller creates the default service account that this plugin would wait for.
            .arg("--disable-admission-plugins=ServiceAccount")
            // The reconciler would publish the server's own address, and 127.0.0.1 is not allowed there.
            .arg("--endpoint-reconciler-type=none")
            .arg("--allow-privileged=true");
        if self.options.audit {
            command
                .arg(flag("audit-policy-file", "audit-policy.yaml"))
                .arg(flag("audit-log-path", "audit.log"))
                .arg("--audit-log-mode=blocking");
        }
        command.args(&self.options.apiserver_flags);
        command
    }
}

pub(super) async fn start_etcd(assets: &Assets, folder: &Folder) -> Result<Process, String> {
    let mut command = Command::new(&assets.etcd);
    command
        .current_dir(folder.path())
        .args(["--data-dir", "etcd", "--listen-client-urls", ETCD_URL])
        // Required flags; nothing connects to these addresses.
        .args(["--advertise-client-urls", "http://127.0.0.1:0", "--listen-peer-urls", "http://127.0.0.1:0"])
        .args(["--unsafe-no-fsync", "--log-level=warn"]);
    let process = Process::spawn("etcd", &command, &folder.file("etcd.log"))?;
    try_eventually("etcd", START, async || match process.check_running() {
        Err(reason) => Ok(Err(reason)),
        Ok(()) => listening(&folder.file("etcd.sock")).await.map(Ok),
    })
    .await??;
    Ok(process)
}

async fn listening(socket: &Path) -> Result<(), String> {
    UnixStream::connect(socket).await.map(drop).map_err(|e| format!("{}: {e}", socket.display()))
}
