//! Memory for what accounts have read and not sent: a share of each account's own, and a pool that all share.

/// Bytes that an account may always queue.
pub const OWN_QUEUE_BYTES: usize = 64 * 1024;
/// Maximum number of bytes that an account may queue, its own share included; a single larger event is queued alone.
pub const MAX_QUEUE_BYTES: usize = 1024 * 1024;
/// Size of the pool that the agent's accounts share, in bytes.
pub const SHARED_QUEUE_BYTES: usize = 32 * 1024 * 1024;

/// The pool that the queues of an agent's accounts borrow from.
#[derive(Clone, Debug)]
pub struct QueueMemory {
    size: usize,
    lent: usize,
}

impl Default for QueueMemory {
    fn default() -> Self {
        Self::new(SHARED_QUEUE_BYTES)
    }
}

impl QueueMemory {
    /// A pool of this many bytes.
    pub fn new(size: usize) -> Self {
        Self { size, lent: 0 }
    }

    /// Bytes that can be borrowed.
    pub fn free(&self) -> usize {
        self.size.saturating_sub(self.lent)
    }

    /// Bytes that are borrowed.
    pub fn lent(&self) -> usize {
        self.lent
    }
}

/// What one account holds: its own share first, then what it borrowed.
#[derive(Clone, Debug, Default)]
pub(super) struct QueueShare {
    bytes: usize,
}

impl QueueShare {
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    fn borrowed(bytes: usize) -> usize {
        bytes.saturating_sub(OWN_QUEUE_BYTES)
    }

    /// Whether the account may hold `bytes`; more than [`MAX_QUEUE_BYTES`] only for an event that is alone.
    pub(super) fn allows(&self, bytes: usize, is_alone: bool, memory: &QueueMemory) -> bool {
        let extra = Self::borrowed(bytes).saturating_sub(Self::borrowed(self.bytes));
        extra <= memory.free() && (bytes <= MAX_QUEUE_BYTES || is_alone)
    }

    /// Bytes that the account could hold at most at present.
    pub(super) fn capacity(&self, memory: &QueueMemory) -> usize {
        (OWN_QUEUE_BYTES + Self::borrowed(self.bytes) + memory.free()).min(MAX_QUEUE_BYTES)
    }

    /// Sets what the account holds. What is not an event is always accepted, so the pool may lend beyond its size.
    pub(super) fn set(&mut self, bytes: usize, memory: &mut QueueMemory) {
        memory.lent = memory.lent - Self::borrowed(self.bytes) + Self::borrowed(bytes);
        self.bytes = bytes;
    }
}
