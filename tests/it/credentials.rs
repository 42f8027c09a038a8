//! `/credentials` of an operator in front of a Clouddriver: what is written there through it is so here too, whatever is
//! lost on the way.

mod added_time;
mod crashes;
mod route;
mod tls;

use std::time::Duration;

use kubesvc_core::State;
use percent_encoding::percent_decode_str;
use serde_json::{Value, json};

use crate::world::{Agent, Answer, Call, Cluster, Database, MAX_WAIT, Prepare, World, get_from, send};
use kubesvc_testkit::clouddriver::{Clouddriver, Settings};
use kubesvc_testkit::databases::{self, Kind};
use kubesvc_testkit::must;
use kubesvc_testkit::wait::eventually;

/// Time after which a write that was not carried out counts as one that will not be, in seconds.
const QUIET_SECONDS: &str = "4";

/// An operator in front of a Clouddriver whose table it reads, with an agent.
struct Front {
    world: World,
    clouddriver: Clouddriver,
    cluster: Cluster,
    _agent: Agent,
    _folder: tempfile::TempDir,
}

impl Front {
    async fn start(database: Database, reads_table: bool) -> Self {
        let (folder, url) = (must_folder(), databases::shared(Kind::MariaDb).await.fresh_database().await);
        let clouddriver = must(Clouddriver::start(&url, Settings::default()).await);
        let mut location: url::Url = url.parse().expect("a URL");
        let password =
            percent_decode_str(location.password().unwrap_or_default()).decode_utf8_lossy().into_owned();
        location.set_password(None).expect("it has a host");
        let password_file = folder.path().join("password");
        std::fs::write(&password_file, password).expect("written");
        let sources = json!([
            {"name": "sql", "type": "sql", "url": location.as_str(), "passwordFile": password_file}
        ]);
        let prepare = World::prepare()
            .with_long_timeouts()
            .database(database)
            .operator_env("KUBESVC_INTENT_QUIET_SECONDS", QUIET_SECONDS)
            .operator_env("KUBESVC_CLOUDDRIVER_ANSWER_SECONDS", "2")
            .setting("logging.level", "debug")
            .setting("kubesvc.clouddriver.baseUrl", clouddriver.base_url())
            .setting("kubesvc.clouddriver.push.pollSeconds", 1);
        let prepare: Prepare =
            if reads_table { prepare.setting("kubesvc.clouddriver.sources", sources) } else { prepare };
        let world = prepare.start().await;
        let cluster = world.cluster("target").await;
        let agent = world.agent("agent-1").zone("east").start().await;
        Self { world, clouddriver, cluster, _agent: agent, _folder: folder }
    }

    fn definition(&self, name: &str) -> Value {
        json!({
            "type": "kubernetes", "name": name, "kubeconfigContents": self.cluster.kubeconfig_in_one_line(),
            "checkPermissionsOnStartup": false,
        })
    }

    async fn write(&self, method: &str, path: &str, body: &Value) -> Answer {
        self.world.rest(method, path, body).await
    }

    /// Waits until no write is without a known end.
    async fn until_none_is_open(&self) {
        eventually("all writes are settled", MAX_WAIT, async || {
            let mut database = self.world.open_database().await.map_err(|error| error.to_string())?;
            match database.number("SELECT count(*) FROM kubesvc_intents").await {
                Ok(0) => Ok(()),
                open => Err(format!("{open:?}")),
            }
        })
        .await;
    }

    /// Waits until no write is without a known end, and until Clouddriver and kubesvc both have an account or both not.
    /// Returns which.
    async fn until_settled(&self, name: &str) -> bool {
        eventually(&format!("{name} is settled"), MAX_WAIT, async || {
            let mut database = self.world.open_database().await.map_err(|error| error.to_string())?;
            let open = database.number("SELECT count(*) FROM kubesvc_intents").await;
            let open = open.map_err(|error| error.to_string())?;
            let there = self.clouddriver.tables().row(name).await?.is_some();
            let here = self.world.try_object(name).await?.is_some();
            if open == 0 && there == here {
                Ok(there)
            } else {
                Err(format!("{open} open, there {there}, here {here}"))
            }
        })
        .await
    }
}

fn must_folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a folder")
}

fn result(answer: &Answer) -> &str {
    answer.headers.get("x-kubesvc-result").and_then(|value| value.to_str().ok()).unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_account_is_added_changed_and_removed_in_clouddriver_and_here() {
    let front = Front::start(Database::MariaDb, true).await;
    let answer = front.write("POST", "/credentials", &front.definition("prod")).await;
    assert_eq!((answer.status, result(&answer)), (200, "created"), "{answer}");
    let secret = front.cluster.token();
    assert!(answer.text.contains(secret), "Clouddriver echoes the definition");
    front.world.until("prod", State::Active).await;
    assert!(must(front.clouddriver.tables().row("prod").await).is_some());

    // Reads are Clouddriver's, byte for byte.
    eventually("the account is listed", MAX_WAIT, async || {
        let listed = get_from(front.clouddriver.port(), "/credentials").await?;
        if listed.text.contains("prod") { Ok(()) } else { Err(listed.text) }
    })
    .await;
    for path in [
        "/credentials",
        "/credentials?expand=true",
        "/credentials/prod",
        "/credentials/none",
        "/credentials/a%2Fb",
    ] {
        let (here, there) =
            (front.world.get(path).await, must(get_from(front.clouddriver.port(), path).await));
        // Only the time of an error differs.
        let of = |text: &str| {
            text.split_once("\",\"status\"").map_or(text.to_owned(), |(_, rest)| rest.to_owned())
        };
        assert_eq!((here.status, of(&here.text)), (there.status, of(&there.text)), "{path}");
        assert_eq!(here.headers.get("content-type"), there.headers.get("content-type"), "{path}");
    }
    for path in ["/credentials/type/kubernetes", "/credentials/prod/history"] {
        assert_eq!(front.world.get(path).await.status, 403, "{path}");
    }
    // As recorded: an empty list is 400 without a body.
    let answer = front.write("POST", "/credentials", &json!([])).await;
    assert_eq!((answer.status, answer.text.as_str()), (400, ""));

    let mut changed = front.definition("prod");
    changed["environment"] = json!("live");
    changed["permissions"] = json!({"READ": ["dev"], "WRITE": ["ops"]});
    let answer = front.write("PUT", "/credentials", &changed).await;
    assert_eq!((answer.status, result(&answer)), (200, "updated"), "{answer}");
    let spec = front.world.object("prod").await.expect("it is there").spec;
    assert_eq!(
        (spec.environment.as_deref(), spec.permissions["WRITE"].as_slice()),
        (Some("live"), &["ops".to_owned()][..])
    );
    let answer = front.write("PUT", "/credentials", &front.definition("there-alone")).await;
    assert_eq!((answer.status, result(&answer)), (200, "left; reason=kubesvc has no account of that name"));

    let answer = front.world.call(Call::new("DELETE", "/credentials/prod")).await;
    assert_eq!((answer.status, result(&answer)), (200, "deleted"), "{answer}");
    front.world.until_gone("prod").await;
    assert!(!front.until_settled("prod").await);
    let again = front.world.call(Call::new("DELETE", "/credentials/prod")).await;
    assert_eq!((again.status, result(&again)), (404, ""));
    for (what, log) in front.world.all_logs() {
        assert!(!log.contains(secret), "{what} has the credential");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_whose_answer_was_lost_ends_as_clouddriver_has_it() {
    let front = Front::start(Database::Sqlite, true).await;
    front.clouddriver.pause();
    let answer = front.write("POST", "/credentials", &front.definition("prod")).await;
    assert_eq!(answer.status, 504, "{answer}");
    assert!(answer.text.contains("outcome unknown"), "{answer}");
    let second = front.write("PUT", "/credentials", &front.definition("prod")).await;
    assert_eq!(second.status, 409, "{second}");
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(front.world.object("prod").await.is_none(), "it is not known yet");
    front.clouddriver.resume();
    assert!(front.until_settled("prod").await, "Clouddriver carried it out late");
    front.world.until("prod", State::Active).await;

    // It was not carried out, and will not be.
    front.clouddriver.kill();
    let answer = front.write("DELETE", "/credentials/prod", &json!({})).await;
    assert_eq!(answer.status, 502, "{answer}");
    must(front.clouddriver.restart().await);
    assert!(front.until_settled("prod").await);
    assert_eq!(front.world.state("prod").await, Some(State::Active));
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_source_two_lists_of_clouddriver_settle_a_write() {
    let front = Front::start(Database::Sqlite, false).await;
    front.clouddriver.pause();
    assert_eq!(front.write("POST", "/credentials", &front.definition("prod")).await.status, 504);
    front.clouddriver.resume();
    assert!(front.until_settled("prod").await);
    front.world.until("prod", State::Active).await;
    // Of a Clouddriver that does not answer, it is not known whether it has the account.
    front.clouddriver.pause();
    let answer = front.world.call(Call::new("DELETE", "/credentials/prod")).await;
    assert_eq!(answer.status, 502, "{answer}");
    front.clouddriver.resume();
    assert!(front.until_settled("prod").await);
    front.end_at("credentials-call:after", Call::new("DELETE", "/credentials/prod")).await;
    assert!(!front.until_settled("prod").await);
}
