//! What a user sees of it.

use kubesvc_core::RETRY_ANNOTATION;
use serde_json::json;

use super::*;
use crate::gateway::place::{ACCOUNT, EVERYTHING, Place};
use crate::world::{Call, case, run_cases, send};
use kubesvc_testkit::controlplane;

/// A Clouddriver whose tests are about rows that kubesvc did not write.
const FOREIGN: &str = r#"{"type": "kubernetes", "name": "theirs", "kubeconfigContents": "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{name: c, cluster: {server: 'https://127.0.0.1:1'}}]\nusers: [{name: u, user: {token: t}}]\ncontexts: [{name: c, context: {cluster: c, user: u}}]\n"}"#;

#[tokio::test(flavor = "multi_thread")]
async fn an_account_appears_in_clouddriver_deploys_and_leaves() {
    let clouddriver = clouddriver(Kind::MariaDb, Settings::default()).await;
    let (token_file, ca_file) = (clouddriver.file("token"), clouddriver.file("ca.crt"));
    let prepare = registering(&clouddriver)
        .setting("kubesvc.clouddriver.push.tokenFile", token_file.display().to_string())
        .setting("kubesvc.clouddriver.push.caFile", ca_file.display().to_string());
    let place = Place::of(prepare, false, "info").await;
    let token = place.person("clouddriver", EVERYTHING, Some("kubesvc")).await;
    must(std::fs::write(&token_file, &token).map_err(|e| e.to_string()));
    must(std::fs::write(&ca_file, &place.authority).map_err(|e| e.to_string()));
    until_loaded(&clouddriver, &[ACCOUNT]).await;
    let shown = place.world.kubectl(&["get", "ksa", ACCOUNT, "-o", "wide"]).await;
    assert!(shown.stdout.contains("SPINNAKER"), "{}", shown.stdout);

    // As Orca sends it.
    let manifest = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "deployed", "namespace": "default"}, "data": {"a": "b"},
    });
    let deploy = json!([{"deployManifest": {"account": ACCOUNT, "source": "text", "manifests": [manifest], "moniker": {"app": "demo"}}}]);
    let answer = must(send(clouddriver.port(), Call::new("POST", "/kubernetes/ops").json(&deploy)).await);
    let task = answer.json["resourceUri"].as_str().expect(&answer.text).to_owned();
    eventually("the deploy", MAX_WAIT, async || {
        let task = get_from(clouddriver.port(), &task).await?;
        match (task.json["status"]["completed"].as_bool(), task.json["status"]["failed"].as_bool()) {
            (Some(true), Some(false)) => Ok(()),
            _ => Err(task.text),
        }
    })
    .await;
    let kubeconfig = must(place.world.folder().write("target.kubeconfig", &place.target.admin_kubeconfig()));
    let found = must(
        controlplane::kubectl_with(
            &kubeconfig,
            &["get", "configmap", "deployed", "-o", "jsonpath={.data.a}"],
            "",
        )
        .await,
    );
    assert_eq!(found.stdout, "b");

    place.world.delete(ACCOUNT).await;
    place.world.until_gone(ACCOUNT).await;
    until_loaded(&clouddriver, &[]).await;
    let logs = place.world.all_logs();
    assert!(logs.iter().all(|(_, log)| !log.contains(&token)), "no log has Clouddriver's token");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_row_follows_the_account_and_changes_with_nothing_else() {
    let clouddriver = clouddriver(Kind::PostgreSql, Settings::default()).await;
    let one = Registering::on(&clouddriver, Database::Postgres).await;
    one.account("prod").await;
    let said = one.until_reason("prod", "Pushed").await;
    assert_eq!((said.status.as_str(), said.message.as_str()), ("True", "Clouddriver has the account"));
    let before = must(clouddriver.tables().row("prod").await).expect("stored");
    assert_eq!(before.last_modified_by, "kubesvc");
    let definition = stored(&clouddriver, "prod").await.expect("stored");
    assert_eq!(definition["checkPermissionsOnStartup"], json!(false));

    // A restart, a new Secret and lists of Clouddriver change nothing.
    one.world.operator().kill_and_start().await;
    one.world.secret("prod", one.cluster.kubeconfig_in_one_line().as_bytes(), true).await;
    one.account("dev").await;
    one.until_reason("dev", "Pushed").await;
    assert_eq!(must(clouddriver.tables().row("prod").await), Some(before));

    one.world
        .patch("prod", json!({"spec": {"environment": "live", "permissions": {"WRITE": ["ops"]}}}))
        .await;
    eventually("the new definition", MAX_REGISTRATION, async || {
        let stored = stored(&clouddriver, "prod").await.ok_or("no row")?;
        let is_new =
            stored["environment"] == json!("live") && stored["permissions"]["WRITE"] == json!(["ops"]);
        if is_new { Ok(()) } else { Err(stored.to_string()) }
    })
    .await;

    // Taken out by its own field; the account stays ACTIVE.
    one.world.patch("dev", json!({"spec": {"spinnaker": {"register": false}}})).await;
    until_removed(&clouddriver, "dev").await;
    until_loaded(&clouddriver, &["prod"]).await;
    assert_eq!(one.world.state("dev").await, Some(State::Active));
    one.world.patch("dev", json!({"spec": {"spinnaker": null}})).await;
    until_loaded(&clouddriver, &["dev", "prod"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_account_that_goes_leaves_clouddriver_first() {
    let clouddriver = clouddriver(Kind::MariaDb, Settings::default()).await;
    let one = Registering::start(
        registering(&clouddriver).setting("kubesvc.clouddriver.push.removalWaitSeconds", 600),
    )
    .await;
    for name in ["prod", "dev"] {
        one.account(name).await;
        one.until_reason(name, "Pushed").await;
    }
    // Clouddriver answers nothing for a while, so that the wait is seen.
    clouddriver.pause();
    one.world.patch("prod", json!({"spec": {"state": "INACTIVE"}})).await;
    let said = one.until_reason("prod", "LeavingClouddriver").await;
    assert_eq!(said.status, "False");
    assert_eq!(one.world.state("prod").await, Some(State::Active), "the grant stands");
    one.world.until_shown("prod", "TO_DEACTIVATE").await;
    clouddriver.resume();
    one.world.until("prod", State::Inactive).await;
    assert_eq!(stored(&clouddriver, "prod").await, None);
    let account = one.world.object("prod").await.expect("it is there");
    assert_eq!(condition(&account, "SpinnakerRegistered"), None);

    // A retry ends the wait.
    clouddriver.pause();
    one.world.patch("dev", json!({"spec": {"state": "INACTIVE"}})).await;
    one.until_reason("dev", "LeavingClouddriver").await;
    one.world.annotate("dev", RETRY_ANNOTATION, "now").await;
    one.world.until("dev", State::Inactive).await;
    clouddriver.resume();
    until_removed(&clouddriver, "dev").await;
}

/// What is somebody else's is left, and the condition says which case it is.
async fn foreign_names_are_left(kind: Kind, database: Database) {
    let yaml = "kubernetes: {accounts: [{name: of-file, kubeconfigContents: x}]}\n";
    let settings =
        Settings { accounts: yaml.to_owned(), load_delay: Duration::from_secs(4), ..Settings::default() };
    let clouddriver = clouddriver(kind, settings).await;
    // A row that is loaded, and one that is stored and not loaded.
    must(clouddriver.tables().insert("theirs", FOREIGN).await);
    must(
        clouddriver
            .tables()
            .insert(
                "broken",
                r#"{"type": "kubernetes", "name": "broken", "kinds": ["a"], "omitKinds": ["b"]}"#,
            )
            .await,
    );
    let before = must(clouddriver.tables().checksum().await);
    let one = Registering::on(&clouddriver, database).await;
    for name in ["theirs", "broken", "of-file"] {
        one.account(name).await;
        let said = one.until_reason(name, "Conflict").await;
        assert!(said.message.contains("did not register"), "{}", said.message);
    }
    one.world
        .account("slash")
        .zone("east")
        .spec("accountName", "a/b")
        .kubeconfig(&one.cluster.kubeconfig())
        .create()
        .await;
    one.world.until("slash", State::Active).await;
    one.until_reason("slash", "NameNotPortable").await;
    assert_eq!(must(clouddriver.tables().checksum().await), before, "nothing was written");
    // Its object goes, the row stays.
    one.world.delete("theirs").await;
    one.world.until_gone("theirs").await;
    assert_eq!(must(clouddriver.tables().checksum().await), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn names_of_others_are_left() {
    run_cases([
        case(foreign_names_are_left(Kind::MariaDb, Database::MariaDb)),
        case(foreign_names_are_left(Kind::PostgreSql, Database::Sqlite)),
    ])
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn names_that_differ_in_case_are_one_account_in_clouddriver() {
    let clouddriver = clouddriver(Kind::MariaDb, Settings::default()).await;
    let one = Registering::on(&clouddriver, Database::Sqlite).await;
    one.account("prod").await;
    one.world.until_next_second("prod").await;
    let upper = one.world.account("upper").zone("east").spec("accountName", "PROD");
    upper.kubeconfig(&one.cluster.kubeconfig()).create().await;
    one.until_reason("upper", "NameNotPortable").await;
    until_loaded(&clouddriver, &["prod"]).await;
    one.world.delete("prod").await;
    one.world.until_gone("prod").await;
    one.until_reason("upper", "Pushed").await;
    until_loaded(&clouddriver, &["PROD"]).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "make test-all"]
async fn a_thousand_accounts_are_registered_within_two_polls_and_then_cost_nothing() {
    const ACCOUNTS: usize = 1000;
    let clouddriver =
        clouddriver(Kind::MariaDb, Settings { poll: Duration::from_secs(30), ..Settings::default() }).await;
    let prepare = registering(&clouddriver)
        .setting("kubesvc.clouddriver.push.enabled", false)
        .setting("kubesvc.clouddriver.push.pollSeconds", 30)
        .setting("kubesvc.clouddriver.push.resyncSeconds", 60);
    let one = Registering::start(prepare).await;
    one.world.secret("all", one.cluster.kubeconfig().as_bytes(), true).await;
    let objects: Vec<String> = (0..ACCOUNTS)
        .map(|at| {
            json!({
                "apiVersion": "kubesvc.io/v1alpha1", "kind": "KubesvcAccount", "metadata": {"name": format!("a-{at:04}")},
                "spec": {"zoneId": "east", "kubeconfig": {"secretRef": {"name": "all"}}},
            })
            .to_string()
        })
        .collect();
    one.world.apply(&objects.join("\n---\n")).await;
    let active = async || {
        let rows = one.world.try_rows().await?;
        let active = rows.iter().filter(|row| row.status == "ACTIVE").count();
        if active == ACCOUNTS { Ok(()) } else { Err(format!("{active} are ACTIVE")) }
    };
    eventually("all are ACTIVE", Duration::from_secs(300), active).await;
    one.world.operator().terminate().await;
    one.world.operator().launch_with(&[("KUBESVC_CLOUDDRIVER_PUSH_ENABLED", "true")]);
    one.world.operator().ready().await;
    let begun = std::time::Instant::now();
    let mut database = must(one.world.open_database().await.map_err(|e| e.to_string()));
    let mut until = async |what: &str, state: &'static str, wanted: i64| loop {
        let count = must(database.number(state).await.map_err(|e| e.to_string()));
        if count == wanted {
            println!("{what} after {:.1} s", begun.elapsed().as_secs_f64());
            return begun.elapsed();
        }
        assert!(begun.elapsed() < Duration::from_secs(240), "{what}: {count}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    };
    let all = i64::try_from(ACCOUNTS).expect("few");
    let took =
        until("all are registered", "SELECT count(*) FROM kubesvc_pushed WHERE state = 'ADDED'", all).await;
    assert!(took < Duration::from_secs(60), "two polls; it took {took:?}");
    let said = async || {
        let account = one.world.try_object("a-0999").await?.ok_or("it is gone")?;
        let said = condition(&account, "SpinnakerRegistered").ok_or("it has no condition")?;
        if said.status == "True" { Ok(()) } else { Err(said.reason) }
    };
    eventually("it is known to be loaded", Duration::from_secs(150), said).await;
    let before = must(clouddriver.tables().checksum().await);
    let looks = async || {
        let metrics = one.world.try_get("/metrics").await?.text;
        let looks = metrics.lines().find(|line| {
            line.starts_with("kubesvc_clouddriver_calls_total{call=\"look\",outcome=\"success\"}")
        });
        let looks: usize = looks.and_then(|line| line.rsplit(' ').next()?.parse().ok()).ok_or("no looks")?;
        if looks >= 2 * ACCOUNTS { Ok(()) } else { Err(format!("{looks} looks")) }
    };
    eventually("every row is compared twice", Duration::from_secs(300), looks).await;
    assert_eq!(must(clouddriver.tables().checksum().await), before);
}

/// As the page says how to switch it off.
#[tokio::test(flavor = "multi_thread")]
async fn accounts_stay_when_the_push_is_off_and_leave_when_their_namespace_is_not_named() {
    let clouddriver = clouddriver(Kind::MariaDb, Settings::default()).await;
    let one = Registering::on(&clouddriver, Database::Sqlite).await;
    one.account("prod").await;
    one.until_reason("prod", "Pushed").await;
    let row = stored(&clouddriver, "prod").await;
    let restart_with = async |variable: (&str, &str)| {
        one.world.operator().terminate().await;
        one.world.operator().launch_with(&[variable]);
        one.world.operator().ready().await;
    };

    restart_with(("KUBESVC_CLOUDDRIVER_PUSH_ENABLED", "false")).await;
    eventually("no condition", MAX_WAIT, async || {
        let account = one.world.try_object("prod").await?.ok_or("it is gone")?;
        condition(&account, "SpinnakerRegistered").map_or(Ok(()), |said| Err(said.message))
    })
    .await;
    assert_eq!(stored(&clouddriver, "prod").await, row, "it stays in Clouddriver");

    restart_with(("KUBESVC_CLOUDDRIVER_PUSH_NAMESPACES", "elsewhere")).await;
    until_loaded(&clouddriver, &[]).await;
    eventually("no registered account", MAX_WAIT, async || {
        let metrics = get_from(one.world.operator().rest_port(), "/metrics").await?.text;
        let counts =
            metrics.lines().filter(|line| line.starts_with("kubesvc_clouddriver_registered_accounts{"));
        let counts: Vec<_> = counts.collect();
        let is_zero = counts.len() == 3 && counts.iter().all(|line| line.ends_with(" 0"));
        if is_zero { Ok(()) } else { Err(counts.join("\n")) }
    })
    .await;
    assert_eq!(one.world.state("prod").await, Some(State::Active));
}

#[tokio::test(flavor = "multi_thread")]
async fn two_installations_on_one_clouddriver_leave_each_others_rows() {
    let clouddriver = clouddriver(Kind::MariaDb, Settings::default()).await;
    let one = Registering::on(&clouddriver, Database::MariaDb).await;
    let other = Registering::on(&clouddriver, Database::Sqlite).await;
    one.account("prod").await;
    one.until_reason("prod", "Pushed").await;
    let before = must(clouddriver.tables().checksum().await);
    other.account("prod").await;
    other.until_reason("prod", "Conflict").await;
    other.world.delete("prod").await;
    other.world.until_gone("prod").await;
    assert_eq!(must(clouddriver.tables().checksum().await), before, "only the owner writes a row");
    // Whoever was second has the name once it is free.
    other.account("prod").await;
    other.until_reason("prod", "Conflict").await;
    one.world.delete("prod").await;
    one.world.until_gone("prod").await;
    other.until_reason("prod", "Pushed").await;
    let account = other.world.object("prod").await.expect("it is there");
    let kubeconfig = stored(&clouddriver, "prod").await.expect("stored")["kubeconfigContents"].to_string();
    assert!(kubeconfig.contains(account.uid()), "{kubeconfig}");
}

/// Number of revisions of an account in Clouddriver; its deletion is one.
async fn revisions(clouddriver: &Clouddriver, name: &str) -> usize {
    let history = must(get_from(clouddriver.port(), &format!("/credentials/{name}/history")).await);
    history.json.as_array().map(Vec::len).unwrap_or_default()
}

/// Waits until `kubesvc_pushed` is empty.
async fn until_no_row(one: &Registering) {
    eventually("kubesvc has no row", MAX_REGISTRATION, async || {
        let mut database = one.world.open_database().await.map_err(|e| e.to_string())?;
        match database.number("SELECT count(*) FROM kubesvc_pushed").await.map_err(|e| e.to_string())? {
            0 => Ok(()),
            rows => Err(format!("{rows} rows")),
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_is_stored_late_of_an_account_that_has_left_is_removed() {
    let clouddriver = clouddriver(Kind::MariaDb, Settings::default()).await;
    let one = Registering::on(&clouddriver, Database::MariaDb).await;
    one.account("prod").await;
    one.until_reason("prod", "Pushed").await;
    let sent = stored(&clouddriver, "prod").await.expect("stored");
    one.world.patch("prod", json!({"spec": {"spinnaker": {"register": false}}})).await;
    until_no_row(&one).await;
    // What a leader sends that was suspended right before its call.
    let before = revisions(&clouddriver, "prod").await;
    let late = Call::new("POST", "/credentials").json(&sent);
    assert_eq!(must(send(clouddriver.port(), late).await).status, 200);
    eventually("it is deleted", MAX_REGISTRATION, async || match revisions(&clouddriver, "prod").await {
        now if now == before + 2 => Ok(()),
        now => Err(format!("{now} revisions after {before}")),
    })
    .await;
    until_removed(&clouddriver, "prod").await;
    until_no_row(&one).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_suspended_leader_still_sends_changes_no_row() {
    let clouddriver = clouddriver(Kind::MariaDb, Settings::default()).await;
    let prepare = registering(&clouddriver)
        .database(Database::MariaDb)
        .setting("kubesvc.leaderElection.leaseDurationSeconds", 6)
        .setting("kubesvc.leaderElection.renewDeadlineSeconds", 4)
        .setting("kubesvc.leaderElection.retryPeriodSeconds", 1);
    let one = Registering::start(prepare).await;
    one.world.operator().terminate().await;
    one.world.operator().launch_with(&[("KUBESVC_STOP_AT", "push-create:before")]);
    one.world.operator().ready().await;
    one.account("prod").await;
    let other = one.world.replica("operator-1").await;
    eventually("the leader is suspended", MAX_WAIT, async || {
        if one.world.operator().is_paused() { Ok(()) } else { Err("it runs".to_owned()) }
    })
    .await;
    eventually("the other one has registered the account", MAX_WAIT, async || {
        if stored(&clouddriver, "prod").await.is_some() { Ok(()) } else { Err("no row".to_owned()) }
    })
    .await;
    let before = must(clouddriver.tables().checksum().await);
    one.world.operator().resume();
    one.world.until_one_leads(&[one.world.operator(), &other]).await;
    one.until_reason("prod", "Pushed").await;
    assert_eq!(must(clouddriver.tables().checksum().await), before);
}
