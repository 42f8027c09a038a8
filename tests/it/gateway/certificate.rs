//! The operator dies just before and just after each write by which the gateway has its certificate.

use std::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::DeleteParams;
use kubesvc_runtime::crash_points::POINTS;

use super::place::{Place, READING, kubectl};
use crate::world::MAX_WAIT;
use kubesvc_testkit::must;
use kubesvc_testkit::wait::eventually;

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_while_the_certificate_is_made_leaves_one_that_both_doors_use() {
    let mut place = Place::start(true).await;
    let direct = place.person("alice", READING, Some("kubesvc")).await;
    let aggregated = place.token("alice", None).await;
    for point in POINTS.iter().filter(|point| point.starts_with("gateway-")) {
        let operator = place.world.operator();
        operator.kill();
        // A new authority, of which the API server is told.
        let deleted = place.world.api::<Secret>().delete("kubesvc-gateway", &DeleteParams::default()).await;
        must(deleted.map_err(|e| e.to_string()));
        operator.launch_with(&[("KUBESVC_CRASH_AT", point)]);
        eventually(&format!("the end of the operator at {point}"), MAX_WAIT, async || {
            if operator.is_running() { Err("it runs".to_owned()) } else { Ok(()) }
        })
        .await;
        operator.start().await;
        place.authority =
            eventually(&format!("an authority that all know after {point}"), MAX_WAIT, async || {
                let secret =
                    place.world.api::<Secret>().get("kubesvc-gateway").await.map_err(|e| e.to_string())?;
                let ByteString(made) =
                    secret.data.unwrap_or_default().remove("ca.crt").ok_or("no authority")?;
                let get =
                    ["get", "apiservice", "v1alpha1.proxy.kubesvc.io", "-o", "jsonpath={.spec.caBundle}"];
                let told = place.world.kubectl(&get).await.ok()?;
                let made_as_told =
                    serde_json::to_value(ByteString(made.clone())).map_err(|e| e.to_string())?;
                if made_as_told != told.trim() {
                    return Err("the APIService has another one".to_owned());
                }
                Ok(String::from_utf8_lossy(&made).into_owned())
            })
            .await;
        for kubeconfig in [place.direct(&direct), place.aggregated(&aggregated)] {
            eventually(&format!("an answer after {point}"), MAX_WAIT, async || {
                kubectl(&kubeconfig, &["get", "--raw", "/version"], "").await.ok()
            })
            .await;
        }
    }
    let service = ["apiservice", "v1alpha1.proxy.kubesvc.io"];
    let remove = ["--type=json", r#"--patch=[{"op":"remove","path":"/spec/caBundle"}]"#];
    must(place.world.kubectl(&[&["patch"], &service[..], &remove].concat()).await.ok());
    eventually("the authority in an APIService that was applied anew", Duration::from_secs(40), async || {
        let get = [&["get"], &service[..], &["-o", "jsonpath={.spec.caBundle}"]].concat();
        let told = place.world.kubectl(&get).await.ok()?;
        if told.trim().is_empty() { Err("it has none".to_owned()) } else { Ok(()) }
    })
    .await;
}
