//! Stories that run on several databases: which of them `make test` runs, and which are left to `make test-all`.
//!
//! | macro | `make test` | `make test-all` |
//! |---|---|---|
//! | `on_each_database!` | SQLite, MariaDB and PostgreSQL | the same |
//! | `on_one_database!` | one of the three, chosen by the story's name | all three |
//! | `on_one_server!` | MariaDB or PostgreSQL, chosen by the story's name | both |
//! | `only_in_test_all!` | none: a cheaper test holds the guarantee | all three |

use crate::world::Database;

/// The database on which `make test` runs a story: stories spread over the databases, and each one stays where it is.
pub(crate) fn database_for(story: &str, databases: &[Database]) -> Database {
    let sum: usize = story.bytes().map(usize::from).sum();
    databases[sum % databases.len()]
}

/// Generates a test for each story on each of the databases, with the same attributes.
macro_rules! story_tests {
    ([$($name:ident $database:ident),+] $stories:tt $attributes:tt) => {
        $(crate::stories::story_tests! { @on $name $database $stories $attributes })+
    };
    (@on $name:ident $database:ident [$($story:ident),+] $attributes:tt) => {
        mod $name {
            $(crate::stories::story_tests! { @test $database $story $attributes })+
        }
    };
    (@test $database:ident $story:ident [$($attribute:meta)?]) => {
        #[tokio::test(flavor = "multi_thread")]
        $(#[$attribute])?
        async fn $story() {
            super::super::$story(crate::world::Database::$database).await;
        }
    };
}

/// Generates a test for each story on each database.
macro_rules! on_each_database {
    ($($story:ident),+ $(,)?) => {
        mod each_database {
            crate::stories::story_tests! { [sqlite Sqlite, mariadb MariaDb, postgresql Postgres] [$($story),+] [] }
        }
    };
}

/// Generates a test for each story on one database, and those on each database that only `make test-all` runs.
macro_rules! on_one_database {
    ($($story:ident),+ $(,)?) => {
        crate::stories::on_one_of! { [sqlite Sqlite, mariadb MariaDb, postgresql Postgres] $($story),+ }
    };
}

/// Like `on_one_database!`, for stories of several replicas, which SQLite excludes.
macro_rules! on_one_server {
    ($($story:ident),+ $(,)?) => {
        crate::stories::on_one_of! { [mariadb MariaDb, postgresql Postgres] $($story),+ }
    };
}

macro_rules! on_one_of {
    ([$($name:ident $database:ident),+] $($story:ident),+) => {
        crate::stories::on_one_of! { @chosen [$(crate::world::Database::$database),+] $($story),+ }
        mod every_database {
            crate::stories::story_tests! { [$($name $database),+] [$($story),+] [ignore = "make test-all"] }
        }
    };
    (@chosen $databases:tt $($story:ident),+) => {
        mod one_database {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $story() {
                super::$story(crate::stories::database_for(stringify!($story), &$databases)).await;
            })+
        }
    };
}

/// Generates the tests of each story on each database, which only `make test-all` runs.
macro_rules! only_in_test_all {
    ($($story:ident),+ $(,)?) => {
        mod test_all {
            crate::stories::story_tests! { [sqlite Sqlite, mariadb MariaDb, postgresql Postgres] [$($story),+] [ignore = "make test-all"] }
        }
    };
}

pub(crate) use {on_each_database, on_one_database, on_one_of, on_one_server, only_in_test_all, story_tests};
