//! Memory for unsent events: a share of its own for each account, and a shared pool.

/// Bytes that an account may always queue.
pub const OWN_QUEUE_BYTES: usize = 64 * 1024;
/// Maximum number of queued bytes of an account, its own share included; a single larger event is queued alone.
pub const MAX_QUEUE_BYTES: usize = 1024 * 1024;
/// Size of the agent's shared pool, in bytes.
pub const SHARED_QUEUE_BYTES: usize = 32 * 1024 * 1024;

/// Pool from which the queues of an agent's accounts borrow.
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
    /// A pool of `size` bytes.
    pub fn new(size: usize) -> Self {
        Self { size, lent: 0 }
    }

    /// Bytes that can be borrowed.
    pub fn free(&self) -> usize {
        self.size.saturating_sub(self.lent)
    }

    /// Borrowed bytes.
    pub fn lent(&self) -> usize {
        self.lent
    }
}

/// Memory of one account: its own share first, then what it borrowed.
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

    /// Whether the account may hold `bytes`; more than [`MAX_QUEUE_BYTES`] only for a single event.
    pub(super) fn allows(&self, bytes: usize, is_alone: bool, memory: &QueueMemory) -> bool {
        let extra = Self::borrowed(bytes).saturating_sub(Self::borrowed(self.bytes));
        extra <= memory.free() && (bytes <= MAX_QUEUE_BYTES || is_alone)
    }

    /// Maximum number of bytes that the account could hold at present.
    pub(super) fn capacity(&self, memory: &QueueMemory) -> usize {
        (OWN_QUEUE_BYTES + Self::borrowed(self.bytes) + memory.free()).min(MAX_QUEUE_BYTES)
    }

    /// Sets the number of bytes held. Items other than events are always accepted, so the pool may lend beyond its
    /// size.
    pub(super) fn set(&mut self, bytes: usize, memory: &mut QueueMemory) {
        memory.lent = memory.lent - Self::borrowed(self.bytes) + Self::borrowed(bytes);
        self.bytes = bytes;
    }
}
