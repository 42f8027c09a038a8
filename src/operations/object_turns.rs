//! One operation at a time for each object, in the order of their arrival.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

use kubesvc_core::operations::ObjectKey;

/// uid of the account, and the object.
type TurnKey = (String, ObjectKey);

/// The objects that are being changed.
#[derive(Debug, Default)]
pub(super) struct ObjectTurns {
    turns: Mutex<HashMap<TurnKey, Weak<AsyncMutex<()>>>>,
}

/// The right to change an object, until it is dropped.
#[derive(Debug)]
pub(super) struct ObjectTurn {
    turns: Arc<ObjectTurns>,
    key: TurnKey,
    guard: Option<OwnedMutexGuard<()>>,
}

impl ObjectTurns {
    /// Waits for the turn.
    pub(super) async fn take(self: &Arc<Self>, account_uid: &str, object: ObjectKey) -> ObjectTurn {
        let key = (account_uid.to_owned(), object);
        let turn = {
            let mut turns = self.turns.lock();
            let turn = turns.get(&key).and_then(Weak::upgrade).unwrap_or_default();
            turns.insert(key.clone(), Arc::downgrade(&turn));
            turn
        };
        ObjectTurn { guard: Some(turn.lock_owned().await), turns: Arc::clone(self), key }
    }
}

impl Drop for ObjectTurn {
    fn drop(&mut self) {
        self.guard = None;
        let mut turns = self.turns.turns.lock();
        if turns.get(&self.key).is_some_and(|turn| turn.strong_count() == 0) {
            turns.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    fn object(name: &str) -> ObjectKey {
        ObjectKey { group: String::new(), kind: "ConfigMap".into(), namespace: "n".into(), name: name.into() }
    }

    #[tokio::test]
    async fn an_object_is_changed_by_one_at_a_time_and_others_do_not_wait() {
        let turns = Arc::<ObjectTurns>::default();
        let first = turns.take("u", object("a")).await;
        assert!(turns.take("u", object("b")).now_or_never().is_some());
        assert!(turns.take("other", object("a")).now_or_never().is_some());
        let mut second = Box::pin(turns.take("u", object("a")));
        assert!(second.as_mut().now_or_never().is_none());
        drop(first);
        drop(second.await);
        assert!(turns.turns.lock().is_empty());
    }
}
