//! Imports that are stopped or killed at a write, while others create the same account.

use kubesvc_runtime::crash_points::POINTS;
use kubesvc_testkit::kubectl::Call;
use kubesvc_testkit::wait::eventually;

use super::*;
use crate::world::MAX_WAIT;

/// Imports of a vendor's rows that meet crash points.
struct Importing {
    vendor: Vendor,
    world: World,
    folder: tempfile::TempDir,
}

impl Importing {
    async fn new() -> Self {
        let (vendor, world) = (Vendor::usual(Kind::MariaDb).await, World::start().await);
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("clouddriver.yml"), "kubesvc.cluster: local\n").expect("written");
        std::fs::write(folder.path().join("password"), PASSWORD).expect("written");
        Self { vendor, world, folder }
    }

    async fn row(&self, name: &str, kubeconfig: &str) {
        let definition = json!({"kubeconfigContents": STANDARD.encode(kubeconfig)});
        self.vendor.row(name, "ACTIVE", true, Some(&definition)).await;
    }

    fn start(&self, environment: &[(&str, &str)]) -> Call {
        let file = |name: &str| self.folder.path().join(name).display().to_string();
        let (config, password, out) = (file("clouddriver.yml"), file("password"), file("out.yml"));
        let (reader, kubeconfig) = (self.vendor.reader(), self.world.control_plane().kubeconfig_path());
        let arguments = [
            "-n",
            self.world.namespace(),
            "import",
            "--clouddriver-config",
            &config,
            "--database",
            &reader,
            "--database-password-file",
            &password,
            "--settings-out",
            &out,
            "-o",
            "json",
        ];
        must(Call::start(Path::new(PLUGIN), &kubeconfig, arguments, environment, ""))
    }

    /// What the report of a run says of a row.
    fn result(output: &Output, name: &str) -> String {
        let report: Value = serde_json::from_str(&output.stdout).expect("a report");
        let rows = results(&report, "accounts", "name");
        rows.iter().find(|(row, _)| *row == name).map(|(_, result)| (*result).to_owned()).unwrap_or_default()
    }

    async fn stored(&self, name: &str) -> Option<String> {
        let secret =
            self.world.api::<Secret>().get_opt(&format!("{name}-kubeconfig")).await.expect("an answer")?;
        let kubeconfig = secret.data.and_then(|mut data| data.remove(owned_secret::OWN_KEY))?;
        Some(String::from_utf8(kubeconfig.0).expect("text"))
    }
}

/// Writes of an import, in their order.
const WRITES: [&str; 4] =
    ["import-secret:before", "import-secret:after", "import-create:before", "import-create:after"];

#[test]
fn every_crash_point_of_an_import_is_tried() {
    let ours: Vec<_> = POINTS.iter().copied().filter(|point| point.starts_with("import-")).collect();
    assert_eq!(ours, WRITES);
}

#[tokio::test(flavor = "multi_thread")]
async fn credential_of_an_account_that_is_created_during_an_import_stays() {
    let importing = Importing::new().await;
    let world = &importing.world;
    let [vendors, callers] = [world.cluster("vendors").await, world.cluster("callers").await];
    for (point, name) in WRITES.iter().zip(["before-secret", "after-secret", "before-object"]) {
        importing.row(name, &vendors.kubeconfig()).await;
        let import = importing.start(&[("KUBESVC_STOP_AT", point)]);
        eventually(&format!("the import is stopped at {point}"), MAX_WAIT, async || {
            import.process().check_running()?;
            if import.process().is_stopped() { Ok(()) } else { Err("it runs".to_owned()) }
        })
        .await;
        let body = json!({"name": name, "kubeconfigContents": callers.kubeconfig(), "zoneId": "east"});
        let created = world.rest("POST", "/armory/accounts/dynamic", &body).await;
        assert_eq!(created.status, 202, "{point}: {created}");
        let before = world.object(name).await.expect("it was created");
        import.process().resume();
        let output = must(import.output().await);
        assert_eq!(Importing::result(&output, name), "exists", "{point}: {output:?}");
        assert_eq!(importing.stored(name).await, Some(callers.kubeconfig()), "{point}");
        let after = world.object(name).await.expect("it is still there");
        assert_eq!((after.uid(), &after.spec), (before.uid(), &before.spec), "{point}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn import_that_was_killed_at_any_write_is_completed_by_the_next() {
    let importing = Importing::new().await;
    let cluster = importing.world.cluster("vendors").await;
    for (point, expected) in WRITES.iter().zip(["created", "created", "created", "exists"]) {
        let name = point.replace(':', "-");
        importing.row(&name, &cluster.kubeconfig()).await;
        let killed = must(importing.start(&[("KUBESVC_CRASH_AT", point)]).output().await);
        assert_eq!(killed.code, None, "{point}: {killed:?}");
        let next = must(importing.start(&[]).output().await);
        assert_eq!((next.code, Importing::result(&next, &name)), (Some(0), expected.to_owned()), "{next:?}");
        assert_eq!(importing.stored(&name).await, Some(cluster.kubeconfig()), "{point}");
        importing.world.until(&name, State::Inactive).await;
    }
}
