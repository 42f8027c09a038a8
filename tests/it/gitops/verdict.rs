//! Verdicts of kstatus (and so Flux) and of Argo CD's health script about objects: the real library and a
//! real Lua, in the program in `tests/gitops/`.

use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::Value;

use kubesvc_testkit::{assets, must};

/// How both tools judge one object.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Verdict {
    /// Result of kstatus: Current, InProgress, Failed, Terminating …
    pub(super) kstatus: String,
    /// Health in Argo CD: Healthy, Progressing, Degraded …
    pub(super) argo: String,
    /// Message that Argo CD shows with it.
    pub(super) message: String,
}

/// The health script, by its path in the repository.
pub(super) const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/config/argocd/health.lua");

/// Judges objects, in their order.
pub(super) fn judge(objects: &[Value]) -> Vec<Verdict> {
    tokio::task::block_in_place(|| must(ask(objects)))
}

fn ask(objects: &[Value]) -> Result<Vec<Verdict>, String> {
    let program = assets::gitops_judge()?;
    let problem = |e: std::io::Error| format!("{}: {e}", program.display());
    let mut child = Command::new(&program)
        .arg(SCRIPT)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(problem)?;
    let lines: String = objects.iter().map(|object| format!("{object}\n")).collect();
    let mut input = child.stdin.take().ok_or("it has no standard input")?;
    // Written on another thread while reading: each line gets an answer, and neither pipe may fill up.
    let writing = std::thread::spawn(move || input.write_all(lines.as_bytes()));
    let output = child.wait_with_output().map_err(problem)?;
    let written = writing.join().map_err(|_| "writing broke off".to_owned())?;
    if !output.status.success() {
        return Err(format!("the judge: {}", String::from_utf8_lossy(&output.stderr)));
    }
    written.map_err(problem)?;
    let text = String::from_utf8_lossy(&output.stdout);
    let verdicts: Vec<Verdict> = text.lines().map(verdict).collect::<Result<_, _>>()?;
    if verdicts.len() == objects.len() {
        Ok(verdicts)
    } else {
        Err(format!("not one answer for each: {text}"))
    }
}

fn verdict(line: &str) -> Result<Verdict, String> {
    let answer: Value = serde_json::from_str(line).map_err(|e| format!("{line}: {e}"))?;
    let text = |key: &str| answer[key].as_str().unwrap_or_default().to_owned();
    Ok(Verdict { kstatus: text("kstatus"), argo: text("argo"), message: text("argoMessage") })
}
