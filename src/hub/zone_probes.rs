//! Accounts that name no zone: which agents to ask, and which of them could reach the account.
//!
//! | module | owns |
//! |---|---|
//! | [`probe`] | what one session was asked and when it is asked again; pure |
//! | [`offers`] | the answers of all sessions, by account and zone; pure |
//! | [`prober`] | a session's questions: looks up where a cluster is, asks, and takes in the answer |

pub(super) mod offers;
pub(super) mod probe;
pub(super) mod prober;
