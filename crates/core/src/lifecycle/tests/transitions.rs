//! Each row of the table of transitions in `crates/core/README.md` has a scenario that takes it, from each state it names.
//! A row without one fails, and so does a scenario without a row.

mod to_active;
mod to_end;

use std::collections::BTreeSet;

use super::*;
use crate::lifecycle::Offer;

const PAGE: &str = include_str!("../../../README.md");
const HEADING: &str = "## Every transition";

/// Takes an account from a state, or from nothing, over the row.
type RowScenario = fn(Option<State>) -> World;

/// A row as the page has it.
struct DocumentedRow {
    from: Vec<Option<State>>,
    when: String,
    to: Vec<String>,
}

fn scenarios() -> Vec<(&'static str, RowScenario)> {
    to_active::SCENARIOS.iter().chain(to_end::SCENARIOS).copied().collect()
}

fn state_named(name: &str) -> Option<State> {
    State::ALL.into_iter().find(|state| state.to_string() == name)
}

/// What stands in backticks.
fn words(cell: &str) -> Vec<String> {
    cell.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

fn rows() -> Vec<DocumentedRow> {
    let (_, section) = PAGE.split_once(HEADING).expect("the page has the heading");
    let section = section.split_once("\n## ").map_or(section, |(section, _)| section);
    let lines = section.lines().filter(|line| line.starts_with("| `"));
    lines
        .map(|line| {
            let cells: Vec<_> = line.trim_matches('|').split('|').map(str::trim).collect();
            let [from, when, to] = cells[..] else { unreachable!("three cells: {line}") };
            let state = |name: String| match (name.as_str(), state_named(&name)) {
                ("new", _) => None,
                (_, Some(state)) => Some(state),
                _ => unreachable!("{name} is no state: {line}"),
            };
            let from = words(from).into_iter().map(state).collect();
            DocumentedRow { from, when: when.replace('`', ""), to: words(to) }
        })
        .collect()
}

/// An account in this state, as it gets there in life; nothing written since.
fn reach(account: KubesvcAccount, state: Option<State>) -> World {
    let Some(state) = state else { return World::of(account) };
    let mut world = match state {
        State::Inactive => World::of(account.wanted_inactive()),
        State::ToMigrate => {
            let mut world = World::of(account);
            world.sessions.extend([session("agent-1", "east"), session("agent-2", "west")]);
            world
        }
        _ => {
            let is_static = account.is_static();
            let mut world = World::of(account);
            world.connect("agent-1", "east");
            if is_static {
                world.list("agent-1", true);
            }
            world
        }
    };
    world.run_until_idle();
    if !matches!(state, State::Inactive | State::ToMigrate | State::Activating) {
        world.say("agent-1", held());
    }
    match state {
        State::Failed => drop(world.say("agent-1", fails(FailureClass::Forbidden))),
        State::Orphaned => drop(world.cut("agent-1").wait(30)),
        State::Deactivating => drop(world.edit(to_be_inactive)),
        State::Deleting => drop(world.edit(to_be_deleted)),
        State::DeleteFailed => {
            world.edit(to_be_deleted).say("agent-1", fails(FailureClass::Internal));
        }
        _ => {}
    }
    assert_eq!(world.state(), state);
    world.writes();
    world
}

fn at(state: Option<State>) -> World {
    reach(account("a"), state)
}

fn to_be_active(account: &mut KubesvcAccount) {
    account.spec.state = None;
}

fn to_be_inactive(account: &mut KubesvcAccount) {
    account.spec.state = Some(DesiredState::Inactive);
}

fn to_be_deleted(account: &mut KubesvcAccount) {
    *account = account.clone().being_deleted();
}

fn another_definition(account: &mut KubesvcAccount) {
    account.spec.namespaces = vec!["web".to_owned()];
}

/// The states that were written, or the one that stayed; and the end.
fn path(mut world: World) -> Vec<String> {
    let written = world.writes();
    let states = written.iter().map(|write| write.split(',').next().unwrap_or_default().to_owned());
    let mut path: Vec<_> = states.filter(|state| state_named(state).is_some()).collect();
    // One after the other where the grant goes and the state stays.
    path.dedup();
    if path.is_empty() && !world.gone {
        path.push(world.state().to_string());
    }
    if world.gone {
        path.push("gone".to_owned());
    }
    path
}

#[test]
fn each_row_of_the_table_is_taken_from_each_of_its_states() {
    let scenarios = scenarios();
    let mut taken = 0;
    let mut wrong = Vec::new();
    for DocumentedRow { from, when, to } in rows() {
        let Some((_, scenario)) = scenarios.iter().find(|(name, _)| *name == when) else {
            wrong.push(format!("no scenario takes the row {when:?}"));
            continue;
        };
        assert!(!from.is_empty() && !to.is_empty(), "{when}");
        for state in from {
            taken += 1;
            // What a scenario itself asserts is told beside the others.
            let path = std::panic::catch_unwind(|| path(scenario(state))).unwrap_or_default();
            if path != to {
                let state = state.map_or("new".to_owned(), |state| state.to_string());
                wrong.push(format!("{state}, {when}: {path:?}, not {to:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(taken > 80, "only {taken} were found: is this test reading the right table?");
}

#[test]
fn each_scenario_is_a_row_of_the_table_and_each_state_begins_and_ends_one() {
    let rows = rows();
    let named: BTreeSet<_> = rows.iter().map(|row| row.when.as_str()).collect();
    assert_eq!(named.len(), rows.len(), "two rows read alike");
    for (name, _) in scenarios() {
        assert!(named.contains(name), "no row reads {name:?}");
    }
    for state in State::ALL.into_iter().filter(|state| *state != State::ToDeactivate) {
        assert!(rows.iter().any(|row| row.from.contains(&Some(state))), "nothing begins in {state}");
        assert!(rows.iter().any(|row| row.to.contains(&state.to_string())), "nothing ends in {state}");
    }
}
