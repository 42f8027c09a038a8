//! Ids and epochs as distinct types, so that an agent's id cannot be passed for its zone, nor the epoch of a grant
//! for that of an election. They become plain text and numbers at the edges: on the wire, in SQL, in a URL, in a
//! metric's label.
//!
//! The uid of an account stays text. It comes as text with every object and every message, and is only compared and
//! looked up: a type of its own would copy it for each lookup.

use std::borrow::Borrow;
use std::fmt;

use serde::{Deserialize, Serialize};

/// Maximum epoch: the largest integer that every JSON reader represents exactly. Only a status edited by hand comes
/// near it; there the epoch stops growing.
pub(crate) const MAX_EPOCH: i64 = (1 << 53) - 1;

macro_rules! epoch {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub i64);

        impl $name {
            /// The value before the first epoch.
            pub const NONE: Self = Self(0);

            /// Whether this is [`Self::NONE`].
            pub fn is_none(&self) -> bool {
                *self == Self::NONE
            }

            /// The next epoch; [`MAX_EPOCH`] has none and is returned unchanged.
            #[must_use]
            pub fn next(self) -> Self {
                Self(self.0.saturating_add(1).clamp(1, MAX_EPOCH))
            }

            /// Converts from the wire; `None` above [`MAX_EPOCH`].
            pub fn from_wire(number: u64) -> Option<Self> {
                i64::try_from(number).ok().filter(|number| *number <= MAX_EPOCH).map(Self)
            }

            /// Converts to the wire. Only a status edited by hand has a negative epoch; it becomes 0.
            pub fn to_wire(self) -> u64 {
                u64::try_from(self.0).unwrap_or_default()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

epoch! {
    /// The epoch of a grant: grows with each opening, reopening and revoking.
    GrantEpoch
}

epoch! {
    /// The epoch of an election of the agent that streams an account's objects.
    CachingEpoch
}

macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(String);

        impl $name {
            /// The missing id: the empty text.
            pub const NONE: Self = Self(String::new());

            /// The id as plain text.
            pub fn as_str(&self) -> &str {
                &self.0
            }

            /// Whether it is [`Self::NONE`].
            pub fn is_empty(&self) -> bool {
                self.0.is_empty()
            }
        }

        impl Default for &$name {
            fn default() -> Self {
                const NONE: &$name = &$name::NONE;
                NONE
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl From<&str> for $name {
            fn from(id: &str) -> Self {
                Self(id.to_owned())
            }
        }

        impl From<String> for $name {
            fn from(id: String) -> Self {
                Self(id)
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> Self {
                id.0
            }
        }

        impl PartialEq<str> for $name {
            fn eq(&self, other: &str) -> bool {
                self.0 == other
            }
        }

        impl PartialEq<&str> for $name {
            fn eq(&self, other: &&str) -> bool {
                self.0 == *other
            }
        }

        impl PartialEq<String> for $name {
            fn eq(&self, other: &String) -> bool {
                self.0 == *other
            }
        }

        impl PartialEq<$name> for str {
            fn eq(&self, other: &$name) -> bool {
                *self == other.0
            }
        }

        impl PartialEq<$name> for &str {
            fn eq(&self, other: &$name) -> bool {
                **self == other.0
            }
        }
    };
}

text_id! {
    /// One stream of one process of an agent: a ULID.
    SessionId
}

text_id! {
    /// One process of an agent: a ULID.
    BootId
}

text_id! {
    /// Id of an agent: unique in its zone. Each cluster may have an agent of the same id, as the pods of a StatefulSet have.
    AgentId
}

text_id! {
    /// A zone: the agents that can reach the same clusters.
    ZoneId
}

/// An agent among all agents of an operator. Ordered by id, then by zone.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AgentKey {
    /// Id of the agent.
    pub id: AgentId,
    /// Zone of the agent.
    pub zone: ZoneId,
}

impl AgentKey {
    /// The agent of an id in a zone.
    pub fn new(id: &AgentId, zone: &ZoneId) -> Self {
        Self { id: id.clone(), zone: zone.clone() }
    }
}

text_id! {
    /// One replica of the operator: the name of its pod.
    ReplicaId
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn ids_are_plain_text_in_json_and_in_logs() {
        let id = SessionId::from("s\"1");
        assert_eq!(serde_json::to_string(&id).ok().as_deref(), Some(r#""s\"1""#));
        assert_eq!(serde_json::from_str::<BootId>(r#""b""#).ok(), Some(BootId::from("b")));
        assert_eq!(
            (format!("{id}"), format!("{id:>5}"), format!("{id:?}")),
            ("s\"1".into(), "  s\"1".into(), r#""s\"1""#.into())
        );
    }

    #[test]
    fn a_map_by_id_is_looked_into_by_text() {
        let by_id = HashMap::from([(BootId::from("b"), 1)]);
        assert_eq!((by_id.get("b"), by_id.get("c")), (Some(&1), None));
    }

    #[test]
    fn an_id_equals_its_text_on_either_side() {
        let (id, text) = (ReplicaId::from("r-0"), "r-0".to_owned());
        assert_eq!(id, text);
        assert_eq!(text.as_str(), id);
        assert!("r-0" == id && "r-1" != id);
    }

    #[test]
    fn the_absent_id_is_empty() {
        assert!(SessionId::default().is_empty());
        assert!(!SessionId::from("s").is_empty());
    }

    #[test]
    fn epochs_are_plain_numbers_in_json() {
        assert_eq!(serde_json::to_string(&GrantEpoch(7)).ok().as_deref(), Some("7"));
        assert_eq!(serde_json::from_str::<CachingEpoch>("7").ok(), Some(CachingEpoch(7)));
    }

    #[test]
    fn the_greatest_epoch_is_followed_by_itself() {
        assert_eq!(GrantEpoch::NONE.next(), GrantEpoch(1));
        assert_eq!(GrantEpoch(MAX_EPOCH).next(), GrantEpoch(MAX_EPOCH));
        assert_eq!(GrantEpoch(i64::MAX).next(), GrantEpoch(MAX_EPOCH));
    }

    #[test]
    fn the_wire_has_no_epoch_beyond_the_greatest_and_none_below_zero() {
        let greatest = u64::try_from(MAX_EPOCH).unwrap_or_default();
        assert_eq!(CachingEpoch::from_wire(greatest), Some(CachingEpoch(MAX_EPOCH)));
        assert_eq!(CachingEpoch::from_wire(greatest + 1), None);
        assert_eq!(CachingEpoch(-1).to_wire(), 0);
    }
}
