//! Which of several objects with one account name has it.

use std::cmp::Ordering;

use super::KubesvcAccount;

/// The order of objects with one account name; the first has the name. A declared object comes before one of an
/// agent's own file, then the older before the younger; objects of the same second come in the order of their uids, so
/// that every replica agrees.
pub fn order(one: &KubesvcAccount, other: &KubesvcAccount) -> Ordering {
    key(one).cmp(&key(other))
}

/// Whether this object has the name that both want.
pub fn takes_precedence(one: &KubesvcAccount, other: &KubesvcAccount) -> bool {
    order(one, other) == Ordering::Less
}

fn key(account: &KubesvcAccount) -> (bool, Option<jiff::Timestamp>, &str) {
    let made = account.metadata.creation_timestamp.as_ref().map(|time| time.0);
    (account.is_static(), made, account.uid())
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;
    use crate::account::{KubesvcAccountSpec, ORIGIN_LABEL};

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
}
