//! List and watch of the objects of one scope: the next request to the cluster, and the effect of each response.
//!
//! A scope is a kind in one namespace or in all. [`ScopeWatch`] is its state machine: the scope's driver asks it for a
//! [`ScopeAction`], executes that, and reports the result; each report returns what to queue for the hub. The machine
//! has no I/O, no clock and no randomness of its own: time and a seed are arguments. It sees the identity of an object,
//! never its bytes (`scrub`), and knows nothing of batches and credit.
//!
//! ```text
//!            checkpoint is fresh
//!   start ──────────────────────▶ CheckVersion ──────▶ Watch ◀──────────────────────┐
//!     │                                                  │ 410, silence, audit,     │
//!     │ no checkpoint, or too old                        │ the hub asks             │
//!     └────────▶ BeginSync ◀─────────────────────────────┘                          │
//!                   │ key of the sync        ▲ 410, or the first page broke         │
//!                   ▼                        │                                      │
//!               AwaitBasis ── rows ──▶ ListPage ── last page: what is left goes ────┘
//! ```
//!
//! Each state may have to wait: after a failure, for a credential, or because the queue is full. A watch that the
//! server did not end in time restarts with `CheckVersion`; a cluster whose versions went back is listed.
//! `CheckVersion` also precedes a list that was aborted because something must change, such as a permission, or because
//! the cluster keeps failing: until the cluster answers, the list takes no memory and no rows of the hub.
//!
//! | file | owns |
//! |---|---|
//! | `action.rs` | the next request to the cluster |
//! | `failure.rs` | causes of failed requests, retry times, and what to report |
//! | `basis.rs` | the hub's rows in compact form, and their difference from a list |
//! | `list.rs` | progress of a list |
//! | `machine.rs`, `machine/` | states, timers, and reports |
//! | `reader.rs` | the driver: requests of a scope, and their responses |
//! | `budget.rs` | limits on concurrent lists, on their memory, and on large lines and items in memory |
//! | `left_out_objects.rs` | objects that cannot be reported |

use std::ops::RangeInclusive;
use std::time::Duration;

mod action;
mod basis;
mod budget;
mod failure;
mod left_out_objects;
mod list;
mod machine;
mod reader;
#[cfg(test)]
mod tests;

pub use action::{PageRequest, ScopeAction, WaitReason, WatchRequest};
pub use budget::{LargePieces, ListBudget};
pub use failure::RequestFailure;
pub use list::{ListReason, PageStep, SyncEnd};
pub use machine::{ItemStep, ObjectStep, ScopeStart, ScopeTiming, ScopeWatch};
pub(crate) use reader::queue;
pub use reader::{OmittedItem, ReaderContext, ReaderInput, ReaderSink, ScopeReader, WatchEnd, WatchState};

/// Page limits of a list: of the first attempt, and after a page has expired in mid-list. Later attempts are unlimited.
const PAGE_LIMITS: [u32; 2] = [500, 2000];
/// Maximum number of pages of one list.
const MAX_PAGES: u32 = 100_000;
/// Maximum time without data of a page, and until the response to a watch begins.
const RESPONSE_IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// Duration of a watch, in seconds, after which the server ends it. Random, so that watches are not all reopened at
/// once.
const WATCH_SECONDS: RangeInclusive<u32> = 240..=300;
/// Grace beyond the duration of a silent watch, after which its connection counts as lost.
const WATCH_IDLE_MARGIN: Duration = Duration::from_secs(15);
/// Maximum lifetime of a watch that counts as failed, even if the server ended it normally.
const SHORT_WATCH: Duration = Duration::from_secs(5);
/// Minimum interval between two checkpoints without an event.
const CHECKPOINT_INTERVAL: Duration = Duration::from_secs(60);
/// Time without an event or bookmark after which a scope is listed. Servers send a bookmark each minute, so a silent
/// watch hangs, for example at a version that a restored etcd has not reached.
const SILENCE_LIMIT: Duration = Duration::from_secs(180);
/// Maximum of [`SILENCE_LIMIT`] for a server without bookmarks. The limit doubles with each list that silence has
/// caused.
const MAX_SILENCE_LIMIT: Duration = Duration::from_secs(24 * 60);
/// Retry interval while something must change first: a permission, a kind, a credential.
const PROBLEM_RETRY_INTERVAL: Duration = Duration::from_secs(30);
/// Time for which a scope may fail before it reports a problem, so that a restart of the API server is none. Missing
/// permissions and the like are reported at once: the leader may elect another agent as soon as no scope can be
/// reached.
const PROBLEM_DELAY: Duration = Duration::from_secs(60);
/// Maximum `Retry-After` that is honored.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(600);
/// Maximum time for which a list keeps its basis in memory after a failure. Other lists may need that memory.
const MAX_LIST_WAIT: Duration = Duration::from_secs(30);
/// Time for which every request for a page may fail before the list is aborted, to release its memory.
const MAX_PAGE_FAILURE: Duration = Duration::from_secs(60);
/// Maximum random delay of a list after too long a pause, because many scopes are then paused.
const PAUSED_LIST_SPREAD: Duration = Duration::from_secs(30);
/// Default interval between two lists of a watched scope, with a jitter of one fifth.
const DEFAULT_AUDIT_INTERVAL: Duration = Duration::from_secs(6 * 60 * 60);
/// Bounds of the audit interval.
const MIN_AUDIT_INTERVAL: Duration = Duration::from_secs(60);
const MAX_AUDIT_INTERVAL: Duration = Duration::from_secs(30 * 24 * 60 * 60);
