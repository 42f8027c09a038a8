//! What Argo CD, Flux and Clouddriver read in place of a kubeconfig.

use kubesvc_runtime::terminal::{format, text};
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Map, Value, json};

use super::credential::KubeconfigUser;
use super::{AddressArguments, OutputFormat};
use crate::account_kubeconfig::{Door, NamedAccount};
use crate::arguments::CommandError;
use crate::resources::AccountObject;

/// Fields of an account's spec that Clouddriver has under the same names.
const CLOUDDRIVER_FIELDS: [&str; 10] = [
    "namespaces",
    "omitNamespaces",
    "kinds",
    "omitKinds",
    "customResources",
    "onlySpinnakerManaged",
    "permissions",
    "environment",
    "accountType",
    "metrics",
];

/// What the output is made of.
pub(super) struct About<'a> {
    pub(super) credential: &'a KubeconfigUser,
    pub(super) address: &'a AddressArguments,
    pub(super) door: &'a Door,
}

/// Renders the output for one of the tools, with comments that say how to use it.
pub(super) fn render(
    output: OutputFormat,
    about: &About<'_>,
    accounts: &[NamedAccount],
    objects: &[AccountObject],
) -> Result<String, CommandError> {
    let all = accounts.iter().zip(objects);
    let (usage, documents) = match output {
        OutputFormat::Argocd => {
            let each: Result<Vec<_>, _> =
                all.map(|(account, object)| about.argocd(account, object)).collect();
            (argocd_usage(), each?)
        }
        OutputFormat::Flux => {
            let each: Result<Vec<_>, _> = accounts.iter().map(|account| about.flux(account)).collect();
            (flux_usage(accounts), each?)
        }
        OutputFormat::Clouddriver => {
            let each: Result<Vec<_>, _> =
                all.map(|(account, object)| about.clouddriver(account, object)).collect();
            (clouddriver_usage(), vec![json!({"kubernetes": {"enabled": true, "accounts": each?}})])
        }
    };
    let mut out = String::new();
    for line in usage.into_iter().chain([about.credential.sentence()]).chain(about.address_line(output)) {
        out.push_str(&format!("# {}\n", text::line(&line)));
    }
    let documents: Result<Vec<_>, _> = documents.iter().map(format::yaml).collect();
    out.push_str(&documents?.join("---\n"));
    Ok(out)
}

fn argocd_usage() -> Vec<String> {
    vec!["Clusters of Argo CD. Apply them where it is: kubectl apply -n argocd -f FILE".to_owned()]
}

fn flux_usage(accounts: &[NamedAccount]) -> Vec<String> {
    let name = accounts.first().map(secret_name).unwrap_or_default();
    vec![
        "Kubeconfigs for Flux. Apply them in the namespace of your Kustomizations or HelmReleases, which name them:".to_owned(),
        format!("spec.kubeConfig.secretRef.name: {name}"),
    ]
}

fn clouddriver_usage() -> Vec<String> {
    vec!["Accounts for Clouddriver: part of clouddriver.yml, or of what Halyard or the Spinnaker operator makes of it."
        .to_owned()]
}

/// Name of the Secret of an account.
fn secret_name(account: &NamedAccount) -> String {
    let key = &account.key;
    // With the namespace if the name of the context has it.
    if account.entry.contains('/') {
        format!("kubesvc-{}-{}", key.namespace, key.name)
    } else {
        format!("kubesvc-{}", key.name)
    }
}

impl About<'_> {
    /// A line about the address, if the caller gave none.
    fn address_line(&self, output: OutputFormat) -> Option<String> {
        let AddressArguments { server, gateway, .. } = self.address;
        if server.is_some() || gateway.is_some() {
            return None;
        }
        let address = self.door.cluster.server.as_deref().unwrap_or_default();
        Some(match output {
            OutputFormat::Clouddriver => format!(
                "Clouddriver has to reach {address}, whose API server all its reads load; rather give --gateway \
                 https://HOST:6443 with --token-file, a projected token for the audience kubesvc (docs/api.md)."
            ),
            _ => format!(
                "It has to reach {address}; for another address there give --server, in the operator's cluster \
                 https://kubernetes.default.svc."
            ),
        })
    }

    fn argocd(&self, account: &NamedAccount, object: &AccountObject) -> Result<Value, CommandError> {
        let mut data = json!({
            "name": account.entry,
            "server": self.door.server(&account.key),
            "config": self.argocd_config()?,
        });
        let spec = &object.account.spec;
        if !spec.namespaces.is_empty() {
            let has_others = !spec.only_namespaced_resources.unwrap_or_default();
            data["namespaces"] = json!(spec.namespaces.join(","));
            data["clusterResources"] = json!(has_others.to_string());
        }
        Ok(json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {
                "name": secret_name(account),
                "labels": {"argocd.argoproj.io/secret-type": "cluster"},
            },
            "type": "Opaque",
            "stringData": data,
        }))
    }

    fn argocd_config(&self) -> Result<String, CommandError> {
        let Door { cluster, user, .. } = self.door;
        if user.impersonate.is_some() || user.impersonate_groups.is_some() {
            return Err(CommandError::Usage(
                "Argo CD cannot act as another user, which your kubeconfig asks for; add --service-account or \
                 --token-file"
                    .to_owned(),
            ));
        }
        let exposed =
            |secret: &Option<SecretString>| secret.as_ref().map(|one| one.expose_secret().to_owned());
        let tls = present([
            ("insecure", Some(json!(cluster.insecure_skip_tls_verify.unwrap_or_default()))),
            ("serverName", cluster.tls_server_name.as_ref().map(|one| json!(one))),
            ("caData", cluster.certificate_authority_data.as_ref().map(|one| json!(one))),
            ("certData", user.client_certificate_data.as_ref().map(|one| json!(one))),
            ("keyData", exposed(&user.client_key_data).map(Value::from)),
        ]);
        let config = present([
            ("bearerToken", exposed(&user.token).map(Value::from)),
            ("username", user.username.as_ref().map(|one| json!(one))),
            ("password", exposed(&user.password).map(Value::from)),
            ("tlsClientConfig", Some(tls)),
            ("proxyUrl", cluster.proxy_url.as_ref().map(|one| json!(one))),
        ]);
        Ok(serde_json::to_string(&config).map_err(|error| format!("no JSON: {error}"))?)
    }

    fn flux(&self, account: &NamedAccount) -> Result<Value, CommandError> {
        Ok(json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": secret_name(account)},
            "type": "Opaque",
            "stringData": {"value": self.kubeconfig(account)?},
        }))
    }

    fn clouddriver(&self, account: &NamedAccount, object: &AccountObject) -> Result<Value, CommandError> {
        let mut entry = Map::new();
        entry.insert("name".to_owned(), json!(object.account.account_name()));
        for field in CLOUDDRIVER_FIELDS {
            if let Some(value) = object.raw["spec"].get(field) {
                entry.insert(field.to_owned(), value.clone());
            }
        }
        entry.insert("kubeconfigContents".to_owned(), json!(self.kubeconfig(account)?));
        Ok(Value::Object(entry))
    }

    fn kubeconfig(&self, account: &NamedAccount) -> Result<String, CommandError> {
        let document = self.door.kubeconfig(std::slice::from_ref(account))?;
        let text = format::yaml(&document)?;
        Ok(format!("{}\n", text.trim_end()))
    }
}

/// An object of the fields that are there.
fn present<const N: usize>(fields: [(&str, Option<Value>); N]) -> Value {
    fields
        .into_iter()
        .filter_map(|(name, value)| Some((name.to_owned(), value?)))
        .collect::<Map<_, _>>()
        .into()
}
