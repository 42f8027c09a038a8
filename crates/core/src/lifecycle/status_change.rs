//! What a rule may change in a status. It is data: [`status_writer`](super::status_writer) applies it.

use super::observation::ClusterIdentity;
use crate::State;
use crate::failure::Failure;
use crate::ids::ZoneId;
use crate::status::NameHolder;

/// What a rule changes in a status.
pub(super) struct StatusChange {
    pub(super) outcome: StatusTarget,
    pub(super) grant: GrantChange,
    pub(super) credential: CredentialChange,
    pub(super) tried_zones: TriedZones,
    /// Whether nothing that failed before counts.
    pub(super) is_forgiven: bool,
    /// Whether the agent that streams the objects is elected.
    pub(super) is_electing: bool,
    /// The failure that is told of in another state than FAILED.
    pub(super) because: Option<String>,
    pub(super) name_holder: Option<NameHolder>,
    /// A reason in place of the state's own.
    pub(super) reason: Option<&'static str>,
    /// A sentence in place of the state's own.
    pub(super) message: Option<String>,
}

/// Where the account is after it.
pub(super) enum StatusTarget {
    /// Where it was; what is new is who lists its name too, and nothing else.
    Listing,
    /// Where it was; what is new is what is left out of its objects, and nothing else.
    LeftOut,
    /// Where it was; what is new is how soon its credential expires, and nothing else.
    Expiring,
    /// Where it was; what is new is the installation that serves it, and nothing else.
    TakenOver,
    /// Where it was; what is new is whether Clouddriver has it, and nothing else.
    Registered,
    /// Where it was; what is new is that it leaves Clouddriver first, and nothing else.
    LeavingClouddriver,
    /// Where it was; what is new is the generation, the retry or something else that was seen.
    Acknowledged,
    /// In FAILED, as before.
    FailedAsBefore,
    /// In FAILED, or DELETE_FAILED.
    Failed(Failure),
    /// In ACTIVE: an agent holds it in this cluster.
    Held(ClusterIdentity),
    /// In this state, without a failure.
    State(State),
}

/// What becomes of the grant.
pub(super) enum GrantChange {
    Stays,
    /// It is open for this zone, under a new epoch.
    Opens(ZoneId),
    /// It is being revoked, under a new epoch.
    IsRevoked,
    /// No zone has it.
    IsReleased,
}

/// What becomes of the version of the credential.
pub(super) enum CredentialChange {
    Stays,
    /// It is the one that is known now.
    IsRecorded,
    /// None is known to be good.
    IsForgotten,
}

/// What becomes of the zones that were tried.
pub(super) enum TriedZones {
    Stay,
    /// This one was tried, too.
    Gain(ZoneId),
    /// They are these.
    Are(Vec<ZoneId>),
}

impl From<StatusTarget> for StatusChange {
    fn from(outcome: StatusTarget) -> Self {
        Self {
            outcome,
            grant: GrantChange::Stays,
            credential: CredentialChange::Stays,
            tried_zones: TriedZones::Stay,
            is_forgiven: false,
            is_electing: false,
            because: None,
            name_holder: None,
            reason: None,
            message: None,
        }
    }
}

impl StatusChange {
    /// Nothing but who lists the account's name too.
    pub(super) fn listing() -> Self {
        StatusTarget::Listing.into()
    }

    /// Nothing but what is left out of the account's objects.
    pub(super) fn left_out() -> Self {
        StatusTarget::LeftOut.into()
    }

    /// Nothing but how soon the credential expires.
    pub(super) fn expiring() -> Self {
        StatusTarget::Expiring.into()
    }

    /// Nothing but the installation that serves the account.
    pub(super) fn taken_over() -> Self {
        StatusTarget::TakenOver.into()
    }

    /// Nothing but whether Clouddriver has the account.
    pub(super) fn registered() -> Self {
        StatusTarget::Registered.into()
    }

    /// Nothing but that the account leaves Clouddriver first.
    pub(super) fn leaving_clouddriver() -> Self {
        StatusTarget::LeavingClouddriver.into()
    }

    /// The state stays; what is new is the generation or the retry that was seen.
    pub(super) fn acknowledged() -> Self {
        StatusTarget::Acknowledged.into()
    }

    /// A state without a failure.
    pub(super) fn to(state: State) -> Self {
        StatusTarget::State(state).into()
    }

    /// ACTIVATING: the grant is open for the zone, under a new epoch.
    pub(super) fn open(zone: &ZoneId) -> Self {
        let opened = Self { grant: GrantChange::Opens(zone.to_owned()), ..Self::to(State::Activating) };
        opened.with_credential().with_message(format!("handed to the agents of zone {zone}"))
    }

    /// ACTIVE: an agent holds it, and this is the cluster it reached.
    pub(super) fn held(identity: &ClusterIdentity) -> Self {
        Self::from(StatusTarget::Held(identity.clone())).electing()
    }

    /// FAILED, or DELETE_FAILED for an account that is being deleted; counted where a try was used up. What cannot pass
    /// by itself is not tried again, so that it counts once.
    pub(super) fn failed(failure: &Failure) -> Self {
        StatusTarget::Failed(failure.clone()).into()
    }

    /// The failure that the status speaks of stays, and no try was used.
    pub(super) fn failed_as_before() -> Self {
        StatusTarget::FailedAsBefore.into()
    }

    /// The grant is being revoked, under a new epoch.
    pub(super) fn revoking(self) -> Self {
        Self { grant: GrantChange::IsRevoked, ..self }
    }

    /// Nobody has the grant.
    pub(super) fn released(self) -> Self {
        Self { grant: GrantChange::IsReleased, ..self }
    }

    /// The credential as it is now is the one that agents are asked about, or sent.
    pub(super) fn with_credential(self) -> Self {
        Self { credential: CredentialChange::IsRecorded, ..self }
    }

    /// No credential is known to be good.
    pub(super) fn without_credential(self) -> Self {
        Self { credential: CredentialChange::IsForgotten, ..self }
    }

    /// This zone is not tried again in this round.
    pub(super) fn tried(self, zone: &ZoneId) -> Self {
        Self { tried_zones: TriedZones::Gain(zone.to_owned()), ..self }
    }

    /// The round of looking for a zone is over; the next one begins with all zones.
    pub(super) fn round_over(self) -> Self {
        self.asked(Vec::new())
    }

    /// These zones were asked; with others it is another question.
    pub(super) fn asked(self, zones: Vec<ZoneId>) -> Self {
        Self { tried_zones: TriedZones::Are(zones), ..self }
    }

    /// Something else is wanted now: nothing that failed before counts against it.
    pub(super) fn forgiven(self) -> Self {
        Self { is_forgiven: true, ..self }
    }

    /// The agent that streams the objects is elected, where that is due.
    pub(super) fn electing(self) -> Self {
        Self { is_electing: true, ..self }
    }

    /// Why the last zone was left; kept until the round is over.
    pub(super) fn because(self, failure: &Failure) -> Self {
        Self { because: Some(failure.message.clone()), ..self }
    }

    /// This object has the account name.
    pub(super) fn name_held_by(self, holder: &NameHolder) -> Self {
        Self { name_holder: Some(holder.clone()), ..self }
    }

    /// A reason that says more than the state's own.
    pub(super) fn for_reason(self, reason: &'static str) -> Self {
        Self { reason: Some(reason), ..self }
    }

    /// A sentence that says more than the state's own.
    pub(super) fn with_message(self, message: String) -> Self {
        Self { message: Some(message), ..self }
    }
}
