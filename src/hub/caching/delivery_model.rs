//! Model of delivery: one account with one scope, two agent processes, their streams at hubs, the fence's row, rows and
//! checkpoints. It runs the product's functions: the agent's `AccountSender`, the hub's `StreamDelivery`, queue and
//! transactions, and the store's verdicts on fences and scopes. It explores cuts, crashes, lost answers, hubs that wake
//! up with uncommitted batches, lost commits, moves and changes of the account's settings, and checks the named
//! [`Property`]s after each step.
//!
//! | module | owns |
//! |---|---|
//! | `settings` | the account's settings of its scope |
//! | `cluster` | objects and their changes; the reader of a scope |
//! | `database` | the fence's row, rows and checkpoint; the leader's sweeps |
//! | `hub` | a stream at a hub |
//! | `steps` | possible steps, and their budget |
//! | `world` | execution of the steps |
//! | `journal` | the read changes of an agent, for rules without which it would send them differently |
//! | `search` | random orders of steps, and every order of a small world |
//! | `walks` | the tests: the properties hold |
//! | `rules` | the tests: each omitted rule breaks a property |
//!
//! Assumptions: a fence is raised in the step that elects its process; one account has one cluster, whose versions only
//! grow; no commits are lost while a kind is removed and added again, because an account that watches nothing else
//! would not notice before its next stream.

mod cluster;
mod database;
mod hub;
mod journal;
mod rules;
mod search;
mod settings;
mod steps;
mod walks;
mod world;

use kubesvc_agent::EncodedFrame;
use kubesvc_core::wire::common::{Fence, Scope};
use kubesvc_core::wire::events::event::{Body, Omitted, Operation};
use kubesvc_core::wire::events::{CacheUp, Event, ScopeDeclaration, cache_up};
use prost::Message as _;

use settings::Settings;

const ACCOUNT: &str = "prod";
const UID: &str = "u";

/// The omitted rule, if any; all others hold.
type Rules = Option<Rule>;

/// A violated property, with details.
type Broken = (Property, String);

fn fence(caching_epoch: i64) -> Fence {
    Fence { account_uid: UID.into(), caching_epoch: u64::try_from(caching_epoch).expect("it is positive") }
}

/// Declaration of the scope under this number.
fn declaration(scope_id: u32, settings: Settings) -> ScopeDeclaration {
    let scope = Some(Scope { kind: "Pod".into(), version: "v1".into(), ..Scope::default() });
    ScopeDeclaration { scope_id, scope, shape: settings.shape.into(), filter: settings.filter.into() }
}

/// An object as read under a shape.
fn upsert(name: &str, version: u64, shape: &str) -> Event {
    let body = Some(Body::Omitted(Omitted::TooLarge.into()));
    Event { op: Operation::Upsert.into(), body, hash: hash(shape), ..delete(name, version) }
}

fn delete(name: &str, version: u64) -> Event {
    let (name, rv) = (name.to_owned(), version.to_string());
    Event { op: Operation::Delete.into(), name, rv, ..Event::default() }
}

/// Stand-in for the body, which depends on the shape.
fn hash(shape: &str) -> Vec<u8> {
    shape.bytes().cycle().take(32).collect()
}

fn decoded(frame: &EncodedFrame) -> cache_up::Frame {
    CacheUp::decode(frame.bytes().clone()).expect("a frame").frame.expect("a known frame")
}

/// Properties that must hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Property {
    /// A row never takes an older version of its object, except by a lost commit.
    RowsNeverGoBack,
    /// The newest change of each object is in the rows or after the checkpoint. Left-out objects have no row.
    NoChangeIsBeforeTheCheckpoint,
    /// Rows of a scope with a checkpoint have its shape, unless their object has changed after it.
    RowsHaveTheirShape,
    /// Each batch number has the same bytes whenever it is sent.
    OneContentForEachNumber,
    /// Acknowledged batches are committed.
    AcknowledgedIsCommitted,
    /// A hub refuses no frame of an agent.
    NothingIsRefused,
    /// A constantly changing object is written, even with small batches.
    BusyObjectsAreWritten,
    /// Without further faults, the rows converge to the cluster's objects that the settings select.
    RowsBecomeTheObjects,
}

/// Rules of delivery, each of which can be omitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    /// A newer change of a queued object moves to the end of the queue.
    ChangedObjectsMoveToTheEnd,
    /// A delete that replaces an upsert is sent.
    DeletesAreKept,
    /// A change that was moved to the end for two seconds keeps its place.
    BusyObjectsKeepTheirPlace,
    /// The checkpoint of a batch is its last event while later ones are queued.
    CheckpointIsOfTheLastEvent,
    /// A change that the queue refused is read again.
    RefusedChangesAreReadAgain,
    /// A resent batch equals the batch that was sent.
    ResendsHaveTheSameBytes,
    /// Numbers are not reused after Off and On.
    NumbersAreNotReused,
    /// A delivery that restarts reads from the checkpoint, not from its last read version.
    ScopesGoOnFromTheCheckpoint,
    /// Reports of former readers are ignored.
    FormerReadersAreIgnored,
    /// Answers for a former delivery are ignored.
    FormerAnswersAreIgnored,
    /// A writer passes the fence only under its epoch.
    EpochIsChecked,
    /// A writer passes the fence only after the batch named as its predecessor.
    PrevIsChecked,
    /// The fence's row is read before the checkpoints.
    FenceIsReadFirst,
    /// Ack is sent after the commit.
    AckAfterCommit,
    /// Rows and checkpoints are committed together.
    OneTransaction,
    /// The start of a list deletes the checkpoint.
    ListTakesTheCheckpoint,
    /// A basis is read once the start of its list, and everything sent before, is committed.
    BasisFollowsTheCommit,
    /// A list is compared with its basis.
    ListHasABasis,
    /// A checkpoint of another shape does not count.
    ShapeIsCompared,
    /// A checkpoint of another filter does not count.
    FilterIsCompared,
    /// A scope added under another shape or filter loses its checkpoint.
    AddedScopesAreCompared,
    /// After a change of shape, a list also sends unchanged objects.
    OtherShapesAreSentWhole,
    /// Until a list of a shape is complete, rows may have another one.
    ShapeCountsAfterACompleteList,
    /// A removed scope has no checkpoint, since its rows are swept.
    RemovedScopesLoseTheirCheckpoint,
    /// Scopes that are stored but not declared are removed.
    OthersAreRemoved,
}
