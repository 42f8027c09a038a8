//! How lists and maps of native kinds are merged, by what the API server itself publishes for each of its kinds
//! (`x-kubernetes-patch-strategy` and `x-kubernetes-patch-merge-key` of OpenAPI): `kubectl apply` goes by that.

use std::collections::BTreeSet;

use kubesvc_core::operations::merge_rule;
use serde_json::Value;

use super::driver::ApiServer;
use kubesvc_testkit::controlplane;

/// Maximum nesting depth of a schema.
const MAX_DEPTH: usize = 14;

/// Walks a schema, and notes where what we know is not what it says.
struct Walk<'d> {
    document: &'d Value,
    group: &'d str,
    kind: &'d str,
    rules: usize,
    wrong: BTreeSet<String>,
}

impl<'d> Walk<'d> {
    /// The schema that a reference leads to.
    fn resolved(&self, schema: &'d Value) -> &'d Value {
        let reference = schema["$ref"].as_str().or_else(|| schema["allOf"][0]["$ref"].as_str());
        reference.and_then(|path| self.document.pointer(path.strip_prefix('#')?)).unwrap_or(schema)
    }

    fn object(&mut self, schema: &'d Value, path: &mut Vec<&'d str>) {
        if path.len() > MAX_DEPTH {
            return;
        }
        for (name, field) in self.resolved(schema)["properties"].as_object().into_iter().flatten() {
            path.push(name);
            self.field(field, path);
            path.pop();
        }
    }

    fn field(&mut self, field: &'d Value, path: &mut Vec<&'d str>) {
        // Nobody deploys a status.
        if path[0] == "status" {
            return;
        }
        let strategy = field["x-kubernetes-patch-strategy"].as_str().unwrap_or_default();
        let key = field["x-kubernetes-patch-merge-key"].as_str().unwrap_or_default();
        let schema = self.resolved(field);
        let is_list = schema["type"] == "array";
        let said = match (strategy, key) {
            ("", _) => String::new(),
            (strategy, "") => strategy.to_owned(),
            (strategy, key) => format!("{strategy} by {key}"),
        };
        let known = merge_rule(self.group, self.kind, path);
        if said != known {
            self.wrong.insert(format!(
                "{}/{} {}: {known:?} is {said:?}",
                self.group,
                self.kind,
                path.join(".")
            ));
        }
        self.rules += usize::from(!said.is_empty());
        // The items of a list that is replaced as a whole are not merged.
        if is_list && !key.is_empty() {
            self.object(&schema["items"], path);
        } else if !is_list {
            self.object(field, path);
        }
    }
}

#[tokio::test]
async fn lists_are_merged_as_the_api_server_says() {
    let plane = controlplane::shared().await;
    let server = ApiServer::new(plane.client().await);
    let index = server.get("/openapi/v3").await;
    let mut rules = 0;
    let mut wrong = BTreeSet::new();
    for (path, entry) in index["paths"].as_object().expect("an index") {
        let is_version = path == "api/v1" || path.matches('/').count() == 2;
        if !is_version || path.contains("kubesvc") {
            continue;
        }
        let document = server.get(entry["serverRelativeURL"].as_str().expect("a URL")).await;
        for schema in
            document["components"]["schemas"].as_object().into_iter().flatten().map(|(_, schema)| schema)
        {
            let kinds = schema["x-kubernetes-group-version-kind"].as_array();
            // Only kinds of objects; options of deletes have one for every group.
            let Some([kind]) = kinds.map(Vec::as_slice) else { continue };
            // Nobody deploys a ComponentStatus, nor what only answers.
            if kind["kind"] == "ComponentStatus"
                || schema["properties"]["metadata"].is_null()
                || schema["properties"]["items"].is_object()
            {
                continue;
            }
            let text = |name: &str| kind[name].as_str().unwrap_or_default();
            let mut walk = Walk {
                document: &document,
                group: text("group"),
                kind: text("kind"),
                rules: 0,
                wrong: BTreeSet::new(),
            };
            walk.object(schema, &mut Vec::new());
            rules += walk.rules;
            wrong.append(&mut walk.wrong);
        }
    }
    assert!(rules > 100, "only {rules} rules were found: is this test reading the right fields?");
    assert!(wrong.is_empty(), "{wrong:#?}");
}
