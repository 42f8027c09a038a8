//! An account's registration in Clouddriver, as far as its lifecycle and its status are concerned.

use crate::lifecycle::{Fact, Tick};

/// Type of the condition that says whether a stock Clouddriver has the account.
pub const SPINNAKER_REGISTERED: &str = "SpinnakerRegistered";
/// Reason while the account is removed from Clouddriver before its zone has to drop it.
pub const LEAVING_CLOUDDRIVER: &str = "LeavingClouddriver";

/// Type of the condition of a migrated account that says whether Clouddriver has an account of this name from elsewhere.
pub const CLOUDDRIVER_ALSO: &str = "ClouddriverAlso";

/// Status, reason and message of a condition about Clouddriver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegistrationCondition {
    /// Whether it holds; `None`: that is not known, and is said.
    pub holds: Option<bool>,
    /// The reason, in CamelCase.
    pub reason: &'static str,
    /// A sentence for people.
    pub message: String,
}

/// Whether Clouddriver may have the account.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RegistrationPresence {
    /// This leader has not read its table yet.
    #[default]
    Unknown,
    /// kubesvc registered nothing of this account, or has seen it leave.
    Absent,
    /// It is being registered, registered, or being removed.
    Present,
}

/// What the leader knows of an account's registration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Registration {
    /// What the condition [`SPINNAKER_REGISTERED`] shall say; `Known(None)`: there is none; `Unknown`: it stays as it is.
    pub condition: Fact<Option<RegistrationCondition>>,
    /// What the condition [`CLOUDDRIVER_ALSO`] shall say, likewise.
    pub also: Fact<Option<RegistrationCondition>>,
    /// Whether Clouddriver may have the account.
    pub presence: RegistrationPresence,
    /// The tick until which a revoke waits for Clouddriver at most.
    pub leaves_until: Tick,
}
