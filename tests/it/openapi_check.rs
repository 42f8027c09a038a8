//! The OpenAPI document against a real operator, driven by schemathesis: `make openapi-check`.

use std::process::Command;

use serde_json::json;

use crate::world::{World, in_repository};
use kubesvc_testkit::must;

/// Number of generated requests for each call and check.
const EXAMPLES: &str = "60";

#[tokio::test(flavor = "multi_thread")]
#[ignore = "it needs schemathesis, which `make openapi-check` sees to"]
async fn generated_requests_are_answered_as_documented() {
    let program = std::env::var("KUBESVC_SCHEMATHESIS").expect("`make openapi-check` says where it is");
    let world = World::prepare().setting("logging.level", "info").start().await;
    for name in ["0", "prod"] {
        let account = json!({"name": name, "serviceAccount": true, "zoneId": "east"});
        assert_eq!(world.rest("POST", "/armory/accounts/dynamic", &account).await.status, 202);
    }
    let port = world.operator().rest_port();
    let mut command = Command::new(program);
    command.args(["--config-file", &in_repository("tests/openapi/schemathesis.toml"), "run", "--no-color"]);
    command.args(["--max-examples", EXAMPLES, "--checks", "all", "--continue-on-failure", "--seed", "7"]);
    command.args(["--generation-database", "none", "--request-timeout", "30"]);
    command.arg(format!("http://127.0.0.1:{port}/openapi.json"));
    command.current_dir(world.folder().path());
    let ran = tokio::task::spawn_blocking(move || command.output()).await.expect("it does not panic");
    let output = must(ran.map_err(|error| format!("schemathesis cannot be run: {error}")));
    let said = String::from_utf8_lossy(&output.stdout);
    println!("{said}");
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
}
