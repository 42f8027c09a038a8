//! Finds or builds etcd, kube-apiserver and kubectl, and says where they are: `make controlplane`.

#[path = "../tests/harness/mod.rs"]
mod harness;

use std::collections::BTreeSet;
use std::process::ExitCode;

fn main() -> ExitCode {
    match harness::assets::ensure() {
        Ok(assets) => {
            let programs = [&assets.etcd, &assets.kube_apiserver, &assets.kubectl];
            let folders: BTreeSet<_> = programs.into_iter().filter_map(|program| program.parent()).collect();
            let folders: Vec<_> = folders.into_iter().map(|folder| folder.display().to_string()).collect();
            println!("etcd, kube-apiserver and kubectl are in {}", folders.join(" and "));
            ExitCode::SUCCESS
        }
        Err(reason) => {
            eprintln!("{reason}");
            ExitCode::FAILURE
        }
    }
}
