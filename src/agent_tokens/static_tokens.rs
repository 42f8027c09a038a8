//! Static tokens: the contents of Secrets that KubesvcIdentities name, of which only digests are kept.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt as _, stream};
use k8s_openapi::api::core::v1::Secret;
use parking_lot::RwLock;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;
use tokio::sync::{Mutex, Semaphore};
use tokio::time::Instant;
use tracing::warn;

use super::check::is_jwt;
use super::{MIN_STATIC_TOKEN_BYTES, TokenError};
use kubesvc_core::identity::{TokenFacts, TokenHolder, TokenSecret};
use kubesvc_core::wire::MAX_TOKEN_BYTES;
use kubesvc_runtime::kube_access::{KubeAccess, KubeObjects};

/// Minimum interval between two reads that unknown tokens cause.
const UNKNOWN_TOKEN_INTERVAL: Duration = Duration::from_secs(10);
/// Maximum number of Secrets; further ones are not read.
const MAX_SECRETS: usize = 1000;
/// Maximum number of concurrent reads.
const MAX_CONCURRENT_READS: usize = 8;
/// Time limit for one Secret.
const READ_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of tokens that wait for a read.
const MAX_WAITING_TOKENS: usize = 64;

/// Names the Secrets whose contents are tokens.
pub type TokenSecretNames = Arc<dyn Fn() -> Vec<TokenSecret> + Send + Sync>;

/// The static tokens.
pub(super) struct StaticTokens {
    kube: KubeObjects<Secret>,
    namespace: String,
    names: TokenSecretNames,
    known: RwLock<BTreeMap<TokenSecret, TokenContent>>,
    /// When the Secrets were last read. Held while they are.
    read_at: Mutex<Option<Instant>>,
    waiting: Semaphore,
}

/// What is known of an entry of a Secret.
#[derive(Clone, Debug, PartialEq)]
enum TokenContent {
    /// SHA-256 of a token.
    Token([u8; 32]),
    /// It is no token, for this reason.
    None(String),
    /// It could not be read, and never was.
    Unread(String),
}

impl StaticTokens {
    pub(super) fn new(kube: &KubeAccess, namespace: &str, names: TokenSecretNames) -> Self {
        let kube = kube.clone().within(READ_TIMEOUT).at_most(MAX_CONCURRENT_READS);
        Self {
            kube: kube.namespaced(namespace),
            namespace: namespace.to_owned(),
            names,
            known: RwLock::default(),
            read_at: Mutex::default(),
            waiting: Semaphore::new(MAX_WAITING_TOKENS),
        }
    }

    /// Compares a token with the Secrets, which are read again if it is none of them.
    ///
    /// # Errors
    /// It is none of them, or that cannot be found out.
    pub(super) async fn verify(&self, token: &str) -> Result<TokenFacts, TokenError> {
        let named = (self.names)();
        if token.len() < MIN_STATIC_TOKEN_BYTES || named.is_empty() {
            return Err(TokenError::Invalid(match named.is_empty() {
                true => "it is no JWT, and no KubesvcIdentity has a tokenSecret".to_owned(),
                false => format!("it is no JWT, and shorter than {MIN_STATIC_TOKEN_BYTES} bytes"),
            }));
        }
        let digest = Sha256::digest(token.as_bytes()).into();
        if let Some(facts) = self.facts(&named, &digest) {
            return Ok(facts);
        }
        let busy = |_| TokenError::Unavailable("too many tokens wait until Secrets are read".to_owned());
        let place = self.waiting.try_acquire().map_err(busy)?;
        self.read(UNKNOWN_TOKEN_INTERVAL).await;
        drop(place);
        match (self.facts(&named, &digest), self.unread(&named)) {
            (Some(facts), _) => Ok(facts),
            (None, Some(why)) => Err(TokenError::Unavailable(why)),
            (None, None) => Err(TokenError::Invalid(
                "it is no JWT, and no Secret that a KubesvcIdentity names has it".to_owned(),
            )),
        }
    }

    /// Reads the Secrets, unless they were read within this time.
    pub(super) async fn read(&self, interval: Duration) {
        let mut read_at = self.read_at.lock().await;
        if read_at.is_some_and(|at| at.elapsed() < interval) {
            return;
        }
        *read_at = Some(Instant::now());
        let named: BTreeSet<TokenSecret> = (self.names)().into_iter().collect();
        let mut of_secrets: BTreeMap<String, Vec<TokenSecret>> = BTreeMap::new();
        for entry in &named {
            of_secrets.entry(entry.name.clone()).or_default().push(entry.clone());
        }
        let too_many = of_secrets.len().saturating_sub(MAX_SECRETS);
        if too_many > 0 {
            warn!("{too_many} Secrets with tokens of agents are not read: {MAX_SECRETS} are the most");
        }
        let reads = of_secrets.into_iter().take(MAX_SECRETS).map(|(name, entries)| async move {
            let secret = self.kube.get(&name).await.map_err(|error| error.to_string());
            entries.into_iter().map(|entry| (content(secret.as_ref(), &entry.key), entry)).collect::<Vec<_>>()
        });
        let read: Vec<_> = stream::iter(reads).buffer_unordered(MAX_CONCURRENT_READS).collect().await;
        let mut known = self.known.write();
        known.retain(|entry, _| named.contains(entry));
        for (content, entry) in read.into_iter().flatten() {
            self.keep(&mut known, entry, content);
        }
    }

    /// Keeps what was read. A Secret that cannot be read now is as it was.
    fn keep(
        &self,
        known: &mut BTreeMap<TokenSecret, TokenContent>,
        entry: TokenSecret,
        content: TokenContent,
    ) {
        let last = known.get(&entry);
        if let (TokenContent::Unread(_), Some(TokenContent::Token(_) | TokenContent::None(_))) =
            (&content, last)
        {
            return;
        }
        if let (TokenContent::None(why) | TokenContent::Unread(why), true) =
            (&content, last != Some(&content))
        {
            let TokenSecret { name, key } = &entry;
            warn!("Secret {}/{name} gives no token of agents: its key {key:?} {why}", self.namespace);
        }
        known.insert(entry, content);
    }

    fn facts(&self, named: &[TokenSecret], digest: &[u8; 32]) -> Option<TokenFacts> {
        let known = self.known.read();
        // All are compared, so that the time says nothing about which.
        let is_same = |entry: &&TokenSecret| match known.get(*entry) {
            Some(TokenContent::Token(token)) => bool::from(token.ct_eq(digest)),
            _ => false,
        };
        let mut same: Vec<_> = named.iter().filter(is_same).cloned().collect();
        same.sort();
        same.dedup();
        let facts = |secrets| TokenFacts {
            holder: TokenHolder::Secrets(secrets),
            id: None,
            issued_at: None,
            expires: None,
        };
        Some(same).filter(|same| !same.is_empty()).map(facts)
    }

    /// Why not all Secrets are known.
    fn unread(&self, named: &[TokenSecret]) -> Option<String> {
        let known = self.known.read();
        let entry =
            named.iter().find(|entry| matches!(known.get(*entry), None | Some(TokenContent::Unread(_))))?;
        let why = match known.get(entry) {
            Some(TokenContent::Unread(why)) => why,
            _ => "it is read within 10 s",
        };
        Some(format!("Secret {}/{} is not known: its key {:?} {why}", self.namespace, entry.name, entry.key))
    }
}

/// What an entry of a Secret is.
fn content(secret: Result<&Option<Secret>, &String>, key: &str) -> TokenContent {
    let secret = match secret {
        Ok(Some(secret)) => secret,
        Ok(None) => return TokenContent::None("is not there, since the Secret does not exist".to_owned()),
        Err(why) => return TokenContent::Unread(format!("cannot be read: {why}")),
    };
    let Some(bytes) = secret.data.as_ref().and_then(|data| data.get(key)) else {
        return TokenContent::None("is not there".to_owned());
    };
    let bytes = bytes.0.strip_suffix(b"\n").unwrap_or(&bytes.0);
    let why = match std::str::from_utf8(bytes) {
        Ok(text) if text.len() < MIN_STATIC_TOKEN_BYTES => {
            format!("has {} bytes, and {MIN_STATIC_TOKEN_BYTES} are the least", text.len())
        }
        Ok(text) if text.len() > MAX_TOKEN_BYTES => format!("has more than {MAX_TOKEN_BYTES} bytes"),
        Ok(text) if !text.bytes().all(|byte| byte.is_ascii_graphic()) => {
            "has characters that no agent can send: use visible ASCII without blanks".to_owned()
        }
        Ok(text) if is_jwt(text) => "is a JWT, which is checked by its issuer alone".to_owned(),
        Ok(text) => return TokenContent::Token(Sha256::digest(text.as_bytes()).into()),
        Err(_) => "has characters that no agent can send: use visible ASCII without blanks".to_owned(),
    };
    TokenContent::None(why)
}
