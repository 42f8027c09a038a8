//! `kubectl kubesvc adopt`: asks an installation to serve accounts that another one serves.

use k8s_openapi::api::core::v1::Service;

use super::annotate;
use crate::api_session::{ApiSession, ResourceRequest};
use crate::arguments::{CommandError, ScopeArguments, Targets};
use crate::operator_client::SERVICE;
use kubesvc_core::OPERATOR_ANNOTATION;

pub(crate) const EXAMPLES: &str = "\
Examples:
  kubectl kubesvc adopt production
  kubectl kubesvc adopt --all -n team-a --operator-namespace kubesvc

The installation that served the accounts leaves them alone from then on; its agents drop them.";

/// Arguments of `adopt`.
#[derive(Debug, clap::Args)]
pub(crate) struct AdoptArguments {
    #[command(flatten)]
    targets: Targets,
    /// Namespace of the installation that is to serve them. Default: --namespace, then the namespace of the context.
    #[arg(long, value_name = "NS", env = "KUBESVC_OPERATOR_NAMESPACE")]
    operator_namespace: Option<String>,
}

/// Runs the command.
pub(crate) async fn run(scope: &ScopeArguments, arguments: &AdoptArguments) -> Result<(), CommandError> {
    arguments.targets.check(scope)?;
    let session = ApiSession::open(scope).await?;
    let operator = arguments.operator_namespace.as_ref().unwrap_or(&session.namespace);
    match session.try_ask(session.api::<Service>(operator).get_opt(SERVICE)).await? {
        Ok(Some(_)) => {}
        Ok(None) => {
            return Err(CommandError::Failed(format!(
                "no operator is installed in namespace {operator} (it has no Service {SERVICE}); name its namespace with --operator-namespace"
            )));
        }
        // Who may not read Services says which namespace it is.
        Err(kube::Error::Api(status)) if status.code == 403 && arguments.operator_namespace.is_some() => {}
        Err(error) => {
            let asked = ResourceRequest { verb: "get", resource: "services", namespace: Some(operator) };
            return Err(CommandError::Failed(asked.explain(&session.server, &error)));
        }
    }
    let outcome = format!("is to be served by the installation in namespace {operator}");
    let ask = (OPERATOR_ANNOTATION, || operator.clone());
    annotate::run(&session, &arguments.targets, ask, &outcome).await
}
