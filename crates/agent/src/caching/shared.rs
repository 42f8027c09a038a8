//! State of the stream, shared by its driver and the readers of all accounts.

use std::time::Instant;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::account_sender::ReaderId;
use super::memory::QueueMemory;
use super::stream::CachingSender;
use kubesvc_runtime::waits::until;

/// State of the stream. Each change wakes the driver.
#[derive(Debug)]
pub struct SharedStream {
    state: Mutex<CachingSender>,
    changed: Notify,
    room: Notify,
}

impl SharedStream {
    /// A stream without accounts.
    pub fn new(memory: QueueMemory) -> Self {
        let state = Mutex::new(CachingSender::new(memory, now()));
        Self { state, changed: Notify::new(), room: Notify::new() }
    }

    pub fn change<T>(&self, change: impl FnOnce(&mut CachingSender, Instant) -> T) -> T {
        let result = change(&mut self.state.lock(), now());
        self.changed.notify_one();
        result
    }

    /// Changes the state on behalf of the driver, which needs no wake-up. Queues may have room afterwards.
    pub(super) fn drive<T>(&self, change: impl FnOnce(&mut CachingSender, Instant) -> T) -> T {
        let result = change(&mut self.state.lock(), now());
        self.room.notify_waiters();
        result
    }

    /// Version up to which a reader has read.
    pub fn last_read(&self, account_uid: &str, reader: ReaderId) -> Option<String> {
        let state = self.state.lock();
        let (account, _) = state.inspect(account_uid)?;
        account.last_read(reader).map(str::to_owned)
    }

    /// Bytes of all accounts that are read and not known to be committed.
    pub fn pending_bytes(&self) -> usize {
        self.state.lock().pending_bytes()
    }

    /// Waits for the next change.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Waits until half of an account's queue is free; returns at once without a queue.
    pub async fn room(&self, account_uid: &str) {
        let has_room = || {
            let state = self.state.lock();
            let is_free = state.inspect(account_uid).is_none_or(|(one, memory)| one.is_half_free(memory));
            is_free.then_some(())
        };
        until(&self.room, has_room).await;
    }
}

fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}
