//! The statements on `kubesvc_caching`.

use sqlx::sqlite::SqliteConnection;

use super::errors::classify;
use super::terms::waited_for;
use crate::store::fences::{fences, keep};

fences! { SqliteConnection, "?" "?" "?" "?" "?" "?" "?" "?", waited_for, classify }
keep! { SqliteConnection, waited_for, classify }
