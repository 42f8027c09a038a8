//! A model of delivery: one account with one scope, two agent processes, their streams at hubs, the fence's row, rows and
//! checkpoints. It runs what the programs run: the agent's `AccountSender`, the hub's `StreamDelivery`, queue and
//! transactions, and the store's verdicts on fences and scopes. It goes through cuts, crashes, lost answers, hubs that
//! wake up with batches in hand, lost commits, moves and changes of the account's settings, and checks the named
//! [`Property`]s after each step.
//!
//! | module | owns |
//! |---|---|
//! | `settings` | what the account's settings say of its scope |
//! | `cluster` | objects and their changes; the reader of a scope |
//! | `database` | the fence's row, rows and checkpoint; what the leader sweeps |
//! | `hub` | a stream at a hub |
//! | `steps` | what may happen, and how often |
//! | `world` | the steps, as they are taken |
//! | `journal` | what an agent has read, for rules without which it would send something else of it |
//! | `search` | random orders of steps, and every order of a small world |
//! | `walks` | the tests: the properties hold |
//! | `rules` | the tests: each rule that is left out breaks one of them |
//!
//! Assumptions: a fence is raised in the step that elects its process; one account has one cluster, whose versions only
//! grow; commits are not lost while a kind comes and goes, which an account that watches nothing else would not notice
//! before its next stream.

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

/// The account, and its uid.
const ACCOUNT: &str = "prod";
const UID: &str = "u";

/// The rules that hold: all, but perhaps one.
type Rules = Option<Rule>;

/// A violated property, and how.
type Broken = (Property, String);

fn fence(caching_epoch: i64) -> Fence {
    Fence { account_uid: UID.into(), caching_epoch: u64::try_from(caching_epoch).expect("it is positive") }
}

/// The scope, under a number of the agent's.
fn declaration(scope_id: u32, settings: Settings) -> ScopeDeclaration {
    let scope = Some(Scope { kind: "Pod".into(), version: "v1".into(), ..Scope::default() });
    ScopeDeclaration { scope_id, scope, shape: settings.shape.into(), filter: settings.filter.into() }
}

/// An object as it is read under a shape.
fn upsert(name: &str, version: u64, shape: &str) -> Event {
    let body = Some(Body::Omitted(Omitted::TooLarge.into()));
    Event { op: Operation::Upsert.into(), body, hash: hash(shape), ..delete(name, version) }
}

fn delete(name: &str, version: u64) -> Event {
    let (name, rv) = (name.to_owned(), version.to_string());
    Event { op: Operation::Delete.into(), name, rv, ..Event::default() }
}

/// Stands for the body, which is another one under another shape.
fn hash(shape: &str) -> Vec<u8> {
    shape.bytes().cycle().take(32).collect()
}

fn decoded(frame: &EncodedFrame) -> cache_up::Frame {
    CacheUp::decode(frame.bytes().clone()).expect("a frame").frame.expect("a known frame")
}

/// What must hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Property {
    /// A row never takes an older version of its object, except by a lost commit.
    RowsNeverGoBack,
    /// The newest change of each object is in the rows, or after the checkpoint. What the scope leaves out is not there.
    NoChangeIsBeforeTheCheckpoint,
    /// Rows of a scope with a checkpoint are of its shape, unless their object has changed after it.
    RowsHaveTheirShape,
    /// A number has the same bytes whenever it is sent.
    OneContentForEachNumber,
    /// What is acknowledged is committed.
    AcknowledgedIsCommitted,
    /// A hub refuses nothing that an agent sends.
    NothingIsRefused,
    /// An object that changes all the time is written, however little is sent at once.
    BusyObjectsAreWritten,
    /// Once nothing fails any more, rows are the cluster's objects that the settings ask for.
    RowsBecomeTheObjects,
}

/// Rules of delivery, each of which can be left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    /// A newer change of an object that waits goes to the end of the queue.
    ChangedObjectsMoveToTheEnd,
    /// A delete that replaces an upsert is sent.
    DeletesAreKept,
    /// A change that was moved to the end for two seconds keeps its place.
    BusyObjectsKeepTheirPlace,
    /// The checkpoint of a batch is its last event, while later ones wait.
    CheckpointIsOfTheLastEvent,
    /// A change for which the queue has no room is read again.
    RefusedChangesAreReadAgain,
    /// A batch that is sent again is the one that was sent.
    ResendsHaveTheSameBytes,
    /// Numbers are not used again after Off and On.
    NumbersAreNotReused,
    /// A delivery that begins anew reads from the checkpoint, not from where it has read.
    ScopesGoOnFromTheCheckpoint,
    /// What a former reader says is ignored.
    FormerReadersAreIgnored,
    /// An answer for a former delivery is ignored.
    FormerAnswersAreIgnored,
    /// A writer passes the fence only under its epoch.
    EpochIsChecked,
    /// A writer passes the fence only after the batch that it names.
    PrevIsChecked,
    /// The fence's row is read before the checkpoints.
    FenceIsReadFirst,
    /// Ack is sent after the commit.
    AckAfterCommit,
    /// Rows and checkpoints are committed together.
    OneTransaction,
    /// The start of a list takes the checkpoint away.
    ListTakesTheCheckpoint,
    /// A basis is read once the start of its list is committed, and with it all that was sent before.
    BasisFollowsTheCommit,
    /// A list is compared with its basis.
    ListHasABasis,
    /// A checkpoint of another shape does not count.
    ShapeIsCompared,
    /// A checkpoint of another filter does not count.
    FilterIsCompared,
    /// A scope that is added under another shape or filter loses its checkpoint.
    AddedScopesAreCompared,
    /// After a change of shape, a list sends the objects that have not changed too.
    OtherShapesAreSentWhole,
    /// Until a list of a shape is complete, rows may be of another one.
    ShapeCountsAfterACompleteList,
    /// A scope that is removed has no checkpoint, since its rows are swept.
    RemovedScopesLoseTheirCheckpoint,
    /// Scopes that are stored and not declared are removed.
    OthersAreRemoved,
}
