//! The commands of docs/operations.md, run as they are written, by a person with kubectl, curl and jq.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Value, json};

use super::Scene;
use crate::world::{World, in_repository};
use kubesvc_testkit::{helm, must};

/// What the page acts on, in the account's cluster.
const SHOP: &str = r#"
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
"#;
const WEB: &str = "apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: app, image: web}]}
";
/// A part of a command, and the status that it has without a controller of Deployments and without Pods; else 200.
const STATUSES: [(&str, u64); 4] =
    [("undo_rollout", 404), ("logs", 404), ("continue:", 400), ("delete { $web", 202)];

/// A page, its blocks of commands changed for a world.
struct Page {
    blocks: Vec<String>,
}

impl Page {
    fn read(world: &World) -> Self {
        let text =
            must(std::fs::read_to_string(in_repository("docs/operations.md")).map_err(|e| e.to_string()));
        let blocks = text.split("```").skip(1).step_by(2).filter_map(|block| block.strip_prefix("sh\n"));
        let (namespace, port) = (world.namespace(), world.operator().rest_port());
        let changed = |block: &str| {
            block
                .replace("-n kubesvc ", &format!("-n {namespace} "))
                .replace("=kubesvc:", &format!("={namespace}:"))
                .replace("localhost:7002", &format!("127.0.0.1:{port}"))
                .replace("web.yaml", &world.folder().file("web.yaml").display().to_string())
        };
        Self { blocks: blocks.map(changed).collect() }
    }

    /// The block with these words.
    fn block(&self, words: &str) -> &str {
        self.blocks.iter().find(|block| block.contains(words)).unwrap_or_else(|| unreachable!("{words}"))
    }
}

/// Runs commands, and returns what they print.
fn shell(kubeconfig: &Path, commands: &str) -> String {
    let commands = format!("set -e\n{commands}");
    let done = tokio::task::block_in_place(|| helm::shell(kubeconfig, &commands));
    assert_eq!(done.code, Some(0), "{commands}\n{}{}", done.stderr, done.stdout);
    done.stdout
}

#[tokio::test(flavor = "multi_thread")]
async fn every_command_of_the_page_does_what_the_page_says() {
    let scene = Scene::prepared(World::prepare().own_control_plane()).await;
    let (world, plane) = (&scene.world, scene.world.control_plane());
    must(plane.kubectl_with_input(["apply", "-f", "-"], &format!("{SHOP}{WEB}")).await.ok());
    must(world.folder().write("web.yaml", WEB));
    let (page, kubeconfig) = (Page::read(world), plane.kubeconfig_path());
    let token = shell(&kubeconfig, &format!("{}\necho \"TOKEN=$TOKEN\"", page.block("TOKEN=$(")));
    let token = token.lines().last().expect("the token").to_owned();
    let begin = page.block("operation() {");
    let (defined, first) = begin.rsplit_once("operation prod").expect("an example");
    let run = |line: &str| -> Value {
        let printed = shell(&kubeconfig, &format!("{token}\n{defined}\n{line}"));
        serde_json::from_str(&printed).unwrap_or_else(|e| unreachable!("{line}: {e}: {printed}"))
    };

    let first = run(&format!("operation prod{first}"));
    assert_eq!((&first["status"], &first["body"]["spec"]["replicas"]), (&json!(200), &json!(3)), "{first}");
    let mut verbs = BTreeSet::new();
    let every = page.block("STRATEGIC (the default)");
    for line in every.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let verb = line.split(['"', '\'']).nth(1).and_then(|text| text.split_whitespace().next());
        verbs.insert(verb.expect("a verb").to_owned());
        let wanted = STATUSES.iter().find(|(part, _)| line.contains(part)).map_or(200, |(_, status)| *status);
        let answer = run(line);
        assert_eq!(answer["status"], wanted, "{line}: {answer}");
        assert!(
            wanted < 400 || !answer["failure"]["message"].as_str().unwrap_or_default().is_empty(),
            "{answer}"
        );
    }
    assert_eq!(verbs.len(), 13, "an example of every verb: {verbs:?}");

    // The records, and one that a person settles.
    let id = first["operationId"].as_str().expect("an id").to_owned();
    scene.until_outcome(&id, "completed").await;
    let of_record = |commands: &str| format!("{token}\n{}", commands.replace("01KB…", &id));
    let shown = shell(&kubeconfig, &of_record(page.block("?account=prod")));
    assert!(shown.contains(&id) && shown.contains("deployer") && shown.contains("\"completed\""), "{shown}");
    let unknown =
        format!("UPDATE kubesvc_ops_history SET final_outcome = 'unknown' WHERE operation_id = '{id}'");
    world.execute(&unknown).await;
    assert_eq!(shell(&kubeconfig, &of_record(page.block("operationresults"))), "");
    scene.until_outcome(&id, "completed").await;
}
