//! What users rely on, from their point of view: with the real programs. Each story runs on
//! one database, those of tables on each (`stories.rs`).
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
