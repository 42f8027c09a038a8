//! Random orders of steps, and every order of a small world.

use std::collections::HashSet;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash as _, Hasher as _};

use super::steps::{Budget, Step};
use super::world::World;
use super::{Broken, Property, Rules};

/// Maximum number of rounds until a constantly changing object is written.
const BUSY_ROUNDS: usize = 6;

/// A violated property, and the steps to it.
#[derive(Debug)]
pub(super) struct Violation {
    pub(super) property: Property,
    pub(super) story: String,
}

fn violation((property, what): Broken, steps: &[Step]) -> Violation {
    Violation { property, story: format!("{property:?}: {what}, after {steps:#?}") }
}

/// Takes steps in a random order, then lets the world settle. Every other seed begins after the first list, and half of
/// both have faults and changes in quicker succession.
pub(super) fn walk(seed: u64, budget: Budget, left_out: Rules) -> Result<(), Violation> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut world = World::new(budget, left_out);
    let calm = if seed % 4 < 2 { 80 } else { 50 };
    let mut taken = Vec::new();
    if seed % 2 == 1 {
        world.list_first(&mut taken).map_err(|broken| violation(broken, &taken))?;
    }
    for _ in 0..random.usize(20..200) {
        let (by_itself, others): (Vec<_>, Vec<_>) =
            world.steps().into_iter().partition(|step| step.happens_by_itself());
        let steps = if others.is_empty() || !by_itself.is_empty() && random.u8(0..100) < calm {
            by_itself
        } else {
            others
        };
        let Some(step) = random.choice(steps) else { break };
        taken.push(step);
        world.take(step).map_err(|broken| violation(broken, &taken))?;
    }
    world.converge().map_err(|broken| violation(broken, &taken))
}

/// Changes both objects constantly while each batch holds one change: the row of the first one must follow.
pub(super) fn keep_busy(left_out: Rules) -> Result<(), Violation> {
    let mut world = World::new(Budget::default(), left_out);
    let mut taken = Vec::new();
    world.list_first(&mut taken).map_err(|broken| violation(broken, &taken))?;
    let before = world.database.rows.get("a").cloned();
    let round = [
        Step::Write(1),
        Step::Read(0),
        Step::Write(0),
        Step::Read(0),
        Step::SendSmall(0),
        Step::HubReceives(0),
        Step::HubCommits(0),
        Step::AgentReceives(0),
        Step::Wait,
    ];
    for step in std::iter::repeat_n(round, BUSY_ROUNDS).flatten() {
        taken.push(step);
        world.take(step).map_err(|broken| violation(broken, &taken))?;
    }
    if world.database.rows.get("a") == before.as_ref() {
        let what = format!("a is {before:?} after {BUSY_ROUNDS} rounds");
        return Err(violation((Property::BusyObjectsAreWritten, what), &taken));
    }
    Ok(())
}

/// Statistics of a search.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seen {
    pub(super) worlds: usize,
    pub(super) ends: usize,
    pub(super) is_complete: bool,
}

/// Takes the steps in every order, each world once, breadth first.
pub(super) fn search(budget: Budget, left_out: Rules, most: usize) -> Result<Seen, Violation> {
    let begin = World::new(budget, left_out);
    let mut known = HashSet::from([digest(&begin)]);
    let mut layer = vec![(begin, Vec::new())];
    let mut seen = Seen { worlds: 1, ..Seen::default() };
    while !layer.is_empty() && seen.worlds < most {
        let mut next = Vec::new();
        for (world, taken) in layer {
            let mut is_end = true;
            for step in world.steps() {
                let mut after = world.clone();
                let mut steps: Vec<Step> = taken.clone();
                steps.push(step);
                after.take(step).map_err(|broken| violation(broken, &steps))?;
                if known.insert(digest(&after)) {
                    is_end = false;
                    seen.worlds += 1;
                    next.push((after, steps));
                }
            }
            if is_end {
                seen.ends += 1;
                world.converge().map_err(|broken| violation(broken, &taken))?;
            }
        }
        layer = next;
    }
    seen.is_complete = layer.is_empty();
    Ok(seen)
}

fn digest(world: &World) -> u64 {
    let mut hasher = DefaultHasher::new();
    format!("{world:?}").hash(&mut hasher);
    hasher.finish()
}
