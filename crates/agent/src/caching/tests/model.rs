//! A model of delivery: one account, two agent processes, two hubs, the fence's row, rows and checkpoints. It runs the
//! agent's own [`AccountDelivery`] against a small hub, through cuts, crashes, lost answers, hubs that wake up with
//! batches in hand, lost commits and moves, and checks the named [`Property`]s after each step.
//!
//! | module | owns |
//! |---|---|
//! | `cluster` | objects and their changes; the reader of a scope |
//! | `hub` | the database and the hub |
//! | `world` | the steps |
//! | `search` | random orders of steps, and every order of a small world |
//! | `walks` | the tests |

mod cluster;
mod hub;
mod search;
mod walks;
mod world;

/// What must hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Property {
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
pub(super) enum Rule {
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
