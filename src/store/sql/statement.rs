//! A statement: its text and the values of its parameters.

use sqlx::Database;
use sqlx::error::BoxDynError;

use super::driver::{Driver, Value};
use crate::store::dialect::Dialect;

/// The arguments of a statement in this dialect.
pub(in crate::store) type ArgumentsOf<D> = <<D as Dialect>::Database as Database>::Arguments;

/// A SQL statement. Each parameter is a question mark in its text, whatever the syntax of the database.
pub(in crate::store) struct Statement<D: Dialect> {
    sql: String,
    arguments: ArgumentsOf<D>,
    parameters: usize,
    fault: Option<BoxDynError>,
}

impl<D: Dialect> Statement<D> {
    /// A statement that begins with this text.
    pub(in crate::store) fn new(text: &str) -> Self {
        Self { sql: String::new(), arguments: ArgumentsOf::<D>::default(), parameters: 0, fault: None }
            .text(text)
    }

    /// Appends text.
    pub(in crate::store) fn text(mut self, text: &str) -> Self {
        if !D::NUMBERED_PARAMETERS {
            self.sql.push_str(text);
            return self;
        }
        for (at, part) in text.split('?').enumerate() {
            if at > 0 {
                self.parameters += 1;
                self.sql.push('$');
                self.sql.push_str(&self.parameters.to_string());
            }
            self.sql.push_str(part);
        }
        self
    }

    /// Binds a value to the next parameter.
    pub(in crate::store) fn bind<'v>(self, value: impl Into<Value<'v>>) -> Self {
        let value = value.into();
        self.add(|arguments| D::Database::add(arguments, value))
    }

    /// Binds values to the next parameters.
    pub(in crate::store) fn bind_all<'v>(self, values: impl IntoIterator<Item = Value<'v>>) -> Self {
        values.into_iter().fold(self, Self::bind)
    }

    /// Binds a value of a type that only this database has to the next parameter.
    pub(in crate::store) fn add(
        mut self,
        add: impl FnOnce(&mut ArgumentsOf<D>) -> Result<(), BoxDynError>,
    ) -> Self {
        if self.fault.is_none() {
            self.fault = add(&mut self.arguments).err();
        }
        self
    }

    /// Appends a condition: the preceding expression equals one of these keys.
    pub(in crate::store) fn one_of<K: AsRef<str>>(self, keys: &[K]) -> Self {
        let keys: Vec<&str> = keys.iter().map(AsRef::as_ref).collect();
        D::one_of(self, &keys)
    }

    /// The text so far.
    #[cfg(test)]
    pub(super) fn sql(&self) -> &str {
        &self.sql
    }

    /// The text and the arguments to send.
    pub(super) fn into_parts(self) -> Result<(String, ArgumentsOf<D>), sqlx::Error> {
        match self.fault {
            Some(fault) => Err(sqlx::Error::Encode(fault)),
            None => Ok((self.sql, self.arguments)),
        }
    }
}

/// `count` question marks, separated by commas.
pub(in crate::store) fn marks(count: usize) -> String {
    vec!["?"; count].join(",")
}

/// `rows` tuples in parentheses, of `columns` question marks each.
pub(in crate::store) fn tuples(rows: usize, columns: usize) -> String {
    vec![format!("({})", marks(columns)); rows].join(",")
}

#[cfg(test)]
mod tests {
    use super::Statement;
    use crate::store::mysql::MySql;
    use crate::store::postgres::Postgres;

    #[test]
    fn parameters_are_spelled_as_the_database_has_them() {
        fn lock<D: super::Dialect>() -> String {
            Statement::<D>::new("SELECT name FROM t WHERE epoch = ? AND name ")
                .bind(1_i64)
                .one_of(&["a", "b"])
                .text(" AND uid = ?")
                .bind("u")
                .sql()
                .to_owned()
        }
        assert_eq!(lock::<MySql>(), "SELECT name FROM t WHERE epoch = ? AND name IN (?,?) AND uid = ?");
        assert_eq!(lock::<Postgres>(), "SELECT name FROM t WHERE epoch = $1 AND name = ANY($2) AND uid = $3");
    }
}
