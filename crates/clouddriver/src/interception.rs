//! What calls of Clouddriver's account management (`/credentials`) mean: which call a path is, which accounts a body
//! writes, and what becomes of the account here.
//!
//! [`follow_up`] decides from what Clouddriver has, and never from how that is known: the answer of a write that succeeded
//! and the credentials sources, read after a crash, lead to the same end.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

mod paths;
#[cfg(test)]
mod tests;

pub use paths::CredentialsCall;

/// Maximum number of accounts of a body.
pub const MAX_ACCOUNTS: usize = 1000;

/// Why a body is not passed on: which accounts it writes would not be known here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnfitAccounts {
    /// It has this many.
    #[error("the body has {0} accounts, and may have {MAX_ACCOUNTS} at most: send several requests")]
    TooMany(usize),
    /// A name is neither text nor an integer.
    #[error("[{0}] the name of an account must be a string")]
    Name(usize),
}

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
    /// A body that Clouddriver would not take as accounts names none. The body matters only if the call
    /// [has accounts](CredentialsCall::has_accounts).
    ///
    /// # Errors
    /// The body must not be passed on.
    pub fn of(call: &CredentialsCall, body: Value) -> Result<Option<Self>, UnfitAccounts> {
        let (verb, only) = match call {
            CredentialsCall::Create => (WriteVerb::Post, None),
            CredentialsCall::Upsert => (WriteVerb::Put, None),
            CredentialsCall::Update(name) => (WriteVerb::Put, Some(name)),
            CredentialsCall::Delete(name) => {
                let accounts = [(name.clone(), Map::new())].into();
                return Ok(Some(Self { verb: WriteVerb::Delete, accounts }));
            }
            CredentialsCall::Read
            | CredentialsCall::Secrets
            | CredentialsCall::Other
            | CredentialsCall::Elsewhere => return Ok(None),
        };
        let given = match body {
            Value::Array(items) if items.len() > MAX_ACCOUNTS => {
                return Err(UnfitAccounts::TooMany(items.len()));
            }
            Value::Array(items) => items,
            object @ Value::Object(_) => vec![object],
            _ => Vec::new(),
        };
        let mut accounts = BTreeMap::new();
        for (at, item) in given.into_iter().enumerate() {
            let Value::Object(mut fields) = item else { continue };
            if fields.get("type").and_then(Value::as_str) != Some("kubernetes") {
                continue;
            }
            let name = match fields.get("name") {
                None | Some(Value::Null) => continue,
                Some(Value::String(name)) => name.clone(),
                // Jackson takes the digits as they were sent.
                Some(Value::Number(number)) if !number.is_f64() => number.to_string(),
                Some(_) => return Err(UnfitAccounts::Name(at)),
            };
            if only.is_none_or(|only| *only == name) {
                fields.insert("name".to_owned(), name.clone().into());
                accounts.insert(name, fields);
            }
        }
        Ok(Some(Self { verb, accounts }))
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
