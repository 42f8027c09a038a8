//! One run of `credential create`: looks at both clusters, has them try everything, then makes and stores the credential.

use k8s_openapi::api::authentication::v1::TokenRequestStatus;
use k8s_openapi::api::core::v1::Namespace;
use kube::Api;
use kube::api::{DynamicObject, ListParams};
use kube::config::Cluster;
use serde_json::Value;

use super::manifests::{
    self, CLUSTER_ANNOTATION, CREDENTIAL_LABEL, DEFAULT_HOME, Grant, Kind, Manifest, SecretPlace,
};
use super::write::{Change, change, read, write};
use super::{CreateArguments, ObjectFormat};
use crate::api_session::{ApiRequest, ApiSession};
use crate::arguments::CommandError;
use crate::service_account_token::TokenOrder;
use kubesvc_core::KubesvcAccount;
use kubesvc_core::spec::DEFAULT_SECRET_KEY;
use kubesvc_runtime::terminal::{self, format};

/// Difference between the lifetime asked for and the one given that is not worth a word, in seconds.
const TOLERATED_SECONDS: i64 = 60;
/// Stands for the token while everything else is checked.
const NO_TOKEN: &str = "none";

/// One run of the command.
pub(super) struct Creation<'a> {
    pub(super) arguments: &'a CreateArguments,
    pub(super) operator: ApiSession,
    pub(super) target: ApiSession,
    /// Cluster entry of the target's kubeconfig.
    pub(super) entry: Cluster,
    /// The account of this name, if there is one.
    pub(super) account: Option<KubesvcAccount>,
}

/// An object, and what is to be done about it.
type Step = (Manifest, Change);

impl Creation<'_> {
    pub(super) async fn run(&self) -> Result<(), CommandError> {
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
        let request = TokenOrder {
            namespace: grant.home,
            service_account: &grant.name(),
            lifetime: self.arguments.duration,
            audiences: Vec::new(),
        };
        request.make(&self.target).await.map_err(in_target)
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
