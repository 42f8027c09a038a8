//! The state of the stream, shared by its driver and by the readers of all accounts.

use std::time::Instant;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::account_sender::ReaderId;
use super::memory::QueueMemory;
use super::stream::CachingSender;
use kubesvc_runtime::waits::until;

/// The state of the stream. Each change of it wakes the driver.
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

    /// Changes the state, and wakes the driver.
    pub fn change<T>(&self, change: impl FnOnce(&mut CachingSender, Instant) -> T) -> T {
        let result = change(&mut self.state.lock(), now());
        self.changed.notify_one();
        result
    }

    /// The same for the driver itself, which looks again anyway. Queues may have room afterwards.
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

    /// Bytes that all accounts have read and that are not known to be committed.
    pub fn pending_bytes(&self) -> usize {
        self.state.lock().pending_bytes()
    }

    /// Waits until a change has woken the driver.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Waits until half of the queue of an account is free. One without a queue has room for all.
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
