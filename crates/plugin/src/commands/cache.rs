//! `kubectl kubesvc cache`: what is cached of an account, and why an object is not.

use kubesvc_core::age;
use kubesvc_runtime::terminal::{self, Fields, Format, Table, format, text};
use serde_json::Value;

use crate::account_api::{self, AccountPaths};
use crate::api_session::ApiSession;
use crate::arguments::{CommandError, ScopeArguments};
use crate::operator_client::{OperatorArguments, OperatorClient, encoded};
use crate::resources::bare;

pub(crate) const EXAMPLES: &str = "\
Examples:
  kubectl kubesvc cache production
  kubectl kubesvc cache production deployment
  kubectl kubesvc cache production deployment/web -n shop
  kubectl kubesvc cache production deployment/shop/web -n spinnaker
  kubectl kubesvc cache production Rollout.argoproj.io/web -n shop -o json
  kubectl kubesvc cache production --operator-url http://localhost:7002

KIND is in any case, with or without its group. With -n, an object is looked for in that namespace, if its kind has any.";

/// Arguments of `cache`.
#[derive(Debug, clap::Args)]
pub(crate) struct CacheArguments {
    /// Name of the account: of its object or in Spinnaker.
    #[arg(value_name = "ACCOUNT")]
    name: String,
    /// Only this kind, or one object of it: whether it is cached, or why not.
    #[arg(value_name = "KIND[/[NAMESPACE/]NAME]")]
    object: Option<String>,
    /// Output format: json, yaml or wide. Default: text.
    #[arg(short, long, value_enum, value_name = "FORMAT")]
    output: Option<Format>,
    #[command(flatten)]
    operator: OperatorArguments,
}

/// A kind, and an object of it.
#[derive(Debug, PartialEq, Eq)]
struct WantedObject<'a> {
    kind: &'a str,
    namespace: Option<&'a str>,
    name: Option<&'a str>,
}

impl<'a> WantedObject<'a> {
    fn read(text: &'a str) -> Result<Self, CommandError> {
        let parts: Vec<_> = text.split('/').collect();
        let wanted = match *parts.as_slice() {
            [kind] => Self { kind, namespace: None, name: None },
            [kind, name] => Self { kind, namespace: None, name: Some(name) },
            [kind, namespace, name] => Self { kind, namespace: Some(namespace), name: Some(name) },
            _ => return Err(unclear(text)),
        };
        if parts.iter().any(|part| part.is_empty()) { Err(unclear(text)) } else { Ok(wanted) }
    }

    fn query(&self, scope: &ScopeArguments) -> String {
        let mut query = format!("?kind={}", encoded(self.kind));
        if let Some(name) = self.name {
            let namespace = self.namespace.or(scope.namespace.as_deref());
            query.push_str(&format!(
                "&name={}&namespace={}",
                encoded(name),
                encoded(namespace.unwrap_or_default())
            ));
        }
        query
    }
}

fn unclear(text: &str) -> CommandError {
    CommandError::Usage(format!("{text:?} is no object; write KIND, KIND/NAME or KIND/NAMESPACE/NAME"))
}

pub(crate) async fn run(scope: &ScopeArguments, arguments: &CacheArguments) -> Result<(), CommandError> {
    if arguments.output == Some(Format::Name) {
        return Err(CommandError::Usage("cache prints text, or -o json, -o yaml, -o wide".to_owned()));
    }
    let wanted = arguments.object.as_deref().map(WantedObject::read).transpose()?;
    let query = wanted.as_ref().map(|wanted| wanted.query(scope)).unwrap_or_default();
    let name = bare(&arguments.name);
    let cache = match by_account_api(scope, &arguments.operator, name, &query).await? {
        Some(cache) => cache,
        None => by_rest(scope, &arguments.operator, name, &query).await?,
    };
    let is_wide = arguments.output == Some(Format::Wide);
    let printed = match arguments.output {
        Some(Format::Json) => format::json(&cache)?,
        Some(Format::Yaml) => format::yaml(&cache)?,
        _ if cache["object"].is_object() => render_object(&cache),
        _ => render(&cache, is_wide),
    };
    terminal::print(&printed)?;
    Ok(())
}

/// Asks the API of accounts, with the caller's own rights; `None` if it is not there, or the caller says where REST is.
pub(super) async fn by_account_api(
    scope: &ScopeArguments,
    operator: &OperatorArguments,
    name: &str,
    query: &str,
) -> Result<Option<Value>, CommandError> {
    if operator.are_given() {
        return Ok(None);
    }
    let session = ApiSession::open_without_retries(scope).await?;
    if !account_api::is_served(&session).await? {
        return Ok(None);
    }
    // With -n an object of the cluster is looked for: the account may be in the context's namespace.
    let found = match session.one_account(name).await {
        Err(missing) if scope.namespace.is_some() => {
            let unscoped = ScopeArguments { namespace: None, ..scope.clone() };
            let of_context = ApiSession::open_without_retries(&unscoped).await?;
            of_context.one_account(name).await.map_err(|_| missing)?
        }
        found => found?,
    };
    account_api::read_cache(&session, &AccountPaths::of(&found), query).await
}

async fn by_rest(
    scope: &ScopeArguments,
    operator: &OperatorArguments,
    name: &str,
    query: &str,
) -> Result<Value, CommandError> {
    let operator = OperatorClient::open(scope, operator).await?;
    match operator.json(&path(name, query)).await {
        Ok(cache) => Ok(cache),
        Err(refused) => {
            let Some(other) = spinnaker_name(scope, name, &refused).await else { return Err(refused) };
            operator.json(&path(&other, query)).await
        }
    }
}

/// The call that shows what is cached of an account.
pub(super) fn account_cache_path(account: &str) -> String {
    path(account, "")
}

fn path(account: &str, query: &str) -> String {
    format!("/agents/kubernetes/accounts/{}/cache{query}", encoded(account))
}

/// The name in Spinnaker of the account whose object has this name, if the operator knows no account of this name.
async fn spinnaker_name(scope: &ScopeArguments, name: &str, refused: &CommandError) -> Option<String> {
    let CommandError::Failed(message) = refused else { return None };
    if !message.contains("does not exist") {
        return None;
    }
    let session = ApiSession::open(scope).await.ok()?;
    let found = session.one_account(name).await.ok()?;
    let other = found.account.account_name();
    (other != name).then(|| other.to_owned())
}

fn word(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn duration(milliseconds: &Value) -> String {
    milliseconds.as_i64().map(|age| age::seconds(age / 1000)).unwrap_or_default()
}

fn render(cache: &Value, is_wide: bool) -> String {
    let mut fields = Fields::default();
    fields.top("Account", word(&cache["account"]));
    let agent = word(&cache["agentId"]);
    fields.top("Agent", if agent.is_empty() { "<none>".to_owned() } else { agent });
    fields.top("Epoch", word(&cache["epoch"]));
    fields.top("Synced", word(&cache["synced"]));
    fields.top("Objects", word(&cache["objects"]));
    let kinds = cache["kinds"].as_array().map(Vec::as_slice).unwrap_or_default();
    let mut printed = fields.render();
    if kinds.is_empty() {
        printed.push_str("\nNo kind is watched yet. What to do: kubectl kubesvc why NAME\n");
        return printed;
    }
    let has_namespaces = kinds.iter().any(|kind| !word(&kind["namespace"]).is_empty());
    let has_problems = kinds.iter().any(|kind| kind["problem"].is_string());
    let mut headings = vec!["KIND"];
    headings.extend(has_namespaces.then_some("NAMESPACE"));
    headings.extend(["STATE", "OBJECTS", "AGE"]);
    headings.extend(is_wide.then_some("VERSION"));
    headings.extend((is_wide || has_problems).then_some("PROBLEM"));
    let mut table = Table::new(headings);
    for kind in kinds {
        let mut cells = vec![word(&kind["kind"])];
        cells.extend(has_namespaces.then(|| word(&kind["namespace"])));
        cells.extend([word(&kind["state"]), word(&kind["objects"]), duration(&kind["ageMs"])]);
        cells.extend(is_wide.then(|| word(&kind["resourceVersion"])));
        cells.extend((is_wide || has_problems).then(|| word(&kind["problem"])));
        table.row(cells);
    }
    printed.push('\n');
    printed.push_str(&table.lines().join("\n"));
    printed
}

fn render_object(cache: &Value) -> String {
    let object = &cache["object"];
    let kind = word(&object["kind"]);
    let name = match (word(&object["namespace"]), word(&object["name"])) {
        (namespace, name) if namespace.is_empty() => name,
        (namespace, name) => format!("{namespace}/{name}"),
    };
    let shown = text::bold(&text::line(&format!("{kind} {name}")));
    let account = text::line(&word(&cache["account"]));
    let mut fields = Fields::default();
    let headline = if object["cached"] == true {
        fields.top("Version", word(&object["resourceVersion"]));
        fields.top("uid", word(&object["uid"]));
        fields.top("Written", format!("{} ago", duration(&object["ageMs"])));
        if object["hasBody"] == false {
            fields.top("Body", "left out: it is too large or unreadable");
        }
        format!("{shown} of {account} is cached.")
    } else {
        fields.top("Reason", word(&object["reason"]));
        fields.top("Why", word(&object["message"]));
        if object["setting"].is_string() {
            fields.top("Setting", word(&object["setting"]));
        }
        format!("{shown} of {account} is not cached.")
    };
    format!("{headline}\n\n{}", fields.render())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_object_is_a_kind_with_its_name_and_maybe_its_namespace() {
        let scope = ScopeArguments { namespace: Some("shop".into()), ..ScopeArguments::default() };
        let query = |text| WantedObject::read(text).map(|wanted| wanted.query(&scope));
        assert_eq!(query("deployment"), Ok("?kind=deployment".to_owned()));
        assert_eq!(query("deploy/web"), Ok("?kind=deploy&name=web&namespace=shop".to_owned()));
        assert_eq!(query("deploy/other/web"), Ok("?kind=deploy&name=web&namespace=other".to_owned()));
        for text in ["", "deployment/", "/web", "a/b/c/d"] {
            assert!(matches!(query(text), Err(CommandError::Usage(_))), "{text}");
        }
    }

    #[test]
    fn a_cache_is_shown_as_fields_and_a_table() {
        let cache = json!({"account": "prod", "agentId": "agent-1", "epoch": 3, "synced": false, "objects": 8, "kinds": [
            {"kind": "deployment", "namespace": "", "state": "SYNCED", "objects": 3, "resourceVersion": "70", "ageMs": 4200},
            {"kind": "job", "namespace": "", "state": "LISTING", "objects": 5, "ageMs": 0, "problem": "no right"},
        ]});
        let shown = render(&cache, false);
        let table = shown.split_once("\n\n").expect("a table").1;
        let wanted = "KIND         STATE     OBJECTS   AGE   PROBLEM\n\
                      deployment   SYNCED    3         4s    <none>\n\
                      job          LISTING   5         0s    no right";
        assert_eq!(table, wanted);
        assert!(shown.starts_with("Account:  prod\nAgent:    agent-1\n"), "{shown}");
        assert!(render(&cache, true).contains("VERSION"));
    }

    #[test]
    fn an_object_is_shown_with_its_version_or_the_reason() {
        let cached = json!({"account": "prod", "object": {"kind": "deployment", "namespace": "shop", "name": "web",
            "cached": true, "resourceVersion": "7", "uid": "u", "ageMs": 61_000, "hasBody": true}});
        let shown = render_object(&cached);
        assert!(shown.contains("deployment shop/web") && shown.contains("Version:  7"), "{shown}");
        let missing = json!({"account": "prod", "object": {"kind": "configMap", "namespace": "", "name": "x\u{1b}[2J",
            "cached": false, "reason": "LEFT_OUT", "setting": "kubesvc.cache.cacheKinds", "message": "it is left out"}});
        let shown = render_object(&missing);
        assert!(shown.contains("is not cached") && shown.contains("kubesvc.cache.cacheKinds"), "{shown}");
        assert!(!shown.contains("\u{1b}[2J"), "{shown}");
    }
}
