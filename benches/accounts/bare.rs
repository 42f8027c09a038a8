//! A minimal client that makes the requests of a registration and nothing else.

use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api, Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};

use crate::{objects::each, progress::Bar, raw};

/// Requests of the agent to a cluster, in this order and on one connection.
const QUESTIONS: [(&str, &str); 5] = [
    ("/version", "application/json"),
    ("/api/v1/namespaces/kube-system", "application/json"),
    ("/api/v1/namespaces?limit=500", "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"),
    ("/api", DISCOVERY),
    ("/apis", DISCOVERY),
];
const DISCOVERY: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// Registers each account: reads its Secret, writes its object as often as the operator does, and sends the agent's
/// requests to its cluster over a new connection.
///
/// # Errors
///
/// A request is refused.
pub(crate) async fn register(
    home: &Client,
    namespace: &str,
    count: usize,
    kubeconfig: &str,
) -> Result<(), String> {
    let target = target(kubeconfig).await?;
    let secrets: Api<Secret> = Api::namespaced(home.clone(), namespace);
    let objects = raw::list(home, namespace, count).await?;
    let bar = Bar::start("accounts by a bare client", count);
    each(count, async |number| {
        let object = raw::add_finalizer(home, namespace, &objects[number]).await?;
        secrets.get(object.name()).await.map_err(|e| e.to_string())?;
        let object = raw::put_status(home, namespace, &object, 0).await?;
        ask(target.clone()).await?;
        raw::put_status(home, namespace, &object, 1).await?;
        bar.step();
        Ok(())
    })
    .await?;
    bar.finish();
    Ok(())
}

async fn target(kubeconfig: &str) -> Result<Config, String> {
    let parsed = Kubeconfig::from_yaml(kubeconfig).map_err(|e| e.to_string())?;
    let config = Config::from_custom_kubeconfig(parsed, &KubeConfigOptions::default()).await;
    let mut config = config.map_err(|e| e.to_string())?;
    config.default_retry = false;
    Ok(config)
}

async fn ask(target: Config) -> Result<(), String> {
    let client = Client::try_from(target).map_err(|e| e.to_string())?;
    for (path, accept) in QUESTIONS {
        let request = http::Request::get(path)
            .header(http::header::ACCEPT, accept)
            .body(Vec::new())
            .map_err(|e| e.to_string())?;
        client.request_text(request).await.map_err(|e| format!("GET {path} of the target: {e}"))?;
    }
    Ok(())
}
