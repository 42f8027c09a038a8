//! Every order of steps, each world once.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use super::steps::Step;
use super::world::{Faults, Rules, World};

/// What a search has seen.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seen {
    /// Different worlds.
    pub(super) worlds: usize,
    /// Steps between them.
    pub(super) steps: usize,
    /// Worlds from which it was tried whether everything comes to rest.
    pub(super) settled: usize,
    /// All worlds that can be reached were seen.
    pub(super) is_complete: bool,
}

/// How far a search goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Worlds after which it ends.
    pub(super) worlds: usize,
    /// Each so many-th world is tried whether it comes to rest.
    pub(super) settle_each: usize,
}

type Parents = HashMap<u128, Option<(u128, Step)>>;

/// Searches.
///
/// # Errors
/// What is broken, and the steps that led there.
pub(super) fn search(faults: Faults, rules: Rules, limits: Limits) -> Result<Seen, String> {
    let begin = World::new(faults, rules);
    let mut parents: Parents = HashMap::from([(begin.key(), None)]);
    let mut open = vec![begin];
    let mut seen = Seen { worlds: 1, is_complete: true, ..Seen::default() };
    while let Some(world) = open.pop() {
        let key = world.key();
        if seen.worlds.is_multiple_of(limits.settle_each) || open.is_empty() {
            seen.settled += 1;
            world.settle().map_err(|broken| story(&parents, key, &broken))?;
        }
        for step in world.steps() {
            let Some(next) = world.after(&step) else { continue };
            seen.steps += 1;
            let next_key = next.key();
            let Entry::Vacant(vacant) = parents.entry(next_key) else { continue };
            vacant.insert(Some((key, step)));
            if let Some(broken) = &next.broken {
                return Err(story(&parents, next_key, &format!("{broken}\n  {}", next.told())));
            }
            seen.worlds += 1;
            open.push(next);
        }
        if seen.worlds >= limits.worlds {
            seen.is_complete = open.is_empty();
            return Ok(seen);
        }
    }
    Ok(seen)
}

/// What is broken, and how it came to that.
fn story(parents: &Parents, mut key: u128, broken: &str) -> String {
    let mut steps = Vec::new();
    while let Some(Some((parent, step))) = parents.get(&key) {
        steps.push(format!("{step:?}"));
        key = *parent;
    }
    steps.reverse();
    format!("{broken}\nafter {} steps:\n  {}", steps.len(), steps.join("\n  "))
}
