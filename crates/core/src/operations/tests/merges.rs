//! The three-way patch, merged into the live object as the API server does it.

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::patches::patched;
use crate::operations::merge::{ThreeWayPatch, three_way_patch};

fn pod(spec: &Value) -> Value {
    json!({"spec": spec})
}

/// The live object after the patch.
pub(super) fn three_way(group: &str, kind: &str, last: &Value, manifest: &Value, live: &Value) -> Value {
    match three_way_patch(group, kind, last, manifest, live) {
        Some(patch) => patched(live, &patch.body),
        None => live.clone(),
    }
}

fn merged(last: &Value, manifest: &Value, live: &Value) -> Value {
    three_way("", "Pod", &pod(last), &pod(manifest), &pod(live))["spec"].clone()
}

#[test]
fn fields_come_change_and_go_and_those_of_others_stay() {
    let last = json!({"a": 1, "gone": 1, "deep": {"x": 1, "gone": 1}});
    let manifest = json!({"a": 2, "new": 3, "deep": {"x": 1}});
    let live = json!({"a": 1, "gone": 1, "deep": {"x": 1, "gone": 1, "default": 9}, "others": true});
    let wanted = json!({"a": 2, "new": 3, "deep": {"x": 1, "default": 9}, "others": true});
    assert_eq!(merged(&last, &manifest, &live), wanted);
}

#[test]
fn null_in_the_manifest_is_no_field() {
    let live = json!({"a": 1, "deep": {"b": 1, "c": 2}});
    let manifest = json!({"a": null, "deep": {"b": null}, "new": {"d": null, "e": 1}});
    assert_eq!(merged(&json!({}), &manifest, &live), json!({"deep": {"c": 2}, "new": {"e": 1}}));
}

#[test]
fn items_are_merged_by_their_key_and_keep_their_order() {
    let last = json!({"containers": [{"name": "a", "image": "1"}, {"name": "gone", "image": "1"}]});
    let manifest = json!({"containers": [{"name": "new", "image": "1"}, {"name": "a", "image": "2"}]});
    let live = json!({"containers": [
        {"name": "injected", "image": "i"},
        {"name": "a", "image": "1", "imagePullPolicy": "Always"},
        {"name": "gone", "image": "1"},
    ]});
    let wanted = json!({"containers": [
        {"name": "new", "image": "1"},
        {"name": "injected", "image": "i"},
        {"name": "a", "image": "2", "imagePullPolicy": "Always"},
    ]});
    assert_eq!(merged(&last, &manifest, &live), wanted);
}

#[test]
fn lists_below_containers_have_keys_of_their_own() {
    let container = |env: Value, ports: Value, mounts: Value, args: Value| json!({"containers": [{"name": "a", "env": env, "ports": ports, "volumeMounts": mounts, "args": args}]});
    let last = container(
        json!([{"name": "X", "value": "1"}, {"name": "GONE", "value": "1"}]),
        json!([{"containerPort": 80}]),
        json!([{"mountPath": "/a", "name": "v"}]),
        json!(["1"]),
    );
    let manifest = container(
        json!([{"name": "X", "value": "2"}]),
        json!([{"containerPort": 81}]),
        json!([{"mountPath": "/b", "name": "v"}]),
        json!(["2"]),
    );
    let live = container(
        json!([{"name": "X", "value": "1"}, {"name": "GONE", "value": "1"}, {"name": "OTHERS", "value": "o"}]),
        json!([{"containerPort": 80, "protocol": "TCP"}]),
        json!([{"mountPath": "/a", "name": "v"}, {"mountPath": "/token", "name": "t"}]),
        json!(["1", "x"]),
    );
    let wanted = container(
        json!([{"name": "X", "value": "2"}, {"name": "OTHERS", "value": "o"}]),
        json!([{"containerPort": 81}]),
        json!([{"mountPath": "/b", "name": "v"}, {"mountPath": "/token", "name": "t"}]),
        json!(["2"]),
    );
    assert_eq!(merged(&last, &manifest, &live), wanted);
}

#[test]
fn volume_of_another_type_loses_its_former_one() {
    let last = json!({"volumes": [{"name": "v", "emptyDir": {}}]});
    let manifest = json!({"volumes": [{"name": "v", "configMap": {"name": "c"}}]});
    let live = json!({"volumes": [{"name": "v", "emptyDir": {}}, {"name": "w", "emptyDir": {}}]});
    let wanted =
        json!({"volumes": [{"name": "v", "configMap": {"name": "c"}}, {"name": "w", "emptyDir": {}}]});
    assert_eq!(merged(&last, &manifest, &live), wanted);
}

#[test]
fn strategy_of_a_deployment_keeps_only_fields_of_the_manifest() {
    let of = |strategy: Value| json!({"spec": {"strategy": strategy}});
    let live = of(json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%"}}));
    let manifest = of(json!({"type": "Recreate"}));
    assert_eq!(three_way("apps", "Deployment", &json!({}), &manifest, &live), manifest);
    // No field of that name is special elsewhere.
    let kept = three_way("example.com", "Deployment", &json!({}), &manifest, &live);
    assert_eq!(kept["spec"]["strategy"], json!({"type": "Recreate", "rollingUpdate": {"maxSurge": "25%"}}));
}

#[test]
fn lists_of_custom_kinds_are_replaced_as_a_whole() {
    let of = |names: &[&str]| json!({"spec": {"containers": names.iter().map(|n| json!({"name": n})).collect::<Vec<_>>()}});
    let merged = three_way("example.com", "Widget", &json!({}), &of(&["a"]), &of(&["b", "c"]));
    assert_eq!(merged, of(&["a"]));
}

#[test]
fn finalizers_are_a_set_except_on_custom_kinds() {
    let of = |names: &[&str]| json!({"metadata": {"finalizers": names}});
    let merge =
        |group: &str| three_way(group, "Service", &of(&["old"]), &of(&["mine"]), &of(&["old", "others"]));
    assert_eq!(merge(""), of(&["mine", "others"]));
    assert_eq!(merge("example.com"), of(&["mine"]));
}

#[test]
fn ports_that_share_a_number_are_taken_as_a_whole() {
    let of = |ports: Value| json!({"containers": [{"name": "dns", "ports": ports}]});
    let both =
        of(json!([{"containerPort": 53, "protocol": "TCP"}, {"containerPort": 53, "protocol": "UDP"}]));
    let one = of(json!([{"containerPort": 53, "protocol": "TCP"}]));
    assert_eq!(merged(&one, &both, &one), both);
    assert_eq!(merged(&both, &one, &both), one);
}

#[test]
fn pod_templates_are_merged_wherever_a_kind_has_them() {
    let containers = |image: &str| json!({"spec": {"containers": [{"name": "a", "image": image}]}});
    let live = |image: &str| json!({"spec": {"containers": [{"name": "a", "image": image}, {"name": "injected", "image": "i"}]}});
    for (group, kind, path) in [
        ("apps", "Deployment", vec!["spec", "template"]),
        ("apps", "StatefulSet", vec!["spec", "template"]),
        ("batch", "Job", vec!["spec", "template"]),
        ("batch", "CronJob", vec!["spec", "jobTemplate", "spec", "template"]),
        ("", "PodTemplate", vec!["template"]),
    ] {
        let at = |value: Value| path.iter().rev().fold(value, |value, key| json!({ *key: value }));
        let merged = three_way(group, kind, &at(containers("1")), &at(containers("2")), &at(live("1")));
        assert_eq!(merged, at(live("2")), "{kind}");
    }
}

#[test]
fn patch_says_only_what_changes() {
    let last = json!({"gone": 1, "none": 1, "never": 1});
    let live = json!({"a": 1, "b": {"c": 1, "d": [1]}, "gone": 1, "none": null, "others": 1});
    let wanted = json!({"a": 1, "b": {"c": 2, "d": [1, 2]}, "new": {}});
    let body = json!({"b": {"c": 2, "d": [1, 2]}, "gone": null, "new": {}});
    let of =
        |group: &str, last: &Value, manifest: &Value| three_way_patch(group, "Job", last, manifest, &live);
    for (group, content_type) in [
        ("example.com", "application/merge-patch+json"),
        ("gateway.networking.k8s.io", "application/merge-patch+json"),
        ("batch", "application/strategic-merge-patch+json"),
        ("networking.k8s.io", "application/strategic-merge-patch+json"),
    ] {
        assert_eq!(of(group, &last, &wanted), Some(ThreeWayPatch { body: body.clone(), content_type }));
        assert_eq!(of(group, &json!({}), &live), None);
    }
}

#[test]
fn lists_of_native_kinds_are_merged_by_the_api_server() {
    let pod = |spec: Value| json!({ "spec": spec });
    let patch = three_way_patch(
        "",
        "Pod",
        &pod(json!({"containers": [{"name": "gone"}], "volumes": [{"name": "v", "emptyDir": {}}]})),
        &pod(json!({
            "containers": [{"name": "new"}, {"name": "a", "image": "2"}],
            "volumes": [{"name": "v", "secret": {}}],
        })),
        &pod(json!({
            "containers": [{"name": "a", "image": "1"}, {"name": "gone"}, {"name": "others"}],
            "volumes": [{"name": "v", "emptyDir": {}}],
        })),
    );
    let body = json!({
        "$setElementOrder/containers": [{"name": "new"}, {"name": "a"}],
        "containers": [{"name": "new"}, {"name": "a", "image": "2"}, {"name": "gone", "$patch": "delete"}],
        "$setElementOrder/volumes": [{"name": "v"}],
        "volumes": [{"name": "v", "secret": {}, "emptyDir": null, "$retainKeys": ["name", "secret"]}],
    });
    assert_eq!(patch.map(|patch| patch.body["spec"].clone()), Some(body));
    let of = |names: &[&str]| json!({"metadata": {"finalizers": names}});
    let patch = three_way_patch("", "Pod", &of(&["gone"]), &of(&["b", "a"]), &of(&["gone", "a"]));
    let body = json!({
        "$setElementOrder/finalizers": ["b", "a"], "finalizers": ["b"], "$deleteFromPrimitiveList/finalizers": ["gone"],
    });
    assert_eq!(patch.map(|patch| patch.body["metadata"].clone()), Some(body));
    // A list of which no other item is there needs no order.
    let patch =
        three_way_patch("", "Pod", &json!({}), &pod(json!({"containers": [{"name": "a"}]})), &json!({}));
    assert_eq!(patch.map(|patch| patch.body), Some(pod(json!({"containers": [{"name": "a"}]}))));
}

/// Pods of few names, so that they have much in common.
fn some_spec() -> impl Strategy<Value = Value> {
    let number = || 0..3_u8;
    let items = |key: &'static str| {
        proptest::collection::btree_map(0..4_u8, proptest::option::of(number()), 0..4).prop_shuffle_map(key)
    };
    (items("name"), items("name"), proptest::option::of(number()), proptest::collection::vec(number(), 0..3))
        .prop_map(|(containers, volumes, replicas, args)| {
            let mut spec = Map::new();
            if !containers.is_empty() {
                spec.insert("containers".to_owned(), containers.into());
            }
            if !volumes.is_empty() {
                spec.insert("volumes".to_owned(), volumes.into());
            }
            if let Some(replicas) = replicas {
                spec.insert("replicas".to_owned(), replicas.into());
            }
            if !args.is_empty() {
                spec.insert("args".to_owned(), args.into());
            }
            Value::Object(spec)
        })
}

/// Makes items of a map, in any order.
trait Items: Strategy<Value = std::collections::BTreeMap<u8, Option<u8>>> + Sized + 'static {
    fn prop_shuffle_map(self, key: &'static str) -> BoxedStrategy<Vec<Value>> {
        self.prop_map(move |items| {
            let item = |(name, value): (u8, Option<u8>)| match value {
                Some(value) => json!({key: name.to_string(), "value": value}),
                None => json!({key: name.to_string()}),
            };
            items.into_iter().map(item).collect::<Vec<_>>()
        })
        .prop_shuffle()
        .boxed()
    }
}
impl<S: Strategy<Value = std::collections::BTreeMap<u8, Option<u8>>> + 'static> Items for S {}

/// Whether each field and item of the manifest is in the merged object.
fn holds(merged: &Value, manifest: &Value) -> bool {
    match (merged, manifest) {
        (Value::Object(merged), Value::Object(manifest)) => {
            manifest.iter().all(|(key, wanted)| merged.get(key).is_some_and(|merged| holds(merged, wanted)))
        }
        (Value::Array(merged), Value::Array(manifest)) => {
            let mut rest = merged.iter();
            // In their order.
            manifest.iter().all(|wanted| rest.any(|merged| holds(merged, wanted)))
        }
        (merged, manifest) => merged == manifest,
    }
}

proptest! {
    #[test]
    fn manifest_is_in_the_merged_object_in_its_order(
        last in some_spec(), manifest in some_spec(), live in some_spec()
    ) {
        let merged = merged(&last, &manifest, &live);
        prop_assert!(holds(&merged, &manifest), "{merged}");
    }

    #[test]
    fn applying_again_writes_nothing(last in some_spec(), manifest in some_spec(), live in some_spec()) {
        let once = merged(&last, &manifest, &live);
        prop_assert_eq!(three_way_patch("", "Pod", &pod(&manifest), &pod(&manifest), &pod(&once)), None);
    }

    #[test]
    fn what_was_never_applied_stays(manifest in some_spec(), live in some_spec()) {
        let merged = merged(&json!({}), &manifest, &live);
        for (key, held) in live.as_object().expect("an object") {
            if manifest.get(key).is_none() {
                prop_assert_eq!(&merged[key], held);
            }
        }
    }
}

/// Items and finalizers are found by their key: with 20,000 of each, comparing all with all takes minutes.
#[test]
fn long_lists_are_merged_in_time_that_grows_with_their_length() {
    let env = |from: usize| (from..from + 20_000).map(|n| json!({"name": format!("n{n}"), "value": "x"}));
    let object = |from: usize| {
        let env: Vec<_> = env(from).collect();
        let finalizers: Vec<_> = (from..from + 20_000).map(|n| format!("f/{n}")).collect();
        json!({"metadata": {"finalizers": finalizers},
            "spec": {"template": {"spec": {"containers": [{"name": "c", "env": env}]}}}})
    };
    let (last, wanted, live) = (object(0), object(10), object(0));
    let began = std::time::Instant::now();
    let patch = three_way_patch("apps", "Deployment", &last, &wanted, &live).expect("it changes");
    assert!(began.elapsed().as_secs() < 20, "{:?}", began.elapsed());
    let env = &patch.body["spec"]["template"]["spec"]["containers"][0]["env"];
    assert_eq!(env.as_array().map(Vec::len), Some(20), "10 are added and 10 deleted");
    assert_eq!(
        patch.body["metadata"]["$deleteFromPrimitiveList/finalizers"].as_array().map(Vec::len),
        Some(10)
    );
}
