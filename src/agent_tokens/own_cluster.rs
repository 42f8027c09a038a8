//! Service accounts of the operator's own cluster. A token's signature is checked against the cluster's keys first, so that a
//! forged one costs no call; then its API server says whether the token still holds.

use std::time::Duration;

use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, TokenReviewStatus};
use tokio::sync::Semaphore;

use super::check::CheckedToken;
use super::kept_keys::KeptKeys;
use super::key_sources::ClusterKeys;
use super::{AUDIENCE, TokenError, shown};
use kubesvc_core::identity::{TokenFacts, TokenHolder};
use kubesvc_runtime::kube_access::{ErrorClass, KubeAccess, WriteOptions};
use kubesvc_runtime::telemetry::outages::warn_unless_away;

/// Maximum number of concurrent TokenReviews.
const MAX_CONCURRENT_REVIEWS: usize = 32;
/// Maximum number of TokenReviews that wait. Only holders of tokens with a good signature cause them: as many as agents that
/// come at once after a restart.
const MAX_WAITING_REVIEWS: usize = 1024;
/// Time limit for an answer.
const REVIEW_TIMEOUT: Duration = Duration::from_secs(10);
/// Where a TokenReview says which token it was about, and how the value begins.
const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";
const CREDENTIAL_ID_PREFIX: &str = "JTI=";

/// The service accounts of the operator's own cluster.
pub(super) struct OwnCluster {
    pub(super) keys: KeptKeys,
    reviews: KubeAccess,
    places: Semaphore,
}

impl OwnCluster {
    pub(super) fn new(kube: &KubeAccess) -> Self {
        let reviews = kube.clone().within(REVIEW_TIMEOUT).at_most(MAX_CONCURRENT_REVIEWS);
        Self {
            keys: KeptKeys::new(ClusterKeys(kube.clone().within(REVIEW_TIMEOUT))),
            reviews,
            places: Semaphore::new(MAX_CONCURRENT_REVIEWS + MAX_WAITING_REVIEWS),
        }
    }

    /// Whether a token of this issuer may be the cluster's: any, while the cluster's keys are not known.
    pub(super) fn may_have_issued(&self, issuer: &str) -> bool {
        self.keys.current().is_none_or(|keys| keys.issuer == issuer)
    }

    /// Asks the API server about a token whose signature is good.
    ///
    /// # Errors
    /// It does not hold any more, is no service account's, or nobody can be asked.
    pub(super) async fn review(&self, token: &str, checked: CheckedToken) -> Result<TokenFacts, TokenError> {
        let busy = |_| TokenError::Unavailable("too many tokens wait for a TokenReview".to_owned());
        let _place = self.places.try_acquire().map_err(busy)?;
        let spec =
            TokenReviewSpec { token: Some(token.to_owned()), audiences: Some(vec![AUDIENCE.to_owned()]) };
        let review = TokenReview { spec, ..TokenReview::default() };
        let reviewed = self.reviews.all::<TokenReview>().create(&review, WriteOptions::default()).await;
        // What the API server says of a review may repeat the token.
        let reviewed = reviewed.map_err(|error| {
            let error = error.without_message();
            warn_unless_away!("tokens of agents cannot be reviewed: {error}");
            TokenError::Unavailable(match error.class() {
                ErrorClass::Refused => {
                    "the operator may not create TokenReviews; bind it to system:auth-delegator, as config/rbac does"
                        .to_owned()
                }
                _ => error.to_string(),
            })
        })?;
        facts(reviewed.status.unwrap_or_default(), checked)
    }
}

/// What a review says of a token.
pub(super) fn facts(status: TokenReviewStatus, checked: CheckedToken) -> Result<TokenFacts, TokenError> {
    let invalid = |why: &str| Err(TokenError::Invalid(why.to_owned()));
    if status.authenticated != Some(true) {
        return invalid(
            "the API server does not accept it any more: its ServiceAccount, Pod or Secret may be deleted",
        );
    }
    // An API server that knows no audiences would say yes to a token for itself.
    if !status.audiences.iter().flatten().any(|audience| audience == AUDIENCE) {
        return Err(TokenError::Invalid(format!("the API server does not say that it is for {AUDIENCE}")));
    }
    let user = status.user.unwrap_or_default();
    let name = user.username.unwrap_or_default();
    let account = name.strip_prefix("system:serviceaccount:").and_then(|rest| rest.split_once(':'));
    let Some((namespace, account)) =
        account.filter(|(namespace, name)| !namespace.is_empty() && !name.is_empty() && !name.contains(':'))
    else {
        return Err(TokenError::Invalid(format!("its user {:?} is no service account", shown(&name))));
    };
    if checked.subject != name {
        return invalid("the API server says that it is another subject's");
    }
    let reviewed_id = user.extra.as_ref().and_then(|extra| {
        extra.get(CREDENTIAL_ID)?.iter().find_map(|id| id.strip_prefix(CREDENTIAL_ID_PREFIX))
    });
    Ok(TokenFacts {
        holder: TokenHolder::ServiceAccount { namespace: namespace.to_owned(), name: account.to_owned() },
        id: reviewed_id.map(str::to_owned).or(checked.id),
        issued_at: checked.issued_at,
        expires: Some(checked.expires),
    })
}
