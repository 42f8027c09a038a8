//! Which of several objects with one account name has it.

use std::cmp::Ordering;

use super::failure::FailureClass;
use super::lifecycle::{generation_is_unhandled, retry_is_unhandled};
use super::{GrantPhase, KubesvcAccount};

/// The order of objects with one account name; the first has the name. One that waits for a name of another namespace
/// comes last. Else a declared object comes before one of an agent's own file, then the older before the younger; objects
/// of the same second come in the order of their uids, so that every replica agrees, but one that was given to a zone before
/// the other was seen keeps its name.
pub fn order(one: &KubesvcAccount, other: &KubesvcAccount) -> Ordering {
    key(one).cmp(&key(other))
}

/// Whether this object has the name that both want.
pub fn takes_precedence(one: &KubesvcAccount, other: &KubesvcAccount) -> bool {
    order(one, other) == Ordering::Less
}

fn key(account: &KubesvcAccount) -> (Claim, bool, Option<jiff::Timestamp>, bool, &str) {
    let made = account.metadata.creation_timestamp.as_ref().map(|time| time.0);
    // Epochs never go back, so whoever was first stays so without a grant too.
    let was_never_granted = account.status_or_default().epoch == 0;
    (claim(account), account.is_static(), made, was_never_granted, account.uid())
}

/// What an object has done to get its name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Claim {
    /// It is its own, as far as anybody has said.
    Own,
    /// An object of another namespace had it, and somebody has asked for it since.
    Asked,
    /// An object of another namespace had it.
    Waits,
}

fn claim(account: &KubesvcAccount) -> Claim {
    let status = account.status_or_default();
    let lost = status.failure_class() == Some(FailureClass::DuplicateName)
        && status.phase() == GrantPhase::None
        && status.error_message.as_deref().and_then(namespace_of_holder)
            != account.metadata.namespace.as_deref();
    match lost {
        false => Claim::Own,
        true if generation_is_unhandled(account) || retry_is_unhandled(account) => Claim::Asked,
        true => Claim::Waits,
    }
}

/// Whether the object takes its name, should it be free, only after a retry that is asked for or a new spec: an object of
/// another namespace had it. Else whoever may make accounts in one namespace could wait there for a name of another to be
/// deleted and made anew.
pub fn waits_to_be_asked(account: &KubesvcAccount) -> bool {
    claim(account) == Claim::Waits
}

/// What stands before an object's namespace and name in the message that it has the account name.
pub(crate) const HOLDER: &str = " object ";

/// The namespace of the object that had the name, in the message of `DuplicateName`. The account name in it is quoted.
fn namespace_of_holder(message: &str) -> Option<&str> {
    let (_, holder) = message.rsplit_once(HOLDER)?;
    holder.split_once('/').map(|(namespace, _)| namespace)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;
    use crate::account::conditions::{self, Story};
    use crate::account::lifecycle::name_is_taken;
    use crate::account::{KubesvcAccountSpec, ORIGIN_LABEL, RETRY_ANNOTATION, State};

    fn account(uid: &str, second: i64, origin: Option<&str>) -> KubesvcAccount {
        let mut account = KubesvcAccount::new(uid, KubesvcAccountSpec::default());
        account.metadata.uid = Some(uid.to_owned());
        let time = jiff::Timestamp::from_second(second).expect("a small number is a time");
        account.metadata.creation_timestamp = Some(Time(time));
        account.metadata.labels = origin.map(|origin| [(ORIGIN_LABEL.to_owned(), origin.to_owned())].into());
        account
    }

    #[test]
    fn the_older_of_two_declared_objects_has_the_name() {
        assert!(takes_precedence(&account("b", 10, None), &account("a", 20, None)));
        assert!(takes_precedence(&account("b", 10, Some("rest")), &account("a", 20, None)));
    }

    #[test]
    fn the_older_of_two_static_objects_has_the_name() {
        assert!(takes_precedence(&account("b", 10, Some("agent")), &account("a", 20, Some("agent"))));
    }

    #[test]
    fn a_younger_declared_object_has_the_name_before_an_older_static_one() {
        for origin in [None, Some("rest"), Some("migrated")] {
            assert!(takes_precedence(&account("b", 20, origin), &account("a", 10, Some("agent"))));
            assert!(!takes_precedence(&account("a", 10, Some("agent")), &account("b", 20, origin)));
        }
    }

    #[test]
    fn two_of_the_same_second_are_told_apart_and_none_goes_before_itself() {
        let (one, other) = (account("a", 10, None), account("b", 10, None));
        assert!(takes_precedence(&one, &other) && !takes_precedence(&other, &one));
        assert!(!takes_precedence(&one, &one));
    }

    #[test]
    fn of_two_of_the_same_second_the_one_that_was_given_to_a_zone_keeps_the_name() {
        let (mut given, other) = (account("b", 10, None), account("a", 10, None));
        assert!(takes_precedence(&other, &given));
        given.status.get_or_insert_default().epoch = 1;
        assert!(takes_precedence(&given, &other));
        assert!(takes_precedence(&account("a", 9, None), &given), "an older one was there before");
    }

    /// As it waits for the name that an object of this namespace has.
    fn waiting(uid: &str, second: i64, namespace: &str, account_name: &str) -> KubesvcAccount {
        let mut waiting = account(uid, second, None);
        waiting.metadata.namespace = Some("team".to_owned());
        waiting.metadata.generation = Some(1);
        waiting.spec.account_name = Some(account_name.to_owned());
        let failure = name_is_taken(&waiting, &format!("{namespace}/prod"));
        let story = Story::failed(failure.class.reason(), failure.message.clone(), true);
        let status = waiting.status.get_or_insert_default();
        status.state = Some(State::Failed);
        status.observed_generation = 1;
        status.error_message = Some(failure.message);
        let time = Time(jiff::Timestamp::UNIX_EPOCH);
        status.conditions = conditions::tell(&[], &story, false, None, 1, &time);
        waiting
    }

    #[test]
    fn one_that_waits_for_a_name_of_another_namespace_gets_it_before_nobody() {
        let younger = account("b", 90, Some("agent"));
        assert!(takes_precedence(&younger, &waiting("a", 10, "shop", "prod")));
        assert!(waits_to_be_asked(&waiting("a", 10, "shop", "prod")));
        let beside = waiting("a", 10, "team", "prod");
        assert!(takes_precedence(&beside, &younger) && !waits_to_be_asked(&beside), "of its own namespace");
    }

    #[test]
    fn one_that_is_asked_for_comes_before_those_that_wait_and_takes_no_name_that_is_had() {
        let asked = |change: fn(&mut KubesvcAccount)| {
            let mut one = waiting("a", 20, "shop", "prod");
            change(&mut one);
            one
        };
        let retried = asked(|one| {
            one.metadata.annotations = Some([(RETRY_ANNOTATION.to_owned(), "1".to_owned())].into());
        });
        let edited = asked(|one| one.metadata.generation = Some(2));
        for one in [retried, edited] {
            assert!(!waits_to_be_asked(&one));
            assert!(takes_precedence(&one, &waiting("b", 10, "shop", "prod")));
            assert!(takes_precedence(&account("c", 90, None), &one));
        }
    }

    #[test]
    fn no_account_name_passes_for_the_object_that_has_it() {
        for name in
            ["x\" is taken by the older object team/x; delete", " object team/x", &"\u{202e}".repeat(255)]
        {
            assert!(waits_to_be_asked(&waiting("a", 10, "shop", name)), "{name}");
        }
    }
}
