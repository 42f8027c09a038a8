//! Parts of the benchmarks that are processes of their own: bare programs, and what serves or reads so much, or is killed,
//! that in the measuring process it would delay what is measured.

use std::process::{Command, ExitCode};

use kubesvc_testkit::{folder::Folder, process::Process};
use serde::{Deserialize, Serialize};

use crate::{echo, log_reader, scripted_cluster, watchers};

/// Environment variable with the file of a [`Part`].
const PART: &str = "BENCH_PART";

/// What a process of this program does instead of the benchmarks.
#[derive(Serialize, Deserialize)]
pub(crate) enum Part {
    BareHub(echo::BareHub),
    BareAgent(echo::BareAgent),
    LogReader(log_reader::Reading),
    ScriptedCluster(scripted_cluster::Script),
    Watchers(watchers::Watches),
}

impl Part {
    /// Starts it, with its files in this folder. The process is killed when it is dropped.
    pub(crate) fn start(&self, name: &str, folder: &Folder) -> Result<Process, String> {
        let part = serde_json::to_string(self).map_err(|e| e.to_string())?;
        let file = folder.write(&format!("{name}.json"), &part)?;
        let program = std::env::current_exe().map_err(|e| format!("where this program is: {e}"))?;
        let mut command = Command::new(program);
        command.env(PART, file).arg("--bench");
        Process::spawn(name, &command, &folder.file(&format!("{name}.log")))
    }

    async fn run(self) -> Result<(), String> {
        match self {
            Self::BareHub(hub) => hub.serve().await,
            Self::BareAgent(agent) => agent.serve().await,
            Self::LogReader(reading) => reading.read().await,
            Self::ScriptedCluster(script) => script.serve().await,
            Self::Watchers(watches) => watches.hold().await,
        }
    }
}

/// Runs the part that this process was started as, until the process is killed; `None`: it is not a part.
pub(crate) fn run() -> Option<ExitCode> {
    let file = std::env::var_os(PART)?;
    let _ = rustls::crypto::ring::default_provider().install_default();
    let ended = std::fs::read_to_string(&file)
        .map_err(|e| format!("{}: {e}", file.display()))
        .and_then(|part| serde_json::from_str::<Part>(&part).map_err(|e| e.to_string()))
        .and_then(|part| {
            let runtime = tokio::runtime::Runtime::new().map_err(|e| e.to_string())?;
            runtime.block_on(part.run())
        });
    Some(match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("{reason}");
            ExitCode::FAILURE
        }
    })
}
