//! An observation, and what is derived from it.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};

use super::observation::{CachingReport, Fact, Observation, Presence, SessionFact, Tick, UnansweredMessage};
use super::zone_choice::{self, ZoneChoice};
use super::zone_reports::{self, Blocker, RevokeProgress, ZoneReports};
use super::{generation_is_unhandled, unhandled_retry};
use crate::cache::issues;
use crate::conditions::{self, CREDENTIAL_AVAILABLE, LISTED_BY_AGENT};
use crate::credential_expiry::CREDENTIAL_EXPIRING;
use crate::failure::{Failure, FailureClass};
use crate::ids::{AgentId, ZoneId};
use crate::registration::{CLOUDDRIVER_ALSO, LEAVING_CLOUDDRIVER, SPINNAKER_REGISTERED};
use crate::{DesiredState, FORCE_DELETE_ANNOTATION, GrantPhase, KubesvcAccountStatus, ListingAgent, State};

/// Maximum time, in ticks, for which a registration backlog keeps absent agents from being treated as gone.
const MAX_BACKLOG_TICKS: Tick = 600;
/// Interval, in ticks, between looks at an account that only waits for the backlog to end: nothing wakes it then.
const BACKLOG_RECHECK_TICKS: Tick = 5;
/// Minimum interval, in ticks, between two writes of what is left out of an account's objects.
const MIN_LEFT_OUT_TICKS: Tick = 60;

/// Maximum interval, in ticks, between looks at an account whose credential expires some day: a wall clock may change.
const MAX_EXPIRY_WAIT_TICKS: Tick = 24 * 3600;

/// Number of streams that ended without an answer to one message from which the path is suspected: one stream may end for
/// any reason.
const MIN_ENDED_STREAMS: u32 = 2;

/// An observation with what is derived from it once: all that a rule decides from.
pub(super) struct Facts<'a> {
    pub(super) observation: &'a Observation<'a>,
    pub(super) status: Cow<'a, KubesvcAccountStatus>,
    pub(super) definition: String,
    choice: OnceCell<ZoneChoice>,
    reports: OnceCell<ZoneReports<'a>>,
    revoke: OnceCell<RevokeProgress>,
}

impl<'a> Facts<'a> {
    pub(super) fn new(observation: &'a Observation<'a>) -> Self {
        Self {
            observation,
            status: observation.account.status_or_default(),
            definition: observation.account.spec.definition_digest(),
            choice: OnceCell::new(),
            reports: OnceCell::new(),
            revoke: OnceCell::new(),
        }
    }

    /// What is known of the zone that the account is to be given to.
    pub(super) fn choice(&self) -> &ZoneChoice {
        self.choice.get_or_init(|| zone_choice::choose(self))
    }

    /// What the agents of the zone that has the grant say.
    pub(super) fn reports(&self) -> &ZoneReports<'a> {
        self.reports.get_or_init(|| ZoneReports::of(self, self.zone()))
    }

    /// How far the revoke is; absent: none is under way.
    pub(super) fn revoke(&self) -> Option<&RevokeProgress> {
        let is_revoking = self.status.phase() == GrantPhase::Revoking;
        is_revoking.then(|| self.revoke.get_or_init(|| RevokeProgress::of(self)))
    }

    /// Why the revoke is not over; absent where it is, or may be.
    pub(super) fn blocker(&self) -> Option<&Blocker> {
        match self.revoke()? {
            RevokeProgress::Blocked(blocker) => Some(blocker),
            RevokeProgress::Over | RevokeProgress::ToConfirm => None,
        }
    }

    /// The zone that has the grant; empty where none has.
    pub(super) fn zone(&self) -> &ZoneId {
        self.status.granted_zone().unwrap_or_default()
    }

    pub(super) fn state(&self) -> State {
        self.status.state()
    }

    /// The class of the failure that the status speaks of.
    pub(super) fn failure_class(&self) -> Option<FailureClass> {
        self.status.failure_class()
    }

    /// Whether the status already says this failure for this generation, so that saying it again changes nothing.
    pub(super) fn fails_already_with(&self, failure: &Failure) -> bool {
        self.failure_class() == Some(failure.class)
            && self.status.error_message.as_deref() == Some(&failure.message)
            && !self.generation_is_new()
            && self.retry_asked().is_none()
    }

    /// A value of the retry annotation that was not acted on yet.
    pub(super) fn retry_asked(&self) -> Option<&'a str> {
        unhandled_retry(self.observation.account)
    }

    /// Whether the object's spec changed since the status was written.
    pub(super) fn generation_is_new(&self) -> bool {
        generation_is_unhandled(self.observation.account)
    }

    /// Whether what agents are sent is no longer what the grant was opened with.
    pub(super) fn definition_is_new(&self) -> bool {
        let granted = self.status.grant.as_ref().and_then(|grant| grant.definition.as_deref());
        granted != Some(self.definition.as_str())
    }

    /// Whether the Secret is another one, or has other contents, than the grant was opened with.
    pub(super) fn credential_is_new(&self) -> bool {
        match &self.observation.credential {
            Fact::Known(Ok(credential)) => !credential.is(self.status.credential_version.as_deref()),
            _ => false,
        }
    }

    /// Whether the credential is the granted one under another version: something else of the Secret has changed. Other
    /// replicas cannot know that, and send nothing under a version that is not the status's.
    pub(super) fn credential_is_restated(&self) -> bool {
        match &self.observation.credential {
            Fact::Known(Ok(credential)) => {
                credential.version != self.status.credential_version && !self.credential_is_new()
            }
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

    /// The zones that this round of looking for one has tried: none once there is reason to begin anew. What a FAILED
    /// `ZoneAmbiguous` remembers are the zones that were asked, and not tried.
    pub(super) fn tried_zones(&self) -> &[ZoneId] {
        let anew = self.starts_anew() || self.failure_class() == Some(FailureClass::ZoneAmbiguous);
        if anew { &[] } else { &self.status.tried_zones }
    }

    /// The zone that the account is pinned to, where another one has the grant.
    pub(super) fn zone_awaited(&self) -> Option<&'a ZoneId> {
        let pinned = self.observation.account.spec.zone_id.as_ref()?;
        self.status.granted_zone().is_some_and(|granted| granted != pinned).then_some(pinned)
    }

    /// Sessions of a zone that may hold accounts.
    pub(super) fn sessions_of<'s>(&'s self, zone: &'s ZoneId) -> impl Iterator<Item = &'a SessionFact> + 's {
        self.observation.sessions.iter().filter(move |session| session.zone == *zone && session.approved)
    }

    /// Connected sessions of a zone that may be sent the account.
    pub(super) fn connected<'s>(&'s self, zone: &'s ZoneId) -> impl Iterator<Item = &'a SessionFact> + 's {
        self.sessions_of(zone)
            .filter(|session| session.presence == Presence::Connected && self.may_be_sent(session))
    }

    /// Whether a session may be sent the account: one of an agent's own file goes to agents alone that list it themselves,
    /// and one that asks for the agent's own cluster to no agent of another cluster than it is bound to.
    pub(super) fn may_be_sent(&self, session: &SessionFact) -> bool {
        let account = self.observation.account;
        let lists = match session.lists {
            Fact::Known(lists) => lists,
            Fact::Unknown => self.lists_until(session).is_some(),
        };
        (!account.is_static() || lists)
            && !zone_reports::runs_in_another_cluster(account, &session.cluster_uid)
    }

    /// Until when an agent that has connected and not sent its list is waited for.
    pub(super) fn lists_until(&self, session: &SessionFact) -> Option<Tick> {
        let until = session.process.since.saturating_add(self.observation.policy.operation_wait);
        let awaited = self.observation.account.is_static() && session.lists == Fact::Unknown;
        (awaited && until > self.observation.now).then_some(until)
    }

    /// Since when the last agent is away whose own file had the account.
    pub(super) fn left_listing_it(&self, zone: &ZoneId) -> Option<Tick> {
        let left = self.sessions_of(zone).filter_map(|session| match (session.presence, &session.lists) {
            (Presence::Away(since), Fact::Known(true)) => Some(since),
            _ => None,
        });
        left.max().map(|since| since.max(self.observation.leading_since))
    }

    /// The clusters that the agents of a zone say they run in, those included that may come back; and who says so first.
    pub(super) fn clusters_of(&self, zone: &ZoneId) -> BTreeMap<&'a str, &'a str> {
        let mut clusters = BTreeMap::new();
        for session in self.sessions_of(zone).filter(|session| !session.cluster_uid.is_empty()) {
            if session.presence == Presence::Connected || self.may_return_until(session).is_some() {
                clusters.entry(session.cluster_uid.as_str()).or_insert(session.agent_id.as_str());
            }
        }
        clusters
    }

    /// Until when a session that is away may come back; absent if it is connected or gone. Time before this leader's own
    /// does not count. One that was gone before agents began to wait for registration stays so.
    pub(super) fn may_return_until(&self, session: &SessionFact) -> Option<Tick> {
        match session.presence {
            Presence::Connected => None,
            Presence::Away(since) => {
                let since = since.max(self.observation.leading_since);
                let until = since.saturating_add(self.observation.policy.orphan_grace);
                let was_there = self.observation.backlog_since.is_some_and(|began| until > began);
                let waits = self.backlog_until().filter(|_| was_there);
                (until > self.observation.now).then_some(until).max(waits)
            }
        }
    }

    /// While agents wait to be registered: until when nobody is taken for gone, or when to look again, if that is sooner.
    pub(super) fn backlog_until(&self) -> Option<Tick> {
        let observation = self.observation;
        let until = observation.backlog_since?.saturating_add(MAX_BACKLOG_TICKS);
        (until > observation.now).then_some(until.min(observation.now + BACKLOG_RECHECK_TICKS))
    }

    /// Until when agents may be about to come whom this leader has not seen: it has just begun, or they wait to be
    /// registered. Absent: whoever is not there is away.
    pub(super) fn all_seen_at(&self) -> Option<Tick> {
        self.grace_of_leadership().max(self.backlog_until())
    }

    /// The last tick at which a session of the zone may come back, if any may.
    pub(super) fn zone_may_return_until(&self, zone: &ZoneId) -> Option<Tick> {
        self.sessions_of(zone).filter_map(|session| self.may_return_until(session)).max()
    }

    /// The next tick at which an agent that may come back counts as gone, if any may.
    pub(super) fn next_gone(&self) -> Option<Tick> {
        self.observation.sessions.iter().filter_map(|session| self.may_return_until(session)).min()
    }

    /// Until when a leader that has just begun may not have seen all agents yet; absent once it has.
    fn grace_of_leadership(&self) -> Option<Tick> {
        let until = self.observation.leading_since.saturating_add(self.observation.policy.orphan_grace);
        (until > self.observation.now).then_some(until)
    }

    /// Zones with a connected agent.
    pub(super) fn connected_zones(&self) -> BTreeSet<&'a ZoneId> {
        let connected = |session: &&SessionFact| session.approved && session.presence == Presence::Connected;
        self.observation.sessions.iter().filter(connected).map(|session| &session.zone).collect()
    }

    /// Since when no agent of the zone has been connected, as far as this leader knows; absent while one is.
    pub(super) fn gone_since(&self, zone: &ZoneId) -> Option<Tick> {
        let observation = self.observation;
        let mut left = None;
        for session in observation.sessions.iter().filter(|session| session.zone == *zone) {
            match session.presence {
                Presence::Connected => return None,
                Presence::Away(since) => left = left.max(Some(since)),
            }
        }
        Some(left.unwrap_or(observation.in_state_since).max(observation.leading_since))
    }

    /// When a session that owes an answer counts as silent.
    pub(super) fn silent_at(&self, session: &SessionFact) -> Option<Tick> {
        let owed = session.silent_for?;
        Some(self.observation.now + self.observation.policy.operation_wait.saturating_sub(owed))
    }

    /// Whether a session owes an answer for too long.
    pub(super) fn is_silent(&self, session: &SessionFact) -> bool {
        self.silent_at(session).is_some_and(|at| at <= self.observation.now)
    }

    /// The agent that the status is to name: as observed, else as it was.
    pub(super) fn listing_agent(&self) -> Option<ListingAgent> {
        match self.observation.listed_by {
            _ if self.observation.account.is_static() => None,
            Fact::Known(agent) => agent.cloned(),
            Fact::Unknown => self.status.listed_by.clone(),
        }
    }

    /// Reason and message of the condition: which agent lists the name, and which of the two accounts counts. Absent: none
    /// lists it.
    pub(super) fn listing_condition(&self) -> Option<(&'static str, String)> {
        let ListingAgent { agent_id, zone_id } = self.listing_agent()?;
        let agent_wins = self.observation.policy.agent_wins;
        let (reason, which) = match self.observation.rival.is_some_and(|rival| rival.is_static) {
            true => ("AgentWins", "the agent's account counts, and not this one"),
            false if agent_wins => {
                ("DeclaredWins", "the declared account counts until the agent's has an object")
            }
            false => ("DeclaredWins", "the declared account counts, and the agent's is not taken"),
        };
        let message = format!(
            "agent {agent_id} of zone {zone_id} lists an account of this name in its own file; {which} \
             (kubesvc.dynamicAccounts.agentWins: {agent_wins})"
        );
        Some((reason, message))
    }

    /// Whether the status says something else of it than is so. Where a retry is due at a tick it is said with that one: each
    /// write begins the wait for it anew.
    pub(super) fn listing_must_be_written(&self, wake: Option<Tick>) -> bool {
        let status = &self.status;
        let waits_for_retry = matches!(status.state(), State::Failed | State::DeleteFailed) && wake.is_some();
        if status.conditions.is_empty() || waits_for_retry {
            return false;
        }
        let said = conditions::find(&status.conditions, LISTED_BY_AGENT)
            .map(|condition| (condition.reason.as_str(), condition.message.as_str()));
        let condition = self.listing_condition();
        said != condition.as_ref().map(|(reason, message)| (*reason, message.as_str()))
            || status.listed_by != self.listing_agent()
    }

    /// What a session says of the objects that it streams, under the election that stands.
    pub(super) fn caching_report_of<'s>(&self, session: &'s SessionFact) -> Option<&'s CachingReport> {
        let elected = self.status.caching.as_ref().filter(|caching| caching.agent_id.is_some())?;
        let is_elected = elected.agent_id.as_ref() == Some(&session.agent_id)
            && session.presence == Presence::Connected
            && session.zone == *self.zone();
        session.caching.as_ref().filter(|report| is_elected && report.epoch == elected.epoch)
    }

    /// What the elected agent leaves out; absent: it has not said anything that is new.
    fn reported_left_out(&self) -> Option<Option<&'a str>> {
        let mut sessions = self.observation.sessions.iter();
        sessions.find_map(|session| Some(self.caching_report_of(session)?.left_out.as_deref()))
    }

    /// What the condition about the streaming agent is to say is left out. What the last agent said goes for the next one,
    /// until that one has looked.
    pub(super) fn left_out(&self) -> Option<String> {
        let spec = &self.observation.account.spec;
        match (self.reported_left_out(), conditions::left_out(&self.status.conditions)) {
            (None, Some(before)) => Some(before.to_owned()),
            (reported, _) => issues::condition_message(spec, reported.flatten()),
        }
    }

    /// The tick from which the condition may be written, because something else is left out than it says; absent: it is
    /// as it says.
    pub(super) fn left_out_is_due(&self) -> Option<Tick> {
        let status = &self.status;
        if status.state() != State::Active || status.caching_agent().is_none() {
            return None;
        }
        let is_said = self.reported_left_out().is_none()
            || conditions::left_out(&status.conditions) == self.left_out().as_deref();
        let written = self.observation.left_out_written;
        (!is_said).then(|| written.map_or(0, |written| written.saturating_add(MIN_LEFT_OUT_TICKS)))
    }

    /// Reason and message of the warning that the credential expires soon, as it is said; absent: none is.
    pub(super) fn expiry_said(&self) -> Option<(String, String)> {
        let said = conditions::find(&self.status.conditions, CREDENTIAL_EXPIRING)?;
        Some((said.reason.clone(), said.message.clone()))
    }

    /// The warning as it is to be said. Until a credential was read it is what is said already.
    pub(super) fn expiry_warning(&self) -> Option<(String, String)> {
        let Fact::Known(expiry) = self.observation.credential_expiry else { return self.expiry_said() };
        let (expiry, now) = (expiry?, self.observation.wall);
        expiry.stage(now).map(|stage| (stage.reason().to_owned(), expiry.message(stage)))
    }

    /// The tick to look again, because a warning may begin.
    pub(super) fn next_expiry_stage(&self) -> Option<Tick> {
        let Fact::Known(Some(expiry)) = &self.observation.credential_expiry else { return None };
        let left = expiry.until_next_stage(self.observation.wall)?;
        let seconds = Tick::try_from(left.as_secs()).unwrap_or_default().saturating_add(1);
        Some(self.observation.now.saturating_add(seconds.min(MAX_EXPIRY_WAIT_TICKS)))
    }

    /// Whether somebody forces the deletion.
    pub(super) fn is_forced(&self) -> bool {
        self.observation.account.annotation(FORCE_DELETE_ANNOTATION).is_some()
    }

    /// Whether the status says that the account leaves Clouddriver.
    pub(super) fn says_it_leaves_clouddriver(&self) -> bool {
        conditions::find(&self.status.conditions, SPINNAKER_REGISTERED)
            .is_some_and(|said| said.reason == LEAVING_CLOUDDRIVER)
    }

    /// What the status is to say of a credential that only Clouddriver has; absent: it is available, or nothing is known
    /// against that.
    pub(super) fn credential_on_clouddriver(&self) -> Option<&str> {
        let is_said = conditions::find(&self.status.conditions, CREDENTIAL_AVAILABLE).is_some();
        let was_never_read = self.status.conditions.is_empty()
            || (self.state() == State::Inactive && self.status.epoch.is_none());
        let is_missing = match &self.observation.credential {
            Fact::Known(Ok(_)) => false,
            Fact::Known(Err(failure)) => failure.class == FailureClass::FileOnClouddriver,
            Fact::Unknown => is_said || was_never_read,
        };
        self.observation.clouddriver_file.as_deref().filter(|_| is_missing)
    }

    /// A condition about Clouddriver as the status shall say it: status, reason and message. What is not known stays as it
    /// is said.
    pub(super) fn clouddriver_condition(&self, type_: &str) -> Option<(&'static str, String, String)> {
        let registration = self.observation.registration.as_ref()?;
        let registered = |holds| if holds { "True" } else { "False" };
        match (type_, &registration.condition, &registration.also) {
            (CLOUDDRIVER_ALSO, _, Fact::Known(also)) => also.as_ref().map(|one| {
                (one.holds.map_or("Unknown", registered), one.reason.to_owned(), one.message.clone())
            }),
            (SPINNAKER_REGISTERED, Fact::Known(condition), _) => condition
                .as_ref()
                .map(|one| (registered(one.holds), one.reason.name().to_owned(), one.message.clone())),
            _ => self.clouddriver_condition_said(type_),
        }
    }

    fn clouddriver_condition_said(&self, type_: &str) -> Option<(&'static str, String, String)> {
        let said = conditions::find(&self.status.conditions, type_)?;
        let status = ["True", "False"].into_iter().find(|one| *one == said.status).unwrap_or("Unknown");
        Some((status, said.reason.clone(), said.message.clone()))
    }

    /// Whether the status says something else of Clouddriver than is so: a status or a reason. Another message is no write.
    pub(super) fn clouddriver_is_new(&self) -> bool {
        let essence =
            |said: Option<(&'static str, String, String)>| said.map(|(status, reason, _)| (status, reason));
        [SPINNAKER_REGISTERED, CLOUDDRIVER_ALSO].iter().any(|type_| {
            essence(self.clouddriver_condition_said(type_)) != essence(self.clouddriver_condition(type_))
        })
    }

    /// The agent in whose file an account stands, to go on in a sentence.
    pub(super) fn of_whose_file(&self) -> String {
        let agent_wins = self.observation.policy.agent_wins;
        let whose = match self.listing_agent() {
            Some(agent) => format!("agent {} of zone {}", agent.agent_id, agent.zone_id),
            None => "an agent".to_owned(),
        };
        format!(", which is of the own file of {whose} (kubesvc.dynamicAccounts.agentWins: {agent_wins})")
    }
}

/// What is said of an agent that is connected and does not answer. A path that loses large packets lets the small ones of
/// connecting through, and no command: streams end one after another without an answer to it.
pub fn silence(agent_id: &AgentId, unanswered: Option<UnansweredMessage>) -> Failure {
    let lost = unanswered.filter(|message| message.ended_streams >= MIN_ENDED_STREAMS);
    let remedy = match lost {
        Some(UnansweredMessage { bytes, .. }) => format!(
            ", and its streams end without an answer to a message of {bytes} bytes: check the MTU of the path \
             between agent and operator"
        ),
        None => "; see its log".to_owned(),
    };
    let message = format!("agent {agent_id} is connected and did not answer in time{remedy}");
    Failure::new(FailureClass::Timeout, message)
}

/// The earlier of two ticks.
pub(super) fn earlier(one: Option<Tick>, other: Option<Tick>) -> Option<Tick> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}
