//! Whether the operator may list and watch Endpoints and EndpointSlices.

use std::time::Duration;

use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use kube::api::PostParams;
use kube::{Api, Client};

use super::error::JoinPeersError;

/// Timeout for one access review.
const REVIEW_TIMEOUT: Duration = Duration::from_secs(15);
/// Verbs that must be allowed for each kind.
const VERBS: [&str; 2] = ["list", "watch"];

/// The kinds that the operator may watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WatchableKinds {
    pub(super) endpoints: bool,
    pub(super) slices: bool,
}

/// Checks whether Endpoints and EndpointSlices of a namespace may be listed and watched. The second result
/// describes what is denied, one text for each kind.
///
/// # Errors
/// The API server does not answer.
pub(super) async fn review(
    client: &Client,
    namespace: &str,
) -> Result<(WatchableKinds, Vec<String>), JoinPeersError> {
    let endpoints = denied(client, namespace, "", "endpoints").await?;
    let slices = denied(client, namespace, "discovery.k8s.io", "endpointslices").await?;
    let allowed = WatchableKinds { endpoints: endpoints.is_none(), slices: slices.is_none() };
    Ok((allowed, endpoints.into_iter().chain(slices).collect()))
}

async fn denied(
    client: &Client,
    namespace: &str,
    group: &str,
    resource: &str,
) -> Result<Option<String>, JoinPeersError> {
    let mut missing = Vec::new();
    for verb in VERBS {
        if !may(client, namespace, group, resource, verb).await? {
            missing.push(verb);
        }
    }
    let of_group = if group.is_empty() { String::new() } else { format!(".{group}") };
    Ok((!missing.is_empty()).then(|| format!("{} {resource}{of_group}", missing.join(" and "))))
}

async fn may(
    client: &Client,
    namespace: &str,
    group: &str,
    resource: &str,
    verb: &str,
) -> Result<bool, JoinPeersError> {
    let question = SelfSubjectAccessReview {
        spec: SelfSubjectAccessReviewSpec {
            resource_attributes: Some(ResourceAttributes {
                namespace: Some(namespace.to_owned()),
                group: Some(group.to_owned()),
                resource: Some(resource.to_owned()),
                verb: Some(verb.to_owned()),
                ..ResourceAttributes::default()
            }),
            ..SelfSubjectAccessReviewSpec::default()
        },
        ..SelfSubjectAccessReview::default()
    };
    let reviews: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    let right = format!("{verb} {resource} in namespace {namespace}");
    match tokio::time::timeout(REVIEW_TIMEOUT, reviews.create(&PostParams::default(), &question)).await {
        Ok(Ok(answer)) => Ok(answer.status.is_some_and(|status| status.allowed)),
        Ok(Err(source)) => Err(JoinPeersError::Review { right, source }),
        Err(_) => Err(JoinPeersError::ReviewTimeout { right, within: REVIEW_TIMEOUT }),
    }
}
