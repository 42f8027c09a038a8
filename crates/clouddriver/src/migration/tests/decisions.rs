//! Single decisions: waves, pauses, and what a new leader does.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;

use super::*;
use kubesvc_core::migration::MigrationPhase;
use kubesvc_core::{DesiredState, KubesvcMigrationStatus, State};

/// A migration of `a0`, `a1`, … from one source, whose writes succeed.
struct Bench {
    spec: Value,
    entries: Vec<Arc<SourceEntry>>,
    completeness: Completeness,
    accounts: BTreeMap<String, AccountFact>,
    declined: DeclinedNames,
    status: Option<KubesvcMigrationStatus>,
    progress: MigrationProgress,
    generation: i64,
    retry: Option<String>,
    read: u64,
    now: u64,
}

impl Bench {
    fn new(count: usize, spec: Value) -> Self {
        Self {
            spec,
            entries: (0..count).map(|number| good(&format!("a{number:03}"), "sql")).collect(),
            completeness: Completeness::Complete,
            accounts: BTreeMap::new(),
            declined: DeclinedNames::default(),
            status: None,
            progress: MigrationProgress::default(),
            generation: 1,
            retry: None,
            read: 1,
            now: 0,
        }
    }

    fn edit(&mut self, field: &str, value: Value) {
        self.spec[field] = value;
        self.generation += 1;
    }

    fn plan(&self) -> Plan {
        let sources = MergedSources::of(vec![source("sql", &self.entries, &self.completeness)]);
        let (exists, selection) = (|name: &str| self.accounts.contains_key(name), selection(&self.spec));
        let assess = |entry: &Arc<SourceEntry>| assessed(&selection, entry);
        plan(&selection, &sources, assess, exists, &self.declined, self.read)
    }

    /// The next action that is not a write of the status.
    fn next(&mut self) -> Option<MigrationAction> {
        for _ in 0..10 {
            self.now += 1;
            let plan = self.plan();
            let spec = spec(&self.spec);
            let (rules, selection) = (MigrationRules::from(&spec), selection(&self.spec));
            let observation = MigrationObservation {
                migration: "m",
                generation: self.generation,
                retry: self.retry.as_deref(),
                force_rollback: false,
                rules: &rules,
                selection: Ok(&selection),
                plan: Some(&plan),
                accounts: &self.accounts,
                declined: &self.declined,
                status: self.status.as_ref(),
                now: self.now,
                time: &Time(Timestamp::UNIX_EPOCH),
            };
            match decide(&observation, &mut self.progress).action {
                Some(MigrationAction::WriteStatus(status)) => self.status = Some(*status),
                Some(action) => {
                    self.act(&action, &plan);
                    return Some(action);
                }
                None => return None,
            }
        }
        unreachable!("the status is written for ever: {:?}", self.status)
    }

    fn act(&mut self, action: &MigrationAction, plan: &Plan) {
        match action {
            MigrationAction::Create(names) => {
                for name in names {
                    let mut object = object(&selection(&self.spec), plan, name);
                    mark(&mut object, "m");
                    self.accounts.insert(name.clone(), AccountFact::of(&object, true));
                }
            }
            MigrationAction::Activate(names) => self.set(names, DesiredState::Active, State::Activating),
            MigrationAction::Deactivate(names) => self.set(names, DesiredState::Inactive, State::Inactive),
            MigrationAction::Delete(names) => names.iter().for_each(|name| drop(self.accounts.remove(name))),
            MigrationAction::Decline(names) => {
                for (name, hash) in names {
                    self.declined.add(name, hash).expect("there is room");
                }
            }
            MigrationAction::Release(names) => names.iter().for_each(|name| drop(self.accounts.remove(name))),
            MigrationAction::Update(_) | MigrationAction::WriteStatus(_) => {}
        }
    }

    fn set(&mut self, names: &[String], desired: DesiredState, state: State) {
        for name in names {
            let fact = self.accounts.get_mut(name).expect("it is there");
            (fact.desired, fact.state) = (desired, state);
        }
    }

    /// Lets each account that is on its way end in a state.
    fn settle(&mut self, state: State) {
        let on_its_way = |fact: &&mut AccountFact| fact.state == State::Activating;
        self.accounts.values_mut().filter(on_its_way).for_each(|fact| fact.state = state);
    }

    /// Runs until nothing is left to do now; agents succeed.
    fn run(&mut self) -> Vec<MigrationAction> {
        let mut actions = Vec::new();
        while let Some(action) = self.next() {
            actions.push(action);
            self.settle(State::Active);
            assert!(actions.len() < 1000, "it does not end");
        }
        actions
    }

    fn shown(&self) -> (MigrationPhase, &str) {
        let status = self.status.as_ref().expect("a status");
        (status.phase, &status.conditions[0].reason)
    }
}

fn names(action: Option<MigrationAction>) -> usize {
    match action {
        Some(MigrationAction::Create(names) | MigrationAction::Activate(names)) => names.len(),
        _ => 0,
    }
}

#[test]
fn a_wave_is_created_activated_and_soaks_before_the_next_one() {
    let mut bench = Bench::new(20, json!({"patterns": ["a.*"], "wave": {"size": "10%", "soak": "30s"}}));
    assert!(matches!(bench.next(), Some(MigrationAction::Create(names)) if names == ["a000", "a001"]));
    assert!(matches!(bench.next(), Some(MigrationAction::Activate(names)) if names == ["a000", "a001"]));
    assert_eq!(bench.next(), None);
    assert_eq!(bench.shown(), (MigrationPhase::Running, "Running"));
    bench.settle(State::Active);
    assert_eq!(bench.next(), None);
    assert_eq!(bench.shown(), (MigrationPhase::Soaking, "Soaking"));
    bench.now += 30;
    assert_eq!(names(bench.next()), 2);
    let status = bench.status.clone().expect("a status");
    assert_eq!((status.total, status.done, status.active, status.wave), (20, 2, 2, 2));
}

#[test]
fn accounts_in_flight_and_of_a_zone_are_bounded() {
    let zones = json!([{"pattern": "a00[0-4]", "zoneId": "east"}, {"pattern": ".*", "zoneId": "west"}]);
    let limits = json!({"maxInFlight": 5, "maxPerZone": 3});
    let mut bench = Bench::new(
        10,
        json!({"patterns": ["a.*"], "zoneRules": zones, "limits": limits, "wave": {"size": "100%", "soak": "0s"}}),
    );
    assert_eq!(names(bench.next()), 5, "three of one zone and two of the other");
    assert_eq!(names(bench.next()), 5);
    assert_eq!(bench.next(), None, "all five are on their way");
    bench.accounts.get_mut("a000").expect("created").state = State::Active;
    assert_eq!(names(bench.next()), 1);
    bench.run();
    assert_eq!(bench.shown(), (MigrationPhase::Complete, "Complete"));
    assert!(bench.accounts.values().all(|fact| fact.state == State::Active) && bench.accounts.len() == 10);
}

#[test]
fn too_many_failures_pause_until_a_person_resumes() {
    let mut bench = Bench::new(40, json!({"patterns": ["a.*"], "wave": {"size": 10, "soak": "5s"}}));
    bench.next();
    bench.next();
    // An account that is ORPHANED while its wave soaks counts too.
    bench.settle(State::Active);
    assert_eq!(bench.next(), None);
    for name in ["a000", "a001"] {
        bench.accounts.get_mut(name).expect("created").state = State::Failed;
    }
    assert_eq!(bench.next(), None);
    assert_eq!(bench.shown(), (MigrationPhase::Soaking, "Soaking"), "2 of 40 are 5 %");
    bench.accounts.get_mut("a002").expect("created").state = State::Orphaned;
    bench.now += 100;
    assert_eq!(bench.next(), None);
    assert_eq!(bench.shown(), (MigrationPhase::Paused, "TooManyFailed"));
    let status = bench.status.clone().expect("a status");
    assert_eq!((status.failed, status.notable.len()), (3, 3));
    assert!(status.conditions.iter().any(|one| one.type_ == "Stalled" && one.status == "True"));
    // Another leader knows it from the status.
    bench.progress = MigrationProgress::default();
    assert_eq!(bench.next(), None);
    assert_eq!(bench.shown(), (MigrationPhase::Paused, "TooManyFailed"));
    bench.retry = Some("now".to_owned());
    assert_eq!(names(bench.next()), 10, "those that failed are accepted");
    assert_eq!(bench.status.as_ref().and_then(|status| status.retry_handled.as_deref()), Some("now"));
    bench.retry = Some("x".repeat(300));
    bench.run();
    let handled =
        bench.status.as_ref().and_then(|status| status.retry_handled.clone()).expect("it was acted on");
    assert_eq!(handled.len(), 16, "the status has no room for it");
    bench.accounts.get_mut("a000").expect("created").state = State::Active;
    bench.now += 100;
    bench.run();
    assert_ne!(bench.shown().0, MigrationPhase::Paused);
}

#[test]
fn accounts_that_lost_their_agents_with_the_last_leader_stop_no_migration() {
    let mut bench = Bench::new(4, json!({"patterns": ["a.*"], "wave": {"size": 2, "soak": "0s"}}));
    bench.next();
    bench.next();
    bench.settle(State::Active);
    bench.accounts.values_mut().for_each(|fact| fact.state = State::Orphaned);
    bench.progress = MigrationProgress::default();
    assert_eq!(names(bench.next()), 2, "{:?}", bench.status);
}

#[test]
fn a_failed_account_that_is_tried_again_holds_up_neither_its_wave_nor_others() {
    let limits = json!({"maxFailed": "100%", "maxInFlight": 2});
    let mut bench =
        Bench::new(4, json!({"patterns": ["a.*"], "wave": {"size": 2, "soak": "0s"}, "limits": limits}));
    bench.next();
    bench.next();
    let set = |bench: &mut Bench, name: &str, state: State| {
        bench.accounts.get_mut(name).expect("created").state = state;
    };
    set(&mut bench, "a000", State::Failed);
    assert_eq!(bench.next(), None);
    set(&mut bench, "a000", State::Activating);
    set(&mut bench, "a001", State::Active);
    assert!(matches!(bench.next(), Some(MigrationAction::Create(names)) if names == ["a002", "a003"]));
    assert_eq!(names(bench.next()), 2, "the account that is tried again takes no place");
    bench.settle(State::Active);
    assert_eq!(bench.next(), None);
    assert_eq!(bench.shown(), (MigrationPhase::Complete, "Complete"));
}

#[test]
fn a_pause_by_a_person_is_between_two_accounts() {
    let mut bench = Bench::new(10, json!({"patterns": ["a.*"], "wave": {"size": 2}}));
    assert_eq!(names(bench.next()), 2);
    bench.edit("paused", json!(true));
    assert!(matches!(bench.next(), Some(MigrationAction::Activate(_))), "what was created is activated");
    assert_eq!(bench.next(), None);
    bench.settle(State::Active);
    bench.now += 100;
    assert_eq!(bench.next(), None);
    assert_eq!(bench.shown(), (MigrationPhase::Paused, "Paused"));
    assert!(
        bench.status.as_ref().is_some_and(|status| status.conditions.iter().all(|one| one.status == "False"))
    );
    bench.edit("paused", json!(false));
    assert_eq!(bench.next(), None);
    assert_eq!(bench.shown().0, MigrationPhase::Soaking);
    bench.now += 100;
    assert_eq!(names(bench.next()), 2);
}

#[test]
fn accounts_are_only_created_if_they_are_not_to_be_activated() {
    let mut bench = Bench::new(5, json!({"patterns": ["a.*"], "activate": false}));
    let actions = bench.run();
    assert!(actions.iter().all(|action| matches!(action, MigrationAction::Create(_))), "{actions:?}");
    assert_eq!((bench.accounts.len(), bench.shown().0), (5, MigrationPhase::Complete));
    bench.edit("activate", json!(true));
    while bench.shown().0 != MigrationPhase::Complete
        || bench.accounts.values().any(|one| one.state != State::Active)
    {
        bench.run();
        bench.now += 100;
    }
}

#[test]
fn accounts_of_others_are_left_alone() {
    let mut bench = Bench::new(3, json!({"patterns": ["a.*"], "rollback": "none"}));
    let theirs = AccountFact {
        state: State::Failed,
        desired: DesiredState::Inactive,
        is_being_deleted: false,
        is_held: false,
        migration: Some("another".to_owned()),
        is_unchanged: true,
        zone: None,
        source: Some("sql".to_owned()),
        hash: None,
        needs_file: false,
    };
    for number in 0..3 {
        bench.accounts.insert(format!("a{number:03}"), theirs.clone());
    }
    assert_eq!(bench.run(), []);
    assert_eq!(bench.shown(), (MigrationPhase::Complete, "Complete"));
    bench.edit("rollback", json!("delete"));
    assert_eq!(bench.run(), []);
    assert_eq!(bench.shown(), (MigrationPhase::Complete, "RolledBack"));
}

#[test]
fn a_deleted_account_is_declined_and_the_bound_pauses() {
    let mut bench = Bench::new(2, json!({"patterns": ["a.*"], "wave": {"size": "100%", "soak": "0s"}}));
    bench.run();
    bench.accounts.get_mut("a000").expect("created").is_being_deleted = true;
    // Another leader, which cannot read the sources.
    (bench.progress, bench.completeness) = (MigrationProgress::default(), unread());
    assert!(matches!(bench.next(), Some(MigrationAction::Decline(names)) if names[0].0 == "a000"));
    assert!(matches!(bench.next(), Some(MigrationAction::Release(names)) if names == ["a000"]));
    bench.completeness = Completeness::Complete;
    assert_eq!(bench.run(), []);
    assert_eq!(bench.shown().0, MigrationPhase::Complete);
    bench.edit("names", json!(["a000"]));
    assert_eq!(names(bench.next()), 1, "the spec lists it");
    bench.edit("names", json!([]));
    bench.declined = DeclinedNames::default();
    for number in 0..MAX_DECLINED {
        bench.declined.add(&number.to_string(), &"0".repeat(64)).expect("there is room");
    }
    bench.accounts.remove("a001");
    assert_eq!(bench.next(), None);
    assert_eq!(bench.shown(), (MigrationPhase::Paused, "DeclinedFull"));
}

#[test]
fn a_removal_needs_two_complete_reads_and_a_mass_removal_a_person() {
    let spec =
        json!({"patterns": ["a.*"], "wave": {"size": "100%", "soak": "0s"}, "onSourceRemoval": "delete"});
    let mut bench = Bench::new(20, spec);
    bench.run();
    let two = bench.entries.split_off(18);
    for completeness in [unread(), partial(), unread(), partial(), Completeness::Complete] {
        (bench.completeness, bench.read) = (completeness.clone(), bench.now + 1);
        assert_eq!(bench.run(), [], "{completeness:?}");
    }
    assert_eq!(bench.run(), [], "it is still the same read");
    bench.read = bench.now + 1;
    let actions = bench.run();
    assert_eq!(actions, [MigrationAction::Delete(vec!["a018".to_owned(), "a019".to_owned()])]);
    bench.entries.extend(two);
    bench.run();
    assert_eq!(bench.accounts.len(), 20, "what the migration deleted is not declined");
    bench.entries.truncate(17);
    for _ in 0..2 {
        bench.read = bench.now + 1;
        assert_eq!(bench.run(), []);
    }
    assert_eq!(bench.shown(), (MigrationPhase::Paused, "MassRemoval"));
    bench.edit("onSourceRemoval", json!("deactivate"));
    let actions = bench.run();
    assert!(matches!(&actions[..], [MigrationAction::Deactivate(names)] if names.len() == 3), "{actions:?}");
}

#[test]
fn a_roll_back_leaves_what_somebody_changed_and_what_the_sources_no_longer_have() {
    let mut bench = Bench::new(4, json!({"patterns": ["a.*"], "wave": {"size": "100%", "soak": "0s"}}));
    bench.run();
    bench.accounts.get_mut("a001").expect("created").is_unchanged = false;
    bench.entries.remove(2);
    bench.edit("rollback", json!("deactivate"));
    let actions = bench.run();
    assert_eq!(actions, [MigrationAction::Deactivate(vec!["a000".to_owned(), "a003".to_owned()])]);
    assert_eq!(bench.shown(), (MigrationPhase::Complete, "RolledBack"));
    let status = bench.status.clone().expect("a status");
    assert!(status.conditions[0].message.contains("kubesvc.io/force-rollback"), "{status:?}");
}

#[test]
fn a_paused_migration_is_shown_as_rolling_back_while_its_accounts_are_deleted() {
    let mut bench = Bench::new(
        3,
        json!({"patterns": ["a.*"], "wave": {"size": "100%", "soak": "0s"}, "limits": {"maxFailed": 0}}),
    );
    assert_eq!((names(bench.next()), names(bench.next())), (3, 3));
    bench.settle(State::Failed);
    assert_eq!(bench.next(), None);
    assert_eq!(bench.shown(), (MigrationPhase::Paused, "TooManyFailed"));
    bench.edit("rollback", json!("delete"));
    for fact in bench.accounts.values_mut() {
        (fact.is_being_deleted, fact.is_held) = (true, true);
    }
    assert!(bench.next().is_some());
    assert_eq!(bench.shown().0, MigrationPhase::RollingBack);
}

#[test]
fn a_creation_that_the_api_server_refuses_counts_as_failed_until_its_entry_changes() {
    let limits = json!({"maxFailed": "100%"});
    let mut bench =
        Bench::new(2, json!({"patterns": ["a.*"], "wave": {"size": "100%", "soak": "0s"}, "limits": limits}));
    let hash = bench.plan().accounts["a000"].hash().expect("an entry").to_owned();
    assert_eq!(names(bench.next()), 2);
    bench.accounts.remove("a000");
    bench.progress.record_refused_write("a000", Some(&hash), "spec.context is too long");
    bench.run();
    assert_eq!(bench.shown().0, MigrationPhase::Complete);
    let status = bench.status.clone().expect("a status");
    assert_eq!((status.failed, status.notable[0].reason.as_str()), (1, "Refused"));
    bench.entries[0] = entry("a000", "sql", &json!({"kubeconfigFile": "encryptedFile:k8s!n:y!k:k"}));
    assert_eq!(names(bench.next()), 1);
}

#[test]
fn a_selection_that_cannot_be_used_stops_everything() {
    let mut progress = MigrationProgress::default();
    let spec = spec(&json!({"patterns": ["("]}));
    let error = MigrationSelection::compile(&spec).err().expect("it does not compile");
    let (accounts, declined) = (BTreeMap::new(), DeclinedNames::default());
    let observation = MigrationObservation {
        migration: "m",
        generation: 1,
        retry: None,
        force_rollback: false,
        rules: &MigrationRules::from(&spec),
        selection: Err(&error),
        plan: None,
        accounts: &accounts,
        declined: &declined,
        status: None,
        now: 1,
        time: &Time(Timestamp::UNIX_EPOCH),
    };
    let Some(MigrationAction::WriteStatus(status)) = decide(&observation, &mut progress).action else {
        unreachable!("the status says so")
    };
    assert_eq!(status.phase, MigrationPhase::Paused);
    let stalled = status.conditions.iter().find(|one| one.type_ == "Stalled").expect("a condition");
    assert!(stalled.status == "True" && stalled.message.contains("spec.patterns[0]: \"(\""), "{stalled:?}");
}

#[test]
fn a_large_migration_takes_few_actions() {
    let mut bench = Bench::new(1000, json!({"patterns": ["a.*"], "wave": {"size": "50%", "soak": "1s"}}));
    let mut actions = 0;
    for _ in 0..10 {
        actions += bench.run().len();
        bench.now += 10;
    }
    assert_eq!(bench.shown().0, MigrationPhase::Complete);
    assert!(bench.accounts.values().all(|fact| fact.state == State::Active));
    assert!(actions < 60, "{actions} actions for 1,000 accounts");
}
