//! `/accounts`: the accounts of the agent.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::agent::reactions::{AccountTable, Counts, ListedState};
use crate::agent::static_accounts::StaticAccountFile;
use crate::wire::common::Failure;

/// Maximum number of accounts in one response.
const MAX_ACCOUNTS_SHOWN: usize = 10_000;

/// The accounts of an agent: the first 10,000 by name.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct AccountsReport {
    /// Total number of accounts.
    total: usize,
    accounts: Vec<AccountReport>,
}

#[derive(Debug, Serialize)]
struct AccountReport {
    name: String,
    /// `HELD`, `STARTING`, `FAILED`, or `REFUSED` for an account of the agent's own file that the hub does
    /// not accept.
    state: &'static str,
    zone: String,
    /// `static` for an account of the agent's own file, otherwise `hub`.
    source: &'static str,
    /// Time since which the account is held.
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    class: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

impl AccountsReport {
    pub(super) fn of(zone: &str, table: &AccountTable, own: &StaticAccountFile) -> Self {
        let listing = table.listing(MAX_ACCOUNTS_SHOWN, &own.current());
        let mut refused = own.refused();
        let mut accounts: BTreeMap<String, AccountReport> = BTreeMap::new();
        for one in listing {
            refused.remove(&one.name);
            let state = match one.state {
                ListedState::Held => "HELD",
                ListedState::Starting => "STARTING",
                ListedState::Failed => "FAILED",
            };
            let mut report = report(zone, one.name.clone(), state, one.is_own, one.failure);
            report.since = one.since.map(|since| since.to_string());
            accounts.insert(one.name, report);
        }
        let Counts { held, starting, failed } = table.counts();
        let total = held + starting + failed + refused.len();
        for (name, failure) in refused {
            accounts.insert(name.clone(), report(zone, name, "REFUSED", true, Some(failure)));
        }
        Self { total, accounts: accounts.into_values().take(MAX_ACCOUNTS_SHOWN).collect() }
    }
}

fn report(
    zone: &str,
    name: String,
    state: &'static str,
    is_own: bool,
    failure: Option<Failure>,
) -> AccountReport {
    AccountReport {
        name,
        state,
        zone: zone.to_owned(),
        source: if is_own { "static" } else { "hub" },
        since: None,
        class: failure.as_ref().map(|failure| failure.class().as_str_name()),
        reason: failure.map(|failure| failure.message),
    }
}
