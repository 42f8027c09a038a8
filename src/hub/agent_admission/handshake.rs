//! From the opened stream to a connected session: Hello, claim of the agent id, registration, Accepted.

use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::{FutureExt as _, StreamExt};
use tonic::{Status, Streaming};
use tracing::{info, warn};

use crate::hub::agent_admission::Admission;
use crate::hub::agent_admission::QueuedAgent;
use crate::hub::agent_admission::connection::Peer;
use crate::hub::agent_admission::hello::{self, AcceptedHello, HelloRefusal, millis};
use crate::hub::agent_admission::identification::{Identification, ShownIdentity};
use crate::hub::agent_admission::queue::AdmissionClass;
use crate::hub::agent_status::disconnects::{self, Disconnect};
use crate::hub::agent_status::registration::{
    IdentityBinding, RegisteredIdentity, Registration, RegistrationError, Stranger,
};
use crate::hub::caching::Caching;
use crate::hub::context::HubContext;
use crate::hub::requests::Requests;
use crate::hub::sessions::events::SessionEvent;
use crate::hub::sessions::registry::ClaimError;
use crate::hub::sessions::session::frame_queue::{FrameQueue, HubFrameSender};
use crate::hub::sessions::session::identified::Identified;
use crate::hub::sessions::session::session_loop::{SessionLoop, SessionParts};
use crate::hub::sessions::session::{AgentIdentity, ApprovalSource, Session};
use kubesvc_core::agent_resource::ID_RESERVATION;
use kubesvc_core::identity::CredentialMatch;
use kubesvc_core::object_names;
use kubesvc_core::requests;
use kubesvc_core::wire::ops::refused::Reason;
use kubesvc_core::wire::ops::{self, agent_frame, hub_frame};
use kubesvc_core::wire::{PROTOCOL_VERSION, REAUTH_CAPABILITY, REFUSALS_CAPABILITY};
use kubesvc_runtime::crash_points;
use kubesvc_runtime::telemetry::outages::warn_unless_away;

/// Delays before each attempt to register.
const REGISTRATION_RETRY_DELAYS: [Duration; 6] = [
    Duration::ZERO,
    Duration::from_millis(200),
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(4),
];
/// Minimum delay given to an agent whose registration failed.
const REGISTRATION_RETRY_DELAY: Duration = Duration::from_secs(5);
/// Delay given to an agent whose id is connected at another replica by its object. That replica may be about to write
/// the disconnect, or to be considered dead.
const CONNECTED_AT_PEER_RETRY_DELAY: Duration = Duration::from_secs(5);
/// Time limit for the former stream of the same process to end.
const FORMER_STREAM_TIMEOUT: Duration = Duration::from_secs(2);

/// The parts that run an agent's stream.
pub(crate) struct AgentStreams {
    pub(crate) admission: Arc<Admission>,
    pub(crate) parts: Arc<SessionParts>,
    /// The streams of cached objects; absent: this operator takes none.
    pub(crate) caching: Option<Arc<Caching>>,
    /// The streams of requests.
    pub(crate) requests: Arc<Requests>,
    pub(crate) identification: Arc<Identification>,
}

/// The client of a stream, and what it showed.
pub(crate) struct AgentClient {
    pub(crate) peer: Option<Peer>,
    /// `None`: nobody is asked for an identity.
    pub(crate) shown: Option<ShownIdentity>,
}

/// Runs the stream of one agent.
///
/// Each phase is boxed, so that an idle session keeps no memory for the state of finished phases.
pub(crate) async fn run(
    streams: Arc<AgentStreams>,
    mut inbound: Streaming<ops::AgentFrame>,
    sink: HubFrameSender,
    AgentClient { peer: client, shown }: AgentClient,
) {
    let admission = &*streams.admission;
    let peer = client.as_ref().map(|client| client.address);
    let greeting = tokio::select! {
        () = admission.context.stopping.cancelled() => Err(admission.draining.refusal()),
        greeting = Box::pin(greet(admission, &mut inbound, &sink)) => match greeting {
            Some(greeting) => greeting,
            None => return,
        },
    };
    let mut greeting = match greeting {
        Ok(greeting) => greeting,
        Err(refusal) => return refuse(admission, &sink, (peer, None), refusal).await,
    };
    let identity = match identify(&streams, &greeting, shown, client.as_ref()).await {
        Ok(identity) => identity,
        Err(NotIdentified::Refused(refusal)) => return refuse(admission, &sink, (peer, None), refusal).await,
        Err(NotIdentified::Denied(status)) => {
            let _ = sink.send(Err(status)).await;
            return;
        }
    };
    let class = admission.class(&greeting, identity.identified.is_some());
    if admission.draining.is_isolated() {
        return refuse(admission, &sink, (peer, None), admission.draining.refusal()).await;
    }
    let foreign = match Box::pin(admission.limit(&mut greeting, class)).await {
        Ok(foreign) => foreign,
        Err(refusal) => return refuse(admission, &sink, (peer, None), refusal).await,
    };
    // Before the claim of the agent id: the former stream stays until this one has a place.
    let queued = match admission.enqueue(&greeting, class) {
        Ok(queued) => queued,
        Err(refusal) => return refuse(admission, &sink, (peer, None), refusal).await,
    };
    let agent = AgentIdentity { peer, ..greeting.agent.clone() };
    let AdmittedIdentity { identified, registered } = identity;
    let tick = admission.context.ticks.now();
    let session = Arc::new(Session::new(agent, identified, greeting.has_unheard, tick));
    session.claimed(foreign);
    let was_revoked = client.as_ref().map(|client| Arc::clone(&client.revoked));
    let lived = Box::pin(live(&streams, &session, (greeting, registered), queued, inbound, sink, client));
    // Also after a panic, or the agent id would stay claimed for the life of the process.
    let lived = AssertUnwindSafe(lived).catch_unwind().await;
    if was_revoked.is_some_and(|revoked| revoked.load(Ordering::SeqCst)) {
        session.revoke();
    }
    Box::pin(leave(&streams, &session)).await;
    if let Err(panic) = lived {
        std::panic::resume_unwind(panic);
    }
}

/// Runs the stream from the claim of the agent id to its end.
async fn live(
    streams: &AgentStreams,
    session: &Arc<Session>,
    (greeting, identity): (AcceptedHello, Option<RegisteredIdentity>),
    queued: QueuedAgent<'_>,
    inbound: Streaming<ops::AgentFrame>,
    sink: HubFrameSender,
    client: Option<Peer>,
) {
    let admission = &*streams.admission;
    let peer = client.as_ref().map(|client| client.address);
    let accepted = tokio::select! {
        () = closed_for_good(session) => None,
        () = sink.closed() => None,
        () = admission.draining.sends_away() => Some(Err(admission.draining.refusal())),
        admitted = Box::pin(admit(streams, session, &greeting, identity, queued)) => Some(admitted),
    };
    match accepted {
        Some(Ok(())) => {
            info!(
                agentId = session.agent.id.as_str(),
                zoneId = session.agent.zone.as_str(),
                version = session.agent.version,
                approved = session.is_approved(),
                held = greeting.held.len(),
                peer = peer.map(tracing::field::display),
                certificate = client.as_ref().and_then(Peer::fingerprint),
                "agent connected"
            );
            let mut frames = FrameQueue::new(sink);
            frames.push(hub_frame::Frame::Accepted(accepted_frame(admission, session)));
            let max_message_bytes = greeting.max_message_bytes;
            // A hello may claim 100,000 accounts; the ledger has them by now.
            drop(greeting);
            let session_loop =
                SessionLoop::new(Arc::clone(&streams.parts), Arc::clone(session), frames, max_message_bytes);
            Box::pin(session_loop.run(inbound)).await;
        }
        Some(Err(refusal)) => refuse(admission, &sink, (peer, Some(session)), refusal).await,
        None => {
            let _ = sink.try_send(Err(session.closing_status()));
        }
    }
}

/// The identity of an agent that is let in.
struct AdmittedIdentity {
    /// Where identities count: what the agent showed, and its rights.
    identified: Option<Identified>,
    /// What its KubesvcAgent says of it.
    registered: Option<RegisteredIdentity>,
}

/// Why an agent is not let in.
enum NotIdentified {
    Refused(HelloRefusal),
    Denied(Status),
}

/// Checks the identity of an agent against what its hello claims. One that no KubesvcIdentity admits is shown in its
/// KubesvcAgent.
async fn identify(
    streams: &AgentStreams,
    greeting: &AcceptedHello,
    shown: Option<ShownIdentity>,
    peer: Option<&Peer>,
) -> Result<AdmittedIdentity, NotIdentified> {
    let identification = &streams.identification;
    let Some(shown) = shown else {
        return Ok(AdmittedIdentity { identified: None, registered: None });
    };
    let AgentIdentity { id, zone, .. } = &greeting.agent;
    let ShownIdentity { credential, token, decision } = shown;
    let identified = match decision {
        Ok(rights) => Identified { rights, credential, token },
        Err(refusal) => {
            let (credential, why) = (credential.to_match(), refusal.to_string());
            let Some(status) = identification.denied("unknown", peer, &why) else {
                let registered = RegisteredIdentity { credential, why: Some(why), ..Default::default() };
                return Ok(AdmittedIdentity { identified: None, registered: Some(registered) });
            };
            show(&streams.admission, greeting, credential, why).await;
            return Err(NotIdentified::Denied(status));
        }
    };
    let name = Some(identified.rights.identity.clone());
    let credential = identified.credential.to_match();
    let claim = identified.rights.check_claim(zone.as_str(), id.as_str());
    if let Err(refusal) = claim {
        let why = refusal.to_string();
        if identification.denied("claim", peer, &why).is_some() {
            let message = format!("agent {id:?} may not be in zone {zone:?}; see the operator's log");
            return Err(NotIdentified::Refused(HelloRefusal::permanent(Reason::ZoneForbidden, message)));
        }
        let registered = RegisteredIdentity { name, credential, why: Some(why), binding: None };
        return Ok(AdmittedIdentity { identified: None, registered: Some(registered) });
    }
    let is_bound = identification.is_bound();
    let binding = is_bound.then_some(IdentityBinding { offers: identified.rights.offers });
    let registered = RegisteredIdentity { name, credential, why: None, binding };
    Ok(AdmittedIdentity { identified: is_bound.then_some(identified), registered: Some(registered) })
}

/// Shows an agent that is not admitted, as far as there is room for such agents.
async fn show(
    admission: &Admission,
    greeting: &AcceptedHello,
    credential: Option<CredentialMatch>,
    why: String,
) {
    let Ok(queued) = admission.enqueue(greeting, AdmissionClass::Unapproved) else { return };
    let AgentIdentity { id, zone, boot_id, version, .. } = &greeting.agent;
    let stranger = Stranger {
        agent_id: id.clone(),
        zone: zone.clone(),
        session_id: ulid::Ulid::generate().to_string().into(),
        boot_id: boot_id.clone(),
        replica: admission.context.settings.replica_id.clone(),
        version: version.clone(),
        credential,
        why,
    };
    let permits = admission.agent_status.registrations.of(queued.class(), false);
    let Ok(_permit) = permits.acquire().await else { return };
    if let Err(problem) = admission.agent_status.agents.show(&stranger).await {
        warn_unless_away!(agentId = id.as_str(), error = %problem, "cannot show an agent that is not admitted");
    }
}

/// Waits until the session is closed, except for an agent that is to say hello anew: it is accepted first, since it can be told
/// that on no other stream.
async fn closed_for_good(session: &Session) {
    session.until_closed().await;
    if session.is_to_say_hello_anew() {
        std::future::pending::<()>().await;
    }
}

/// Reads and checks the first frame; `None` if the stream has ended.
async fn greet(
    admission: &Admission,
    inbound: &mut Streaming<ops::AgentFrame>,
    sink: &HubFrameSender,
) -> Option<Result<AcceptedHello, HelloRefusal>> {
    let context = &admission.context;
    let wait = context.settings.listener.hello_wait;
    let status = match tokio::time::timeout(wait, inbound.next()).await {
        Err(_) => Status::deadline_exceeded(format!("the first frame must be Hello, within {wait:?}")),
        Ok(None) => return None,
        Ok(Some(Err(status))) => Status::new(status.code(), status.message()),
        Ok(Some(Ok(frame))) => {
            context.metrics.frames_in.inc();
            return Some(match frame.frame {
                Some(agent_frame::Frame::Hello(hello)) => {
                    hello::check(hello, context.settings.sessions.max_message_bytes)
                }
                _ => Err(HelloRefusal::permanent(Reason::Malformed, "the first frame must be Hello")),
            });
        }
    };
    context.metrics.refuse("NO_HELLO");
    let _ = sink.send(Err(status)).await;
    None
}

/// Claims the agent id, registers and connects the session.
async fn admit(
    streams: &AgentStreams,
    session: &Arc<Session>,
    greeting: &AcceptedHello,
    identity: Option<RegisteredIdentity>,
    queued: QueuedAgent<'_>,
) -> Result<(), HelloRefusal> {
    let admission = &*streams.admission;
    let Admission { context, sessions, .. } = admission;
    let former = sessions.registry.claim(session, context.silence_limit(), context.moment());
    let former = former.map_err(|taken| {
        if matches!(taken, ClaimError::Other(_))
            && let Some(current) = sessions.registry.of_agent(&session.agent.key())
        {
            let peer = session.agent.peer.map(|peer| peer.ip());
            current.contest.lock().refused(peer, context.moment());
            sessions.publish(&current, SessionEvent::ProblemsChanged);
        }
        duplicate(session, &taken)
    })?;
    if let Some(former) = &former {
        let _ = tokio::time::timeout(FORMER_STREAM_TIMEOUT, former.ended.cancelled()).await;
    }
    let class = queued.class();
    let needs_accounts = class != AdmissionClass::Unapproved && admission.needs_accounts_of_zone(greeting);
    register(admission, session, class, needs_accounts, identity).await?;
    drop(queued);
    // An object may have changed since the stream was identified, before the session was among those that follow it.
    streams.identification.decide_again(session);
    if session.is_revoked() {
        let message = "the agent's identity was taken from it while it connected";
        return Err(HelloRefusal::permanent(Reason::ZoneForbidden, message));
    }
    // Claims of an agent that was never approved do not count.
    if session.was_approved() {
        seed(session, greeting, former.as_deref());
        sessions.judge_all(session);
    } else if greeting.claims() {
        session.ignore_claims();
    }
    sessions.registry.concern(session.serial, &session.uids());
    let first = sessions.registry.connect(session).ok_or_else(|| duplicate(session, &ClaimError::Later))?;
    context.metrics.sessions_accepted.inc();
    context.metrics.sessions.inc();
    sessions.connected.send_modify(|count| *count += 1);
    sessions.stood(session, first);
    Ok(())
}

async fn register(
    admission: &Admission,
    session: &Session,
    class: AdmissionClass,
    needs_accounts: bool,
    identity: Option<RegisteredIdentity>,
) -> Result<(), HelloRefusal> {
    let Admission { context, agent_status, .. } = admission;
    let registration = Registration {
        agent_id: session.agent.id.clone(),
        zone: session.agent.zone.clone(),
        session_id: session.id.clone(),
        boot_id: session.agent.boot_id.clone(),
        connect_seq: session.agent.connect_seq,
        replica: context.settings.replica_id.clone(),
        version: session.agent.version.clone(),
        protocol: PROTOCOL_VERSION,
        connected_since: session.connected_since(),
        cluster_uid: session.agent.cluster_uid.clone(),
        streams_objects: session.agent.streams_objects,
        needs_accounts,
        admission: class,
        identity,
    };
    let permits = agent_status.registrations.of(class, needs_accounts);
    for wait in REGISTRATION_RETRY_DELAYS {
        tokio::time::sleep(wait).await;
        let Ok(_permit) = permits.acquire().await else { break };
        crash_points::point("agent-object:before");
        let registered = agent_status.agents.register(&registration).await;
        crash_points::point("agent-object:after");
        match registered {
            Ok(registered) => {
                session.registered(registered.version);
                if registered.approved_once {
                    session.set_was_approved();
                }
                session.approve(registered.approved, ApprovalSource::Registration(registered.version));
                return Ok(());
            }
            Err(RegistrationError::Superseded) => return Err(duplicate(session, &ClaimError::Later)),
            Err(RegistrationError::ConnectedElsewhere(_)) => {
                return Err(duplicate(
                    session,
                    &ClaimError::Other(CONNECTED_AT_PEER_RETRY_DELAY.min(context.silence_limit())),
                ));
            }
            Err(RegistrationError::Kept(left)) => return Err(duplicate(session, &ClaimError::Kept(left))),
            Err(problem) => {
                warn_unless_away!(agentId = session.agent.id.as_str(), error = %problem, "cannot register the agent; retrying");
            }
        }
    }
    let message = "the operator cannot write the KubesvcAgent object; see its log, and try again later";
    let wait = admission.requeue(class).max(REGISTRATION_RETRY_DELAY);
    Err(HelloRefusal::for_now(Reason::Overloaded, message, wait))
}

/// Initializes the ledger with the hello and with the former stream of the same process.
fn seed(session: &Session, greeting: &AcceptedHello, former: Option<&Session>) {
    let former = former.filter(|former| former.is_of_process(session));
    let before = former.map(|former| former.ledger.lock().clone()).unwrap_or_default();
    {
        let mut ledger = session.ledger.lock();
        ledger.seed(&greeting.held, &before);
        ledger.are_foreign(session.take_claimed_uids().into_iter());
    }
    let mut cached = session.cached.lock();
    greeting.cached.iter().for_each(|(uid, epoch)| cached.seed(uid, *epoch));
}

/// Handles the end of the stream: the agent is away from now on, unless it has another stream.
async fn leave(streams: &AgentStreams, session: &Arc<Session>) {
    let Admission { context, sessions, agent_status, draining, .. } = &*streams.admission;
    let stood = sessions.registry.is_connected(session);
    let ending = session.ending(context.stopping.is_cancelled() || draining.is_isolated());
    let in_force = sessions.registry.leave(session, context.ticks.now(), ending);
    session.ended.cancel();
    let uids = session.uids();
    sessions.release(session, &uids);
    session.forget_claims();
    if !stood {
        // It may have been registered all the same. If the object shows that later, it is handled then.
        let seen =
            context.agent_index.get(&object_names::agent_object_name(&session.agent.id, &session.agent.zone));
        if session.is_revoked() {
            disconnects::record(agent_status, Disconnect::new(session, session.end(ending))).await;
        } else if let Some(agent) = seen {
            agent_status.queue_missed_disconnect(&agent);
        }
        return;
    }
    context.metrics.sessions.dec();
    context.metrics.sessions_ended.inc();
    streams.parts.zone_probes.withdraw_all(session);
    sessions.ended(session, &uids);
    sessions.connected.send_modify(|count| *count -= 1);
    // While the replica stops, the others learn from its Lease that its agents have left; nothing is written for
    // each.
    let is_known = context.stopping.is_cancelled() && !context.replicas.others().is_empty();
    // A disconnect on request is always written, or the others would not reserve the id.
    if in_force && (!is_known || session.was_closed_on_request()) {
        let disconnect = Disconnect::new(session, session.end(ending));
        if session.is_to_say_hello_anew() {
            // The agent is about to be registered again. Its object is written at intervals, so a write now would only delay
            // that.
            agent_status.pending_disconnects.put(disconnect);
        } else {
            disconnects::record(agent_status, disconnect).await;
        }
    }
}

async fn refuse(
    admission: &Admission,
    sink: &HubFrameSender,
    (peer, session): (Option<SocketAddr>, Option<&Session>),
    refusal: HelloRefusal,
) {
    admission.context.metrics.refuse(refusal.reason.as_str_name());
    if admission.context.may_log(refusal.reason.as_str_name(), peer) {
        let agent = session.map(|session| session.agent.id.as_str()).unwrap_or_default();
        warn!(
            agentId = agent,
            reason = refusal.reason.as_str_name(),
            message = refusal.message,
            "agent refused"
        );
    }
    let frame = Some(hub_frame::Frame::Refused(refusal.into_frame()));
    let _ = sink.send(Ok(ops::HubFrame { frame, seq: 1, ack: 1 })).await;
}

fn duplicate(session: &Session, taken: &ClaimError) -> HelloRefusal {
    let (agent, zone) = (&session.agent.id, &session.agent.zone);
    let (message, wait) = match taken {
        ClaimError::Other(wait) => (
            format!(
                "another process is connected as agent {agent:?} of zone {zone:?}; give each agent an AGENT_ID of its own, \
                 and the agents of each cluster a zone of their own, or wait until the other one is gone"
            ),
            *wait,
        ),
        ClaimError::Kept(left) => (
            format!(
                "agent {agent:?} was disconnected on request, and its id is kept for its process for \
                 {ID_RESERVATION:?}; a process that was started since may have it after that"
            ),
            *left,
        ),
        ClaimError::Later => {
            (format!("a later connection of this process of agent {agent:?} stands"), Duration::ZERO)
        }
    };
    let wait = wait.max(Duration::from_secs(1));
    HelloRefusal::for_now(Reason::DuplicateAgentId, message, wait)
}

/// The capabilities that both sides have.
fn capabilities(context: &HubContext, session: &Session) -> Vec<String> {
    let agent = &session.agent;
    let both =
        [(hello::CACHING_CAPABILITY, agent.streams_objects), (hello::ZSTD_CAPABILITY, agent.takes_zstd)];
    let common = both.into_iter().filter(|(_, agent_has)| *agent_has && context.streams_objects());
    let requests = agent.takes_requests.then_some(requests::CAPABILITY);
    let refusals = agent.tells_refusals.then_some(REFUSALS_CAPABILITY);
    let renewal = session.identity.get().and(agent.renews_tokens.then_some(REAUTH_CAPABILITY));
    common
        .map(|(capability, _)| capability)
        .chain(requests)
        .chain(refusals)
        .chain(renewal)
        .map(str::to_owned)
        .collect()
}

fn accepted_frame(admission: &Admission, session: &Session) -> ops::Accepted {
    let settings = &admission.context.settings;
    ops::Accepted {
        session_id: session.id.to_string(),
        replica_id: settings.replica_id.to_string(),
        approved: session.is_approved(),
        protocol: PROTOCOL_VERSION,
        capabilities: capabilities(&admission.context, session),
        heartbeat_ms: millis(settings.sessions.heartbeat),
        max_message_bytes: u32::try_from(settings.sessions.max_message_bytes).unwrap_or(u32::MAX),
    }
}
