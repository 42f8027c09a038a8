//! What the benchmarks run in: an API server that is both the operator's and the accounts' cluster, and databases with
//! commits that are on disk.

use std::time::Duration;

use crate::{
    cluster::Workloads,
    objects::{self, Form},
    operator::{Database, Site},
};
use kubesvc_testkit::{
    controlplane::ControlPlane,
    databases::{self, Kind, Server},
    namespace::TestNamespace,
};

/// How long an agent may be away before its accounts look for another one.
pub(crate) const GRACE: Duration = Duration::from_secs(120);

/// The servers of all benchmarks.
pub(crate) struct World {
    pub(crate) plane: ControlPlane,
    mariadb: Server,
    postgresql: Server,
    /// Namespace of the Deployments of a large cluster, once they are there.
    large: tokio::sync::OnceCell<TestNamespace>,
    /// A folder on the same disk as the servers' data, for SQLite.
    folder: kubesvc_testkit::folder::Folder,
}

impl World {
    pub(crate) async fn start() -> Result<Self, String> {
        Ok(Self {
            plane: crate::control_plane().await?,
            mariadb: databases::own_durable(Kind::MariaDb).await?,
            postgresql: databases::own_durable(Kind::PostgreSql).await?,
            large: tokio::sync::OnceCell::new(),
            folder: kubesvc_testkit::folder::Folder::new("bench-sqlite")?,
        })
    }

    /// The server of a kind.
    pub(crate) fn server(&self, kind: Kind) -> &Server {
        match kind {
            Kind::MariaDb => &self.mariadb,
            Kind::PostgreSql => &self.postgresql,
        }
    }

    /// URL of an empty database.
    pub(crate) async fn fresh(&self, database: Database) -> String {
        match database {
            Database::Sqlite => {
                let file = format!("bare-{}.db", ulid::Ulid::generate());
                format!("sqlite://{}", self.folder.file(&file).display())
            }
            Database::Server(kind) => self.server(kind).fresh_database().await,
        }
    }

    /// A namespace, and an operator's files for it, with this `kubesvc.cache` (YAML).
    pub(crate) async fn site(
        &self,
        database: Database,
        cache: &str,
    ) -> Result<(TestNamespace, Site), String> {
        let namespace = self.plane.namespace().await;
        let site = match database {
            Database::Sqlite => Site::new(&self.plane, namespace.name(), GRACE).await?,
            Database::Server(kind) => {
                Site::on_server(self.server(kind), &self.plane, namespace.name(), GRACE).await?
            }
        };
        Ok((namespace, site.caching(GRACE, cache)?))
    }

    /// Deployments of a large cluster, made at the first call.
    pub(crate) async fn large(&self, count: usize) -> Result<Workloads, String> {
        let client = self.plane.client().await;
        let made = self.large.get_or_try_init(|| async {
            let namespace = self.plane.namespace().await;
            Workloads::deployments(&client, namespace.name()).create(count).await?;
            Ok::<_, String>(namespace)
        });
        Ok(Workloads::deployments(&client, made.await?.name()))
    }

    /// Creates accounts whose cluster is the operator's own.
    pub(crate) async fn accounts(&self, namespace: &TestNamespace, count: usize) -> Result<(), String> {
        self.accounts_of(&self.plane, namespace, count).await
    }

    /// Creates accounts of a cluster.
    pub(crate) async fn accounts_of(
        &self,
        cluster: &ControlPlane,
        namespace: &TestNamespace,
        count: usize,
    ) -> Result<(), String> {
        let (client, kubeconfig) = (self.plane.client().await, cluster.admin_kubeconfig());
        objects::create(&client, namespace.name(), count, Form::Applied, &kubeconfig).await
    }
}
