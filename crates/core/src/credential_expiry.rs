//! When an account's credential expires, and the warnings before.

use std::fmt;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use crate::conditions;

/// Annotation of a Secret that holds a kubeconfig: when the kubeconfig expires, in RFC 3339. It is for credentials that do
/// not say so themselves, or that shall be renewed earlier.
pub const EXPIRES_ANNOTATION: &str = "kubesvc.io/credential-expires";
/// Type of the condition that warns of a credential that is about to expire. Absent while nothing has to be said.
pub const CREDENTIAL_EXPIRING: &str = "CredentialExpiring";

/// What says when a credential expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpiryOrigin {
    /// The claim `exp` of the token.
    Token,
    /// The validity of the client certificate.
    ClientCertificate,
    /// [`EXPIRES_ANNOTATION`] of the Secret.
    Annotation,
}

impl fmt::Display for ExpiryOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Token => f.write_str("the token of the account's credential"),
            Self::ClientCertificate => f.write_str("the client certificate of the account's credential"),
            Self::Annotation => write!(f, "by {EXPIRES_ANNOTATION} of its Secret, the account's credential"),
        }
    }
}

/// When a credential expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CredentialExpiry {
    /// When.
    pub at: Timestamp,
    /// For how long it is valid in all; `None` if nothing says so.
    pub lifetime: Option<SignedDuration>,
    /// What says so.
    pub origin: ExpiryOrigin,
}

/// How close a credential is to its expiry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ExpiryStage {
    /// Seven days or less.
    Within7Days,
    /// One day or less.
    Within1Day,
    /// It has expired.
    Expired,
}

impl ExpiryStage {
    /// All stages, the first one first.
    pub const ALL: [Self; 3] = [Self::Within7Days, Self::Within1Day, Self::Expired];

    /// The reason of the condition, in CamelCase.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Within7Days => "Within7Days",
            Self::Within1Day => "Within1Day",
            Self::Expired => "Expired",
        }
    }

    /// The stage that the conditions of an account warn of.
    pub fn said(conditions: &[Condition]) -> Option<Self> {
        let said = conditions::find(conditions, CREDENTIAL_EXPIRING)?;
        Self::ALL.into_iter().find(|stage| stage.reason() == said.reason)
    }

    /// How long before the expiry it begins.
    fn lead(self) -> SignedDuration {
        match self {
            Self::Within7Days => SignedDuration::from_hours(7 * 24),
            Self::Within1Day => SignedDuration::from_hours(24),
            Self::Expired => SignedDuration::ZERO,
        }
    }
}

impl CredentialExpiry {
    /// The stage at a time. A credential that is valid for less than twice the lead of a warning is renewed more often
    /// than that, by a program, and gets no such warning.
    pub fn stage(&self, now: Timestamp) -> Option<ExpiryStage> {
        self.stages().rev().find(|stage| self.until(*stage, now) <= SignedDuration::ZERO)
    }

    /// Time until the next stage begins; `None` after the last one.
    pub(crate) fn until_next_stage(&self, now: Timestamp) -> Option<SignedDuration> {
        self.stages().map(|stage| self.until(stage, now)).find(|left| *left > SignedDuration::ZERO)
    }

    /// What is said to people. It changes only with the stage.
    pub fn message(&self, stage: ExpiryStage) -> String {
        let Self { at, origin, .. } = self;
        match stage {
            ExpiryStage::Expired => format!("{origin} expired at {at:.0}: renew it"),
            _ => format!("{origin} expires at {at:.0}: renew it before"),
        }
    }

    fn stages(&self) -> impl DoubleEndedIterator<Item = ExpiryStage> {
        let lifetime = self.lifetime;
        let warns = move |lead: SignedDuration| lifetime.is_none_or(|lifetime| lead <= lifetime / 2);
        ExpiryStage::ALL.into_iter().filter(move |stage| warns(stage.lead()))
    }

    fn until(&self, stage: ExpiryStage, now: Timestamp) -> SignedDuration {
        self.at.duration_since(now) - stage.lead()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: i64 = 24 * 3600;

    fn day(day: i64) -> Timestamp {
        Timestamp::from_second(day * DAY).expect("a time")
    }

    fn expiry(lifetime_days: Option<i64>) -> CredentialExpiry {
        let lifetime = lifetime_days.map(|days| SignedDuration::from_secs(days * DAY));
        CredentialExpiry { at: day(100), lifetime, origin: ExpiryOrigin::Token }
    }

    #[test]
    fn warnings_begin_seven_days_and_one_day_before_and_stay() {
        for expiry in [expiry(None), expiry(Some(14))] {
            let stages = [92, 93, 98, 99, 100, 101].map(|now| expiry.stage(day(now)));
            use ExpiryStage::{Expired, Within1Day, Within7Days};
            let expected =
                [None, Some(Within7Days), Some(Within7Days), Some(Within1Day), Some(Expired), Some(Expired)];
            assert_eq!(stages, expected);
            let left =
                [92, 93, 99, 100].map(|now| expiry.until_next_stage(day(now)).map(|left| left.as_secs()));
            assert_eq!(left, [Some(DAY), Some(6 * DAY), Some(DAY), None]);
        }
    }

    #[test]
    fn credential_that_lives_shorter_than_twice_the_lead_gets_no_such_warning() {
        let week = expiry(Some(7));
        assert_eq!(week.stage(day(98)), None);
        assert_eq!(week.stage(day(99)), Some(ExpiryStage::Within1Day));
        let hours = CredentialExpiry { lifetime: Some(SignedDuration::from_hours(1)), ..week };
        assert_eq!(hours.stage(day(100) - SignedDuration::from_secs(1)), None);
        assert_eq!(hours.stage(day(100)), Some(ExpiryStage::Expired));
        assert_eq!(hours.until_next_stage(day(99)), Some(SignedDuration::from_hours(24)));
    }

    #[test]
    fn message_names_what_expires_and_when() {
        let message = expiry(None).message(ExpiryStage::Within7Days);
        assert_eq!(
            message,
            "the token of the account's credential expires at 1970-04-11T00:00:00Z: renew it before"
        );
        let message = expiry(None).message(ExpiryStage::Expired);
        assert!(message.ends_with("expired at 1970-04-11T00:00:00Z: renew it"), "{message}");
    }
}
