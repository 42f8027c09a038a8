//! A list, a watch and a log that are cut never end as if they were whole: at both doors, by HTTP/1.1 and HTTP/2.

use std::time::Duration;

use futures::future::join_all;
use serde_json::json;

use super::client::{Door, Reading};
use super::gate::Hold;
use super::rounds::Round;
use super::scene::Scene;
use crate::world::MAX_WAIT;
use kubesvc_testkit::must;
use kubesvc_testkit::wait::eventually;

/// Time in which an answer that was cut must end.
const CUT_WITHIN: Duration = Duration::from_secs(10);
/// Bytes of each object of the list, so that it has many frames.
const LARGE: usize = 300 * 1024;

/// What cuts them.
#[derive(Clone, Copy, Debug)]
enum Cut {
    Streams,
    Agent,
    ReplicaOfAgent,
    Api,
    AgentStops,
    ReplicaOfAgentStops,
}

impl Cut {
    /// Whether an answer may end well: a watch, at the end of an event, when what it comes from stops in good order.
    fn lets_end(self, what: &str, text: &str) -> bool {
        let is_orderly = matches!(self, Self::AgentStops | Self::ReplicaOfAgentStops);
        is_orderly && what.starts_with("watch ") && text.ends_with('\n')
    }
}

/// The doors, each by both versions of HTTP. The direct one is at the replica that has no agent, the aggregated one leads
/// to the other.
pub(super) fn doors(scene: &Scene, aggregated_token: &str) -> Vec<Door> {
    let (direct, aggregated) = (scene.door(1), scene.aggregated_door(aggregated_token));
    [direct, aggregated].iter().flat_map(|door| [door.by_http2(false), door.by_http2(true)]).collect()
}

/// Begins each kind of answer at each door, and reads the beginning of it.
async fn begin(scene: &Scene, doors: &[Door]) -> Vec<(String, Reading)> {
    let maps = format!("{}/api/v1/namespaces/{}/configmaps", scene.path(), scene.world.namespace());
    let log = format!("{}/api/v1/namespaces/{}/pods/cell-pod/log", scene.path(), scene.world.namespace());
    let kinds = [
        ("list", format!("{maps}?labelSelector=of%3Dcell-list"), "\"kind\":\"ConfigMapList\""),
        ("watch", format!("{maps}?watch=true&fieldSelector=metadata.name%3Dcell-list-0"), "ADDED"),
        ("log", format!("{log}?follow=true"), "line 3"),
    ];
    let begun = doors.iter().flat_map(|door| kinds.iter().map(move |kind| (door, kind)));
    let begun = begun.map(|(door, (kind, path, text))| async move {
        let what = format!("{kind} at the {} door, HTTP/2: {}", door.name, door.is_http2);
        let reading = eventually(&what, MAX_WAIT, async || {
            let mut reading = door.get(path).await?;
            reading.until(text).await?;
            Ok(reading)
        })
        .await;
        (what, reading)
    });
    join_all(begun).await
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_cut_never_ends_as_if_it_were_whole() {
    let scene = Scene::start().await;
    let namespace = scene.world.namespace();
    for number in 0..3 {
        let object = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": format!("cell-list-{number}"), "namespace": namespace, "labels": {"of": "cell-list"}},
            "data": {"large": "x".repeat(LARGE)},
        });
        must(scene.world.kubectl_with_input(&["create", "-f", "-"], &object.to_string()).await.ok());
    }
    let doors = doors(&scene, &scene.aggregated_token().await);
    let orderly = [Cut::AgentStops, Cut::ReplicaOfAgentStops];
    for cut in [Cut::Streams, Cut::Agent, Cut::ReplicaOfAgent, Cut::Api].into_iter().chain(orderly) {
        scene.ready(Round::AGENT_AT).await;
        scene.until_aggregated().await;
        scene.gate.set(Hold::Bodies);
        let readings = begin(&scene, &doors).await;
        match cut {
            Cut::Streams => scene.cut_streams(),
            Cut::Agent => {
                scene.agent.kill();
                scene.agent.launch();
            }
            Cut::ReplicaOfAgent => scene.replica(Round::AGENT_AT).kill(),
            Cut::Api => scene.gate.cut(),
            Cut::AgentStops => {
                scene.agent.terminate().await;
                scene.agent.launch();
            }
            Cut::ReplicaOfAgentStops => {
                scene.replica(Round::AGENT_AT).terminate().await;
            }
        }
        let ends = readings.into_iter().map(|(what, mut reading)| async move {
            let ended = tokio::time::timeout(CUT_WITHIN, reading.end()).await;
            match ended {
                Ok(Err(_)) => None,
                Ok(Ok(())) if cut.lets_end(&what, &reading.text()) => None,
                Ok(Ok(())) => Some(format!("{what} ended as if it were whole: {:.200}", reading.text())),
                Err(_) => Some(format!("{what} has not ended")),
            }
        });
        let wrong: Vec<_> = join_all(ends).await.into_iter().flatten().collect();
        scene.gate.set(Hold::Nothing);
        assert!(wrong.is_empty(), "{cut:?}:\n{}", wrong.join("\n"));
    }
    // And what is not cut is whole.
    scene.ready(Round::AGENT_AT).await;
    scene.until_aggregated().await;
    for door in &doors {
        let path =
            format!("{}/api/v1/namespaces/{namespace}/configmaps?labelSelector=of%3Dcell-list", scene.path());
        let mut reading = must(door.get(&path).await);
        must(tokio::time::timeout(CUT_WITHIN, reading.end()).await.expect("it ends"));
        let list: serde_json::Value = serde_json::from_str(&reading.text()).expect("a whole list");
        assert_eq!(list["items"].as_array().map(Vec::len), Some(3));
    }
}
