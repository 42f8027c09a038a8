//! Which of the checks a token gets, and its answer.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::future::join_all;
use jiff::Timestamp;
use jsonwebtoken::Algorithm;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use secrecy::{ExposeSecret as _, SecretString};
use sha2::{Digest as _, Sha256};

use super::check::{CheckedToken, TokenRefusal, TokenRules, UnverifiedToken, is_jwt};
use super::issuers::{ALGORITHMS, BearerSettings, IssuerSettings, KeyLocation};
use super::kept_keys::{KeptKeys, PublishedKeys};
use super::key_sources::{FetchedKeys, FileKeys, KeySourceError};
use super::own_cluster::OwnCluster;
use super::static_tokens::{StaticTokens, TokenSecretNames};
use super::{AUDIENCE, AgentTokens, TokenError, shown};
use crate::access::{AnswerCache, NotGranted};
use kubesvc_core::identity::{TokenFacts, TokenHolder};
use kubesvc_core::wire::MAX_TOKEN_BYTES;
use kubesvc_runtime::background_tasks::{AttemptOutcome, BackgroundTasks, TaskSpec};
use kubesvc_runtime::kube_access::KubeAccess;
use kubesvc_runtime::telemetry::errors::chain;

/// How long an accepted token is not checked again. A refused one is, after a second.
const ANSWER_LIFETIME: Duration = Duration::from_secs(5);
/// Interval between two looks at whether keys are to be read.
const KEYS_INTERVAL: Duration = Duration::from_secs(10);
/// Interval between two reads of Secrets with static tokens.
const SECRETS_INTERVAL: Duration = Duration::from_secs(60);

/// A file of the settings that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("`{setting}` cannot be honoured")]
pub struct BearerSetupError {
    /// The setting.
    pub setting: String,
    /// Why.
    pub source: Box<KeySourceError>,
}

/// Verifies bearer tokens: of the operator's own cluster, of the issuers of the settings, and those in Secrets.
pub struct BearerTokens {
    own: Option<OwnCluster>,
    issuers: Vec<TrustedIssuer>,
    static_tokens: StaticTokens,
    answers: AnswerCache<TokenFacts, TokenError>,
    /// By result.
    counts: Family<[(&'static str, &'static str); 1], Counter>,
}

struct TrustedIssuer {
    settings: IssuerSettings,
    keys: KeptKeys,
}

/// Who may have issued a token.
#[derive(Clone, Copy)]
enum PossibleIssuer<'t> {
    Own(&'t OwnCluster),
    Issuer(&'t TrustedIssuer),
}

impl NotGranted for TokenError {
    fn is_answer(&self) -> bool {
        matches!(self, Self::Invalid(_))
    }
}

impl BearerTokens {
    /// Reads the files of the settings. What is at servers is read later.
    ///
    /// # Errors
    /// A file cannot be used.
    pub async fn read(
        settings: &BearerSettings,
        kube: &KubeAccess,
        namespace: &str,
        secrets: TokenSecretNames,
    ) -> Result<Arc<Self>, BearerSetupError> {
        let mut issuers = Vec::new();
        for (at, settings) in settings.issuers.iter().enumerate() {
            let issuer = TrustedIssuer::read(settings).await;
            issuers.push(issuer.map_err(|(key, source)| BearerSetupError {
                setting: format!("kubesvc.grpc.auth.bearer.issuers[{at}].{key}"),
                source: Box::new(source),
            })?);
        }
        Ok(Arc::new(Self {
            own: settings.token_review.then(|| OwnCluster::new(kube)),
            issuers,
            static_tokens: StaticTokens::new(kube, namespace, secrets),
            answers: AnswerCache::keeping(ANSWER_LIFETIME),
            counts: Family::default(),
        }))
    }

    /// Starts the tasks that read keys and Secrets again.
    pub fn start(self: &Arc<Self>, background: &BackgroundTasks) {
        let does = "Reads the keys of those who issue agents' tokens";
        let keys = TaskSpec::<()>::new("agents' token issuers", does).every(KEYS_INTERVAL).at_start();
        let keys = keys.retry_delays(KEYS_INTERVAL / 2, KEYS_INTERVAL / 2).logs_itself();
        let tokens = Arc::clone(self);
        background.start(keys, move |_| {
            let tokens = Arc::clone(&tokens);
            async move { tokens.read_keys().await }
        });
        let does = "Reads the Secrets with static tokens of agents";
        let secrets = TaskSpec::<()>::new("agents' token Secrets", does).every(SECRETS_INTERVAL).at_start();
        let tokens = Arc::clone(self);
        background.start(secrets.without_deadline(), move |_| {
            let tokens = Arc::clone(&tokens);
            async move {
                tokens.static_tokens.read(SECRETS_INTERVAL / 2).await;
                AttemptOutcome::Done
            }
        });
    }

    /// Registers the metric `kubesvc_agent_tokens_total`.
    pub fn register(&self, registry: &mut Registry) {
        let help = "Bearer tokens of agents that were checked, by result";
        registry.register("kubesvc_agent_tokens", help, self.counts.clone());
    }

    /// Reads the keys that are due. One issuer that does not answer delays no other.
    pub(super) async fn read_keys(&self) -> AttemptOutcome {
        let kept = self.own.iter().map(|own| &own.keys).chain(self.issuers.iter().map(|issuer| &issuer.keys));
        let read = join_all(kept.map(KeptKeys::read_if_due)).await;
        let failed: Vec<_> =
            read.iter().filter_map(|read| read.as_ref().err()).map(|error| chain(error)).collect();
        match (failed.is_empty(), read.iter().any(|read| matches!(read, Ok(true)))) {
            (false, _) => AttemptOutcome::failed(failed.join("; ")),
            (true, true) => AttemptOutcome::Done,
            (true, false) => AttemptOutcome::Unchanged,
        }
    }

    async fn check(&self, token: &str) -> Result<TokenFacts, TokenError> {
        if is_jwt(token) { self.check_jwt(token).await } else { self.static_tokens.verify(token).await }
    }

    async fn check_jwt(&self, token: &str) -> Result<TokenFacts, TokenError> {
        let read = UnverifiedToken::read(token).map_err(invalid)?;
        let Some(issuer) = read.issuer() else {
            return Err(TokenError::Invalid("it names no issuer (iss)".to_owned()));
        };
        let other = self.issuers.iter().find(|trusted| trusted.settings.issuer == issuer);
        let own = self.own.as_ref().filter(|own| own.may_have_issued(issuer));
        // Both, if clusters have the same default issuer: the id of the key says which.
        let candidates = own.map(PossibleIssuer::Own).into_iter().chain(other.map(PossibleIssuer::Issuer));
        let mut refusal = TokenError::Invalid(format!("its issuer {:?} is not trusted here", shown(issuer)));
        let mut unknown = Vec::new();
        for candidate in candidates {
            let known = candidate.keys().current();
            match known.as_ref().map(|known| candidate.check(&read, known)) {
                Some(Ok(checked)) => return candidate.facts(token, checked).await,
                Some(Err(TokenRefusal::Rule(why))) => refusal = TokenError::Invalid(why),
                Some(Err(TokenRefusal::UnknownKey(why))) => {
                    unknown.push((candidate, known, TokenError::Invalid(why)));
                }
                None => {
                    let why = TokenError::Unavailable("its issuer's keys are not known yet".to_owned());
                    unknown.push((candidate, None, why));
                }
            }
        }
        for (candidate, known, so_far) in unknown {
            let answer = match candidate.keys().newer_than(known.as_ref()).await {
                Ok(Some(newer)) => match candidate.check(&read, &newer) {
                    Ok(checked) => return candidate.facts(token, checked).await,
                    Err(why) => invalid(why),
                },
                Ok(None) => so_far,
                Err(unavailable) => unavailable,
            };
            // What is not known of one outweighs the no of another.
            if refusal.is_answer() {
                refusal = answer;
            }
        }
        Err(refusal)
    }

    fn count(&self, result: &Result<TokenFacts, TokenError>) {
        let result = match result.as_ref().map(|facts| &facts.holder) {
            Ok(TokenHolder::ServiceAccount { .. }) => "service_account",
            Ok(TokenHolder::Jwt { .. }) => "jwt",
            Ok(TokenHolder::Secrets(_)) => "secret",
            Err(TokenError::Invalid(_)) => "invalid",
            Err(TokenError::Unavailable(_)) => "unavailable",
        };
        self.counts.get_or_create(&[("result", result)]).inc();
    }
}

#[async_trait]
impl AgentTokens for BearerTokens {
    async fn verify(&self, token: &SecretString) -> Result<TokenFacts, TokenError> {
        let token = token.expose_secret();
        let result = if token.is_empty() || token.len() > MAX_TOKEN_BYTES {
            Err(TokenError::Invalid(format!(
                "it has {} bytes, and 1 to {MAX_TOKEN_BYTES} are taken",
                token.len()
            )))
        } else {
            self.answers.get(Sha256::digest(token.as_bytes()).into(), self.check(token)).await
        };
        self.count(&result);
        result
    }
}

impl TrustedIssuer {
    async fn read(settings: &IssuerSettings) -> Result<Self, (&'static str, KeySourceError)> {
        let issuer = settings.issuer.clone();
        let keys = match &settings.keys {
            KeyLocation::File(path) => {
                let keys = KeptKeys::new(FileKeys { issuer, path: path.clone() });
                keys.read().await.map_err(|error| ("jwksFile", error))?;
                keys
            }
            KeyLocation::Url { url, authorities } => {
                fetched(FetchedKeys { issuer, url: Some(url.clone()), authorities: authorities.clone() })
                    .await?
            }
            KeyLocation::Discovery { authorities } => {
                fetched(FetchedKeys { issuer, url: None, authorities: authorities.clone() }).await?
            }
        };
        Ok(Self { settings: settings.clone(), keys })
    }
}

/// Keys that are read later, from a server whose authorities can be read now.
async fn fetched(keys: FetchedKeys) -> Result<KeptKeys, (&'static str, KeySourceError)> {
    keys.client().await.map_err(|error| ("caFile", error))?;
    Ok(KeptKeys::new(keys))
}

impl<'t> PossibleIssuer<'t> {
    fn keys(self) -> &'t KeptKeys {
        match self {
            Self::Own(own) => &own.keys,
            Self::Issuer(issuer) => &issuer.keys,
        }
    }

    fn check(self, token: &UnverifiedToken<'_>, known: &PublishedKeys) -> Result<CheckedToken, TokenRefusal> {
        const ALL: [Algorithm; ALGORITHMS.len()] = all_algorithms();
        let (audience, algorithms) = match self {
            Self::Own(_) => (AUDIENCE, ALL.as_slice()),
            Self::Issuer(issuer) => {
                (issuer.settings.audience.as_str(), issuer.settings.algorithms.as_slice())
            }
        };
        let rules = TokenRules { issuer: &known.issuer, audience, algorithms };
        token.check(&known.keys, rules, Timestamp::now().as_second())
    }

    async fn facts(self, token: &str, checked: CheckedToken) -> Result<TokenFacts, TokenError> {
        match self {
            Self::Own(own) => own.review(token, checked).await,
            Self::Issuer(issuer) => Ok(TokenFacts {
                holder: TokenHolder::Jwt {
                    issuer: issuer.settings.issuer.clone(),
                    subject: checked.subject,
                    claims: checked.claims,
                },
                id: checked.id,
                issued_at: checked.issued_at,
                expires: Some(checked.expires),
            }),
        }
    }
}

fn invalid(refusal: TokenRefusal) -> TokenError {
    TokenError::Invalid(refusal.into_text())
}

const fn all_algorithms() -> [Algorithm; ALGORITHMS.len()] {
    let mut all = [Algorithm::RS256; ALGORITHMS.len()];
    let mut at = 0;
    while at < all.len() {
        all[at] = ALGORITHMS[at].1;
        at += 1;
    }
    all
}
