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

/// Reads a list of names, separated by commas; unset: all of them.
///
/// # Errors
///
/// The message names the variable, its value, and the allowed values.
pub(crate) fn selection<T: Copy + Ord + fmt::Display>(name: &str, all: &[T]) -> Result<BTreeSet<T>, String> {
    let Some(value) = variable(name) else { return Ok(all.iter().copied().collect()) };
    let one = |wanted: &str| {
        let known = all.iter().copied().find(|known| known.to_string().eq_ignore_ascii_case(wanted));
        known.ok_or_else(|| {
            let names = all.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            format!("{name} is {value:?}; it must be a list of {names}, separated by commas")
        })
    };
    value.split(',').map(str::trim).filter(|name| !name.is_empty()).map(one).collect()
}
