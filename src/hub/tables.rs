//! Rows about agents, which follow the sessions. Each table family has its own writer task.
//!
//! | module | owns |
//! |---|---|
//! | [`assignments`] | `kubesvc_assignments`: the accounts held by this replica's agents |
//! | [`fences`] | the fences in `kubesvc_caching` |
//! | [`caching_commands`] | commands to an agent to stream an account's objects; pure |
//! | [`namespaces`] | the lists of namespaces in the rows of accounts |

pub(super) mod assignments;
pub(super) mod caching_commands;
pub(super) mod fences;
pub(super) mod namespaces;

use std::sync::Arc;

use crate::hub::context::HubContext;
use crate::hub::sessions::Sessions;
use assignments::{AssignmentRows, DirtyAssignments};
use fences::{DirtyFences, FenceRows};
use namespaces::{NamespaceLists, NamespaceRows};

/// Dirty sets of the tables, filled by session events.
#[derive(Default)]
pub(super) struct TableWakes {
    pub(super) assignments: Arc<DirtyAssignments>,
    pub(super) fences: Arc<DirtyFences>,
    pub(super) namespaces: Arc<NamespaceLists>,
}

/// Row ports, by table family.
pub(super) struct TableRows {
    pub(super) assignments: Arc<dyn AssignmentRows>,
    pub(super) fences: Arc<dyn FenceRows>,
    pub(super) namespaces: Arc<dyn NamespaceRows>,
}

/// Writes the rows about this replica's agents.
pub(super) struct Tables {
    context: Arc<HubContext>,
    sessions: Arc<Sessions>,
    rows: TableRows,
    wakes: TableWakes,
}

impl Tables {
    pub(super) fn new(
        context: Arc<HubContext>,
        sessions: Arc<Sessions>,
        rows: TableRows,
        wakes: TableWakes,
    ) -> Self {
        Self { context, sessions, rows, wakes }
    }
}
