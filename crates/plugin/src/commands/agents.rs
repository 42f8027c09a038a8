//! `kubectl kubesvc agents`: lists the agents, and approves or revokes them.

use jiff::Timestamp;
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::api_session::{AGENTS, ApiSession, ResourceRequest, did_you_mean};
use crate::arguments::{CommandError, ScopeArguments};
use crate::commands::change::each;
use kubesvc_core::{APPROVED_AUTOMATICALLY, APPROVED_BY_ANNOTATION, KubesvcAgent, PLUGIN_FIELD_MANAGER, age};
use kubesvc_runtime::terminal::{self, Format, OutputError, Table, format};

pub(crate) const EXAMPLES: &str = "\
Examples:
  kubectl kubesvc agents
  kubectl kubesvc agents --zone east -o wide
  kubectl kubesvc agents approve agent-1
  kubectl kubesvc agents revoke agent-1 --zone east";

const APPROVE_EXAMPLES: &str = "\
Examples:
  kubectl kubesvc agents approve agent-1
  kubectl kubesvc agents approve agent-1 agent-2 --zone east";

const REVOKE_EXAMPLES: &str = "\
Examples:
  kubectl kubesvc agents revoke agent-1
  kubectl kubesvc agents revoke --automatic

The accounts of a revoked agent move to the other agents of its zone. If there is none, they become ORPHANED or FAILED.";

/// Arguments of `agents`.
#[derive(Debug, clap::Args)]
pub(crate) struct AgentsArguments {
    /// Output format. Default: a table.
    #[arg(short, long, value_enum, value_name = "FORMAT")]
    output: Option<Format>,
    /// Only agents in this zone.
    #[arg(long, value_name = "ZONE", global = true)]
    zone: Option<String>,
    #[command(subcommand)]
    change: Option<ApprovalCommand>,
}

#[derive(Debug, clap::Subcommand)]
enum ApprovalCommand {
    /// Approve agents, so that they receive accounts.
    #[command(after_help = APPROVE_EXAMPLES)]
    Approve(AgentNames),
    /// Revoke the approval of agents: they drop their accounts and receive none.
    #[command(after_help = REVOKE_EXAMPLES)]
    Revoke(RevokedAgents),
}

#[derive(Debug, clap::Args)]
struct RevokedAgents {
    /// Ids of agents, or names of their objects.
    #[arg(value_name = "NAME", required_unless_present = "automatic")]
    names: Vec<String>,
    /// All agents that nobody has approved: the operator did, while kubesvc.agents.approval was auto.
    #[arg(long, conflicts_with = "names")]
    automatic: bool,
}

#[derive(Debug, clap::Args)]
struct AgentNames {
    /// Ids of agents, or names of their objects.
    #[arg(value_name = "NAME", required = true)]
    names: Vec<String>,
}

/// Runs the command.
pub(crate) async fn run(scope: &ScopeArguments, arguments: &AgentsArguments) -> Result<(), CommandError> {
    let session = ApiSession::open(scope).await?;
    let mut agents = session.list_agents(session.scope()).await?;
    agents.retain(|agent| arguments.zone.as_ref().is_none_or(|zone| agent.spec.zone_id == *zone));
    match &arguments.change {
        None => show(&session, agents, arguments.output),
        Some(ApprovalCommand::Approve(names)) => {
            let user = user_name(&session).await;
            approve(&session, &agents, &names.names, Some(&user)).await
        }
        Some(ApprovalCommand::Revoke(revoked)) if revoked.automatic => {
            let automatic = agents.iter().filter(|agent| agent.approved_by() == Some(APPROVED_AUTOMATICALLY));
            let names: Vec<_> = automatic.map(ResourceExt::name_any).collect();
            if names.is_empty() {
                terminal::note(&format!("No agent in {} is approved automatically.", session.scope_name()));
            }
            approve(&session, &agents, &names, None).await
        }
        Some(ApprovalCommand::Revoke(revoked)) => approve(&session, &agents, &revoked.names, None).await,
    }
}

fn show(session: &ApiSession, agents: Vec<KubesvcAgent>, output: Option<Format>) -> Result<(), CommandError> {
    let text = match output {
        Some(Format::Json) => format::json(&document(agents)?)?,
        Some(Format::Yaml) => format::yaml(&document(agents)?)?,
        Some(Format::Name) if agents.is_empty() => return Ok(()),
        Some(Format::Name) => {
            let names: Vec<_> = agents.iter().map(|agent| resource_name(&agent.name_any())).collect();
            names.join("\n")
        }
        Some(Format::Wide) | None if agents.is_empty() => {
            terminal::note(&format!(
                "No agents found in {}; they stand in the operator's namespace.",
                session.scope_name()
            ));
            return Ok(());
        }
        Some(Format::Wide) | None => {
            render(&agents, session.all_namespaces, output == Some(Format::Wide), Timestamp::now())
        }
    };
    Ok(terminal::print(&text)?)
}

fn resource_name(name: &str) -> String {
    format!("kubesvcagent.kubesvc.io/{name}")
}

fn document(agents: Vec<KubesvcAgent>) -> Result<Value, CommandError> {
    let raw = agents.into_iter().map(|mut agent| {
        agent.metadata.managed_fields = None;
        serde_json::to_value(agent)
    });
    let raw: Result<Vec<_>, _> = raw.collect();
    Ok(format::list(&raw.map_err(OutputError::Json)?))
}

fn render(agents: &[KubesvcAgent], everywhere: bool, wide: bool, now: Timestamp) -> String {
    let mut headings = Vec::new();
    headings.extend(everywhere.then_some("NAMESPACE"));
    headings.extend([
        "AGENT",
        "ZONE",
        "CONNECTED",
        "VERSION",
        "HELD",
        "FAILED",
        "SINCE",
        "REPLICA",
        "APPROVED",
        "BY",
    ]);
    if wide {
        headings.extend(["NAME", "SESSION", "BOOT"]);
    }
    let mut table = Table::new(headings);
    for agent in agents {
        let status = agent.status.clone().unwrap_or_default();
        let session = status.session.unwrap_or_default();
        // An agent that is gone holds nothing, and objects of earlier operators still have its last counts.
        let since = status.connected_since.filter(|_| status.connected);
        let count = |count: Option<i32>| {
            if status.connected { count.unwrap_or_default().to_string() } else { String::new() }
        };
        let mut cells = Vec::new();
        cells.extend(everywhere.then(|| agent.namespace().unwrap_or_default()));
        cells.extend([
            agent.spec.agent_id.to_string(),
            agent.spec.zone_id.to_string(),
            status.connected.to_string(),
            status.version.unwrap_or_default(),
            count(status.held),
            count(status.failed),
            since.map(|time| age::since(time.0, now)).unwrap_or_default(),
            session.replica.into(),
            agent.is_approved().to_string(),
            agent.approved_by().unwrap_or_default().to_owned(),
        ]);
        if wide {
            cells.extend([agent.name_any(), session.id.to_string(), session.boot_id.to_string()]);
        }
        table.row(cells);
    }
    table.lines().join("\n")
}

/// The caller's name, as the API server knows it.
async fn user_name(session: &ApiSession) -> String {
    let question = SelfSubjectReview::default();
    let api = Api::<SelfSubjectReview>::all(session.client.clone());
    let answer = session.try_ask(api.create(&PostParams::default(), &question)).await;
    let name = answer.ok().and_then(Result::ok).and_then(|review| review.status?.user_info?.username);
    // An API server that does not say is no reason not to approve.
    name.unwrap_or_else(|| PLUGIN_FIELD_MANAGER.to_owned())
}

/// Approves agents as `user`, or revokes their approval if there is none.
async fn approve(
    session: &ApiSession,
    agents: &[KubesvcAgent],
    names: &[String],
    user: Option<&str>,
) -> Result<(), CommandError> {
    let (_, ended) =
        each(names, |name| async move { Ok((set(session, choose(agents, name)?, user).await?, ())) }).await?;
    ended
}

/// Returns the agent with this object name, else the only one with this id.
pub(super) fn choose<'a>(agents: &'a [KubesvcAgent], name: &str) -> Result<&'a KubesvcAgent, CommandError> {
    let name = name.strip_prefix("kubesvcagent.kubesvc.io/").or(name.strip_prefix("ksg/")).unwrap_or(name);
    let of_name: Vec<_> = agents.iter().filter(|agent| agent.name_any() == name).collect();
    let of_id: Vec<_> = agents.iter().filter(|agent| agent.spec.agent_id == name).collect();
    let found = if of_name.is_empty() { of_id } else { of_name };
    match found.as_slice() {
        [only] => Ok(only),
        [] => {
            let there = agents.iter().map(|agent| agent.spec.agent_id.as_str());
            let near = did_you_mean(name, there);
            let more = if near.is_empty() { "; see kubectl kubesvc agents -A" } else { &near };
            Err(CommandError::Failed(format!("no agent {name}{more}")))
        }
        several => {
            let zones: Vec<_> = several
                .iter()
                .map(|agent| format!("{} in zone {}", agent.name_any(), agent.spec.zone_id))
                .collect();
            Err(CommandError::Failed(format!(
                "several agents match {name}: {}; give the name of one, or --zone",
                zones.join(", ")
            )))
        }
    }
}

async fn set(session: &ApiSession, agent: &KubesvcAgent, user: Option<&str>) -> Result<String, CommandError> {
    let name = resource_name(&agent.name_any());
    let approved = user.is_some();
    if agent.status.as_ref().is_some_and(|status| status.identified.is_some()) {
        let id = &agent.spec.agent_id;
        let what = if approved { format!("create NAME --from-agent {id}") } else { "revoke NAME".to_owned() };
        return Err(CommandError::Failed(format!(
            "{name}: its KubesvcIdentity decides, since the operator's kubesvc.grpc.auth.mode is bound; use kubectl kubesvc \
             identity {what}"
        )));
    }
    // A person who approves what the operator has approved decides it.
    let decides = approved && agent.approved_by() == Some(APPROVED_AUTOMATICALLY);
    if agent.spec.approved == approved && !decides {
        return Ok(format!("{name} is {}approved already", if approved { "" } else { "not " }));
    }
    let namespace = agent.namespace().unwrap_or_default();
    let asked = ResourceRequest { verb: "patch", resource: AGENTS, namespace: Some(&namespace) };
    let parameters =
        PatchParams { field_manager: Some(PLUGIN_FIELD_MANAGER.to_owned()), ..PatchParams::default() };
    let patch = Patch::Merge(json!({
        "metadata": {"uid": agent.uid(), "annotations": {APPROVED_BY_ANNOTATION: user}},
        "spec": {"approved": approved},
    }));
    let api = session.api::<KubesvcAgent>(&namespace);
    session.ask(asked, api.patch_metadata(&agent.name_any(), &parameters, &patch)).await?;
    Ok(format!("{name} {}", if approved { "approved" } else { "revoked" }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use kubesvc_core::{KubesvcAgentSpec, KubesvcAgentStatus};

    fn agent(id: &str, zone: &str) -> KubesvcAgent {
        let spec = KubesvcAgentSpec { agent_id: id.into(), zone_id: zone.into(), approved: false };
        KubesvcAgent::new(&format!("{id}-{zone}"), spec)
    }

    #[test]
    fn an_agent_that_is_gone_has_no_counts_and_no_time() {
        let time = |second| Timestamp::from_second(second).expect("a time");
        let row = |connected| {
            let mut agent = agent("a", "east");
            agent.status = Some(KubesvcAgentStatus {
                connected,
                connected_since: Some(Time(time(0))),
                held: Some(3),
                failed: Some(1),
                ..KubesvcAgentStatus::default()
            });
            let table = render(&[agent], false, false, time(60));
            let row = table.lines().nth(1).unwrap_or_default();
            row.split_whitespace().map(str::to_owned).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(row(true), "a east true <none> 3 1 60s <none> false <none>");
        assert_eq!(row(false), "a east false <none> <none> <none> <none> <none> false <none>");
    }

    #[test]
    fn an_agent_is_found_by_id_or_object_and_never_guessed() {
        let agents = [agent("a", "east"), agent("a", "west"), agent("worker", "west")];
        assert_eq!(choose(&agents, "worker").map(ResourceExt::name_any), Ok("worker-west".to_owned()));
        assert_eq!(choose(&agents, "ksg/a-west").map(ResourceExt::name_any), Ok("a-west".to_owned()));
        let said = |name: &str| match choose(&agents, name) {
            Err(CommandError::Failed(reason)) => reason,
            other => unreachable!("{name}: {other:?}"),
        };
        let several = said("a");
        assert!(several.contains("a-east in zone east, a-west in zone west"), "{several}");
        let near = said("wroker");
        assert!(near.contains("did you mean worker?"), "{near}");
    }
}
