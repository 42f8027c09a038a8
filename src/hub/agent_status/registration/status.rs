//! The status of a KubesvcAgent, made from the previous one.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta, Time};

use crate::hub::agent_status::registration::{
    AgentSummary, KnownAgent, RegisteredIdentity, Registration, RegistrationError, Stranger,
};
use kubesvc_core::agent_resource::{AgentSession, IDENTIFIED, SessionEnd};
use kubesvc_core::failure::{FailureClass, truncate};
use kubesvc_core::report_outbox::OutboxEntry;
use kubesvc_core::{
    APPROVED_AUTOMATICALLY, APPROVED_BY_ANNOTATION, AgentId, KubesvcAgent, KubesvcAgentSpec,
    KubesvcAgentStatus, ReplicaId, SessionId, ZONE_LABEL, ZoneId, object_names,
};

/// Condition type for the accounts of the agent's own file.
const STATIC_ACCOUNTS: &str = "StaticAccounts";
/// Condition type for the cluster that the agent runs in or reaches.
const SAME_CLUSTER: &str = "SameCluster";
/// Time after which an agent that gets no session is shown anew: its object is removed a minute after it was shown.
const SHOWN_FOR: Duration = Duration::from_secs(20);
/// Condition type for the id of the agent in its zone.
const UNIQUE_ID: &str = "UniqueId";
/// Reason while another process connects under the id.
pub(crate) const DUPLICATE_AGENT_ID: &str = "DuplicateAgentId";
/// Maximum length of a condition's message, in bytes.
const MAX_MESSAGE_BYTES: usize = 1024;

/// Returns a new object of an agent that nobody has approved.
pub(super) fn unapproved_object(name: &str, agent_id: &AgentId, zone: &ZoneId) -> KubesvcAgent {
    object(name, (agent_id, zone), false)
}

pub(crate) fn new_object(name: &str, registration: &Registration, approved: bool) -> KubesvcAgent {
    object(name, (&registration.agent_id, &registration.zone), approved)
}

fn object(name: &str, (agent_id, zone): (&AgentId, &ZoneId), approved: bool) -> KubesvcAgent {
    let labels = object_names::is_label_value(zone.as_str())
        .then(|| BTreeMap::from([(ZONE_LABEL.to_owned(), zone.to_string())]));
    let annotations = approved
        .then(|| BTreeMap::from([(APPROVED_BY_ANNOTATION.to_owned(), APPROVED_AUTOMATICALLY.to_owned())]));
    KubesvcAgent {
        metadata: ObjectMeta { name: Some(name.to_owned()), labels, annotations, ..ObjectMeta::default() },
        spec: KubesvcAgentSpec { agent_id: agent_id.clone(), zone_id: zone.clone(), approved },
        status: None,
    }
}

/// Returns the status with a new session.
pub(crate) fn registered(
    agent: &KubesvcAgent,
    registration: &Registration,
    is_alive: impl Fn(&ReplicaId) -> bool,
    now: Timestamp,
) -> Result<KubesvcAgentStatus, RegistrationError> {
    if agent.spec.agent_id != registration.agent_id || agent.spec.zone_id != registration.zone {
        return Err(RegistrationError::NameTaken(agent.metadata.name.clone().unwrap_or_default()));
    }
    let before = agent.status.clone().unwrap_or_default();
    if let Some(session) = &before.session
        && session.boot_id == registration.boot_id
        && session.connect_seq > registration.connect_seq
        && !is_anothers(&before, session, registration)
    {
        return Err(RegistrationError::Superseded);
    }
    if let Some(session) = before.session.as_ref().filter(|_| before.connected)
        && session.boot_id != registration.boot_id
        && session.replica != registration.replica
        && is_alive(&session.replica)
    {
        return Err(RegistrationError::ConnectedElsewhere(session.replica.clone()));
    }
    let other = before.session.as_ref().filter(|session| session.boot_id != registration.boot_id);
    if let Some(left) = other.and_then(|session| session.kept_for(now)) {
        return Err(RegistrationError::Kept(left));
    }
    let identity = registration.identity.as_ref();
    let identified = identity.and_then(|identity| identity.binding.as_ref()).map(|_| true);
    let same_process = before.session.as_ref().is_some_and(|session| session.boot_id == registration.boot_id);
    Ok(KubesvcAgentStatus {
        session: Some(AgentSession {
            id: registration.session_id.clone(),
            boot_id: registration.boot_id.clone(),
            connect_seq: registration.connect_seq,
            replica: registration.replica.clone(),
            ended: None,
            ended_at: None,
            incarnation: None,
            streams_objects: Some(registration.streams_objects),
        }),
        connected: true,
        approved_once: before.approved_once || identified.unwrap_or(agent.spec.approved),
        identified,
        offers: identity.and_then(|identity| identity.binding.as_ref()).map(|binding| binding.offers),
        identity: identity.and_then(|identity| identity.name.clone()),
        credential: identity.and_then(|identity| identity.credential.clone()),
        conditions: identified_conditions(&before.conditions, identity, now),
        connected_since: Some(Time(whole_seconds(registration.connected_since))),
        version: (!registration.version.is_empty()).then(|| registration.version.clone()),
        protocol_version: i32::try_from(registration.protocol).ok(),
        outbox: Vec::new(),
        // A new process may have another file; its accounts are unknown until it sends its list.
        static_accounts: before.static_accounts.filter(|_| same_process),
        static_sources: before.static_sources.filter(|_| same_process),
        cluster_uid: (!registration.cluster_uid.is_empty()).then(|| registration.cluster_uid.clone()),
        ..before
    })
}

/// Whether the last session of an object was of another holder, who cannot supersede this one by the id of its process.
fn is_anothers(before: &KubesvcAgentStatus, session: &AgentSession, registration: &Registration) -> bool {
    registration.identity.as_ref().is_some_and(|identity| {
        !before.connected
            && (identity.credential != before.credential || session.ended == Some(SessionEnd::Revoked))
    })
}

/// Returns the status that shows an agent which no KubesvcIdentity admits, and which gets no session; `None` if the object is
/// of an agent that was approved or is connected, or shows the same since less than [`SHOWN_FOR`].
pub(crate) fn shown(agent: &KubesvcAgent, stranger: &Stranger, now: Timestamp) -> Option<KubesvcAgentStatus> {
    let before = agent.status.clone().unwrap_or_default();
    let is_other = agent.spec.agent_id != stranger.agent_id || agent.spec.zone_id != stranger.zone;
    if is_other || before.connected || before.approved_once {
        return None;
    }
    let identity = RegisteredIdentity {
        name: None,
        credential: stranger.credential.clone(),
        why: Some(stranger.why.clone()),
        binding: None,
    };
    let conditions = identified_conditions(&before.conditions, Some(&identity), now);
    let recently = |session: &AgentSession| {
        let since = session.ended_at.as_ref().map(|at| now.duration_since(at.0).unsigned_abs());
        since.is_some_and(|since| since < SHOWN_FOR)
    };
    let shows_it = before.credential == identity.credential && before.conditions == conditions;
    if shows_it && before.session.as_ref().is_some_and(recently) {
        return None;
    }
    let session = AgentSession {
        id: stranger.session_id.clone(),
        boot_id: stranger.boot_id.clone(),
        replica: stranger.replica.clone(),
        ended: Some(SessionEnd::Revoked),
        ended_at: Some(Time(next_second(now))),
        ..AgentSession::default()
    };
    Some(KubesvcAgentStatus {
        session: Some(session),
        identified: Some(false),
        identity: None,
        offers: None,
        credential: identity.credential,
        version: (!stranger.version.is_empty()).then(|| stranger.version.clone()),
        conditions,
        ..before
    })
}

/// Returns the conditions with the one about the agent's identity replaced, which is absent where identities do not count.
fn identified_conditions(
    before: &[Condition],
    identity: Option<&RegisteredIdentity>,
    now: Timestamp,
) -> Vec<Condition> {
    let known = before.iter().find(|one| one.type_ == IDENTIFIED);
    let mut conditions: Vec<_> = before.iter().filter(|one| one.type_ != IDENTIFIED).cloned().collect();
    let Some(identity) = identity else { return conditions };
    let (status, reason, mut message) = match (&identity.name, &identity.why) {
        (Some(name), None) => ("True", "Identified", format!("KubesvcIdentity {name} admits the agent")),
        (_, why) => ("False", "NotIdentified", why.clone().unwrap_or_default()),
    };
    truncate(&mut message, MAX_MESSAGE_BYTES);
    let since = known.filter(|one| one.status == status).map(|one| one.last_transition_time.clone());
    conditions.push(Condition {
        type_: IDENTIFIED.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message,
        last_transition_time: since.unwrap_or_else(|| Time(whole_seconds(now))),
        observed_generation: None,
    });
    conditions
}

/// Returns the status after the end of a session; `None` if there is nothing to write.
pub(crate) fn disconnected(
    agent: &KubesvcAgent,
    session_id: &SessionId,
    end: SessionEnd,
    now: Timestamp,
) -> Option<KubesvcAgentStatus> {
    let status = agent.status.as_ref().filter(|status| status.connected)?;
    let session = status.session.as_ref().filter(|session| session.id == *session_id)?;
    let session =
        AgentSession { ended: Some(end), ended_at: Some(Time(next_second(now))), ..session.clone() };
    let mut status = status.clone();
    if end == SessionEnd::Revoked {
        let why =
            "its identity was taken from it, or its credential has expired; the operator's log says which"
                .to_owned();
        let identity = RegisteredIdentity { why: Some(why), ..RegisteredIdentity::default() };
        status.conditions = identified_conditions(&status.conditions, Some(&identity), now);
        (status.identified, status.identity, status.offers) = (Some(false), None, None);
    }
    Some(KubesvcAgentStatus {
        connected: false,
        session: Some(session),
        connected_since: None,
        held: None,
        failed: None,
        ..status
    })
}

/// Returns the status that records an approval; `None` if it is recorded, not given, or the object names another
/// session.
pub(super) fn approved(agent: &KubesvcAgent, session_id: &SessionId) -> Option<KubesvcAgentStatus> {
    let status = agent.status.as_ref().filter(|status| agent.spec.approved && !status.approved_once)?;
    let ours = status.session.as_ref().is_some_and(|session| session.id == *session_id);
    ours.then(|| KubesvcAgentStatus { approved_once: true, ..status.clone() })
}

/// Returns the status with these reports; `None` if the object names another session.
pub(crate) fn reported(
    agent: &KubesvcAgent,
    session_id: &SessionId,
    outbox: &[OutboxEntry],
) -> Option<KubesvcAgentStatus> {
    let status = agent.status.as_ref()?;
    let ours = status.session.as_ref().is_some_and(|session| session.id == *session_id);
    ours.then(|| KubesvcAgentStatus { outbox: outbox.to_vec(), ..status.clone() })
}

/// Returns the status with this summary; `None` if it is unchanged, or the object names another session.
pub(super) fn summarized(
    agent: &KubesvcAgent,
    session_id: &SessionId,
    summary: &AgentSummary,
) -> Option<KubesvcAgentStatus> {
    let status = agent.status.as_ref()?;
    let ours = status.session.as_ref().is_some_and(|session| session.id == *session_id);
    let summarized = KubesvcAgentStatus {
        held: Some(summary.held),
        failed: Some(summary.failed),
        // The previous list stands until the agent sends another one.
        static_accounts: summary.static_accounts.clone().or_else(|| status.static_accounts.clone()),
        static_sources: summary.static_sources.clone().or_else(|| status.static_sources.clone()),
        conditions: conditions(status, summary),
        offers: summary.offers,
        ..status.clone()
    };
    (ours && summarized != *status).then_some(summarized)
}

/// Returns the conditions, with those about own accounts, cluster and id replaced. Each is absent without a problem.
fn conditions(status: &KubesvcAgentStatus, summary: &AgentSummary) -> Vec<Condition> {
    let own = summary.problem.as_ref().map(|(reason, message)| (reason.as_str(), message));
    let cluster = summary.kept_from.as_ref().map(|message| (FailureClass::ClusterMismatch.reason(), message));
    let mut conditions = status.conditions.clone();
    let rival = summary.rival.as_ref().map(|message| (DUPLICATE_AGENT_ID, message));
    for (type_, problem) in [(STATIC_ACCOUNTS, own), (SAME_CLUSTER, cluster), (UNIQUE_ID, rival)] {
        let before = conditions.iter().position(|one| one.type_ == type_).map(|at| conditions.remove(at));
        let Some((reason, message)) = problem else { continue };
        let since = before.map(|condition| condition.last_transition_time);
        let mut message = message.clone();
        truncate(&mut message, MAX_MESSAGE_BYTES);
        conditions.push(Condition {
            type_: type_.to_owned(),
            status: "False".to_owned(),
            reason: reason.to_owned(),
            message,
            last_transition_time: since.unwrap_or_else(|| Time(whole_seconds(Timestamp::now()))),
            observed_generation: None,
        });
    }
    conditions
}

/// Reads an object.
pub(super) fn known(agent: KubesvcAgent) -> KnownAgent {
    let approved = agent.is_approved();
    let status = agent.status.unwrap_or_default();
    let ended_at = status.session.as_ref().and_then(|session| Some(session.ended_at.as_ref()?.0));
    KnownAgent {
        agent_id: agent.spec.agent_id,
        zone: agent.spec.zone_id,
        replica: status.session.as_ref().map(|session| session.replica.clone()).unwrap_or_default(),
        incarnation: status.session.as_ref().and_then(|session| session.incarnation.clone()),
        session_id: status.session.map(|session| session.id).unwrap_or_default(),
        approved,
        is_identified_by_credential: status.identified.is_some(),
        approved_once: status.approved_once,
        ended_at,
        connected: status.connected,
        lists: status.static_accounts.is_some_and(|listed| !listed.is_empty()),
        uid: agent.metadata.uid.unwrap_or_default(),
        resource_version: agent.metadata.resource_version.unwrap_or_default(),
    }
}

/// Rounds up to a whole second, so that a time counted from it is not too short.
fn next_second(time: Timestamp) -> Timestamp {
    let whole = whole_seconds(time);
    if whole < time { Timestamp::from_second(time.as_second() + 1).unwrap_or(time) } else { whole }
}

/// Truncates to seconds: the API server keeps no fractions, and the status would always differ.
fn whole_seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hub::agent_admission::queue::AdmissionClass;
    use crate::hub::agent_status::registration::IdentityBinding;
    use kubesvc_core::GrantEpoch;
    use kubesvc_core::agent_resource::SessionEnd;
    use kubesvc_core::identity::CredentialMatch;

    fn registration() -> Registration {
        Registration {
            needs_accounts: false,
            admission: AdmissionClass::Returning,
            agent_id: "a".into(),
            zone: "z".into(),
            session_id: "s1".into(),
            boot_id: "b1".into(),
            connect_seq: 2,
            replica: "r".into(),
            version: "1.0".into(),
            protocol: 1,
            connected_since: Timestamp::from_second(1_000).expect("a time"),
            cluster_uid: "c1".into(),
            streams_objects: true,
            identity: None,
        }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("a time")
    }

    fn registered() -> KubesvcAgent {
        let mut agent = new_object("a-z", &registration(), true);
        agent.status = Some(super::registered(&agent, &registration(), |_| true, at(0)).expect("it is free"));
        agent
    }

    fn stranger(credential: Option<CredentialMatch>) -> Stranger {
        Stranger {
            agent_id: "a".into(),
            zone: "z".into(),
            session_id: "s9".into(),
            boot_id: "b9".into(),
            replica: "r".into(),
            version: "1.0".into(),
            credential,
            why: "no KubesvcIdentity matches its certificate".into(),
        }
    }

    #[test]
    fn a_stranger_is_shown_now_and_then_and_never_in_the_object_of_an_agent_that_was_approved() {
        let uri = |uri: &str| Some(CredentialMatch { uri: Some(uri.into()), ..CredentialMatch::default() });
        let mut agent = unapproved_object("a-z", &"a".into(), &"z".into());
        let status = shown(&agent, &stranger(uri("one")), at(100)).expect("it is new");
        assert_eq!(
            (status.identified, status.connected, status.credential.clone()),
            (Some(false), false, uri("one"))
        );
        let condition = status.conditions.iter().find(|one| one.type_ == IDENTIFIED).expect("it says why");
        assert!(condition.status == "False" && condition.message.contains("no KubesvcIdentity"));
        agent.status = Some(status);
        assert!(!agent.is_approved() && !agent.was_approved());
        assert_eq!(shown(&agent, &stranger(uri("one")), at(110)), None, "the same a moment later");
        assert!(shown(&agent, &stranger(uri("one")), at(130)).is_some(), "or it would be removed");
        assert!(shown(&agent, &stranger(uri("two")), at(111)).is_some());
        assert_eq!(shown(&agent, &Stranger { zone: "other".into(), ..stranger(None) }, at(999)), None);
        assert_eq!(shown(&registered(), &stranger(uri("two")), at(999)), None, "its name is another agent's");
    }

    #[test]
    fn an_identity_that_counts_is_the_approval_until_the_agent_loses_it() {
        let identity = RegisteredIdentity {
            name: Some("edge".into()),
            binding: Some(IdentityBinding { offers: false }),
            ..RegisteredIdentity::default()
        };
        let registration = Registration { identity: Some(identity), ..registration() };
        let mut agent = new_object("a-z", &registration, false);
        agent.status = Some(super::registered(&agent, &registration, |_| true, at(0)).expect("it is free"));
        assert!(agent.is_approved() && !agent.may_offer() && !agent.is_revoked());
        assert_eq!(agent.approved_by(), Some("edge"));
        let ended = disconnected(&agent, &"s1".into(), SessionEnd::Revoked, at(9)).expect("its end");
        agent.status = Some(ended);
        assert!(!agent.is_approved() && agent.was_approved() && agent.is_revoked());
        // Where identities do not count any more, spec.approved does.
        let open = Registration { identity: None, connect_seq: 3, session_id: "s2".into(), ..registration };
        agent.spec.approved = true;
        agent.status = Some(super::registered(&agent, &open, |_| true, at(10)).expect("it is free"));
        assert!(agent.is_approved() && agent.may_offer());
        let status = agent.status.expect("a status");
        assert!(status.conditions.iter().all(|one| one.type_ != IDENTIFIED) && status.identity.is_none());
    }

    #[test]
    fn registering_the_same_session_again_changes_nothing() {
        let agent = registered();
        assert_eq!(super::registered(&agent, &registration(), |_| true, at(0)).ok(), agent.status);
    }

    #[test]
    fn an_older_connection_of_the_same_process_is_superseded() {
        let older = Registration { connect_seq: 1, session_id: "s0".into(), ..registration() };
        assert!(matches!(
            super::registered(&registered(), &older, |_| true, at(0)),
            Err(RegistrationError::Superseded)
        ));
        let other = Registration { boot_id: "b2".into(), ..older };
        assert!(super::registered(&registered(), &other, |_| true, at(0)).is_ok());
    }

    #[test]
    fn another_process_under_the_id_is_refused_while_its_replica_lives() {
        let elsewhere =
            |boot: &str| Registration { boot_id: boot.into(), replica: "s".into(), ..registration() };
        let of = |agent: &KubesvcAgent, registration: &Registration, alive: bool| {
            super::registered(agent, registration, |_| alive, at(0))
        };
        let agent = registered();
        assert!(matches!(
            of(&agent, &elsewhere("b2"), true),
            Err(RegistrationError::ConnectedElsewhere(replica)) if replica == "r"
        ));
        assert!(of(&agent, &elsewhere("b2"), false).is_ok(), "nobody holds a stream at a dead replica");
        let ended = disconnected(&agent, &"s1".into(), SessionEnd::Cut, at(0)).expect("it stood");
        assert!(of(&with(agent.clone(), ended), &elsewhere("b2"), true).is_ok());
        let later = Registration { connect_seq: 3, ..elsewhere("b1") };
        assert!(of(&agent, &later, true).is_ok(), "the same process has moved");
    }

    #[test]
    fn only_its_own_process_has_the_id_of_an_agent_that_was_disconnected_on_request() {
        let ended =
            disconnected(&registered(), &"s1".into(), SessionEnd::Requested, at(100)).expect("it stood");
        let agent = with(registered(), ended);
        let comes = |boot: &str, now| {
            let next = Registration { boot_id: boot.into(), connect_seq: 3, ..registration() };
            super::registered(&agent, &next, |_| true, at(now))
        };
        assert!(matches!(comes("b2", 110), Err(RegistrationError::Kept(left)) if left.as_secs() == 20));
        let again = comes("b1", 110).expect("it is the same process");
        let session = again.session.expect("it stands");
        assert_eq!((session.ended, session.ended_at), (None, None));
        assert!(comes("b2", 130).is_ok());
    }

    #[test]
    fn first_approval_is_recorded_once_and_survives_a_withdrawal() {
        let never =
            KubesvcAgent { spec: KubesvcAgentSpec { approved: false, ..registered().spec }, ..registered() };
        let registers = |agent: &KubesvcAgent| {
            super::registered(agent, &registration(), |_| true, at(0)).expect("it is free").approved_once
        };
        let unapproved = KubesvcAgent { status: None, ..never.clone() };
        assert!(!registers(&unapproved) && registers(&KubesvcAgent { status: None, ..registered() }));
        assert!(registers(&never), "it was withdrawn since");

        let mut given = with(
            unapproved,
            KubesvcAgentStatus { approved_once: false, ..registered().status.expect("it stands") },
        );
        assert_eq!(approved(&given, &"s1".into()), None);
        given.spec.approved = true;
        assert_eq!(approved(&given, &"s0".into()), None, "another session writes it");
        let status = approved(&given, &"s1".into()).expect("it is new");
        assert!(status.approved_once);
        assert_eq!(approved(&with(given, status), &"s1".into()), None);
    }

    #[test]
    fn answers_are_those_of_the_session_in_force() {
        let outbox = [OutboxEntry { uid: "u".into(), epoch: GrantEpoch(1), ..OutboxEntry::default() }];
        let agent = registered();
        assert_eq!(reported(&agent, &"s0".into(), &outbox), None);
        let agent = with(agent.clone(), reported(&agent, &"s1".into(), &outbox).expect("it is in force"));
        assert_eq!(agent.status.as_ref().map(|status| status.outbox.len()), Some(1));
        let next = Registration { connect_seq: 3, session_id: "s3".into(), ..registration() };
        let status = super::registered(&agent, &next, |_| true, at(0)).expect("it is later");
        assert!(status.outbox.is_empty(), "they go with their session");
    }

    #[test]
    fn list_of_static_accounts_lasts_as_long_as_the_agents_process() {
        let agent = registered();
        let agent = with(agent.clone(), summarized(&agent, &"s1".into(), &summary()).expect("it is new"));
        let listed = |boot: &str| {
            let next = Registration { boot_id: boot.into(), connect_seq: 3, ..registration() };
            super::registered(&agent, &next, |_| true, at(0)).expect("it is free").static_accounts
        };
        assert_eq!((listed("b1"), listed("b2")), (Some(vec!["0a".to_owned()]), None));
    }

    #[test]
    fn an_object_of_another_agent_is_left_alone() {
        let other = Registration { agent_id: "b".into(), ..registration() };
        assert!(matches!(
            super::registered(&registered(), &other, |_| true, at(0)),
            Err(RegistrationError::NameTaken(_))
        ));
    }

    #[test]
    fn only_the_session_in_force_is_marked_as_ended() {
        let agent = registered();
        assert_eq!(disconnected(&agent, &"s0".into(), SessionEnd::Goodbye, at(0)), None);
        let ended = disconnected(&agent, &"s1".into(), SessionEnd::Goodbye, at(0)).expect("it stood");
        assert!(!ended.connected);
        assert_eq!(ended.session.as_ref().and_then(|one| one.ended), Some(SessionEnd::Goodbye));
        let agent = KubesvcAgent { status: Some(ended), ..agent };
        assert_eq!(disconnected(&agent, &"s1".into(), SessionEnd::Cut, at(0)), None);
        let next = Registration { connect_seq: 3, session_id: "s3".into(), ..registration() };
        let again = super::registered(&agent, &next, |_| true, at(0)).expect("it is later");
        assert_eq!(again.session.and_then(|one| one.ended), None, "it stands again");
    }

    fn summary() -> AgentSummary {
        AgentSummary {
            held: 3,
            failed: 1,
            static_accounts: Some(vec!["0a".into()]),
            static_sources: Some(vec!["0b".into()]),
            ..AgentSummary::default()
        }
    }

    fn with(agent: KubesvcAgent, status: KubesvcAgentStatus) -> KubesvcAgent {
        KubesvcAgent { status: Some(status), ..agent }
    }

    #[test]
    fn a_note_is_written_once_and_only_by_the_session_in_force() {
        let agent = registered();
        assert_eq!(summarized(&agent, &"s0".into(), &summary()), None);
        let status = summarized(&agent, &"s1".into(), &summary()).expect("it is new");
        assert_eq!((status.held, status.failed), (Some(3), Some(1)));
        let agent = with(agent, status);
        assert_eq!(summarized(&agent, &"s1".into(), &summary()), None);
        let unlisted = AgentSummary { static_accounts: None, ..summary() };
        assert_eq!(summarized(&agent, &"s1".into(), &unlisted), None, "what was listed last stands");
    }

    #[test]
    fn problem_with_static_accounts_is_a_condition_until_solved() {
        let problem = Some(("ListRefused".to_owned(), "x".repeat(5000)));
        let status = summarized(&registered(), &"s1".into(), &AgentSummary { problem, ..summary() })
            .expect("it is new");
        let condition = &status.conditions[0];
        assert_eq!((condition.type_.as_str(), condition.status.as_str()), ("StaticAccounts", "False"));
        assert_eq!((condition.reason.as_str(), condition.message.len()), ("ListRefused", 1024));
        let since = condition.last_transition_time.clone();
        let mut agent = with(registered(), status);
        let problem = Some(("AccountsRefused".to_owned(), "one".to_owned()));
        let status = summarized(&agent, &"s1".into(), &AgentSummary { problem, ..summary() })
            .expect("it is another one");
        assert_eq!(status.conditions[0].last_transition_time, since, "it is False all the time");
        agent = with(agent, status);
        assert_eq!(
            summarized(&agent, &"s1".into(), &summary()).map(|status| status.conditions),
            Some(Vec::new())
        );
    }

    #[test]
    fn status_records_the_agents_cluster_and_withheld_accounts() {
        let agent = registered();
        assert_eq!(agent.status.as_ref().and_then(|status| status.cluster_uid.as_deref()), Some("c1"));
        let kept = AgentSummary { kept_from: Some("account \"a\" is bound".into()), ..summary() };
        let status = summarized(&agent, &"s1".into(), &kept).expect("it is new");
        let told: Vec<_> =
            status.conditions.iter().map(|one| (one.type_.as_str(), one.reason.as_str())).collect();
        assert_eq!(told, [("SameCluster", "ClusterMismatch")]);
        let agent = with(agent, status);
        assert_eq!(
            summarized(&agent, &"s1".into(), &summary()).map(|status| status.conditions),
            Some(Vec::new())
        );
    }

    #[test]
    fn an_agent_that_is_gone_holds_nothing_since_no_time() {
        let agent = registered();
        let agent = with(agent.clone(), summarized(&agent, &"s1".into(), &summary()).expect("it is new"));
        let shown =
            |status: &KubesvcAgentStatus| (status.held, status.failed, status.connected_since.is_some());
        assert!(matches!(agent.status.as_ref().map(shown), Some((Some(_), Some(_), true))));
        let gone = disconnected(&agent, &"s1".into(), SessionEnd::Cut, at(0)).expect("it stood");
        assert_eq!(shown(&gone), (None, None, false));
    }

    #[test]
    fn an_object_says_that_its_agent_was_approved_automatically() {
        let by = |approved| {
            let agent = new_object("n", &registration(), approved);
            agent.approved_by().map(str::to_owned)
        };
        assert_eq!((by(true).as_deref(), by(false)), (Some("auto"), None));
    }

    #[test]
    fn a_zone_that_is_no_label_value_gets_no_label() {
        for zone in ["", "-a", "a b", "ü", &"x".repeat(64)] {
            assert!(!object_names::is_label_value(zone), "{zone}");
        }
        let labels = new_object("n", &registration(), false).metadata.labels;
        assert_eq!(labels, Some(BTreeMap::from([(ZONE_LABEL.to_owned(), "z".to_owned())])));
    }
}
