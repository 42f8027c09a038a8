//! Finds or builds etcd, kube-apiserver and kubectl, and says where they are: `make controlplane`. With the argument
//! `judge` it is the program that judges objects as Argo CD and Flux do: `make judge`; with `helm` it is Helm: `make helm`;
//! with `informer`, what uses a cluster by client-go: `make informer`;
//! with `controllers`, kube-controller-manager: `make controllers`;
//! with `promtool`, what reads rules and expressions as Prometheus does: `make promtool`; with `checkers`, what checks
//! renders and workflows: `make checkers`; with `clouddriver`, what stands in for Clouddriver, and with `config-server`,
//! a Spring Cloud config server: `make clouddriver`; with `node`, what a node with real pods runs: `make node-programs`.

use std::collections::BTreeSet;
use std::process::ExitCode;

fn main() -> ExitCode {
    let one = match std::env::args().nth(1).as_deref() {
        Some("judge") => Some(("the judge of GitOps health", kubesvc_testkit::assets::gitops_judge())),
        Some("controllers") => {
            Some(("kube-controller-manager", kubesvc_testkit::assets::controller_manager()))
        }
        Some("helm") => Some(("Helm", kubesvc_testkit::assets::helm())),
        Some("informer") => Some(("the client of client-go", kubesvc_testkit::assets::informer())),
        Some("promtool") => {
            Some(("promtool", kubesvc_testkit::assets::prometheus_tools().map(|tools| tools.promtool)))
        }
        Some("checkers") => Some((
            "kubeconform, with actionlint and krew's validator beside it,",
            kubesvc_testkit::assets::checkers().map(|checkers| checkers.kubeconform),
        )),
        Some("clouddriver") => {
            Some(("what stands in for Clouddriver", kubesvc_testkit::clouddriver::ensure()))
        }
        Some("config-server") => Some(("the config server", kubesvc_testkit::config_server::ensure())),
        Some("node") => Some((
            "kubelet, with kube-scheduler and kube-proxy beside it,",
            kubesvc_testkit::assets::node_programs().map(|programs| programs.kubelet),
        )),
        _ => None,
    };
    if let Some((what, found)) = one {
        return match found {
            Ok(path) => {
                println!("{what} is {}", path.display());
                ExitCode::SUCCESS
            }
            Err(reason) => failed(&reason),
        };
    }
    match kubesvc_testkit::assets::ensure() {
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
