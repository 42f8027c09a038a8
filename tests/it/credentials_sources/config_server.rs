//! A running Spring Cloud config server as a source: profiles, labels, the user's password, values that it leaves encrypted, and
//! a migration that follows it while it is away.

use super::*;
use kubesvc_core::KubesvcMigration;
use kubesvc_testkit::config_server::ConfigServer;
use kubesvc_testkit::wait::eventually;

use crate::world::MAX_WAIT;

const USER: &str = "reader";

/// An operator that reads profiles `prod` and `eu` of the branch `release/1`, each second while it follows them.
async fn world_beside(server: &ConfigServer, folder: &tempfile::TempDir) -> World {
    let password = folder.path().join("password");
    std::fs::write(&password, format!("{PASSWORD}\n")).expect("written");
    let source = json!([{
        "name": "config", "type": "configServer", "uri": server.base_url(), "application": "clouddriver",
        "profile": ["prod", "eu"], "label": "release/1", "username": USER, "passwordFile": password,
    }]);
    World::prepare()
        .setting("kubesvc.clouddriver.sources", source)
        .operator_env("KUBESVC_SOURCE_SECONDS", "1")
        .start()
        .await
}

/// A YAML file with accounts, of which each has a name and one more field.
fn yaml(accounts: &[(&str, &str, &str)]) -> String {
    let list: Vec<_> =
        accounts.iter().map(|(name, field, value)| json!({"name": name, *field: value})).collect();
    accounts_yaml(&json!(list))
}

#[tokio::test(flavor = "multi_thread")]
async fn accounts_are_taken_from_the_highest_file_of_profiles_and_label_of_a_config_server() {
    let (mut server, folder) =
        (must(ConfigServer::start((USER, PASSWORD)).await), tempfile::tempdir().expect("a folder"));
    let world = world_beside(&server, &folder).await;
    let cluster = world.cluster("spinnaker").await;
    let _agent = world.agent("agent-1").start().await;
    let kubeconfig = cluster.kubeconfig_in_one_line();
    let post = async |names: &[&str]| {
        let names: Vec<_> = names.iter().map(|name| json!({ "name": name })).collect();
        world.rest("POST", ACCOUNTS, &json!(names)).await
    };

    // A branch that the server does not have says nothing about accounts.
    let answer = post(&["prod"]).await;
    assert!(answer.status == 503 && answer.text.contains("answered with 404: check uri"), "{answer}");
    must(
        server
            .commit("main", &[("clouddriver.yml", &yaml(&[("of-main", "kubeconfigContents", &kubeconfig)]))]),
    );
    let above = json!({"kubernetes": {"accounts": [
        {"name": "prod", "kubeconfigContents": kubeconfig, "namespaces": ["${NAMESPACE}"], "cacheThreads": 3,
         "permissions": {"READ": ["dev", "ops"], "WRITE": ["ops"]}},
        {"name": "sealed", "kubeconfigContents": "{cipher}AQB4"},
    ]}});
    let files = [
        ("application.yml", "NAMESPACE: default\n".to_owned()),
        ("clouddriver.yml", yaml(&[("lower", "kubeconfigContents", &kubeconfig)])),
        ("clouddriver-prod.yml", yaml(&[("of-prod", "kubeconfigContents", &kubeconfig)])),
        ("clouddriver-eu.yml", above.to_string()),
        ("clouddriver-other.yml", yaml(&[("other", "kubeconfigContents", &kubeconfig)])),
    ];
    let files: Vec<(&str, &str)> = files.iter().map(|(name, text)| (*name, text.as_str())).collect();
    must(server.commit("release/1", &files));

    // The list of the last profile is the whole one.
    for name in ["lower", "of-prod", "of-main", "other"] {
        let answer = post(&[name]).await;
        assert_eq!(answer.status, 400, "{name}: {answer}");
        assert!(answer.text.contains("in none of the credentials sources config"), "{answer}");
    }
    // As it is, and as a server answers that has no key for it.
    for decrypts in [false, true] {
        server.set_decrypts(decrypts);
        must(server.restart().await);
        let answer = post(&["sealed"]).await;
        assert_eq!(answer.status, 400, "{answer}");
        assert!(answer.text.contains("kubeconfigContents is encrypted"), "{answer}");
    }
    let answer = post(&["prod"]).await;
    assert_eq!((answer.status, answer.text.as_str()), (202, "[]"));
    let spec = world.object("prod").await.expect("made").spec;
    assert_eq!(spec.namespaces, ["default"]);
    assert_eq!(
        (spec.permissions["READ"].len(), spec.permissions["WRITE"].as_slice()),
        (2, &["ops".to_owned()][..])
    );
    let answer = world.rest("PATCH", ACCOUNTS, &json!([{"name": "prod", "state": "ACTIVE"}])).await;
    assert_eq!(answer.status, 202, "{answer}");
    world.until("prod", State::Active).await;

    std::fs::write(folder.path().join("password"), "pa55-that-is-wrong").expect("written");
    let answer = post(&["lower"]).await;
    assert!(answer.status == 503 && answer.text.contains("answered with 401: check username"), "{answer}");
    for (log, text) in world.all_logs() {
        for secret in [PASSWORD, "pa55-that-is-wrong", cluster.token(), "AQB4"] {
            assert!(!text.contains(secret), "{log} contains a secret");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_migration_follows_a_config_server_that_is_away_for_a_while() {
    let (server, folder) =
        (must(ConfigServer::start((USER, PASSWORD)).await), tempfile::tempdir().expect("a folder"));
    let world = world_beside(&server, &folder).await;
    let cluster = world.cluster("spinnaker").await;
    let _agent = world.agent("agent-1").start().await;
    let kubeconfig = cluster.kubeconfig_in_one_line();
    let commit = |names: &[&str]| {
        let accounts: Vec<_> =
            names.iter().map(|name| (*name, "kubeconfigContents", kubeconfig.as_str())).collect();
        must(server.commit("release/1", &[("clouddriver.yml", &yaml(&accounts))]));
    };
    let many: Vec<String> = (0..12).map(|number| format!("a-{number:02}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    commit(&many);
    let migration = json!({
        "apiVersion": "kubesvc.io/v1alpha1", "kind": "KubesvcMigration",
        "metadata": {"name": "m", "namespace": world.namespace()},
        "spec": {"sources": ["config"], "patterns": ["a-.*"], "wave": {"size": "100%", "soak": "1s"},
                 "onSourceChange": "follow", "onSourceRemoval": "delete"},
    });
    world.apply(&migration.to_string()).await;
    for name in &many {
        world.until(name, State::Active).await;
    }

    let failures = async || {
        let metrics = world.try_get("/metrics").await?.text;
        let line = metrics.lines().find_map(|line| {
            line.strip_prefix("kubesvc_credentials_source_read_failures_total{source=\"config\"} ")
        });
        line.and_then(|number| number.parse::<u64>().ok()).ok_or(metrics)
    };
    server.kill();
    let before = must(failures().await);
    eventually("some failed reads", MAX_WAIT, async || {
        let failed = failures().await?;
        if failed >= before + 4 { Ok(()) } else { Err(failed.to_string()) }
    })
    .await;
    for name in &many {
        assert_eq!(world.state(name).await, Some(State::Active), "a source that is away says nothing");
    }
    commit(&[&many[1..], &["a-12"]].concat());
    must(server.restart().await);
    world.until("a-12", State::Active).await;
    world.until_gone("a-00").await;
    for name in &many[1..] {
        assert_eq!(world.state(name).await, Some(State::Active), "{name}");
    }
    let api: Api<KubesvcMigration> = world.api();
    let status = api.get("m").await.expect("there").status.unwrap_or_default();
    assert_eq!((status.total, status.failed), (12, 0), "{status:?}");
}
