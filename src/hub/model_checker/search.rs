//! Breadth-first exploration of all worlds.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::time::{Duration, Instant};

use crate::hub::model_checker::checks::Property;
use crate::hub::model_checker::cycles::{Edges, circle};
use crate::hub::model_checker::shared::WorldDigest;
use crate::hub::model_checker::steps::ModelStep;
use crate::hub::model_checker::world::ModelWorld;

/// Result of a search.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct VisitedWorlds {
    /// Number of distinct worlds.
    pub(super) states: usize,
    /// Number of steps between them.
    pub(super) transitions: usize,
    /// Number of steps to the furthest world.
    pub(super) depth: usize,
    /// Number of worlds in which nothing happens by itself any more, and from which time passes.
    pub(super) ends: usize,
    pub(super) took: Duration,
    /// Whether all reachable worlds were explored.
    pub(super) is_complete: bool,
}

/// A violated property, and the steps that lead to it.
#[derive(Debug)]
pub(super) struct Broken {
    pub(super) property: Property,
    pub(super) story: String,
}

/// Predecessor of each world: the world and the step.
type Traces = Vec<(u32, ModelStep)>;

struct Search {
    begin: ModelWorld,
    known: HashMap<WorldDigest, u32>,
    ways: Traces,
    /// Steps that happen by themselves.
    edges: Edges,
    seen: VisitedWorlds,
}

/// Explores all worlds, up to a maximum number.
///
/// # Errors
/// The violated property, and the steps that lead to it.
pub(super) fn search(begin: ModelWorld, most: usize) -> Result<VisitedWorlds, Broken> {
    let since = Instant::now();
    let mut search = Search {
        known: HashMap::from([(begin.key(), 0)]),
        ways: vec![(0, ModelStep::Wish)],
        edges: Edges::default(),
        seen: VisitedWorlds { states: 1, ..VisitedWorlds::default() },
        begin: begin.clone(),
    };
    let mut layer = vec![(0, begin)];
    while !layer.is_empty() && search.seen.states < most {
        let mut next = Vec::with_capacity(layer.len());
        for (number, world) in layer {
            search.expand(number, &world, &mut next)?;
        }
        search.seen.depth += usize::from(!next.is_empty());
        layer = next;
    }
    search.seen.is_complete = layer.is_empty();
    if let Some(circle) = circle(&search.edges) {
        return Err(search.describe_cycle(&circle));
    }
    search.seen.took = since.elapsed();
    Ok(search.seen)
}

impl Search {
    fn expand(
        &mut self,
        number: u32,
        world: &ModelWorld,
        next: &mut Vec<(u32, ModelWorld)>,
    ) -> Result<(), Broken> {
        let mut ends = true;
        for step in world.steps() {
            let Some(after) = world.after(step) else { continue };
            let place = match self.known.entry(after.key()) {
                Entry::Occupied(known) if *known.get() == number => continue,
                Entry::Occupied(known) => *known.get(),
                Entry::Vacant(vacant) => {
                    let place = u32::try_from(self.ways.len()).unwrap_or(u32::MAX);
                    vacant.insert(place);
                    self.ways.push((number, step));
                    if let Some((property, what)) = &after.broken {
                        let what = format!("{what}\n  {}", after.summary());
                        return Err(self.trace(place, *property, &what));
                    }
                    place
                }
            };
            self.seen.transitions += 1;
            if after.follows_by_itself(world) {
                self.edges.add(place);
                ends = false;
            }
            if usize::try_from(place).is_ok_and(|place| place >= self.seen.states) {
                self.seen.states += 1;
                next.push((place, after));
            }
        }
        self.edges.end_of_node();
        if ends {
            self.seen.ends += 1;
            match world.converge() {
                Err((property, what)) if world.ignored != Some(property) => {
                    return Err(self.trace(number, property, &what));
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn way_to(&self, mut place: u32) -> Vec<ModelStep> {
        let mut steps = Vec::new();
        while place != 0 {
            let (before, step) = self.ways[place as usize];
            steps.push(step);
            place = before;
        }
        steps.reverse();
        steps
    }

    /// Returns the violation and the steps that lead to it.
    fn trace(&self, place: u32, property: Property, what: &str) -> Broken {
        let steps = self.way_to(place);
        let mut world = self.begin.clone();
        let mut lines = vec![format!("{property:?}: {what}"), format!("after {} steps:", steps.len())];
        for step in steps {
            lines.push(format!("  {}", world.describe_step(step)));
            world = world.after(step).unwrap_or(world);
        }
        Broken { property, story: lines.join("\n") }
    }

    fn describe_cycle(&self, circle: &[u32]) -> Broken {
        let first = circle.first().copied().unwrap_or_default();
        let begin = self.trace(first, Property::NoLivelock, "it goes round in a circle");
        let mut lines = vec![begin.story, format!("and then for ever, in {} steps:", circle.len())];
        let mut world = self
            .way_to(first)
            .into_iter()
            .fold(self.begin.clone(), |world, step| world.after(step).unwrap_or(world));
        for place in circle.iter().skip(1).chain([&first]) {
            let leads_there = |step: &ModelStep| {
                world.after(*step).is_some_and(|after| self.known.get(&after.key()) == Some(place))
            };
            let Some(step) = world.steps().into_iter().find(leads_there) else { break };
            lines.push(format!("  {}", world.describe_step(step)));
            world = world.after(step).unwrap_or(world);
        }
        Broken { property: Property::NoLivelock, story: lines.join("\n") }
    }
}
