//! What may happen in a search.

/// What a person does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum PersonAction {
    OtherZone,
    OtherState,
    Delete,
    /// The first agent is given accounts no more.
    Disapprove,
    /// An account is made under the name of one that is gone.
    MakeAnew,
}

/// How often each of these may happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Faults {
    /// Another replica takes the lead.
    pub(super) takeovers: u8,
    /// A replica that leads no more, and does not know it yet, looks and acts.
    pub(super) late: u8,
    /// A leader sleeps between what it decides and what it does.
    pub(super) sleeps: u8,
    /// A replica dies with all its streams, and begins anew.
    pub(super) crashes: u8,
    /// An agent loses its stream.
    pub(super) cuts: u8,
    /// An agent's process begins anew.
    pub(super) restarts: u8,
    /// An agent cannot take the account.
    pub(super) failures: u8,
    /// The leader thinks that a retry is due, or that an agent is silent.
    pub(super) delays: u8,
    /// How many versions a watch may lag behind.
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

/// The agents, what people do in this order and at any moment, and how often else something happens.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scenario {
    pub(super) name: &'static str,
    /// Id and zone of each process. Two may have one id.
    pub(super) agents: &'static [(&'static str, &'static str)],
    pub(super) script: &'static [PersonAction],
    pub(super) faults: Faults,
}

pub(super) const EAST: (&str, &str) = ("e", "east");
pub(super) const WEST: (&str, &str) = ("w", "west");
