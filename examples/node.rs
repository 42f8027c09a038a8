//! A node with real pods, and the image of kubesvc on it: `make node`. It stays until Ctrl-C.

use std::process::ExitCode;
use std::time::Instant;

use kubesvc_testkit::{
    folder::Folder,
    node::{Node, images::Image},
};
use tokio::signal::unix::{SignalKind, signal};

/// The image's name in the charts, as a node calls it.
const IMAGE: &str = concat!("docker.io/library/kubesvc:", env!("CARGO_PKG_VERSION"));

#[tokio::main]
async fn main() -> ExitCode {
    match node().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("{reason}");
            ExitCode::FAILURE
        }
    }
}

async fn node() -> Result<(), String> {
    let catch = |kind| signal(kind).map_err(|e| format!("signals: {e}"));
    let (mut interrupt, mut terminate) = (catch(SignalKind::interrupt())?, catch(SignalKind::terminate())?);
    tokio::select! {
        result = stay() => result,
        _ = interrupt.recv() => Ok(()),
        _ = terminate.recv() => Ok(()),
    }?;
    println!("\nstopped; everything is removed");
    Ok(())
}

async fn stay() -> Result<(), String> {
    let begun = Instant::now();
    let here = std::env::current_exe().map_err(|e| format!("this program's path: {e}"))?;
    let programs = here.ancestors().nth(2).ok_or("this program is not in target/PROFILE/examples")?;
    let node = Node::start().await?;
    node.import(&Image::of_kubesvc(IMAGE, programs)).await?;
    let folder = Folder::new("kubeconfig")?;
    let kubeconfig = folder.write("node.kubeconfig", &node.kubeconfig_from_outside())?;
    println!(
        "A node with Kubernetes is ready after {:.1} s, and has the image {IMAGE}. In another terminal:\n\n  \
         export KUBECONFIG={}\n  kubectl get pods --all-namespaces\n\n\
         then the commands of docs/install.md. Logs are in {}. Ctrl-C ends it and removes everything.",
        begun.elapsed().as_secs_f64(),
        kubeconfig.display(),
        node.logs().display(),
    );
    std::future::pending().await
}
