//! The protocol between leader, replicas and agents, explored: orders in which a small world's steps can happen, each
//! world once, with the code itself and not a copy of it. A search ends after a number of worlds; it says whether it has
//! seen all.
//!
//! The world has one account name, two zones, two replicas and a few processes of agents. Watches lag behind, leadership
//! moves while the former leader has not noticed, streams are cut on one side before the other, agents restart, two
//! processes have one agent id, a person changes what is wanted, deletes the account and makes it anew under its name.
//! How much of that happens is bounded by a [`Faults`](world::Faults); within it any order may be tried.
//!
//! After each step the [`checks`] hold. From each state the faults may end: then the world must come to rest with the
//! account as it is wanted. A rule that is left out ([`Rules`](world::Rules)) is to break one of the two; `tests` shows it
//! for those where a short search finds how.

mod checks;
mod keys;
mod leader;
mod search;
mod sessions;
mod settle;
mod steps;
mod tests;
mod world;
