//! The sqlx drivers behind one trait, so that a statement is written once for all databases.

use std::future::Future;

use futures::stream::BoxStream;
use sqlx::error::BoxDynError;
use sqlx::{
    Arguments as _, AssertSqlSafe, ColumnIndex, Database, Decode, Encode, Executor, IntoArguments, Row as _,
    Type,
};

use kubesvc_core::{AgentId, CachingEpoch, ReplicaId};

/// A value for a parameter.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Value<'v> {
    Text(Option<&'v str>),
    Boolean(Option<bool>),
    Int(Option<i32>),
    Bigint(Option<i64>),
    Blob(Option<&'v [u8]>),
}

/// Implements `From` for [`Value`] for a type and for an option of it.
macro_rules! values {
    ($($variant:ident: $plain:ty),+) => {
        $(impl<'v> From<$plain> for Value<'v> {
            fn from(value: $plain) -> Self {
                Self::$variant(Some(value))
            }
        }

        impl<'v> From<Option<$plain>> for Value<'v> {
            fn from(value: Option<$plain>) -> Self {
                Self::$variant(value)
            }
        })+
    };
}
values! { Text: &'v str, Boolean: bool, Int: i32, Bigint: i64, Blob: &'v [u8] }

impl<'v> From<&'v String> for Value<'v> {
    fn from(value: &'v String) -> Self {
        Self::Text(Some(value))
    }
}

impl<'v> From<&'v Option<String>> for Value<'v> {
    fn from(value: &'v Option<String>) -> Self {
        Self::Text(value.as_deref())
    }
}

/// A type that a column can be read as.
pub(crate) trait ColumnValue: Sized {
    /// The value in this column; `None` for NULL.
    fn read<DB: Driver>(row: &DB::Row, column: usize) -> Result<Option<Self>, sqlx::Error>;

    /// The value in this column. NULL is an error.
    fn required<DB: Driver>(row: &DB::Row, column: usize) -> Result<Self, sqlx::Error> {
        Self::read::<DB>(row, column)?.ok_or_else(|| sqlx::Error::ColumnDecode {
            index: column.to_string(),
            source: "it is NULL".into(),
        })
    }
}

/// Implements [`ColumnValue`] for types made from what a driver reads.
macro_rules! column_values {
    ($($read:ident: $($of:ty),+;)+) => {
        $($(impl ColumnValue for $of {
            fn read<DB: Driver>(row: &DB::Row, column: usize) -> Result<Option<Self>, sqlx::Error> {
                Ok(DB::$read(row, column)?.map(Self::from))
            }
        })+)+
    };
}
column_values! { text: String, AgentId, ReplicaId; boolean: bool; int: i32; bigint: i64; }

impl ColumnValue for CachingEpoch {
    fn read<DB: Driver>(row: &DB::Row, column: usize) -> Result<Option<Self>, sqlx::Error> {
        Ok(DB::bigint(row, column)?.map(Self))
    }
}

/// A sqlx database that accepts and returns every [`Value`]. One blanket implementation covers all of them and keeps
/// the bounds that sqlx needs in one place.
pub(crate) trait Driver: Database {
    /// Adds a value to a statement's arguments.
    fn add(arguments: &mut Self::Arguments, value: Value<'_>) -> Result<(), BoxDynError>;

    fn execute(
        connection: &mut Self::Connection,
        sql: String,
        arguments: Self::Arguments,
    ) -> impl Future<Output = Result<Self::QueryResult, sqlx::Error>> + Send;

    /// Runs a statement that returns rows.
    fn fetch<'c>(
        connection: &'c mut Self::Connection,
        sql: String,
        arguments: Self::Arguments,
    ) -> BoxStream<'c, Result<Self::Row, sqlx::Error>>;

    fn text(row: &Self::Row, column: usize) -> Result<Option<String>, sqlx::Error>;
    fn boolean(row: &Self::Row, column: usize) -> Result<Option<bool>, sqlx::Error>;
    fn int(row: &Self::Row, column: usize) -> Result<Option<i32>, sqlx::Error>;
    fn bigint(row: &Self::Row, column: usize) -> Result<Option<i64>, sqlx::Error>;
}

impl<DB> Driver for DB
where
    DB: Database,
    DB::Arguments: IntoArguments<DB>,
    for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
    for<'v> Option<&'v str>: Encode<'v, DB> + Type<DB>,
    for<'v> Option<bool>: Encode<'v, DB> + Type<DB>,
    for<'v> Option<i32>: Encode<'v, DB> + Type<DB>,
    for<'v> Option<i64>: Encode<'v, DB> + Type<DB>,
    for<'v> Option<&'v [u8]>: Encode<'v, DB> + Type<DB>,
    for<'r> String: Decode<'r, DB> + Type<DB>,
    for<'r> bool: Decode<'r, DB> + Type<DB>,
    for<'r> i32: Decode<'r, DB> + Type<DB>,
    for<'r> i64: Decode<'r, DB> + Type<DB>,
    usize: ColumnIndex<DB::Row>,
{
    fn add(arguments: &mut Self::Arguments, value: Value<'_>) -> Result<(), BoxDynError> {
        match value {
            Value::Text(value) => arguments.add(value),
            Value::Boolean(value) => arguments.add(value),
            Value::Int(value) => arguments.add(value),
            Value::Bigint(value) => arguments.add(value),
            Value::Blob(value) => arguments.add(value),
        }
    }

    fn execute(
        connection: &mut Self::Connection,
        sql: String,
        arguments: Self::Arguments,
    ) -> impl Future<Output = Result<Self::QueryResult, sqlx::Error>> + Send {
        sqlx::query_with(AssertSqlSafe(sql), arguments).execute(connection)
    }

    fn fetch<'c>(
        connection: &'c mut Self::Connection,
        sql: String,
        arguments: Self::Arguments,
    ) -> BoxStream<'c, Result<Self::Row, sqlx::Error>> {
        sqlx::query_with(AssertSqlSafe(sql), arguments).fetch(connection)
    }

    fn text(row: &Self::Row, column: usize) -> Result<Option<String>, sqlx::Error> {
        row.try_get(column)
    }

    fn boolean(row: &Self::Row, column: usize) -> Result<Option<bool>, sqlx::Error> {
        row.try_get(column)
    }

    fn int(row: &Self::Row, column: usize) -> Result<Option<i32>, sqlx::Error> {
        row.try_get(column)
    }

    fn bigint(row: &Self::Row, column: usize) -> Result<Option<i64>, sqlx::Error> {
        row.try_get(column)
    }
}
