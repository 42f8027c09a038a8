//! What the tables say of agents: rows that follow the sessions, each family written by a task of its own.
//!
//! | module | owns |
//! |---|---|
//! | [`assignments`] | `kubesvc_assignments`: which agents of this replica hold which accounts |
//! | [`fences`] | the fences in `kubesvc_caching` |
//! | [`caching_commands`] | who was told to stream the objects of which account; pure |
//! | [`namespaces`] | the lists of namespaces in the rows of accounts |

pub(super) mod assignments;
pub(super) mod caching_commands;
pub(super) mod fences;
pub(super) mod namespaces;
