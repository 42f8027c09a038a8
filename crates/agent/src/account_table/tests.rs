//! One test for each rule.

use super::*;
use kubesvc_core::wire::ops::account_spec::Credential;
use kubesvc_core::wire::ops::{AccountSpec, ClusterIdentity};

mod properties;

fn account(uid: &str, name: &str, epoch: u64) -> AccountRef {
    AccountRef { uid: uid.to_owned(), name: name.to_owned(), epoch, generation: epoch }
}

fn definition(kubeconfig: &str) -> Definition {
    let credential = Some(Credential::Kubeconfig(kubeconfig.as_bytes().to_vec()));
    Definition::split(AccountSpec { credential, ..AccountSpec::default() }).1
}

fn identity(host: &str) -> ActivatedAccount {
    read(host, &[])
}

/// An account started with these contents of the file `/k`.
fn read(host: &str, contents: &[u8]) -> ActivatedAccount {
    ActivatedAccount {
        identity: ClusterIdentity { host: host.to_owned(), ..ClusterIdentity::default() },
        files: contents.iter().map(|content| file(*content)).collect(),
        at: Timestamp::UNIX_EPOCH,
    }
}

fn file(content: u8) -> ReadFile {
    ReadFile { path: "/k".into(), digest: [content; 32] }
}

fn failure() -> Failure {
    Failure { class: Class::Unreachable.into(), ..Failure::default() }
}

/// The effects, one text each.
fn said(effects: &[Effect]) -> Vec<String> {
    let word = |effect: &Effect| match effect {
        Effect::Start { attempt, account, .. } => {
            format!("start {} {} #{}", account.uid, account.epoch, attempt.0)
        }
        Effect::Cancel { attempt, .. } => format!("cancel #{}", attempt.0),
        Effect::Stop { account, keep: None } => format!("stop {}", account.uid),
        Effect::Stop { account, keep: Some(attempt) } => {
            format!("stop {} but #{}", account.uid, attempt.0)
        }
        Effect::Answer(answer) => {
            let account = answer.account.clone().unwrap_or_default();
            let outcome = match &answer.outcome {
                Some(Outcome::Identity(identity)) if answer.refused.is_some() => {
                    format!("held {}, refused", identity.host)
                }
                Some(Outcome::Identity(identity)) => format!("held {}", identity.host),
                Some(Outcome::Failure(failure)) => failure.class().as_str_name().to_owned(),
                None if answer.dropped => "dropped".to_owned(),
                None => "nothing".to_owned(),
            };
            format!("{} {} {outcome}", account.uid, account.epoch)
        }
        Effect::Lost(lost) => {
            let account = lost.account.clone().unwrap_or_default();
            format!("{} {} lost", account.uid, account.epoch)
        }
        Effect::Kept { account, .. } => format!("{} {} kept", account.uid, account.epoch),
    };
    effects.iter().map(word).collect()
}

/// A table that holds uid `u` under name `a` at epoch 5.
fn holding() -> AccountTable {
    let mut table = AccountTable::default();
    table.add(account("u", "a", 5), definition("one"));
    table.finished("u", Attempt(1), Ok(identity("h")));
    table
}

#[test]
fn an_account_is_started_and_then_held() {
    let mut table = AccountTable::default();
    assert_eq!(said(&table.add(account("u", "a", 1), definition("one"))), ["start u 1 #1"]);
    assert_eq!(said(&table.finished("u", Attempt(1), Ok(identity("h")))), ["u 1 held h"]);
    assert_eq!(table.held_count(), 1);
}

#[test]
fn failed_account_is_forgotten_and_can_be_added_again() {
    let mut table = AccountTable::default();
    table.add(account("u", "a", 1), definition("one"));
    assert_eq!(said(&table.finished("u", Attempt(1), Err(failure()))), ["u 1 UNREACHABLE"]);
    assert_eq!(said(&table.add(account("u", "a", 1), definition("one"))), ["start u 1 #2"]);
}

#[test]
fn add_of_a_held_definition_is_answered_at_once() {
    let mut table = holding();
    assert_eq!(said(&table.add(account("u", "a", 5), definition("one"))), ["u 5 held h"]);
    assert_eq!(said(&table.add(account("u", "a", 7), definition("one"))), ["u 7 held h"]);
    assert_eq!(table.held().next().and_then(|held| held.account).map(|account| account.epoch), Some(7));
}

#[test]
fn older_add_is_answered_with_the_held_epoch() {
    let mut table = holding();
    assert_eq!(said(&table.add(account("u", "a", 4), definition("two"))), ["u 5 held h"]);
}

#[test]
fn old_definition_is_held_until_the_new_one_has_started() {
    let mut table = holding();
    assert_eq!(said(&table.add(account("u", "a", 6), definition("two"))), ["start u 6 #2"]);
    assert_eq!(table.held_count(), 1);
    assert_eq!(said(&table.finished("u", Attempt(2), Err(failure()))), ["u 6 UNREACHABLE"]);
    assert_eq!(table.held_count(), 1);
    table.add(account("u", "a", 7), definition("two"));
    assert_eq!(said(&table.finished("u", Attempt(4), Ok(identity("new")))), [] as [&str; 0]);
    assert_eq!(said(&table.finished("u", Attempt(3), Ok(identity("new")))), ["u 7 held new"]);
}

#[test]
fn a_repeated_add_does_not_start_twice() {
    let mut table = AccountTable::default();
    table.add(account("u", "a", 1), definition("one"));
    assert!(table.add(account("u", "a", 1), definition("one")).is_empty());
    // The attempt then answers for the later epoch of the same definition.
    assert!(table.add(account("u", "a", 2), definition("one")).is_empty());
    assert_eq!(said(&table.finished("u", Attempt(1), Ok(identity("h")))), ["u 2 held h"]);
}

#[test]
fn a_newer_definition_replaces_one_that_is_starting() {
    let mut table = AccountTable::default();
    table.add(account("u", "a", 1), definition("one"));
    assert_eq!(said(&table.add(account("u", "a", 2), definition("two"))), ["cancel #1", "start u 2 #2"]);
    assert!(table.finished("u", Attempt(1), Ok(identity("late"))).is_empty());
    assert!(table.add(account("u", "a", 1), definition("one")).is_empty());
}

#[test]
fn add_of_the_held_definition_cancels_the_start_of_another() {
    let mut table = holding();
    table.add(account("u", "a", 6), definition("two"));
    assert_eq!(said(&table.add(account("u", "a", 7), definition("one"))), ["u 7 held h", "cancel #2"]);
}

#[test]
fn a_file_is_read_again_at_a_new_epoch() {
    let file = || {
        let credential = Some(Credential::File("/opt/armory/k".to_owned()));
        Definition::split(AccountSpec { credential, ..AccountSpec::default() }).1
    };
    let mut table = AccountTable::default();
    table.add(account("u", "a", 1), file());
    table.finished("u", Attempt(1), Ok(identity("h")));
    assert_eq!(said(&table.add(account("u", "a", 1), file())), ["u 1 held h"]);
    assert_eq!(said(&table.add(account("u", "a", 2), file())), ["start u 2 #3"]);
}

#[test]
fn another_uid_of_a_name_stops_the_first() {
    let mut table = holding();
    table.add(account("u", "a", 6), definition("two"));
    assert_eq!(said(&table.add(account("v", "a", 1), definition("one"))), ["stop u", "start v 1 #3"]);
    assert_eq!(table.held_count(), 0);
    assert_eq!(said(&table.drop_account(account("u", "a", 9))), ["u 9 dropped"]);
    assert_eq!(table.starting().count(), 1);
}

#[test]
fn a_uid_that_comes_under_another_name_is_stopped_first() {
    let mut table = holding();
    assert_eq!(said(&table.add(account("u", "b", 5), definition("one"))), ["stop u", "start u 5 #2"]);
    assert_eq!(said(&table.add(account("v", "a", 1), definition("one"))), ["start v 1 #3"]);
    assert_eq!(table.starting().count(), 2);
}

#[test]
fn drop_stops_the_same_and_older_epochs() {
    let mut table = holding();
    assert_eq!(said(&table.drop_account(account("u", "a", 6))), ["stop u", "u 6 dropped"]);
    assert_eq!(table.held_count(), 0);
    table.add(account("u", "a", 7), definition("one"));
    assert_eq!(said(&table.drop_account(account("u", "a", 7))), ["stop u", "u 7 dropped"]);
}

#[test]
fn late_drop_leaves_newer_epochs_running() {
    let mut table = holding();
    assert_eq!(said(&table.drop_account(account("u", "a", 4))), ["u 5 held h"]);
    assert_eq!(table.held_count(), 1);
}

#[test]
fn a_drop_between_held_and_starting_takes_the_held_one() {
    let mut table = holding();
    table.add(account("u", "a", 7), definition("two"));
    assert_eq!(said(&table.drop_account(account("u", "a", 6))), ["stop u but #2", "u 6 dropped"]);
    assert_eq!(table.held_count(), 0);
    assert_eq!(said(&table.finished("u", Attempt(2), Ok(identity("new")))), ["u 7 held new"]);
}

#[test]
fn the_unknown_counts_as_dropped() {
    assert_eq!(said(&AccountTable::default().drop_account(account("u", "a", 1))), ["u 1 dropped"]);
}

#[test]
fn lost_stream_cancels_starting_accounts_and_keeps_held_ones() {
    let mut table = holding();
    table.add(account("v", "b", 1), definition("one"));
    table.add(account("u", "a", 6), definition("two"));
    let mut effects = said(&table.stream_lost());
    effects.sort();
    assert_eq!(effects, ["cancel #2", "cancel #3"]);
    assert_eq!((table.held_count(), table.starting().count()), (1, 0));
    assert_eq!(said(&table.add(account("w", "b", 1), definition("one"))), ["start w 1 #4"]);
}

#[test]
fn debug_shows_no_credential() {
    let mut table = AccountTable::default();
    let effects = table.add(account("u", "a", 1), definition("secret-token"));
    let shown = format!("{table:?} {effects:?} {:?}", "secret-token".as_bytes());
    assert_eq!(shown.matches("secret-token").count(), 0);
    assert_eq!(shown.matches(&format!("{:?}", "secret-token".as_bytes())).count(), 1);
}

/// A table that holds uid `u` under name `a` at epoch 5, started with content 1 of its file.
fn holding_a_file() -> AccountTable {
    let mut table = AccountTable::default();
    table.add(account("u", "a", 5), of_file());
    table.finished("u", Attempt(1), Ok(read("h", &[1])));
    table
}

fn of_file() -> Definition {
    let credential = Some(Credential::File("/k".to_owned()));
    Definition::split(AccountSpec { credential, ..AccountSpec::default() }).1
}

#[test]
fn a_changed_file_starts_its_account_anew_at_the_same_epoch() {
    let mut table = holding_a_file();
    assert_eq!(said(&table.files_changed(&[file(1)])), [] as [&str; 0], "it is the content that it has");
    let other = ReadFile { path: "/other".into(), digest: [2; 32] };
    assert_eq!(said(&table.files_changed(&[other])), [] as [&str; 0]);
    assert_eq!(said(&table.files_changed(&[file(2)])), ["start u 5 #2"]);
    assert_eq!((table.held_count(), table.owed().count()), (1, 0), "nobody waits for it");
    assert_eq!(said(&table.files_changed(&[file(3)])), ["cancel #2", "start u 5 #3"]);
    assert_eq!(said(&table.finished("u", Attempt(3), Ok(read("new", &[3])))), ["u 5 held new"]);
    assert_eq!(table.files().into_iter().collect::<Vec<_>>(), [file(3)]);
}

#[test]
fn unusable_changed_file_keeps_the_held_account() {
    let mut table = holding_a_file();
    table.files_changed(&[file(2)]);
    assert_eq!(said(&table.finished("u", Attempt(2), Err(failure()))), ["u 5 kept"]);
    assert_eq!(said(&table.add(account("u", "a", 5), of_file())), ["u 5 held h"]);
    assert_eq!(said(&table.files_changed(&[file(3)])), ["start u 5 #4"], "the next content is tried");
}

#[test]
fn restart_for_a_changed_file_survives_a_lost_stream_and_repeated_commands() {
    let mut table = holding_a_file();
    table.files_changed(&[file(2)]);
    assert_eq!(said(&table.stream_lost()), [] as [&str; 0]);
    assert_eq!(said(&table.add(account("u", "a", 5), of_file())), ["u 5 held h"]);
    assert_eq!(said(&table.finished("u", Attempt(2), Ok(read("new", &[2])))), ["u 5 held new"]);
}

#[test]
fn a_new_epoch_makes_the_start_because_of_a_file_its_own() {
    let mut table = holding_a_file();
    table.files_changed(&[file(2)]);
    assert_eq!(said(&table.add(account("u", "a", 6), of_file())), [] as [&str; 0]);
    assert_eq!(said(&table.finished("u", Attempt(2), Err(failure()))), ["u 6 UNREACHABLE"]);
}

#[test]
fn a_drop_ends_the_start_because_of_a_file() {
    let mut table = holding_a_file();
    table.files_changed(&[file(2)]);
    assert_eq!(said(&table.drop_account(account("u", "a", 5))), ["stop u", "u 5 dropped"]);
    assert!(table.files().is_empty());
}

#[test]
fn the_listing_shows_every_account_and_its_owner() {
    let mut table = holding_a_file();
    table.add(account("v", "b", 1), definition("one"));
    table.add(account("w", "c", 1), definition("one"));
    table.finished("w", Attempt(3), Err(failure()));
    let own = AccountSpec {
        account: Some(account("", "a", 0)),
        credential: Some(Credential::File("/k".to_owned())),
        ..AccountSpec::default()
    };
    let own = crate::static_accounts::StaticAccountFile::new(vec![own]).current();
    let listing = table.listing(10, &own);
    let told: Vec<_> = listing.iter().map(|one| (one.name.as_str(), one.state, one.is_own)).collect();
    assert_eq!(
        told,
        [
            ("a", ListedState::Held, true),
            ("b", ListedState::Starting, false),
            ("c", ListedState::Failed, false)
        ]
    );
    assert_eq!(table.counts(), StateCounts { held: 1, starting: 1, failed: 1 });
    assert_eq!(table.listing(1, &own).len(), 1);
    table.drop_account(account("w", "c", 1));
    assert_eq!(table.counts().failed, 0);
}

fn fence(epoch: u64) -> Fence {
    Fence { account_uid: "u".to_owned(), caching_epoch: epoch }
}

/// The caching epochs that a hello contains.
fn told(table: &AccountTable) -> Vec<u64> {
    table.held().map(|held| held.caching_epoch).collect()
}

#[test]
fn caching_assignment_lasts_until_a_later_one_or_a_drop() {
    let mut table = holding();
    assert_eq!((told(&table), table.cached_count()), (vec![0], 0));
    assert_eq!(table.cache(&fence(3), true, None), AssignmentOutcome::Taken);
    assert_eq!((told(&table), table.cached_count()), (vec![3], 1));
    assert_eq!(table.cache(&fence(3), true, None), AssignmentOutcome::Late, "it was told before");
    assert_eq!(table.cache(&fence(2), false, None), AssignmentOutcome::Late, "that was an earlier one");
    assert_eq!(table.cache(&fence(4), true, None), AssignmentOutcome::Taken);
    table.stream_lost();
    table.add(account("u", "a", 6), definition("other"));
    assert_eq!(told(&table), [4], "neither a lost stream nor a new definition touches it");
    assert_eq!(table.cache(&fence(4), false, None), AssignmentOutcome::Taken);
    assert_eq!(table.cache(&fence(4), false, None), AssignmentOutcome::Late);
    assert_eq!(table.cache(&fence(5), true, None), AssignmentOutcome::Taken);
    table.drop_account(account("u", "a", 9));
    assert_eq!((table.cached_count(), table.cache(&fence(6), true, None)), (0, AssignmentOutcome::Unknown));
}

#[test]
fn objects_are_streamed_by_the_newest_rules_until_the_hub_takes_no_more() {
    let (mut table, fence) = (holding(), fence(3));
    assert_eq!(table.cache(&fence, true, None), AssignmentOutcome::Taken);
    assert!(table.cached().is_empty(), "a hub that names no rules takes no objects");
    let rules = |kind: &str| Some(CachingRules { kinds: vec![kind.to_owned()], ..CachingRules::default() });
    for kind in ["Pod", "Service"] {
        assert_eq!(table.cache(&fence, true, rules(kind)), AssignmentOutcome::Taken);
        assert_eq!(table.cache(&fence, true, rules(kind)), AssignmentOutcome::Late, "it was told before");
        let cached = table.cached();
        assert_eq!(
            (cached.len(), cached[0].epoch, &cached[0].rules.kinds[..]),
            (1, 3, &[kind.to_owned()][..])
        );
    }
    table.revoke_caching(&Fence { caching_epoch: 2, ..fence.clone() });
    assert_eq!(table.cached().len(), 1, "that was an earlier epoch");
    table.revoke_caching(&fence);
    assert!(table.cached().is_empty());
}

#[test]
fn account_of_another_cluster_is_lost_and_the_hub_is_told_once() {
    let mut table = holding();
    table.cache(&fence(3), true, Some(CachingRules::default()));
    let definition = table.cached()[0].definition.clone();
    assert_eq!(said(&table.lost("u", &definition, failure())), ["stop u", "u 5 lost"]);
    assert_eq!((table.held_count(), table.cached_count()), (0, 0));
    assert_eq!(table.counts(), StateCounts { failed: 1, ..StateCounts::default() });
    assert_eq!(said(&table.lost("u", &definition, failure())), [] as [&str; 0]);
    assert_eq!(said(&table.add(account("u", "a", 5), self::definition("one"))), ["start u 5 #2"]);
}

#[test]
fn loss_of_a_former_definition_is_ignored_and_an_attempt_goes_on() {
    let mut table = holding();
    table.cache(&fence(3), true, Some(CachingRules::default()));
    let former = table.cached()[0].definition.clone();
    table.add(account("u", "a", 6), definition("two"));
    table.finished("u", Attempt(2), Ok(identity("h")));
    assert_eq!(said(&table.lost("u", &former, failure())), [] as [&str; 0]);
    let current = table.cached()[0].definition.clone();
    table.add(account("u", "a", 7), definition("three"));
    assert_eq!(said(&table.lost("u", &current, failure())), ["stop u but #3", "u 6 lost"]);
    assert_eq!(said(&table.finished("u", Attempt(3), Ok(identity("h")))), ["u 7 held h"]);
}

/// A hub that the agent has not been at before learns so where requests can go while a later definition fails.
#[test]
fn a_hello_names_the_epoch_and_the_cluster_of_what_is_held_whatever_later_definition_fails() {
    let mut table = AccountTable::default();
    table.add(account("u", "a", 1), definition("one"));
    let identity = ClusterIdentity { kube_system_uid: "k".into(), ..ClusterIdentity::default() };
    table.finished(
        "u",
        Attempt(1),
        Ok(ActivatedAccount { identity, files: Vec::new(), at: Timestamp::UNIX_EPOCH }),
    );
    for (epoch, attempt) in [(2, 2), (3, 3)] {
        table.add(account("u", "a", epoch), definition(&epoch.to_string()));
        table.finished("u", Attempt(attempt), Err(failure()));
        table.stream_lost();
        let held: Vec<_> = table.held().collect();
        let epochs: Vec<_> =
            held.iter().filter_map(|held| held.account.as_ref()).map(|one| one.epoch).collect();
        assert_eq!((epochs, held[0].cluster_uid.as_str()), (vec![1], "k"));
    }
}

fn unauthorized() -> Failure {
    Failure { class: Class::Auth.into(), http_status: 401, ..Failure::default() }
}

/// A table as [`holding`], whose hub was told that the credential is refused; with the definition that is held.
fn refused() -> (AccountTable, Arc<Definition>) {
    let mut table = holding();
    let held = table.held_definition("u").expect("it is held").definition;
    assert!(table.judge_credential("u", &held, Some(unauthorized())));
    assert_eq!(said(&table.untold_verdicts(true)), ["u 5 held h, refused"]);
    (table, held)
}

#[test]
fn refused_and_accepted_credentials_are_told_once_and_the_account_stays_held() {
    let (mut table, held) = refused();
    assert!(!table.judge_credential("u", &held, Some(unauthorized())), "the hub knows");
    assert_eq!((said(&table.untold_verdicts(true)), table.held_count()), (vec![], 1));
    assert_eq!(said(&table.add(account("u", "a", 5), definition("one"))), ["u 5 held h, refused"]);
    assert!(table.judge_credential("u", &held, None));
    assert_eq!(said(&table.untold_verdicts(true)), ["u 5 held h"]);
    assert!(!table.judge_credential("u", &held, None));
    let another = Arc::new(definition("one"));
    assert!(!table.judge_credential("u", &another, Some(unauthorized())), "of a former definition");
}

#[test]
fn new_stream_is_told_of_refused_credentials_and_of_those_accepted_meanwhile() {
    let (mut table, held) = refused();
    table.stream_lost();
    assert_eq!(said(&table.untold_verdicts(true)), ["u 5 held h, refused"]);
    table.stream_lost();
    table.judge_credential("u", &held, None);
    assert_eq!(said(&table.untold_verdicts(true)), ["u 5 held h"]);
    table.stream_lost();
    assert_eq!(said(&table.untold_verdicts(true)), ["u 5 held h"], "the hub may know the refusal alone");
}

#[test]
fn hub_that_does_not_hear_of_refusals_is_told_that_the_account_is_lost() {
    let (mut table, _) = refused();
    table.stream_lost();
    assert_eq!(said(&table.untold_verdicts(false)), ["stop u", "u 5 lost"]);
    assert_eq!(table.held_count(), 0);
}

#[test]
fn refused_definition_is_started_anew_under_a_new_epoch_and_stays_held_if_that_is_refused() {
    let (mut table, held) = refused();
    assert_eq!(said(&table.add(account("u", "a", 6), definition("one"))), ["start u 6 #2"]);
    assert_eq!(said(&table.finished("u", Attempt(2), Err(unauthorized()))), ["u 6 held h, refused"]);
    assert!(table.judge_credential("u", &held, None), "the same definition is held");
    assert_eq!(said(&table.untold_verdicts(true)), ["u 6 held h"]);
    table.judge_credential("u", &held, Some(unauthorized()));
    table.untold_verdicts(true);
    assert_eq!(said(&table.add(account("u", "a", 7), definition("one"))), ["start u 7 #3"]);
    assert_eq!(said(&table.finished("u", Attempt(3), Ok(identity("h")))), ["u 7 held h"]);
    assert!(table.untold_verdicts(true).is_empty());
}

#[test]
fn new_definition_of_a_refused_account_is_answered_for_itself() {
    let (mut table, _) = refused();
    table.add(account("u", "a", 6), definition("two"));
    assert_eq!(said(&table.finished("u", Attempt(2), Err(unauthorized()))), ["u 6 AUTH"]);
    table.add(account("u", "a", 7), definition("three"));
    assert_eq!(said(&table.finished("u", Attempt(3), Ok(identity("h")))), ["u 7 held h"]);
    assert_eq!(said(&table.add(account("u", "a", 7), definition("three"))), ["u 7 held h"]);
}
