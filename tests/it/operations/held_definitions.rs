//! The definition that works stays in use until a new one does.

use k8s_openapi::api::core::v1::Secret;
use kube::api::DeleteParams;
use kubesvc_core::State;
use serde_json::json;

use super::{Scene, deploy, on_prod};
use crate::world::{MAX_WAIT, World, condition};
use kubesvc_testkit::kubeconfig::{Authority, Proof, yaml};
use kubesvc_testkit::{must, ports, wait::eventually};

impl Scene {
    /// Reads and writes in the account's cluster, with the definition that is in use.
    async fn serves(&self, value: &str) -> Result<(), String> {
        let written = self.status_of(&deploy(&self.config_map("served", value), "")).await?;
        let read = self
            .status_of(&on_prod(&format!("get {{ {} }}", self.target("", "ConfigMap", "served"))))
            .await?;
        if written < 300 && read == 200 { Ok(()) } else { Err(format!("{written} and {read}")) }
    }

    /// Runs an operation. Returns the status of the API server's answer.
    async fn status_of(&self, operation: &serde_json::Value) -> Result<u64, String> {
        let answer = self.alice.try_run(self.world.operator(), "?wait=20s", operation).await?;
        answer.json["status"].as_u64().ok_or(answer.to_string())
    }

    /// Waits until the account is FAILED for this reason, after so many tries, and serves requests all the time.
    async fn until_failed(&self, reason: &str, tries: i32) {
        let what = format!("account prod that is FAILED with reason {reason} after {tries} tries");
        eventually(&what, MAX_WAIT, async || {
            must(self.serves(reason).await.map_err(|e| format!("{reason}: {e}")));
            let account = self.world.try_object("prod").await?.ok_or("there is none")?;
            let status = account.status_or_default();
            let ready = condition(&account, "Ready").ok_or("no condition")?;
            let is_said =
                status.state() == State::Failed && ready.reason == reason && !ready.message.is_empty();
            if is_said && status.failed_count >= tries { Ok(()) } else { Err(format!("{status:?}")) }
        })
        .await;
        must(self.serves("after").await.map_err(|e| format!("{reason}: {e}")));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_account_is_served_with_its_good_definition_while_a_new_one_fails_in_any_way() {
    let prepare = World::prepare().setting("kubesvc.cache.cacheKinds", json!(["configMap"]));
    let scene = Scene::prepared(prepare).await;
    let world = &scene.world;
    let (good, reader) = (&scene.cluster, world.cluster("reader").await);
    must(scene.serves("before").await);

    let wrong_port = good.kubeconfig_at(&format!("https://127.0.0.1:{}", ports::free()));
    let stranger = must(Authority::new("a stranger")).pem();
    let exec = "exec: {apiVersion: client.authentication.k8s.io/v1, command: sh}, token:";
    for (kubeconfig, reason, tries) in [
        // Past two retries.
        (wrong_port.clone(), "ClusterUnreachable", 3),
        (yaml(good.server(), &stranger, Proof::Token(good.token())), "TLSFailed", 1),
        (good.kubeconfig_with(Proof::Token("revoked")), "Unauthorized", 1),
        (good.kubeconfig().replace("{token:", &format!("{{{exec}")), "ExecForbidden", 1),
        ("nothing that is a kubeconfig".to_owned(), "KubeconfigRefused", 1),
        (wrong_port, "ClusterUnreachable", 1),
    ] {
        world.secret("prod", kubeconfig.as_bytes(), true).await;
        scene.until_failed(reason, tries).await;
    }
    let remove = r#"[{"op": "remove", "path": "/data/kubeconfig"}]"#;
    must(world.kubectl(&["patch", "secret", "prod", "--type=json", "-p", remove]).await.ok());
    scene.until_failed("CredentialMissing", 1).await;
    must(world.api::<Secret>().delete("prod", &DeleteParams::default()).await.map_err(|e| e.to_string()));
    world.patch("prod", json!({"spec": {"context": "kubesvc"}})).await;
    scene.until_failed("CredentialMissing", 1).await;

    // The objects are still streamed, and an operator that starts anew goes on with what its agent holds.
    let is_cached = async |name: &str| {
        must(scene.status_of(&deploy(&scene.config_map(name, "1"), "")).await);
        eventually(&format!("ConfigMap {name} in the cache"), MAX_WAIT, async || {
            let rows = world.try_cached_objects().await?;
            if rows.iter().any(|row| row.2 == name) { Ok(()) } else { Err(format!("{} rows", rows.len())) }
        })
        .await;
    };
    is_cached("streamed").await;
    world.operator().kill_and_start().await;
    eventually("requests after a restart", MAX_WAIT, async || scene.serves("restarted").await).await;
    is_cached("streamed-after-a-restart").await;
    assert_eq!(world.state("prod").await, Some(State::Failed));

    // The new credential may only read.
    world.secret("prod", reader.kubeconfig().as_bytes(), true).await;
    world.until("prod", State::Active).await;
    let read = on_prod(&format!("get {{ {} }}", scene.target("", "ConfigMap", "served")));
    assert_eq!(scene.status_of(&read).await, Ok(200));
    assert_eq!(scene.status_of(&deploy(&scene.config_map("served", "too late"), "")).await, Ok(403));
}
