//! What users rely on, from their point of view: each scenario runs on every database, with the real
//! programs.
//!
//! | file | users |
//! |---|---|
//! | `accounts.rs` | people who apply, change and delete accounts, and scripts that call REST |
//! | `credentials.rs` | people who issue, rotate and revoke credentials |
//! | `own_secrets.rs` | people who back up and restore accounts with kubeconfigs given through REST |
//! | `zones.rs` | platform teams whose agents come, go and move |
//! | `static_accounts.rs` | owners of an agent's own file |
//! | `tables.rs` | people who read the tables or run the database |

mod accounts;
mod credentials;
mod own_secrets;
mod static_accounts;
mod tables;
mod zones;

/// Generates a test for each scenario on each database.
macro_rules! on_each_database {
    ($($story:ident),+ $(,)?) => {
        on_each_database! { @on sqlite, Sqlite, $($story),+ }
        on_each_database! { @on mariadb, MariaDb, $($story),+ }
        on_each_database! { @on postgres, Postgres, $($story),+ }
    };
    (@on $name:ident, $database:ident, $($story:ident),+) => {
        mod $name {
            use crate::world::Database;

            $(#[tokio::test(flavor = "multi_thread")]
            async fn $story() {
                super::$story(Database::$database).await;
            })+
        }
    };
}
use on_each_database;
