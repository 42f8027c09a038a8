//! Selection of the cached objects of an account, and their naming in SQL: watched kinds and namespaces, the reason for
//! each omission, and the id, kind, application and relations of a row.
//!
//! The agent chooses its watches with it, the hub makes rows of events, REST and the plugin explain why an object has
//! no row. Nothing here reads a cluster, a database or a clock.
//!
//! | module | owns |
//! |---|---|
//! | [`rules`] | the parsed and checked settings; their form on the wire |
//! | [`kind_names`] | kinds as settings name them |
//! | [`selection`] | the scopes of an account |
//! | [`left_out`] | the reason, and the responsible setting, for an uncached kind or object |
//! | [`left_out_objects`] | the stored text about objects without a row |
//! | [`issues`] | the message of the condition `Caching` about omissions |
//! | [`object_filter`] | the filter for the objects of a watched scope |
//! | [`synthetic`] | rows for objects that an account may not read |
//! | [`native`], [`classes`] | Clouddriver's names and classes of kinds |
//! | [`keys`] | ids of rows, relations and scopes |
//! | [`moniker`], [`relations`] | application, cluster, and related rows |
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
