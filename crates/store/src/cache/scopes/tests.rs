use proptest::prelude::*;

use super::*;

const OURS: ScopeWriter<'static> = ScopeWriter { account_uid: "uid-1", epoch: CachingEpoch(3), now: 1_000 };

fn key() -> ScopeKey {
    ScopeKey { namespace: "default".into(), group: "apps".into(), kind: "Deployment".into() }
}

fn added(shape: &str, filter: &str) -> ScopeChange {
    ScopeChange::Added(ScopeRow {
        key: key(),
        cached_kind: "deployment".into(),
        shape: shape.into(),
        filter: filter.into(),
    })
}

fn sync_started(sync_key: &str) -> ScopeChange {
    ScopeChange::SyncStarted { scope: key(), sync_key: sync_key.into() }
}

fn synced(sync_key: &str, version: &str, objects: i64) -> ScopeChange {
    let (sync_key, resource_version) = (sync_key.into(), version.into());
    ScopeChange::Synced { scope: key(), sync_key, resource_version, objects }
}

fn checkpoint(version: &str) -> ScopeChange {
    ScopeChange::Checkpoint { scope: key(), resource_version: version.into() }
}

fn problem(text: Option<&str>) -> ScopeChange {
    ScopeChange::Problem { scope: key(), problem: text.map(str::to_owned) }
}

fn apply(
    before: Option<FencedScope>,
    writer: ScopeWriter<'_>,
    changes: &[ScopeChange],
) -> Option<FencedScope> {
    changes.iter().fold(before, |scope, change| FencedScope::apply(scope, change, writer))
}

/// A scope that was listed once: shape `s`, filter `f`, version 7, five objects.
fn listed() -> Option<FencedScope> {
    apply(None, OURS, &[added("s", "f"), sync_started("k"), synced("k", "7", 5)])
}

fn checkpoint_of(scope: Option<&FencedScope>) -> Option<&str> {
    scope.and_then(|scope| scope.stored.resource_version.as_deref())
}

#[test]
fn nothing_but_an_addition_makes_a_scope() {
    let changes = [sync_started("k"), synced("k", "7", 5), checkpoint("8"), problem(Some("why"))];
    assert_eq!(apply(None, OURS, &changes), None);
    assert_eq!(apply(None, OURS, &[ScopeChange::Removed(key())]), None);
}

#[test]
fn scope_has_a_checkpoint_once_its_list_ended() {
    let mut scope = apply(None, OURS, &[added("s", "f"), checkpoint("6")]);
    assert_eq!(checkpoint_of(scope.as_ref()), None, "it was never listed");
    scope = apply(scope, OURS, &[sync_started("k"), checkpoint("6"), synced("other", "6", 1)]);
    assert_eq!(checkpoint_of(scope.as_ref()), None, "the list goes on");
    scope = apply(scope, OURS, &[synced("k", "7", 5), checkpoint("8"), synced("k", "7", 5)]);
    let stored = scope.expect("it is there").stored;
    assert_eq!((stored.resource_version.as_deref(), stored.objects), (Some("8"), Some(5)));
    assert_eq!(stored.state, ScopeState::Synced);
}

#[test]
fn same_scope_added_again_keeps_its_checkpoint() {
    let again = apply(listed(), ScopeWriter { epoch: CachingEpoch(4), ..OURS }, &[added("s", "f")]);
    assert_eq!(checkpoint_of(again.as_ref()), Some("7"));
    assert_eq!(again.map(|scope| scope.epoch), Some(CachingEpoch(4)));
}

#[test]
fn problem_stays_while_the_list_is_tried_again() {
    let again = [problem(Some("why")), added("s", "f"), sync_started("k2"), added("s", "f")];
    let stored = apply(listed(), OURS, &again).expect("it is there").stored;
    assert_eq!((stored.state, stored.problem.as_deref()), (ScopeState::Listing, Some("why")));
    let read = apply(
        listed(),
        OURS,
        &[problem(Some("why")), added("s", "f"), sync_started("k"), synced("k", "9", 5)],
    );
    assert_eq!(read.and_then(|scope| scope.stored.problem), None, "it was read");
}

#[test]
fn scope_of_another_filter_is_listed_and_its_rows_still_count() {
    let stored = apply(listed(), OURS, &[added("s", "g")]).expect("it is there").stored;
    assert_eq!((stored.resource_version, stored.objects), (None, Some(5)));
}

#[test]
fn scope_of_another_shape_has_no_rows_that_count_until_its_list_ended() {
    let mut scope = apply(listed(), OURS, &[added("t", "f"), sync_started("k2")]);
    // The process dies in the middle of the list, and its successor adds the same shape.
    let successor = ScopeWriter { epoch: CachingEpoch(4), ..OURS };
    scope = apply(scope, successor, &[added("t", "f")]);
    let stored = &scope.as_ref().expect("it is there").stored;
    assert_eq!((stored.resource_version.as_deref(), stored.objects), (None, None));
    scope = apply(scope, successor, &[sync_started("k3"), synced("k3", "9", 4)]);
    assert_eq!(scope.and_then(|scope| scope.stored.objects), Some(4));
}

#[test]
fn scope_of_another_uid_is_only_removed_or_taken_over() {
    let theirs = ScopeWriter { account_uid: "uid-2", ..OURS };
    let same = apply(listed(), theirs, &[checkpoint("9"), sync_started("k"), problem(Some("why"))]);
    assert_eq!(same, listed());
    let removed = apply(listed(), theirs, &[ScopeChange::Removed(key())]).expect("it is there");
    assert_eq!(removed.stored.state, ScopeState::Removed);
    let taken = apply(listed(), theirs, &[added("s", "f")]).expect("it is there").stored;
    assert_eq!((taken.account_uid.as_str(), taken.resource_version, taken.objects), ("uid-2", None, None));
}

#[test]
fn removed_scope_is_revived_only_by_an_addition() {
    let removed = apply(listed(), OURS, &[ScopeChange::Removed(key())]);
    assert_eq!(checkpoint_of(removed.as_ref()), None);
    let same = apply(removed.clone(), OURS, &[sync_started("k"), synced("k", "9", 1), checkpoint("9")]);
    assert_eq!(same, removed);
    let revived = apply(removed, OURS, &[added("s", "f")]).expect("it is there").stored;
    assert_eq!((revived.state, revived.resource_version), (ScopeState::Listing, None));
    assert_eq!(revived.objects, None, "part of its rows may be swept");
}

#[test]
fn problem_leaves_the_age_of_the_checkpoint() {
    let later = ScopeWriter { now: 2_000, ..OURS };
    let told = apply(listed(), later, &[problem(Some("a\0b"))]).expect("it is there").stored;
    assert_eq!((told.problem.as_deref(), told.last_updated_ms), (Some("ab"), 1_000));
    let confirmed = apply(listed(), later, &[checkpoint("7")]).expect("it is there").stored;
    assert_eq!(confirmed.last_updated_ms, 2_000, "the same version is younger now");
    let long = apply(listed(), OURS, &[problem(Some(&"ü".repeat(5000)))]).expect("it is there").stored;
    assert_eq!(long.problem.map(|text| text.chars().count()), Some(2048));
}

fn any_change() -> impl Strategy<Value = (bool, ScopeChange)> {
    let change = prop_oneof![
        ("[st]", "[fg]").prop_map(|(shape, filter)| added(&shape, &filter)),
        "[kl]".prop_map(|sync_key| sync_started(&sync_key)),
        "[kl]".prop_map(|sync_key| synced(&sync_key, "7", 5)),
        "[1-9]".prop_map(|version| checkpoint(&version)),
        Just(ScopeChange::Removed(key())),
        Just(problem(Some("why"))),
    ];
    (any::<bool>(), change)
}

proptest! {
    /// Whatever comes, in whatever order and from whichever of two accounts of a name.
    #[test]
    fn only_a_synced_scope_has_a_checkpoint(changes in prop::collection::vec(any_change(), 0..30)) {
        let mut scope = None;
        for (ours, change) in changes {
            let writer = ScopeWriter { account_uid: if ours { "uid-1" } else { "uid-2" }, ..OURS };
            let before: Option<FencedScope> = scope.clone();
            scope = FencedScope::apply(scope, &change, writer);
            let Some(scope) = &scope else { continue };
            prop_assert_eq!(
                scope.stored.resource_version.is_some(),
                scope.stored.state == ScopeState::Synced
            );
            prop_assert!(scope.sync_key.is_none() || scope.stored.state == ScopeState::Listing);
            // A checkpoint comes from nothing but the end of the list that began last, or a checkpoint before it.
            let had = before.as_ref().is_some_and(|one| one.stored.resource_version.is_some());
            let ended = matches!(&change, ScopeChange::Synced { sync_key, .. }
                if before.as_ref().and_then(|one| one.sync_key.as_deref()) == Some(sync_key));
            prop_assert!(scope.stored.resource_version.is_none() || had || ended);
            // The same change again changes nothing.
            let again = FencedScope::apply(Some(scope.clone()), &change, writer);
            prop_assert_eq!(again.as_ref(), Some(scope));
        }
    }
}
