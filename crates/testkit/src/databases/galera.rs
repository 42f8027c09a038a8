//! Two nodes of one Galera cluster.
//!
//! The second node begins with a copy of the first one's data folder, so that it receives what was written since, and no
//! state transfer is needed, whose programs Debian has with the service of MariaDB only. A node runs a program for it all the
//! same: a script that passes on the position.

use std::{os::unix::fs::PermissionsExt as _, path::Path, process::Command};

use super::{Kind, START, Server, Size, programs::run};
use crate::{ports, wait::try_eventually};

const PROVIDER: &str = "/usr/lib/galera/libgalera_smm.so";
/// Name of the state transfer: MariaDB looks for `wsrep_sst_NAME`.
const TRANSFER: &str = "kubesvc";

/// Starts two nodes of one cluster. What either commits is at both.
///
/// # Errors
///
/// Galera is not there, or a node does not start in time.
pub async fn galera() -> Result<[Server; 2], String> {
    if !Path::new(PROVIDER).exists() {
        return Err(format!("{PROVIDER} is not there: `make galera` installs it (Debian package galera-4)"));
    }
    let port = ports::free();
    let mut first = Server::in_folder(Kind::MariaDb, Size::Usual, "galera-1")?;
    let mut second = Server::in_folder(Kind::MariaDb, Size::Usual, "galera-2")?;
    first.install()?;
    let path = install_transfer(&first)?;
    first.flags = flags(port, "");
    first.flags.push("--wsrep-new-cluster".to_owned());
    second.flags = flags(ports::free(), &format!("127.0.0.1:{port}"));
    for node in [&mut first, &mut second] {
        node.environment.push(("PATH", path.clone()));
    }
    let first = first.on_a_free_port().await?;
    first.stop().await?;
    let mut copy = Command::new("cp");
    copy.arg("-a").arg(&first.data).arg(&second.data);
    run(copy)?;
    let cache = second.data.join("galera.cache");
    std::fs::remove_file(&cache).map_err(|e| format!("{}: {e}", cache.display()))?;
    second.readable("start.sql", "")?;
    first.start().await?;
    let second = second.on_a_free_port().await?;
    try_eventually("a second node that is in step", START, async || {
        second.execute("", "CREATE DATABASE IF NOT EXISTS in_step").await
    })
    .await?;
    Ok([first, second])
}

fn flags(port: u16, joins: &str) -> Vec<String> {
    let options = format!(
        "gmcast.listen_addr=tcp://127.0.0.1:{port};ist.recv_addr=127.0.0.1:{};gcache.size=16M;pc.recovery=false",
        ports::free()
    );
    vec![
        "--binlog-format=ROW".to_owned(),
        "--innodb-autoinc-lock-mode=2".to_owned(),
        "--wsrep-on=ON".to_owned(),
        format!("--wsrep-provider={PROVIDER}"),
        format!("--wsrep-provider-options={options}"),
        format!("--wsrep-node-address=127.0.0.1:{port}"),
        format!("--wsrep-cluster-address=gcomm://{joins}"),
        format!("--wsrep-sst-method={TRANSFER}"),
    ]
}

/// Writes the program of the state transfer. Returns the `PATH` with which a node finds it.
fn install_transfer(first: &Server) -> Result<String, String> {
    let position = first.folder.file("position").display().to_string();
    let script = format!(
        r#"#!/bin/sh
while [ $# -gt 0 ]; do
    case $1 in --role) role=$2 ;; --address) address=$2 ;; --gtid) position=$2 ;; esac
    shift
done
if [ "$role" = donor ]; then
    echo "$position" > {position}.new && mv {position}.new {position}
    echo "done $position"
else
    echo "ready $address/{TRANSFER}"
    until [ -e {position} ]; do sleep 0.1; done
    cat {position}
fi
"#
    );
    let name = format!("wsrep_sst_{TRANSFER}");
    first.readable(&name, &script)?;
    let permissions = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(first.folder.file(&name), permissions).map_err(|e| format!("{name}: {e}"))?;
    let path = std::env::var("PATH").unwrap_or_default();
    Ok(format!("{}:{path}", first.folder.path().display()))
}
