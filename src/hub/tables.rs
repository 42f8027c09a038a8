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

use std::sync::Arc;

use crate::hub::context::HubContext;
use crate::hub::sessions::Sessions;
use assignments::{AssignmentRows, DirtyAssignments};
use fences::{DirtyFences, FenceRows};
use namespaces::{NamespaceLists, NamespaceRows};

/// What is to be looked at again in the tables: filled by the sessions, emptied by the tasks that write.
#[derive(Default)]
pub(super) struct TableWakes {
    pub(super) assignments: Arc<DirtyAssignments>,
    pub(super) fences: Arc<DirtyFences>,
    pub(super) namespaces: Arc<NamespaceLists>,
}

/// The rows, by table family.
pub(super) struct TableRows {
    pub(super) assignments: Arc<dyn AssignmentRows>,
    pub(super) fences: Arc<dyn FenceRows>,
    pub(super) namespaces: Arc<dyn NamespaceRows>,
}

/// The tables, as this replica writes them.
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
