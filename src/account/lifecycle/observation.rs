//! What the leader has observed about one account. Every fact is absent, unknown or known.

use std::borrow::Cow;
use std::collections::BTreeSet;

use jiff::Timestamp;

use crate::account::definition;
use crate::account::failure::{Failure, FailureClass};
use crate::account::{DesiredState, GrantPhase, KubesvcAccount, KubesvcAccountStatus, State};

/// A second of the leader, counted from its start, and only while it leads.
pub type Tick = u64;

/// The settings that the lifecycle obeys; times in ticks.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// Tries after the first one; then the account stalls.
    pub max_retries: u32,
    /// Until the first retry.
    pub retry_first: Tick,
    /// From one retry to the next; 1 keeps the pace.
    pub retry_multiplier: f64,
    /// The longest wait between two tries.
    pub retry_max: Tick,
    /// How long an agent may be away before it counts as gone.
    pub orphan_grace: Tick,
    /// How long an agent may be silent about a command.
    pub operation_wait: Tick,
    /// How long a zone that was found by asking, or one with static accounts, may be without agents.
    pub account_cleanup: Tick,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            max_retries: 3,
            retry_first: 5,
            retry_multiplier: 2.0,
            retry_max: 300,
            orphan_grace: 30,
            operation_wait: 30,
            account_cleanup: 600,
        }
    }
}

/// Something that may not have been looked at yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Fact<T> {
    /// Nobody has looked, or the look is not over.
    #[default]
    Unknown,
    /// It was looked at.
    Known(T),
}

/// The account's credential, after it was read and vetted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CredentialFact {
    /// The Secret's uid and resourceVersion, joined by a slash; absent where there is no Secret.
    pub version: Option<String>,
}

/// The account's row in the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowFact {
    /// There is none.
    Absent,
    /// It is there.
    Present,
    /// There is one of this name that is not ours (its uid is NULL): somebody else wrote it.
    Foreign,
    /// The database cannot be asked: the status goes on, no finalizer is removed.
    Unavailable,
}

/// Whether an agent's session stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// It stands.
    Connected,
    /// It ended at this tick, or was never seen by this leader though an earlier one had it.
    Away(Tick),
}

/// The cluster an agent reached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// uid of the namespace kube-system; empty where it may not be read.
    pub cluster_uid: String,
    /// URL of the API server.
    pub host: String,
    /// SHA-256 of the served certificate.
    pub cert_fingerprint: String,
    /// Version of the API server.
    pub version: String,
    /// How many namespaces it saw.
    pub namespaces_count: u32,
}

/// What a session said last about the account's uid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Word {
    /// It holds the account.
    Held(Identity),
    /// It could not take it, or could not drop it.
    Failed(Failure),
    /// It holds it no longer.
    Dropped,
    /// It held it and cannot any more.
    Lost(Failure),
}

/// What a session answered when it was asked whether it could reach the account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Offer {
    /// It can.
    Yes,
    /// It cannot.
    No(Failure),
}

/// One session of an agent, as far as it concerns the account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionFact {
    /// The agent.
    pub agent_id: String,
    /// Its zone.
    pub zone: String,
    /// Whether it is approved; one that is not holds nothing and is not waited for.
    pub approved: bool,
    /// Whether the session stands.
    pub presence: Presence,
    /// Its last word, with the epoch it was said for.
    pub word: Option<(i64, Word)>,
    /// For how many ticks it has owed an answer; absent: it owes none.
    pub silent_for: Option<Tick>,
    /// Its answer to the last probe, with the generation of the spec that was probed.
    pub offer: Option<(i64, Offer)>,
    /// Whether the account is in the agent's own file; unknown until the agent has sent the whole of it.
    pub lists: Fact<bool>,
}

/// Everything the decision is made from.
#[derive(Clone, Debug)]
pub struct Observation<'a> {
    /// The object as last read or written.
    pub account: &'a KubesvcAccount,
    /// Now.
    pub now: Tick,
    /// Wall time, to be stamped into what is written; nothing is decided by it.
    pub wall: Timestamp,
    /// When this leader began.
    pub leading_since: Tick,
    /// The settings.
    pub policy: &'a Policy,
    /// Since when this leader has seen the account in its state, epoch and failed count; a status write of its own
    /// begins it anew. Retries are counted from here.
    pub in_state_since: Tick,
    /// The credential, as read since the last status write of this leader: each write makes it Unknown again, so that
    /// the next try reads it anew.
    pub credential: Fact<Result<CredentialFact, Failure>>,
    /// The credential has been awaited for so long that people are told.
    pub credential_slow: bool,
    /// The credential was judged otherwise than the last time, and no status was written since.
    pub credential_changed: bool,
    /// The row.
    pub row: RowFact,
    /// All sessions of the fleet, each with its word about this uid.
    pub sessions: &'a [SessionFact],
    /// An older object with the same account name.
    pub rival: Option<&'a str>,
}

/// An observation with what is derived from it once.
pub(super) struct Context<'a> {
    pub(super) observation: &'a Observation<'a>,
    pub(super) status: Cow<'a, KubesvcAccountStatus>,
    pub(super) definition: String,
}

/// Why a revoke is not over.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Blocker {
    /// Someone is still to answer, or may come back; look again at the tick.
    Waiting(Option<Tick>),
    /// An agent said that it could not drop the account, or says nothing. Others may still be waited for until the
    /// tick.
    Failed(Failure, Option<Tick>),
}

/// What a session says to a revoke.
enum DropAnswer {
    /// It holds nothing.
    Given,
    /// It failed, or is silent.
    Failed(Failure),
    /// It has not answered, or may come back; it counts as silent or gone at the tick.
    Awaited(Option<Tick>),
}

impl Blocker {
    /// When to look again.
    pub(super) fn wake(&self) -> Option<Tick> {
        match self {
            Self::Waiting(wake) => *wake,
            Self::Failed(_, wake) => *wake,
        }
    }
}

impl<'a> Context<'a> {
    pub(super) fn new(observation: &'a Observation<'a>) -> Self {
        Self {
            observation,
            status: observation.account.status_or_default(),
            definition: definition::digest(&observation.account.spec),
        }
    }

    pub(super) fn state(&self) -> State {
        self.status.state()
    }

    /// The class of the failure that the status speaks of, read back from its conditions.
    pub(super) fn failure_class(&self) -> Option<FailureClass> {
        if !matches!(self.state(), State::Failed | State::DeleteFailed) {
            return None;
        }
        let ready = self.status.conditions.iter().find(|condition| condition.type_ == "Ready")?;
        FailureClass::from_reason(&ready.reason)
    }

    /// Whether the status already says this failure for this generation, so that saying it again changes nothing.
    pub(super) fn fails_already_with(&self, failure: &Failure) -> bool {
        self.failure_class() == Some(failure.class)
            && self.status.error_message.as_deref() == Some(&failure.message)
            && self.status.observed_generation == self.observation.account.generation()
            && self.retry_asked().is_none()
    }

    /// A value of the retry annotation that was not acted on yet.
    pub(super) fn retry_asked(&self) -> Option<&'a str> {
        let asked = self.observation.account.annotation(crate::account::RETRY_ANNOTATION)?;
        (self.status.retry_handled.as_deref() != Some(asked)).then_some(asked)
    }

    /// Whether the object's spec changed since the status was written.
    pub(super) fn generation_is_new(&self) -> bool {
        self.status.observed_generation != self.observation.account.generation()
    }

    /// Whether what agents are sent is no longer what the grant was opened with.
    pub(super) fn definition_is_new(&self) -> bool {
        let granted = self.status.grant.as_ref().and_then(|grant| grant.definition.as_deref());
        granted != Some(self.definition.as_str())
    }

    /// Whether the Secret is another one, or has other contents, than the grant was opened with.
    pub(super) fn credential_is_new(&self) -> bool {
        match &self.observation.credential {
            Fact::Known(Ok(credential)) => credential.version != self.status.credential_version,
            _ => false,
        }
    }

    /// Whether what failed before says nothing about the next try: someone asked for it, or what is tried is new.
    /// Without an open grant nothing says what a new generation changed, so that it counts as new.
    pub(super) fn starts_anew(&self) -> bool {
        let new = match self.status.phase() {
            GrantPhase::None => self.generation_is_new() || self.credential_is_new(),
            GrantPhase::Open => {
                (self.generation_is_new() && self.definition_is_new()) || self.credential_is_new()
            }
            GrantPhase::Revoking => self.generation_is_new() && self.revokes_for_another_reason(),
        };
        new || self.retry_asked().is_some()
    }

    /// Whether a revoke that failed is now wanted for something else than a deactivation that stays wanted.
    fn revokes_for_another_reason(&self) -> bool {
        let account = self.observation.account;
        account.is_being_deleted()
            || account.desired() == DesiredState::Active
            || self.zone_awaited().is_some()
    }

    /// The zone that the account is pinned to, where another one has the grant.
    pub(super) fn zone_awaited(&self) -> Option<&'a str> {
        let pinned = self.observation.account.spec.zone_id.as_deref()?;
        self.status.granted_zone().is_some_and(|granted| granted != pinned).then_some(pinned)
    }

    /// Sessions of a zone that may hold accounts.
    pub(super) fn sessions_of<'s>(&'s self, zone: &'s str) -> impl Iterator<Item = &'a SessionFact> + 's {
        self.observation.sessions.iter().filter(move |session| session.zone == zone && session.approved)
    }

    /// Connected sessions of a zone.
    pub(super) fn connected<'s>(&'s self, zone: &'s str) -> impl Iterator<Item = &'a SessionFact> + 's {
        self.sessions_of(zone).filter(|session| session.presence == Presence::Connected)
    }

    /// Until when a session that is away may come back; absent if it is connected or gone.
    pub(super) fn may_return_until(&self, session: &SessionFact) -> Option<Tick> {
        match session.presence {
            Presence::Connected => None,
            Presence::Away(since) => {
                let until = since.saturating_add(self.observation.policy.orphan_grace);
                (until > self.observation.now).then_some(until)
            }
        }
    }

    /// The last tick at which a session of the zone may come back, if any may.
    pub(super) fn zone_may_return_until(&self, zone: &str) -> Option<Tick> {
        self.sessions_of(zone).filter_map(|session| self.may_return_until(session)).max()
    }

    /// Zones with a connected agent.
    pub(super) fn connected_zones(&self) -> BTreeSet<&'a str> {
        let connected = |session: &&SessionFact| session.approved && session.presence == Presence::Connected;
        self.observation.sessions.iter().filter(connected).map(|session| session.zone.as_str()).collect()
    }

    /// When a session that owes an answer counts as silent.
    pub(super) fn silent_at(&self, session: &SessionFact) -> Option<Tick> {
        let owed = session.silent_for?;
        Some(self.observation.now + self.observation.policy.operation_wait.saturating_sub(owed))
    }

    /// What keeps a revoke from ending; absent: every session has dropped the account or is gone.
    pub(super) fn revoke_blockers(&self) -> Option<Blocker> {
        let zone = self.status.granted_zone()?;
        let (mut waiting, mut wake, mut failure) = (false, None, None);
        for session in self.observation.sessions.iter().filter(|session| session.zone == zone) {
            match self.drop_answer(session) {
                DropAnswer::Given => {}
                DropAnswer::Failed(reason) => failure = failure.or(Some(reason)),
                DropAnswer::Awaited(at) => {
                    waiting = true;
                    wake = earlier(wake, at);
                }
            }
        }
        match failure {
            Some(failure) => Some(Blocker::Failed(failure, wake)),
            None => waiting.then_some(Blocker::Waiting(wake)),
        }
    }

    /// What one session of the zone says to the revoke. One whose approval was withdrawn is waited for while its last
    /// word says that it has, or may have, the account.
    fn drop_answer(&self, session: &SessionFact) -> DropAnswer {
        if session.presence != Presence::Connected {
            let until = self.may_return_until(session).filter(|_| session.approved);
            return until.map_or(DropAnswer::Given, |until| DropAnswer::Awaited(Some(until)));
        }
        match &session.word {
            None | Some((_, Word::Dropped)) if !session.approved => DropAnswer::Given,
            Some((epoch, Word::Dropped)) if *epoch >= self.status.epoch => DropAnswer::Given,
            Some((epoch, Word::Failed(failure))) if *epoch >= self.status.epoch => {
                DropAnswer::Failed(failure.clone())
            }
            _ if self.is_silent(session) => DropAnswer::Failed(silence(session)),
            _ => DropAnswer::Awaited(self.silent_at(session)),
        }
    }

    /// Whether a session owes an answer for too long.
    pub(super) fn is_silent(&self, session: &SessionFact) -> bool {
        self.silent_at(session).is_some_and(|at| at <= self.observation.now)
    }
}

/// What is said of an agent that is connected and does not answer.
pub(super) fn silence(session: &SessionFact) -> Failure {
    Failure::new(
        FailureClass::Timeout,
        format!("agent {} is connected and did not answer in time; see its log", session.agent_id),
    )
}

/// The earlier of two ticks.
pub(super) fn earlier(one: Option<Tick>, other: Option<Tick>) -> Option<Tick> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}
