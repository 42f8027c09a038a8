//! Clients that watch, in a process of their own, so that they can be killed.

use std::time::Duration;

use futures::{StreamExt as _, TryStreamExt as _, stream};
use serde::{Deserialize, Serialize};

use crate::{
    callers::{Call, Caller, Door},
    parts::Part,
};
use kubesvc_testkit::{folder::Folder, process::Process, wait::try_eventually};

/// What the process prints when all watches are open.
const OPEN: &str = "all watches are open";
/// Connections that are opened at once.
const AT_ONCE: usize = 16;

/// What the process does.
#[derive(Serialize, Deserialize)]
pub(crate) struct Watches {
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
    pub(crate) async fn start(door: Door, path: String, count: usize) -> Result<Self, String> {
        let folder = Folder::new("bench-watchers")?;
        let process = Part::Watchers(Watches { door, path, count }).start("watchers", &folder)?;
        try_eventually("open watches", Duration::from_secs(60), async || {
            if process.log_text().contains(OPEN) { Ok(()) } else { Err(process.log_tail(3)) }
        })
        .await?;
        Ok(Self { process, _folder: folder })
    }
}

impl Watches {
    /// Opens the watches, and holds them.
    pub(crate) async fn hold(self) -> Result<(), String> {
        let call = Call::get(&self.path);
        let opening = stream::iter(0..self.count).map(|_| open(&self.door, &call)).buffer_unordered(AT_ONCE);
        let held: Vec<_> = opening.try_collect().await?;
        eprintln!("{OPEN}");
        std::future::pending::<()>().await;
        drop(held);
        Ok(())
    }
}

async fn open(door: &Door, call: &Call) -> Result<(Caller, impl Sized + use<>), String> {
    let mut caller = Caller::connect(door).await?;
    let answer = caller.begin(call).await?;
    if answer.status().is_success() { Ok((caller, answer)) } else { Err(format!("{}", answer.status())) }
}
