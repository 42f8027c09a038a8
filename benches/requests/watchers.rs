//! Clients that watch, in a process of their own, so that they can be killed.

use std::{
    process::{Command, ExitCode},
    time::Duration,
};

use futures::{StreamExt as _, TryStreamExt as _, stream};
use serde::{Deserialize, Serialize};

use crate::callers::{Call, Caller, Door};
use kubesvc_testkit::{folder::Folder, process::Process, wait::try_eventually};

/// Environment variable with the file of a [`Task`].
const WATCHERS: &str = "BENCH_WATCHERS";
/// What the process prints when all watches are open.
const OPEN: &str = "all watches are open";
/// Connections that are opened at once.
const AT_ONCE: usize = 16;

/// What the process does.
#[derive(Serialize, Deserialize)]
struct Task {
    door: Door,
    path: String,
    count: usize,
}

/// The process. It is killed when it is dropped.
pub(crate) struct Watchers {
    pub(crate) process: Process,
    _folder: Folder,
}

impl Watchers {
    /// Opens so many watches of a path, each on a connection of its own.
    pub(crate) async fn start(door: &Door, path: &str, count: usize) -> Result<Self, String> {
        let folder = Folder::new("bench-watchers")?;
        let task = Task { door: door.clone(), path: path.to_owned(), count };
        let task = serde_json::to_string(&task).map_err(|e| e.to_string())?;
        let file = folder.write("task.json", &task)?;
        let program = std::env::current_exe().map_err(|e| format!("where this program is: {e}"))?;
        let mut command = Command::new(program);
        command.env(WATCHERS, file).arg("--bench");
        let process = Process::spawn("watchers", &command, &folder.file("log"))?;
        try_eventually("open watches", Duration::from_secs(60), async || {
            if process.log_text().contains(OPEN) { Ok(()) } else { Err(process.log_tail(3)) }
        })
        .await?;
        Ok(Self { process, _folder: folder })
    }
}

/// Whether this process was started to watch.
pub(crate) fn is_watcher() -> bool {
    std::env::var_os(WATCHERS).is_some()
}

/// Watches until the process is killed.
pub(crate) fn watch() -> ExitCode {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let watched = tokio::runtime::Runtime::new().map_err(|e| e.to_string()).and_then(|runtime| {
        runtime.block_on(async {
            let file = std::env::var(WATCHERS).map_err(|e| e.to_string())?;
            let task = std::fs::read_to_string(&file).map_err(|e| format!("{file}: {e}"))?;
            let Task { door, path, count } = serde_json::from_str(&task).map_err(|e| e.to_string())?;
            let call = Call::get(&path);
            let opening = stream::iter(0..count).map(|_| open(&door, &call)).buffer_unordered(AT_ONCE);
            let held: Vec<_> = opening.try_collect().await?;
            eprintln!("{OPEN}");
            std::future::pending::<()>().await;
            drop(held);
            Ok::<_, String>(())
        })
    });
    match watched {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("watchers: {reason}");
            ExitCode::FAILURE
        }
    }
}

async fn open(door: &Door, call: &Call) -> Result<(Caller, impl Sized + use<>), String> {
    let mut caller = Caller::connect(door).await?;
    let answer = caller.begin(call).await?;
    if answer.status().is_success() { Ok((caller, answer)) } else { Err(format!("{}", answer.status())) }
}
