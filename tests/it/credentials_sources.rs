//! Clouddriver's credentials sources on real parts, and accounts taken from them by POST: its table on MariaDB and
//! PostgreSQL, files, keys of a Secret and a ConfigMap, a config server, and Clouddriver's own answers.

mod clouddriver_api;
mod config_server;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::Api;
use kube::api::{DeleteParams, ObjectMeta, Patch, PatchParams, PostParams};
use kubesvc::{CredentialsSources, ObjectKind, SourcePlace, SourceSettings};
use kubesvc_core::State;
use kubesvc_runtime::kube_access::KubeAccess;
use kubesvc_testkit::databases::{Kind, Server, shared};
use kubesvc_testkit::must;
use serde_json::{Value, json};

use crate::world::{Prepare, World, condition, connect};

const PASSWORD: &str = "pa55-of-the-reader";
const ACCOUNTS: &str = "/armory/accounts";
const WITHIN: Duration = Duration::from_secs(30);
/// Number of rows written so far.
static WRITES: AtomicU64 = AtomicU64::new(1);

/// A database with Clouddriver's table, and a user who may only read it.
pub(crate) struct Clouddriver {
    server: &'static Server,
    url: String,
    name: String,
    user: String,
}

impl Clouddriver {
    pub(crate) async fn new(kind: Kind) -> Self {
        Self::with_rights(kind, "SELECT").await
    }

    /// With these rights of the reader on the table.
    pub(crate) async fn with_rights(kind: Kind, rights: &str) -> Self {
        let server = shared(kind).await;
        let url = server.fresh_database().await;
        let name = url.rsplit('/').next().expect("a name").to_owned();
        let user = format!("c{}", &name[2..]);
        let (body, grant) = match kind {
            Kind::MariaDb => (
                "json",
                format!(
                    "CREATE USER {user}@'%' IDENTIFIED BY '{PASSWORD}'; GRANT {rights} ON {name}.accounts TO {user}@'%'"
                ),
            ),
            Kind::PostgreSql => (
                "jsonb",
                format!("CREATE USER {user} PASSWORD '{PASSWORD}'; GRANT {rights} ON accounts TO {user}"),
            ),
        };
        let clouddriver = Self { server, url, name, user };
        clouddriver
            .by_hand(&format!(
                "CREATE TABLE accounts (id varchar(255) PRIMARY KEY, type varchar(50) NOT NULL, body {body} NOT NULL, \
                 created_at bigint NOT NULL, last_modified_at bigint NOT NULL, last_modified_by varchar(255) NOT NULL); \
                 {grant}"
            ))
            .await;
        clouddriver
    }

    pub(crate) async fn by_hand(&self, sql: &str) {
        must(self.server.execute(&self.name, sql).await);
    }

    pub(crate) async fn put(&self, id: &str, body: &Value) {
        let body = body.to_string().replace('\\', "\\\\").replace('\'', "''");
        // PostgreSQL takes a backslash as it is.
        let body = if self.server.kind() == Kind::MariaDb { body } else { body.replace("\\\\", "\\") };
        // Each write has another time, as Clouddriver's have.
        let now = WRITES.fetch_add(1, Ordering::Relaxed);
        self.by_hand(&format!(
            "INSERT INTO accounts VALUES ('{id}', 'kubernetes', '{body}', {now}, {now}, 'x')"
        ))
        .await;
    }

    /// URL for the user who may read.
    fn reader(&self) -> String {
        let scheme = self.url.split("://").next().expect("a scheme");
        format!("{scheme}://{}@127.0.0.1:{}/{}", self.user, self.server.port(), self.name)
    }

    /// Number of rows, and of bytes in their bodies and times.
    pub(crate) async fn digest(&self) -> [i64; 2] {
        let mut connection = connect(&self.url).await.expect("a connection");
        let count = match self.server.kind() {
            Kind::MariaDb => "SELECT CAST(COUNT(*) AS SIGNED) FROM accounts",
            Kind::PostgreSql => "SELECT COUNT(*) FROM accounts",
        };
        let sum = match self.server.kind() {
            Kind::MariaDb => {
                "SELECT CAST(SUM(CRC32(CONCAT(id, body, last_modified_at))) AS SIGNED) FROM accounts"
            }
            Kind::PostgreSql => {
                "SELECT SUM(hashtext(concat(id, body, last_modified_at)))::bigint FROM accounts"
            }
        };
        [connection.number(count).await.expect("a number"), connection.number(sum).await.expect("a number")]
    }
}

pub(crate) fn accounts_yaml(accounts: &Value) -> String {
    json!({ "kubernetes": { "accounts": accounts } }).to_string()
}

/// A world whose operator reads Clouddriver's table before a YAML file, and the file.
async fn world_beside(clouddriver: &Clouddriver, folder: &tempfile::TempDir) -> World {
    prepare_beside(clouddriver, folder).start().await
}

/// See [`world_beside`].
pub(crate) fn prepare_beside(clouddriver: &Clouddriver, folder: &tempfile::TempDir) -> Prepare {
    let (password, yaml) = (folder.path().join("password"), folder.path().join("clouddriver.yml"));
    std::fs::write(&password, format!("{PASSWORD}\n")).expect("written");
    std::fs::write(&yaml, accounts_yaml(&json!([]))).expect("written");
    World::prepare().setting(
        "kubesvc.clouddriver.sources",
        json!([
            {"name": "sql", "type": "sql", "url": clouddriver.reader(), "passwordFile": password},
            {"name": "yaml", "type": "file", "paths": [yaml]},
        ]),
    )
}

async fn accounts_are_taken_from_the_table_and_the_file(kind: Kind) {
    let (clouddriver, folder) = (Clouddriver::new(kind).await, tempfile::tempdir().expect("a folder"));
    let world = world_beside(&clouddriver, &folder).await;
    let cluster = world.cluster("spinnaker").await;
    let _agent = world.agent("agent-1").start().await;
    let of = |name: &str, kubeconfig: String| json!({"type": "kubernetes", "name": name, "kubeconfigContents": kubeconfig});
    let marked = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "kubesvc/aaaa/bbbb",
        "contexts": [{"name": "kubesvc/aaaa/bbbb", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [], "users": [],
    });
    clouddriver.put("prod", &of("prod", cluster.kubeconfig_in_one_line())).await;
    clouddriver.put("broken", &json!({"name": "broken", "permissions": ["READ"]})).await;
    clouddriver.put("pushed", &of("pushed", marked.to_string())).await;
    let yaml = folder.path().join("clouddriver.yml");
    let list = json!([
        {"name": "prod", "kubeconfigFile": "/shadowed"},
        {"name": "dev", "kubeconfigContents": cluster.kubeconfig_in_one_line(), "namespaces": "default"},
    ]);
    std::fs::write(&yaml, accounts_yaml(&list)).expect("written");
    let before = clouddriver.digest().await;

    // A broken row hides no other account, and stands for its own.
    let answer = world.rest("POST", ACCOUNTS, &json!([{"name": "broken"}])).await;
    assert_eq!(answer.status, 400, "{answer}");
    assert!(answer.text.contains("permissions is not a group of READ and WRITE"), "{answer}");
    // What kubesvc registered itself is no account of a source.
    let answer = world.rest("POST", ACCOUNTS, &json!([{"name": "pushed"}, {"name": "dev"}])).await;
    assert_eq!(answer.status, 400, "{answer}");
    assert!(answer.text.contains("in none of the credentials sources sql, yaml"), "{answer}");
    assert!(world.object("dev").await.is_none(), "nothing is made");

    // The row wins over YAML; of the file comes what only the file has.
    let answer =
        world.rest("POST", ACCOUNTS, &json!([{"name": "prod"}, {"name": "dev", "zoneId": "east"}])).await;
    assert_eq!((answer.status, answer.text.as_str()), (202, "[]"));
    let annotation = async |name: &str| {
        let object = world.object(name).await.expect("made");
        object.metadata.annotations.and_then(|all| all.get("kubesvc.io/source").cloned())
    };
    assert_eq!(
        (annotation("prod").await.as_deref(), annotation("dev").await.as_deref()),
        (Some("sql"), Some("yaml"))
    );
    world.until("prod", State::Inactive).await;
    let answer = world
        .rest(
            "PATCH",
            ACCOUNTS,
            &json!([{"name": "prod", "state": "ACTIVE"}, {"name": "dev", "state": "ACTIVE"}]),
        )
        .await;
    assert_eq!(answer.status, 202, "{answer}");
    for name in ["prod", "dev"] {
        world.until(name, State::Active).await;
    }
    // The same POST twice changes nothing.
    let generation = async || world.object("prod").await.and_then(|object| object.metadata.generation);
    let was = generation().await;
    let answer = world.rest("POST", ACCOUNTS, &json!([{"name": "prod"}])).await;
    assert_eq!(answer.status, 409, "{answer}");
    assert_eq!((&answer.json[0]["name"], &answer.json[0]["state"]), (&json!("prod"), &json!("ACTIVE")));
    assert_eq!(generation().await, was);
    assert_eq!(clouddriver.digest().await, before, "a source is never written");

    // An unreadable source is unknown, never absent.
    clouddriver.by_hand("ALTER TABLE accounts RENAME TO hidden").await;
    let late = json!([{"name": "late", "kubeconfigContents": cluster.kubeconfig_in_one_line()}]);
    std::fs::write(&yaml, accounts_yaml(&late)).expect("written");
    for name in ["late", "nope"] {
        let answer = world.rest("POST", ACCOUNTS, &json!([{ "name": name }])).await;
        assert_eq!(answer.status, 503, "{answer}");
        assert!(answer.text.contains("credentials source sql may have it"), "{answer}");
        assert!(world.object(name).await.is_none());
    }
    clouddriver.by_hand("ALTER TABLE hidden RENAME TO accounts").await;
    std::fs::write(folder.path().join("password"), "pa55-that-is-wrong").expect("written");
    let answer = world.rest("POST", ACCOUNTS, &json!([{"name": "late"}])).await;
    assert!(answer.status == 503 && answer.text.contains("refuses the user"), "{answer}");
    std::fs::write(folder.path().join("password"), PASSWORD).expect("written");
    // The user's rights may be gone with the former name of the table.
    clouddriver
        .by_hand(&match kind {
            Kind::MariaDb => {
                format!("GRANT SELECT ON {}.accounts TO {}@'%'", clouddriver.name, clouddriver.user)
            }
            Kind::PostgreSql => format!("GRANT SELECT ON accounts TO {}", clouddriver.user),
        })
        .await;
    let answer = world.rest("POST", ACCOUNTS, &json!([{"name": "late"}])).await;
    assert_eq!(answer.status, 202, "{answer}");

    // Nothing secret is said.
    for (log, text) in world.all_logs() {
        for secret in [PASSWORD, "pa55-that-is-wrong", cluster.token()] {
            assert!(!text.contains(secret), "{log} contains a secret");
        }
    }
    let metrics = world.get("/metrics").await.text;
    assert!(metrics.contains("kubesvc_credentials_source_accounts{source=\"sql\"} 1"), "{metrics}");
    assert!(metrics.contains("kubesvc_credentials_source_bad_entries{source=\"sql\"} 1"));
}

#[tokio::test(flavor = "multi_thread")]
async fn accounts_are_taken_from_mariadb_before_a_file() {
    accounts_are_taken_from_the_table_and_the_file(Kind::MariaDb).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn accounts_are_taken_from_postgresql_before_a_file() {
    accounts_are_taken_from_the_table_and_the_file(Kind::PostgreSql).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn crash_between_two_writes_leaves_whole_objects_only_and_the_same_post_finishes() {
    let (clouddriver, folder) =
        (Clouddriver::new(Kind::MariaDb).await, tempfile::tempdir().expect("a folder"));
    let world = world_beside(&clouddriver, &folder).await;
    let cluster = world.cluster("spinnaker").await;
    let entry = json!({"kubeconfigContents": cluster.kubeconfig_in_one_line(), "namespaces": ["default"]});
    for point in ["rest-secret:before", "rest-secret:after", "rest-create:before", "rest-create:after"] {
        let name = point.replace(':', "-");
        clouddriver.put(&name, &entry).await;
        world.operator().terminate().await;
        world.operator().launch_with(&[("KUBESVC_CRASH_AT", point)]);
        world.operator().ready().await;
        let body = json!([{ "name": name }]);
        world.try_rest("POST", ACCOUNTS, &body).await.expect_err("the process ended");
        must(world.operator().ended(Duration::from_secs(30)).await);
        if let Some(object) = world.object(&name).await {
            assert_eq!(object.spec.namespaces, ["default"]);
            assert_eq!(object.label("kubesvc.io/origin"), Some("migrated"));
        }
        world.operator().start().await;
        let again = world.rest("POST", ACCOUNTS, &body).await;
        let expected = if point == "rest-create:after" { 409 } else { 202 };
        assert_eq!(again.status, expected, "{point}: {again}");
        let api: Api<Secret> = world.api();
        assert!(api.get_opt(&format!("{name}-kubeconfig")).await.expect("an answer").is_some(), "{point}");
        world.until(&name, State::Inactive).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn secrets_and_config_maps_are_read_as_they_are_now() {
    let world = World::prepare().without_operator().start().await;
    let access = KubeAccess::new(world.control_plane().client().await, "test");
    let object = |name: &str, kind, object: &str, keys: &[&str]| SourceSettings {
        name: name.to_owned(),
        place: SourcePlace::Object {
            kind,
            namespace: None,
            name: object.to_owned(),
            keys: keys.iter().map(|key| (*key).to_owned()).collect(),
            profiles: Vec::new(),
        },
    };
    let settings = [
        object("operator", ObjectKind::Secret, "spin-clouddriver-files", &[]),
        object("map", ObjectKind::ConfigMap, "extra", &["own.yml"]),
    ];
    let vars = BTreeMap::from([("ZONE".to_owned(), "eu".to_owned())]);
    let sources =
        CredentialsSources::new(&settings, vars, Duration::from_secs(30), &access, world.namespace());
    let read = async || {
        let merged = sources.read_now(WITHIN).await;
        let names: Vec<_> =
            merged.accounts().map(|entry| format!("{}@{}", entry.name, entry.source)).collect();
        let gaps: Vec<_> = merged.snapshots().iter().filter_map(|one| one.gap()).collect();
        (names.join(" "), gaps.join("; "))
    };
    let (names, gaps) = read().await;
    assert_eq!(names, "");
    assert!(
        gaps.contains("spin-clouddriver-files does not exist") && gaps.contains("extra does not exist"),
        "{gaps}"
    );

    let (secrets, maps): (Api<Secret>, Api<ConfigMap>) = (world.api(), world.api());
    let metadata = |name: &str| ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
    let list = |names: &[&str]| {
        let list: Vec<_> = names.iter().map(|name| json!({ "name": name })).collect();
        accounts_yaml(&json!(list))
    };
    let data = BTreeMap::from([
        ("clouddriver.yml".to_owned(), ByteString(list(&["a", "${ZONE}-b"]).into_bytes())),
        ("clouddriver-other.yml".to_owned(), ByteString(list(&["other"]).into_bytes())),
        ("gate.yml".to_owned(), ByteString(b"kubernetes: [".to_vec())),
        ("keystore".to_owned(), ByteString(vec![0xff, 0x00])),
    ]);
    let secret =
        Secret { metadata: metadata("spin-clouddriver-files"), data: Some(data), ..Secret::default() };
    secrets.create(&PostParams::default(), &secret).await.expect("created");
    let data =
        BTreeMap::from([("own.yml".to_owned(), list(&["c"])), ("clouddriver.yml".to_owned(), list(&["d"]))]);
    let map = ConfigMap { metadata: metadata("extra"), data: Some(data), ..ConfigMap::default() };
    maps.create(&PostParams::default(), &map).await.expect("created");
    assert_eq!(read().await, ("a@operator c@map eu-b@operator".to_owned(), String::new()));

    let patch = json!({"data": {"own.yml": list(&["a", "e"])}});
    maps.patch("extra", &PatchParams::default(), &Patch::Merge(patch)).await.expect("patched");
    assert_eq!(read().await, ("a@operator e@map eu-b@operator".to_owned(), String::new()));
    // A key that is named and missing may be the one that counts.
    let patch = json!({"data": {"own.yml": null}});
    maps.patch("extra", &PatchParams::default(), &Patch::Merge(patch)).await.expect("patched");
    let (names, gaps) = read().await;
    assert_eq!(names, "a@operator eu-b@operator");
    assert!(gaps.contains("has no key \"own.yml\""), "{gaps}");
    secrets.delete("spin-clouddriver-files", &DeleteParams::default()).await.expect("deleted");
    assert_eq!(read().await.0, "", "not what was read before");
    let latest: Vec<_> = sources.latest().accounts().map(|entry| entry.name.clone()).collect();
    assert_eq!(latest, ["a", "e", "eu-b"], "the last good snapshots stay");
}

#[tokio::test(flavor = "multi_thread")]
async fn object_that_the_operator_may_not_get_is_503_with_the_right_that_is_missing() {
    let source = json!([{"name": "map", "type": "file", "configMap": {"namespace": "kube-system", "name": "clouddriver"}}]);
    let world = World::prepare().setting("kubesvc.clouddriver.sources", source).start().await;
    let answer = world.rest("POST", ACCOUNTS, &json!([{"name": "prod"}])).await;
    assert_eq!(answer.status, 503, "{answer}");
    let expected =
        "the ConfigMap kube-system/clouddriver cannot be read: let the operator get it, with a Role";
    assert!(answer.text.contains(expected), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_account_whose_kubeconfig_only_clouddriver_has_says_so_and_is_active_once_it_has_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let yaml = folder.path().join("clouddriver.yml");
    let account = json!({"name": "of-path", "kubeconfigFile": "/home/spinnaker/.kube/of-path"});
    std::fs::write(&yaml, accounts_yaml(&json!([account]))).expect("written");
    let sources = json!([{"name": "yaml", "type": "file", "paths": [yaml]}]);
    let world = World::prepare().setting("kubesvc.clouddriver.sources", sources).start().await;
    let cluster = world.cluster("target").await;
    let _agent = world.agent("agent-1").zone("east").start().await;
    let added = world.rest("POST", ACCOUNTS, &json!([{"name": "of-path", "zoneId": "east"}])).await;
    assert_eq!(added.status, 202, "{added:?}");
    let account = world.until("of-path", State::Inactive).await;
    let said = condition(&account, "CredentialAvailable").expect("it says so");
    assert_eq!((said.status.as_str(), said.reason.as_str()), ("False", "FileOnClouddriver"));
    assert!(said.message.contains("/home/spinnaker/.kube/of-path"), "{}", said.message);

    let activated = world.rest("PATCH", ACCOUNTS, &json!([{"name": "of-path", "state": "ACTIVE"}])).await;
    assert_eq!(activated.status, 202, "{activated:?}");
    let account = world.until_reason("of-path", State::Failed, "FileOnClouddriver").await;
    assert_eq!(condition(&account, "Stalled").expect("it has one").status, "True");

    let secret = account.spec.kubeconfig.secret_ref.expect("its own Secret").name;
    world.secret(&secret, cluster.kubeconfig().as_bytes(), true).await;
    let account = world.until("of-path", State::Active).await;
    assert_eq!(condition(&account, "CredentialAvailable"), None);
}
