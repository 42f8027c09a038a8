//! What `kubectl apply -k` is given here is taken by a real API server, for one replica and for several.

use serde_json::Value;

use crate::harness::controlplane::{ControlPlane, shared};
use crate::harness::must;
use crate::world::{documents, in_repository};

#[tokio::test(flavor = "multi_thread")]
async fn what_is_installed_is_taken_by_the_api_server() {
    let plane = shared().await;
    // An object that is only tried out needs its namespace all the same.
    must(plane.kubectl(["apply", "-f", &in_repository("config/default/namespace.yaml")]).await.ok());
    for folder in
        ["config/default", "config/replicas", "config/copy-database", "config/agent", "config/people"]
    {
        let tried = plane.kubectl(["apply", "--dry-run=server", "-k", &in_repository(folder)]).await;
        must(tried.ok().map_err(|e| format!("{folder}: {e}")));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn several_replicas_share_a_database_and_have_no_volume() {
    let objects = rendered(shared().await, "config/replicas").await;
    let deployment = only(&objects, "Deployment");
    assert_eq!(deployment["spec"]["replicas"], 3);
    assert_eq!(deployment["spec"]["strategy"]["type"], "RollingUpdate");
    let pod = &deployment["spec"]["template"]["spec"];
    let volumes: Vec<_> =
        pod["volumes"].as_array().expect("volumes").iter().map(|volume| &volume["name"]).collect();
    assert_eq!(volumes, ["settings"], "no volume of SQLite's is left");
    let environment = pod["containers"][0]["env"].as_array().expect("an environment");
    assert!(
        environment
            .iter()
            .any(|one| one["name"] == "KUBESVC_DATABASE_URL" && one["valueFrom"]["secretKeyRef"].is_object()),
        "the database comes from a Secret: {environment:?}"
    );
    assert!(objects.iter().all(|object| object["kind"] != "PersistentVolumeClaim"));
    let settings = only(&objects, "ConfigMap")["data"]["kubesvc.yml"].as_str().expect("settings");
    assert!(!settings.contains("sqlite:"), "{settings}");
    let budget = only(&objects, "PodDisruptionBudget");
    assert_eq!(
        budget["spec"]["selector"], deployment["spec"]["selector"],
        "the budget is for the operator's pods"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_copy_is_made_from_the_volume_of_one_replica_to_the_database_of_several() {
    let plane = shared().await;
    let copy = rendered(plane, "config/copy-database").await;
    let (one, several) = (rendered(plane, "config/default").await, rendered(plane, "config/replicas").await);
    let pod = |objects: &[Value], kind: &str| only(objects, kind)["spec"]["template"]["spec"].clone();
    let (copying, alone, sharing) = (pod(&copy, "Job"), pod(&one, "Deployment"), pod(&several, "Deployment"));
    let claim = |pod: &Value| {
        let volumes = pod["volumes"].as_array().cloned().unwrap_or_default();
        volumes.into_iter().find(|volume| volume["name"] == "database")
    };
    assert_eq!(claim(&copying), claim(&alone));
    let variable = |pod: &Value, name: &str| {
        let all = pod["containers"][0]["env"].as_array().cloned().unwrap_or_default();
        all.into_iter().find(|one| one["name"] == name)
    };
    let to = variable(&copying, "KUBESVC_COPY_TO").expect("it names the target");
    let shared_url = variable(&sharing, "KUBESVC_DATABASE_URL").expect("they name the database");
    assert_eq!(to["valueFrom"], shared_url["valueFrom"]);
    let from = variable(&copying, "KUBESVC_COPY_FROM").expect("it names the source");
    let settings = only(&one, "ConfigMap")["data"]["kubesvc.yml"].as_str().expect("settings").to_owned();
    assert!(settings.contains(from["value"].as_str().unwrap_or("nothing")), "{from} is not in {settings}");
}

async fn rendered(plane: &ControlPlane, folder: &str) -> Vec<Value> {
    let rendered = must(plane.kubectl(["kustomize", &in_repository(folder)]).await.ok());
    let read = ["create", "--dry-run=client", "--validate=false", "-o", "json", "-f", "-"];
    documents(&must(plane.kubectl_with_input(read, &rendered).await.ok()))
}

fn only<'a>(objects: &'a [Value], kind: &str) -> &'a Value {
    let found: Vec<_> = objects.iter().filter(|object| object["kind"] == kind).collect();
    let [one] = found[..] else { unreachable!("one {kind} was expected, not {}", found.len()) };
    one
}
