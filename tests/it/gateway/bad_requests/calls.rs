//! Operations by REST that are malformed, or cannot be done.

use serde_json::{Value, json};

use super::super::place::Place;
use super::Tried;
use crate::world::{Answer, Call};

const GET: &str = r#"get { target { version: "v1" kind: "ConfigMap" namespace: "default" name: "none" } }"#;
const RUN: &str = "?wait=20s";

fn on_prod(verb: &str) -> String {
    format!("account {{ name: \"prod\" }} {verb}")
}

fn text(text: &str) -> String {
    json!({ "operation": text }).to_string()
}

fn manifest(data: &str) -> String {
    text(&on_prod(&format!("deploy {{ manifest {{ data: {} }} }}", Value::from(data))))
}

/// What, query, body, code of the answer (of REST, or of the operation in it), and what it says.
fn kinds() -> Vec<(&'static str, &'static str, String, u16, &'static str)> {
    let deep = format!("{{\"operation\": {}1{}}}", "[".repeat(300), "]".repeat(300));
    let lines = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c, namespace: default}\n";
    vec![
        ("no body", RUN, String::new(), 400, "JSON"),
        ("null", RUN, "null".to_owned(), 400, ""),
        ("a list", RUN, "[]".to_owned(), 400, ""),
        ("no JSON", RUN, "{\"operation\": ".to_owned(), 400, "JSON"),
        ("lists in lists", RUN, deep, 400, ""),
        ("a number for an operation", RUN, "{\"operation\": 5}".to_owned(), 400, "operation"),
        ("an unknown field of the call", RUN, "{\"operaton\": \"x\"}".to_owned(), 400, "operation"),
        ("an unknown field", RUN, text(&format!("acount {{ name: \"prod\" }} {GET}")), 400, "acount"),
        (
            "an unknown enum",
            RUN,
            text(&on_prod("deploy { manifest { data: \"{}\" } mode: FORCE }")),
            400,
            "FORCE",
        ),
        ("two verbs", RUN, text(&on_prod(&format!("{GET} discovery {{}}"))), 400, "verb"),
        ("no verb", RUN, text(&on_prod("")), 400, "verb"),
        ("no account", RUN, text(GET), 400, "account.name"),
        ("a deadline of zero", RUN, text(&on_prod(&format!("deadline_ms: 0 {GET}"))), 400, "deadline_ms"),
        (
            "a deadline in the past",
            RUN,
            text(&on_prod(&format!("deadline_ms: -1 {GET}"))),
            400,
            "deadline_ms",
        ),
        ("a deadline too far", RUN, text(&on_prod(&format!("deadline_ms: 600001 {GET}"))), 400, "600000"),
        ("an id that is none", RUN, text(&on_prod(&format!("op_id: \"x\" {GET}"))), 400, "ULID"),
        (
            "an empty id of the caller",
            "?wait=1s&clientRequestId=",
            text(&on_prod(GET)),
            400,
            "clientRequestId",
        ),
        ("a wait that is none", "?wait=soon", text(&on_prod(GET)), 400, "wait"),
        ("a wait that is too long", "?wait=11m", text(&on_prod(GET)), 400, "wait"),
        ("a dry run of something else", "?wait=1s&dryRun=Some", text(&on_prod(GET)), 400, "dryRun"),
        ("a parameter twice", "?wait=1s&wait=2s", text(&on_prod(GET)), 400, "wait"),
        ("an unknown kind", RUN, text(&on_prod(&GET.replace("ConfigMap", "Gizmo"))), 404, "Gizmo"),
        ("a name with a slash", RUN, text(&on_prod(&GET.replace("none", "a/../b"))), 400, "target.name"),
        (
            "another namespace",
            RUN,
            text(&GET.replace("default", "kube-system").replacen(
                "get",
                "account { name: \"bounded\" } get",
                1,
            )),
            403,
            "policy: ",
        ),
        ("a manifest with aliases", RUN, manifest("a: &x b\nc: *x\n"), 400, "an anchor or an alias"),
        ("a manifest with tabs", RUN, manifest("a:\n\tb: c\n"), 400, "at line 2"),
        ("a manifest without a kind", RUN, manifest("apiVersion: v1\nmetadata: {name: c}\n"), 400, "no kind"),
        (
            "a manifest without a name",
            RUN,
            manifest("apiVersion: v1\nkind: ConfigMap\nmetadata: {}\n"),
            400,
            "metadata.name",
        ),
        ("several manifests in one", RUN, manifest(&format!("{lines}---\n{lines}")), 400, "2 objects"),
        (
            "a list of objects",
            RUN,
            manifest("apiVersion: v1\nkind: List\nmetadata: {}\nitems: []\n"),
            400,
            "list",
        ),
        (
            "a kind that the cluster has not",
            RUN,
            manifest(&lines.replace("ConfigMap", "Gizmo")),
            404,
            "Gizmo",
        ),
        ("what the API server refuses", RUN, manifest(&lines.replace("{name: c,", "{name: C_,")), 422, "C_"),
        (
            "a namespace that is not there",
            RUN,
            manifest(&lines.replace("default", "nowhere")),
            404,
            "nowhere",
        ),
        (
            "a selector that is none",
            RUN,
            text(&on_prod(
                "delete { target { kind: \"ConfigMap\" namespace: \"default\" } label_selector: \"a in\" }",
            )),
            400,
            "",
        ),
        (
            "a patch that is no JSON",
            RUN,
            text(&on_prod(
                "patch { target { kind: \"ConfigMap\" namespace: \"default\" name: \"x\" } body { data: \"{\" } }",
            )),
            400,
            "",
        ),
    ]
}

/// Tries all kinds.
pub(super) async fn try_all(place: &Place, token: &str, tried: &mut Tried) {
    for (what, query, body, code, says) in kinds() {
        let answered = post(place, token, query, body).await;
        tried.note(what, answered.and_then(|answer| judge(&answer, code, says)));
    }
    tried.note("a text that is cut at every byte", cut_anywhere(place, token).await);
    let good = post(place, token, RUN, text(&on_prod(GET))).await;
    tried.note("the next good operation", good.and_then(|answer| judge(&answer, 404, "none")));
}

async fn post(place: &Place, token: &str, query: &str, body: String) -> Result<Answer, String> {
    let call = Call::new("POST", &format!("/armory/agent/operations{query}"))
        .header("content-type", "application/json")
        .header("authorization", &format!("Bearer {token}"))
        .bytes(body);
    place.world.operator().call(call).await
}

fn judge(answer: &Answer, code: u16, says: &str) -> Result<(), String> {
    let outcome = answer.json["status"].as_u64().unwrap_or_default();
    let is_expected = answer.status == code || (answer.status == 200 && outcome == u64::from(code));
    if is_expected && answer.text.contains(says) {
        return Ok(());
    }
    Err(format!("not {code} that says {says:?}: {answer}"))
}

/// Each beginning of an operation, none of which is one.
async fn cut_anywhere(place: &Place, token: &str) -> Result<(), String> {
    let whole = on_prod(GET);
    for end in 0..whole.len() {
        let answer = post(place, token, RUN, text(&whole[..end])).await?;
        if answer.status != 400 {
            return Err(format!("{:?}: {answer}", &whole[..end]));
        }
    }
    Ok(())
}
