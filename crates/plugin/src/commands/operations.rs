//! `kubectl kubesvc operations`: the records of what was done with accounts, by whom, and how it ended.

use futures::{StreamExt as _, stream};
use kubesvc_core::age;
use kubesvc_runtime::terminal::{self, Fields, Format, Table, format, text};
use serde_json::Value;

use crate::account_api::{self, AccountPaths};
use crate::api_session::ApiSession;
use crate::arguments::{CommandError, ScopeArguments, complain_of};
use crate::resources::AccountObject;

pub(crate) const EXAMPLES: &str = "\
Examples:
  kubectl kubesvc operations
  kubectl kubesvc operations production --limit 20 -o wide
  kubectl kubesvc operations 01G4V5TH5QSWSR2SZE2VH1SDME
  kubectl kubesvc operations production 01G4V5TH5QSWSR2SZE2VH1SDME -o json

Without an account, an id is looked for in every account of the namespace. Times are those of the operator.";

/// Maximum number of accounts whose records are read at once.
const MAX_CONCURRENT_READS: usize = 16;
/// Number of records of each account in which one is looked for.
const MAX_SEARCHED: u16 = 1000;
/// Length of an id: that of a ULID.
const ID_CHARS: usize = 26;

/// Arguments of `operations`.
#[derive(Debug, clap::Args)]
pub(crate) struct OperationsArguments {
    /// Name of an account, of its object or in Spinnaker; or the id of one operation. Default: all accounts.
    #[arg(value_name = "ACCOUNT|ID")]
    subject: Option<String>,
    /// Id of one operation of the account.
    #[arg(value_name = "ID")]
    id: Option<String>,
    /// Output format: json, yaml or wide. Default: a table, or the fields of one record.
    #[arg(short, long, value_enum, value_name = "FORMAT")]
    output: Option<Format>,
    /// Maximum number of records, the newest.
    #[arg(long, value_name = "COUNT", default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..=1000))]
    limit: u16,
}

/// Runs the command.
pub(crate) async fn run(scope: &ScopeArguments, arguments: &OperationsArguments) -> Result<(), CommandError> {
    if arguments.output == Some(Format::Name) {
        return Err(CommandError::Usage(
            "operations prints a table, or -o json, -o yaml, -o wide".to_owned(),
        ));
    }
    let (account, id) = match (&arguments.subject, &arguments.id) {
        (Some(account), Some(id)) if is_id(id) => (Some(account), Some(id)),
        (Some(_), Some(id)) => {
            return Err(CommandError::Usage(format!(
                "{id:?} is no id of an operation: it has {ID_CHARS} characters"
            )));
        }
        (Some(id), None) if is_id(id) => (None, Some(id)),
        (account, _) => (account.as_ref(), None),
    };
    if account.is_some() && scope.all_namespaces {
        return Err(CommandError::Usage(
            "an account cannot be given with --all-namespaces; use --namespace".to_owned(),
        ));
    }
    let session = ApiSession::open_without_retries(scope).await?;
    let accounts = match account {
        Some(name) => vec![session.one_account(name).await?],
        None => session.list_accounts(None).await?,
    };
    account_api::require(&session).await?;
    match id {
        Some(id) => show_one(&session, &accounts, id, arguments.output).await,
        None => show_all(&session, &accounts, arguments).await,
    }
}

/// Whether a text is the id of an operation. An object's name has no capital letters.
fn is_id(text: &str) -> bool {
    text.len() == ID_CHARS && text.bytes().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit())
}

async fn show_all(
    session: &ApiSession,
    accounts: &[AccountObject],
    arguments: &OperationsArguments,
) -> Result<(), CommandError> {
    let limit = usize::from(arguments.limit);
    let query = format!("?page=1&items={limit}");
    let (answers, errors) =
        read_each(session, accounts, |key| format!("{}{query}", key.operations_path())).await;
    if errors.is_empty() && answers.len() < accounts.len() {
        return Err(CommandError::Failed(
            "the operator's gateway has no records of operations; use the operator of this version"
                .to_owned(),
        ));
    }
    let records = answers.into_iter().flat_map(|answer| match answer {
        Value::Array(records) => records,
        _ => Vec::new(),
    });
    let records = newest(records.collect(), limit);
    match arguments.output {
        Some(Format::Json) => terminal::print(&format::json(&records)?)?,
        Some(Format::Yaml) => terminal::print(&format::yaml(&records)?)?,
        _ if records.is_empty() => {
            if errors.is_empty() {
                terminal::note("No operations found.");
            }
        }
        output => terminal::print(&table(&records, output == Some(Format::Wide), jiff::Timestamp::now()))?,
    }
    warnings(&records).iter().for_each(|warning| terminal::note(warning));
    complain_of(&errors)
}

async fn show_one(
    session: &ApiSession,
    accounts: &[AccountObject],
    id: &str,
    output: Option<Format>,
) -> Result<(), CommandError> {
    let by_id = |key: &AccountPaths| format!("{}/{id}", key.operations_path());
    let (mut found, mut errors) = read_each(session, accounts, by_id).await;
    if found.is_empty() {
        // Among the newest of each account, if single ones are not served.
        let newest = |key: &AccountPaths| format!("{}?page=1&items={MAX_SEARCHED}", key.operations_path());
        let (lists, more) = read_each(session, accounts, newest).await;
        found = lists.into_iter().filter_map(|list| list.as_array().cloned()).flatten().collect();
        errors = more;
    }
    let Some(record) = found.into_iter().find(|record| record["operationId"] == *id) else {
        let _ = complain_of(&errors);
        return Err(CommandError::Failed(format!(
            "no operation {id} of {}; records are kept for a while only, see kubectl kubesvc operations",
            match accounts {
                [only] => format!("account {}", only.name()),
                _ => format!("the accounts in {}", session.scope_name()),
            }
        )));
    };
    let printed = match output {
        Some(Format::Json) => format::json(&record)?,
        Some(Format::Yaml) => format::yaml(&record)?,
        _ => fields(&record),
    };
    terminal::print(&printed)?;
    warnings(&[record]).iter().for_each(|warning| terminal::note(warning));
    Ok(())
}

/// Reads the records of each account. Also returns each error once.
async fn read_each(
    session: &ApiSession,
    accounts: &[AccountObject],
    path: impl Fn(&AccountPaths) -> String,
) -> (Vec<Value>, Vec<String>) {
    let reads = accounts.iter().map(|account| {
        let key = AccountPaths::of(account);
        let path = path(&key);
        async move { account_api::read(session, &key, &path).await }
    });
    let answers: Vec<_> = stream::iter(reads).buffered(MAX_CONCURRENT_READS).collect().await;
    let (mut found, mut errors) = (Vec::new(), Vec::new());
    for answer in answers {
        match answer {
            Ok(answer) => found.extend(answer),
            Err(CommandError::Failed(reason)) => errors.push(reason),
            Err(_) => {}
        }
    }
    errors.sort();
    errors.dedup();
    (found, errors)
}

/// The newest records, the newest first.
fn newest(mut records: Vec<Value>, limit: usize) -> Vec<Value> {
    // Times are RFC 3339 in UTC with the same number of digits, so their order is that of the text.
    records.sort_by_cached_key(|record| {
        std::cmp::Reverse((word(&record["startTime"]), word(&record["operationId"])))
    });
    records.truncate(limit);
    records
}

fn word(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn status(record: &Value) -> String {
    word(&record["resultReceivedFromAgent"]["result"]["status"])
}

fn milliseconds(value: &Value) -> String {
    value.as_i64().map(|spent| format!("{spent} ms")).unwrap_or_default()
}

fn since(time: &Value, now: jiff::Timestamp) -> String {
    let time = time.as_str().and_then(|time| time.parse().ok());
    time.map(|time| age::since(time, now)).unwrap_or_default()
}

fn table(records: &[Value], is_wide: bool, now: jiff::Timestamp) -> String {
    let mut headings = vec!["ID", "ACCOUNT", "OPERATION", "OUTCOME", "STATUS", "TIME", "AGE", "BY"];
    if is_wide {
        headings.extend(["STARTED", "AGENT", "REPLICA"]);
    }
    let mut table = Table::new(headings);
    for record in records {
        let mut cells = vec![
            word(&record["operationId"]),
            word(&record["account"]),
            word(&record["operationType"]),
            word(&record["finalOutcome"]),
            status(record),
            milliseconds(&record["totalDurationMs"]),
            since(&record["startTime"], now),
            word(&record["principal"]),
        ];
        if is_wide {
            cells.extend([
                word(&record["startTime"]),
                word(&record["opSentToAgent"]["agentId"]),
                word(&record["opProcessedByClouddriver"]["clouddriverId"]),
            ]);
        }
        table.row(cells);
    }
    table.lines().join("\n")
}

/// What the accounts' API servers warned of, as kubectl says it: each once.
fn warnings(records: &[Value]) -> Vec<String> {
    let texts = records.iter().filter_map(|record| record["warnings"].as_array()).flatten();
    let mut lines = Vec::new();
    for text in texts.filter_map(Value::as_str) {
        let line = format!("Warning: {}", text::line(text));
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    lines
}

fn fields(record: &Value) -> String {
    let mut fields = Fields::default();
    let mut top = |name: &str, value: String| {
        if !value.is_empty() {
            fields.top(name, text::line(&value));
        }
    };
    top("Id", word(&record["operationId"]));
    top("Operation", word(&record["operationType"]));
    top("Account", word(&record["account"]));
    top("By", word(&record["principal"]));
    top("Outcome", word(&record["finalOutcome"]));
    top("Status", status(record));
    top("Started", word(&record["startTime"]));
    top("Ended", word(&record["endTime"]));
    top("Took", milliseconds(&record["totalDurationMs"]));
    top("Agent took", milliseconds(&record["resultReceivedFromAgent"]["result"]["durationMs"]));
    for (name, step, who) in [
        ("Received", "opReceivedByClouddriver", "clouddriverId"),
        ("Processed", "opProcessedByClouddriver", "clouddriverId"),
        ("Sent", "opSentToAgent", "agentId"),
        ("Answered", "resultReceivedFromAgent", "agentId"),
        ("Answer read", "resultReceivedByClouddriver", "clouddriverId"),
    ] {
        let (time, by) = (word(&record[step]["time"]), word(&record[step][who]));
        let shown = match (time.is_empty(), by.is_empty()) {
            (true, true) => String::new(),
            (false, true) => time,
            (true, false) => format!("by {by}"),
            (false, false) => format!("{time} by {by}"),
        };
        top(name, shown);
    }
    let known = [
        "opReceivedByClouddriver",
        "opProcessedByClouddriver",
        "opSentToAgent",
        "resultReceivedFromAgent",
        "resultReceivedByClouddriver",
        "operationId",
        "operationType",
        "account",
        "principal",
        "finalOutcome",
        "startTime",
        "endTime",
        "totalDurationMs",
        // On standard error.
        "warnings",
    ];
    for (name, value) in
        record.as_object().into_iter().flatten().filter(|(name, _)| !known.contains(&name.as_str()))
    {
        top(name, word(value));
    }
    if record["finalOutcome"] == "unknown" {
        top("What to do", "see whether the object is as asked; docs/operations.md says which operations may simply be repeated".to_owned());
    }
    fields.render()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn record(id: &str, time: &str, outcome: &str) -> Value {
        json!({"operationId": id, "operationType": "Deploy", "account": "prod", "principal": "jane",
            "startTime": time, "endTime": time, "totalDurationMs": 167, "finalOutcome": outcome,
            "opReceivedByClouddriver": {"clouddriverId": "operator-0", "time": time},
            "opSentToAgent": {"agentId": "agent-1", "time": time},
            "resultReceivedFromAgent": {"agentId": "agent-1", "time": time, "result": {"status": 200, "durationMs": 14}}})
    }

    #[test]
    fn an_id_is_told_from_the_name_of_an_account() {
        assert!(is_id("01G4V5TH5QSWSR2SZE2VH1SDME"));
        for name in ["production", "01g4v5th5qswsr2sze2vh1sdme", "01G4V5TH5QSWSR2SZE2VH1SDM", "PROD", ""] {
            assert!(!is_id(name), "{name}");
        }
    }

    #[test]
    fn the_newest_of_all_accounts_come_first() {
        let records = [
            ("A", "2026-01-01T00:00:01.000Z"),
            ("B", "2026-01-01T00:00:03.000Z"),
            ("C", "2026-01-01T00:00:02.000Z"),
        ]
        .map(|(id, time)| record(id, time, "completed"));
        let ids: Vec<_> = newest(records.to_vec(), 2).iter().map(|one| word(&one["operationId"])).collect();
        assert_eq!(ids, ["B", "C"]);
    }

    #[test]
    fn records_are_a_table_that_says_who_did_it() {
        let now = "2026-01-01T00:01:00Z".parse().expect("a time");
        let shown = table(&[record("A", "2026-01-01T00:00:00.000Z", "completed")], false, now);
        let wanted = "ID   ACCOUNT   OPERATION   OUTCOME     STATUS   TIME     AGE   BY\n\
                      A    prod      Deploy      completed   200      167 ms   60s   jane";
        assert_eq!(shown, wanted);
        let wide = table(&[record("A", "2026-01-01T00:00:00.000Z", "completed")], true, now);
        assert!(wide.contains("agent-1") && wide.contains("REPLICA"), "{wide}");
        let pending = json!({"operationId": "A", "account": "x\u{1b}[2J", "finalOutcome": "pending"});
        let shown = table(&[pending], false, now);
        assert!(shown.contains("pending") && !shown.contains('\u{1b}'), "{shown}");
    }

    #[test]
    fn warnings_are_said_as_kubectl_says_them_and_each_once() {
        let old = "policy/v1beta1 PodDisruptionBudget is deprecated\u{1b}[2J";
        let mut warned = record("A", "2026-01-01T00:00:00.000Z", "completed");
        warned["warnings"] = json!([old, "unknown field \"spec.x\""]);
        let bare = record("B", "2026-01-01T00:00:01.000Z", "completed");
        assert_eq!(
            warnings(&[warned.clone(), bare, warned.clone()]),
            [
                "Warning: policy/v1beta1 PodDisruptionBudget is deprecated\\u{1b}[2J",
                "Warning: unknown field \"spec.x\"",
            ]
        );
        assert!(!fields(&warned).contains("deprecated"), "they are no part of the fields");
    }

    #[test]
    fn one_record_is_shown_with_each_step() {
        let mut one = record("A", "2026-01-01T00:00:00.000Z", "unknown");
        one["requestId"] = json!("R");
        let shown = fields(&one);
        for part in ["By:", "jane", "Sent:", "by agent-1", "requestId:", "What to do:"] {
            assert!(shown.contains(part), "{part}: {shown}");
        }
    }
}
