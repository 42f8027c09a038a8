//! A model of delivery: one account, two agent processes, their streams at hubs, the fence's row, rows and checkpoints. It
//! runs what the programs run: the agent's `AccountDelivery`, the hub's `StreamDelivery`, queue and transactions, and the
//! store's verdicts on fences and scopes. It goes through cuts, crashes, lost answers, hubs that wake up with batches in
//! hand, lost commits and moves, and checks the named [`Property`]s after each step.
//!
//! | module | owns |
//! |---|---|
//! | `cluster` | objects and their changes; the reader of a scope |
//! | `database` | the fence's row, rows and checkpoint |
//! | `hub` | a stream at a hub |
//! | `world` | the steps |
//! | `search` | random orders of steps, and every order of a small world |
//! | `walks` | the tests |

mod cluster;
mod database;
mod hub;
mod search;
mod walks;
mod world;

use kubesvc_agent::caching::EncodedFrame;
use kubesvc_core::wire::common::{Fence, Scope};
use kubesvc_core::wire::events::event::{Body, Omitted, Operation};
use kubesvc_core::wire::events::{CacheUp, Event, ScopeDeclaration, cache_up};
use prost::Message as _;

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
fn declaration(scope_id: u32) -> ScopeDeclaration {
    let scope = Scope { kind: "Pod".into(), ..Scope::default() };
    ScopeDeclaration { scope_id, scope: Some(scope), shape: "s".into(), filter: "f".into() }
}

fn upsert(name: &str, version: u64) -> Event {
    let body = Some(Body::Omitted(Omitted::TooLarge.into()));
    Event { op: Operation::Upsert.into(), body, ..delete(name, version) }
}

fn delete(name: &str, version: u64) -> Event {
    let (name, rv) = (name.to_owned(), version.to_string());
    Event { op: Operation::Delete.into(), name, rv, ..Event::default() }
}

fn decoded(frame: &EncodedFrame) -> cache_up::Frame {
    CacheUp::decode(frame.bytes().clone()).expect("a frame").frame.expect("a known frame")
}

/// What must hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Property {
    /// A row never takes an older version of its object, except by a lost commit.
    RowsNeverGoBack,
    /// The newest change of each object is in the rows, or after the checkpoint.
    NoChangeIsBeforeTheCheckpoint,
    /// A number has the same bytes whenever it is sent.
    OneContentForEachNumber,
    /// What is acknowledged is committed.
    AcknowledgedIsCommitted,
    /// Once nothing fails any more, rows are the cluster's objects.
    RowsBecomeTheObjects,
}

/// Rules of delivery, each of which can be left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
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
    /// A list is compared with its basis.
    ListHasABasis,
    /// Numbers are not used again after Off and On.
    NumbersAreNotReused,
    /// What a former reader says is ignored.
    FormerReadersAreIgnored,
}
