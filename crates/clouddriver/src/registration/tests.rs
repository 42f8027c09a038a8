use std::collections::{BTreeMap, HashSet};

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use kubesvc_core::lifecycle::Fact;
use kubesvc_core::registration::RegistrationReason;
use kubesvc_core::spec::{ExposedCustomResource, Scope, SpinnakerRegistration};
use kubesvc_core::{DesiredState, KubesvcAccount, KubesvcAccountSpec, ORIGIN_LABEL, ORIGIN_MIGRATED, State};

use super::*;

const TIMES: RegistrationTimes = RegistrationTimes { poll: 30, resync: 300 };
const NAMES: [&str; 4] = ["dev", "prod", "Ünïcode", "with space"];

fn account(name: &str) -> KubesvcAccount {
    let mut account = KubesvcAccount::new("object", KubesvcAccountSpec::default());
    account.spec.account_name = Some(name.to_owned());
    account.metadata.uid = Some("uid-1".to_owned());
    account.metadata.namespace = Some("team".to_owned());
    account.status.get_or_insert_default().state = Some(State::Active);
    account
}

fn settings() -> RegistrationSettings {
    RegistrationSettings {
        gateway: "https://kubesvc-operator.kubesvc.svc:6443".to_owned(),
        token_file: "/run/token".to_owned(),
        ca_file: "/run/ca.crt".to_owned(),
        cache_interval_seconds: 30,
        installation: "ns-uid".to_owned(),
    }
}

#[test]
fn a_definition_names_files_alone_and_says_whose_it_is() {
    let mut account = account("prod");
    account.spec.namespaces = vec!["web".to_owned()];
    let sent = RegisteredDefinition::of(&account, &settings(), Some(&["other".to_owned()]), BODY_VERSION);
    let kubeconfig: Value =
        serde_json::from_str(sent.fields["kubeconfigContents"].as_str().expect("text")).expect("JSON");
    assert_eq!(
        kubeconfig["clusters"][0]["cluster"],
        json!({
            "server": "https://kubesvc-operator.kubesvc.svc:6443/apis/proxy.kubesvc.io/v1alpha1/namespaces/team/accounts/object/proxy",
            "certificate-authority": "/run/ca.crt",
        })
    );
    assert_eq!(kubeconfig["users"][0]["user"], json!({"tokenFile": "/run/token"}));
    let mark = Mark { installation: "ns-uid".to_owned(), account_uid: "uid-1".to_owned() };
    assert_eq!(Mark::of(&sent.fields), Some(mark));
    assert_eq!(sent.fields["namespaces"], json!(["web"]), "its own, not those that were found");
    assert_eq!(sent.fields["checkPermissionsOnStartup"], json!(false));
    assert!(!sent.fields.contains_key("environment"));

    account.metadata.resource_version = Some("9".to_owned());
    assert_eq!(RegisteredDefinition::of(&account, &settings(), None, BODY_VERSION).hash, sent.hash);
    account.spec.environment = Some("live".to_owned());
    assert_ne!(RegisteredDefinition::of(&account, &settings(), None, BODY_VERSION).hash, sent.hash);
}

#[test]
fn namespaces_that_were_found_are_sent_for_an_account_that_names_none() {
    let found = ["a".to_owned(), "b".to_owned()];
    let sent = RegisteredDefinition::of(&account("prod"), &settings(), Some(&found), BODY_VERSION);
    assert_eq!(sent.fields["namespaces"], json!(["a", "b"]));
    let mut omitting = account("prod");
    omitting.spec.omit_namespaces = vec!["kube-system".to_owned()];
    let sent = RegisteredDefinition::of(&omitting, &settings(), Some(&found), BODY_VERSION);
    assert_eq!(
        (&sent.fields["namespaces"], &sent.fields["omitNamespaces"]),
        (&json!([]), &json!(["kube-system"]))
    );
}

#[test]
fn only_a_mark_of_three_parts_is_ours() {
    let of = |contents: &str| {
        let mut fields = Map::new();
        fields.insert("kubeconfigContents".to_owned(), json!(contents));
        Mark::of(&fields).map(|mark| mark.context())
    };
    assert_eq!(of("current-context: kubesvc/ns/uid\nclusters: []\n").as_deref(), Some("kubesvc/ns/uid"));
    for other in [
        "",
        "current-context: prod",
        "current-context: kubesvc/ns",
        "current-context: kubesvc//u",
        "{bad",
        "[]",
    ] {
        assert_eq!(of(other), None, "{other:?}");
    }
    assert_eq!(Mark::of(&Map::new()), None);
}

#[test]
fn a_field_that_was_not_sent_is_no_difference_and_an_empty_one_may_be_left_out() {
    let sent = RegisteredDefinition::of(&account("prod"), &settings(), None, BODY_VERSION);
    let mut shown = sent.fields.clone();
    shown.insert("cacheThreads".to_owned(), json!(1));
    shown.remove("kinds");
    assert!(!differs_from_sent(&sent, &shown));
    shown.insert("permissions".to_owned(), json!({"READ": ["dev"]}));
    assert!(differs_from_sent(&sent, &shown));
}

#[test]
fn accounts_that_are_to_go_are_excluded_and_those_that_fail_are_kept() {
    let of = |change: fn(&mut KubesvcAccount)| {
        let mut account = account("prod");
        change(&mut account);
        eligibility(&account, None)
    };
    let register = |register| Some(SpinnakerRegistration { register: Some(register) });
    assert_eq!(of(|_| {}), Eligibility::Registered);
    assert_eq!(of(|account| account.spec.state = Some(DesiredState::Inactive)), Eligibility::Excluded);
    for state in [State::Failed, State::Orphaned, State::Activating] {
        let mut account = account("prod");
        account.status.as_mut().expect("set").state = Some(state);
        assert_eq!(eligibility(&account, None), Eligibility::Kept, "{state}");
    }
    let mut excluded = account("prod");
    excluded.spec.spinnaker = register(false);
    assert_eq!(eligibility(&excluded, None), Eligibility::Excluded);
    excluded.spec.spinnaker = register(true);
    assert_eq!(eligibility(&excluded, None), Eligibility::Registered);
}

#[test]
fn names_that_clouddriver_cannot_delete_or_tell_apart_are_not_portable() {
    for name in [".", "..", "a/b", "a\\b", "a;b", "a%2Fb", "a\tb"] {
        let eligibility = eligibility(&account(name), None);
        assert!(
            matches!(eligibility, Eligibility::Unfit { reason: RegistrationReason::NameNotPortable, .. }),
            "{name:?}"
        );
    }
    assert_eq!(eligibility(&account("größe 1.😀"), None), Eligibility::Registered);
    assert!(
        matches!(eligibility(&account("PROD"), Some("prod")), Eligibility::Unfit { why, .. } if why.contains("\"prod\""))
    );
    assert_eq!(folded_name("Prod"), folded_name("pröd"));
    assert_ne!(folded_name("prod"), folded_name("prod-1"));
}

#[test]
fn only_migrated_accounts_say_whether_clouddriver_has_them_too() {
    let mut migrated = account("prod");
    fn of(
        account: &KubesvcAccount,
        listing: Option<&LoadedNames>,
        is_own: bool,
    ) -> Option<(Option<bool>, &'static str)> {
        match also_condition(account, listing, is_own) {
            Fact::Known(said) => said.map(|said| (said.holds, said.reason)),
            Fact::Unknown => Some((None, "not known")),
        }
    }
    let mut listing = LoadedNames::default();
    assert_eq!(of(&migrated, Some(&listing), false), None);
    migrated.metadata.labels = Some([(ORIGIN_LABEL.to_owned(), ORIGIN_MIGRATED.to_owned())].into());
    assert_eq!(of(&migrated, None, false), Some((None, "NoClouddriver")));
    assert_eq!(of(&migrated, Some(&listing), false), Some((None, "not known")));
    listing.read(1, HashSet::from(["prod".to_owned()]));
    assert_eq!(of(&migrated, Some(&listing), false), Some((Some(true), "ListedByClouddriver")));
    assert_eq!(of(&migrated, Some(&listing), true), Some((Some(false), "OnlyKubesvc")));
    for at in [2, 3] {
        listing.read(at, HashSet::from(["dev".to_owned()]));
    }
    assert_eq!(of(&migrated, Some(&listing), false), Some((Some(false), "OnlyKubesvc")));
}

#[test]
fn texts_that_clouddriver_would_resolve_are_not_sent() {
    let mut account = account("prod");
    for text in ["encrypted:s3!b:x", "ENCRYPTEDFILE:s3!b:x", " secret://noop?v=x", "secretFile://noop?v=x"] {
        account.spec.environment = Some(text.to_owned());
        let eligibility = eligibility(&account, None);
        assert!(
            matches!(&eligibility, Eligibility::Unfit { reason: RegistrationReason::Rejected, why } if why.contains("spec.environment")),
            "{text:?}: {eligibility:?}"
        );
    }
    account.spec.environment = Some("encrypted storage".to_owned());
    assert_eq!(eligibility(&account, None), Eligibility::Registered);
}

#[test]
fn a_row_that_was_stored_after_its_account_had_gone_is_removed() {
    let (mut listing, mut attempts) = (LoadedNames::default(), Attempts::default());
    let step = |listing: &LoadedNames, attempts: &Attempts, wanted: &Wanted, row: Option<&RegisteredRow>| {
        let (times, name) = (TIMES, "prod");
        next_step(&NameSituation { now: 61, times, force: false, name, wanted, row, listing, attempts })
    };
    let names = || HashSet::from(["prod".to_owned()]);
    listing.read(31, names());
    let nothing = RegistrationStep::Wait(None);
    assert_eq!(step(&listing, &attempts, &Wanted::Absent, None), nothing, "it may have been there always");
    let mut listing = LoadedNames::default();
    listing.read(31, HashSet::new());
    listing.read(61, names());
    assert_eq!(listing.appeared().collect::<Vec<_>>(), ["prod"]);
    assert_eq!(step(&listing, &attempts, &Wanted::Kept { uid: "uid-1".to_owned() }, None), nothing);
    assert_eq!(step(&listing, &attempts, &Wanted::Absent, None), RegistrationStep::Look);
    attempts.looked(61, TIMES, Shown::Foreign, None);
    assert_eq!(step(&listing, &attempts, &Wanted::Absent, None), nothing, "it is somebody else's");
    let own = Shown::Own { account_uid: "uid-1".to_owned(), is_as_sent: false };
    attempts.looked(61, TIMES, own, None);
    let RegistrationStep::Write(row) = step(&listing, &attempts, &Wanted::Absent, None) else {
        unreachable!("it is to be removed")
    };
    assert_eq!((row.state, row.account_uid.as_str()), (RowState::Removing, "uid-1"));
    attempts.row_written(61, TIMES, &row);
    let delete = RegistrationStep::AccountCall(AccountCall::Delete);
    assert_eq!(step(&listing, &attempts, &Wanted::Absent, Some(&row)), delete);
}

/// What Clouddriver has of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
enum StoredRow {
    Own { uid: String, hash: String },
    Foreign(u32),
}

/// A Clouddriver with storage and poller.
#[derive(Default)]
struct Clouddriver {
    rows: BTreeMap<String, StoredRow>,
    /// Accounts of its files, and since when.
    files: BTreeMap<String, Tick>,
    loaded: HashSet<String>,
    /// Rows that it does not show.
    hidden: HashSet<String>,
    /// Definitions that it rejects, by hash.
    rejected: HashSet<String>,
    /// Until when it has loaded nothing, after a start.
    starts_until: Tick,
    is_down: bool,
    /// The next answer is lost after the call was carried out.
    loses_answer: bool,
    writes: usize,
}

impl Clouddriver {
    fn poll(&mut self) {
        self.loaded = self.rows.keys().cloned().chain(self.files.keys().cloned()).collect();
    }

    fn down() -> CallFailure {
        CallFailure { kind: FailureKind::Unreachable, message: "no answer".to_owned() }
    }

    fn show(&self, name: &str, wanted_hash: Option<&str>) -> Result<Shown, CallFailure> {
        if self.is_down {
            return Err(Self::down());
        }
        Ok(match self.rows.get(name) {
            None => Shown::Nothing,
            Some(_) if self.hidden.contains(name) => Shown::Nothing,
            Some(StoredRow::Foreign(_)) => Shown::Foreign,
            Some(StoredRow::Own { uid, hash }) => {
                Shown::Own { account_uid: uid.clone(), is_as_sent: wanted_hash == Some(hash) }
            }
        })
    }

    fn call(
        &mut self,
        now: Tick,
        call: AccountCall,
        name: &str,
        uid: &str,
        hash: &str,
    ) -> Result<(), CallFailure> {
        if self.is_down {
            return Err(Self::down());
        }
        if call != AccountCall::Delete && self.rejected.contains(hash) {
            return Err(CallFailure { kind: FailureKind::Rejected, message: "it is bad".to_owned() });
        }
        let sent = StoredRow::Own { uid: uid.to_owned(), hash: hash.to_owned() };
        match call {
            AccountCall::Create => {
                // A Clouddriver that takes longer than two lists to load cannot be told from an empty one.
                let is_of_a_file =
                    self.files.get(name).is_some_and(|since| since.max(&self.starts_until) + 90 < now);
                assert!(!is_of_a_file, "an account of a file is shadowed");
                if self.rows.contains_key(name) || self.loaded.contains(name) {
                    let message = "it exists".to_owned();
                    return Err(CallFailure { kind: FailureKind::Rejected, message });
                }
                self.rows.insert(name.to_owned(), sent);
            }
            AccountCall::Replace => {
                let before = self.rows.insert(name.to_owned(), sent);
                assert!(!matches!(before, Some(StoredRow::Foreign(_))), "a foreign row was overwritten");
            }
            AccountCall::Delete => {
                let before = self.rows.remove(name);
                assert!(!matches!(before, Some(StoredRow::Foreign(_))), "a foreign row was deleted");
            }
        }
        self.writes += 1;
        if std::mem::take(&mut self.loses_answer) { Err(Self::down()) } else { Ok(()) }
    }
}

/// An operator: its table outlives its leaders.
#[derive(Default)]
struct Operator {
    table: BTreeMap<String, RegisteredRow>,
    attempts: BTreeMap<String, Attempts>,
    listing: LoadedNames,
    wanted: BTreeMap<String, Wanted>,
}

struct World {
    now: Tick,
    clouddriver: Clouddriver,
    operator: Operator,
}

impl World {
    fn new() -> Self {
        Self { now: 1, clouddriver: Clouddriver::default(), operator: Operator::default() }
    }

    fn want(&mut self, name: &str, wanted: Wanted) -> &mut Self {
        self.operator.wanted.insert(name.to_owned(), wanted);
        self
    }

    fn step(&self, name: &str) -> RegistrationStep {
        let operator = &self.operator;
        let fresh = Attempts::default();
        next_step(&NameSituation {
            now: self.now,
            times: TIMES,
            force: false,
            name,
            wanted: operator.wanted.get(name).unwrap_or(&Wanted::Absent),
            row: operator.table.get(name),
            listing: &operator.listing,
            attempts: operator.attempts.get(name).unwrap_or(&fresh),
        })
    }

    /// Does what is to be done for a name, at most `most` steps of it.
    fn settle(&mut self, name: &str, most: usize) {
        let (now, mut steps) = (self.now, 0);
        loop {
            let step = self.step(name);
            let wanted = self.operator.wanted.get(name).cloned().unwrap_or(Wanted::Absent);
            let (uid, hash) = match &wanted {
                Wanted::Registered { uid, hash, .. } => (uid.as_str(), Some(hash.as_str())),
                _ => ("", None),
            };
            let attempts = self.operator.attempts.entry(name.to_owned()).or_default();
            match step {
                RegistrationStep::Wait(_) => return,
                _ if steps == most => return,
                RegistrationStep::Write(row) => {
                    attempts.row_written(now, TIMES, &row);
                    self.operator.table.insert(name.to_owned(), row);
                }
                RegistrationStep::Forget { is_foreign } => {
                    attempts.row_forgotten(now, TIMES, is_foreign);
                    self.operator.table.remove(name);
                }
                RegistrationStep::Conflict => attempts.met_conflict(now, TIMES),
                RegistrationStep::Look => match self.clouddriver.show(name, hash) {
                    Ok(shown) => attempts.looked(now, TIMES, shown, hash),
                    Err(failure) => attempts.failed(now, None, failure),
                },
                RegistrationStep::AccountCall(call) => {
                    match self.clouddriver.call(now, call, name, uid, hash.unwrap_or_default()) {
                        Ok(()) => {
                            attempts.succeeded(now, TIMES, call);
                            let row =
                                self.operator.table.get_mut(name).expect("it is committed before the call");
                            if call != AccountCall::Delete {
                                (row.state, row.pushed_at) = (RowState::Added, Some(1));
                            }
                        }
                        Err(failure) => attempts.failed(now, Some(call), failure),
                    }
                }
            }
            steps += 1;
            assert!(steps < 12, "{name}: no rest");
        }
    }

    fn pass(&mut self, ticks: Tick) {
        for _ in 0..ticks {
            self.now += 1;
            if self.now.is_multiple_of(30) {
                if !self.clouddriver.is_down && self.now > self.clouddriver.starts_until {
                    self.clouddriver.poll();
                }
                match self.clouddriver.is_down {
                    true => self.operator.listing.failed(Clouddriver::down()),
                    false => self.operator.listing.read(self.now, self.clouddriver.loaded.clone()),
                }
            }
            for name in NAMES {
                self.settle(name, usize::MAX);
            }
        }
    }

    /// Clouddriver starts again, and has loaded nothing for a while.
    fn restart_clouddriver(&mut self) {
        self.clouddriver.loaded.clear();
        self.clouddriver.starts_until = self.now + 50;
    }

    /// Another replica leads: what was in memory is lost.
    fn change_leader(&mut self) {
        (self.operator.attempts, self.operator.listing) = (BTreeMap::new(), LoadedNames::default());
    }

    fn condition_of(&self, name: &str) -> Fact<Option<(bool, &'static str)>> {
        let account = account(name);
        let fresh = Attempts::default();
        let situation = NameSituation {
            now: self.now,
            times: TIMES,
            force: false,
            name,
            wanted: self.operator.wanted.get(name).unwrap_or(&Wanted::Absent),
            row: self.operator.table.get(name),
            listing: &self.operator.listing,
            attempts: self.operator.attempts.get(name).unwrap_or(&fresh),
        };
        let whole = ClouddriverSituation { stored: 1, loaded: 1 };
        match condition(&account, &eligibility(&account, None), &situation, whole) {
            Fact::Known(one) => Fact::Known(one.map(|one| (one.holds, one.reason.name()))),
            Fact::Unknown => Fact::Unknown,
        }
    }
}

fn registered(hash: &str) -> Wanted {
    Wanted::Registered { uid: "uid-1".to_owned(), version: BODY_VERSION, hash: hash.to_owned() }
}

fn own(hash: &str) -> StoredRow {
    StoredRow::Own { uid: "uid-1".to_owned(), hash: hash.to_owned() }
}

#[test]
fn an_account_is_registered_after_two_lists_without_it_and_is_known_to_be_loaded_after_two_more() {
    let mut world = World::new();
    world.want("prod", registered("h1")).pass(30);
    assert!(world.clouddriver.rows.is_empty(), "one list is not enough");
    world.pass(30);
    assert_eq!(world.clouddriver.rows["prod"], own("h1"));
    assert_eq!(world.condition_of("prod"), Fact::Unknown);
    world.pass(60);
    assert_eq!(world.condition_of("prod"), Fact::Known(Some((true, "Pushed"))));
    let writes = world.clouddriver.writes;
    world.pass(3000);
    assert_eq!(world.clouddriver.writes, writes, "nothing changes, nothing is written");
    world.want("prod", registered("h2")).pass(1);
    assert_eq!(world.clouddriver.rows["prod"], own("h2"));
    world.want("prod", Wanted::Absent).pass(1);
    assert!(!world.clouddriver.rows.contains_key("prod"));
    assert!(world.operator.table.contains_key("prod"), "until two lists lack the name");
    world.pass(91);
    assert!(world.operator.table.is_empty());
}

#[test]
fn a_definition_that_changes_right_after_a_look_is_sent() {
    let mut world = World::new();
    world.want("prod", registered("h1")).pass(100);
    let looked_at = (100..500).find(|_| {
        world.pass(1);
        let due = world.operator.attempts["prod"].next_check_for_tests();
        due == world.now + TIMES.resync
    });
    assert!(looked_at.is_some(), "the row is looked at from time to time");
    world.want("prod", registered("h2")).pass(1);
    assert_eq!(world.clouddriver.rows["prod"], own("h2"));
}

#[test]
fn an_account_of_a_file_and_a_row_that_is_not_loaded_are_conflicts() {
    let mut world = World::new();
    world.clouddriver.files.insert("prod".to_owned(), 0);
    world.clouddriver.rows.insert("dev".to_owned(), StoredRow::Foreign(1));
    world.clouddriver.is_down = true;
    world.want("prod", registered("h")).want("dev", registered("h")).pass(29);
    world.clouddriver.is_down = false;
    world.pass(200);
    for name in ["prod", "dev"] {
        assert_eq!(world.condition_of(name), Fact::Known(Some((false, "Conflict"))), "{name}");
    }
    assert_eq!((world.clouddriver.writes, world.operator.table.len()), (0, 0));
    world.clouddriver.rows.clear();
    world.pass(400);
    assert_eq!(world.clouddriver.rows["dev"], own("h"), "the name is free");
}

#[test]
fn a_lost_table_is_found_again_in_clouddriver() {
    let mut world = World::new();
    world.want("prod", registered("h")).want("dev", registered("h")).pass(100);
    world.operator.table.clear();
    world.change_leader();
    world.want(
        "dev",
        Wanted::Registered { uid: "uid-2".to_owned(), version: BODY_VERSION, hash: "h".to_owned() },
    );
    world.pass(200);
    assert_eq!(world.clouddriver.rows["prod"], own("h"));
    let recreated = StoredRow::Own { uid: "uid-2".to_owned(), hash: "h".to_owned() };
    assert_eq!(world.clouddriver.rows["dev"], recreated, "the row of the former account went first");
}

#[test]
fn a_row_that_was_changed_is_left_and_one_that_was_deleted_is_not_stored_again() {
    let mut world = World::new();
    world.want("prod", registered("h")).want("dev", registered("h")).pass(200);
    world.clouddriver.rows.insert("prod".to_owned(), own("by hand"));
    world.clouddriver.rows.remove("dev");
    world.pass(400);
    assert_eq!(world.clouddriver.rows["prod"], own("by hand"));
    assert_eq!(world.condition_of("prod"), Fact::Known(Some((false, "Drift"))));
    assert!(!world.clouddriver.rows.contains_key("dev"));
    assert_eq!(world.condition_of("dev"), Fact::Known(Some((false, "NotLoaded"))));
}

#[test]
fn a_restart_of_clouddriver_changes_no_condition() {
    let mut world = World::new();
    world.want("prod", registered("h")).pass(200);
    for _ in 0..3 {
        world.restart_clouddriver();
        for _ in 0..200 {
            world.pass(1);
            let said = world.condition_of("prod");
            assert!(
                matches!(said, Fact::Unknown | Fact::Known(Some((true, "Pushed")))),
                "{said:?} at {}",
                world.now
            );
        }
    }
}

#[test]
fn a_definition_that_changes_is_never_called_a_drift_or_a_former_failure() {
    let mut world = World::new();
    world.want("prod", registered("h1")).pass(200);
    for hash in ["h2", "h3"] {
        world.want("prod", registered(hash));
        for steps in 0..6 {
            world.settle("prod", steps);
            let said = world.condition_of("prod");
            assert!(
                matches!(said, Fact::Unknown | Fact::Known(Some((true, "Pushed")))),
                "{said:?} after {steps} steps"
            );
        }
    }
}

#[test]
fn a_corrected_definition_and_a_removal_do_not_wait_for_the_back_off_of_a_rejected_one() {
    let mut world = World::new();
    world.clouddriver.rejected.insert("bad".to_owned());
    world.want("prod", registered("bad")).pass(1200);
    assert_eq!(world.condition_of("prod"), Fact::Known(Some((false, "Rejected"))));
    world.want("prod", registered("good")).pass(1);
    assert_eq!(world.clouddriver.rows["prod"], own("good"));
    world.want("prod", registered("bad")).pass(1200);
    world.want("prod", Wanted::Absent).pass(1);
    assert!(!world.clouddriver.rows.contains_key("prod"));
}

#[test]
fn a_row_that_is_hidden_is_not_forgotten_while_it_is_listed() {
    let mut world = World::new();
    world.want("prod", registered("h")).pass(200);
    world.clouddriver.hidden.insert("prod".to_owned());
    world.want("prod", registered("h2")).pass(100);
    assert_eq!(world.condition_of("prod"), Fact::Known(Some((false, "Forbidden"))), "the change is not sent");
    world.want("prod", Wanted::Absent).pass(1500);
    assert_eq!(world.operator.table["prod"].state, RowState::Removing);
    world.clouddriver.hidden.clear();
    world.pass(200);
    assert!(world.clouddriver.rows.is_empty() && world.operator.table.is_empty());
}

#[test]
fn an_account_has_left_at_the_first_list_without_it() {
    let mut world = World::new();
    world.want("prod", registered("h")).want("dev", registered("h")).pass(200);
    world.want("prod", Wanted::Absent).pass(1);
    let has_left = |world: &World| world.operator.attempts["prod"].has_left("prod", &world.operator.listing);
    assert!(!has_left(&world));
    let polls = (0..31).find(|_| {
        world.pass(1);
        !world.operator.table.contains_key("prod") || has_left(&world)
    });
    assert!(polls.is_some());
}

#[test]
fn a_row_is_removed_when_clouddriver_is_back() {
    let mut world = World::new();
    world.want("prod", registered("h")).pass(200);
    world.clouddriver.is_down = true;
    world.want("prod", Wanted::Absent).pass(3600);
    assert_eq!(world.operator.table["prod"].state, RowState::Removing);
    world.clouddriver.is_down = false;
    world.pass(200);
    assert!(world.clouddriver.rows.is_empty() && world.operator.table.is_empty());
}

#[test]
fn the_condition_names_what_has_no_effect_and_whether_the_poller_is_off() {
    let mut account = account("prod");
    account.spec.custom_resource_definitions = vec![ExposedCustomResource {
        kind: "Rollout.argoproj.io".to_owned(),
        scope: Some(Scope::Namespaced),
    }];
    let mut listing = LoadedNames::default();
    for at in [10, 40] {
        listing.read(at, HashSet::from(["prod".to_owned()]));
    }
    let mut attempts = Attempts::default();
    attempts.seen_stored(5);
    let row = RegisteredRow {
        account_uid: "uid-1".to_owned(),
        state: RowState::Added,
        body_version: 1,
        body_hash: Some("h".to_owned()),
        pushed_at: Some(1),
    };
    let wanted = registered("h");
    let situation = |listing, name| NameSituation {
        now: 50,
        times: TIMES,
        force: false,
        name,
        wanted: &wanted,
        row: Some(&row),
        listing,
        attempts: &attempts,
    };
    let whole = ClouddriverSituation { stored: 1, loaded: 0 };
    let said = condition(&account, &Eligibility::Registered, &situation(&listing, "prod"), whole);
    let Fact::Known(Some(said)) = said else { unreachable!("it is known") };
    assert!(said.holds && said.message.ends_with("customResourceDefinitions"), "{said:?}");
    let said = condition(&account, &Eligibility::Registered, &situation(&listing, "other"), whole);
    assert!(matches!(said, Fact::Known(Some(said)) if said.reason.name() == "PollerOff"));
}

/// Something that happens.
#[derive(Clone, Debug)]
enum Event {
    Want(usize, Wanted),
    Pass(Tick),
    Down(bool),
    LoseAnswer,
    ChangeLeader,
    /// The process ends after so many steps of a name.
    Crash(usize, usize),
    LoseTable,
    /// Somebody creates a row, if there is none of the name.
    Foreign(usize),
    File(usize, bool),
    DeleteByHand(usize),
    Restart,
    Hide(usize),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let name = 0..NAMES.len();
    let uid = prop_oneof![Just("uid-1"), Just("uid-2")];
    let wanted = prop_oneof![
        3 => (uid.clone(), "[ab]").prop_map(|(uid, hash)| Wanted::Registered {
            uid: uid.to_owned(), version: BODY_VERSION, hash,
        }),
        1 => uid.prop_map(|uid| Wanted::Kept { uid: uid.to_owned() }),
        1 => Just(Wanted::Absent),
    ];
    let event = prop_oneof![
        4 => (name.clone(), wanted).prop_map(|(name, wanted)| Event::Want(name, wanted)),
        6 => (1..120_u64).prop_map(Event::Pass),
        1 => any::<bool>().prop_map(Event::Down),
        1 => Just(Event::LoseAnswer),
        1 => Just(Event::ChangeLeader),
        2 => (name.clone(), 0..6_usize).prop_map(|(name, steps)| Event::Crash(name, steps)),
        1 => Just(Event::LoseTable),
        1 => name.clone().prop_map(Event::Foreign),
        1 => (name.clone(), any::<bool>()).prop_map(|(name, is_there)| Event::File(name, is_there)),
        1 => name.clone().prop_map(Event::DeleteByHand),
        1 => Just(Event::Restart),
        1 => name.prop_map(Event::Hide),
    ];
    prop::collection::vec(event, 1..40)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Whatever happens, no row of somebody else is touched (asserted in the calls); once it is quiet, each account
    /// that is to be registered is, unless the name is somebody else's, and no other row of ours is left that the table
    /// knows of.
    #[test]
    fn no_foreign_row_is_touched_and_the_names_settle(events in events()) {
        let mut world = World::new();
        let mut loses_rows = false;
        let mut by_hand = HashSet::new();
        for event in events {
            match event {
                Event::Want(name, wanted) => drop(world.want(NAMES[name], wanted)),
                Event::Pass(ticks) => world.pass(ticks),
                Event::Down(is_down) => world.clouddriver.is_down = is_down,
                Event::LoseAnswer => world.clouddriver.loses_answer = true,
                Event::ChangeLeader => world.change_leader(),
                Event::Crash(name, steps) => {
                    world.settle(NAMES[name], steps);
                    world.change_leader();
                }
                Event::LoseTable => {
                    world.operator.table.clear();
                    world.change_leader();
                    loses_rows = true;
                }
                Event::Foreign(name) => {
                    world.clouddriver.rows.entry(NAMES[name].to_owned()).or_insert(StoredRow::Foreign(7));
                }
                Event::File(name, true) => {
                    let now = world.now;
                    world.clouddriver.files.entry(NAMES[name].to_owned()).or_insert(now);
                }
                Event::File(name, false) => drop(world.clouddriver.files.remove(NAMES[name])),
                Event::Restart => world.restart_clouddriver(),
                Event::Hide(name) => drop(world.clouddriver.hidden.insert(NAMES[name].to_owned())),
                Event::DeleteByHand(name) => {
                    world.clouddriver.rows.remove(NAMES[name]);
                    by_hand.insert(NAMES[name]);
                }
            }
        }
        world.clouddriver.is_down = false;
        world.clouddriver.loses_answer = false;
        let hidden = std::mem::take(&mut world.clouddriver.hidden);
        world.pass(1500);
        let quiet = world.clouddriver.writes;
        world.pass(1500);
        prop_assert_eq!(world.clouddriver.writes, quiet, "it settles");
        for name in NAMES {
            let stored = world.clouddriver.rows.get(name);
            let is_others = world.clouddriver.files.contains_key(name) || matches!(stored, Some(StoredRow::Foreign(_)));
            let wanted = world.operator.wanted.get(name).cloned().unwrap_or(Wanted::Absent);
            match wanted {
                Wanted::Registered { uid, hash, .. } if !is_others && !by_hand.contains(name) && !hidden.contains(name) => {
                    prop_assert_eq!(stored, Some(&StoredRow::Own { uid, hash }), "{}", name);
                }
                // A row whose answer was lost, and that is hidden, cannot be told from an account of a file.
                Wanted::Absent if !loses_rows && !hidden.contains(name) => {
                    prop_assert!(!matches!(stored, Some(StoredRow::Own { .. })), "{} is left: {:?}", name, stored);
                    // One that somebody deleted, and that a file has by now, cannot be told from one that is not shown.
                    let is_unclear = by_hand.contains(name) && world.clouddriver.files.contains_key(name);
                    prop_assert!(is_unclear || !world.operator.table.contains_key(name));
                }
                _ => {}
            }
        }
    }
}
