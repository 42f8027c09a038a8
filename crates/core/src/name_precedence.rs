//! Which of several objects has an account name.

use std::cmp::Ordering;

use super::failure::FailureClass;
use super::lifecycle::{generation_is_unhandled, retry_is_unhandled};
use super::{GrantEpoch, GrantPhase, KubesvcAccount};

/// The rule that decides which of several objects has their account name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Precedence {
    /// Whether an account of an agent's own file precedes a declared one (`kubesvc.dynamicAccounts.agentWins`).
    pub agent_wins: bool,
}

impl Precedence {
    /// The order of objects with the same account name; the first has the name.
    ///
    /// 1. Objects that lost the name to one of another namespace come last: first those that have requested it since,
    ///    then those that wait for a request.
    /// 2. Declared objects precede those of an agent's own file, or the other way round with `agent_wins`.
    /// 3. Older objects precede younger ones.
    /// 4. Objects created in the same second: one that was granted to a zone precedes one that never was, so that it
    ///    keeps its name; then by uid, so that every replica agrees.
    ///
    /// Whether an agent is connected plays no part, so that objects do not change places when an agent comes or goes.
    pub fn order(self, one: &KubesvcAccount, other: &KubesvcAccount) -> Ordering {
        self.key(one).cmp(&self.key(other))
    }

    /// Whether `one` precedes `other` for the name that both want.
    pub fn takes_precedence(self, one: &KubesvcAccount, other: &KubesvcAccount) -> bool {
        self.order(one, other) == Ordering::Less
    }

    fn key(self, account: &KubesvcAccount) -> (NameClaim, bool, Option<jiff::Timestamp>, bool, &str) {
        let made = account.metadata.creation_timestamp.as_ref().map(|time| time.0);
        // Epochs never decrease, so the first object keeps its precedence after its grant has ended.
        let was_never_granted = account.status_or_default().epoch == GrantEpoch::NONE;
        let comes_second = account.is_static() != self.agent_wins;
        (claim(account), comes_second, made, was_never_granted, account.uid())
    }
}

/// The claim of an object to its name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum NameClaim {
    /// The name is its own, as far as is known.
    Own,
    /// An object of another namespace had it, and a new spec or a retry has requested it since.
    Requested,
    /// An object of another namespace had it.
    AwaitsRequest,
}

fn claim(account: &KubesvcAccount) -> NameClaim {
    let status = account.status_or_default();
    let holder = status.name_holder.as_ref().map(|holder| holder.namespace.as_str());
    // A status without a holder was written by an earlier version: the holder's namespace is unknown.
    let lost = status.failure_class() == Some(FailureClass::DuplicateName)
        && status.phase() == GrantPhase::None
        && holder != account.metadata.namespace.as_deref();
    match lost {
        false => NameClaim::Own,
        true if generation_is_unhandled(account) || retry_is_unhandled(account) => NameClaim::Requested,
        true => NameClaim::AwaitsRequest,
    }
}

/// Whether the object takes its name, once free, only after a requested retry or a new spec, because an object of
/// another namespace had it. Otherwise anyone who may create accounts in one namespace could wait there for a name of
/// another namespace to be deleted and recreated.
pub fn awaits_request(account: &KubesvcAccount) -> bool {
    claim(account) == NameClaim::AwaitsRequest
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use proptest::prelude::*;

    use super::*;
    use crate::conditions::{self, ConditionSummary};
    use crate::{KubesvcAccountSpec, NameHolder, ORIGIN_AGENT, ORIGIN_LABEL, RETRY_ANNOTATION, State};

    fn takes_precedence(one: &KubesvcAccount, other: &KubesvcAccount) -> bool {
        Precedence::default().takes_precedence(one, other)
    }

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
        given.status.get_or_insert_default().epoch = GrantEpoch(1);
        assert!(takes_precedence(&given, &other));
        assert!(takes_precedence(&account("a", 9, None), &given), "an older one was there before");
    }

    /// An object that waits for the name held by an object of this namespace.
    fn waiting(uid: &str, second: i64, namespace: &str) -> KubesvcAccount {
        let mut waiting = account(uid, second, None);
        waiting.metadata.namespace = Some("team".to_owned());
        waiting.metadata.generation = Some(1);
        let story =
            ConditionSummary::failed(FailureClass::DuplicateName.reason(), "it is taken".to_owned(), true);
        let status = waiting.status.get_or_insert_default();
        status.state = Some(State::Failed);
        status.observed_generation = 1;
        status.name_holder = Some(NameHolder { namespace: namespace.to_owned(), name: "prod".to_owned() });
        let time = Time(jiff::Timestamp::UNIX_EPOCH);
        status.conditions = conditions::standard_conditions(&[], &story, false, None, 1, &time);
        waiting
    }

    #[test]
    fn an_object_awaiting_a_name_of_another_namespace_precedes_no_other() {
        let younger = account("b", 90, Some("agent"));
        assert!(takes_precedence(&younger, &waiting("a", 10, "shop")));
        assert!(awaits_request(&waiting("a", 10, "shop")));
        let beside = waiting("a", 10, "team");
        assert!(takes_precedence(&beside, &younger) && !awaits_request(&beside), "of its own namespace");
    }

    #[test]
    fn one_that_is_asked_for_comes_before_those_that_wait_and_takes_no_name_that_is_had() {
        let asked = |change: fn(&mut KubesvcAccount)| {
            let mut one = waiting("a", 20, "shop");
            change(&mut one);
            one
        };
        let retried = asked(|one| {
            one.metadata.annotations = Some([(RETRY_ANNOTATION.to_owned(), "1".to_owned())].into());
        });
        let edited = asked(|one| one.metadata.generation = Some(2));
        for one in [retried, edited] {
            assert!(!awaits_request(&one));
            assert!(takes_precedence(&one, &waiting("b", 10, "shop")));
            assert!(takes_precedence(&account("c", 90, None), &one));
        }
    }

    #[test]
    fn one_without_a_holder_in_its_status_waits_to_be_asked() {
        let mut earlier = waiting("a", 10, "team");
        earlier.status.get_or_insert_default().name_holder = None;
        assert!(awaits_request(&earlier), "an earlier version wrote none");
    }

    #[test]
    fn where_the_agent_wins_its_account_has_the_name_before_an_older_declared_one() {
        let agent_wins = Precedence { agent_wins: true };
        for origin in [None, Some("rest"), Some("migrated")] {
            let (declared, listed) = (account("a", 10, origin), account("b", 20, Some(ORIGIN_AGENT)));
            assert!(agent_wins.takes_precedence(&listed, &declared));
            assert!(!agent_wins.takes_precedence(&declared, &listed));
        }
        let beaten = waiting("a", 10, "shop");
        assert!(agent_wins.takes_precedence(&account("b", 20, None), &beaten));
    }

    /// Any object that wants the name.
    fn any_account() -> impl Strategy<Value = KubesvcAccount> {
        let origin = prop::sample::select(vec![None, Some("rest"), Some(ORIGIN_AGENT)]);
        let holder = prop::sample::select(vec![None, Some("shop"), Some("team")]);
        (0..4_u8, 0..3_i64, origin, holder, 0..2_i64, any::<bool>(), any::<bool>()).prop_map(
            |(uid, second, origin, holder, epoch, retries, changes)| {
                let uid = format!("uid-{uid}");
                let mut one = match holder {
                    Some(namespace) => waiting(&uid, second, namespace),
                    None => account(&uid, second, origin),
                };
                one.metadata.labels =
                    origin.map(|origin| [(ORIGIN_LABEL.to_owned(), origin.to_owned())].into());
                one.status.get_or_insert_default().epoch = GrantEpoch(epoch);
                if retries {
                    one.metadata.annotations = Some([(RETRY_ANNOTATION.to_owned(), "1".to_owned())].into());
                }
                if changes {
                    one.metadata.generation = Some(2);
                }
                one
            },
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn exactly_one_of_any_objects_has_the_name_and_none_that_waits_to_be_asked_before_another(
            objects in prop::collection::vec(any_account(), 1..6), agent_wins in any::<bool>(),
        ) {
            let rule = Precedence { agent_wins };
            let mut objects = objects;
            objects.sort_by(|one, other| one.uid().cmp(other.uid()));
            objects.dedup_by(|one, other| one.uid() == other.uid());
            let first: Vec<_> = objects
                .iter()
                .filter(|one| objects.iter().all(|other| !rule.takes_precedence(other, one)))
                .collect();
            prop_assert_eq!(first.len(), 1);
            let others_can = objects.iter().any(|one| !awaits_request(one));
            prop_assert!(!others_can || !awaits_request(first[0]));
            for (one, other) in objects.iter().flat_map(|one| objects.iter().map(move |other| (one, other))) {
                prop_assert_eq!(rule.order(one, other), rule.order(other, one).reverse());
                let same = one.uid() == other.uid();
                prop_assert_eq!(rule.order(one, other) == Ordering::Equal, same);
            }
        }

        #[test]
        fn the_setting_decides_between_a_declared_account_and_an_agents_and_nothing_else(
            one in any_account(), other in any_account(), agent_wins in any::<bool>(),
        ) {
            let rule = Precedence { agent_wins };
            let turned = Precedence { agent_wins: !agent_wins };
            if one.is_static() == other.is_static() || claim(&one) != claim(&other) {
                prop_assert_eq!(rule.order(&one, &other), turned.order(&one, &other));
            } else {
                prop_assert_eq!(rule.takes_precedence(&one, &other), one.is_static() == agent_wins);
                prop_assert_eq!(rule.order(&one, &other), turned.order(&one, &other).reverse());
            }
        }

        #[test]
        fn what_its_agents_grant_and_cluster_do_moves_no_object_from_its_place(
            one in any_account(), other in any_account(), agent_wins in any::<bool>(), count in 0..9_i32,
        ) {
            let rule = Precedence { agent_wins };
            let mut later = one.clone();
            let status = later.status.get_or_insert_default();
            status.agent_count = Some(count);
            status.agents = vec!["agent-1".into()];
            status.zone_id = Some("east".into());
            status.listed_by = Some(crate::ListingAgent::default());
            prop_assert_eq!(rule.order(&one, &other), rule.order(&later, &other));
        }
    }
}
