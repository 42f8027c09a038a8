//! What calls of Clouddriver's account management (`/credentials`) mean: which call a path is, which accounts a body
//! writes, and what becomes of the account here.
//!
//! [`follow_up`] decides from what Clouddriver has, and never from how that is known: the answer of a write that succeeded
//! and the credentials sources, read after a crash, lead to the same end.

use std::collections::BTreeMap;

use serde::Deserialize as _;
use serde_json::{Map, Value};

mod paths;
#[cfg(test)]
mod tests;

pub use paths::CredentialsCall;

/// Maximum number of accounts of a body that are followed.
pub const MAX_FOLLOWED: usize = 1000;

/// How an account is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteVerb {
    /// The account is added.
    Post,
    /// The account is added or replaced.
    Put,
    /// The account is removed.
    Delete,
}

impl WriteVerb {
    /// The HTTP method.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Post => "POST",
            Self::Put => "PUT",
            Self::Delete => "DELETE",
        }
    }

    /// Parses [`WriteVerb::as_str`].
    pub fn parse(text: &str) -> Option<Self> {
        [Self::Post, Self::Put, Self::Delete].into_iter().find(|verb| verb.as_str() == text)
    }
}

/// The accounts that a call writes. Has no `Debug`, because a definition may hold a kubeconfig.
#[derive(Clone)]
pub struct AccountsWrite {
    /// How.
    pub verb: WriteVerb,
    /// Their definitions by name; empty for a deletion.
    pub accounts: BTreeMap<String, Map<String, Value>>,
}

impl AccountsWrite {
    /// The accounts of type `kubernetes` that a call with this body writes; `None`: the call writes no account.
    /// A body that Clouddriver would not take as accounts names none.
    pub fn of(call: &CredentialsCall, body: &[u8]) -> Option<Self> {
        let (verb, only) = match call {
            CredentialsCall::Create => (WriteVerb::Post, None),
            CredentialsCall::Upsert => (WriteVerb::Put, None),
            CredentialsCall::Update(name) => (WriteVerb::Put, Some(name)),
            CredentialsCall::Delete(name) => {
                let accounts = [(name.clone(), Map::new())].into();
                return Some(Self { verb: WriteVerb::Delete, accounts });
            }
            CredentialsCall::Read
            | CredentialsCall::Secrets
            | CredentialsCall::Other
            | CredentialsCall::Elsewhere => return None,
        };
        // Jackson, too, reads one value and leaves what follows it.
        let first = Value::deserialize(&mut serde_json::Deserializer::from_slice(body));
        let given = match first {
            Ok(Value::Array(items)) if items.len() <= MAX_FOLLOWED => items,
            Ok(object @ Value::Object(_)) => vec![object],
            _ => Vec::new(),
        };
        let named = given.into_iter().filter_map(|item| {
            let Value::Object(fields) = item else { return None };
            let is_kubernetes = fields.get("type").and_then(Value::as_str) == Some("kubernetes");
            let name = fields.get("name")?.as_str()?.to_owned();
            (is_kubernetes && only.is_none_or(|only| *only == name)).then_some((name, fields))
        });
        Some(Self { verb, accounts: named.collect() })
    }
}

/// Whether Clouddriver has an account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccountPresence {
    /// It has.
    Present,
    /// It has not.
    Absent,
}

/// The account of a name here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KnownAccount {
    /// It comes from an agent's own file.
    pub is_static: bool,
    /// The GitOps tool that manages it.
    pub owner: Option<String>,
    /// It is being deleted.
    pub is_leaving: bool,
    /// It was made for this very write.
    pub is_of_write: bool,
    /// Clouddriver was seen to have an account of the name before the write.
    pub was_in_clouddriver: bool,
}

/// What becomes of the account of a name here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FollowUp {
    /// It is created, ACTIVE.
    Create,
    /// Its spec is changed.
    Update,
    /// It is deleted.
    Delete,
    /// It is left, for this reason.
    Leave(String),
    /// It is looked at again, for this reason.
    Wait(&'static str),
}

/// Decides what becomes of the account of a name, from what Clouddriver has after a write of it.
pub fn follow_up(verb: WriteVerb, presence: AccountPresence, known: Option<&KnownAccount>) -> FollowUp {
    let leave = |why: &str| FollowUp::Leave(why.to_owned());
    let changed = |known: &KnownAccount, change: FollowUp| match &known.owner {
        _ if known.is_static => leave("it comes from an agent's own configuration"),
        Some(owner) => FollowUp::Leave(format!("it is managed by {owner}")),
        None => change,
    };
    match (verb, presence, known) {
        (WriteVerb::Post | WriteVerb::Put, AccountPresence::Present, Some(known)) if known.is_leaving => {
            FollowUp::Wait("an account of that name is still being deleted")
        }
        (WriteVerb::Post, AccountPresence::Present, None) => FollowUp::Create,
        (WriteVerb::Post, AccountPresence::Present, Some(_)) => leave("kubesvc has an account of that name"),
        (WriteVerb::Put, AccountPresence::Present, Some(known)) => changed(known, FollowUp::Update),
        (WriteVerb::Delete, AccountPresence::Present, _) => leave("Clouddriver still has the account"),
        (WriteVerb::Delete, AccountPresence::Absent, Some(known)) if known.was_in_clouddriver => {
            changed(known, FollowUp::Delete)
        }
        (WriteVerb::Delete, AccountPresence::Absent, Some(_)) => {
            leave("Clouddriver was not seen to have the account before")
        }
        (WriteVerb::Post, AccountPresence::Absent, Some(known)) if known.is_of_write => {
            changed(known, FollowUp::Delete)
        }
        (WriteVerb::Post | WriteVerb::Put, AccountPresence::Absent, _) => {
            leave("Clouddriver has no such account")
        }
        (WriteVerb::Put | WriteVerb::Delete, _, None) => leave("kubesvc has no account of that name"),
    }
}

/// Whether what Clouddriver has shows that a write was carried out. An account that is replaced looks the same before, and
/// so does one that is deleted, unless it was `found` in Clouddriver before.
pub fn is_carried_out(verb: WriteVerb, presence: AccountPresence, found: bool) -> bool {
    match (verb, presence) {
        (WriteVerb::Post, AccountPresence::Present) => true,
        (WriteVerb::Delete, AccountPresence::Absent) => found,
        _ => false,
    }
}
