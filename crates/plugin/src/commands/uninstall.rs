//! `kubectl kubesvc uninstall`: what hangs and why, and in which order to remove kubesvc. It removes nothing itself.

mod report;

use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use kube::api::{ApiResource, DynamicObject, ListParams};
use kube::{Api, Resource, ResourceExt as _};

use self::report::{InstalledObjects, Item, LABEL, report};
use crate::account_api::API_SERVICE;
use crate::api_session::{ApiSession, ResourceRequest};
use crate::arguments::{CommandError, ScopeArguments};
use kubesvc_core::registration::{RegistrationReason, SPINNAKER_REGISTERED};
use kubesvc_core::{GROUP, KubesvcAccount, KubesvcAgent};
use kubesvc_runtime::terminal;

pub(crate) const EXAMPLES: &str = "\
Examples:
  kubectl kubesvc uninstall --dry-run

It looks at all namespaces, and removes nothing.";

/// Label of the operator's Deployment, in the chart and in `config/`.
const OPERATOR_LABEL: &str = "app.kubernetes.io/name=kubesvc-operator";
/// Label of the agents' StatefulSets, in the chart and in `config/`.
const AGENT_LABEL: &str = "app.kubernetes.io/name=kubesvc-agent";
/// Annotation of Helm with the name of the release.
const RELEASE_ANNOTATION: &str = "meta.helm.sh/release-name";

/// Arguments of `uninstall`.
#[derive(Debug, clap::Args)]
pub(crate) struct UninstallArguments {
    /// Only report. The command does nothing else without it either.
    #[arg(long)]
    dry_run: bool,
}

/// Runs the command.
pub(crate) async fn run(scope: &ScopeArguments, arguments: &UninstallArguments) -> Result<(), CommandError> {
    let session = ApiSession::open(scope).await?;
    let mut search = Search { session: &session, unknown: Vec::new() };
    let mut definitions = search.list::<CustomResourceDefinition>("").await?;
    definitions.retain(|one| one.name.ends_with(&format!(".{GROUP}")));
    let mut ending_namespaces = search.list::<Namespace>("").await?;
    ending_namespaces.retain(|one| one.is_being_deleted);
    let api_services = search.list::<APIService>("").await?;
    let roles = search.list::<ClusterRole>(LABEL).await?;
    let mut agents = search.list::<KubesvcAgent>("").await?;
    agents.retain(|agent| agent.is_serving);
    let bindings = search.list::<ClusterRoleBinding>(LABEL).await?;
    let found = InstalledObjects {
        definitions,
        accounts: search.list::<KubesvcAccount>("").await?,
        agents,
        operators: search.list::<Deployment>(OPERATOR_LABEL).await?,
        agent_workloads: search.list::<StatefulSet>(AGENT_LABEL).await?,
        gateway: api_services.into_iter().find(|one| one.name == API_SERVICE),
        ending_namespaces: ending_namespaces.into_iter().map(|one| one.name).collect(),
        cluster_roles: roles.len() + bindings.len(),
        leases: search.list::<Lease>(LABEL).await?.into_iter().map(|one| one.namespace).collect(),
        unknown: search.unknown,
    };
    terminal::print(&report(&found).join("\n"))?;
    if !arguments.dry_run {
        terminal::note(
            "Nothing was removed: this command only reports. Run the commands above, in that order, yourself.",
        );
    }
    Ok(())
}

/// Reads what there is. What the user may not read is noted.
struct Search<'a> {
    session: &'a ApiSession,
    unknown: Vec<String>,
}

impl Search<'_> {
    /// Lists objects of all namespaces, page by page. Without the definition there are none.
    async fn list<K: Resource<DynamicType = ()>>(&mut self, labels: &str) -> Result<Vec<Item>, CommandError> {
        let resource = ApiResource::erase::<K>(&());
        let api: Api<DynamicObject> = Api::all_with(self.session.client.clone(), &resource);
        let (objects, ended) = self.session.pages(&api, ListParams::default().labels(labels)).await?;
        match ended {
            None => {}
            Some(kube::Error::Api(status)) if status.code == 404 => return Ok(Vec::new()),
            Some(kube::Error::Api(status)) if matches!(status.code, 403 | 410 | 500 | 503) => {
                self.unknown.push(format!("{}: {} ({})", resource.plural, status.message, status.code));
            }
            Some(error) => {
                let asked = ResourceRequest { verb: "list", resource: &resource.plural, namespace: None };
                return Err(self.session.failed(asked, &error));
            }
        }
        Ok(objects.iter().map(item).collect())
    }
}

fn item(object: &DynamicObject) -> Item {
    let status = &object.data["status"];
    let mut conditions = status["conditions"].as_array().into_iter().flatten();
    // A Deployment without replicas is Available too.
    let is_serving = if object.name_any() == API_SERVICE {
        conditions.any(|one| one["type"] == "Available" && one["status"] == "True")
    } else {
        status["connected"] == true || status["readyReplicas"].as_i64().is_some_and(|ready| ready > 0)
    };
    let is_registered = status["conditions"].as_array().into_iter().flatten().any(|one| {
        one["type"] == SPINNAKER_REGISTERED && one["reason"] != RegistrationReason::NameNotPortable.name()
    });
    let (own, others): (Vec<_>, Vec<_>) =
        object.finalizers().iter().cloned().partition(|one| one == kubesvc_core::FINALIZER);
    Item {
        namespace: object.namespace().unwrap_or_default(),
        name: object.name_any(),
        is_being_deleted: object.metadata.deletion_timestamp.is_some(),
        has_finalizer: !own.is_empty(),
        other_finalizers: others,
        is_serving,
        is_registered,
        release: object.annotations().get(RELEASE_ANNOTATION).cloned(),
    }
}
