//! What Spinnaker asks of Clouddriver in the demo: which accounts there are, and a deploy.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};

use kubesvc_testkit::wait::try_eventually;

/// Time limit for an account to be listed or gone, and for a deploy.
const LIMIT: Duration = Duration::from_secs(30);

/// The names of the accounts that Clouddriver has loaded, as Gate asks for them.
pub(crate) async fn accounts(base: &str) -> Result<Vec<String>, String> {
    let listed = ask(Method::GET, &format!("{base}/credentials"), None).await?;
    let accounts = listed.as_array().ok_or_else(|| listed.to_string())?;
    Ok(accounts.iter().filter_map(|account| Some(account["name"].as_str()?.to_owned())).collect())
}

/// Waits until Clouddriver has loaded these accounts and no others.
pub(crate) async fn until_listed(base: &str, wanted: &[&str]) -> Result<(), String> {
    try_eventually("Clouddriver's accounts", LIMIT, async || {
        let mut listed = accounts(base).await?;
        listed.sort();
        if listed == wanted { Ok(()) } else { Err(format!("it has {listed:?}")) }
    })
    .await
}

/// Deploys a ConfigMap as Orca has Clouddriver do it, and waits until the task has ended well.
pub(crate) async fn deploy(base: &str, account: &str, namespace: &str) -> Result<(), String> {
    let manifest = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "settings", "namespace": namespace},
        "data": {"color": "green"},
    });
    let operations = json!([{"deployManifest": {
        "account": account,
        "source": "text",
        "manifests": [manifest],
        "moniker": {"app": account},
    }}]);
    let begun = ask(Method::POST, &format!("{base}/kubernetes/ops"), Some(&operations)).await?;
    let task = begun["resourceUri"].as_str().ok_or_else(|| begun.to_string())?;
    try_eventually("the deploy", LIMIT, async || {
        let task = ask(Method::GET, &format!("{base}{task}"), None).await?;
        let status = &task["status"];
        match (status["completed"].as_bool(), status["failed"].as_bool()) {
            (Some(true), Some(false)) => Ok(()),
            _ => Err(task.to_string()),
        }
    })
    .await
}

/// Stores an account in Clouddriver: `POST` a new one, `PUT` one that is there.
pub(crate) async fn store(base: &str, method: Method, definition: &Value) -> Result<(), String> {
    ask(method, &format!("{base}/credentials"), Some(definition)).await.map(drop)
}

async fn ask(method: Method, url: &str, body: Option<&Value>) -> Result<Value, String> {
    let mut request = reqwest::Client::new().request(method, url).timeout(LIMIT);
    if let Some(body) = body {
        request = request.header("content-type", "application/json").body(body.to_string());
    }
    let answer = request.send().await.map_err(|error| format!("{url}: {error}"))?;
    let (status, text) = (answer.status(), answer.text().await.map_err(|error| format!("{url}: {error}"))?);
    match serde_json::from_str(&text) {
        Ok(value) if status.is_success() => Ok(value),
        _ => Err(format!("{url}: {status} {text}")),
    }
}
