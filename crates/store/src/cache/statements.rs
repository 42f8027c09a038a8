//! Statements of rows of which some may be refused, and what they are made of.

use crate::StoreError;
use crate::dialect::Dialect;
use crate::sql::SqlSession;
use crate::sql::statement::Statement;

/// What happens when the database refuses a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OnRefusal {
    /// The transaction fails.
    Fail,
    /// The refused rows are found by halving the statement, each half under a savepoint, and are left out.
    LeaveOut,
}

/// Writes rows in as few statements as the database takes. Returns the rows it refuses, with the reason; none with
/// [`OnRefusal::Fail`].
pub(super) async fn write_rows<'r, D: Dialect, R: Sync>(
    session: &mut SqlSession<'_, D>,
    rows: &'r [R],
    on_refusal: OnRefusal,
    weigh: impl Fn(&R) -> usize + Send + Sync,
    statement: impl Fn(&[R]) -> Statement<D> + Send + Sync,
) -> Result<Vec<(&'r R, StoreError)>, StoreError> {
    let mut refused = Vec::new();
    let mut pieces = session.dialect.pieces(rows, weigh);
    // Taken from the end.
    pieces.reverse();
    while let Some(piece) = pieces.pop() {
        if on_refusal == OnRefusal::Fail {
            session.execute(statement(piece)).await?;
            continue;
        }
        match session.execute_or_undo(statement(piece)).await {
            Ok(_) => {}
            Err(error @ StoreError::Refused { .. }) => match piece {
                [row] => refused.push((row, error)),
                _ => {
                    let (first, second) = piece.split_at(piece.len() / 2);
                    pieces.extend([second, first]);
                }
            },
            Err(error) => return Err(error),
        }
    }
    Ok(refused)
}

/// Assignments that give these columns the values of the row that an `INSERT` could not insert.
pub(super) fn assignments<D: Dialect>(columns: &[&str]) -> String {
    let assign = |column: &&str| format!("{column}={}", D::inserted(column));
    columns.iter().map(assign).collect::<Vec<_>>().join(",")
}
