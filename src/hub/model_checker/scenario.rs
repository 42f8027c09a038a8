//! Bounds of a search.

/// An action of a person.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum PersonAction {
    OtherZone,
    OtherState,
    Delete,
    /// Withdraws the approval of the first agent.
    Disapprove,
    /// Creates an account under the name of a deleted one.
    Recreate,
}

/// Maximum number of times each fault may happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Faults {
    /// Another replica takes the lead.
    pub(super) takeovers: u8,
    /// A replica that leads no more, and does not know it, decides and acts.
    pub(super) late: u8,
    /// A leader sleeps between a decision and its write.
    pub(super) sleeps: u8,
    /// A replica dies with all its streams, and restarts.
    pub(super) crashes: u8,
    /// An agent loses its stream.
    pub(super) cuts: u8,
    /// An agent process restarts.
    pub(super) restarts: u8,
    /// An agent fails to add the account.
    pub(super) failures: u8,
    /// The leader considers a retry due, or an agent silent.
    pub(super) delays: u8,
    /// Number of versions by which a watch may lag.
    pub(super) lag: u8,
}

impl Faults {
    pub(super) const NONE: Self = Self {
        takeovers: 0,
        late: 0,
        sleeps: 0,
        crashes: 0,
        cuts: 0,
        restarts: 0,
        failures: 0,
        delays: 0,
        lag: 0,
    };

    pub(super) fn encode(self, bytes: &mut Vec<u8>) {
        let Self { takeovers, late, sleeps, crashes, cuts, restarts, failures, delays, lag } = self;
        bytes.extend([takeovers, late, sleeps, crashes, cuts, restarts, failures, delays, lag]);
    }
}

/// The agents, the actions of people in order, and the bounds of faults.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scenario {
    pub(super) name: &'static str,
    /// Id and zone of each process; two may share an id.
    pub(super) agents: &'static [(&'static str, &'static str)],
    pub(super) script: &'static [PersonAction],
    pub(super) faults: Faults,
}

pub(super) const EAST: (&str, &str) = ("e", "east");
pub(super) const WEST: (&str, &str) = ("w", "west");
