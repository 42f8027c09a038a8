//! Decision about a listed account, given the objects with its name.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::hub::static_accounts::ORIGIN;
use crate::hub::static_accounts::listing::ValidEntry;
use kubesvc_core::lifecycle::short;
use kubesvc_core::name_precedence::Precedence;
use kubesvc_core::{FINALIZER, KubesvcAccount, KubesvcAccountSpec, ORIGIN_LABEL, ZoneId, object_names};

/// What to do about a listed account.
#[derive(Debug, PartialEq)]
pub(super) enum ListingDecision {
    /// Its object is as listed.
    Keep,
    Create(Box<KubesvcAccount>),
    /// Replace its object, at the version that was judged.
    Update(Box<KubesvcAccount>),
    /// Its object is being deleted; a new one can be created after that.
    Wait,
    /// Another account has the name; carries the message.
    Conflict(String),
}

/// Judges a listed account of a zone. `found` are the objects with its account name, and the one with its object
/// name. `namespace` is where its object is created. Beside a declared account it has an object only if the declared
/// one does not take precedence.
pub(crate) fn judge(
    listed: &ValidEntry,
    zone: &ZoneId,
    namespace: &str,
    found: &[&KubesvcAccount],
    precedence: Precedence,
) -> ListingDecision {
    let (namesakes, others): (Vec<&KubesvcAccount>, Vec<_>) =
        found.iter().partition(|account| account.account_name() == listed.name);
    let (ours, declared): (Vec<&KubesvcAccount>, Vec<_>) =
        namesakes.into_iter().partition(|account| account.is_static());
    let goes_first = |declared: &&&KubesvcAccount| match ours.first() {
        Some(ours) => precedence.takes_precedence(declared, ours),
        None => !precedence.agent_wins,
    };
    if let Some(declared) = declared.iter().find(goes_first) {
        return ListingDecision::Conflict(format!("declared as KubesvcAccount {}", key(declared)));
    }
    if let Some(other) = ours.iter().find(|account| account.spec.zone_id.as_ref() != Some(zone)) {
        let zone = other.spec.zone_id.as_ref().unwrap_or_default();
        return ListingDecision::Conflict(format!(
            "agents of zone {zone:?} list an account of this name{}",
            bound_to(other)
        ));
    }
    if ours.iter().any(|account| account.is_being_deleted()) {
        return ListingDecision::Wait;
    }
    match (ours.first(), others.first()) {
        (Some(ours), _) => update(ours, &listed.spec),
        (None, Some(other)) => ListingDecision::Conflict(format!(
            "the object {} stands for the account {:?}",
            key(other),
            other.account_name()
        )),
        (None, None) => {
            let mut object = object(listed, namespace);
            if declared.iter().any(|declared| key(declared) == key(&object)) {
                object.metadata.name = Some(object_names::object_name_beside(&listed.name));
                object.spec.account_name = Some(listed.name.clone());
            }
            ListingDecision::Create(Box::new(object))
        }
    }
}

/// Whether two specs refer to the same kubeconfig: an agent that lists one then lists the other.
pub(super) fn is_same_source(one: &KubesvcAccount, other: &KubesvcAccount) -> bool {
    let digest = |account: &KubesvcAccount| object_names::source_digest("", &account.spec);
    digest(one) == digest(other)
}

/// Message to an agent whose entry has the name of an account that another agent lists with another kubeconfig.
pub(super) fn another_lists(zone: &ZoneId, account: &KubesvcAccount) -> String {
    format!(
        "another agent of zone {zone:?} lists an account of this name with another kubeconfig, context or \
         insecure{}; give one of the two another name, or the agents a zoneId of their own",
        bound_to(account)
    )
}

/// Names the cluster that the account is bound to, if known, as the continuation of a sentence.
fn bound_to(account: &KubesvcAccount) -> String {
    let status = account.status_or_default();
    let bound = status.cluster_uid.as_deref().filter(|bound| !bound.is_empty());
    bound.map(|bound| format!(", and it is bound to cluster {}", short(bound))).unwrap_or_default()
}

/// Makes the object of a listed account, with its finalizer, which saves a write.
fn object(listed: &ValidEntry, namespace: &str) -> KubesvcAccount {
    KubesvcAccount {
        metadata: ObjectMeta {
            name: Some(object_names::object_name(&listed.name)),
            namespace: Some(namespace.to_owned()),
            labels: Some([(ORIGIN_LABEL.to_owned(), ORIGIN.to_owned())].into()),
            finalizers: Some(vec![FINALIZER.to_owned()]),
            ..ObjectMeta::default()
        },
        spec: listed.spec.clone(),
        status: None,
    }
}

/// Keeps the fields that a file does not set as a person has set them.
fn update(ours: &KubesvcAccount, listed: &KubesvcAccountSpec) -> ListingDecision {
    let spec = KubesvcAccountSpec {
        account_name: ours.spec.account_name.clone(),
        state: ours.spec.state,
        environment: ours.spec.environment.clone(),
        account_type: ours.spec.account_type.clone(),
        custom_resources: ours.spec.custom_resources.clone(),
        ..listed.clone()
    };
    if spec == ours.spec {
        return ListingDecision::Keep;
    }
    ListingDecision::Update(Box::new(KubesvcAccount { spec, ..ours.clone() }))
}

fn key(account: &KubesvcAccount) -> String {
    let name = |part: &Option<String>| part.clone().unwrap_or_default();
    format!("{}/{}", name(&account.metadata.namespace), name(&account.metadata.name))
}

#[cfg(test)]
mod tests {
    #![expect(clippy::panic, reason = "this is how a test fails")]

    use super::*;
    use crate::hub::static_accounts::listing::read;
    use crate::hub::static_accounts::listing::tests::sent;
    use kubesvc_core::{DesiredState, NameHolder, State, conditions};

    fn listed(name: &str) -> ValidEntry {
        read(vec![sent(name)], &"z".into()).remove(0).expect("it is good")
    }

    fn judged(name: &str, found: &[&KubesvcAccount]) -> ListingDecision {
        judge(&listed(name), &"z".into(), "ns", found, Precedence::default())
    }

    fn judged_where_the_agent_wins(name: &str, found: &[&KubesvcAccount]) -> ListingDecision {
        judge(&listed(name), &"z".into(), "ns", found, Precedence { agent_wins: true })
    }

    fn made(name: &str) -> KubesvcAccount {
        match judged(name, &[]) {
            ListingDecision::Create(object) => *object,
            other => panic!("expected an object, got {other:?}"),
        }
    }

    #[test]
    fn a_new_account_becomes_an_object_of_the_agents() {
        let object = made("Prod/East");
        assert_eq!(object.metadata.name, Some(object_names::object_name("Prod/East")));
        assert_eq!(object.metadata.namespace.as_deref(), Some("ns"));
        assert_eq!(object.account_name(), "Prod/East");
        assert_eq!(object.label(ORIGIN_LABEL), Some("agent"));
        assert!(object.has_finalizer());
        assert_eq!(made("prod").spec.account_name, None);
    }

    #[test]
    fn equal_object_is_not_written() {
        assert_eq!(judged("one", &[&made("one")]), ListingDecision::Keep);
    }

    #[test]
    fn differing_object_is_updated_except_fields_set_by_a_person() {
        let mut ours = made("one");
        ours.spec.metrics = Some(true);
        ours.spec.state = Some(DesiredState::Inactive);
        ours.spec.environment = Some("production".into());
        ours.metadata.resource_version = Some("7".into());
        let ListingDecision::Update(written) = judged("one", &[&ours]) else { panic!("it differs") };
        assert_eq!(written.spec.metrics, None);
        assert_eq!(written.spec.state, Some(DesiredState::Inactive));
        assert_eq!(written.spec.environment.as_deref(), Some("production"));
        assert_eq!(written.metadata.resource_version.as_deref(), Some("7"));
        assert_eq!(judged("one", &[&written]), ListingDecision::Keep);
    }

    #[test]
    fn a_name_that_is_declared_is_a_conflict_that_names_the_object() {
        let mut declared = made("one");
        declared.metadata.labels = None;
        let conflict = ListingDecision::Conflict("declared as KubesvcAccount ns/one".into());
        assert_eq!(judged("one", &[&declared]), conflict);
        assert_eq!(judged("one", &[&made("one"), &declared]), conflict, "also beside one of ours");
        declared.metadata.labels = Some([(ORIGIN_LABEL.to_owned(), "rest".to_owned())].into());
        assert_eq!(judged("one", &[&declared]), conflict);
    }

    #[test]
    fn where_the_agent_wins_its_account_is_made_beside_the_declared_one() {
        let mut declared = made("one");
        declared.metadata.labels = None;
        let ListingDecision::Create(object) = judged_where_the_agent_wins("one", &[&declared]) else {
            panic!("it is made")
        };
        assert!(object.is_static());
        assert_eq!(object.account_name(), "one");
        assert_ne!(object.metadata.name, declared.metadata.name, "the declared one has that name");
        assert_eq!(judged_where_the_agent_wins("one", &[&declared, &object]), ListingDecision::Keep);
        declared.metadata.namespace = Some("team".into());
        let ListingDecision::Create(object) = judged_where_the_agent_wins("one", &[&declared]) else {
            panic!("it is made")
        };
        assert_eq!(*object, made("one"), "no other object is in its place");
    }

    #[test]
    fn with_agent_wins_a_static_account_that_waits_for_the_name_is_a_conflict() {
        let (mut ours, mut declared) = (made("one"), made("one"));
        declared.metadata.labels = None;
        declared.metadata.namespace = Some("team".into());
        let time = k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(jiff::Timestamp::UNIX_EPOCH);
        let failed = conditions::ConditionSummary::failed("DuplicateName", "it is taken".into(), true);
        let status = ours.status.get_or_insert_default();
        status.state = Some(State::Failed);
        status.conditions = conditions::standard_conditions(&[], &failed, false, None, 0, &time);
        status.name_holder = Some(NameHolder::of(&declared));
        let conflict = ListingDecision::Conflict("declared as KubesvcAccount team/one".into());
        assert_eq!(judged_where_the_agent_wins("one", &[&declared, &ours]), conflict);
    }

    #[test]
    fn a_name_of_another_zones_agents_is_a_conflict_that_names_the_zone() {
        let mut other = made("one");
        other.spec.zone_id = Some("west".into());
        let ListingDecision::Conflict(why) = judged("one", &[&other]) else { panic!("it is taken") };
        assert!(why.contains("\"west\""), "{why}");
    }

    #[test]
    fn an_object_that_is_being_deleted_is_waited_for() {
        let mut going = made("one");
        let time = k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(jiff::Timestamp::UNIX_EPOCH);
        going.metadata.deletion_timestamp = Some(time);
        assert_eq!(judged("one", &[&going]), ListingDecision::Wait);
    }

    #[test]
    fn object_name_used_by_another_account_is_a_conflict() {
        let mut other = made("one");
        other.spec.account_name = Some("Another".into());
        let ListingDecision::Conflict(why) = judged("one", &[&other]) else { panic!("it is taken") };
        assert!(why.contains("ns/one") && why.contains("Another"), "{why}");
    }
}
