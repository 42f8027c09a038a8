//! Accounts of an agent's own file: from the frames that list them to the objects that stand for them.
//!
//! | step | where |
//! |---|---|
//! | frames become a list, within its bounds | [`incoming`] |
//! | an entry becomes a spec, or is refused with the field at fault | [`entry`] |
//! | a list becomes what it has, by name and source | [`listing`] |
//! | a spec and what there is already become a write, or a refusal | [`judge`] |
//! | a session takes in lists, and gives the answers to its stream | [`sync`] |
//! | a task beside the session writes the objects of one list | [`reconciler`] |
//!
//! All but the last two are pure.

mod entry;
mod incoming;
mod judge;
mod listing;
mod reconciler;
pub(super) mod sync;

pub(super) use entry::{ListedEntry, ValidEntry, read};
pub(super) use incoming::{FrameOutcome, IncomingList};
pub(super) use judge::{ListingDecision, another_lists, is_same_source, judge};
pub(super) use listing::Listing;

use std::sync::Arc;

use super::agent_status::AgentStatus;
use super::context::HubContext;
use super::sessions::Sessions;
use crate::objects::AccountObjects;
use crate::wire::common::failure::Class;
use crate::wire::{common, ops};

/// The value of the label `kubesvc.io/origin` of an account that an agent listed.
pub(super) const ORIGIN: &str = "agent";
/// The longest name that an answer repeats, in characters.
const NAME_SHOWN: usize = 255;

/// What keeps the objects of accounts that agents list.
pub(super) struct StaticAccounts {
    pub(super) context: Arc<HubContext>,
    pub(super) sessions: Arc<Sessions>,
    pub(super) agent_status: Arc<AgentStatus>,
    /// The accounts at the API server.
    pub(super) objects: Arc<dyn AccountObjects>,
}

/// What the agent is told of an entry, or of the whole list where the name is empty.
pub(super) fn refusal(name: &str, class: Class, message: String) -> ops::StaticAnswer {
    let name = name.chars().filter(|character| !character.is_control()).take(NAME_SHOWN).collect();
    let retryable = class == Class::Conflict;
    let mut message = message;
    crate::account::failure::truncate(&mut message, 1024);
    let failure =
        common::Failure { class: class.into(), retryable, message, before_send: true, ..Default::default() };
    ops::StaticAnswer { name, failure: Some(failure) }
}
