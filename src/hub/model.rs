//! The protocol between leader, replicas and agents, explored exhaustively: every order in which a small world's steps
//! can happen, with the code itself and not a copy of it.
//!
//! The world has one account name, two zones, two replicas and a few processes of agents. Watches lag behind, leadership
//! moves while the former leader has not noticed, streams are cut on one side before the other, agents restart, two
//! processes have one agent id, a person changes what is wanted, deletes the account and makes it anew under its name.
//! How much of that happens is bounded by a [`Faults`](world::Faults); within it every order is tried.
//!
//! After each step the [`checks`] hold. From each state the faults may end: then the world must come to rest with the
//! account as it is wanted. A rule that is left out ([`Rules`](world::Rules)) must break one of the two.

mod checks;
mod keys;
mod leader;
mod search;
mod sessions;
mod settle;
mod steps;
mod tests;
mod world;
