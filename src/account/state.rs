//! The states of an account, with their documented names.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a person wants an account to be.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum DesiredState {
    /// Agents of a zone hold it.
    #[default]
    Active,
    /// It is kept, and no agent holds it.
    Inactive,
}

/// Where an account is. The ten documented states; TO_DEACTIVATE is only shown, never written.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum State {
    /// Kept, and no agent holds it. An absent status reads so.
    #[default]
    Inactive,
    /// To be active; a zone or a credential is awaited.
    ToMigrate,
    /// Handed to the agents of its zone; none has answered that it holds it.
    Activating,
    /// An agent holds it.
    Active,
    /// To be inactive, and not begun. Only shown.
    ToDeactivate,
    /// The agents were told to drop it, and not all have answered.
    Deactivating,
    /// Being deleted; the agents were told to drop it.
    Deleting,
    /// Being deleted, and an agent failed to drop it. Tried again.
    DeleteFailed,
    /// The last try failed; the message says why and the conditions say whether it is tried again.
    Failed,
    /// It was active, and the last agent that held it is gone.
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

/// How far the right to hold an account has been given to a zone.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum GrantPhase {
    /// No zone may hold it.
    #[default]
    None,
    /// The agents of the zone may hold it.
    Open,
    /// The agents of the zone are to drop it; nothing else happens until they have.
    Revoking,
}
