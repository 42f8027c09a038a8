//! Variables of the environment that select what is measured, and how much.

use std::{collections::BTreeSet, env, fmt, ops::RangeInclusive, str::FromStr};

fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.trim().is_empty())
}

/// Reads a number.
///
/// # Errors
///
/// The message names the variable, its value, and the allowed values.
pub(crate) fn number(name: &str, default: usize, allowed: RangeInclusive<usize>) -> Result<usize, String> {
    let Some(value) = variable(name) else { return Ok(default) };
    usize::from_str(value.trim()).ok().filter(|number| allowed.contains(number)).ok_or_else(|| {
        format!("{name} is {value:?}; it must be a number from {} to {}", allowed.start(), allowed.end())
    })
}

/// Names of all benchmarks, of this program and of the others: `make bench` runs all with the same selection.
const NAMES: [&str; 21] = [
    "p1",
    "p2",
    "p9",
    "start",
    "idle",
    "crowd",
    "replicas",
    "migration",
    "tls",
    "p3",
    "p8",
    "p4",
    "resume",
    "beside",
    "outage",
    "calls",
    "deploy",
    "distance",
    "lists",
    "operations",
    "neighbours",
];

/// Reads a list of names, separated by commas; unset: all of them. Names of the other programs' benchmarks are left out.
///
/// # Errors
///
/// The message names the variable, its value, and the allowed values.
pub(crate) fn selection<T: Copy + Ord + fmt::Display>(name: &str, all: &[T]) -> Result<BTreeSet<T>, String> {
    let Some(value) = variable(name) else { return Ok(all.iter().copied().collect()) };
    let wanted: Vec<&str> = value.split(',').map(str::trim).filter(|name| !name.is_empty()).collect();
    let is_known = |one: &&&str| NAMES.iter().any(|known| known.eq_ignore_ascii_case(one));
    if let Some(unknown) = wanted.iter().find(|one| !is_known(one)) {
        let names = NAMES.join(", ");
        return Err(format!("{name} has {unknown:?}; it must be a list of {names}, separated by commas"));
    }
    let is_wanted = |known: &&T| wanted.iter().any(|wanted| known.to_string().eq_ignore_ascii_case(wanted));
    Ok(all.iter().filter(is_wanted).copied().collect())
}
