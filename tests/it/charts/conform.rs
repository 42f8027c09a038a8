//! Every render conforms to the schemas of Kubernetes, by kubeconform: unlike the API server, it refuses fields that no
//! schema has. The schemas are those of the API server that the tests run, because no others can be fetched everywhere.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Map, Value, json};

use super::{BY_GATEWAY, agents, operators, text};
use kubesvc_testkit::controlplane::shared;
use kubesvc_testkit::folder::Folder;
use kubesvc_testkit::{assets, must};

/// Kinds of others' definitions, which the API server of the tests does not have.
const FOREIGN: &str = "Gateway,GRPCRoute,PodMonitor,PrometheusRule";
/// Where kubeconform finds the schema of a kind.
const PLACE: &str = "{{ .ResourceKind }}_{{ .Group }}_{{ .ResourceAPIVersion }}.json";
const REFERENCE: &str = "#/definitions/";

/// Makes a schema of OpenAPI 2 as strict as kubeconform expects it, and notes which others it refers to.
fn strict(schema: &mut Value, references: &mut BTreeSet<String>) {
    match schema {
        Value::Object(fields) => {
            if let Some(name) = fields.get("$ref").and_then(Value::as_str) {
                references.extend(name.strip_prefix(REFERENCE).map(str::to_owned));
            }
            if fields.get("format") == Some(&json!("int-or-string")) {
                *schema = json!({"type": ["string", "integer"]});
                return;
            }
            let keeps = fields.contains_key("additionalProperties")
                || fields.get("x-kubernetes-preserve-unknown-fields") == Some(&json!(true));
            if fields.get("properties").is_some_and(Value::is_object) && !keeps {
                fields.insert("additionalProperties".to_owned(), json!(false));
            }
            fields.values_mut().for_each(|value| strict(value, references));
        }
        Value::Array(all) => all.iter_mut().for_each(|value| strict(value, references)),
        _ => {}
    }
}

/// Writes a file for each kind, with what it refers to.
fn write_schemas(openapi: &Value, folder: &Folder) -> usize {
    let definitions = openapi["definitions"].as_object().expect("definitions");
    let mut kinds = 0;
    for (name, definition) in definitions {
        for kind in definition["x-kubernetes-group-version-kind"].as_array().into_iter().flatten() {
            let [group, version, kind] =
                ["group", "version", "kind"].map(|part| kind[part].as_str().unwrap_or_default());
            let group = if group.is_empty() { version } else { group };
            let (mut needed, mut waiting) = (Map::new(), BTreeSet::from([name.clone()]));
            while let Some(next) = waiting.pop_first() {
                let mut schema = definitions[&next].clone();
                let mut references = BTreeSet::new();
                strict(&mut schema, &mut references);
                if next.ends_with(".resource.Quantity") {
                    schema = json!({"type": ["string", "number"]});
                }
                needed.insert(next, schema);
                waiting.extend(references.into_iter().filter(|one| !needed.contains_key(one)));
            }
            let schema = json!({"$ref": format!("{REFERENCE}{name}"), "definitions": needed});
            let file = format!("{}_{group}_{version}.json", kind.to_lowercase());
            must(folder.write(&file, &schema.to_string()));
            kinds += 1;
        }
    }
    kinds
}

fn kubeconform(kubeconform: &Path, schemas: &Folder, objects: &Path) -> (Option<i32>, String) {
    let place = schemas.file(PLACE).display().to_string();
    let run = Command::new(kubeconform)
        .args(["-strict", "-summary", "-skip", FOREIGN, "-schema-location", &place])
        .arg(objects)
        .stdin(Stdio::null())
        .output();
    let run = must(run.map_err(|e| e.to_string()));
    let said = [run.stdout, run.stderr].concat();
    (run.status.code(), String::from_utf8_lossy(&said).into_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn every_render_conforms_to_the_schemas_and_unknown_fields_do_not() {
    let program = must(tokio::task::spawn_blocking(assets::checkers).await.expect("it ends")).kubeconform;
    let plane = shared().await;
    crate::world::install_definitions(plane).await;
    let openapi = must(plane.kubectl(["get", "--raw", "/openapi/v2"]).await.ok());
    let openapi: Value = serde_json::from_str(&openapi).expect("it is JSON");
    let (schemas, renders) = (must(Folder::new("schemas")), must(Folder::new("renders")));
    assert!(write_schemas(&openapi, &schemas) > 50);

    let exposed = vec!["expose.type=LoadBalancer", "expose.loadBalancer.sourceRanges={203.0.113.7/32}"];
    let watched = vec!["monitoring.enabled=true", "watchNamespaces={team-a,team-b}"];
    let operators =
        operators().into_iter().chain([exposed, watched, vec!["gateway.enabled=true"], BY_GATEWAY.to_vec()]);
    let operators = operators.map(|values| ("kubesvc", values));
    let every = operators.chain(agents().into_iter().map(|values| ("kubesvc-agent", values)));
    for (number, (chart, values)) in every.enumerate() {
        let yaml = tokio::task::block_in_place(|| text(chart, &values));
        must(renders.write(&format!("{number}.yaml"), &yaml));
    }
    let (code, said) = kubeconform(&program, &schemas, &renders.file("."));
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("Invalid: 0, Errors: 0"), "{said}");

    let wrong = "apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec: {port: [{port: 1}]}\n";
    let wrong = must(renders.write("wrong.yaml", wrong));
    let (code, said) = kubeconform(&program, &schemas, &wrong);
    assert!(code == Some(1) && said.contains("'port'"), "{said}");
}
