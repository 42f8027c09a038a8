//! An account's registration in Clouddriver, as far as its lifecycle and its status are concerned.

use crate::lifecycle::{Fact, Tick};

/// Type of the condition that says whether a stock Clouddriver has the account.
pub const SPINNAKER_REGISTERED: &str = "SpinnakerRegistered";
/// Reason while the account is removed from Clouddriver before its zone has to drop it.
pub const LEAVING_CLOUDDRIVER: &str = RegistrationReason::LeavingClouddriver.name();

/// Defines the reasons: each with what to do that the condition's message does not say already.
macro_rules! registration_reasons {
    ($($(#[$doc:meta])* $reason:ident $(=> $remedy:literal)?,)+) => {
        /// Reason of the condition [`SPINNAKER_REGISTERED`]. `docs/beside-clouddriver.md` has a row for each.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum RegistrationReason {
            $($(#[$doc])* $reason,)+
        }

        impl RegistrationReason {
            /// Each of them.
            pub const ALL: &[Self] = &[$(Self::$reason),+];

            /// Its name in CamelCase.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$reason => stringify!($reason),)+
                }
            }

            /// What to do, in sentences; `None`: the condition's message says it, or there is nothing to do.
            pub const fn remedy(self) -> Option<&'static str> {
                let remedies: &[&'static str] = match self {
                    $(Self::$reason => &[$($remedy)?],)+
                };
                remedies.first().copied()
            }
        }
    };
}

registration_reasons! {
    /// Clouddriver has stored and loaded the account.
    Pushed,
    /// It is stored, and not loaded for two polls.
    NotLoaded => "Read what Clouddriver's log says of the account. If Fiat is on there, see that kubesvc.clouddriver.push.user is one of its admins.",
    /// No stored account is loaded.
    PollerOff,
    /// Clouddriver stores no accounts.
    StorageOff => "Set account.storage.enabled and account.storage.kubernetes.enabled in Clouddriver, on a SQL database.",
    /// Somebody else has the name.
    Conflict,
    /// Its row was changed in Clouddriver.
    Drift,
    /// Clouddriver refuses the definition.
    Rejected => "Correct the field of the spec that Clouddriver names, or keep the account out of it by spec.spinnaker.register: false.",
    /// Clouddriver could store the name, and never remove it, or takes it for another one.
    NameNotPortable,
    /// The user may not.
    Forbidden => "Make that user an admin in Fiat, or name one that is in kubesvc.clouddriver.push.user.",
    /// No answer, or one that says nothing of the account.
    Unreachable => "See that Clouddriver runs, that kubesvc.clouddriver.baseUrl is its URL, and that the operator's network policy allows its port.",
    /// It is removed from Clouddriver.
    LeavingClouddriver,
}

impl RegistrationReason {
    /// The reason of this name; `None`: there is none.
    pub fn of(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|reason| reason.name() == name)
    }
}

/// Status, reason and message of the condition [`SPINNAKER_REGISTERED`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegistrationCondition {
    /// Whether Clouddriver has the account as kubesvc registered it.
    pub holds: bool,
    /// The reason.
    pub reason: RegistrationReason,
    /// A sentence for people.
    pub message: String,
}

/// Type of the condition of a migrated account that says whether Clouddriver has an account of this name from elsewhere.
pub const CLOUDDRIVER_ALSO: &str = "ClouddriverAlso";

/// Status, reason and message of the condition [`CLOUDDRIVER_ALSO`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AlsoCondition {
    /// Whether Clouddriver has one; `None`: that is not known, and is said.
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
pub struct ClouddriverFacts {
    /// What the condition [`SPINNAKER_REGISTERED`] shall say; `Known(None)`: there is none; `Unknown`: it stays as it is.
    pub condition: Fact<Option<RegistrationCondition>>,
    /// What the condition [`CLOUDDRIVER_ALSO`] shall say, likewise.
    pub also: Fact<Option<AlsoCondition>>,
    /// Whether Clouddriver may have the account.
    pub presence: RegistrationPresence,
    /// The tick until which a revoke waits for Clouddriver at most.
    pub leaves_until: Tick,
}
