//! What users count on, in their words: each story is lived through on every database, with the real programs.
//!
//! | file | whose stories |
//! |---|---|
//! | `accounts.rs` | people who apply, change and delete accounts, and scripts that call REST |
//! | `credentials.rs` | whoever hands out, rotates and revokes credentials |
//! | `own_secrets.rs` | whoever backs up and restores, of kubeconfigs that were given to REST |
//! | `zones.rs` | platform teams whose agents come, go and move |
//! | `static_accounts.rs` | owners of an agent's own file |
//! | `tables.rs` | whoever reads the tables, or runs the database |

mod accounts;
mod credentials;
mod own_secrets;
mod static_accounts;
mod tables;
mod zones;

/// Makes a test of each story on each database.
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
