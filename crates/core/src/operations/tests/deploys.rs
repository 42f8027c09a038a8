//! Deploying, by mode.

use serde_json::{Value, json};

use super::{ApiAnswer, Run, answer, deploy, refusal, start};
use crate::operations::{ApplySettings, KindApplySettings, NotStarted, Preference};

const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
const WEB: &str = "/apis/apps/v1/namespaces/n/deployments/web";

fn web(image: &str) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "namespace": "n"},
        "spec": {"template": {"spec": {"containers": [{"name": "c", "image": image}]}}},
    })
}

/// A manifest as the cluster has it after a client-side apply.
fn live(manifest: &Value, version: &str) -> Value {
    let mut applied = manifest.clone();
    applied["metadata"]["annotations"] = json!({});
    let last = format!("{applied}\n");
    applied["metadata"]["annotations"][LAST_APPLIED] = json!(last);
    applied["metadata"]["resourceVersion"] = json!(version);
    applied["metadata"]["uid"] = json!("uid-1");
    applied
}

fn annotated(mut object: Value, name: &str, value: &str) -> Value {
    object["metadata"]["annotations"][name] = json!(value);
    object
}

/// The second request of a deploy, of which nothing is there yet.
fn write_of(text: &str, apply: &ApplySettings) -> String {
    let mut run = Run::with(text, false, apply);
    if run.line().starts_with("GET") {
        run.reply(&refusal(404, "not found"));
    }
    run.line()
}

#[test]
fn apply_creates_what_is_not_there_with_what_kubectl_would_record() {
    let mut run = Run::new(&deploy(&web("1"), ""));
    assert_eq!(run.line(), format!("GET {WEB}"));
    run.reply(&refusal(404, "not found"));
    assert_eq!(
        run.line(),
        "POST /apis/apps/v1/namespaces/n/deployments?fieldManager=kubectl-client-side-apply&fieldValidation=Strict"
    );
    let last = run.body()["metadata"]["annotations"][LAST_APPLIED].as_str().map(str::to_owned);
    assert_eq!(
        last.as_deref(),
        Some(concat!(
            r#"{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"annotations":{},"name":"web","namespace":"n"},"#,
            r#""spec":{"template":{"spec":{"containers":[{"image":"1","name":"c"}]}}}}"#,
            "\n"
        ))
    );
    run.answer(201, &web("1"));
    assert_eq!(run.end(), (201, None));
}

#[test]
fn a_manifest_too_large_for_its_annotation_is_refused_before_anything_is_sent() {
    let manifest = |bytes: usize| {
        let mut manifest = annotated(web("1"), "note", &"x".repeat(1000));
        manifest["spec"]["filler"] = json!("x".repeat(bytes));
        manifest
    };
    // The largest that fits, to the byte: text with a line feed, name of its annotation, and the other one.
    let bytes =
        |filler: usize| manifest(filler).to_string().len() + 1 + LAST_APPLIED.len() + "note".len() + 1000;
    let filler = 262_144 - bytes(0);
    let (fits, is_too_large) = (manifest(filler), manifest(filler + 1));
    for more in ["", "mode: APPLY", "mode: RECREATE"] {
        let refused = Run::new(&deploy(&is_too_large, more));
        assert_eq!(refused.end().0, 422, "{more}");
        assert_eq!(Run::new(&deploy(&fits, more)).line(), format!("GET {WEB}"), "{more}");
        // What it applied before is replaced, and counts for nothing.
        let applied = live(&fits, "1");
        assert_eq!(Run::new(&deploy(&applied, more)).line(), format!("GET {WEB}"), "{more}");
    }
    for more in ["mode: SERVER_SIDE", "mode: REPLACE", "mode: CREATE"] {
        assert!(!Run::new(&deploy(&is_too_large, more)).line().is_empty(), "{more}");
    }
}

#[test]
fn object_is_created_without_the_version_of_its_manifest() {
    let mut manifest = web("1");
    manifest["metadata"]["resourceVersion"] = json!("7");
    for more in ["mode: APPLY", "mode: CREATE", "mode: REPLACE", "mode: RECREATE"] {
        let mut run = Run::new(&deploy(&manifest, more));
        if run.line().starts_with("GET") {
            run.reply(&refusal(404, "not found"));
        }
        assert!(run.line().starts_with("POST"), "{more}: {}", run.line());
        let metadata = run.body()["metadata"].clone();
        assert!(metadata.get("resourceVersion").is_none() && metadata["name"] == "web", "{more}: {metadata}");
        if more == "mode: APPLY" {
            // As kubectl records it.
            let last = metadata["annotations"][LAST_APPLIED].as_str().unwrap_or_default();
            assert!(last.contains(r#""resourceVersion":"7""#), "{last}");
        }
    }
}

#[test]
fn last_applied_is_written_as_go_writes_json() {
    let object = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"},
        "data": {"html": "<a href=\"x\">&\u{2028}\u{1}\ttab\n", "number": 1.0},
    });
    let mut run = Run::new(&deploy(&object, ""));
    assert_eq!(run.line(), "GET /api/v1/namespaces/default/configmaps/c");
    run.reply(&refusal(404, ""));
    let body = run.body();
    let last = body["metadata"]["annotations"][LAST_APPLIED].as_str().expect("a text");
    assert!(
        last.contains(r#""html":"\u003ca href=\"x\"\u003e\u0026\u2028\u0001\ttab\n","number":1}"#),
        "{last}"
    );
    assert!(last.contains(r#""namespace":"default""#), "{last}");
}

#[test]
fn numbers_of_a_manifest_are_those_that_kubectl_sends() {
    let yaml = |mode: &str| {
        let pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: p, namespace: shop}\n";
        let data = format!("{pod}spec:\n  volumes:\n  - name: v\n    secret:\n      defaultMode: {mode}\n");
        format!("account {{ name: \"a\" }} deploy {{ manifest {{ data: {data:?} }} mode: CREATE }}")
    };
    for (mode, sent) in [
        ("0400", json!(256)),
        ("0o400", json!(256)),
        ("-0400", json!(-256)),
        ("256", json!(256)),
        // No octal number.
        ("0800", json!(800)),
        ("3.0", json!(3)),
        ("0.5", json!(0.5)),
        ("\"0400\"", json!("0400")),
    ] {
        let body = Run::new(&yaml(mode)).body();
        assert_eq!(body["spec"]["volumes"][0]["secret"]["defaultMode"], sent, "{mode}");
    }
    let mut object = web("1");
    object["spec"]["replicas"] = json!(3.0);
    let mut run = Run::new(&deploy(&object, ""));
    run.reply(&refusal(404, "not found"));
    assert_eq!(run.body()["spec"]["replicas"], json!(3), "in JSON too");
}

#[test]
fn apply_patches_only_what_changes_at_the_version_it_read() {
    let mut run = Run::new(&deploy(&web("2"), ""));
    run.answer(200, &live(&web("1"), "7"));
    assert_eq!(
        run.line(),
        format!("PATCH {WEB}?fieldManager=kubectl-client-side-apply&fieldValidation=Strict")
    );
    assert_eq!(run.request().content_type, Some("application/strategic-merge-patch+json"));
    let patch = run.body();
    assert_eq!(patch["metadata"]["resourceVersion"], "7");
    assert_eq!(patch["spec"]["template"]["spec"]["containers"], json!([{"name": "c", "image": "2"}]));
    assert_eq!(patch["spec"]["template"]["spec"]["$setElementOrder/containers"], json!([{"name": "c"}]));
    assert!(patch["metadata"].get("name").is_none() && patch.get("kind").is_none(), "{patch}");
    run.answer(200, &web("2"));
    assert_eq!(run.end(), (200, None));
}

#[test]
fn apply_that_changes_nothing_writes_nothing() {
    let mut run = Run::new(&deploy(&web("1"), ""));
    run.answer(200, &live(&web("1"), "7"));
    assert_eq!(run.end(), (200, None));
    assert_eq!(run.result()["metadata"]["resourceVersion"], "7");
}

#[test]
fn apply_merges_again_after_a_conflict_three_times() {
    let mut run = Run::new(&deploy(&web("2"), ""));
    for version in ["1", "2", "3"] {
        run.answer(200, &live(&web("1"), version));
        assert_eq!(run.body()["metadata"]["resourceVersion"], version);
        run.reply(&refusal(409, "the object has been modified"));
        assert_eq!(run.line(), format!("GET {WEB}"));
    }
    // As kubectl: the API server merges with whatever it has by now.
    run.answer(200, &live(&web("1"), "4"));
    assert!(run.body()["metadata"].get("resourceVersion").is_none());
    run.reply(&refusal(409, "the object has been modified"));
    assert_eq!(run.end(), (409, Some("the object has been modified")));
}

#[test]
fn object_that_came_or_went_in_between_is_read_again() {
    let mut run = Run::new(&deploy(&web("2"), ""));
    run.reply(&refusal(404, "")).reply(&refusal(409, "already exists"));
    assert_eq!(run.line(), format!("GET {WEB}"));
    run.answer(200, &live(&web("1"), "1")).reply(&refusal(404, "not found"));
    assert_eq!(run.line(), format!("GET {WEB}"));
}

#[test]
fn refusals_keep_the_words_of_the_api_server() {
    let mut run = Run::new(&deploy(&web("2"), ""));
    run.reply(&refusal(403, "deployments.apps \"web\" is forbidden"));
    assert_eq!(run.end(), (403, Some("deployments.apps \"web\" is forbidden")));
    let mut run = Run::new(&deploy(&web("2"), ""));
    run.reply(&refusal(404, "")).reply(&refusal(422, "spec.selector is required"));
    assert_eq!(run.end(), (422, Some("spec.selector is required")));
    for (status, body) in [(500, "<html>"), (200, "<html>"), (302, "")] {
        let mut run = Run::new(&deploy(&web("2"), ""));
        run.reply(&ApiAnswer { status, body: body.as_bytes().to_vec(), ..ApiAnswer::default() });
        assert!(run.end().0 >= 500, "{status} {body}");
    }
}

#[test]
fn mode_is_the_field_then_annotations_then_settings() {
    let none = ApplySettings::default();
    let always = ApplySettings { server_side: Preference::Always, ..none.clone() };
    let never = ApplySettings { server_side: Preference::Never, ..none.clone() };
    let of_kind = ApplySettings {
        kinds: vec![KindApplySettings {
            kind: "deployment".to_owned(),
            server_side: Preference::Always,
            ..KindApplySettings::default()
        }],
        ..none.clone()
    };
    let of_kind_never = ApplySettings {
        kinds: vec![KindApplySettings { server_side: Preference::Never, ..of_kind.kinds[0].clone() }],
        ..none.clone()
    };
    let plain = web("1");
    let strategy =
        |name: &str, value: &str| annotated(web("1"), &format!("strategy.spinnaker.io/{name}"), value);
    let armory = annotated(web("1"), "agent-k8s.armory.io/serverside-apply", "enabled");
    let (post, ssa) = ("manager=kubectl-client-side-apply", "manager=kubesvc&force=false");
    let forced = "manager=kubesvc&force=true";
    for (object, more, settings, wanted) in [
        (&plain, "", &none, post.to_lowercase()),
        (&plain, "mode: SERVER_SIDE", &never, ssa.to_owned()),
        (&plain, "mode: SERVER_SIDE force: true", &none, forced.to_owned()),
        (&plain, "", &always, ssa.to_owned()),
        (&plain, "", &of_kind, ssa.to_owned()),
        (&plain, "mode: APPLY", &always, post.to_owned()),
        (&strategy("server-side-apply", "true"), "", &never, ssa.to_owned()),
        (&strategy("server-side-apply", "force-conflicts"), "", &none, forced.to_owned()),
        (&strategy("server-side-apply", "false"), "", &always, post.to_owned()),
        (&armory, "", &none, ssa.to_owned()),
        (&armory, "", &never, post.to_owned()),
        (&armory, "", &of_kind_never, post.to_owned()),
        (
            &plain,
            "",
            &ApplySettings { server_side: Preference::Always, ..of_kind_never.clone() },
            ssa.to_owned(),
        ),
        (&strategy("replace", "true"), "", &always, "fieldManager=kubesvc&fieldValidation".to_owned()),
        (&plain, "mode: CREATE", &none, "POST /apis/apps/v1/namespaces/n/deployments?".to_owned()),
    ] {
        let line = write_of(&deploy(object, more), settings);
        assert!(line.to_lowercase().contains(&wanted.to_lowercase()), "{more} {settings:?}: {line}");
    }
}

#[test]
fn generated_name_is_created_and_never_merged() {
    let object =
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"generateName": "job-", "namespace": "n"}});
    let mut run = Run::new(&deploy(&object, ""));
    assert_eq!(run.line(), "POST /api/v1/namespaces/n/pods?fieldManager=kubesvc&fieldValidation=Strict");
    run.reply(&refusal(409, "already exists"));
    assert_eq!(run.end(), (409, Some("already exists")));
}

#[test]
fn force_without_a_server_side_apply_is_refused() {
    let text = deploy(&web("1"), "force: true");
    assert!(matches!(start(&text, false, &ApplySettings::default()), Err(NotStarted::Invalid(_))));
}

#[test]
fn secret_is_applied_server_side_with_force_and_never_repeated_in_an_annotation() {
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "namespace": "n"},
        "data": {"a": "b2xk"}, "stringData": {"password": "canary"},
    });
    for more in ["", "mode: APPLY", "mode: SERVER_SIDE force: true"] {
        let mut run = Run::new(&deploy(&secret, more));
        let mut held = live(&secret, "7");
        held["metadata"]["managedFields"] = json!([]);
        run.answer(200, &held);
        let line = run.line();
        assert!(
            line.starts_with("PATCH /api/v1/namespaces/n/secrets/s?fieldManager=kubesvc&force=true"),
            "{line}"
        );
        let body = run.body();
        assert_eq!(body["data"], json!({"a": "b2xk", "password": "Y2FuYXJ5"}));
        assert!(body.get("stringData").is_none() && !body.to_string().contains(LAST_APPLIED), "{body}");
        assert!(!format!("{:?}", run.step).contains("canary"));
    }
}

#[test]
fn server_side_apply_moves_what_was_applied_client_side() {
    let fields = |names: &[&str]| {
        names.iter().map(|name| ((*name).to_owned(), json!({}))).collect::<serde_json::Map<_, _>>()
    };
    let annotation = format!("f:{LAST_APPLIED}");
    let mut held = live(&web("1"), "7");
    let client_side = json!({
        "manager": "kubectl-client-side-apply", "operation": "Update", "apiVersion": "apps/v1",
        "fieldsV1": {"f:metadata": {"f:annotations": {".": {}, annotation: {}}}, "f:spec": fields(&["f:a"])},
    });
    let others = json!({
        "manager": "kube-controller-manager", "operation": "Update", "apiVersion": "apps/v1", "subresource": "status",
        "fieldsV1": {"f:status": {}},
    });
    let ours = json!({
        "manager": "kubesvc", "operation": "Apply", "apiVersion": "apps/v1", "fieldsV1": {"f:spec": fields(&["f:b"])},
    });
    held["metadata"]["managedFields"] = json!([client_side, others, ours]);
    let mut run = Run::new(&deploy(&web("1"), "mode: SERVER_SIDE"));
    run.answer(200, &held);
    assert_eq!(run.request().content_type, Some("application/json-patch+json"));
    let patch = run.body();
    assert_eq!(patch[1], json!({"op": "replace", "path": "/metadata/resourceVersion", "value": "7"}));
    let moved = &patch[0]["value"];
    assert_eq!(moved[0], others);
    assert_eq!((&moved[1]["manager"], &moved[1]["operation"]), (&json!("kubesvc"), &json!("Apply")));
    assert_eq!(moved[1]["fieldsV1"]["f:spec"], json!({"f:a": {}, "f:b": {}}));
    assert_eq!(moved.as_array().map(Vec::len), Some(2));
    // Somebody else was faster.
    run.reply(&refusal(409, "modified")).answer(200, &held).answer(200, &held);
    assert!(run.line().contains("fieldManager=kubesvc&force=false"), "{}", run.line());
    // kubectl can go on from here.
    assert!(run.body()["metadata"]["annotations"][LAST_APPLIED].is_string());
    run.reply(&refusal(409, "Apply failed with 1 conflict: conflict with \"hpa\": .spec.replicas"));
    assert_eq!(run.end(), (409, Some("Apply failed with 1 conflict: conflict with \"hpa\": .spec.replicas")));
}

/// A refusal of a server-side apply with this message. Each conflict is a manager as the API server prints it, and a field.
fn conflicts(message: &str, conflicts: &[(&str, &str)]) -> ApiAnswer {
    let cause = |(manager, field): &(&str, &str)| {
        json!({
            "reason": "FieldManagerConflict", "message": format!("conflict with {manager}"), "field": field,
        })
    };
    let causes: Vec<_> = conflicts.iter().map(cause).collect();
    answer(409, &json!({"kind": "Status", "message": message, "details": {"causes": causes}}))
}

/// A dry run of a server-side apply of an object that kubectl has applied client-side, with its first write sent.
fn dry_run_over_client_side(more: &str) -> Run {
    let annotation = format!("f:{LAST_APPLIED}");
    let mut held = live(&web("1"), "7");
    held["metadata"]["managedFields"] = json!([
        {
            "manager": "kubectl-client-side-apply", "operation": "Update", "apiVersion": "apps/v1",
            "fieldsV1": {"f:metadata": {"f:annotations": {annotation: {}}}},
        },
        {
            "manager": "kubectl-client-side-apply", "operation": "Update", "apiVersion": "apps/v1",
            "subresource": "scale", "fieldsV1": {"f:spec": {"f:replicas": {}}},
        },
        {"manager": "hpa", "operation": "Update", "apiVersion": "apps/v1", "fieldsV1": {"f:spec": {"f:a": {}}}},
    ]);
    let mut run = Run::dry(&deploy(&web("2"), &format!("mode: SERVER_SIDE {more}")));
    run.answer(200, &held);
    assert!(run.line().ends_with("&dryRun=All"), "{}", run.line());
    run
}

#[test]
fn dry_run_ignores_conflicts_with_those_that_applied_client_side() {
    for own in [
        "\"kubectl-client-side-apply\" using apps/v1",
        "\"kubectl-client-side-apply\" using apps/v1 at 2026-01-01T00:00:00Z",
    ] {
        let mut run = dry_run_over_client_side("");
        assert!(run.line().contains("&force=false&"), "{}", run.line());
        run.reply(&conflicts("2 conflicts", &[(own, ".spec.a"), (own, ".spec.b")]));
        let line = run.line();
        assert!(line.contains("&force=true&") && line.ends_with("&dryRun=All"), "{line}");
        assert!(run.body()["metadata"]["annotations"][LAST_APPLIED].is_string());
        run.answer(200, &web("2"));
        assert_eq!(run.end(), (200, None));
    }
    let mut run = dry_run_over_client_side("");
    run.answer(200, &web("2"));
    assert_eq!(run.end(), (200, None));
    let run = dry_run_over_client_side("force: true");
    assert!(run.line().contains("&force=true&"), "{}", run.line());
}

#[test]
fn dry_run_tells_the_conflicts_that_the_run_would_have() {
    let own = ("\"kubectl-client-side-apply\" using apps/v1", ".spec.a");
    let hpa = "\"hpa\" using apps/v1";
    let argo = "\"argocd\"";
    for (others, said) in [
        (
            vec![(hpa, ".spec.a")],
            "Apply failed with 1 conflict: conflict with \"hpa\" using apps/v1: .spec.a",
        ),
        (
            vec![(hpa, ".spec.a"), (argo, ".spec.c"), (hpa, ".spec.b")],
            "Apply failed with 3 conflicts: conflicts with \"argocd\":\n- .spec.c\n\
             conflicts with \"hpa\" using apps/v1:\n- .spec.a\n- .spec.b",
        ),
        // Entries of the same name that are not moved.
        (
            vec![(
                "\"kubectl-client-side-apply\" with subresource \"scale\" using apps/v1",
                ".spec.replicas",
            )],
            "Apply failed with 1 conflict: conflict with \"kubectl-client-side-apply\" with subresource \"scale\" \
             using apps/v1: .spec.replicas",
        ),
        (
            vec![("\"kubectl-client-side-apply\" using apps/v1beta1", ".spec.a")],
            "Apply failed with 1 conflict: conflict with \"kubectl-client-side-apply\" using apps/v1beta1: .spec.a",
        ),
    ] {
        let mut run = dry_run_over_client_side("");
        let all: Vec<_> = [own].into_iter().chain(others.clone()).collect();
        run.reply(&conflicts("of all", &all));
        assert_eq!(run.end(), (409, Some(said)));
        // Nothing is left out of what the API server says.
        let mut run = dry_run_over_client_side("");
        run.reply(&conflicts("of others", &others));
        assert_eq!(run.end(), (409, Some("of others")));
    }
    let mut run = dry_run_over_client_side("");
    run.reply(&refusal(409, "the object has been modified"));
    assert_eq!(run.end(), (409, Some("the object has been modified")));
}

#[test]
fn managed_fields_are_reset_where_the_owner_wants_that() {
    let clears = ApplySettings { clear_managed_fields: Preference::Always, ..ApplySettings::default() };
    let mut held = live(&web("1"), "7");
    held["metadata"]["managedFields"] = json!([{"manager": "other", "operation": "Update", "fieldsV1": {}}]);
    let mut run = Run::with(&deploy(&web("1"), "mode: SERVER_SIDE"), false, &clears);
    run.answer(200, &held);
    assert_eq!(run.body()[0]["value"], json!([{}]));
    run.answer(200, &held);
    assert!(run.line().contains("force=true"), "{}", run.line());
    // kubesvc is the only manager: there is nothing to reset.
    held["metadata"]["managedFields"] = json!([{"manager": "kubesvc", "operation": "Apply", "fieldsV1": {}}]);
    let mut run = Run::with(&deploy(&web("1"), "mode: SERVER_SIDE"), false, &clears);
    run.answer(200, &held);
    assert_eq!(run.request().content_type, Some("application/apply-patch+yaml"));
}

#[test]
fn replace_puts_at_the_version_it_read_or_creates() {
    let mut run = Run::new(&deploy(&web("2"), "mode: REPLACE"));
    run.answer(200, &live(&web("1"), "7"));
    assert_eq!(run.line(), format!("PUT {WEB}?fieldManager=kubesvc&fieldValidation=Strict"));
    assert_eq!(run.body()["metadata"], json!({"name": "web", "namespace": "n", "resourceVersion": "7"}));
    run.reply(&refusal(409, "modified")).reply(&refusal(404, ""));
    assert!(run.line().starts_with("POST"), "{}", run.line());
    run.answer(201, &web("2"));
    assert_eq!(run.end(), (201, None));
}

#[test]
fn recreate_deletes_by_uid_waits_and_creates() {
    let mut run = Run::new(&deploy(&web("2"), "mode: RECREATE"));
    let held = live(&web("1"), "7");
    run.answer(200, &held);
    assert_eq!(run.line(), format!("DELETE {WEB}"));
    assert_eq!(run.body()["preconditions"], json!({"uid": "uid-1"}));
    run.answer(200, &held).answer(200, &held);
    run.wait();
    assert_eq!(run.line(), format!("GET {WEB}"));
    run.reply(&refusal(404, ""));
    assert!(run.line().starts_with("POST /apis/apps/v1/namespaces/n/deployments?"), "{}", run.line());
    run.answer(201, &web("2"));
    assert_eq!(run.end(), (201, None));
    // Another one of the name came instead.
    let mut run = Run::new(&deploy(&web("2"), "mode: RECREATE"));
    let mut other = held.clone();
    other["metadata"]["uid"] = json!("uid-2");
    run.answer(200, &held).answer(200, &held).answer(200, &other);
    assert_eq!(run.end().0, 409);
}

#[test]
fn recreate_whose_delete_is_denied_as_a_conflict_says_so() {
    let held = live(&web("1"), "7");
    for is_dry_run in [false, true] {
        let denied = || {
            let mut run =
                Run::with(&deploy(&web("2"), "mode: RECREATE"), is_dry_run, &ApplySettings::default());
            run.answer(200, &held).reply(&refusal(409, "web is in use"));
            assert_eq!(run.line(), format!("GET {WEB}"));
            run
        };
        let mut run = denied();
        run.answer(200, &held);
        assert_eq!(run.end(), (409, Some("web is in use")));
        // It is gone meanwhile.
        let mut run = denied();
        run.reply(&refusal(404, "not found"));
        assert!(run.line().starts_with("POST"), "{}", run.line());
    }
}

#[test]
fn dry_run_is_on_every_write() {
    for more in ["", "mode: APPLY", "mode: SERVER_SIDE", "mode: CREATE", "mode: REPLACE", "mode: RECREATE"] {
        for is_there in [true, false] {
            let mut run = Run::dry(&deploy(&web("2"), more));
            let mut writes = 0;
            while let super::Step::Request(request) = &run.step {
                let reads = request.method.reads();
                if !reads {
                    assert!(request.target.ends_with("dryRun=All"), "{more}: {}", run.line());
                    if run.line().starts_with("DELETE") {
                        // The API server reads nothing else of a delete that has a body.
                        assert_eq!(run.body()["dryRun"], json!(["All"]), "{more}");
                    }
                    writes += 1;
                }
                if reads && !is_there {
                    run.reply(&refusal(404, ""));
                } else {
                    run.answer(200, &live(&web("1"), "7"));
                }
            }
            assert!(writes > 0 && run.end().1.is_none(), "{more}");
            assert_eq!(run.result()["kind"], "Deployment", "{more}");
        }
    }
}

#[test]
fn kind_that_is_not_known_is_read_and_then_missing() {
    let widget = json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}});
    let Err(NotStarted::Read(request)) = start(&deploy(&widget, ""), false, &ApplySettings::default()) else {
        unreachable!("it is not known")
    };
    assert_eq!(request.target, "/apis/example.com/v1");
    let unserved = json!({"apiVersion": "apps/v1", "kind": "Widget", "metadata": {"name": "w"}});
    let Err(NotStarted::Failed(outcome)) = start(&deploy(&unserved, ""), false, &ApplySettings::default())
    else {
        unreachable!("the list was read by this operation")
    };
    assert_eq!(outcome.status, 404);
}
