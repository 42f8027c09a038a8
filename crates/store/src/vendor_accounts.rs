//! The Scale Agent's own table `kubesvc_accounts`, in a database of the vendor's. It is only read, by the columns that it
//! has: the vendor does not document them all.

use super::accounts::foreign_rows::{self, Columns};
use super::clouddriver_accounts::{ClouddriverDatabase, ClouddriverTableError};
use super::error::ServerErrors;
use super::read_only::{ReadOnlySession, TableReading, read_only};
use super::sql::statement::Statement;
use kubesvc_core::account_row::ForeignRow;

const TABLE: &str = "kubesvc_accounts";
/// A column that only kubesvc's own table has.
const OUR_COLUMN: &str = "uid";
/// Maximum number of rows that are read.
const MAX_ROWS: usize = 100_000;
/// Maximum size of all definitions that are read, in bytes.
const MAX_BYTES: usize = 256 << 20;

/// The rows of the table.
#[derive(Debug)]
pub struct VendorAccounts {
    /// The rows, sorted by name.
    pub rows: Vec<ForeignRow>,
    /// Number of further rows, which were not read for their number or size.
    pub unread: usize,
}

/// Why the table cannot be read. Contains no password and no row.
#[derive(Clone, Debug, thiserror::Error)]
pub enum VendorTableError {
    /// It cannot be read at present.
    #[error(transparent)]
    Unreadable(#[from] ClouddriverTableError),
    /// There is none, or the user sees none.
    #[error(
        "{database} has no table kubesvc_accounts that the user may read: check the database in the URL, and GRANT \
         SELECT on the table"
    )]
    NoTable {
        /// The database.
        database: String,
    },
    /// It is the table of a kubesvc.
    #[error(
        "kubesvc_accounts of {database} is kubesvc's own table: name the database of the vendor's plugin"
    )]
    Ours {
        /// The database.
        database: String,
    },
    /// It is another version's.
    #[error(
        "kubesvc_accounts of {database} lacks {}, without which its rows are no accounts; its columns are {}",
        lacking.join(", "), columns.join(", ")
    )]
    Columns {
        /// The database.
        database: String,
        /// The needed columns that it lacks.
        lacking: Vec<&'static str>,
        /// All of its columns.
        columns: Vec<String>,
    },
}

/// Reads the vendor's table.
///
/// # Errors
/// See [`VendorTableError`].
pub async fn read_vendor_accounts(
    database: &ClouddriverDatabase,
) -> Result<VendorAccounts, VendorTableError> {
    read_only(database, &VendorReading).await?
}

struct VendorReading;

impl TableReading for VendorReading {
    const TABLE: &'static str = TABLE;
    type Found = Result<VendorAccounts, VendorTableError>;

    async fn read<D: ServerErrors>(
        &self,
        session: &mut ReadOnlySession<'_, D>,
    ) -> Result<Self::Found, ClouddriverTableError> {
        let (mut all, database) = (session.columns_of(TABLE).await?, session.database());
        all.sort_unstable();
        if all.is_empty() {
            return Ok(Err(VendorTableError::NoTable { database }));
        }
        if all.iter().any(|column| column == OUR_COLUMN) {
            return Ok(Err(VendorTableError::Ours { database }));
        }
        let columns = Columns::of(&all);
        let lacking = columns.as_ref().map_or_else(|| vec!["name"], Columns::lacking);
        let Some(columns) = columns.filter(|_| lacking.is_empty()) else {
            return Ok(Err(VendorTableError::Columns { database, lacking, columns: all }));
        };
        let statement = format!("{} ORDER BY name", columns.select::<D>(TABLE));
        let mut found = VendorAccounts { rows: Vec::new(), unread: 0 };
        let mut bytes = 0;
        session
            .each(Statement::new(&statement), |row| {
                let Some(row) = foreign_rows::read::<D>(row) else { return found.unread += 1 };
                bytes += row.definition.as_ref().map_or(0, String::len);
                match bytes <= MAX_BYTES && found.rows.len() < MAX_ROWS {
                    true => found.rows.push(row),
                    false => found.unread += 1,
                }
            })
            .await?;
        Ok(Ok(found))
    }
}
