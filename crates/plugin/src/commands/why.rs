//! `kubectl kubesvc why`: explains on one screen what an account waits for and what to do.

mod cached_objects;

use jiff::Timestamp;
use serde::Serialize;

use crate::api_session::ApiSession;
use crate::arguments::{CommandError, ScopeArguments, names_have_a_namespace};
use crate::commands::describe::when;
use crate::operator_client::OperatorArguments;
use cached_objects::CachedObjects;
use kubesvc_core::age;
use kubesvc_core::explain::{ExplainedAgent, Explanation, explain};
use kubesvc_core::{State, ZoneId};
use kubesvc_runtime::terminal::{self, Fields, Format, Table, format, text};

pub(crate) const EXAMPLES: &str = "\
Examples:
  kubectl kubesvc why production
  kubectl kubesvc why production -o json | jq -r '.advice[].command'";

/// Maximum number of agents shown.
const MAX_AGENTS_SHOWN: usize = 16;

/// Arguments of `why`.
#[derive(Debug, clap::Args)]
pub(crate) struct WhyArguments {
    /// Name of the account: of its object or in Spinnaker.
    #[arg(value_name = "NAME")]
    name: String,
    /// Output format: json or yaml. Default: text.
    #[arg(short, long, value_enum, value_name = "FORMAT")]
    output: Option<Format>,
    #[command(flatten)]
    operator: OperatorArguments,
}

/// What is printed.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct WhyOutput {
    #[serde(flatten)]
    explanation: Explanation,
    /// How far its cached objects are; left out unless it is ACTIVE.
    #[serde(skip_serializing_if = "Option::is_none")]
    cached_objects: Option<CachedObjects>,
}

pub(crate) async fn run(scope: &ScopeArguments, arguments: &WhyArguments) -> Result<(), CommandError> {
    names_have_a_namespace(std::slice::from_ref(&arguments.name), scope)?;
    if matches!(arguments.output, Some(Format::Wide | Format::Name)) {
        return Err(CommandError::Usage("why prints text, or -o json, or -o yaml".to_owned()));
    }
    let session = ApiSession::open(scope).await?;
    let item = session.one_account(&arguments.name).await?;
    let agents = session.agents_for(item.namespace()).await?;
    let now = Timestamp::now();
    let mut explanation = explain(&item.account, agents.as_deref(), now);
    let cached_objects = match explanation.state {
        State::Active => {
            let names = (item.name(), explanation.account_name.as_str());
            Some(CachedObjects::ask(scope, &arguments.operator, names).await)
        }
        _ => None,
    };
    if cached_objects.as_ref().is_some_and(|cached| cached.up_to_date != Some(true)) {
        explanation.advise_cache();
    }
    let report = WhyOutput { explanation, cached_objects };
    let printed = match arguments.output {
        Some(Format::Json) => format::json(&report)?,
        Some(Format::Yaml) => format::yaml(&report)?,
        _ => render(&report, now),
    };
    Ok(terminal::print(&printed)?)
}

fn render(report: &WhyOutput, now: Timestamp) -> String {
    let explanation = &report.explanation;
    let mut printed = headline(explanation, now);
    printed.push_str("\n\n");
    let mut fields = explanation_text(explanation, now);
    if let Some(cached) = &report.cached_objects {
        fields.top("Cached objects", &cached.summary);
    }
    printed.push_str(&fields.render());
    if !explanation.advice.is_empty() {
        printed.push_str("\nWhat to do:\n");
        for advice in &explanation.advice {
            printed.push_str(&format!("  {}\n", text::line(&advice.text)));
            if let Some(command) = &advice.command {
                printed.push_str(&format!("    {}\n", text::visible(command)));
            }
        }
    }
    printed
}

fn headline(explanation: &Explanation, now: Timestamp) -> String {
    let state = text::colored_state(explanation.state.as_str());
    let reason = match &explanation.reason {
        Some(reason) if reason.to_uppercase() != explanation.state.as_str().replace('_', "") => {
            format!(" ({})", text::line(reason))
        }
        _ => String::new(),
    };
    let since = explanation.since.map(|since| format!(" for {}", age::since(since, now))).unwrap_or_default();
    let name = text::bold(&text::line(&explanation.account_name));
    let goal = match explanation.desired.as_str() {
        "deleted" => "; it is being deleted",
        _ if explanation.ready => ", as desired",
        "INACTIVE" => "; it is to be INACTIVE",
        _ => "; it is to be ACTIVE",
    };
    format!("{name} is {state}{reason}{since}{goal}.")
}

fn explanation_text(explanation: &Explanation, now: Timestamp) -> Fields {
    let mut fields = Fields::default();
    fields.top("Waits for", &explanation.waits_for);
    if let Some(error) = &explanation.last_error {
        fields.top("Last error", error);
    }
    if explanation.failed_count > 0 {
        fields.top("Failed tries", explanation.failed_count.to_string());
    }
    if let Some(next) = explanation.next_try {
        fields.top("Next try", when(next, now));
    }
    fields.top("Zone", explanation.zone.as_ref().map_or("<any>", ZoneId::as_str));
    if let Some(owner) = &explanation.gitops_owner {
        fields.top("Kept by", format!("{owner}; change it there"));
    }
    if let Some(operator) = &explanation.served_by {
        fields.top("Served by", format!("the installation in namespace {operator}"));
    }
    match &explanation.agents {
        None => fields.top("Agents", "you may not read them"),
        Some(agents) if agents.is_empty() => {
            let of = explanation.zone.as_ref().map(|zone| format!(" of zone {zone}")).unwrap_or_default();
            fields.top("Agents", format!("none{of} has ever connected"));
        }
        Some(agents) => {
            fields.section("Agents");
            fields.lines(table(agents, &explanation.namespace));
        }
    }
    fields
}

fn table(agents: &[ExplainedAgent], namespace: &str) -> Vec<String> {
    // Agents live in their operator's namespace. If that differs from the account's, they may belong to another
    // operator.
    let elsewhere = agents.iter().any(|agent| agent.namespace != namespace);
    let mut headings = Vec::new();
    headings.extend(elsewhere.then_some("NAMESPACE"));
    headings.extend(["AGENT", "ZONE", "CONNECTED", "APPROVED", "HOLDS"]);
    let mut table = Table::new(headings);
    for agent in agents.iter().take(MAX_AGENTS_SHOWN) {
        let scope = elsewhere.then(|| agent.namespace.clone());
        table.row(scope.into_iter().chain([
            agent.agent_id.clone(),
            agent.zone.to_string(),
            agent.connected.to_string(),
            agent.approved.to_string(),
            agent.holds.to_string(),
        ]));
    }
    let mut lines = table.lines();
    let problems = agents.iter().take(MAX_AGENTS_SHOWN);
    let problems = problems.filter_map(|agent| Some((&agent.agent_id, agent.problem.as_ref()?)));
    lines.extend(problems.map(|(agent, problem)| format!("{agent}: {}", text::line(problem))));
    let more = agents.len().saturating_sub(MAX_AGENTS_SHOWN);
    lines.extend((more > 0).then(|| format!("and {more} more: kubectl kubesvc agents")));
    lines
}
