//! Model checker for the protocol between leader, replicas and agents. It explores every order of steps in a small
//! world, breadth first and each world once, and runs the real functions, not a copy of them.
//!
//! The world has one account name, two zones, two replicas and a few agent processes. Watches lag; leadership moves
//! while the former leader does not know it yet or sleeps between a decision and its write; streams break on one side
//! first; agents restart; two processes share an agent id; a person changes the desired state, deletes the account
//! and creates it again under its name. A [`Scenario`](scenario::Scenario) bounds how often each happens; within it,
//! every order is explored to the end.
//!
//! | module | owns |
//! |---|---|
//! | `world`, `scenario` | the state, and what may happen to it |
//! | `steps`, `leader`, `sessions` | the possible next steps |
//! | `keys`, `shared` | equality of worlds |
//! | `search`, `circle` | exploration of all worlds, and detection of cycles |
//! | `checks`, `converge` | the properties, by name |
//! | `tests` | the scenarios, and the property that breaks if a rule is left out |
//!
//! The [`checks`] hold after each step. Steps that need neither a fault nor a person never lead back to an earlier
//! world, so every order of them ends. From each end time passes (`converge`), and the account must settle as desired.
//! Together this proves progress from every world, in any order.
//!
//! Assumptions: a write and the read it depends on are one step, except where a leader sleeps; a stream keeps its
//! order; a leader that has read the sessions decides before its next tick; a replica learns that it leads no more
//! after a few actions ([`late`](scenario::Faults)).

mod checks;
mod convergence;
mod cycles;
mod keys;
mod leader;
mod scenario;
mod search;
mod sessions;
mod shared;
mod steps;
mod tests;
mod world;
