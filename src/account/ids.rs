//! Epochs as types of their own: the number of a grant and the number of an election never stand for one another.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::status::MAX_EPOCH;

macro_rules! epoch {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub i64);

        impl $name {
            /// Before the first one.
            pub const NONE: Self = Self(0);

            /// Whether it is before the first one.
            pub fn is_none(&self) -> bool {
                *self == Self::NONE
            }

            /// The epoch after this one; [`MAX_EPOCH`] stays.
            #[must_use]
            pub fn next(self) -> Self {
                Self(self.0.saturating_add(1).clamp(1, MAX_EPOCH))
            }

            /// As the wire has it; absent beyond [`MAX_EPOCH`].
            pub fn from_wire(number: u64) -> Option<Self> {
                i64::try_from(number).ok().filter(|number| *number <= MAX_EPOCH).map(Self)
            }

            /// As the wire has it. An epoch is never negative, but for a status that was edited by hand.
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
    /// The number of a grant: grows with each opening, reopening and revoking.
    GrantEpoch
}

epoch! {
    /// The number of an election of the agent that streams an account's objects.
    CachingEpoch
}

#[cfg(test)]
mod tests {
    use super::*;

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
