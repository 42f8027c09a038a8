//! Tables declared together with their values, and values read from the columns of a row.

use super::driver::{ColumnValue, Driver, Value};
use super::statement::{ColumnType, SqlTable};
use crate::column_limits::unfit;

/// Declares a table, and a function that returns the values of a row in the order of its columns.
macro_rules! table {
    (
        $(#[$doc:meta])* $table_vis:vis const $table:ident = $name:literal, key $key:expr, ours $ours:expr;
        $values_vis:vis fn $values:ident<$life:lifetime>($($row:ident: $of:ty),+) {
            $($column:ident: $type:ident $(($most:literal))? = $value:expr),+ $(,)?
        }
    ) => {
        $(#[$doc])*
        $table_vis const $table: $crate::sql::statement::SqlTable = $crate::sql::statement::SqlTable {
            name: $name,
            key: $key,
            columns: &[$((stringify!($column), $crate::sql::statement::ColumnType::$type $(($most))?)),+],
            ours: $ours,
        };

        /// The values of a row, in the order of the table's columns.
        $values_vis fn $values<$life>($($row: $of),+) -> Vec<$crate::sql::driver::Value<$life>> {
            vec![$($crate::sql::driver::Value::from($value)),+]
        }
    };
}
pub(crate) use table;

impl SqlTable {
    /// Why the texts among a row's values fit no database; `None` if they fit.
    pub(crate) fn unfit(&self, values: &[Value<'_>]) -> Option<String> {
        self.columns.iter().zip(values).find_map(|((column, of), value)| {
            let Value::Text(text) = value else { return None };
            let most = if let ColumnType::Varchar(most) = of { *most } else { usize::MAX };
            unfit(column, (*text)?, most)
        })
    }
}

/// The approximate size of a row in a statement, in bytes.
pub(crate) fn weight(values: &[Value<'_>]) -> usize {
    const NUMBERS_BYTES: usize = 256;
    let bytes = |value: &Value<'_>| match value {
        Value::Text(text) => text.map_or(0, str::len),
        Value::Blob(bytes) => bytes.map_or(0, <[u8]>::len),
        Value::Boolean(_) | Value::Int(_) | Value::Bigint(_) => 0,
    };
    NUMBERS_BYTES + values.iter().map(bytes).sum::<usize>()
}

/// A type that is read from one column. Only an `Option` may be NULL.
pub(crate) trait FromColumn: Sized + Send {
    /// The value in this column.
    fn from_column<DB: Driver>(row: &DB::Row, column: usize) -> Result<Self, sqlx::Error>;
}

impl<T: ColumnValue + Send> FromColumn for T {
    fn from_column<DB: Driver>(row: &DB::Row, column: usize) -> Result<Self, sqlx::Error> {
        T::required::<DB>(row, column)
    }
}

impl<T: ColumnValue + Send> FromColumn for Option<T> {
    fn from_column<DB: Driver>(row: &DB::Row, column: usize) -> Result<Self, sqlx::Error> {
        T::read::<DB>(row, column)
    }
}

/// A type that is read from the first columns of a row.
pub(crate) trait FromColumns: Sized + Send {
    /// The value in these columns.
    fn from_columns<DB: Driver>(row: &DB::Row) -> Result<Self, sqlx::Error>;
}

impl<T: FromColumn> FromColumns for T {
    fn from_columns<DB: Driver>(row: &DB::Row) -> Result<Self, sqlx::Error> {
        T::from_column::<DB>(row, 0)
    }
}

impl<A: FromColumn, B: FromColumn> FromColumns for (A, B) {
    fn from_columns<DB: Driver>(row: &DB::Row) -> Result<Self, sqlx::Error> {
        Ok((A::from_column::<DB>(row, 0)?, B::from_column::<DB>(row, 1)?))
    }
}

impl<A: FromColumn, B: FromColumn, C: FromColumn> FromColumns for (A, B, C) {
    fn from_columns<DB: Driver>(row: &DB::Row) -> Result<Self, sqlx::Error> {
        Ok((A::from_column::<DB>(row, 0)?, B::from_column::<DB>(row, 1)?, C::from_column::<DB>(row, 2)?))
    }
}

/// Reads these fields of a struct from the columns of a row, in this order.
macro_rules! columns {
    ($of:ident: $first:ident $(, $field:ident)* $(,)?) => {
        impl $crate::sql::columns::FromColumns for $of {
            fn from_columns<DB: $crate::sql::driver::Driver>(row: &DB::Row) -> Result<Self, sqlx::Error> {
                use $crate::sql::columns::FromColumn;
                let mut column = 0;
                Ok(Self {
                    $first: FromColumn::from_column::<DB>(row, column)?,
                    $($field: {
                        column += 1;
                        FromColumn::from_column::<DB>(row, column)?
                    }),*
                })
            }
        }
    };
}
pub(crate) use columns;
