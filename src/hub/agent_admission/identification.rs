//! Who the agents are: authenticates each stream, and takes back what a session was given when its identity changes.
//!
//! A stream is identified by the certificate of its connection and by the bearer token in its `authorization`. Which rights
//! that gives is decided by [`kubesvc_core::identity`]; this is where it is asked, and asked again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use secrecy::SecretString;
use tonic::metadata::MetadataMap;
use tonic::{Code, Status};
use tracing::{info, warn};

use crate::agent_tokens::{AgentTokens, TokenError};
use crate::hub::agent_admission::connection::Peer;
use crate::hub::agent_status::identity_conditions::{self, IdentityConditions};
use crate::hub::context::HubContext;
use crate::hub::sessions::Sessions;
use crate::hub::sessions::events::SessionEvent;
use crate::hub::sessions::session::Session;
use crate::hub::sessions::session::identified::Identified;
use crate::hub::{AgentIdentities, IdentityMode};
use kubesvc_core::identity::{AgentCredential, AgentRights, CertificateFacts, IdentityRefusal};
use kubesvc_runtime::background_tasks::{AttemptOutcome, BackgroundTasks, TaskSpec};

/// Time for which a stream waits until the KubesvcIdentities are known.
const FRESH_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval between two looks at credentials that have expired and tokens to review.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Number of looks after which a new token that could not be verified is verified again.
const PENDING_LOOKS: u64 = 5;
/// Maximum number of changed objects handled in one pass.
const MAX_CHANGES_PER_PASS: usize = 1000;

/// The answer to a stream without a credential that can be used.
const UNAUTHENTICATED: &str =
    "the agent shows no valid credential; the operator's log says what is wrong with it";
/// The answer to a stream that is not let in.
const DENIED: &str = "the agent is not let in; the operator's log and its KubesvcAgent say why";

/// The answer to a stream that cannot be judged now.
const UNKNOWN: &str = "the operator cannot check the agent's credential now; try again";

/// What a stream showed, and what that gives.
#[derive(Debug)]
pub(crate) struct ShownIdentity {
    pub(crate) credential: AgentCredential,
    pub(crate) token: Option<SecretString>,
    pub(crate) decision: Result<AgentRights, IdentityRefusal>,
}

/// Identifies agents, and follows the objects by which they are.
pub(crate) struct Identification {
    context: Arc<HubContext>,
    sessions: Arc<Sessions>,
    conditions: Arc<IdentityConditions>,
    /// `None`: everybody is let in (`kubesvc.grpc.auth.mode: open`).
    ports: Option<AgentIdentities>,
}

impl Identification {
    pub(crate) fn new(
        context: Arc<HubContext>,
        sessions: Arc<Sessions>,
        ports: Option<AgentIdentities>,
    ) -> Arc<Self> {
        Arc::new(Self { context, sessions, conditions: Arc::default(), ports })
    }

    /// Whether agents are let in by their identity alone.
    pub(crate) fn is_bound(&self) -> bool {
        self.ports.as_ref().is_some_and(|ports| ports.mode == IdentityMode::Bound)
    }

    /// Whether nobody is asked for an identity.
    pub(crate) fn is_open(&self) -> bool {
        self.ports.is_none()
    }

    /// Authenticates a stream. `None` where nobody is asked. An agent that no object matches is passed on: it is shown before
    /// it is refused.
    ///
    /// # Errors
    /// It shows nothing that can be used (16), or is not let in (7).
    pub(crate) async fn authenticate(
        &self,
        peer: Option<&Peer>,
        metadata: &MetadataMap,
    ) -> Result<Option<ShownIdentity>, Status> {
        let Some(ports) = &self.ports else { return Ok(None) };
        let is_known = match ports.mode {
            IdentityMode::Log => ports.index.is_fresh(),
            IdentityMode::Bound => tokio::time::timeout(FRESH_TIMEOUT, ports.index.fresh()).await.is_ok(),
        };
        if !is_known {
            let why = "the KubesvcIdentities are not known";
            return self.refuse(ports, "identities_unknown", peer, why, Code::Unavailable);
        }
        let shown = match read(peer, metadata, &*ports.tokens).await {
            Ok(shown) => shown,
            Err(TokenError::Unavailable(why)) => {
                return self.refuse(ports, "token_unavailable", peer, &why, Code::Unavailable);
            }
            Err(TokenError::Invalid(why)) => {
                return self.refuse(ports, "invalid_credential", peer, &why, Code::Unauthenticated);
            }
        };
        let (credential, token) = shown;
        let decision = ports.index.identify(&credential, now());
        if let Err(refusal) = &decision {
            if let IdentityRefusal::Ambiguous(names) = refusal {
                self.conditions.saw_ambiguous(names);
            }
            let (reason, code) = match refusal {
                IdentityRefusal::Unknown(_) => {
                    return Ok(Some(ShownIdentity { credential, token, decision }));
                }
                IdentityRefusal::NoCredential => ("no_credential", Code::Unauthenticated),
                IdentityRefusal::Expired => ("expired", Code::Unauthenticated),
                IdentityRefusal::Ambiguous(_) => ("ambiguous", Code::PermissionDenied),
                IdentityRefusal::Suspended(_) => ("suspended", Code::PermissionDenied),
                IdentityRefusal::Revoked { .. } => ("revoked", Code::PermissionDenied),
            };
            return self.refuse(ports, reason, peer, &refusal.to_string(), code);
        }
        Ok(Some(ShownIdentity { credential, token, decision }))
    }

    /// Authenticates a further stream of a session, which has to have an identity already.
    ///
    /// # Errors
    /// It has none.
    pub(crate) async fn authenticate_further(
        &self,
        peer: Option<&Peer>,
        metadata: &MetadataMap,
    ) -> Result<Option<Identified>, Status> {
        let shown = self.authenticate(peer, metadata).await?;
        if !self.is_bound() {
            return Ok(None);
        }
        match shown {
            Some(ShownIdentity { credential, token, decision: Ok(rights) }) => {
                Ok(Some(Identified { rights, credential, token }))
            }
            _ => Err(Status::permission_denied(DENIED)),
        }
    }

    /// Counts and logs a refusal. Returns it, unless identities are only logged. The log says which rule it is; the answer does
    /// not.
    fn refuse(
        &self,
        ports: &AgentIdentities,
        reason: &'static str,
        peer: Option<&Peer>,
        why: &str,
        code: Code,
    ) -> Result<Option<ShownIdentity>, Status> {
        if ports.mode == IdentityMode::Log {
            self.context.metrics.would_refuse(reason);
            self.log(reason, peer, &format!("it would be kept out: {why}"));
            return Ok(None);
        }
        self.context.metrics.refuse_connection(reason);
        self.log(reason, peer, why);
        let text = match code {
            Code::Unauthenticated => UNAUTHENTICATED,
            Code::Unavailable => UNKNOWN,
            _ => DENIED,
        };
        Err(Status::new(code, text))
    }

    fn log(&self, reason: &'static str, peer: Option<&Peer>, why: &str) {
        let address = peer.map(|peer| peer.address);
        if self.context.may_log(reason, address) {
            warn!(peer = address.map(tracing::field::display), reason, "an agent's identity: {why}");
        }
    }

    /// The refusal of an agent that no object matches, or whose claim no object allows. In mode `log` it is counted and passes.
    pub(crate) fn denied(&self, reason: &'static str, peer: Option<&Peer>, why: &str) -> Option<Status> {
        let ports = self.ports.as_ref()?;
        self.refuse(ports, reason, peer, why, Code::PermissionDenied).err()
    }

    /// Decides anew about one session: its rights are replaced, or it is cut.
    pub(crate) fn decide_again(&self, session: &Session) {
        let (Some(ports), Some(before)) = (&self.ports, session.identity.get()) else { return };
        let rights = match ports.index.identify(&before.credential, now()) {
            Ok(rights) => rights,
            Err(refusal) => {
                if let IdentityRefusal::Ambiguous(names) = &refusal {
                    self.conditions.saw_ambiguous(names);
                }
                return self.revoke(session, &refusal.to_string());
            }
        };
        if rights == before.rights {
            return;
        }
        if rights.identity != before.rights.identity {
            return self.revoke(session, &format!("it has the identity {} now", rights.identity));
        }
        if let Err(refusal) = rights.check_claim(session.agent.zone.as_str(), session.agent.id.as_str()) {
            return self.revoke(session, &refusal.to_string());
        }
        info!(
            agentId = session.agent.id.as_str(),
            identity = rights.identity,
            "the rights of the agent changed"
        );
        let (credential, token) = (before.credential.clone(), before.token.clone());
        let lists_anew = rights.static_accounts != before.rights.static_accounts;
        session.identity.put(Identified { rights, credential, token });
        self.sessions.judge_all(session);
        if lists_anew {
            return session.close("what it may do with accounts of its own file has changed");
        }
        self.sessions.stood(session, true);
        self.sessions.publish(session, SessionEvent::ProblemsChanged);
    }

    fn revoke(&self, session: &Session, why: &str) {
        if session.revoke() {
            self.context.metrics.refuse_connection("identity_lost");
            let (agent, zone) = (session.agent.id.as_str(), session.agent.zone.as_str());
            warn!(agentId = agent, zoneId = zone, "session ends: {why}");
        }
    }

    /// Looks at a new token of a session.
    pub(crate) fn renew(self: &Arc<Self>, session: &Arc<Session>, token: SecretString) {
        if !session.identity.begin_renewal() {
            return self.context.metrics.ignore("renewal_under_way");
        }
        let (identification, session) = (Arc::clone(self), Arc::clone(session));
        self.context.tasks.spawn(async move {
            let _ended = ReviewEnd(Arc::clone(&session), true);
            identification.review(&session, token, true).await;
        });
    }

    /// Reviews a token of a session. One that is not good any more ends it; where nobody can be asked, it goes on until its
    /// credential expires, and a new token is looked at again later.
    async fn review(&self, session: &Session, token: SecretString, is_new: bool) {
        let (Some(ports), Some(before)) = (&self.ports, session.identity.get()) else { return };
        match ports.tokens.verify(&token).await {
            Ok(facts) => {
                let credential = AgentCredential { token: Some(facts), ..before.credential.clone() };
                if is_new || (credential != before.credential && session.identity.has_token(&token)) {
                    let rights = before.rights.clone();
                    session.identity.put(Identified { rights, credential, token: Some(token) });
                }
                self.decide_again(session);
            }
            // A new one may have come while the former one was reviewed.
            Err(TokenError::Invalid(_)) if !is_new && !session.identity.has_token(&token) => {}
            Err(TokenError::Invalid(why)) => self.revoke(session, &why),
            Err(TokenError::Unavailable(why)) => {
                if self.context.may_log("token_unavailable", session.agent.peer) {
                    warn!(agentId = session.agent.id.as_str(), "cannot review the agent's token: {why}");
                }
                if is_new {
                    session.identity.keep_pending(token);
                }
            }
        }
    }

    /// Ends sessions whose credential has expired, and starts the reviews that are due.
    fn look(self: &Arc<Self>, retries_pending: bool) {
        let (at, instant) = (now(), Instant::now());
        for session in self.sessions.registry.in_force() {
            let Some(identified) = session.identity.get() else { continue };
            if identified.credential.expires().is_some_and(|end| end <= at) {
                session.expire();
                continue;
            }
            if retries_pending && let Some(token) = session.identity.take_pending() {
                self.renew(&session, token);
            }
            let Some(token) = session.identity.due_review(instant) else { continue };
            let identification = Arc::clone(self);
            self.context.tasks.spawn(async move {
                let _ended = ReviewEnd(Arc::clone(&session), false);
                identification.review(&session, token, false).await;
            });
        }
    }

    /// Decides anew about all sessions that these objects concern.
    fn objects_changed(&self, names: &[String]) {
        let Some(ports) = &self.ports else { return };
        for session in self.sessions.registry.in_force() {
            let Some(identified) = session.identity.get() else { continue };
            let concerns = |name: &String| {
                *name == identified.rights.identity || ports.index.concerns(name, &identified.credential)
            };
            if names.iter().any(concerns) {
                self.decide_again(&session);
            }
        }
        names.iter().for_each(|name| self.conditions.changed(name));
    }
}

/// Starts the tasks that follow the objects, and the credentials of sessions.
pub(crate) fn start(background: &BackgroundTasks, identification: &Arc<Identification>) {
    let Some(ports) = &identification.ports else { return };
    let (index, objects) = (Arc::clone(&ports.index), Arc::clone(&ports.objects));
    identity_conditions::start(background, &identification.conditions, index, objects);
    let changed = ports.index.changes();
    let task = TaskSpec::new("agents' identities", "Applies changed KubesvcIdentities to sessions");
    let following = Arc::clone(identification);
    background.start(task.woken_by(&changed).batch(MAX_CHANGES_PER_PASS), move |names: Vec<String>| {
        following.objects_changed(&names);
        std::future::ready(AttemptOutcome::Done)
    });
    let task = TaskSpec::new("agents' credentials", "Ends sessions whose credential has expired");
    let (looking, looks) = (Arc::clone(identification), AtomicU64::new(0));
    background.start(task.every(LOOK_INTERVAL), move |_: Vec<()>| {
        looking.look(looks.fetch_add(1, Ordering::Relaxed).is_multiple_of(PENDING_LOOKS));
        std::future::ready(AttemptOutcome::Done)
    });
}

fn now() -> i64 {
    jiff::Timestamp::now().as_second()
}

/// Reads what a stream shows.
async fn read(
    peer: Option<&Peer>,
    metadata: &MetadataMap,
    tokens: &dyn AgentTokens,
) -> Result<(AgentCredential, Option<SecretString>), TokenError> {
    let leaf = peer.and_then(|peer| peer.certificates.first());
    let certificate = leaf.map(|leaf| CertificateFacts::read(leaf)).transpose();
    let certificate = certificate.map_err(|error| TokenError::Invalid(error.to_string()))?;
    let token = bearer(metadata).map_err(|why| TokenError::Invalid(why.to_owned()))?;
    let facts = match &token {
        Some(token) => Some(tokens.verify(token).await?),
        None => None,
    };
    Ok((AgentCredential { certificate, token: facts }, token))
}

/// The bearer token of a stream.
fn bearer(metadata: &MetadataMap) -> Result<Option<SecretString>, &'static str> {
    let mut values = metadata.get_all("authorization").iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err("it sends several authorization headers");
    }
    let text = value.to_str().map_err(|_| "its authorization is no visible ASCII")?;
    let token = text.split_once(' ').filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
    let (_, token) = token.ok_or("its authorization is no bearer token")?;
    Ok(Some(SecretString::from(token.trim().to_owned())))
}

/// Ends the review of a session's token when dropped; `1`: of a new one.
struct ReviewEnd(Arc<Session>, bool);

impl Drop for ReviewEnd {
    fn drop(&mut self) {
        let Self(session, is_new) = self;
        if *is_new { session.identity.end_renewal() } else { session.identity.end_review() }
    }
}
