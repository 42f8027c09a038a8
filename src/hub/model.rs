//! The protocol between leader, replicas and agents, explored: every order in which a small world's steps can happen, each
//! world once, the nearest first, with the code itself and not a copy of it.
//!
//! The world has one account name, two zones, two replicas and a few processes of agents. Watches lag behind, leadership
//! moves while the former leader has not noticed or sleeps between what it decided and what it does, streams are cut on
//! one side before the other, agents restart, two processes have one agent id, a person changes what is wanted, deletes
//! the account and makes it anew under its name. A [`Scenario`](scenario::Scenario) says how much of that happens; within
//! it every order is tried, to the end.
//!
//! | module | owns |
//! |---|---|
//! | `world`, `scenario` | what there is, and what may happen to it |
//! | `steps`, `leader`, `sessions` | all that can happen next |
//! | `keys`, `shared` | when two worlds are the same |
//! | `search`, `circle` | every world once; whether what happens by itself can go round in a circle |
//! | `checks`, `settle` | the properties, each by its name |
//! | `tests` | the scenarios, and what breaks where a rule is left out |
//!
//! After each step the [`checks`] hold. Steps that happen by themselves, without a fault or a wish, never lead back to a
//! world that was: so whatever the order, they come to an end. From each such end time passes (`settle`), and the account
//! must come to rest as it is wanted. Together that is progress from every world, in any order.
//!
//! What the model takes for granted: a write to an object and the reading that it depends on are one step, except where a
//! leader sleeps; a stream keeps its order; a leader that has read the sessions decides before its ticks go on; a replica
//! that leads no more learns it after it has acted a few times ([`late`](scenario::Faults)).

mod checks;
mod circle;
mod keys;
mod leader;
mod scenario;
mod search;
mod sessions;
mod settle;
mod shared;
mod steps;
mod tests;
mod world;
