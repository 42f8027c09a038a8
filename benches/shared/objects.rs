//! The objects of the benchmarks: accounts, each with its own Secret.

use std::{collections::BTreeMap, future::Future};

use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::{ByteString, api::core::v1::Secret};
use kube::{Api, Client, api::PostParams};
use kubesvc_core::{
    DesiredState, FINALIZER, KubesvcAccount, KubesvcAccountSpec, ORIGIN_LABEL, crds,
    spec::{DEFAULT_SECRET_KEY, KubeconfigSource, SecretKeyReference},
};

use crate::progress::Bar;
use kubesvc_testkit::{controlplane::ControlPlane, wait::try_eventually};

/// Maximum number of concurrent requests, equal to the operator's.
pub(crate) const AT_ONCE: usize = 64;
/// Zone of all accounts and agents.
pub(crate) const ZONE: &str = "bench";

/// How an account is created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// With `kubectl apply`: the operator adds the finalizer.
    Applied,
    /// By REST: with label and finalizer.
    RestMade,
}

impl Form {
    /// Number of writes of the object until it is ACTIVE.
    pub(crate) fn writes(self) -> u64 {
        match self {
            Self::Applied => 3,
            Self::RestMade => 2,
        }
    }
}

/// Returns the name of an account and of its Secret.
pub(crate) fn name(number: usize) -> String {
    format!("account-{number:05}")
}

/// Installs the CRDs and waits until the API server serves them.
///
/// # Errors
///
/// The API server refuses them.
pub(crate) async fn install(plane: &ControlPlane) -> Result<(), String> {
    let client = plane.client().await;
    let definitions = Api::all(client.clone());
    for (file, definition) in crds::all() {
        definitions.create(&PostParams::default(), &definition).await.map_err(|e| format!("{file}: {e}"))?;
    }
    let accounts: Api<KubesvcAccount> = Api::all(client);
    try_eventually("the definitions", std::time::Duration::from_secs(30), async || {
        accounts.list(&Default::default()).await.map(drop).map_err(|e| e.to_string())
    })
    .await
}

/// Creates `count` accounts and their Secrets.
///
/// # Errors
///
/// The API server refuses one.
pub(crate) async fn create(
    client: &Client,
    namespace: &str,
    count: usize,
    form: Form,
    kubeconfig: &str,
) -> Result<(), String> {
    let bar = Bar::start(&format!("{count} accounts and Secrets"), count);
    each(count, async |number| {
        create_one(client, namespace, number, form, kubeconfig).await?;
        bar.step();
        Ok(())
    })
    .await?;
    bar.finish();
    Ok(())
}

/// Creates the account of this number and its Secret.
///
/// # Errors
///
/// The API server refuses one.
pub(crate) async fn create_one(
    client: &Client,
    namespace: &str,
    number: usize,
    form: Form,
    kubeconfig: &str,
) -> Result<(), String> {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let accounts: Api<KubesvcAccount> = Api::namespaced(client.clone(), namespace);
    let (secret, account) = (secret(number, kubeconfig), account(number, form));
    secrets.create(&PostParams::default(), &secret).await.map_err(|e| e.to_string())?;
    accounts.create(&PostParams::default(), &account).await.map_err(|e| e.to_string())?;
    Ok(())
}

/// Creates `count` INACTIVE accounts without Secrets.
///
/// # Errors
///
/// The API server refuses one.
pub(crate) async fn create_bare(
    client: &Client,
    namespace: &str,
    count: usize,
    form: Form,
) -> Result<(), String> {
    let accounts: Api<KubesvcAccount> = Api::namespaced(client.clone(), namespace);
    let bar = Bar::start(&format!("{count} inactive accounts"), count);
    each(count, async |number| {
        let mut account = account(number, form);
        account.spec.state = Some(DesiredState::Inactive);
        accounts.create(&PostParams::default(), &account).await.map_err(|e| e.to_string())?;
        bar.step();
        Ok(())
    })
    .await?;
    bar.finish();
    Ok(())
}

/// Runs `work` for each number below `count`, [`AT_ONCE`] at a time.
///
/// # Errors
///
/// Returns the first error. The remaining work is cancelled.
pub(crate) async fn each<F, T>(count: usize, work: F) -> Result<(), String>
where
    F: Fn(usize) -> T,
    T: Future<Output = Result<(), String>>,
{
    let works = stream::iter(0..count).map(work);
    works.buffer_unordered(AT_ONCE).try_collect::<()>().await
}

fn secret(number: usize, kubeconfig: &str) -> Secret {
    let mut secret = Secret::default();
    secret.metadata.name = Some(name(number));
    let data = (DEFAULT_SECRET_KEY.to_owned(), ByteString(kubeconfig.as_bytes().to_vec()));
    secret.data = Some(BTreeMap::from([data]));
    secret
}

fn account(number: usize, form: Form) -> KubesvcAccount {
    let name = name(number);
    let secret_ref = Some(SecretKeyReference { name: name.clone(), key: None });
    let spec = KubesvcAccountSpec {
        zone_id: Some(ZONE.into()),
        kubeconfig: KubeconfigSource { secret_ref, ..KubeconfigSource::default() },
        permissions: BTreeMap::from([
            ("READ".into(), vec!["dev".into()]),
            ("WRITE".into(), vec!["ops".into()]),
        ]),
        environment: Some("production".into()),
        ..KubesvcAccountSpec::default()
    };
    let mut account = KubesvcAccount::new(&name, spec);
    if form == Form::RestMade {
        account.metadata.labels = Some(BTreeMap::from([(ORIGIN_LABEL.into(), "rest".into())]));
        account.metadata.finalizers = Some(vec![FINALIZER.into()]);
    }
    account
}
