//! How the objects of one scope are listed and watched: what to ask of the cluster next, and what becomes of each
//! answer.
//!
//! A scope is a kind in one namespace or in all. [`ScopeWatch`] is its state machine: the driver of the scope asks it
//! for a [`ScopeAction`], does that, and reports what came of it; each report returns what to queue for the hub. It has
//! no I/O, no clock and no randomness of its own: time and a seed are arguments. It does not see the bytes of an
//! object, only who it is (`scrub`), and knows nothing of batches and credit.
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
//! Any of them may have to wait: after a failure, for a credential, or because the queue is full. A watch that the server
//! did not end in time begins anew with `CheckVersion` too; a cluster that went back is listed. So does a list that was
//! given up because something must change, such as a right, or because the cluster fails for long: until the cluster
//! answers, it takes no memory and no rows of the hub.
//!
//! | file | owns |
//! |---|---|
//! | `action.rs` | what to ask of the cluster, as requests |
//! | `failure.rs` | why a request failed, when to try again, and what to say about it |
//! | `basis.rs` | the rows that the hub has, in little memory, and how a list differs from them |
//! | `list.rs` | how far a list has come |
//! | `machine.rs`, `machine/` | the states, the timers, and the reports |
//! | `reader.rs` | the one driver: requests of a scope, and their responses |
//! | `budget.rs` | how many lists run at once, how much memory they take, and how many large lines and items are in memory |
//! | `left_out_objects.rs` | which objects cannot be reported |

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

/// Limits of the pages of a list: the first one, and the one after a page has expired in mid-list. After that, the
/// list has no limit.
const PAGE_LIMITS: [u32; 2] = [500, 2000];
/// Maximum number of pages of one list.
const MAX_PAGES: u32 = 100_000;
/// Maximum time for which a page may stand still, and for the response to a watch to begin.
const RESPONSE_IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// Duration of a watch, in seconds: after it the server ends the watch. Random, so that not all watches are opened
/// again at once.
const WATCH_SECONDS: RangeInclusive<u32> = 240..=300;
/// Time after the end of its duration at which a watch that is silent has lost its connection.
const WATCH_IDLE_MARGIN: Duration = Duration::from_secs(15);
/// A watch that lasted no longer has failed, even if the server ended it as it should.
const SHORT_WATCH: Duration = Duration::from_secs(5);
/// Minimum interval between two checkpoints that no event carries.
const CHECKPOINT_INTERVAL: Duration = Duration::from_secs(60);
/// Time without an event or bookmark after which a scope is listed: servers send a bookmark each minute, so the watch
/// hangs, for example at a version that a restored etcd has not reached.
const SILENCE_LIMIT: Duration = Duration::from_secs(180);
/// Maximum of that time for a server that sends no bookmarks. It doubles with each list that silence has caused.
const MAX_SILENCE_LIMIT: Duration = Duration::from_secs(24 * 60);
/// Interval between attempts while something must change first: a right, a kind, a credential.
const PROBLEM_RETRY_INTERVAL: Duration = Duration::from_secs(30);
/// Time for which a scope may fail before that is a problem to report: an API server that is restarted is none. Rights
/// and the like are reported at once. The leader may elect another agent as soon as no scope can be reached.
const PROBLEM_DELAY: Duration = Duration::from_secs(60);
/// Maximum time that a server can ask to be left alone.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(600);
/// Maximum time for which a list waits after a failure, and keeps the rows that it is compared with. Others may need that
/// memory.
const MAX_LIST_WAIT: Duration = Duration::from_secs(30);
/// Time for which each request for a page may fail, before the list is given up for the same reason.
const MAX_PAGE_FAILURE: Duration = Duration::from_secs(60);
/// Maximum random delay of a list because its scope was paused for too long: then many scopes are.
const PAUSED_LIST_SPREAD: Duration = Duration::from_secs(30);
/// Interval between two lists of a scope that is watched, if the hub names none. It varies by a fifth.
const DEFAULT_AUDIT_INTERVAL: Duration = Duration::from_secs(6 * 60 * 60);
/// Bounds of that interval.
const MIN_AUDIT_INTERVAL: Duration = Duration::from_secs(60);
const MAX_AUDIT_INTERVAL: Duration = Duration::from_secs(30 * 24 * 60 * 60);
