//! `kubectl kubesvc credential create`: makes a service account with a token in a target cluster, and stores the
//! kubeconfig made of it as the Secret of an account. Running it again makes a new token.

mod manifests;
#[cfg(test)]
mod tests;
mod write;

use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use k8s_openapi::ByteString;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec, TokenRequestStatus};
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use kube::Api;
use kube::api::{DynamicObject, ListParams, PostParams};
use kube::config::Cluster;
use serde_json::Value;

use self::manifests::{
    CLUSTER_ANNOTATION, CREDENTIAL_LABEL, DEFAULT_HOME, Grant, Kind, Manifest, Preset, SecretPlace,
};
use self::write::{Change, change, read, write};
use crate::api_session::{self, ApiRequest, ApiSession};
use crate::arguments::{CommandError, ScopeArguments, duration};
use crate::resources::bare;
use kubesvc_core::spec::DEFAULT_SECRET_KEY;
use kubesvc_core::{KubesvcAccount, object_names};
use kubesvc_runtime::terminal::{self, format};

pub(crate) const EXAMPLES: &str = "\
Examples:
  kubectl kubesvc credential create production --target-context production-admin --preset deploy";

const CREATE_EXAMPLES: &str = "\
Examples:
  kubectl kubesvc credential create production --target-context production-admin --preset deploy
  kubectl kubesvc credential create shop --target-context eu --preset view --namespaces shop,shop-jobs -n spinnaker
  kubectl kubesvc credential create production --target-context production-admin --preset deploy --dry-run -o yaml

Run it again before the token expires: the account stays ACTIVE. --context and --kubeconfig select the operator's cluster.";

/// Shortest token lifetime that API servers accept.
const MIN_DURATION: Duration = Duration::from_secs(600);
/// Difference between the lifetime asked for and the one given that is not worth a word, in seconds.
const TOLERATED_SECONDS: i64 = 60;
/// Stands for the token while everything else is checked.
const NO_TOKEN: &str = "none";

/// Arguments of `credential`.
#[derive(Debug, clap::Args)]
pub(crate) struct CredentialArguments {
    #[command(subcommand)]
    command: CredentialCommand,
}

#[derive(Debug, clap::Subcommand)]
enum CredentialCommand {
    /// Make, or renew, an account's credential in its cluster: service account, role, binding, token, kubeconfig, Secret.
    #[command(after_help = CREATE_EXAMPLES)]
    Create(CreateArguments),
}

#[derive(Debug, clap::Args)]
struct CreateArguments {
    /// Name of the account, which need not exist yet, and of the Secret unless the account names another.
    #[arg(value_name = "CLUSTER")]
    cluster: String,
    /// Rights: see workloads, or see and deploy them. The same as `rbac.preset` of the agent's chart.
    #[arg(long, value_enum)]
    preset: Preset,
    /// Limit the rights to these namespaces. Default: all.
    #[arg(long, value_name = "NS,…", value_delimiter = ',')]
    namespaces: Vec<String>,
    /// Context of the target cluster, with which you administer it.
    #[arg(long, value_name = "NAME", required_unless_present = "target_kubeconfig")]
    target_context: Option<String>,
    /// Kubeconfig of the target cluster. Default: the one that the operator's cluster is read from.
    #[arg(long, value_name = "FILE")]
    target_kubeconfig: Option<PathBuf>,
    /// Namespace of the service account; made if it is not there. Default: the first of --namespaces, else kubesvc.
    #[arg(long, value_name = "NS")]
    target_namespace: Option<String>,
    /// URL at which agents reach the target's API server, if it differs from yours.
    #[arg(long, value_name = "URL")]
    server: Option<String>,
    /// Lifetime of the token; the API server may give a shorter one.
    #[arg(long, value_name = "TIME", default_value = "8760h", value_parser = duration)]
    duration: Duration,
    /// The target is the operator's own cluster, on purpose.
    #[arg(long)]
    same_cluster: bool,
    /// Have both API servers check everything, and change nothing. No token is made.
    #[arg(long)]
    dry_run: bool,
    /// Print the objects instead of one line for each, the Secret with its kubeconfig included.
    #[arg(short, long, value_enum, value_name = "FORMAT")]
    output: Option<ObjectFormat>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ObjectFormat {
    Json,
    Yaml,
}

/// Runs the command.
pub(crate) async fn run(scope: &ScopeArguments, arguments: &CredentialArguments) -> Result<(), CommandError> {
    let CredentialCommand::Create(arguments) = &arguments.command;
    check(scope, arguments)?;
    let operator = ApiSession::open(scope).await?;
    let target_scope = ScopeArguments {
        context: arguments.target_context.clone(),
        kubeconfig: arguments.target_kubeconfig.clone().or_else(|| scope.kubeconfig.clone()),
        ..ScopeArguments::default()
    };
    let target = ApiSession::open(&target_scope).await?;
    let mut entry = api_session::cluster_entry(&target_scope)?;
    inline_authority(&mut entry)?;
    if let Some(server) = &arguments.server {
        entry.server = Some(server.clone());
    }
    let account = match operator.find_account(&arguments.cluster).await? {
        Some(item) => Some(item.account),
        None => None,
    };
    let creation = Creation { arguments, operator, target, entry, account };
    creation.run().await
}

fn check(scope: &ScopeArguments, arguments: &CreateArguments) -> Result<(), CommandError> {
    let usage = |reason: String| Err(CommandError::Usage(reason));
    let CreateArguments { cluster, namespaces, .. } = arguments;
    if scope.all_namespaces {
        return usage("--all-namespaces has no meaning here; --namespace is the account's".to_owned());
    }
    if bare(cluster) != cluster
        || !object_names::is_dns_subdomain(cluster)
        || !object_names::is_label_value(cluster)
    {
        return usage(format!(
            "{cluster:?} is no name for a credential: use at most 63 small letters, digits, dashes and dots"
        ));
    }
    let named = namespaces.iter().chain(&arguments.target_namespace);
    if let Some(namespace) = named.into_iter().find(|name| !object_names::is_dns_label(name)) {
        return usage(format!("{namespace:?} is no name of a namespace"));
    }
    if arguments.duration < MIN_DURATION || i64::try_from(arguments.duration.as_secs()).is_err() {
        return usage("--duration is at least 10m".to_owned());
    }
    Ok(())
}

/// Replaces the path of the certificate authority by its content, since only that can travel.
fn inline_authority(entry: &mut Cluster) -> Result<(), CommandError> {
    let Some(path) = entry.certificate_authority.take() else { return Ok(()) };
    if entry.certificate_authority_data.is_none() {
        let bytes = std::fs::read(&path)
            .map_err(|error| format!("certificate-authority {path} of the target's kubeconfig: {error}"))?;
        let encoded = serde_json::to_value(ByteString(bytes)).map_err(|error| format!("{path}: {error}"))?;
        entry.certificate_authority_data = encoded.as_str().map(str::to_owned);
    }
    Ok(())
}

/// One run of the command.
struct Creation<'a> {
    arguments: &'a CreateArguments,
    operator: ApiSession,
    target: ApiSession,
    /// Cluster entry of the target's kubeconfig.
    entry: Cluster,
    /// The account of this name, if there is one.
    account: Option<KubesvcAccount>,
}

/// An object, and what is to be done about it.
type Step = (Manifest, Change);

impl Creation<'_> {
    async fn run(&self) -> Result<(), CommandError> {
        // What needs no token is checked before anything is made.
        self.kubeconfig(NO_TOKEN)?;
        let cluster_uid = self.check_clusters().await?;
        let secret = |expires: Option<&str>, kubeconfig: Option<&[u8]>| {
            manifests::secret(
                &self.place(),
                &self.arguments.cluster,
                cluster_uid.as_deref(),
                expires,
                kubeconfig,
            )
        };
        let present = read(&self.operator, &secret(None, None)).await?;
        self.check_secret(present.as_ref(), cluster_uid.as_deref())?;
        let steps = self.steps().await?;
        let mut kept = secret(None, Some(NO_TOKEN.as_bytes()));
        let mut kept_change = change(present.as_ref(), &kept)?;
        self.try_out(&steps, &kept, &kept_change).await?;
        if self.arguments.dry_run {
            kept = secret(None, None);
        } else {
            for (manifest, change) in &steps {
                write(&self.target, manifest, change, false).await.map_err(in_target)?;
            }
            let token = self.token().await?;
            let kubeconfig = self.kubeconfig(&token.token)?;
            kept = secret(Some(&token.expiration_timestamp.0.to_string()), Some(&kubeconfig));
            kept_change = change(present.as_ref(), &kept)?;
            write(&self.operator, &kept, &kept_change, false).await?;
            self.tell_lifetime(&token);
        }
        self.show(steps, (kept, kept_change))?;
        self.tell_next_steps().await;
        Ok(())
    }

    fn grant(&self) -> Grant<'_> {
        let CreateArguments { cluster, preset, namespaces, target_namespace, .. } = self.arguments;
        let home = target_namespace.as_ref().or(namespaces.first()).map_or(DEFAULT_HOME, String::as_str);
        Grant { cluster, preset: *preset, namespaces, home }
    }

    /// The Secret that the account names, else one with the name of the credential.
    fn place(&self) -> SecretPlace {
        let named = self.account.as_ref().and_then(|account| account.spec.kubeconfig.secret_ref.as_ref());
        SecretPlace {
            namespace: self.operator.namespace.clone(),
            name: named.map_or_else(|| self.arguments.cluster.clone(), |secret| secret.name.clone()),
            key: named.map(|secret| secret.key().to_owned()).unwrap_or_else(|| DEFAULT_SECRET_KEY.to_owned()),
        }
    }

    fn kubeconfig(&self, token: &str) -> Result<Vec<u8>, CommandError> {
        let context = self.account.as_ref().and_then(|account| account.spec.context.as_deref());
        let context = context.unwrap_or(&self.arguments.cluster);
        let namespace = self.arguments.namespaces.first().map(String::as_str);
        manifests::kubeconfig(&self.entry, context, namespace, token).map_err(|error| {
            CommandError::Failed(format!(
                "an account cannot use the cluster entry of the target's kubeconfig: {error}; nothing was changed"
            ))
        })
    }

    /// Refuses the operator's own cluster unless it is asked for, and returns the uid of the target.
    async fn check_clusters(&self) -> Result<Option<String>, CommandError> {
        let target = uid(&self.target).await.map_err(in_target)?;
        let operators = uid(&self.operator).await?;
        let same_uid = target.is_some() && target == operators;
        if (same_uid || self.target.server == self.operator.server) && !self.arguments.same_cluster {
            return Err(CommandError::Failed(format!(
                "{} is the operator's own cluster: check --target-context; if it is meant, repeat with --same-cluster, or \
                 use an agent in mode agent, which needs no credential",
                self.target.server
            )));
        }
        Ok(target)
    }

    /// Refuses to replace the credential of one cluster by that of another.
    fn check_secret(&self, present: Option<&DynamicObject>, uid: Option<&str>) -> Result<(), CommandError> {
        let annotations = present.and_then(|secret| secret.metadata.annotations.as_ref());
        let stored = annotations.and_then(|all| all.get(CLUSTER_ANNOTATION)).map(String::as_str);
        match (stored, uid) {
            (Some(stored), Some(uid)) if stored != uid => Err(CommandError::Failed(format!(
                "Secret {} holds the credential of another cluster ({stored}, and this one is {uid}): check \
                 --target-context, or delete the Secret",
                self.place().name
            ))),
            _ => Ok(()),
        }
    }

    /// What is to be done in the target cluster.
    async fn steps(&self) -> Result<Vec<Step>, CommandError> {
        let grant = self.grant();
        let home = (!grant.namespaces.iter().any(|namespace| namespace == grant.home))
            .then(|| grant.home_manifest());
        let mut steps = Vec::new();
        for manifest in home.into_iter().chain(grant.manifests()) {
            let present = read(&self.target, &manifest).await.map_err(in_target)?;
            let change = change(present.as_ref(), &manifest)?;
            steps.push((manifest, change));
        }
        Ok(steps)
    }

    /// Has the API servers check every write that does not depend on another one.
    async fn try_out(
        &self,
        steps: &[Step],
        secret: &Manifest,
        secret_change: &Change,
    ) -> Result<(), CommandError> {
        write(&self.operator, secret, secret_change, true).await?;
        let makes =
            |kind| steps.iter().any(|(manifest, change)| manifest.kind == kind && *change == Change::Create);
        for (manifest, change) in steps {
            let waits = manifest.kind.is_binding()
                || (manifest.kind == Kind::ServiceAccount && makes(Kind::Namespace));
            if !waits {
                write(&self.target, manifest, change, true).await.map_err(in_target)?;
            }
        }
        Ok(())
    }

    async fn token(&self) -> Result<TokenRequestStatus, CommandError> {
        let grant = self.grant();
        let seconds = i64::try_from(self.arguments.duration.as_secs()).unwrap_or(i64::MAX);
        let request = TokenRequest {
            spec: TokenRequestSpec { expiration_seconds: Some(seconds), ..TokenRequestSpec::default() },
            ..TokenRequest::default()
        };
        let asked =
            ApiRequest { verb: "create", resource: "serviceaccounts/token", namespace: Some(grant.home) };
        let api: Api<ServiceAccount> = self.target.api(grant.home);
        let (name, parameters) = (grant.name(), PostParams::default());
        let answer = api.create_token_request(&name, &parameters, &request);
        let answer = self.target.ask(asked, answer).await.map_err(in_target)?;
        answer.status.ok_or_else(|| CommandError::Failed(format!("{} gave no token", self.target.server)))
    }

    fn show(&self, steps: Vec<Step>, secret: Step) -> Result<(), CommandError> {
        let all = steps.into_iter().chain([secret]);
        let text = match self.arguments.output {
            None => {
                let dry = if self.arguments.dry_run { " (dry run)" } else { "" };
                let line = |(manifest, change): Step| format!("{} {}{dry}", manifest.shown(), change.word());
                all.map(line).collect::<Vec<_>>().join("\n")
            }
            Some(output) => {
                // A namespace that is there already is no part of the credential.
                let shown = all.filter(|(manifest, change)| {
                    manifest.kind != Kind::Namespace || *change == Change::Create
                });
                let objects: Vec<Value> = shown.map(|(manifest, _)| manifest.object).collect();
                let list = format::list(&objects);
                match output {
                    ObjectFormat::Json => format::json(&list)?,
                    ObjectFormat::Yaml => format::yaml(&list)?,
                }
            }
        };
        Ok(terminal::print(&text)?)
    }

    fn tell_lifetime(&self, token: &TokenRequestStatus) {
        let expires = token.expiration_timestamp.0;
        let given = expires.as_second() - jiff::Timestamp::now().as_second();
        let asked = i64::try_from(self.arguments.duration.as_secs()).unwrap_or(i64::MAX);
        let shorter = if given < asked - TOLERATED_SECONDS {
            " The API server gives no longer lifetime; docs/credentials.md says how to renew it by itself."
        } else {
            ""
        };
        terminal::note(&format!("The token expires at {expires}: run this again before.{shorter}"));
    }

    /// Notes what the command leaves to others: the account, and rights of an earlier run.
    async fn tell_next_steps(&self) {
        let (place, cluster) = (self.place(), &self.arguments.cluster);
        match &self.account {
            None => terminal::note(&format!(
                "There is no account {cluster} in namespace {} yet: create one with spec.kubeconfig.secretRef.name: {}",
                place.namespace, place.name
            )),
            Some(account) if account.spec.kubeconfig.secret_ref.is_none() => terminal::note(&format!(
                "Account {cluster} reads another kubeconfig: set spec.kubeconfig to secretRef: {{name: {}}}",
                place.name
            )),
            Some(_) => {}
        }
        for binding in self.left_bindings().await {
            terminal::note(&format!(
                "{binding} in the target cluster still grants the rights of an earlier run; delete it if you do not want them"
            ));
        }
    }

    /// Bindings of this credential that this run does not have, as far as the user may list them.
    async fn left_bindings(&self) -> Vec<String> {
        let wanted = self.grant().manifests();
        let mut left = Vec::new();
        for kind in [Kind::ClusterRoleBinding, Kind::RoleBinding] {
            let api: Api<DynamicObject> = Api::all_with(self.target.client.clone(), &kind.resource());
            let parameters =
                ListParams::default().labels(&format!("{CREDENTIAL_LABEL}={}", self.arguments.cluster));
            let Ok(Ok(found)) = self.target.try_ask(api.list(&parameters)).await else { continue };
            for object in found.items {
                let (name, namespace) = (object.metadata.name.unwrap_or_default(), object.metadata.namespace);
                let is_wanted = wanted
                    .iter()
                    .any(|one| one.kind == kind && one.name == name && one.namespace == namespace);
                if !is_wanted {
                    let place = namespace.map(|namespace| format!(" of namespace {namespace}"));
                    left.push(format!("{} {name}{}", kind.resource().kind, place.unwrap_or_default()));
                }
            }
        }
        left
    }
}

/// Uid of `kube-system`, which tells clusters apart; `None` if the user may not read it.
async fn uid(session: &ApiSession) -> Result<Option<String>, CommandError> {
    let api: Api<Namespace> = Api::all(session.client.clone());
    match session.try_ask(api.get_metadata("kube-system")).await? {
        Ok(namespace) => Ok(namespace.metadata.uid),
        Err(kube::Error::Api(status)) if matches!(status.code, 403 | 404) => Ok(None),
        Err(error) => {
            let asked = ApiRequest { verb: "get", resource: "namespaces", namespace: None };
            Err(CommandError::Failed(asked.explain(&session.server, &error)))
        }
    }
}

/// Says that an error is about the target cluster, since the command talks to two.
fn in_target(error: CommandError) -> CommandError {
    match error {
        CommandError::Failed(reason) => CommandError::Failed(format!("target cluster: {reason}")),
        other => other,
    }
}
