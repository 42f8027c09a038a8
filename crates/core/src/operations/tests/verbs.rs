//! The other verbs, and the kinds of a cluster.

use std::time::Duration;

use serde_json::{Value, json};

use super::{ApiAnswer, Run, answer, kinds, refusal};
use crate::operations::{KindLookup, Kinds, MAX_RESULT_BYTES, OutcomeBody};

const TARGET: &str =
    "target { group: \"apps\" version: \"v1\" kind: \"Deployment\" namespace: \"n\" name: \"web\" }";
const WEB: &str = "/apis/apps/v1/namespaces/n/deployments/web";

fn of(verb: &str) -> String {
    format!("account {{ name: \"a\" }} {}", verb.replace("TARGET", TARGET))
}

fn object(name: &str, uid: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": "n", "uid": uid, "resourceVersion": "7"}})
}

#[test]
fn scale_patches_the_subresource() {
    let mut run = Run::new(&of("scale { TARGET replicas: 3 }"));
    assert_eq!(run.line(), format!("PATCH {WEB}/scale?fieldManager=kubesvc"));
    assert_eq!(run.body(), json!({"spec": {"replicas": 3}}));
    run.answer(200, &json!({"kind": "Scale"}));
    assert_eq!(run.end(), (200, None));
    assert!(Run::dry(&of("scale { TARGET replicas: 0 }")).line().ends_with("dryRun=All"));
}

#[test]
fn rollouts_are_paused_resumed_and_restarted_by_one_patch() {
    assert_eq!(Run::new(&of("pause_rollout { TARGET }")).body(), json!({"spec": {"paused": true}}));
    assert_eq!(Run::new(&of("resume_rollout { TARGET }")).body(), json!({"spec": {"paused": false}}));
    let mut restart = Run::new(&of("restart_rollout { TARGET }"));
    assert_eq!(restart.line(), format!("GET {WEB}"));
    restart.answer(200, &json!({"spec": {"paused": false}}));
    let restart = restart.body();
    let annotations = &restart["spec"]["template"]["metadata"]["annotations"];
    assert_eq!(annotations, &json!({"kubectl.kubernetes.io/restartedAt": "2026-01-01T00:00:00Z"}));
    let pod = of("restart_rollout { TARGET }").replace("group: \"apps\"", "").replace("Deployment", "Pod");
    assert!(super::start(&pod, false, &super::ApplySettings::default()).is_err());
}

#[test]
fn a_restart_of_a_paused_deployment_is_refused_as_by_kubectl() {
    let mut restart = Run::new(&of("restart_rollout { TARGET }"));
    restart.answer(200, &json!({"spec": {"paused": true}}));
    let (status, why) = restart.end();
    assert_eq!(status, 409);
    assert!(why.is_some_and(|why| why.contains("paused")), "{why:?}");
    let mut daemons = Run::new(&of("restart_rollout { TARGET }").replace("Deployment", "DaemonSet"));
    assert!(daemons.line().starts_with("PATCH "), "it cannot be paused: {}", daemons.line());
    assert_eq!(daemons.answer(200, &json!({})).end(), (200, None));
}

#[test]
fn beginning_and_end_of_a_long_refusal_stay() {
    let mut scale = Run::new(&of("scale { TARGET replicas: 3 }"));
    let said = format!("Job.batch \"x\" is invalid: {}ä: field is immutable", "äb".repeat(5_000));
    scale.reply(&refusal(422, &said));
    let (status, why) = scale.end();
    let why = why.unwrap_or_default();
    assert_eq!(status, 422);
    assert!(why.starts_with("Job.batch \"x\" is invalid") && why.ends_with("ä: field is immutable"), "{why}");
    assert!(why.contains("bytes left out") && why.len() <= 1024, "{why}");
}

#[test]
fn patch_goes_as_it_is_under_its_media_type() {
    let patch = |kind: &str, data: &str, more: &str| {
        Run::new(&of(&format!("patch {{ TARGET {kind} body {{ data: {data:?} }} {more} }}")))
    };
    let run = patch("", "spec: {paused: true}", "");
    assert_eq!(run.request().content_type, Some("application/strategic-merge-patch+json"));
    assert_eq!(run.body(), json!({"spec": {"paused": true}}));
    assert_eq!(patch("", "spec: {replicas: 010}", "").body(), json!({"spec": {"replicas": 8}}));
    assert_eq!(patch("", "{\"spec\": {\"replicas\": 3.0}}", "").body(), json!({"spec": {"replicas": 3}}));
    let run = patch("type: MERGE", r#"{"metadata": {"annotations": {"a": "b"}}}"#, "record: true");
    assert_eq!(run.request().content_type, Some("application/merge-patch+json"));
    let annotations = run.body()["metadata"]["annotations"].clone();
    assert_eq!(annotations["a"], "b");
    let cause = annotations["kubernetes.io/change-cause"].as_str().unwrap_or_default().to_owned();
    assert!(cause.starts_with("kubesvc patch deployments"), "{cause}");
    let mut run = patch("type: JSON", r#"[{"op": "remove", "path": "/spec/paused"}]"#, "record: true");
    assert_eq!(run.request().content_type, Some("application/json-patch+json"));
    run.answer(200, &object("web", "1"));
    assert!(run.body()["metadata"]["annotations"]["kubernetes.io/change-cause"].is_string());
    run.answer(200, &object("web", "1"));
    assert_eq!(run.end(), (200, None));
}

#[test]
fn dry_run_of_a_json_patch_shows_the_recorded_cause_beside_what_is_patched() {
    let data = r#"[{"op": "remove", "path": "/spec/paused"}]"#;
    let patch = of(&format!("patch {{ TARGET type: JSON body {{ data: {data:?} }} record: true }}"));
    for annotations in [json!(null), json!({"mine": "x"})] {
        let mut run = Run::dry(&patch);
        assert_eq!(run.line(), format!("PATCH {WEB}?fieldManager=kubesvc&dryRun=All"));
        let mut patched = object("web", "1");
        patched["metadata"]["annotations"] = annotations.clone();
        run.answer(200, &patched);
        assert_eq!(run.end(), (200, None));
        let metadata = &run.result()["metadata"];
        assert!(metadata["annotations"]["kubernetes.io/change-cause"].is_string(), "{metadata}");
        assert_eq!((&metadata["annotations"]["mine"], &metadata["uid"]), (&annotations["mine"], &json!("1")));
    }
    let mut run = Run::dry(&patch);
    run.reply(&refusal(422, "there is no /spec/paused"));
    assert_eq!(run.end(), (422, Some("there is no /spec/paused")));
}

#[test]
fn delete_is_by_uid_and_waits_until_it_is_gone() {
    let mut run = Run::new(&of("delete { TARGET propagation: FOREGROUND grace_s: 5 }"));
    assert_eq!(run.line(), format!("GET {WEB}"));
    run.answer(200, &object("web", "uid-1"));
    assert_eq!(run.line(), format!("DELETE {WEB}"));
    let options = run.body();
    assert_eq!(options["preconditions"], json!({"uid": "uid-1"}));
    assert_eq!(
        (&options["propagationPolicy"], &options["gracePeriodSeconds"]),
        (&json!("Foreground"), &json!(5))
    );
    run.answer(200, &object("web", "uid-1")).answer(200, &object("web", "uid-1"));
    run.wait();
    // Made anew by somebody: what was meant is gone.
    run.answer(200, &object("web", "uid-2"));
    assert_eq!(run.end(), (200, None));
}

#[test]
fn delete_that_is_denied_as_a_conflict_says_so_while_the_object_stays() {
    let denied = || {
        let mut run = Run::new(&of("delete { TARGET }"));
        run.answer(200, &object("web", "uid-1")).reply(&refusal(409, "web is in use"));
        assert_eq!(run.line(), format!("GET {WEB}"));
        run
    };
    let mut run = denied();
    run.answer(200, &object("web", "uid-1"));
    assert_eq!(run.end(), (409, Some("web is in use")));
    // The conflict was about another object of the name, or somebody has deleted it.
    for now in [answer(200, &object("web", "uid-2")), refusal(404, "not found")] {
        let mut run = denied();
        run.reply(&now);
        assert_eq!(run.end(), (200, None), "{now:?}");
    }
    let mut run = denied();
    run.reply(&refusal(403, "you may not look"));
    assert_eq!(run.end(), (403, Some("you may not look")));
}

#[test]
fn delete_that_runs_again_spares_what_was_made_anew() {
    let mut run = Run::new(&of("delete { TARGET }"));
    assert!(!run.program.goes_on(), "nothing is known yet");
    run.answer(200, &object("web", "uid-1")).run_again();
    assert_eq!(run.line(), format!("GET {WEB}"));
    run.answer(200, &object("web", "uid-2"));
    assert_eq!(run.end(), (200, None), "its controller has made it anew");
    // It was not executed, and then the look had no answer either.
    let mut run = Run::new(&of("delete { TARGET }"));
    run.answer(200, &object("web", "uid-1")).run_again().run_again().answer(200, &object("web", "uid-1"));
    assert_eq!(run.line(), format!("DELETE {WEB}"));
    assert_eq!(run.body()["preconditions"], json!({"uid": "uid-1"}));
    run.answer(200, &object("web", "uid-1")).run_again();
    assert_eq!(run.line(), format!("GET {WEB}"), "it is deleted, and waited for");
    run.reply(&refusal(404, "not found"));
    assert_eq!(run.end(), (200, None));
    // Of several, those that are left.
    let pods = "target { version: \"v1\" kind: \"Pod\" namespace: \"n\" }";
    let mut run = Run::new(&of(&format!("delete {{ {pods} label_selector: \"app=a\" }}")));
    let items = ["one", "two", "three"].map(|name| object(name, name)).to_vec();
    run.answer(200, &json!({"metadata": {}, "items": items})).answer(200, &object("one", "one")).run_again();
    assert_eq!(run.line(), "GET /api/v1/namespaces/n/pods/two");
    run.answer(200, &object("two", "anew"));
    assert_eq!(run.line(), "DELETE /api/v1/namespaces/n/pods/three");
    assert_eq!(run.body()["preconditions"], json!({"uid": "three"}));
}

#[test]
fn dry_run_of_a_delete_stands_in_its_options() {
    let mut run = Run::dry(&of("delete { TARGET }"));
    run.answer(200, &object("web", "uid-1"));
    assert_eq!(run.line(), format!("DELETE {WEB}?dryRun=All"));
    assert_eq!(run.body()["dryRun"], json!(["All"]));
    run.answer(200, &object("web", "uid-1"));
    assert_eq!(run.end(), (200, None));
    assert_eq!(run.result()["metadata"]["uid"], "uid-1", "the object that would be deleted");
}

#[test]
fn dry_run_of_a_delete_by_selector_shows_what_matches() {
    let pods = "target { version: \"v1\" kind: \"Pod\" namespace: \"n\" }";
    let delete = of(&format!("delete {{ {pods} label_selector: \"app=a\" }}"));
    let page =
        |metadata: &Value, items: &[Value]| json!({"kind": "PodList", "metadata": metadata, "items": items});
    let first = json!({"resourceVersion": "9", "continue": "x", "remainingItemCount": 7});
    // The second page is the last one, or has more than a result and is followed by another one.
    for is_large in [false, true] {
        let mut two = object("two", "2");
        let mut names = vec!["one", "two"];
        let mut run = Run::dry(&delete);
        run.answer(200, &page(&first, &[object("one", "1")]));
        if is_large {
            two["data"] = "x".repeat(MAX_RESULT_BYTES).into();
            run.answer(200, &page(&json!({"continue": "y"}), &[two]));
            run.answer(200, &page(&json!({}), &[object("three", "3"), object("four", "4")]));
            names.extend(["three", "four"]);
        } else {
            run.answer(200, &page(&json!({}), &[two]));
        }
        for name in names {
            assert_eq!(run.line(), format!("DELETE /api/v1/namespaces/n/pods/{name}?dryRun=All"));
            run.answer(200, &object(name, "?"));
        }
        assert_eq!(run.end(), (200, None));
        let shown = run.result();
        let (metadata, items) = if is_large {
            (json!({"resourceVersion": "9", "remainingItemCount": 3}), vec![object("one", "1")])
        } else {
            (json!({"resourceVersion": "9"}), vec![object("one", "1"), object("two", "2")])
        };
        assert_eq!(*shown, page(&metadata, &items));
    }
    let mut run = Run::dry(&delete);
    run.answer(200, &page(&json!({}), &[]));
    assert_eq!(run.end(), (200, None));
    assert_eq!(run.result()["items"], json!([]), "nothing matches");
}

#[test]
fn delete_whose_time_is_over_while_it_waits_is_accepted() {
    let mut run = Run::new(&of("delete { TARGET grace_s: 600 }"));
    assert_eq!(run.program.out_of_time(), None, "nothing is deleted");
    run.answer(200, &object("web", "uid-1")).answer(200, &object("web", "uid-1"));
    run.answer(200, &object("web", "uid-1"));
    assert_eq!(run.program.out_of_time().map(|outcome| outcome.status), Some(202));
}

#[test]
fn delete_of_what_does_not_end_is_accepted_after_the_grace_or_thirty_seconds() {
    for (more, seconds) in [("", 30), ("grace_s: 2", 2), ("grace_s: 0", 30)] {
        let mut run = Run::new(&of(&format!("delete {{ TARGET {more} }}")));
        run.answer(200, &object("web", "uid-1")).answer(200, &object("web", "uid-1"));
        let mut waited = Duration::ZERO;
        loop {
            run.answer(200, &object("web", "uid-1"));
            if matches!(run.step, super::Step::Done(_)) {
                break;
            }
            waited += run.wait();
        }
        assert_eq!(waited, Duration::from_secs(seconds), "{more}");
        assert_eq!(run.end(), (202, None));
        assert_eq!(run.result()["stillThere"][0]["name"], "web");
    }
}

#[test]
fn delete_of_what_is_not_there_is_an_error_unless_said_otherwise() {
    let mut run = Run::new(&of("delete { TARGET }"));
    run.reply(&refusal(404, "deployments.apps \"web\" not found"));
    assert_eq!(run.end(), (404, Some("deployments.apps \"web\" not found")));
    let mut run = Run::new(&of("delete { TARGET ignore_not_found: true }"));
    run.reply(&refusal(404, "deployments.apps \"web\" not found"));
    assert_eq!(run.end(), (200, None));
}

#[test]
fn delete_by_selector_deletes_every_page_and_waits_for_all() {
    let delete = "delete { target { version: \"v1\" kind: \"Pod\" namespace: \"n\" } label_selector: \"app in (a,b)\" }";
    let mut run = Run::new(&of(delete));
    let list = "GET /api/v1/namespaces/n/pods?labelSelector=app+in+%28a%2Cb%29&limit=500";
    assert_eq!(run.line(), list);
    run.answer(200, &json!({"metadata": {"continue": "x/y"}, "items": [object("one", "1")]}));
    assert_eq!(run.line(), format!("{list}&continue=x%2Fy"));
    run.answer(200, &json!({"metadata": {}, "items": [object("two", "2"), object("three", "3")]}));
    for (name, status) in [("one", 200), ("two", 404), ("three", 409)] {
        assert_eq!(run.line(), format!("DELETE /api/v1/namespaces/n/pods/{name}"));
        run.reply(&answer(status, &object(name, "?")));
    }
    // Made anew by somebody.
    assert_eq!(run.line(), "GET /api/v1/namespaces/n/pods/three");
    run.answer(200, &object("three", "4"));
    assert_eq!(run.line(), "GET /api/v1/namespaces/n/pods/one");
    run.reply(&refusal(404, ""));
    assert_eq!(run.end(), (200, None));
    // Nothing matches.
    let mut run = Run::new(&of(delete));
    run.answer(200, &json!({"metadata": {}, "items": []}));
    assert_eq!(run.end(), (200, None));
}

fn replica_set(revision: u32, image: &str, owner: &str) -> Value {
    json!({
        "metadata": {
            "name": format!("web-{image}"), "uid": format!("uid-of-{image}"),
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "annotations": {
                "deployment.kubernetes.io/revision": revision.to_string(),
                "deployment.kubernetes.io/desired-replicas": "3",
                "kubernetes.io/change-cause": format!("deploy {revision}"),
            },
            "ownerReferences": [{"uid": owner, "controller": true}],
        },
        "spec": {"template": {
            "metadata": {"labels": {"app": "web", "pod-template-hash": "x"}},
            "spec": {"containers": [{"name": "c", "image": image}]},
        }},
    })
}

fn deployment(image: &str) -> Value {
    let mut object = object("web", "uid-1");
    object["metadata"]["annotations"] = json!({"deployment.kubernetes.io/revision": "3", "mine": "x"});
    object["spec"] = json!({
        "selector": {"matchLabels": {"app": "web"}},
        "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": image}]}},
    });
    object
}

fn history() -> Value {
    json!({"items": [
        replica_set(3, "three", "uid-1"), replica_set(1, "one", "uid-1"), replica_set(9, "other", "uid-9"),
        replica_set(2, "two", "uid-1"),
    ]})
}

#[test]
fn undo_brings_back_a_revision_at_the_version_it_read() {
    for (to, image) in [("to_revision: 1", "one"), ("revisions_back: 1", "two"), ("revisions_back: 2", "one")]
    {
        let mut run = Run::new(&of(&format!("undo_rollout {{ TARGET {to} }}")));
        run.answer(200, &deployment("three"));
        assert_eq!(run.line(), "GET /apis/apps/v1/namespaces/n/replicasets?labelSelector=app%3Dweb");
        run.answer(200, &history());
        assert_eq!(run.line(), format!("PATCH {WEB}?fieldManager=kubesvc"));
        let patch = run.body();
        assert_eq!(patch[0]["value"]["spec"]["containers"][0]["image"], image, "{to}");
        assert_eq!(patch[0]["value"]["metadata"]["labels"], json!({"app": "web"}));
        let annotations = &patch[1]["value"];
        assert_eq!(annotations["deployment.kubernetes.io/revision"], "3");
        assert!(annotations["kubernetes.io/change-cause"].is_string() && annotations["mine"].is_null());
        assert_eq!(patch[2]["value"], "7");
        // Somebody else was faster; "one back" is still the same revision.
        run.reply(&refusal(409, "modified")).answer(200, &deployment("three"));
        let mut later = history();
        later["items"].as_array_mut().expect("a list").push(replica_set(4, "four", "uid-1"));
        run.answer(200, &later);
        assert_eq!(run.body()[0]["value"]["spec"]["containers"][0]["image"], image, "{to}");
        run.answer(200, &deployment(image));
        assert_eq!(run.end(), (200, None));
    }
}

#[test]
fn undo_whose_patch_was_made_before_its_conflict_is_done() {
    for to in ["to_revision: 1", "revisions_back: 2"] {
        let mut run = Run::new(&of(&format!("undo_rollout {{ TARGET {to} }}")));
        run.answer(200, &deployment("three")).answer(200, &history());
        // An agent had no answer and sent it again. The controller has made the revision the newest one.
        run.reply(&refusal(409, "modified")).answer(200, &deployment("one"));
        let mut later = history();
        later["items"][1] = replica_set(4, "one", "uid-1");
        run.answer(200, &later);
        assert_eq!(run.end(), (200, None), "{to}");
    }
    // It is not there any more.
    let mut run = Run::new(&of("undo_rollout { TARGET to_revision: 1 }"));
    run.answer(200, &deployment("three")).answer(200, &history());
    run.reply(&refusal(409, "modified")).answer(200, &deployment("three"));
    run.answer(200, &json!({"items": [replica_set(3, "three", "uid-1")]}));
    assert_eq!(run.end(), (404, Some("there is no revision 1; there are: 3")));
}

#[test]
fn undo_that_cannot_be_says_why() {
    let end = |to: &str, workload: &Value| {
        let mut run = Run::new(&of(&format!("undo_rollout {{ TARGET {to} }}")));
        run.answer(200, workload).answer(200, &history());
        run.outcome().clone()
    };
    assert_eq!(end("to_revision: 7", &deployment("three")).status, 404);
    assert_eq!(end("revisions_back: 3", &deployment("three")).status, 404);
    let mut paused = deployment("three");
    paused["spec"]["paused"] = json!(true);
    assert_eq!(end("to_revision: 1", &paused).status, 409);
    // It is there already.
    let same = end("to_revision: 3", &deployment("three"));
    assert_eq!((same.status, same.failure), (200, None));
}

#[test]
fn undo_of_a_stateful_set_sends_the_data_of_its_revision() {
    let text = of("undo_rollout { TARGET to_revision: 1 }").replace("Deployment", "StatefulSet");
    let mut run = Run::new(&text);
    run.answer(200, &deployment("two"));
    assert_eq!(run.line(), "GET /apis/apps/v1/namespaces/n/controllerrevisions?labelSelector=app%3Dweb");
    let revision = |number: u32, image: &str| {
        let template = json!({"$patch": "replace", "spec": {"containers": [{"name": "c", "image": image}]}});
        json!({
            "metadata": {"name": format!("web-{number}"), "ownerReferences": [{"uid": "uid-1", "controller": true}]},
            "revision": number, "data": {"spec": {"template": template}},
        })
    };
    run.answer(200, &json!({"items": [revision(1, "one"), revision(2, "two")]}));
    assert_eq!(run.request().content_type, Some("application/strategic-merge-patch+json"));
    let patch = run.body();
    assert_eq!(patch["spec"]["template"]["$patch"], "replace");
    assert_eq!(patch["metadata"], json!({"resourceVersion": "7"}));
}

#[test]
fn history_of_revisions_is_newest_first() {
    let mut run = Run::new(&of("revision_history { TARGET }"));
    run.answer(200, &deployment("three")).answer(200, &history());
    let revisions = &run.result()["revisions"];
    let numbers: Vec<_> =
        revisions.as_array().into_iter().flatten().map(|one| one["revision"].clone()).collect();
    assert_eq!(numbers, [json!(3), json!(2), json!(1)]);
    assert_eq!((&revisions[0]["current"], &revisions[0]["changeCause"]), (&json!(true), &json!("deploy 3")));
}

#[test]
fn reads_are_one_get() {
    assert_eq!(Run::new(&of("get { TARGET }")).line(), format!("GET {WEB}"));
    let list =
        "list { target { version: \"v1\" kind: \"Pod\" } label_selector: \"a=b\" limit: 7 continue: \"x\" }";
    assert_eq!(Run::new(&of(list)).line(), "GET /api/v1/pods?labelSelector=a%3Db&limit=7&continue=x");
    let list = "list { target { version: \"v1\" kind: \"Pod\" namespace: \"n\" } }";
    assert_eq!(Run::new(&of(list)).line(), "GET /api/v1/namespaces/n/pods?limit=500");
    let namespaced = of("get { TARGET }").replace("namespace: \"n\"", "");
    assert!(super::start(&namespaced, false, &super::ApplySettings::default()).is_err());
    let cluster_wide = "get { target { version: \"v1\" kind: \"Namespace\" name: \"n\" } }";
    assert_eq!(Run::new(&of(cluster_wide)).line(), "GET /api/v1/namespaces/n");
}

#[test]
fn logs_are_cut_at_their_limit_and_say_so() {
    let logs = |more: &str| {
        of(&format!(
            "logs {{ target {{ version: \"v1\" kind: \"Pod\" namespace: \"n\" name: \"p\" }} {more} }}"
        ))
    };
    assert_eq!(Run::new(&logs("")).line(), "GET /api/v1/namespaces/n/pods/p/log?limitBytes=1048577");
    let mut run = Run::new(&logs("container: \"c\" tail: 5 since_s: 60 previous: true limit_bytes: 4"));
    assert_eq!(
        run.line(),
        "GET /api/v1/namespaces/n/pods/p/log?container=c&tailLines=5&sinceSeconds=60&previous=true&limitBytes=5"
    );
    run.reply(&ApiAnswer { status: 200, body: b"12345".to_vec(), ..ApiAnswer::default() });
    assert_eq!(run.outcome().body, OutcomeBody::Text { text: "1234".to_owned(), cut: true });
    let mut run = Run::new(&logs("limit_bytes: 4"));
    run.reply(&ApiAnswer { status: 200, body: b"1234".to_vec(), ..ApiAnswer::default() });
    assert_eq!(run.outcome().body, OutcomeBody::Text { text: "1234".to_owned(), cut: false });
}

#[test]
fn discovery_reads_every_group_and_goes_on_without_those_that_are_down() {
    let mut run = Run::new(&of("discovery {}"));
    assert_eq!(run.line(), "GET /api");
    run.answer(200, &json!({"versions": ["v1"]}));
    assert_eq!(run.line(), "GET /apis");
    let version = |text: &str| json!({"groupVersion": text});
    run.answer(
        200,
        &json!({"groups": [{"versions": [version("apps/v1")]}, {"versions": [version("down/v1")]}]}),
    );
    assert_eq!(run.line(), "GET /api/v1");
    let entry = json!({"name": "pods", "kind": "Pod", "namespaced": true, "verbs": ["get"]});
    run.answer(
        200,
        &json!({"groupVersion": "v1", "resources": [entry, {"name": "pods/log", "kind": "Pod"}]}),
    );
    run.answer(200, &json!({"groupVersion": "apps/v1", "resources": []}));
    run.reply(&refusal(503, "down"));
    let result = run.result();
    assert_eq!(result["kinds"].as_array().map(Vec::len), Some(1));
    assert_eq!(result["kinds"][0]["plural"], "pods");
    assert_eq!(result["failed"], json!(["/apis/down/v1"]));
}

#[test]
fn kinds_are_kept_for_ten_minutes_and_read_again_for_an_unknown_one() {
    let seconds = Duration::from_secs;
    let mut known = kinds();
    let found = |known: &Kinds, kind: &str, now: u64, began: u64| {
        known.find("apps", "v1", kind, seconds(now), seconds(began))
    };
    assert!(matches!(found(&known, "Deployment", 600, 600), KindLookup::Found(_)));
    assert_eq!(found(&known, "Deployment", 601, 601), KindLookup::Read("/apis/apps/v1".to_owned()));
    // Read before this operation began: the kind may be new.
    assert_eq!(found(&known, "Widget", 5, 5), KindLookup::Read("/apis/apps/v1".to_owned()));
    known
        .learn(
            "/apis/apps/v1",
            &answer(200, &json!({"groupVersion": "apps/v1", "resources": []})),
            seconds(6),
        )
        .expect("a list");
    assert!(matches!(found(&known, "Widget", 6, 5), KindLookup::Unknown(_)));
    // A group that is not there, and the version that the cluster prefers.
    assert_eq!(
        known.find("x.io", "", "Y", seconds(6), seconds(6)),
        KindLookup::Read("/apis/x.io".to_owned())
    );
    known.learn("/apis/x.io", &refusal(404, ""), seconds(6)).expect("learned");
    assert!(matches!(known.find("x.io", "", "Y", seconds(6), seconds(6)), KindLookup::Unknown(_)));
    known
        .learn("/apis/x.io", &answer(200, &json!({"preferredVersion": {"version": "v2"}})), seconds(7))
        .expect("learned");
    assert_eq!(
        known.find("x.io", "", "Y", seconds(7), seconds(7)),
        KindLookup::Read("/apis/x.io/v2".to_owned())
    );
    assert!(known.learn("/apis/x.io/v2", &refusal(503, "down"), seconds(7)).is_err());
}
