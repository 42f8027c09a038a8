//! The connected agents: one session for each stream, the registry that finds them, and the accounts that each has to do
//! with.
//!
//! | module | owns |
//! |---|---|
//! | [`session`] | one stream: who its agent is, its loop, its frames |
//! | [`ledger`], [`duties`] | what an agent was told and has said, and what follows; pure |
//! | [`wire_conversion`] | the wire's messages as the lifecycle's words |
//! | [`registry`], [`zone_index`] | sessions by agent, zone and account; accounts by zone |
//! | [`dispatch`] | changes of objects to sessions |
//! | [`mass_delete_guard`] | accounts that vanished with many others |

pub(super) mod dispatch;
pub(super) mod duties;
pub(super) mod ledger;
pub(super) mod mass_delete_guard;
pub(super) mod registry;
pub(super) mod session;
pub(super) mod wire_conversion;
pub(super) mod zone_index;
