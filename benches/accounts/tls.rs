//! TLS: agents with certificates of their own, compared with a bare tonic server over the same TLS, and with plaintext.

use std::path::Path;

use tonic::transport::{Certificate, Identity, ServerTlsConfig};

use crate::{
    crowd, idle,
    options::Options,
    progress::say,
    report::{Report, Row, Wanted},
    statistics::{Series, shown},
};
use kubesvc_testkit::{folder::Folder, kubeconfig::Authority, simulated_agent::SimulatedTls};

const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";
const AUTHORITY: &str = "ca.crt";
/// Memory that TLS may add to an idle agent's connection, in KiB.
const ALLOWED: f64 = 24.0;

/// Certificates of both sides, under one authority.
#[derive(Debug)]
pub(crate) struct BenchTls {
    folder: Folder,
    /// What the agents show and trust.
    pub(crate) client: SimulatedTls,
}

impl BenchTls {
    fn new() -> Result<Self, String> {
        let (authority, folder) = (Authority::new("kubesvc bench TLS")?, Folder::new("bench-tls")?);
        let server = authority.server(&["localhost"])?;
        folder.write(CERTIFICATE, &server.certificate)?;
        folder.write(KEY, &server.key)?;
        folder.write(AUTHORITY, &authority.pem())?;
        let identity = Some(authority.client("agent", None)?);
        Ok(Self { folder, client: SimulatedTls { authority: authority.pem(), identity } })
    }

    /// Folder with the server's files.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// `kubesvc.grpc.server.security`, as YAML.
    pub(crate) fn settings(&self) -> String {
        let path = |name| self.folder.file(name).display().to_string();
        format!(
            "{{enabled: true, certificateChain: '{}', privateKey: '{}', trustCertCollection: '{}', clientAuth: REQUIRE}}",
            path(CERTIFICATE),
            path(KEY),
            path(AUTHORITY)
        )
    }
}

/// TLS of a bare tonic server with the files of a folder.
///
/// # Errors
///
/// A file cannot be read.
pub(crate) fn of_bare_server(folder: &Path) -> Result<ServerTlsConfig, String> {
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).map_err(|e| format!("{name}: {e}"));
    let identity = Identity::from_pem(read(CERTIFICATE)?, read(KEY)?);
    Ok(ServerTlsConfig::new().identity(identity).client_ca_root(Certificate::from_pem(read(AUTHORITY)?)))
}

/// Runs the benchmark and adds its results to the report.
///
/// # Errors
///
/// The benchmark could not run.
pub(crate) async fn run(options: &Options, report: &mut Report) -> Result<(), String> {
    let (plane, tls, count) = (crate::control_plane().await?, BenchTls::new()?, options.accounts);
    let (mut bare, mut hub, mut memory) = (Vec::new(), Vec::new(), Vec::new());
    for round in 1..=options.rounds {
        bare.push(crowd::at_bare_server(&plane, count, true, Some(&tls)).await?);
        hub.push(crowd::at_hub(&plane, count, 0, Some(&tls)).await?);
        let plain = idle::of_hub(count, None).await?;
        memory.push(idle::of_hub(count, Some(&tls)).await? - plain);
        say(&format!(
            "tls {round}/{}: {count} agents: bare server {} s, kubesvc {} s; {:.1} KiB a session more than plaintext",
            options.rounds,
            shown(bare[round - 1]),
            shown(hub[round - 1]),
            memory[round - 1]
        ));
    }
    let ratio: Series = hub.iter().zip(&bare).map(|(hub, bare)| hub / bare).collect();
    let series = |all: &[f64]| all.iter().copied().collect::<Series>();
    let mut add = |what: &str, all: &Series, wanted| {
        report.add(Row::series("tls", &format!("{count} agents over mTLS: {what}"), all, wanted));
    };
    add("a bare server registers each first, s", &series(&bare), Wanted::Nothing);
    add("accepted by the operator, s", &series(&hub), Wanted::Nothing);
    add("times the bare server", &ratio, Wanted::AtMost(1.5));
    add("KiB an idle session more than plaintext", &series(&memory), Wanted::AtMost(ALLOWED));
    Ok(())
}
