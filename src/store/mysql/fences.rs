//! The statements on `kubesvc_caching`.

use sqlx::mysql::MySqlConnection;

use super::errors::classify;
use crate::store::fences::{fences, keep};
use crate::store::server::bounded;

fences! { MySqlConnection, "?" "?" "?" "?" "?" "?" "?" "?", bounded, classify }
keep! { MySqlConnection, bounded, classify }
