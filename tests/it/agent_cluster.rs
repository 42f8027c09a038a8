//! The agent's way to a cluster, against a real API server.

use std::time::Duration;

use kubesvc::agent::activation::Activator;
use kubesvc::agent::definition::Definition;
use kubesvc::wire::common::Failure;
use kubesvc::wire::common::failure::Class;
use kubesvc::wire::ops::account_spec::Credential;
use kubesvc::wire::ops::{AccountSpec, ClusterIdentity};

use crate::harness::controlplane::{ControlPlane, StartOptions};
use crate::harness::must;

async fn activate(
    kubeconfig: &str,
    change: impl FnOnce(&mut AccountSpec),
) -> Result<ClusterIdentity, Failure> {
    let credential = Some(Credential::Kubeconfig(kubeconfig.as_bytes().to_vec()));
    let mut spec = AccountSpec { credential, ..AccountSpec::default() };
    change(&mut spec);
    Activator::new(Vec::new(), 16).activate(&Definition::split(spec).1).await
}

/// The kinds to be cached, without their groups.
fn cached(identity: &ClusterIdentity) -> Vec<&str> {
    let kinds = identity.kinds.iter().filter(|kind| kind.reason.is_empty());
    kinds.filter_map(|kind| kind.scope.as_ref()).map(|scope| scope.kind.as_str()).collect()
}

#[tokio::test]
async fn a_real_cluster_is_reported_in_full() {
    let mut options = StartOptions::default();
    let nobody = options.add_user("nobody-in-particular", &[]);
    let plane = must(ControlPlane::start_with(options).await);
    for number in 0..3 {
        let made = plane.kubectl(["create", "namespace", &format!("team-{number}")]).await;
        assert_eq!(made.code, Some(0), "{made:?}");
    }

    let identity = activate(&plane.admin_kubeconfig(), |_| {}).await.expect("an identity");
    assert_eq!(identity.host, plane.server_url());
    assert!(identity.version.starts_with("v1."), "{identity:?}");
    assert_eq!(identity.kube_system_uid.len(), 36, "{identity:?}");
    assert_eq!(identity.cert_fingerprint.split(':').filter(|pair| pair.len() == 2).count(), 32);
    let names: Vec<_> = identity.namespaces.iter().filter(|name| name.starts_with("team-")).collect();
    assert_eq!(names, ["team-0", "team-1", "team-2"]);
    assert_eq!(identity.namespaces_count as usize, identity.namespaces.len());
    assert_eq!(cached(&identity).len(), 12, "{:?}", identity.kinds);

    let certificate = must(plane.client_certificate("admin", Some("system:masters")));
    let by_certificate = activate(&plane.kubeconfig_for_certificate(&certificate), |spec| {
        spec.kinds = vec!["secret".to_owned(), "Deployment.apps".to_owned()];
    })
    .await
    .expect("an identity");
    assert_eq!(cached(&by_certificate), ["Secret", "Deployment"]);

    let named = |spec: &mut AccountSpec| spec.namespaces = vec!["team-1".to_owned()];
    let poor = activate(&plane.kubeconfig_for_token(&nobody), named).await.expect("an identity");
    assert_eq!((poor.kube_system_uid.as_str(), poor.namespaces), ("", vec!["team-1".to_owned()]));

    let wrong = activate(&plane.kubeconfig_for_token("wrong-token-of-some-length"), |_| {}).await;
    let wrong = wrong.expect_err("a failure");
    assert_eq!((wrong.class(), wrong.http_status), (Class::Auth, 401));
    assert!(wrong.message.starts_with("GET /version of https://127.0.0.1:"), "{wrong:?}");

    let foreign = must(ControlPlane::start().await).admin_kubeconfig();
    let gone = tokio::time::timeout(Duration::from_secs(30), activate(&foreign, |_| {})).await;
    assert_eq!(gone.expect("an answer in time").expect_err("a failure").class(), Class::Unreachable);
}
