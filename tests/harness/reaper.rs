//! A watchdog outside the test process that removes its children and folders however it ends.
//!
//! The reaper is a shell script in its own process group that reads from a pipe what to watch. Only the test process
//! holds the other end, so the pipe closes when that process ends, SIGKILL and abort included.

use std::{
    io::Write,
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, Command, Stdio},
    sync::LazyLock,
};

use parking_lot::Mutex;

/// Kills the newest processes first, so that an API server ends before the etcd that it would otherwise wait for.
const SCRIPT: &str = r#"
trap '' INT TERM HUP
pids=
while read -r what value; do
  case $what in
    pid) pids="$value $pids" ;;
    gone) kept=; for pid in $pids; do [ "$pid" = "$value" ] || kept="$kept $pid"; done; pids=$kept ;;
    dir) set -- "$@" "$value" ;;
  esac
done
for pid in $pids; do kill -9 "-$pid"; done
tries=0
while [ "$tries" -lt 50 ] && [ "$#" -gt 0 ]; do
  rm -rf -- "$@"
  left=; for dir in "$@"; do [ -e "$dir" ] && left=yes; done
  [ -n "$left" ] || break
  tries=$((tries + 1)); sleep 0.1
done
"#;

static REAPER: LazyLock<Mutex<Child>> = LazyLock::new(|| {
    let child = Command::new("sh")
        .args(["-c", SCRIPT, "kubesvc-reaper"])
        .current_dir("/")
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("`sh` must be there to look after child processes");
    Mutex::new(child)
});

fn tell(line: &str) {
    let mut reaper = REAPER.lock();
    let pipe = reaper.stdin.as_mut().expect("its standard input was asked for");
    pipe.write_all(line.as_bytes()).expect("the reaper of this test process was killed");
}

/// Ensures that the process group `pid` does not outlive this process.
pub(crate) fn watch_process(pid: u32) {
    tell(&format!("pid {pid}\n"));
}

/// Stops watching a process group that has ended, since its id may be reused.
pub(crate) fn forget_process(pid: u32) {
    tell(&format!("gone {pid}\n"));
}

/// Ensures that the folder does not outlive this process.
pub(crate) fn watch_folder(path: &Path) {
    tell(&format!("dir {}\n", path.display()));
}
