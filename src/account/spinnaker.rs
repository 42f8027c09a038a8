//! Clouddriver's account fields to a spec and back.

use serde_json::{Value, json};

use super::KubesvcAccount;

/// The account as Clouddriver's account management defines it. It holds no credential.
pub fn definition(account: &KubesvcAccount) -> Value {
    json!({ "type": "kubernetes", "name": account.account_name() })
}

/// What the vendor's `props` column holds.
pub fn props(account: &KubesvcAccount) -> Value {
    json!({ "permissions": account.spec.permissions })
}
