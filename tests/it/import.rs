//! `kubectl kubesvc import` on databases of the vendor's, with a real API server, operator and agent.

mod overlaps;

use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{ListParams, PostParams};
use kubesvc_core::{KubesvcAccount, State, owned_secret};
use kubesvc_testkit::databases::{Kind, Server, shared};
use kubesvc_testkit::kubectl::{self, Output};
use kubesvc_testkit::must;
use secrecy::SecretString;
use serde_json::{Value, json};

use crate::world::{World, connect};

const PLUGIN: &str = env!("CARGO_BIN_EXE_kubectl-kubesvc");
const PASSWORD: &str = "pa55-of-the-reader";
/// In files, where the report must not repeat it.
const PLANTED: &str = "pl4nted-s3cret";

/// A database of the vendor's plugin, and a user who may only read its accounts.
struct Vendor {
    server: &'static Server,
    url: String,
    name: String,
    user: String,
}

impl Vendor {
    /// `columns` are those of `kubesvc_accounts`.
    async fn new(kind: Kind, columns: &str) -> Self {
        let server = shared(kind).await;
        let url = server.fresh_database().await;
        let name = url.rsplit('/').next().expect("a name").to_owned();
        let user = format!("i{}", &name[2..]);
        let grant = match kind {
            Kind::MariaDb => format!(
                "CREATE USER {user}@'%' IDENTIFIED BY '{PASSWORD}'; GRANT SELECT ON {name}.kubesvc_accounts TO {user}@'%'"
            ),
            Kind::PostgreSql => {
                format!(
                    "CREATE USER {user} PASSWORD '{PASSWORD}'; GRANT SELECT ON kubesvc_accounts TO {user}"
                )
            }
        };
        let vendor = Self { server, url, name, user };
        vendor
            .by_hand(&format!(
                "CREATE TABLE kubesvc_accounts ({columns}); CREATE TABLE kubesvc_assignments (id bigint PRIMARY KEY, \
                 account_name varchar(255), cd_id varchar(255), agent_id varchar(255), connections int, last_updated \
                 bigint); INSERT INTO kubesvc_assignments VALUES (1, 'prod', 'cd', 'agent', 1, 1700000000000); {grant}"
            ))
            .await;
        vendor
    }

    /// With the columns that are known, and those of the REST view by their probable names.
    async fn usual(kind: Kind) -> Self {
        let (dynamic, definition) = match kind {
            Kind::MariaDb => ("bit(1)", "longtext"),
            Kind::PostgreSql => ("boolean", "jsonb"),
        };
        Self::new(
            kind,
            &format!(
                "name varchar(255) PRIMARY KEY, last_updated bigint, kube_version varchar(64), kube_host varchar(255), \
                 cert_fingerprint varchar(128), max_watch_age_seconds bigint, props text, status varchar(32), \
                 error_message text, failed_count int, zone_id varchar(255), {dynamic_column} {dynamic}, definition \
                 {definition}, connections int",
                dynamic_column = if kind == Kind::MariaDb { "`dynamic`" } else { "dynamic" },
            ),
        )
        .await
    }

    async fn by_hand(&self, sql: &str) {
        must(self.server.execute(&self.name, sql).await);
    }

    async fn row(&self, name: &str, status: &str, dynamic: bool, definition: Option<&Value>) {
        let is_mariadb = self.server.kind() == Kind::MariaDb;
        let literal = |value: &Value| {
            let text = value.to_string().replace('\'', "''");
            format!("'{}'", if is_mariadb { text.replace('\\', "\\\\") } else { text })
        };
        let definition = definition.map_or_else(|| "NULL".to_owned(), literal);
        let flag = if is_mariadb { format!("b'{}'", u8::from(dynamic)) } else { dynamic.to_string() };
        self.by_hand(&format!(
            "INSERT INTO kubesvc_accounts VALUES ('{name}', 1700000000000, 'v1.30', 'https://h', 'AA:BB', 300000, \
             '{{\"permissions\": {{\"READ\": [\"dev\"]}}}}', '{status}', NULL, 0, 'vendor-agent_spinnaker', {flag}, \
             {definition}, 1)"
        ))
        .await;
    }

    fn reader(&self) -> String {
        let scheme = if self.server.kind() == Kind::MariaDb { "mysql" } else { "postgresql" };
        format!("{scheme}://{}@127.0.0.1:{}/{}", self.user, self.server.port(), self.name)
    }

    /// A checksum of every column of every row, and the number of tables.
    async fn digest(&self) -> [i64; 3] {
        let mut connection = connect(&self.url).await.expect("a connection");
        let statements = match self.server.kind() {
            Kind::MariaDb => [
                "SELECT CAST(SUM(CRC32(CONCAT_WS('|', name, last_updated, kube_version, kube_host, cert_fingerprint, \
                 max_watch_age_seconds, props, status, error_message, failed_count, zone_id, HEX(`dynamic`), definition, \
                 connections))) AS SIGNED) FROM kubesvc_accounts",
                "SELECT CAST(SUM(CRC32(CONCAT_WS('|', id, account_name, last_updated))) AS SIGNED) FROM kubesvc_assignments",
                "SELECT CAST(COUNT(*) AS SIGNED) FROM information_schema.tables WHERE table_schema = DATABASE()",
            ],
            Kind::PostgreSql => [
                "SELECT SUM(hashtext(t::text))::bigint FROM kubesvc_accounts t",
                "SELECT SUM(hashtext(t::text))::bigint FROM kubesvc_assignments t",
                "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = 'public'",
            ],
        };
        let mut numbers = [0; 3];
        for (number, statement) in numbers.iter_mut().zip(statements) {
            *number = connection.number(statement).await.expect("a number");
        }
        numbers
    }
}

async fn plugin(world: &World, arguments: &[&str]) -> Output {
    let all = ["-n", world.namespace()].into_iter().chain(arguments.iter().copied());
    must(kubectl::run(Path::new(PLUGIN), &world.control_plane().kubeconfig_path(), all, "").await)
}

/// The name and result of each element of a list of the report.
fn results<'r>(report: &'r Value, list: &str, key: &str) -> Vec<(&'r str, &'r str)> {
    let lines = report[list].as_array().expect("a list");
    lines
        .iter()
        .map(|line| (line[key].as_str().unwrap_or_default(), line["result"].as_str().unwrap_or_default()))
        .collect()
}

async fn an_agents_config_map(world: &World) {
    let yaml = format!(
        "clouddriver: {{grpc: 'hub:9091', auth: {{token: {PLANTED}}}}}\nsecrets.vault.token: {PLANTED}\nkubernetes: {{accounts: [{{name: own, \
         serviceAccount: true}}, {{name: mounted, kubeconfigFile: /kubeconfigfiles/m}}]}}\npprof.enabled: true\n"
    );
    let map = json!({"metadata": {"name": "vendor-config"}, "data": {"kubesvc.yaml": yaml}});
    let map: ConfigMap = serde_json::from_value(map).expect("a ConfigMap");
    world.api::<ConfigMap>().create(&PostParams::default(), &map).await.expect("created");
    let labels = json!({"app": "vendor"});
    let deployment: Deployment = serde_json::from_value(json!({
        "metadata": {"name": "vendor-agent"},
        "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": {
            "containers": [{"name": "a", "image": "a"}],
            "volumes": [{"name": "c", "configMap": {"name": "vendor-config"}}],
        }}},
    }))
    .expect("a Deployment");
    world.api::<Deployment>().create(&PostParams::default(), &deployment).await.expect("created");
}

/// Everything that a run says, and everything that it stored besides Secrets, has none of the secrets.
async fn says_no_secret(world: &World, outputs: &[&Output], settings: &Path, secrets: &[&str]) {
    let accounts = world.api::<KubesvcAccount>().list(&ListParams::default()).await.expect("a list");
    let mut texts: Vec<(String, String)> = world.all_logs();
    texts.push(("objects".to_owned(), serde_json::to_string(&accounts.items).expect("JSON")));
    texts.push(("settings".to_owned(), std::fs::read_to_string(settings).unwrap_or_default()));
    texts.extend(
        outputs.iter().map(|output| ("output".to_owned(), format!("{}{}", output.stdout, output.stderr))),
    );
    let metadata = world.api::<Secret>().list_metadata(&ListParams::default()).await.expect("a list");
    texts.push(("metadata".to_owned(), serde_json::to_string(&metadata.items).expect("JSON")));
    for (place, text) in texts {
        for secret in secrets {
            assert!(!text.contains(secret), "{place} has {secret}: {text}");
        }
    }
}

async fn an_installation_is_imported_and_stays_as_it_is(kind: Kind) {
    let (vendor, world) = (Vendor::usual(kind).await, World::start().await);
    let cluster = world.cluster("spinnaker").await;
    an_agents_config_map(&world).await;
    let encoded = STANDARD.encode(cluster.kubeconfig());
    let good = json!({"type": "kubernetes", "kubeconfigContents": encoded, "namespaces": ["default"]});
    vendor.row("prod", "ACTIVE", true, Some(&json!({"name": "prod", "kubeconfigFile": encoded}))).await;
    vendor.row("Prod 2", "INACTIVE", true, Some(&good)).await;
    vendor.row("there", "ACTIVE", true, Some(&good)).await;
    vendor.row("broken", "FAILED", true, Some(&good)).await;
    vendor.row("going", "DELETING", true, Some(&good)).await;
    vendor.row("own", "ACTIVE", false, None).await;
    let exec = json!({"kubeconfigContents": "apiVersion: v1\nkind: Config\ncurrent-context: x\nclusters: [{name: c, cluster: {server: 'https://c.example'}}]\n\
        users: [{name: u, user: {exec: {command: pl4nted-s3cret}}}]\ncontexts: [{name: x, context: {cluster: c, user: u}}]\n"});
    vendor.row("exec", "ACTIVE", true, Some(&exec)).await;
    world.account("there").zone("elsewhere").inactive().kubeconfig(&cluster.kubeconfig()).create().await;
    world.until("there", State::Inactive).await;
    let there = world.object("there").await.expect("it is there").spec;
    let before = vendor.digest().await;

    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str| folder.path().join(name).display().to_string();
    let (local, base, password, out) =
        (file("clouddriver-local.yml"), file("clouddriver.yml"), file("password"), file("out.yml"));
    std::fs::write(&base, format!("armory.kubesvc: {{cluster: kubernetes, cache.operationWaitMs: 1}}\nsql.connectionPools.default.password: {PLANTED}\n")).expect("written");
    std::fs::write(&local, format!("armory:\n  kubesvc:\n    cache: {{operation-wait-ms: 45000}}\n    loadBalancer: MN\n    nothing: {PLANTED}\n    grpc.server.security: {{enabled: true, privateKeyPassword: {PLANTED}}}\n")).expect("written");
    std::fs::write(&password, format!("{PASSWORD}\n")).expect("written");
    let reader = vendor.reader();
    let arguments = [
        "import",
        "--clouddriver-config",
        &local,
        "--clouddriver-config",
        &base,
        "--agent-config",
        "configmap/vendor-config",
        "--database",
        &reader,
        "--database-password-file",
        &password,
        "--settings-out",
        &out,
    ];
    let with = |more: &[&'static str]| [&arguments[..], more].concat();

    let tried = plugin(&world, &with(&["--dry-run"])).await;
    assert_eq!(tried.code, Some(3), "{tried:?}");
    assert!(tried.stdout.lines().next().is_some_and(|line| line.contains("step 5")), "{}", tried.stdout);
    assert!(tried.stdout.contains("would be created"), "{}", tried.stdout);
    assert!(world.object("prod").await.is_none() && !Path::new(&out).exists(), "a dry run writes nothing");
    assert!(world.api::<Secret>().get_opt("prod-kubeconfig").await.expect("an answer").is_none());

    let done = plugin(&world, &with(&["-o", "json"])).await;
    assert_eq!(done.code, Some(3), "{done:?}");
    let report: Value = serde_json::from_str(&done.stdout).expect("JSON");
    let mut rows = results(&report, "accounts", "name");
    rows.sort_unstable();
    let expected = [
        ("Prod 2", "created"),
        ("broken", "left"),
        ("exec", "refused"),
        ("going", "left"),
        ("own", "left"),
        ("prod", "created"),
        ("there", "exists"),
    ];
    assert_eq!(rows, expected, "{report:#}");
    let settings = results(&report, "settings", "key");
    for line in [
        ("armory.kubesvc.cluster", "taken"),
        ("armory.kubesvc.cache.operation-wait-ms", "taken"),
        ("armory.kubesvc.cache.operationWaitMs", "without-effect"),
        ("armory.kubesvc.loadBalancer", "without-effect"),
        ("armory.kubesvc.nothing", "unknown"),
        ("armory.kubesvc.grpc.server.security.privateKeyPassword", "refused"),
    ] {
        assert!(settings.contains(&line), "{line:?} is not in {settings:?}");
    }
    let agent = &report["agents"][0];
    assert_eq!(agent["zoneIds"], json!([format!("vendor-agent_{}", world.namespace())]), "{agent:#}");
    let names: Vec<_> = agent["accounts"].as_array().into_iter().flatten().map(|one| &one["name"]).collect();
    assert_eq!(names, ["own", "mounted"], "{agent:#}");
    let said = agent["refused"].to_string();
    assert!(said.contains("secrets.vault.token") && said.contains("kubesvc.yaml is not read"), "{said}");
    assert!(agent["ignored"].to_string().contains("pprof.enabled"), "{agent:#}");
    let written = std::fs::read_to_string(&out).expect("it was written");
    assert!(written.contains("\"kubesvc.cache.operation-wait-ms\": 45000"), "{written}");
    assert_eq!(vendor.digest().await, before, "the vendor's tables are as they were");

    // The accounts are whole, INACTIVE, and work with an agent of the vendor's zone.
    let desired = |name: &str| {
        let mut rows = report["accounts"].as_array().into_iter().flatten();
        rows.find(|row| row["name"] == name).map(|row| row["desiredState"].clone()).unwrap_or_default()
    };
    assert_eq!(
        (desired("prod"), desired("Prod 2"), desired("exec")),
        (json!("ACTIVE"), json!("INACTIVE"), Value::Null)
    );
    let account = world.until("prod", State::Inactive).await;
    assert_eq!(account.label("kubesvc.io/origin"), Some("migrated"));
    assert_eq!(account.spec.permissions["READ"], ["dev"]);
    let second = world.account_named("Prod 2").await.expect("it was made");
    assert_eq!(second.spec.namespaces, ["default"]);
    assert_eq!(world.object("there").await.expect("it is there").spec, there, "it is left as it was");
    let _agent = world.agent("agent-1").zone("vendor-agent_spinnaker").start().await;
    must(plugin(&world, &["activate", "prod"]).await.ok());
    world.until("prod", State::Active).await;

    // Again: everything exists, the same file is left, and another one is not overwritten.
    let again = plugin(&world, &with(&["-o", "yaml"])).await;
    assert_eq!(again.code, Some(3), "{again:?}");
    assert!(again.stdout.starts_with("# ") && again.stdout.contains("result: exists"), "{}", again.stdout);
    assert!(!again.stdout.contains("result: created"), "{}", again.stdout);
    std::fs::write(&out, "kubesvc: {}\n").expect("written");
    let other = plugin(&world, &arguments).await;
    assert!(other.code == Some(1) && other.stderr.contains("--settings-out"), "{other:?}");
    assert_eq!(vendor.digest().await, before);

    let secrets = [PASSWORD, PLANTED, cluster.token(), &encoded];
    says_no_secret(&world, &[&tried, &done, &again, &other], Path::new(&out), &secrets).await;

    // A Secret of an import that was interrupted is used again; one of somebody else is left.
    std::fs::write(&out, written).expect("written");
    let stale = SecretString::from("stale".to_owned());
    let stale = owned_secret::wanted(
        (world.namespace(), "prod"),
        "migrated",
        &[(owned_secret::OWN_KEY, &stale)].into(),
        None,
    );
    for (is_ours, expected) in [(true, "created"), (false, "refused")] {
        world.delete("prod").await;
        world.until_gone("prod").await;
        if is_ours {
            world.api::<Secret>().create(&PostParams::default(), &stale).await.expect("created");
        } else {
            world.secret("prod-kubeconfig", b"somebody's", false).await;
        }
        let output = plugin(&world, &with(&["-o", "json"])).await;
        let report: Value = serde_json::from_str(&output.stdout).expect("JSON");
        assert!(results(&report, "accounts", "name").contains(&("prod", expected)), "{report:#}");
        let secret = world.api::<Secret>().get("prod-kubeconfig").await.expect("it is there");
        let kept = secret.data.and_then(|mut data| data.remove("kubeconfig")).map(|bytes| bytes.0);
        let wanted = if is_ours { cluster.kubeconfig().into_bytes() } else { b"somebody's".to_vec() };
        assert_eq!(kept, Some(wanted));
        assert_eq!(world.object("prod").await.is_some(), is_ours);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn installation_on_mariadb_is_imported_and_stays_as_it_is() {
    an_installation_is_imported_and_stays_as_it_is(Kind::MariaDb).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn installation_on_postgresql_is_imported_and_stays_as_it_is() {
    an_installation_is_imported_and_stays_as_it_is(Kind::PostgreSql).await;
}

async fn table_of_another_shape_is_refused_with_its_columns(world: &World, kind: Kind) {
    let vendor = Vendor::new(kind, "name varchar(255) PRIMARY KEY, props text, state varchar(10)").await;
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str| folder.path().join(name).display().to_string();
    let (config, password, out) = (file("clouddriver.yml"), file("password"), file("out.yml"));
    std::fs::write(&config, "kubesvc.cluster: local\n").expect("written");
    let reader = vendor.reader();
    let run = async |text: &str, url: &str| {
        std::fs::write(&password, text).expect("written");
        let arguments = [
            "import",
            "--clouddriver-config",
            &config,
            "--database",
            url,
            "--database-password-file",
            &password,
            "--settings-out",
            &out,
        ];
        let output = plugin(world, &arguments).await;
        assert!(!Path::new(&out).exists() && output.stdout.is_empty(), "{output:?}");
        assert!(!output.stderr.contains(PASSWORD) && !output.stderr.contains(PLANTED), "{output:?}");
        output
    };
    let refused = run(PASSWORD, &reader).await;
    assert_eq!(refused.code, Some(3), "{refused:?}");
    for part in ["lacks status, definition, dynamic", "its columns are name, props, state"] {
        assert!(refused.stderr.contains(part), "{refused:?}");
    }
    let wrong = run(PLANTED, &reader).await;
    assert!(wrong.code == Some(4) && wrong.stderr.contains("refuses the user"), "{wrong:?}");
    let with_password = reader.replace('@', &format!(":{PLANTED}@"));
    let usage = run(PASSWORD, &with_password).await;
    assert!(usage.code == Some(2) && usage.stderr.contains("--database-password-file"), "{usage:?}");
    vendor.by_hand("DROP TABLE kubesvc_accounts").await;
    let none = run(PASSWORD, &reader).await;
    assert!(matches!(none.code, Some(3 | 4)), "{none:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn tables_of_another_shape_are_refused_with_their_columns() {
    let world = World::prepare().without_operator().start().await;
    for kind in [Kind::MariaDb, Kind::PostgreSql] {
        table_of_another_shape_is_refused_with_its_columns(&world, kind).await;
    }
}
