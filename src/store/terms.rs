//! The leader's term in `kubesvc_locks`: who begins one ends that of whoever led before, and every transaction of a
//! leader starts by seeing that its term still is the newest one. It holds the row until it is committed, so that no
//! other term can begin meanwhile.

/// A leader's term. A later one is greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Term(pub(super) i64);

impl Term {
    /// As it stands in `kubesvc_locks`.
    pub fn number(self) -> i64 {
        self.0
    }
}

/// The longest name of an owner, in characters.
pub(super) const MAX_OWNER_CHARS: usize = 255;

/// What stands in `kubesvc_locks` as the owner: the replica, cut to what fits.
pub(super) fn owner(replica_id: &str) -> String {
    replica_id.chars().filter(|one| *one != '\0').take(MAX_OWNER_CHARS).collect()
}

/// Makes `begin` and `hold` for connections of one database. `$first` and `$second` are its spellings of parameters,
/// `$insert` makes the row if there is none, `$run` waits for a statement.
macro_rules! terms {
    ($connection:ty, $first:literal, $insert:literal, $run:path, $classify:path) => {
        /// Begins a new term; in a transaction of the caller's.
        pub(super) async fn begin(
            connection: &mut $connection,
            replica_id: &str,
        ) -> Result<$crate::store::Term, $crate::store::StoreError> {
            const BEGIN: &str = concat!(
                "UPDATE kubesvc_locks SET token = token + 1, owner = ",
                $first,
                " WHERE name = 'leader'"
            );
            let owner = $crate::store::terms::owner(replica_id);
            let begun = $run(sqlx::query(BEGIN).bind(&owner).execute(&mut *connection), $classify).await?;
            if begun.rows_affected() == 0 {
                $run(sqlx::query($insert).execute(&mut *connection), $classify).await?;
                $run(sqlx::query(BEGIN).bind(&owner).execute(&mut *connection), $classify).await?;
            }
            let token = sqlx::query_scalar("SELECT token FROM kubesvc_locks WHERE name = 'leader'");
            let token: i64 = $run(token.fetch_one(&mut *connection), $classify).await?;
            Ok($crate::store::terms::Term(token))
        }

        /// Holds the term until the end of the caller's transaction; without one, anyone may write.
        pub(super) async fn hold(
            connection: &mut $connection,
            term: Option<$crate::store::Term>,
        ) -> Result<(), $crate::store::StoreError> {
            const HOLD: &str =
                concat!("UPDATE kubesvc_locks SET token = token WHERE name = 'leader' AND token = ", $first);
            let Some(term) = term else { return Ok(()) };
            let held =
                $run(sqlx::query(HOLD).bind(term.number()).execute(&mut *connection), $classify).await?;
            if held.rows_affected() == 0 {
                return Err($crate::store::StoreError::Deposed);
            }
            Ok(())
        }
    };
}
pub(super) use terms;
