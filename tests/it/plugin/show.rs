//! Commands that show accounts and agents.

use kubesvc_core::State;
use serde_json::Value;

use super::{EXEC, Scene, json, plugin, row, run_with, shown};
use crate::world::{Cluster, World};
use kubesvc_testkit::must;

/// Creates three accounts: one that works, one that is refused, one without an agent.
async fn three(world: &World, cluster: &Cluster) {
    world
        .account("good")
        .zone("east")
        .spec("accountName", "Good one")
        .kubeconfig(&cluster.kubeconfig())
        .create()
        .await;
    world.account("bad").zone("east").kubeconfig(EXEC).create().await;
    world
        .account("lonely")
        .zone("esat")
        .spec("agentKubeconfig", serde_json::json!({"secretRef": {"name": "good"}}))
        .kubeconfig(&cluster.kubeconfig())
        .create()
        .await;
    world.until("good", State::Active).await;
    world.until_reason("bad", State::Failed, "ExecForbidden").await;
    world.until_reason("lonely", State::Failed, "NoAgent").await;
}

/// In a world without other accounts and agents.
pub(super) async fn accounts_and_agents_are_shown_in_every_form(scene: &Scene) {
    let Scene { world, cluster, agent } = scene;
    three(world, cluster).await;
    the_list(world).await;
    the_filters(world).await;
    the_documents(world).await;
    the_description(world).await;
    the_reasons(world).await;
    the_fleet(world, agent.id()).await;
    the_colours(world).await;
}

async fn the_list(world: &World) {
    let table = shown(world, &["list"]).await;
    let heading = table.lines().next().unwrap_or_default();
    let headings: Vec<_> = heading.split_whitespace().collect();
    assert_eq!(
        headings,
        ["NAME", "ACCOUNT", "STATE", "ZONE", "AGENTS", "KUBE-VERSION", "RETRIES", "SINCE"],
        "{table}"
    );
    let good = row(&table, "good");
    assert_eq!(good[1..6], ["Good", "one", "ACTIVE", "east", "1"], "{table}");
    assert!(good[6].starts_with('v'), "{table}");
    assert_eq!(row(&table, "bad")[2..7], ["FAILED", "east", "0", "<none>", "1"], "{table}");
    assert!(!table.contains('\x1b'), "no colour where no terminal is: {table:?}");
    assert!(table.lines().all(|line| line == line.trim_end()), "{table:?}");

    let wide = shown(world, &["ls", "-o", "wide"]).await;
    assert!(wide.contains("HOST") && wide.contains("AGENT-NAMES") && wide.contains("MESSAGE"), "{wide}");
    assert!(wide.contains("agent-1") && wide.contains("runs a program to log in"), "{wide}");

    let everywhere = must(plugin(world, &["get", "-A"]).await.ok());
    let ours: Vec<_> = everywhere.lines().filter(|line| line.starts_with(world.namespace())).collect();
    assert!(everywhere.starts_with("NAMESPACE") && ours.len() == 3, "{everywhere}");
}

async fn the_filters(world: &World) {
    for (arguments, expected) in [
        (&["list", "-oname", "--state", "failed,ORPHANED"][..], &["bad", "lonely"][..]),
        (&["list", "-o=name", "--zone", "esat"], &["lonely"]),
        (&["list", "--output", "name", "--stalled"], &["bad"]),
        (&["list", "-o", "name", "good", "ksa/bad"], &["good", "bad"]),
        (&["list", "-o", "name", "Good one"], &["good"]),
        (&["list", "-o", "name", "-l", "a=b"], &[]),
    ] {
        let expected: Vec<_> =
            expected.iter().map(|name| format!("kubesvcaccount.kubesvc.io/{name}")).collect();
        assert_eq!(shown(world, arguments).await.lines().collect::<Vec<_>>(), expected, "{arguments:?}");
    }
    let none = plugin(world, &["list", "-l", "a=b"]).await;
    assert_eq!((none.code, none.stdout.as_str()), (Some(0), ""));
    assert!(none.stderr.contains("No accounts found in namespace"), "{}", none.stderr);
}

async fn the_documents(world: &World) {
    let list = json(&shown(world, &["list", "-o", "json"]).await);
    let names: Vec<_> =
        list["items"].as_array().into_iter().flatten().map(|item| &item["metadata"]["name"]).collect();
    assert_eq!((&list["kind"], &list["apiVersion"]), (&Value::from("List"), &Value::from("v1")));
    assert_eq!(names, ["bad", "good", "lonely"]);
    let one = json(&shown(world, &["list", "good", "-o", "json"]).await);
    let kubectls = json(&must(world.kubectl(&["get", "ksa", "good", "-o", "json"]).await.ok()));
    assert_eq!(one, kubectls, "as kubectl prints it");
    let yaml = shown(world, &["list", "good", "-o", "yaml"]).await;
    let read: Value = serde_saphyr::from_str(&yaml).unwrap_or_else(|error| unreachable!("{error}: {yaml}"));
    assert_eq!(read, one);
}

async fn the_description(world: &World) {
    let told = shown(world, &["describe", "bad"]).await;
    for words in [
        "Name:",
        "ExecForbidden",
        "Kubeconfig:",
        "key kubeconfig of Secret bad",
        "Conditions:",
        "Stalled",
        "Events:",
        "Warning",
        "kubesvc-operator",
        "Failed Tries:",
    ] {
        assert!(told.contains(words), "{words} is missing:\n{told}");
    }
    let two = shown(world, &["describe", "good", "lonely"]).await;
    assert_eq!(two.matches("Namespace:").count(), 2, "{two}");
    assert!(two.contains("Good one"), "{two}");
    let for_agents = two.lines().find(|line| line.trim_start().starts_with("Agent Kubeconfig:"));
    assert!(for_agents.is_some_and(|line| line.ends_with("key kubeconfig of Secret good")), "{two}");
}

async fn the_reasons(world: &World) {
    let active = shown(world, &["why", "good"]).await;
    assert!(active.contains("ACTIVE for") && active.contains("held by agent-1"), "{active}");
    let refused = shown(world, &["why", "bad"]).await;
    assert!(refused.contains("FAILED (ExecForbidden)") && refused.contains("Use a token"), "{refused}");
    assert!(refused.contains("kubectl kubesvc retry bad -n "), "{refused}");
    let lonely = shown(world, &["why", "lonely"]).await;
    assert!(lonely.contains("did you mean zone east?"), "{lonely}");
    assert!(lonely.contains("none of zone esat has ever connected"), "{lonely}");
    let written = json(&shown(world, &["why", "lonely", "-o", "json"]).await);
    assert_eq!((&written["reason"], &written["desired"]), (&"NoAgent".into(), &"ACTIVE".into()), "{written}");
    // Its advice is what helps.
    let pin =
        written["advice"].as_array().into_iter().flatten().filter_map(|advice| advice["command"].as_str());
    let pin = pin.filter(|command| command.contains("zoneId")).collect::<Vec<_>>();
    assert_eq!(pin.len(), 1, "{written}");
    let patch = pin[0].split('\'').nth(1).expect("the patch stands in quotes");
    must(world.kubectl(&["patch", "ksa/lonely", "--type=merge", "-p", patch]).await.ok());
    world.until("lonely", State::Active).await;
}

async fn the_fleet(world: &World, agent: &str) {
    let table = shown(world, &["agents"]).await;
    assert!(table.starts_with("AGENT"), "{table}");
    let line = row(&table, agent);
    assert_eq!(
        (line[1], line[2], line[3], line[8]),
        ("east", "true", env!("CARGO_PKG_VERSION"), "true"),
        "{table}"
    );
    let listed = json(&shown(world, &["fleet", "-o", "json"]).await);
    assert_eq!(listed["items"][0]["spec"]["agentId"], agent, "{listed}");
    assert!(
        shown(world, &["agents", "-o", "name"]).await.starts_with("kubesvcagent.kubesvc.io/agent-1-east-")
    );
    let none = plugin(world, &["agents", "--zone", "nowhere"]).await;
    assert!(none.code == Some(0) && none.stderr.contains("No agents found"), "{none:?}");
}

/// Colours appear when requested, and never when `NO_COLOR` is set.
async fn the_colours(world: &World) {
    let kubeconfig = world.control_plane().kubeconfig_path();
    let list = ["list", "-n", world.namespace()];
    let forced = run_with(&kubeconfig, &["CLICOLOR_FORCE=1"], super::PLUGIN, &list).await;
    assert!(forced.stdout.contains("\x1b[31mFAILED\x1b[0m"), "{forced:?}");
    let never = run_with(&kubeconfig, &["NO_COLOR=1"], super::PLUGIN, &list).await;
    assert!(!never.stdout.contains('\x1b'), "{never:?}");
}
