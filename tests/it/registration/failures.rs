//! Clouddriver fails, somebody changes it, or the operator ends: the rows end as they are to be.

use kubesvc_runtime::crash_points::POINTS;
use serde_json::json;

use super::*;
use crate::world::{case, run_cases};

/// Points that are passed while an account is registered, while it changes, and while it is removed.
const ADDING: [&str; 5] = [
    "pushed-row:before",
    "pushed-row:after",
    "push-create:before",
    "push-create:after",
    "pushed-row:before#2",
];
const CHANGING: [&str; 3] = ["push-replace:before", "push-replace:after", "pushed-row:after"];
const REMOVING: [&str; 4] =
    ["pushed-row:before", "push-delete:before", "push-delete:after", "pushed-row:after#2"];

#[tokio::test(flavor = "multi_thread")]
async fn clouddriver_being_down_delays_a_deletion_by_the_wait_and_its_row_goes_when_it_is_back() {
    let clouddriver = clouddriver(Kind::MariaDb, Settings::default()).await;
    let one = Registering::on(&clouddriver, Database::MariaDb).await;
    one.account("prod").await;
    one.until_reason("prod", "Pushed").await;
    clouddriver.kill();
    one.world.delete("prod").await;
    one.world.until_gone("prod").await;
    assert!(stored(&clouddriver, "prod").await.is_some());
    // An account of the same name waits until the old row is gone.
    one.account("prod").await;
    must(clouddriver.restart().await);
    one.until_reason("prod", "Pushed").await;
    let account = one.world.object("prod").await.expect("it is there");
    let kubeconfig = stored(&clouddriver, "prod").await.expect("stored")["kubeconfigContents"].to_string();
    assert!(kubeconfig.contains(account.uid()), "{kubeconfig}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clouddriver_that_cannot_take_accounts_is_named_in_the_condition() {
    let reasons = [
        (Settings { storage: false, ..Settings::default() }, "StorageOff"),
        (Settings { admins: Some(vec!["root".to_owned()]), ..Settings::default() }, "Forbidden"),
        (Settings { poller: false, ..Settings::default() }, "PollerOff"),
    ];
    run_cases(reasons.map(|(settings, reason)| {
        case(async move {
            let clouddriver = clouddriver(Kind::MariaDb, settings).await;
            let one = Registering::on(&clouddriver, Database::Sqlite).await;
            one.account("prod").await;
            let said = one.until_reason("prod", reason).await;
            assert_eq!(said.status, "False");
            let account = one.world.object("prod").await.expect("it is there");
            assert_eq!(condition(&account, "Ready").expect("it has one").status, "True", "{reason}");
        })
    }))
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_table_and_changes_by_hand_cost_no_row() {
    let clouddriver = clouddriver(Kind::PostgreSql, Settings::default()).await;
    let one = Registering::on(&clouddriver, Database::Postgres).await;
    one.account("prod").await;
    one.until_reason("prod", "Pushed").await;
    let before = must(clouddriver.tables().checksum().await);
    one.world.operator().kill();
    one.world.execute("DELETE FROM kubesvc_pushed").await;
    one.world.operator().start().await;
    eventually("the row is found again", MAX_WAIT, async || {
        let mut database = one.world.open_database().await.map_err(|e| e.to_string())?;
        let found = database.number("SELECT count(*) FROM kubesvc_pushed WHERE state = 'ADDED'").await;
        if found.map_err(|e| e.to_string())? == 1 { Ok(()) } else { Err("no row".to_owned()) }
    })
    .await;
    assert_eq!(must(clouddriver.tables().checksum().await), before, "nothing was written");

    let mut definition = stored(&clouddriver, "prod").await.expect("stored");
    definition["cacheIntervalSeconds"] = json!(7);
    let put = crate::world::Call::new("PUT", "/credentials").json(&definition);
    assert_eq!(must(crate::world::send(clouddriver.port(), put).await).status, 200);
    one.until_reason("prod", "Drift").await;
    assert_eq!(
        stored(&clouddriver, "prod").await.expect("stored")["cacheIntervalSeconds"],
        json!(7),
        "it is left"
    );
}

/// The operator ends before and after each of its writes: Clouddriver has the account once, and then not at all.
#[tokio::test(flavor = "multi_thread")]
async fn the_operator_may_end_at_any_write() {
    let clouddriver = clouddriver(Kind::MariaDb, Settings::default()).await;
    let one = Registering::on(&clouddriver, Database::MariaDb).await;
    for (at, point) in ADDING.into_iter().enumerate() {
        let name = format!("account-{at}");
        one.world.operator().terminate().await;
        one.world.operator().launch_with(&[("KUBESVC_CRASH_AT", point)]);
        one.world.account(&name).zone("east").kubeconfig(&one.cluster.kubeconfig()).create().await;
        must(one.world.operator().ended(MAX_WAIT).await);
        one.world.operator().start().await;
        one.until_reason(&name, "Pushed").await;
    }
    let names: Vec<String> = (0..ADDING.len()).map(|at| format!("account-{at}")).collect();
    for (point, name) in CHANGING.into_iter().zip(&names) {
        one.world.operator().terminate().await;
        one.world.operator().launch_with(&[("KUBESVC_CRASH_AT", point)]);
        one.world.patch(name, json!({"spec": {"environment": point}})).await;
        must(one.world.operator().ended(MAX_WAIT).await);
        one.world.operator().start().await;
        eventually(point, MAX_REGISTRATION, async || {
            let stored = stored(&clouddriver, name).await.ok_or("no row")?;
            if stored["environment"] == json!(point) { Ok(()) } else { Err(stored.to_string()) }
        })
        .await;
    }
    for (point, name) in REMOVING.into_iter().zip(&names) {
        one.world.operator().terminate().await;
        one.world.operator().launch_with(&[("KUBESVC_CRASH_AT", point)]);
        one.world.delete(name).await;
        must(one.world.operator().ended(MAX_WAIT).await);
        one.world.operator().start().await;
        one.world.until_gone(name).await;
        until_removed(&clouddriver, name).await;
    }
    until_loaded(&clouddriver, &[names[4].as_str()]).await;
}

#[test]
fn every_crash_point_of_a_registration_is_tried() {
    let is_ours = |point: &&&str| point.starts_with("pushed-row:") || point.starts_with("push-");
    let ours: Vec<_> = POINTS.iter().filter(is_ours).collect();
    assert_eq!(ours.len(), 8);
    for point in ours {
        assert!([&ADDING[..], &CHANGING, &REMOVING].concat().contains(point), "{point}");
    }
}
