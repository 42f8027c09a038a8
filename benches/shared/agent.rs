//! The agent as a process.

use std::process::Command;

use crate::objects::ZONE;
use kubesvc_testkit::{folder::Folder, ports, process::Process};

/// Starts an agent of the zone, with its files in a folder. It dials `hub`, which is `host:port`.
///
/// # Errors
///
/// The program cannot be started.
pub(crate) fn start(id: &str, folder: &Folder, hub: &str) -> Result<Process, String> {
    let settings = format!(
        "clouddriver: {{grpc: '{hub}', insecure: true}}
zoneId: {ZONE}
server: {{host: 127.0.0.1, port: {}}}
logging: {{level: info, format: json}}
",
        ports::free()
    );
    folder.write("armory-agent.yml", &settings)?;
    let mut command = Command::new(env!("CARGO_BIN_EXE_kubesvc-agent"));
    command
        .current_dir(folder.path())
        .arg("--config-dir")
        .arg(folder.path())
        .env("AGENT_ID", id)
        .env_remove("POD_NAME")
        .env_remove("POD_NAMESPACE")
        .env_remove("RUST_LOG");
    Process::spawn("kubesvc-agent", &command, &folder.file("agent.log"))
}
