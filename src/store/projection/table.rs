//! Reading the table, and comparing it with what the objects call for.

use super::Projection;
use super::state::WriteKind;
use crate::account::row::AccountRow;
use crate::store::StoreError;

/// What a [`Projection::repair`] found and set right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Repair {
    /// Rows that were missing.
    pub inserted: usize,
    /// Rows that differed.
    pub updated: usize,
    /// Rows of ours that no object has.
    pub deleted: usize,
    /// Rows among these that the database refuses; each is named in the log.
    pub refused: usize,
}

impl Repair {
    /// Whether the rows were as they should be.
    pub fn is_nothing(&self) -> bool {
        *self == Self::default()
    }
}

impl Projection {
    /// Reads what the database holds now. On an error nothing is known any more, and [`Projection::run`] tries again.
    pub async fn load(&self) -> Result<(), StoreError> {
        let _table = self.table.lock().await;
        self.read().await.inspect_err(|error| self.fail(error))?;
        self.recover();
        Ok(())
    }

    /// Reads the table anew and makes it what the objects call for: rows that were edited, removed or added under a
    /// uid by hand. A row without a uid is not ours and stays. Rows that were refused are tried again.
    ///
    /// `expected` is called while nothing is being written, and gives the rows of **all** objects as they are then;
    /// what is said or inserted after that call wins. It needs [`Projection::run`].
    pub async fn repair(
        &self,
        expected: impl FnOnce() -> Vec<AccountRow> + Send,
    ) -> Result<Repair, StoreError> {
        let tasks = {
            let _table = self.table.lock().await;
            self.begin_leading().await.inspect_err(|error| self.fail(error))?;
            self.may_write()?;
            self.state.lock().comparing = true;
            let expected = expected();
            let read = self.read().await.inspect_err(|error| self.fail(error));
            let mut state = self.state.lock();
            state.comparing = false;
            read?;
            state.repair(expected)
        };
        self.changed();
        let mut repair = Repair::default();
        for (kind, wait) in tasks {
            match wait.await {
                Ok(Ok(())) => match kind {
                    WriteKind::Insert | WriteKind::Adopt => repair.inserted += 1,
                    WriteKind::Update => repair.updated += 1,
                    WriteKind::Delete => repair.deleted += 1,
                },
                Ok(Err(StoreError::Refused { .. })) => repair.refused += 1,
                Ok(Err(error)) => return Err(error),
                Err(_) => return Err(StoreError::unavailable("nothing writes any more")),
            }
        }
        Ok(repair)
    }

    pub(super) async fn read(&self) -> Result<(), StoreError> {
        let accounts = self.store.accounts().await?;
        for malformed in &accounts.malformed {
            tracing::warn!(%malformed, "a row was edited by hand; it is written anew if an object has it");
        }
        let foreign = self.store.foreign().await?;
        let mut state = self.state.lock();
        state.loaded(accounts);
        state.saw_foreign(foreign);
        Ok(())
    }
}
