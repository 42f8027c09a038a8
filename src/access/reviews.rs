//! Who calls and what they may, as the operator's API server says: TokenReview and SubjectAccessReview.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use http::HeaderMap;
use http::header::AUTHORIZATION;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, UserInfo};
use k8s_openapi::api::authorization::v1::{
    NonResourceAttributes, ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use moka::sync::Cache;
use sha2::{Digest as _, Sha256};
use tokio::sync::{Semaphore, SemaphorePermit};

use super::answers::{AnswerCache, QuestionDigest};
use super::certificate_users::CertificateUsers;
use super::front_proxy::FrontProxy;
use super::{Access, AccessError, AccessResource, Caller, Principal, RequestedAccess, Via};
use kubesvc_runtime::kube_access::{ErrorClass, KubeAccess, KubeError, WriteOptions};
use kubesvc_runtime::telemetry::outages::warn_unless_away;

/// Audience that a bearer token must be for.
pub const AUDIENCE: &str = "kubesvc";
/// Version of kubesvc's APIs in reviews.
const VERSION: &str = "v1alpha1";
/// Version of the API of Secrets.
const CORE_VERSION: &str = "v1";
/// Maximum number of concurrent TokenReviews, and of other concurrent questions to the API server.
const MAX_CONCURRENT_REVIEWS: usize = 32;
/// Maximum number of TokenReviews that wait to be asked. Anybody may cause them, so rights have places of their own.
const MAX_WAITING_TOKEN_REVIEWS: usize = 80;
/// The same of tokens that were good before: a flood of others takes none of their places.
const MAX_WAITING_KNOWN_TOKEN_REVIEWS: usize = 48;
/// How long a token counts as good before, from its last good review on.
const KNOWN_TOKEN_LIFETIME: Duration = Duration::from_secs(3600);
/// Maximum number of tokens that are remembered as good before; those used least go first.
const MAX_KNOWN_TOKENS: u64 = 20_000;
/// Maximum number of SubjectAccessReviews that wait to be asked: 256 reviews together. Only known callers cause them, and one
/// who begins 160 operations on as many accounts needs each account's.
const MAX_WAITING_ACCESS_REVIEWS: usize = 128;
/// Time limit for an answer, with the wait for one that another caller asks for.
const REVIEW_TIMEOUT: Duration = Duration::from_secs(2);

const CANNOT_BE_ASKED: &str =
    "the API server of the operator's cluster cannot be asked who calls and what they may; try again";

/// Whether callers must be known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessMode {
    /// They must, and what they may is checked.
    Required,
    /// Nobody is asked who calls, and everybody may do everything.
    Nobody,
}

/// Asks the operator's API server. A yes is kept for 10 seconds, a no for one.
pub struct KubeAccessReviews {
    mode: AccessMode,
    certificates: CertificateUse,
    tokens: AnswerCache<Arc<Principal>>,
    /// Tokens that were good before. They are reviewed as others are.
    known_tokens: Cache<QuestionDigest, ()>,
    rights: AnswerCache<()>,
    token_reviews: Reviews,
    known_token_reviews: Reviews,
    access_reviews: Reviews,
}

/// What the certificates of callers mean.
enum CertificateUse {
    /// That of the API server says who calls.
    FrontProxy(FrontProxy),
    /// Those that the settings name are users.
    Users(CertificateUsers),
}

/// Reviews of one kind, with a bound on those that wait.
struct Reviews {
    kube: KubeAccess,
    places: Semaphore,
}

impl Reviews {
    fn new(kube: &KubeAccess, waiting: usize) -> Self {
        let kube = kube.clone().within(REVIEW_TIMEOUT).at_most(MAX_CONCURRENT_REVIEWS);
        Self { kube, places: Semaphore::new(MAX_CONCURRENT_REVIEWS + waiting) }
    }

    /// A place among those that are asked or wait, until it is dropped.
    fn place(&self) -> Result<SemaphorePermit<'_>, AccessError> {
        self.places.try_acquire().map_err(|_| AccessError::Busy)
    }
}

impl KubeAccessReviews {
    /// Creates the port over this access to the API server.
    pub fn new(kube: &KubeAccess, mode: AccessMode) -> Arc<Self> {
        let front_proxy = |kube: &KubeAccess| CertificateUse::FrontProxy(FrontProxy::new(kube.clone()));
        Self::with(kube, mode, front_proxy)
    }

    /// The port of REST, whose callers show tokens, or certificates that the settings name. Those of the API server say
    /// nothing there.
    pub fn of_rest(kube: &KubeAccess, users: CertificateUsers) -> Arc<Self> {
        Self::with(kube, AccessMode::Required, |_| CertificateUse::Users(users))
    }

    fn with(
        kube: &KubeAccess,
        mode: AccessMode,
        certificates: impl FnOnce(&KubeAccess) -> CertificateUse,
    ) -> Arc<Self> {
        let access_reviews = Reviews::new(kube, MAX_WAITING_ACCESS_REVIEWS);
        Arc::new(Self {
            certificates: certificates(&access_reviews.kube),
            token_reviews: Reviews::new(kube, MAX_WAITING_TOKEN_REVIEWS),
            known_token_reviews: Reviews::new(kube, MAX_WAITING_KNOWN_TOKEN_REVIEWS),
            access_reviews,
            mode,
            tokens: AnswerCache::new(),
            known_tokens: Cache::builder()
                .max_capacity(MAX_KNOWN_TOKENS)
                .time_to_live(KNOWN_TOKEN_LIFETIME)
                .build(),
            rights: AnswerCache::new(),
        })
    }

    async fn review_token(&self, token: &str, digest: QuestionDigest) -> Result<Arc<Principal>, AccessError> {
        let is_known = self.known_tokens.contains_key(&digest);
        let reviews = if is_known { &self.known_token_reviews } else { &self.token_reviews };
        let _place = reviews.place()?;
        let spec =
            TokenReviewSpec { token: Some(token.to_owned()), audiences: Some(vec![AUDIENCE.to_owned()]) };
        let review = TokenReview { spec, ..TokenReview::default() };
        let reviewed = reviews.kube.all::<TokenReview>().create(&review, WriteOptions::default()).await;
        // What the API server says of a review may repeat the token.
        let reviewed = reviewed.map_err(|error| unavailable(&error.without_message(), "TokenReviews"))?;
        let status = reviewed.status.unwrap_or_default();
        // An API server that knows no audiences would say yes to a token for itself.
        let is_for_us = status.audiences.iter().flatten().any(|audience| audience == AUDIENCE);
        let user = status.user.filter(|_| status.authenticated == Some(true) && is_for_us);
        let principal = user.and_then(principal).map(Arc::new);
        match principal {
            Some(_) => self.known_tokens.insert(digest, ()),
            None => self.known_tokens.invalidate(&digest),
        }
        principal.ok_or_else(|| {
            AccessError::Unauthenticated(format!(
                "the bearer token is not valid here: it must be a live one with the audience {AUDIENCE}, as \
                 `kubectl create token NAME --audience={AUDIENCE}` makes it"
            ))
        })
    }

    async fn review_access(
        &self,
        spec: SubjectAccessReviewSpec,
        principal: &Principal,
        access: &RequestedAccess,
    ) -> Result<(), AccessError> {
        let _place = self.access_reviews.place()?;
        let review = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
        let reviews = self.access_reviews.kube.all::<SubjectAccessReview>();
        let reviewed = reviews.create(&review, WriteOptions::default()).await;
        let status =
            reviewed.map_err(|error| unavailable(&error, "SubjectAccessReviews"))?.status.unwrap_or_default();
        if status.allowed && status.denied != Some(true) {
            return Ok(());
        }
        let user = &principal.name;
        Err(AccessError::Denied(format!("user {user:?} cannot {access}; give it a role with that verb")))
    }

    /// Who calls, by the certificates of the connection; `None`: they do not say it.
    async fn certified(&self, caller: Caller<'_>) -> Result<Option<Principal>, AccessError> {
        match &self.certificates {
            CertificateUse::FrontProxy(front_proxy) => front_proxy.principal(caller).await,
            CertificateUse::Users(users) => users.principal(caller.certificates),
        }
    }

    async fn review_caller(&self, caller: Caller<'_>) -> Result<Principal, AccessError> {
        let token = bearer_token(caller.headers);
        if let (CertificateUse::Users(_), Some(token)) = (&self.certificates, token) {
            // A proxy may show its own certificate for callers with tokens of theirs.
            return self.token_principal(token).await;
        }
        match (self.certified(caller).await, token) {
            (Ok(Some(principal)), _) => Ok(principal),
            // Its certificate may be for somebody else.
            (_, Some(token)) => self.token_principal(token).await,
            (Err(error), None) => Err(error),
            (Ok(None), None) => Err(AccessError::Unauthenticated(format!(
                "the request has no bearer token; send one with the audience {AUDIENCE}{}",
                match &self.certificates {
                    CertificateUse::FrontProxy(_) =>
                        ", or call through the API server of the operator's cluster",
                    CertificateUse::Users(users) if users.is_empty() => "",
                    CertificateUse::Users(_) => ", or show a certificate of kubesvc.rest.auth.certificates",
                }
            ))),
        }
    }

    async fn token_principal(&self, token: &str) -> Result<Principal, AccessError> {
        let digest = digest_of(token);
        let principal = self.tokens.get(digest, Box::pin(self.review_token(token, digest))).await?;
        Ok(Arc::unwrap_or_clone(principal))
    }
}

/// The answer if it comes in time.
async fn in_time<T>(answer: impl Future<Output = Result<T, AccessError>>) -> Result<T, AccessError> {
    tokio::time::timeout(REVIEW_TIMEOUT, answer).await.unwrap_or_else(|_| {
        warn_unless_away!(
            "callers cannot be checked: the API server does not answer within {REVIEW_TIMEOUT:?}"
        );
        Err(AccessError::Unavailable(CANNOT_BE_ASKED.to_owned()))
    })
}

fn digest_of(token: &str) -> QuestionDigest {
    Sha256::digest(token.as_bytes()).into()
}

#[async_trait]
impl Access for KubeAccessReviews {
    async fn authenticate(&self, caller: Caller<'_>) -> Result<Principal, AccessError> {
        if self.mode == AccessMode::Nobody {
            return Ok(nobody());
        }
        // Large, and polled at the end of a deep stack.
        in_time(Box::pin(self.review_caller(caller))).await
    }

    fn was_known(&self, caller: Caller<'_>) -> bool {
        bearer_token(caller.headers).is_some_and(|token| self.known_tokens.contains_key(&digest_of(token)))
    }

    fn is_certified(&self, certificates: &[Vec<u8>]) -> bool {
        let CertificateUse::Users(users) = &self.certificates else { return false };
        matches!(users.principal(certificates), Ok(Some(_)))
    }

    async fn is_front_proxy(&self, certificates: &[Vec<u8>]) -> bool {
        let CertificateUse::FrontProxy(front_proxy) = &self.certificates else { return false };
        self.mode == AccessMode::Required && matches!(front_proxy.accepts(certificates).await, Ok(Some(_)))
    }

    async fn authorize(&self, principal: &Principal, access: &RequestedAccess) -> Result<(), AccessError> {
        if self.mode == AccessMode::Nobody {
            return Ok(());
        }
        let spec = spec(principal, access);
        let question = digest(&spec)?;
        let reviewing = Box::pin(self.review_access(spec, principal, access));
        in_time(Box::pin(self.rights.get(question, reviewing))).await
    }
}

fn nobody() -> Principal {
    Principal {
        name: "system:anonymous".to_owned(),
        groups: vec!["system:unauthenticated".to_owned()],
        uid: String::new(),
        extra: BTreeMap::new(),
        via: Via::Nobody,
    }
}

/// The token of the header `Authorization`.
fn bearer_token(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(AUTHORIZATION)?.to_str().ok()?.trim();
    let (scheme, token) = value.split_once(' ')?;
    Some(token.trim()).filter(|token| scheme.eq_ignore_ascii_case("bearer") && !token.is_empty())
}

fn principal(user: UserInfo) -> Option<Principal> {
    Some(Principal {
        name: user.username.filter(|name| !name.is_empty())?,
        groups: user.groups.unwrap_or_default(),
        uid: user.uid.unwrap_or_default(),
        extra: user.extra.unwrap_or_default(),
        via: Via::Token,
    })
}

fn spec(principal: &Principal, access: &RequestedAccess) -> SubjectAccessReviewSpec {
    let some = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    let asked = SubjectAccessReviewSpec {
        user: some(&principal.name),
        groups: Some(principal.groups.clone()),
        uid: some(&principal.uid),
        extra: Some(principal.extra.clone()),
        ..SubjectAccessReviewSpec::default()
    };
    if let AccessResource::Path(path) = access.resource {
        let attributes = NonResourceAttributes { path: some(path), verb: some(access.verb) };
        return SubjectAccessReviewSpec { non_resource_attributes: Some(attributes), ..asked };
    }
    let (group, resource, subresource) = access.resource.names();
    let attributes = ResourceAttributes {
        group: some(group),
        version: some(if group.is_empty() { CORE_VERSION } else { VERSION }),
        resource: some(resource),
        subresource: some(subresource),
        verb: some(access.verb),
        namespace: some(&access.namespace),
        name: some(&access.object),
        ..ResourceAttributes::default()
    };
    SubjectAccessReviewSpec { resource_attributes: Some(attributes), ..asked }
}

/// Digest of a question about rights: of all that the answer depends on.
fn digest(spec: &SubjectAccessReviewSpec) -> Result<QuestionDigest, AccessError> {
    let text = serde_json::to_vec(spec);
    let text =
        text.map_err(|_| AccessError::Unavailable("the question about rights has no text".to_owned()))?;
    Ok(Sha256::digest(text).into())
}

/// The API server could not be asked. Its words stay in the log: callers read "forbidden" in them as an answer.
fn unavailable(error: &KubeError, reviews: &str) -> AccessError {
    warn_unless_away!("callers cannot be checked: {error}");
    AccessError::Unavailable(if error.class() == ErrorClass::Refused {
        format!(
            "the operator may not create {reviews}; bind it to system:auth-delegator, as config/rbac does"
        )
    } else {
        CANNOT_BE_ASKED.to_owned()
    })
}
