//! Follows a migration until it is complete or needs someone.

use std::pin::pin;

use futures::TryStreamExt as _;
use kube::ResourceExt as _;
use kube::runtime::watcher::Event;
use kube::runtime::{WatchStreamExt as _, watcher};

use super::{INCOMPLETE, Migrations, SOME_REFUSED, bare, notable, ready};
use crate::arguments::{CommandError, complain};
use kubesvc_core::migration::MigrationPhase;
use kubesvc_core::{KubesvcMigration, RETRY_ANNOTATION};
use kubesvc_runtime::terminal::{self, Progress};

/// Maximum length of a request to resume that the operator repeats as it is, in bytes; the plugin's are shorter.
const MAX_MARK_BYTES: usize = 64;

/// Shows the progress of a migration, and then what someone should look at.
pub(super) async fn follow(migrations: &Migrations<'_>, name: &str) -> Result<(), CommandError> {
    let name = bare(name);
    let config = kubesvc_runtime::watch_backoff::config().fields(&format!("metadata.name={name}"));
    let events = watcher(migrations.api.clone(), config).backoff(kubesvc_runtime::watch_backoff::pauses());
    let mut events = pin!(events);
    let mut bar: Option<Progress> = None;
    let mut before = None;
    loop {
        let seen = match events.try_next().await {
            Ok(Some(Event::Apply(seen) | Event::InitApply(seen))) => seen,
            Ok(Some(Event::Delete(_))) | Ok(None) => {
                return Err(CommandError::Failed(format!("migration {name:?} was deleted in the meantime")));
            }
            // The watch is retried with back-off.
            Ok(Some(Event::Init | Event::InitDone)) | Err(_) => continue,
        };
        let status = seen.status.clone().unwrap_or_default();
        if status.observed_generation != seen.metadata.generation.unwrap_or_default() {
            continue; // The operator has not seen the spec yet.
        }
        let asked = seen.annotations().get(RETRY_ANNOTATION).filter(|asked| asked.len() <= MAX_MARK_BYTES);
        if asked.is_some() && asked != status.retry_handled.as_ref() {
            continue; // Nor that it is to resume.
        }
        let (total, done) = (count(status.total), count(status.done));
        let bar = bar.get_or_insert_with(|| Progress::new(total));
        bar.show(done, format!("{:?}, wave {}, {} failed", status.phase, status.wave, status.failed));
        let line = format!("{:?}: {}", status.phase, ready(&seen));
        if before.as_ref() != Some(&line) {
            bar.print(&line)?;
            before = Some(line);
        }
        match status.phase {
            MigrationPhase::Complete => {
                bar.finish();
                return end(&seen);
            }
            MigrationPhase::Paused => {
                bar.finish();
                show_notable(&seen)?;
                complain(&format!(
                    "migration {name} is paused; go on with: kubectl kubesvc migrate resume {name}"
                ));
                return Err(CommandError::Ended(SOME_REFUSED));
            }
            MigrationPhase::Planning if is_incomplete(&seen) => {
                bar.finish();
                show_notable(&seen)?;
                return Err(CommandError::Ended(INCOMPLETE));
            }
            _ => {}
        }
    }
}

fn count(number: i32) -> u64 {
    u64::try_from(number).unwrap_or_default()
}

/// Whether it waits for a source that cannot be read, and has nothing else to do.
fn is_incomplete(migration: &KubesvcMigration) -> bool {
    let conditions = migration.status.iter().flat_map(|status| &status.conditions);
    conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.reason == "SourceUnread")
}

fn show_notable(migration: &KubesvcMigration) -> Result<(), CommandError> {
    let notable = notable(migration);
    if !notable.is_empty() {
        terminal::print(notable.trim_start())?;
    }
    Ok(())
}

fn end(migration: &KubesvcMigration) -> Result<(), CommandError> {
    show_notable(migration)?;
    let status = migration.status.clone().unwrap_or_default();
    terminal::note(&format!("{} of {} accounts are ACTIVE.", status.active, status.total));
    if status.active > 0 {
        terminal::note(
            "Clouddriver still has these accounts, and deploys to them itself. Ways out: kubectl kubesvc why NAME",
        );
    }
    let is_harmless = |reason: &str| matches!(reason, "SourceChanged" | "NotInSources" | "Selection");
    let is_refused = status.notable.iter().any(|one| !is_harmless(&one.reason));
    if status.failed > 0 || is_refused { Err(CommandError::Ended(SOME_REFUSED)) } else { Ok(()) }
}
