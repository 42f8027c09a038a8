//! Accounts of an agent's own file: from the frames that list them to their KubesvcAccounts.
//!
//! | step | where |
//! |---|---|
//! | collect frames into a list, within its bounds | [`incoming`] |
//! | convert an entry into a spec, or refuse it and name the field | [`entry`] |
//! | index a list by name and source | [`listing`] |
//! | compare a spec with the existing objects: a write or a refusal | [`judge`] |
//! | receive lists in a session, and send the answers | [`sync`] |
//! | write the objects of one list, in a task beside the session | [`reconciler`] |
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
/// Maximum number of characters of a name in an answer.
const NAME_SHOWN: usize = 255;

/// Creates and updates KubesvcAccounts for the lists of agents.
pub(super) struct StaticAccounts {
    pub(super) context: Arc<HubContext>,
    pub(super) sessions: Arc<Sessions>,
    pub(super) agent_status: Arc<AgentStatus>,
    /// Reads and writes accounts at the API server.
    pub(super) objects: Arc<dyn AccountObjects>,
}

/// Refusal of an entry, or of the whole list if the name is empty.
pub(super) fn refusal(name: &str, class: Class, message: String) -> ops::StaticAnswer {
    let name = name.chars().filter(|character| !character.is_control()).take(NAME_SHOWN).collect();
    let retryable = class == Class::Conflict;
    let mut message = message;
    crate::account::failure::truncate(&mut message, 1024);
    let failure =
        common::Failure { class: class.into(), retryable, message, before_send: true, ..Default::default() };
    ops::StaticAnswer { name, failure: Some(failure) }
}
