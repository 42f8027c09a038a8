//! The states of an account, with their documented names.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Desired state of the account: ACTIVE (the default) or INACTIVE. An inactive account is kept, and no agent holds it.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum DesiredState {
    /// Agents of the zone hold the account.
    #[default]
    Active,
    /// The account is kept, and no agent holds it.
    Inactive,
}

/// State of the account: one of the ten documented states. TO_DEACTIVATE is only displayed, never written.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum State {
    /// The account is kept, and no agent holds it. An absent status means this state.
    #[default]
    Inactive,
    /// To be activated; waits for a zone or a credential.
    ToMigrate,
    /// Sent to the agents of its zone; none has reported yet that it holds the account.
    Activating,
    /// At least one agent holds the account.
    Active,
    /// To be deactivated; not started yet. Only displayed.
    ToDeactivate,
    /// The agents were told to drop the account, and not all have answered.
    Deactivating,
    /// Being deleted; the agents were told to drop the account.
    Deleting,
    /// Being deleted; an agent failed to drop the account. The operator retries.
    DeleteFailed,
    /// The last attempt failed; the message says why, and the conditions say whether the operator retries.
    Failed,
    /// The account was active, and the last agent that held it is gone.
    Orphaned,
}

impl State {
    /// All ten states, in lifecycle order.
    pub const ALL: [Self; 10] = [
        Self::Inactive,
        Self::ToMigrate,
        Self::Activating,
        Self::Active,
        Self::ToDeactivate,
        Self::Deactivating,
        Self::Deleting,
        Self::DeleteFailed,
        Self::Failed,
        Self::Orphaned,
    ];

    /// The documented name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Inactive => "INACTIVE",
            Self::ToMigrate => "TO_MIGRATE",
            Self::Activating => "ACTIVATING",
            Self::Active => "ACTIVE",
            Self::ToDeactivate => "TO_DEACTIVATE",
            Self::Deactivating => "DEACTIVATING",
            Self::Deleting => "DELETING",
            Self::DeleteFailed => "DELETE_FAILED",
            Self::Failed => "FAILED",
            Self::Orphaned => "ORPHANED",
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Phase of the right of a zone to hold an account.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum GrantPhase {
    /// No zone may hold the account.
    #[default]
    None,
    /// The agents of the zone may hold the account.
    Open,
    /// The agents of the zone must drop the account; nothing else happens until they have.
    Revoking,
}
