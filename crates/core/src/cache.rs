//! What of a cluster is cached for an account, and how it is named in SQL: which kinds are watched in which
//! namespaces, why one is left out, and the id, kind, application and relations of a row.
//!
//! The agent calls it to choose what it watches, the hub to make rows of what it is sent, REST and the plugin to say
//! why an object has no row. Nothing here reads a cluster, a database or a clock.
//!
//! | module | owns |
//! |---|---|
//! | [`rules`] | the settings, read and checked; their form on the wire |
//! | [`kind_names`] | kinds as settings name them |
//! | [`selection`] | the scopes of an account |
//! | [`left_out`] | why a kind or an object is not cached, and which setting is the reason |
//! | [`left_out_objects`] | objects of which no row can be made, as text and from it |
//! | [`issues`] | what the condition `Caching` says is left out |
//! | [`object_filter`] | which objects of a watched scope are cached |
//! | [`synthetic`] | rows for what an account may not read |
//! | [`native`], [`classes`] | Clouddriver's names and classes of kinds |
//! | [`keys`] | ids of rows, relations and scopes |
//! | [`moniker`], [`relations`] | application, cluster, and what a row is related to |
//! | [`object_row`] | a row's columns from an event |
//! | [`fingerprints`] | `shape`: whether stored rows are still made in the same way |

pub mod classes;
pub mod findings;
pub mod fingerprints;
pub mod issues;
pub mod keys;
pub mod kind_names;
pub mod left_out;
pub mod left_out_objects;
pub mod moniker;
pub mod native;
pub mod object_filter;
pub mod object_row;
pub mod relations;
pub mod rules;
pub mod selection;
pub mod synthetic;
#[cfg(test)]
mod tests;
