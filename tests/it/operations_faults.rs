//! Requests and operations on accounts, while everything between their callers and the API server fails.
//!
//! | file | what |
//! |---|---|
//! | `scene.rs`, `gate.rs`, `client.rs` | two replicas, an agent, lines between all of them that can be held and cut, and callers |
//! | `matrix.rs`, `rounds.rs`, `writes.rs`, `verdict.rs` | each step × each kind of write × each fault, counted in the API server's audit log |
//! | `cut_answers.rs` | lists, watches and logs that are cut |
//! | `zones.rs`, `zones/` | grants that are taken while requests run, and replicas that slept |
//! | `kubelet.rs`, `kubelet/` | logs, exec and port-forward, with a stand-in for a kubelet |
//! | `rights.rs` | callers who may no longer, and those who ask for too much |
//! | `crash_points.rs` | the operator dies at each write of a record |

mod client;
mod crash_points;
mod cut_answers;
mod gate;
mod kubelet;
mod matrix;
mod rights;
mod rounds;
mod scene;
mod verdict;
mod writes;
mod zones;

use serde_json::{Value, json};

use crate::world::{MAX_WAIT, Operator};
use kubesvc_testkit::wait::try_eventually;

/// Waits until a replica has written all rows that nobody waits for: those of requests to the account's API.
async fn until_written(replica: &Operator) -> Result<(), String> {
    try_eventually("written rows", MAX_WAIT, async || {
        let rows = replica.metric("kubesvc_operations_rows_waiting").await?;
        if rows == 0 { Ok(()) } else { Err(format!("{rows} wait")) }
    })
    .await
}

/// An operation that creates a ConfigMap on the account `prod`.
fn creates_map(namespace: &str, name: &str) -> Value {
    deploys_map(namespace, name, "CREATE")
}

/// An operation that deploys a ConfigMap on the account `prod`.
fn deploys_map(namespace: &str, name: &str, mode: &str) -> Value {
    let object = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": namespace}, "data": {"key": "1"},
    });
    // JSON's escapes are those of the text format.
    let data = Value::String(object.to_string());
    let deploy = format!("deploy {{ manifest {{ data: {data} }} mode: {mode} }}");
    json!({"operation": format!("account {{ name: \"prod\" }} {deploy}")})
}
