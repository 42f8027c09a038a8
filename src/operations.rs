//! Operations on accounts: running their programs, and the records of what was done, by whom, and how it ended.

use kubesvc_store::OperationRecord;

/// Takes records of what ended. Writing them is off the critical path of a call.
pub trait OperationHistory: Send + Sync {
    /// Records what ended. Never waits: with the database away 10,000 records wait, then the oldest are dropped and
    /// counted.
    fn ended(&self, record: OperationRecord);
}
