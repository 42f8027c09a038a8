//! Clouddriver's forms: the definitions of its accounts, what its credentials sources contain, and the accounts that
//! kubesvc registers in it. Pure: no I/O, no clock, no async.
//!
//! | module | owns |
//! |---|---|
//! | [`definition`] | an entry of a credentials source as an account, and an account as an entry |
//! | [`interception`] | what calls of its account management mean |
//! | [`migration`] | which accounts are migrated, and in which steps |
//! | [`registration`] | accounts registered in Clouddriver: which ones, with which definition, and the next step |
//! | [`sources`] | what a credentials source contains, and which account of several sources has a name |

pub mod definition;
pub mod interception;
pub mod migration;
pub mod registration;
pub mod sources;
