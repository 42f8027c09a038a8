//! The database in a file has no room for a while, or is a restored backup, while objects are written.

use std::fs;
use std::path::Path;
use std::time::Duration;

use super::load::{RowsMay, create_account, filled, prepare, settled, under_load};
use super::row_oracle::newest_version;
use crate::faults::database::limit_files;
use crate::faults::{hold, until_database};
use crate::world::{MAX_WAIT, World, connect};
use kubesvc_testkit::{must, wait::eventually};

/// The rows follow, within the usual time.
const FOLLOW: (RowsMay, Duration) = (RowsMay::OnlyFollow, MAX_WAIT);
/// Commits are lost. Rows and accounts are compared once a minute.
const LOSE_COMMITS: (RowsMay, Duration) = (RowsMay::GoBack, MAX_WAIT.saturating_add(Duration::from_secs(60)));
/// Maximum size of a file on the full disk, in bytes: less than the database, and more than the operator's log of errors.
const FULL: &str = "131072";
/// The files of a database that a backup has. SQLite makes the third, `-shm`, anew.
const FILES: [&str; 2] = ["kubesvc.db", "kubesvc.db-wal"];

/// The disk is full: the log of transactions grows no further. It is a limit on the size of files, of which SQLite says
/// another error than of a full disk; the operator waits for the end of either.
#[tokio::test(flavor = "multi_thread")]
async fn objects_catch_up_after_the_disk_of_sqlite_was_full() {
    let world = prepare().bearing_file_limits().setting("logging.level", "error").start().await;
    let writer = filled(&world, 18, 0).await;
    let _agent = world.agent("agent-1").start().await;
    create_account(&world, None).await;
    settled(&world).await;
    under_load(&world, writer, FOLLOW, async {
        limit_files(&world, FULL);
        let why = until_database(&world, true).await;
        assert!(why.contains("disk"), "{why}");
        hold(Duration::from_secs(4)).await;
        limit_files(&world, "unlimited");
        until_database(&world, false).await;
    })
    .await;
    assert!(world.operator().is_running(), "the operator has ended");
}

/// Copies the files of a database that nobody has open, in place of others.
fn copy_database(from: &Path, to: &Path) {
    let copied = || -> std::io::Result<()> {
        fs::create_dir_all(to)?;
        for name in FILES.into_iter().chain(["kubesvc.db-shm"]) {
            if to.join(name).exists() {
                fs::remove_file(to.join(name))?;
            }
        }
        for name in FILES {
            // The operator may have left no log of transactions.
            if from.join(name).exists() {
                fs::copy(from.join(name), to.join(name))?;
            }
        }
        Ok(())
    };
    must(copied().map_err(|error| format!("{}: {error}", to.display())));
}

/// The newest version in the database of a folder.
async fn newest_in(folder: &Path) -> u64 {
    let url = format!("sqlite://{}", folder.join("kubesvc.db").display());
    let read = async { newest_version(&mut connect(&url).await?).await };
    must(read.await.map_err(|error| format!("{url}: {error}")))
}

/// Waits until there are rows of later versions than this one.
async fn until_newer(world: &World, version: u64) {
    eventually("commits since the backup", MAX_WAIT, async || {
        let read = async { newest_version(&mut world.open_database().await?).await };
        let newest = read.await.map_err(|error| error.to_string())?;
        if newest > version { Ok(()) } else { Err(format!("{newest}")) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sqlite_from_a_backup_gets_lost_objects_again() {
    let world = prepare().start().await;
    let writer = filled(&world, 19, 0).await;
    let agent = world.agent("agent-1").start().await;
    create_account(&world, None).await;
    settled(&world).await;
    let live = world.folder().path();
    // Only copies are opened here: whoever closes a database last removes the log of transactions by its name.
    let [backup, of_backup, lost] = ["backup", "of-backup", "lost"].map(|name| world.folder().file(name));
    under_load(&world, writer, LOSE_COMMITS, async {
        hold(Duration::from_secs(1)).await;
        world.operator().kill();
        copy_database(live, &backup);
        copy_database(live, &of_backup);
        let version = newest_in(&of_backup).await;
        world.operator().start().await;
        until_newer(&world, version).await;
        hold(Duration::from_secs(3)).await;

        world.operator().kill();
        copy_database(live, &lost);
        copy_database(&backup, live);
        assert!(newest_in(&lost).await > version, "the last commits are lost");
        world.operator().start().await;
        world.until_connected(&agent, true).await;
        hold(Duration::from_secs(2)).await;
    })
    .await;
}
