//! Whatever is said in whatever order, with whatever failures: in the end the table is what was said last.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use proptest::prelude::*;
use tokio_util::sync::CancellationToken;

use super::fake::Fake;
use crate::account_projection::Projection;
use crate::tests::contract::row;
use kubesvc_core::account_row::AccountRow;
use kubesvc_core::lifecycle::RowFact;
use kubesvc_runtime::background_tasks::TaskRegistry;

#[derive(Clone, Debug)]
enum ProjectionStep {
    Say(u8, i32),
    Insert(u8, i32),
    Delete(u8),
    Down(bool),
    Full(bool),
    LosesAnswers(bool),
    Gate(bool),
    Wait(u8),
    Sleep(u16),
    Repair,
    /// Somebody edits, adds (`Some`) or removes a row, or the database refuses the row from now on.
    Hand(u8, Option<i32>),
    Refuse(u8),
}

fn steps(with_hands: bool) -> impl Strategy<Value = Vec<ProjectionStep>> {
    let uid = || 0..6_u8;
    let own = prop_oneof![
        8 => (uid(), 0..4_i32).prop_map(|(uid, times)| ProjectionStep::Say(uid, times)),
        6 => (uid(), 0..4_i32).prop_map(|(uid, times)| ProjectionStep::Insert(uid, times)),
        2 => uid().prop_map(ProjectionStep::Delete),
        1 => any::<bool>().prop_map(ProjectionStep::Down),
        1 => any::<bool>().prop_map(ProjectionStep::Full),
        1 => any::<bool>().prop_map(ProjectionStep::LosesAnswers),
        2 => any::<bool>().prop_map(ProjectionStep::Gate),
        5 => (1..20_u8).prop_map(ProjectionStep::Wait),
        2 => (1..20_000_u16).prop_map(ProjectionStep::Sleep),
    ];
    let hands = prop_oneof![
        (uid(), proptest::option::of(4..8_i32)).prop_map(|(uid, times)| ProjectionStep::Hand(uid, times)),
        uid().prop_map(ProjectionStep::Refuse),
        Just(ProjectionStep::Repair),
    ];
    let step = if with_hands { prop_oneof![4 => own, 1 => hands].boxed() } else { own.boxed() };
    proptest::collection::vec(step, 0..80)
}

fn of(uid: u8, times: i32) -> AccountRow {
    AccountRow { failed_count: times, ..row(&format!("name-{uid}"), &format!("uid-{uid}")) }
}

async fn play(steps: Vec<ProjectionStep>, with_hands: bool) -> Result<(), TestCaseError> {
    let fake = Fake::new();
    let projection = Projection::new(fake.clone());
    let stop = CancellationToken::new();
    let (running, token) = (Arc::clone(&projection), stop.clone());
    let task = tokio::spawn(async move { running.run(&TaskRegistry::default(), token).await });
    let mut wanted: BTreeMap<u8, AccountRow> = BTreeMap::new();
    let mut deleted = BTreeSet::new();
    let mut open = true;
    for step in steps {
        match step {
            ProjectionStep::Say(uid, times) | ProjectionStep::Insert(uid, times) => {
                if !deleted.contains(&uid) {
                    wanted.insert(uid, of(uid, times));
                }
                if matches!(step, ProjectionStep::Say(..)) {
                    projection.upsert(of(uid, times));
                } else {
                    let projection = Arc::clone(&projection);
                    tokio::spawn(async move { projection.insert(of(uid, times)).await });
                    tokio::task::yield_now().await;
                }
            }
            ProjectionStep::Delete(uid) => {
                wanted.remove(&uid);
                deleted.insert(uid);
                let projection = Arc::clone(&projection);
                tokio::spawn(async move { projection.delete(&format!("uid-{uid}"), false).await });
                tokio::task::yield_now().await;
            }
            ProjectionStep::Down(on) => fake.down.store(on, Ordering::SeqCst),
            ProjectionStep::Full(on) => fake.full.store(on, Ordering::SeqCst),
            ProjectionStep::LosesAnswers(on) => fake.loses_answers.store(on, Ordering::SeqCst),
            ProjectionStep::Gate(on) if on == open => {}
            ProjectionStep::Gate(true) => (fake.open_gate(), open = true).0,
            ProjectionStep::Gate(false) => (fake.close_gate(), open = false).0,
            ProjectionStep::Wait(turns) => {
                for _ in 0..turns {
                    tokio::task::yield_now().await;
                }
            }
            ProjectionStep::Sleep(millis) => tokio::time::sleep(Duration::from_millis(millis.into())).await,
            ProjectionStep::Repair => {
                let (projection, list) = (Arc::clone(&projection), wanted.values().cloned().collect());
                tokio::spawn(async move { projection.repair(move || list).await });
                tokio::task::yield_now().await;
            }
            ProjectionStep::Hand(uid, Some(times)) => fake.set(of(uid, times)),
            ProjectionStep::Hand(uid, None) => {
                fake.table.lock().remove(&format!("name-{uid}"));
            }
            ProjectionStep::Refuse(uid) => fake.refuses.lock().push(format!("name-{uid}")),
        }
    }
    fake.down.store(false, Ordering::SeqCst);
    fake.full.store(false, Ordering::SeqCst);
    fake.loses_answers.store(false, Ordering::SeqCst);
    fake.refuses.lock().clear();
    fake.open_gate();
    tokio::time::sleep(Duration::from_secs(60)).await;
    prop_assert_eq!(projection.problem(), None);
    let list: Vec<AccountRow> = wanted.values().cloned().collect();
    if with_hands {
        let list = list.clone();
        projection.repair(move || list).await.expect("repaired");
    }
    prop_assert_eq!(fake.rows(), list);
    prop_assert_eq!(projection.counters().pending.get(), 0);
    for uid in 0..6 {
        let fact = if wanted.contains_key(&uid) { RowFact::Present } else { RowFact::Absent };
        prop_assert_eq!(projection.fact(&format!("uid-{uid}"), ""), fact, "uid-{}", uid);
    }
    let commits = fake.commits.load(Ordering::SeqCst);
    for row in wanted.into_values() {
        projection.upsert(row);
    }
    stop.cancel();
    let _ = task.await;
    prop_assert_eq!(fake.commits.load(Ordering::SeqCst), commits, "nothing is left to be written");
    Ok(())
}

fn run(steps: Vec<ProjectionStep>, with_hands: bool) -> Result<(), TestCaseError> {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime")
        .block_on(play(steps, with_hands))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn table_converges_to_the_last_rows_set(steps in steps(false)) {
        run(steps, false)?;
    }

    #[test]
    fn a_repair_sets_right_whatever_was_done_by_hand(steps in steps(true)) {
        run(steps, true)?;
    }
}
