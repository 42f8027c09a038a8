//! Migrations from Clouddriver's table and a file, with a real operator: waves, failures, roll-back, what people delete,
//! what the sources lose, and an operator that ends between any two writes.

use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kubesvc_core::migration::MigrationPhase;
use kubesvc_core::{DesiredState, KubesvcMigration, KubesvcMigrationStatus, State};
use kubesvc_testkit::databases::Kind;
use kubesvc_testkit::must;
use kubesvc_testkit::wait::eventually;
use serde_json::{Value, json};

use crate::credentials_sources::{Clouddriver, accounts_yaml, prepare_beside};
use crate::plugin::plugin;
use crate::world::{Agent, Cluster, Database, MAX_WAIT, World};

/// Longest time for a whole small migration.
const MAX_MIGRATION: Duration = Duration::from_secs(120);

/// A world whose operator reads Clouddriver's table and a file, and an agent.
struct Migrating {
    clouddriver: Clouddriver,
    folder: tempfile::TempDir,
    world: World,
    cluster: Cluster,
    _agent: Agent,
}

impl Migrating {
    async fn on(kind: Kind, database: Database, settings: &[(&str, Value)]) -> Self {
        // SELECT is enough (`credentials_sources`); here the reader could write, so that the checksums say something.
        let clouddriver = Clouddriver::with_rights(kind, "ALL").await;
        let folder = tempfile::tempdir().expect("a folder");
        let mut prepare = prepare_beside(&clouddriver, &folder)
            .database(database)
            .setting("kubesvc.credentials.poller.reloadFrequencyMs", 1000);
        for (path, value) in settings {
            prepare = prepare.setting(path, value.clone());
        }
        let world = prepare.start().await;
        let cluster = world.cluster("spinnaker").await;
        let agent = world.agent("agent-1").start().await;
        Self { clouddriver, folder, world, cluster, _agent: agent }
    }

    /// A row of an account that works.
    async fn row(&self, name: &str) {
        self.clouddriver.put(name, &self.good(name)).await;
    }

    fn good(&self, name: &str) -> Value {
        json!({"type": "kubernetes", "name": name, "kubeconfigContents": self.cluster.kubeconfig_in_one_line()})
    }

    /// A row of an account whose API server does not answer.
    async fn bad_row(&self, name: &str) {
        let kubeconfig = self.cluster.kubeconfig_at("https://127.0.0.1:9");
        let kubeconfig: Value = serde_saphyr::from_str(&kubeconfig).expect("YAML");
        let definition =
            json!({"type": "kubernetes", "name": name, "kubeconfigContents": kubeconfig.to_string()});
        self.clouddriver.put(name, &definition).await;
    }

    fn yaml(&self, accounts: &Value) {
        std::fs::write(self.folder.path().join("clouddriver.yml"), accounts_yaml(accounts)).expect("written");
    }

    async fn apply(&self, name: &str, spec: &Value) {
        let object = json!({
            "apiVersion": "kubesvc.io/v1alpha1", "kind": "KubesvcMigration",
            "metadata": {"name": name, "namespace": self.world.namespace()}, "spec": spec,
        });
        self.world.apply(&object.to_string()).await;
    }

    async fn status(&self, name: &str) -> Result<KubesvcMigrationStatus, String> {
        let api: Api<KubesvcMigration> = self.world.api();
        let object = api.get(name).await.map_err(|error| error.to_string())?;
        let status = object.status.unwrap_or_default();
        if Some(status.observed_generation) == object.metadata.generation {
            Ok(status)
        } else {
            Err(format!("not seen yet: {status:?}"))
        }
    }

    /// Waits until a migration is in a phase for a reason.
    async fn until(&self, name: &str, phase: MigrationPhase, reason: &str) -> KubesvcMigrationStatus {
        eventually(&format!("{name} {phase:?} {reason}"), MAX_MIGRATION, async || {
            let status = self.status(name).await?;
            let is_said = status.conditions.iter().any(|one| one.type_ == "Ready" && one.reason == reason);
            if status.phase == phase && is_said { Ok(status) } else { Err(format!("{status:?}")) }
        })
        .await
    }

    async fn plugin(&self, arguments: &[&str]) -> (i32, String) {
        let url = format!("http://127.0.0.1:{}", self.world.operator().rest_port());
        let all: Vec<&str> = ["migrate"].into_iter().chain(arguments.iter().copied()).collect();
        let mut with_url = all.clone();
        if arguments.contains(&"--dry-run") {
            with_url.extend(["--operator-url", &url]);
        }
        let ended = plugin(&self.world, &with_url).await;
        (ended.code.unwrap_or(-1), format!("{}{}", ended.stdout, ended.stderr))
    }

    /// What the operator wrote of accounts so far.
    fn writes(&self) -> usize {
        self.world.operator_writes("kubesvcaccounts").len()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_wave_pauses_and_is_rolled_back_and_the_source_is_never_written() {
    let one = Migrating::on(Kind::MariaDb, Database::MariaDb, &[]).await;
    for number in 0..6 {
        one.row(&format!("a{number}")).await;
    }
    for number in 6..9 {
        one.bad_row(&format!("a{number}")).await;
    }
    one.clouddriver.put("refused", &json!({"serviceAccount": true})).await;
    let before = one.clouddriver.digest().await;

    // A dry run writes nothing, and says what would be done.
    let (code, said) = one.plugin(&["--all", "--dry-run"]).await;
    assert_eq!(code, 3, "{said}");
    assert!(said.contains("9 to create, 0 exist, 1 refused") && said.contains("NotPortable"), "{said}");
    assert_eq!(one.writes(), 0);
    assert!(!said.contains(one.cluster.token()), "it has a secret");

    let spec = json!({
        "patterns": ["a.*"], "wave": {"size": 3, "soak": "1s"}, "limits": {"maxFailed": 0},
        "zoneRules": [{"pattern": ".*", "zoneId": "east"}],
    });
    one.apply("m", &spec).await;
    let status = one.until("m", MigrationPhase::Paused, "TooManyFailed").await;
    assert!(status.failed >= 1 && status.active >= 6 && status.wave == 3, "{status:?}");
    assert!(status.notable.iter().all(|notable| notable.reason == "Failed"), "{status:?}");
    for name in ["a0", "a5"] {
        let account = one.world.object(name).await.expect("migrated");
        assert_eq!(account.annotation("kubesvc.io/migration"), Some("m"));
        assert_eq!(account.status_or_default().state(), State::Active);
    }
    let (code, said) = one.plugin(&["status", "m"]).await;
    assert!(code == 0 && said.contains("Paused") && said.contains("kubectl kubesvc why a6"), "{said}");

    // Somebody uses one of them by now.
    one.world.patch("a1", json!({"spec": {"environment": "prod"}})).await;
    let (code, said) = one.plugin(&["rollback", "m", "--delete"]).await;
    assert_eq!(code, 0, "{said}");
    one.until("m", MigrationPhase::Complete, "RolledBack").await;
    for name in ["a0", "a2", "a5", "a6"] {
        one.world.until_gone(name).await;
    }
    assert!(one.world.object("a1").await.is_some(), "what somebody changed is left");
    let declined: Api<ConfigMap> = one.world.api();
    let declined = declined.get_opt("kubesvc-migration-declined").await.expect("an answer");
    assert!(declined.is_none(), "what the migration deleted is not declined: {declined:?}");

    // The bad rows are corrected; a new migration takes all of them.
    for number in 6..9 {
        let name = format!("a{number}");
        one.clouddriver.by_hand(&format!("DELETE FROM accounts WHERE id = '{name}'")).await;
        one.row(&name).await;
    }
    let corrected = one.clouddriver.digest().await;
    assert_ne!(corrected, before);
    let (code, said) = one
        .plugin(&[
            "--match",
            "a.*",
            "--wave",
            "100%",
            "--zone",
            "east",
            "--soak",
            "1s",
            "--name",
            "again",
            "--progress",
        ])
        .await;
    assert_eq!(code, 0, "{said}");
    assert!(said.contains("9 of 9 accounts are ACTIVE"), "{said}");
    assert_eq!(one.clouddriver.digest().await, corrected, "the source is never written");

    // Nothing more is written while nothing changes.
    let writes = one.writes();
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(one.writes(), writes);
    for (log, text) in one.world.all_logs() {
        assert!(!text.contains(one.cluster.token()), "{log} contains a secret");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_people_delete_stays_deleted_and_what_the_source_loses_stays_active() {
    let one = Migrating::on(Kind::PostgreSql, Database::Postgres, &[]).await;
    one.yaml(&json!([one.good("yaml-1"), one.good("a1")]));
    for name in ["a1", "a2", "a3"] {
        one.row(name).await;
    }
    let spec = json!({"patterns": ["a.*", "yaml.*"], "wave": {"size": "100%", "soak": "0s"}});
    one.apply("m", &spec).await;
    let status = one.until("m", MigrationPhase::Complete, "Complete").await;
    assert_eq!((status.total, status.active, status.failed), (4, 4, 0), "{status:?}");
    let source = |name: &'static str| {
        let world = &one.world;
        async move {
            world.object(name).await.and_then(|one| one.annotation("kubesvc.io/source").map(str::to_owned))
        }
    };
    assert_eq!(
        (source("a1").await.as_deref(), source("yaml-1").await.as_deref()),
        (Some("sql"), Some("yaml"))
    );

    one.world.delete("a2").await;
    one.world.until_gone("a2").await;
    let declined: Api<ConfigMap> = one.world.api();
    eventually("it is declined", MAX_WAIT, async || {
        let map = declined.get("kubesvc-migration-declined").await.map_err(|error| error.to_string())?;
        if map.data.is_some() { Ok(()) } else { Err("no data".to_owned()) }
    })
    .await;
    // Another leader knows it too; so does a dry run.
    one.world.operator().kill_and_start().await;
    let (code, said) = one.plugin(&["--all", "--dry-run"]).await;
    assert!(code == 0 && said.contains("1 declined"), "{code}: {said}");
    assert!(one.world.object("a2").await.is_none());

    // A changed entry is reported, and one that is gone leaves the account as it is.
    one.clouddriver.by_hand("DELETE FROM accounts WHERE id = 'a3'").await;
    one.yaml(&json!([one.good("yaml-1"), one.good("a1"), {"name": "yaml-2", "serviceAccount": true}]));
    eventually("the change is seen", MAX_WAIT, async || {
        let status = one.status("m").await?;
        let has = |reason: &str| status.notable.iter().any(|notable| notable.reason == reason);
        if has("NotPortable") { Ok(()) } else { Err(format!("{status:?}")) }
    })
    .await;
    assert_eq!(one.world.object("a3").await.expect("kept").desired(), DesiredState::Active);
    one.world.until("a3", State::Active).await;

    // The entry that was declined changes: it is migrated again.
    one.clouddriver.by_hand("DELETE FROM accounts WHERE id = 'a2'").await;
    let mut changed = one.good("a2");
    changed["environment"] = json!("dev");
    one.clouddriver.put("a2", &changed).await;
    one.world.until("a2", State::Active).await;
    let before = one.clouddriver.digest().await;

    // A source that cannot be read is no reason to remove anything.
    one.clouddriver.by_hand("ALTER TABLE accounts RENAME TO hidden").await;
    eventually("it is known that the table cannot be read", MAX_WAIT, async || {
        let (code, said) = one.plugin(&["--all", "--dry-run"]).await;
        if code == 4 { Ok(()) } else { Err(said) }
    })
    .await;
    one.apply("m", &json!({"patterns": ["a.*", "yaml.*"], "wave": {"size": "100%", "soak": "0s"}, "onSourceRemoval": "delete"}))
        .await;
    one.until("m", MigrationPhase::Planning, "SourceUnread").await;
    let (code, said) = one.plugin(&["--all", "--dry-run"]).await;
    assert_eq!(code, 4, "{said}");
    assert!(one.world.object("a3").await.is_some() && one.world.object("a1").await.is_some());
    one.clouddriver.by_hand("ALTER TABLE hidden RENAME TO accounts").await;
    // a3 is more than a tenth of its source.
    let status = one.until("m", MigrationPhase::Paused, "MassRemoval").await;
    assert!(status.conditions.iter().any(|said| said.message.contains("no longer has 1 of 3")), "{status:?}");
    let (code, said) = one.plugin(&["resume", "m"]).await;
    assert_eq!(code, 0, "{said}");
    one.world.until_gone("a3").await;
    one.until("m", MigrationPhase::Complete, "Complete").await;
    assert_eq!(one.clouddriver.digest().await, before, "the source is never written");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_documented_scanner_takes_over_what_its_patterns_name() {
    let settings = [
        ("kubesvc.dynamicAccounts.namePatterns", json!(["^sql-1.*", "^.*-both", "^sql-"])),
        ("kubesvc.dynamicAccounts.credentialScanNamePatterns", json!(["^yaml.*"])),
        ("kubesvc.dynamicAccounts.scanFrequencySeconds", json!(1)),
        ("kubesvc.dynamicAccounts.scanBatchSize", json!(2)),
    ];
    let one = Migrating::on(Kind::MariaDb, Database::Sqlite, &settings).await;
    for name in ["sql-1", "sql-10", "sql-both", "sql-2"] {
        one.row(name).await;
    }
    one.yaml(&json!([one.good("yaml-1"), one.good("yaml-both"), one.good("file-both"), one.good("sql-11")]));
    for name in ["sql-1", "sql-10", "sql-both", "yaml-1", "yaml-both"] {
        one.world.until(name, State::Active).await;
    }
    // Patterns of one list say nothing of the sources of the other.
    for name in ["sql-2", "file-both", "sql-11"] {
        assert!(one.world.object(name).await.is_none(), "{name}");
    }
    one.row("sql-12").await;
    one.world.until("sql-12", State::Active).await;
    // What was taken over is left as it is.
    one.world.patch("sql-12", json!({"spec": {"state": "INACTIVE"}})).await;
    one.world.until("sql-12", State::Inactive).await;
    let log =
        |text: &str| one.world.all_logs().iter().map(|(_, log)| log.matches(text).count()).sum::<usize>();
    let warned = log("whole names; write .*");
    let writes = one.writes();
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(one.writes(), writes);
    // The log tells of a pattern that matches parts of names only, and of an entry that is refused; not again each second.
    assert_eq!(log("whole names; write .*"), warned);
    assert!(warned > 0);
    one.yaml(&json!([one.good("yaml-1"), {"name": "yaml-own", "serviceAccount": true}]));
    eventually("the refused entry is logged", MAX_WAIT, async || {
        if log("yaml-own") > 0 { Ok(()) } else { Err("it is not".to_owned()) }
    })
    .await;
    let metrics = one.world.get("/metrics").await.text;
    assert!(
        metrics.contains("kubesvc_migration_accounts{migration=\"settings/scanner\",of=\"total\"}"),
        "{metrics}"
    );
}

/// The operator ends before and after each write of a wave, of a decline and of a roll-back.
#[tokio::test(flavor = "multi_thread")]
async fn the_operator_may_end_at_any_write_of_a_migration() {
    let one = Migrating::on(Kind::MariaDb, Database::MariaDb, &[]).await;
    let wave = [
        "migration-secret:before",
        "migration-secret:after",
        "migration-create:before",
        "migration-create:after",
        "migration-patch:before",
        "migration-patch:after",
        "migration-status:before",
        "migration-status:after",
    ];
    // An agent that dials later than the operator begins makes an account FAILED for a while.
    let limits = json!({"maxFailed": "100%"});
    let spec = json!({"patterns": [".*"], "wave": {"size": 1, "soak": "0s"}, "limits": limits});
    one.apply("m", &spec).await;
    one.until("m", MigrationPhase::Complete, "Complete").await;
    let names: Vec<String> = wave.iter().map(|point| point.replace(':', "-")).collect();
    for (point, name) in wave.into_iter().zip(&names) {
        one.world.operator().terminate().await;
        one.row(name).await;
        one.world.operator().launch_with(&[("KUBESVC_CRASH_AT", point)]);
        must(one.world.operator().ended(MAX_WAIT).await);
        one.world.operator().start().await;
        let account = one.world.until(name, State::Active).await;
        assert_eq!(account.annotation("kubesvc.io/migration"), Some("m"), "{point}");
    }
    eventually("all accounts of the migration are ACTIVE", MAX_WAIT, async || {
        let status = one.status("m").await?;
        if (status.total, status.active) == (8, 8) { Ok(()) } else { Err(format!("{status:?}")) }
    })
    .await;

    // A decline.
    let decline = [
        "migration-declined:before",
        "migration-declined:after",
        "migration-release:before",
        "migration-release:after",
    ];
    for (point, name) in decline.into_iter().zip(&names) {
        one.world.operator().terminate().await;
        one.world.operator().launch_with(&[("KUBESVC_CRASH_AT", point)]);
        one.world.operator().ready().await;
        // The leader may not have read the sources yet.
        one.world.delete(name).await;
        must(one.world.operator().ended(MAX_WAIT).await);
        one.world.operator().start().await;
    }
    // A deletion while nobody leads.
    one.world.operator().terminate().await;
    one.world.delete(&names[4]).await;
    one.world.operator().start().await;
    one.world.until_gone(&names[4]).await;
    eventually("the five accounts are declined", MAX_WAIT, async || {
        let (code, said) = one.plugin(&["--all", "--dry-run"]).await;
        if code == 0 && said.contains("5 declined") { Ok(()) } else { Err(said) }
    })
    .await;

    // A roll-back.
    one.world.operator().terminate().await;
    for point in ["migration-delete:before", "migration-delete:after"] {
        let rollback = json!({"patterns": [".*"], "wave": {"size": 1, "soak": "0s"}, "rollback": "delete"});
        one.apply("m", &rollback).await;
        one.world.operator().launch_with(&[("KUBESVC_CRASH_AT", point)]);
        must(one.world.operator().ended(MAX_WAIT).await);
    }
    one.world.operator().start().await;
    for name in &names[5..] {
        one.world.until_gone(name).await;
    }
    one.until("m", MigrationPhase::Complete, "RolledBack").await;
    let (code, said) = one.plugin(&["--all", "--dry-run"]).await;
    assert!(code == 0 && said.contains("3 to create") && said.contains("5 declined"), "{said}");
}

/// A leader is suspended right before it creates an account; the next one goes on, and people delete what it made. What the
/// first one still creates when it wakes up is never activated.
#[tokio::test(flavor = "multi_thread")]
async fn a_suspended_leader_brings_no_declined_account_back() {
    let clouddriver = Clouddriver::new(Kind::MariaDb).await;
    let folder = tempfile::tempdir().expect("a folder");
    let world = prepare_beside(&clouddriver, &folder)
        .database(Database::MariaDb)
        .setting("kubesvc.credentials.poller.reloadFrequencyMs", 1000)
        .setting("kubesvc.leaderElection.leaseDurationSeconds", 6)
        .setting("kubesvc.leaderElection.renewDeadlineSeconds", 4)
        .setting("kubesvc.leaderElection.retryPeriodSeconds", 1)
        .start()
        .await;
    let cluster = world.cluster("spinnaker").await;
    let names: Vec<String> = (0..6).map(|number| format!("a{number}")).collect();
    for name in &names {
        let definition = json!({"name": name, "kubeconfigContents": cluster.kubeconfig_in_one_line()});
        clouddriver.put(name, &definition).await;
    }
    world.operator().terminate().await;
    world.operator().launch_with(&[("KUBESVC_STOP_AT", "migration-create:before#2")]);
    world.operator().ready().await;
    let other = world.replica("operator-1").await;
    // No agent is there: each account is made and shall be ACTIVE, and that is all.
    let object = json!({
        "apiVersion": "kubesvc.io/v1alpha1", "kind": "KubesvcMigration",
        "metadata": {"name": "m", "namespace": world.namespace()},
        "spec": {"patterns": ["a.*"], "wave": {"size": "100%", "soak": "0s"}, "limits": {"maxFailed": "100%"}},
    });
    world.apply(&object.to_string()).await;
    eventually("the leader is suspended", MAX_WAIT, async || {
        if world.operator().is_paused() { Ok(()) } else { Err("it runs".to_owned()) }
    })
    .await;
    for name in &names {
        let is_wanted = |account: &kubesvc_core::KubesvcAccount| account.desired() == DesiredState::Active;
        world.until_account(name, "shall be ACTIVE", is_wanted).await;
    }
    for name in &names {
        world.delete(name).await;
        world.until_gone(name).await;
    }
    world.operator().resume();
    world.until_one_leads(&[world.operator(), &other]).await;
    let declined: Api<ConfigMap> = world.api();
    let declined =
        declined.get("kubesvc-migration-declined").await.expect("it is there").data.unwrap_or_default();
    assert_eq!(declined["accounts"].lines().count(), names.len(), "{declined:?}");
    tokio::time::sleep(Duration::from_secs(5)).await;
    for name in &names {
        if let Some(account) = world.object(name).await {
            assert_eq!(account.desired(), DesiredState::Inactive, "{name} came back");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_migrations_that_claim_the_same_accounts_make_each_once() {
    let one = Migrating::on(Kind::MariaDb, Database::MariaDb, &[]).await;
    let names: Vec<String> = (0..8).map(|number| format!("a{number}")).collect();
    for name in &names {
        one.row(name).await;
    }
    let spec = json!({
        "patterns": ["a.*"], "wave": {"size": 2, "soak": "0s"}, "zoneRules": [{"pattern": ".*", "zoneId": "east"}],
    });
    for migration in ["m1", "m2"] {
        one.apply(migration, &spec).await;
    }
    for migration in ["m1", "m2"] {
        let status = one.until(migration, MigrationPhase::Complete, "Complete").await;
        assert_eq!((status.failed, status.notable.len()), (0, 0), "{status:?}");
    }
    let mut uids = std::collections::BTreeMap::new();
    for name in &names {
        let account = one.world.until(name, State::Active).await;
        let by = account.annotation("kubesvc.io/migration").expect("migrated").to_owned();
        uids.insert(name.as_str(), (by, account.uid().to_owned()));
    }

    // Taking one back takes back what it made, and nothing of the other's.
    let (code, said) = one.plugin(&["rollback", "m1"]).await;
    assert_eq!(code, 0, "{said}");
    one.until("m1", MigrationPhase::Complete, "RolledBack").await;
    for (name, (by, uid)) in uids {
        let state = if by == "m1" { State::Inactive } else { State::Active };
        let account = one.world.until(name, state).await;
        assert_eq!(account.uid(), uid, "{name} was made once");
    }
}
