//! The KubesvcAgent objects: all that is written into them, and their end.
//!
//! | module | owns |
//! |---|---|
//! | [`registration`] | the port to the objects, and what their status says |
//! | [`approvals`] | approvals that people give to connected agents, written down before they count |
//! | [`summaries`] | how many accounts an agent holds, and what is wrong with its own |
//! | [`outbox_writer`] | what accounts wait to hear, for the replica that leads |
//! | [`disconnects`] | sessions that have ended |
//! | [`departed_agents`], [`collection`] | agents that are long gone, and their objects |

pub(super) mod approvals;
pub(super) mod collection;
pub(super) mod departed_agents;
pub(super) mod disconnects;
pub(super) mod outbox_writer;
pub(super) mod registration;
pub(super) mod summaries;
