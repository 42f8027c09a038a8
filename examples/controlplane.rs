//! Finds or builds etcd, kube-apiserver and kubectl, and says where they are: `make controlplane`. With the argument
//! `judge` it is the program that judges objects as Argo CD and Flux do: `make judge`.

#[path = "../tests/harness/mod.rs"]
mod harness;

use std::collections::BTreeSet;
use std::process::ExitCode;

fn main() -> ExitCode {
    if std::env::args().nth(1).as_deref() == Some("judge") {
        return match harness::assets::gitops_judge() {
            Ok(path) => {
                println!("the judge of GitOps health is {}", path.display());
                ExitCode::SUCCESS
            }
            Err(reason) => failed(&reason),
        };
    }
    match harness::assets::ensure() {
        Ok(assets) => {
            let programs = [&assets.etcd, &assets.kube_apiserver, &assets.kubectl];
            let folders: BTreeSet<_> = programs.into_iter().filter_map(|program| program.parent()).collect();
            let folders: Vec<_> = folders.into_iter().map(|folder| folder.display().to_string()).collect();
            println!("etcd, kube-apiserver and kubectl are in {}", folders.join(" and "));
            ExitCode::SUCCESS
        }
        Err(reason) => failed(&reason),
    }
}

fn failed(reason: &str) -> ExitCode {
    eprintln!("{reason}");
    ExitCode::FAILURE
}
