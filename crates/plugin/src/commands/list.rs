//! `kubectl kubesvc list`.

use jiff::Timestamp;
use serde_json::Value;

use crate::api_session::{ApiSession, DEFAULT_PAGE_SIZE};
use crate::arguments::{CommandError, ScopeArguments, complain_of, names_have_a_namespace};
use crate::resources::{AccountObject, resource_name};
use kubesvc_core::lifecycle::displayed_state;
use kubesvc_core::{State, age};
use kubesvc_runtime::terminal::{self, Format, Table, format};

pub(crate) const EXAMPLES: &str = "\
Examples:
  kubectl kubesvc list
  kubectl kubesvc list -A --state FAILED,ORPHANED -o wide
  kubectl kubesvc list --zone east --stalled
  kubectl kubesvc list -l team=a -o name";

/// Arguments of `list`.
#[derive(Debug, clap::Args)]
pub(crate) struct ListArguments {
    /// Names of accounts: of their objects or in Spinnaker. Default: all.
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Only accounts that match a label selector.
    #[arg(short = 'l', long, value_name = "SELECTOR", conflicts_with = "names")]
    selector: Option<String>,
    /// Output format. Default: a table.
    #[arg(short, long, value_enum, value_name = "FORMAT")]
    output: Option<Format>,
    /// Only accounts in these states, separated by commas.
    #[arg(long, value_name = "STATES", value_delimiter = ',', value_parser = parse_state)]
    state: Vec<State>,
    /// Only accounts in this zone.
    #[arg(long, value_name = "ZONE")]
    zone: Option<String>,
    /// Only stalled accounts, for which someone must act.
    #[arg(long)]
    stalled: bool,
    /// Maximum number of accounts per request to the API server; 0 requests all at once.
    #[arg(long, value_name = "COUNT", default_value_t = DEFAULT_PAGE_SIZE)]
    chunk_size: u32,
}

fn parse_state(text: &str) -> Result<State, UnknownState> {
    let wanted = text.to_ascii_uppercase();
    State::ALL.into_iter().find(|state| state.as_str() == wanted).ok_or(UnknownState)
}

/// A text that names no state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no such state; there are {}", State::ALL.map(State::as_str).join(", "))]
struct UnknownState;

/// Runs the command.
pub(crate) async fn run(scope: &ScopeArguments, arguments: &ListArguments) -> Result<(), CommandError> {
    names_have_a_namespace(&arguments.names, scope)?;
    let mut session = ApiSession::open(scope).await?;
    session.page = arguments.chunk_size;
    let (mut items, missing) = if arguments.names.is_empty() {
        (session.list_accounts(arguments.selector.as_deref()).await?, Vec::new())
    } else {
        session.find_accounts(&arguments.names).await?
    };
    items.retain(|item| arguments.wants(item));
    let single = arguments.names.len() == 1 && missing.is_empty();
    match arguments.output {
        Some(Format::Json) => terminal::print(&format::json(&document(items, single))?)?,
        Some(Format::Yaml) => terminal::print(&format::yaml(&document(items, single))?)?,
        Some(Format::Name) => {
            if !items.is_empty() {
                let names: Vec<_> = items.iter().map(|item| resource_name(item.name())).collect();
                terminal::print(&names.join("\n"))?;
            }
        }
        Some(Format::Wide) | None => table(&session, &items, arguments)?,
    }
    complain_of(&missing)
}

impl ListArguments {
    fn wants(&self, item: &AccountObject) -> bool {
        let status = item.account.status_or_default();
        let zone = zone(item);
        (self.state.is_empty() || self.state.contains(&displayed_state(&item.account)))
            && self.zone.as_ref().is_none_or(|wanted| zone.as_deref() == Some(wanted))
            && (!self.stalled
                || status.conditions.iter().any(|one| one.type_ == "Stalled" && one.status == "True"))
    }
}

/// Returns the zone that holds or held the account, else the zone in its spec.
fn zone(item: &AccountObject) -> Option<String> {
    item.account
        .status_or_default()
        .zone_id
        .clone()
        .or_else(|| item.account.spec.zone_id.clone())
        .map(String::from)
}

fn document(items: Vec<AccountObject>, single: bool) -> Value {
    let mut raw: Vec<_> = items.into_iter().map(|item| item.raw).collect();
    match raw.pop() {
        Some(only) if single && raw.is_empty() => only,
        Some(last) => {
            raw.push(last);
            format::list(&raw)
        }
        None => format::list(&[]),
    }
}

fn table(
    session: &ApiSession,
    items: &[AccountObject],
    arguments: &ListArguments,
) -> Result<(), CommandError> {
    if items.is_empty() && arguments.names.is_empty() {
        terminal::note(&format!("No accounts found in {}.", session.scope_name()));
    }
    if items.is_empty() {
        return Ok(());
    }
    let wide = arguments.output == Some(Format::Wide);
    terminal::print(&render(items, session.all_namespaces, wide, Timestamp::now()))?;
    if terminal::is_watched() {
        terminal::note(&summary(items));
    }
    Ok(())
}

fn render(items: &[AccountObject], everywhere: bool, wide: bool, now: Timestamp) -> String {
    let named_otherwise = items.iter().any(|item| item.account.account_name() != item.name());
    let mut headings = Vec::new();
    headings.extend(everywhere.then_some("NAMESPACE"));
    headings.push("NAME");
    headings.extend(named_otherwise.then_some("ACCOUNT"));
    headings.extend(["STATE", "ZONE", "AGENTS", "KUBE-VERSION", "RETRIES", "SINCE"]);
    if wide {
        headings.extend(["HOST", "AGENT-NAMES", "MESSAGE"]);
    }
    let mut table = Table::new(headings);
    for item in items {
        let status = item.account.status_or_default();
        let mut cells = Vec::new();
        cells.extend(everywhere.then(|| item.namespace().to_owned()));
        cells.push(item.name().to_owned());
        cells.extend(named_otherwise.then(|| item.account.account_name().to_owned()));
        let created = item.account.metadata.creation_timestamp.as_ref();
        let moment = status.last_transition_time.as_ref().or(created);
        cells.extend([
            displayed_state(&item.account).to_string(),
            zone(item).unwrap_or_default(),
            status.agent_count.unwrap_or_default().to_string(),
            status.kube_version.clone().unwrap_or_default(),
            status.failed_count.to_string(),
            moment.map(|time| age::since(time.0, now)).unwrap_or_default(),
        ]);
        if wide {
            cells.extend([
                status.kube_host.clone().unwrap_or_default(),
                status.agents.join(","),
                status.error_message.clone().unwrap_or_default(),
            ]);
        }
        table.row(cells);
    }
    table.lines().join("\n")
}

fn summary(items: &[AccountObject]) -> String {
    let counts = counts(items.iter().map(|item| displayed_state(&item.account)));
    let plural = if items.len() == 1 { "account" } else { "accounts" };
    format!("{} {plural}: {counts}", items.len())
}

/// `3 ACTIVE, 1 FAILED`, in the order of the lifecycle.
pub(crate) fn counts(states: impl Iterator<Item = State>) -> String {
    let states: Vec<_> = states.collect();
    let each = State::ALL.iter().filter_map(|state| {
        let count = states.iter().filter(|one| *one == state).count();
        (count > 0).then(|| format!("{count} {state}"))
    });
    each.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_counted_in_the_order_of_a_life() {
        let states = [State::Failed, State::Active, State::Inactive, State::Active];
        assert_eq!(counts(states.into_iter()), "1 INACTIVE, 2 ACTIVE, 1 FAILED");
    }

    #[test]
    fn an_unknown_state_is_refused_with_the_known_ones() {
        assert_eq!(parse_state("failed"), Ok(State::Failed));
        assert!(parse_state("BROKEN").is_err_and(|error| error.to_string().contains("DELETE_FAILED")));
    }
}
