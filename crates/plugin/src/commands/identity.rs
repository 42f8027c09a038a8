//! `kubectl kubesvc identity`: the KubesvcIdentities by which agents are let in; makes them from agents that were shown, and
//! takes them back.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use kube::ResourceExt;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::api_session::{ApiSession, ResourceRequest};
use crate::arguments::{CommandError, ScopeArguments};
use crate::commands::agents::choose;
use kubesvc_core::agent_resource::IDENTIFIED;
use kubesvc_core::identity::{
    Allowance, CredentialMatch, KubesvcIdentity, KubesvcIdentitySpec, ServiceAccountMatch,
};
use kubesvc_core::{KubesvcAccount, KubesvcAgent, PLUGIN_FIELD_MANAGER, age};
use kubesvc_runtime::terminal::{self, Format, OutputError, Table, format};

/// Plural of the resource.
const IDENTITIES: &str = "kubesvcidentities";

pub(crate) const EXAMPLES: &str = "\
Examples:
  kubectl kubesvc identity list -n kubesvc
  kubectl kubesvc identity create east --from-agent agent-1 -n kubesvc
  kubectl kubesvc identity create west --service-account kubesvc/kubesvc-agent --zone west -n kubesvc
  kubectl kubesvc identity why agent-1 -n kubesvc
  kubectl kubesvc identity revoke east -n kubesvc

KubesvcIdentities count in the operator's namespace, while its kubesvc.grpc.auth.mode is bound.";

const LIST_EXAMPLES: &str = "\
Examples:
  kubectl kubesvc identity list -n kubesvc
  kubectl kubesvc identity list -n kubesvc -o yaml";

const CREATE_EXAMPLES: &str = "\
Examples:
  kubectl kubesvc identity create east --from-agent agent-1 -n kubesvc
  kubectl kubesvc identity create west --service-account kubesvc/kubesvc-agent --zone west -n kubesvc
  kubectl kubesvc identity create edge --uri 'spiffe://acme/agent/{zone}' --zone '{zone}' --account 'team-a/*' --dry-run";

const WHY_EXAMPLES: &str = "\
Examples:
  kubectl kubesvc identity why agent-1 -n kubesvc";

const REVOKE_EXAMPLES: &str = "\
Examples:
  kubectl kubesvc identity revoke east -n kubesvc

Undo it with: kubectl patch ksi east -n kubesvc --type=merge -p '{\"spec\":{\"suspended\":false}}'";

/// Arguments of `identity`.
#[derive(Debug, clap::Args)]
pub(crate) struct IdentityArguments {
    #[command(subcommand)]
    command: IdentityCommand,
}

#[derive(Debug, clap::Subcommand)]
enum IdentityCommand {
    /// List identities with their agents.
    #[command(visible_alias = "ls", after_help = LIST_EXAMPLES)]
    List(IdentityListArguments),
    /// Create an identity, by default for its agent's zone and id alone.
    #[command(after_help = CREATE_EXAMPLES)]
    Create(NewIdentityArguments),
    /// Say which identity admits an agent, or why none does.
    #[command(after_help = WHY_EXAMPLES)]
    Why(IdentifiedAgent),
    /// Suspend identities: their agents are cut within a second, and not let in again.
    #[command(after_help = REVOKE_EXAMPLES)]
    Revoke(RevokeArguments),
}

#[derive(Debug, clap::Args)]
struct IdentityListArguments {
    /// Output format. Default: a table.
    #[arg(short, long, value_enum, value_name = "FORMAT")]
    output: Option<Format>,
}

#[derive(Debug, clap::Args)]
struct NewIdentityArguments {
    /// Name of the KubesvcIdentity.
    #[arg(value_name = "NAME")]
    name: String,
    #[command(flatten)]
    credential: ShownCredential,
    /// Zones that the agents may claim. Default: the agent's.
    #[arg(long = "zone", value_name = "ZONE", required_unless_present = "from_agent")]
    zones: Vec<String>,
    /// Agent ids that the agents may claim; * stands for any characters. Default: the agent's, else all.
    #[arg(long = "agent-id", value_name = "ID")]
    agent_ids: Vec<String>,
    /// Accounts that the agents may hold, as NAMESPACE/NAME; * stands for any characters. Default: all.
    #[arg(long = "account", value_name = "NS/NAME")]
    accounts: Vec<String>,
    /// Print the object instead of creating it.
    #[arg(long)]
    dry_run: bool,
}

#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
struct ShownCredential {
    /// The credential of an agent that was shown: its id, or the name of its KubesvcAgent.
    #[arg(long, value_name = "AGENT")]
    from_agent: Option<String>,
    /// A service account of the operator's cluster, whose projected token the agents show.
    #[arg(long, value_name = "NS/NAME")]
    service_account: Option<String>,
    /// The URI of a certificate; * and {name} stand for a part of it.
    #[arg(long, value_name = "URI")]
    uri: Option<String>,
    /// SHA-256 digest of a certificate.
    #[arg(long, value_name = "SHA256")]
    fingerprint: Option<String>,
}

#[derive(Debug, clap::Args)]
struct IdentifiedAgent {
    /// Id of an agent, or name of its KubesvcAgent.
    #[arg(value_name = "AGENT")]
    agent: String,
}

#[derive(Debug, clap::Args)]
struct RevokeArguments {
    /// Names of KubesvcIdentities.
    #[arg(value_name = "NAME", required = true)]
    names: Vec<String>,
}

/// Runs the command.
pub(crate) async fn run(scope: &ScopeArguments, arguments: &IdentityArguments) -> Result<(), CommandError> {
    let session = ApiSession::open(scope).await?;
    match &arguments.command {
        IdentityCommand::List(arguments) => list(&session, arguments.output).await,
        IdentityCommand::Create(arguments) => create(&session, arguments).await,
        IdentityCommand::Why(arguments) => why(&session, &arguments.agent).await,
        IdentityCommand::Revoke(arguments) => {
            for name in &arguments.names {
                revoke(&session, name).await?;
            }
            Ok(())
        }
    }
}

async fn identities(session: &ApiSession) -> Result<Vec<KubesvcIdentity>, CommandError> {
    let asked = ResourceRequest { verb: "list", resource: IDENTITIES, namespace: Some(&session.namespace) };
    let api = session.api::<KubesvcIdentity>(&session.namespace);
    match session.pages(&api, ListParams::default()).await? {
        (identities, None) => Ok(identities),
        (_, Some(error)) => Err(session.failed(asked, &error)),
    }
}

async fn list(session: &ApiSession, output: Option<Format>) -> Result<(), CommandError> {
    let mut identities = identities(session).await?;
    identities.sort_by_key(ResourceExt::name_any);
    let text = match output {
        Some(Format::Json) => format::json(&document(identities)?)?,
        Some(Format::Yaml) => format::yaml(&document(identities)?)?,
        Some(Format::Name) => {
            let names: Vec<_> = identities.iter().map(|one| resource_name(&one.name_any())).collect();
            names.join("\n")
        }
        Some(Format::Wide) | None if identities.is_empty() => {
            terminal::note(&format!(
                "No identities found in {}; they stand in the operator's namespace.",
                session.scope_name()
            ));
            return Ok(());
        }
        Some(Format::Wide) | None => {
            let agents = session.list_agents(Some(&session.namespace)).await?;
            render(&identities, &agents, Timestamp::now())
        }
    };
    Ok(terminal::print(&text)?)
}

fn resource_name(name: &str) -> String {
    format!("kubesvcidentity.kubesvc.io/{name}")
}

fn document(identities: Vec<KubesvcIdentity>) -> Result<Value, CommandError> {
    let raw = identities.into_iter().map(|mut identity| {
        identity.metadata.managed_fields = None;
        serde_json::to_value(identity)
    });
    let raw: Result<Vec<_>, _> = raw.collect();
    Ok(format::list(&raw.map_err(OutputError::Json)?))
}

fn render(identities: &[KubesvcIdentity], agents: &[KubesvcAgent], now: Timestamp) -> String {
    let mut table = Table::new(["NAME", "MATCH", "ZONES", "AGENTS", "READY", "AMBIGUOUS", "AGE"].into());
    for identity in identities {
        let condition = |type_: &str| {
            let conditions = identity.status.iter().flat_map(|status| &status.conditions);
            conditions.filter(|one| one.type_ == type_).map(|one| one.status.clone()).next_back()
        };
        let ready = if identity.spec.suspended { Some("Suspended".to_owned()) } else { condition("Ready") };
        let created = identity.metadata.creation_timestamp.as_ref();
        table.row(vec![
            identity.name_any(),
            described(&identity.spec.credential),
            identity.spec.allow.zones.join(","),
            of_identity(agents, &identity.name_any()).count().to_string(),
            ready.unwrap_or_default(),
            condition("Ambiguous").unwrap_or_default(),
            created.map(|time| age::since(time.0, now)).unwrap_or_default(),
        ]);
    }
    table.lines().join("\n")
}

/// The connected agents that an identity admits.
fn of_identity<'a>(agents: &'a [KubesvcAgent], name: &'a str) -> impl Iterator<Item = &'a KubesvcAgent> {
    agents.iter().filter(move |agent| {
        let status = agent.status.as_ref();
        status.is_some_and(|status| status.connected && status.identity.as_deref() == Some(name))
    })
}

fn described(credential: &CredentialMatch) -> String {
    let CredentialMatch { uri, subject, fingerprints, issuer: _, service_account, jwt, token_secret } =
        credential;
    if let Some(uri) = uri {
        return format!("uri {uri}");
    }
    if let Some(subject) = subject {
        let parts: Vec<_> = subject.iter().map(|(key, value)| format!("{key}={value}")).collect();
        return format!("subject {}", parts.join(","));
    }
    if let Some(fingerprints) = fingerprints {
        return format!("fingerprints ({})", fingerprints.len());
    }
    if let Some(ServiceAccountMatch { namespace, name }) = service_account {
        return format!("service account {namespace}/{name}");
    }
    if let Some(jwt) = jwt {
        return format!("token of {} by {}", jwt.subject, jwt.issuer);
    }
    token_secret.as_ref().map(|secret| format!("token in Secret {}", secret.name)).unwrap_or_default()
}

async fn create(session: &ApiSession, arguments: &NewIdentityArguments) -> Result<(), CommandError> {
    let (credential, agent) = credential(session, &arguments.credential).await?;
    let or = |given: &[String], of_agent: Option<String>| {
        if given.is_empty() { of_agent.into_iter().collect() } else { given.to_vec() }
    };
    let allow = Allowance {
        zones: or(&arguments.zones, agent.as_ref().map(|agent| agent.spec.zone_id.to_string())),
        agent_ids: or(&arguments.agent_ids, agent.as_ref().map(|agent| agent.spec.agent_id.to_string())),
        accounts: arguments.accounts.clone(),
        ..Allowance::default()
    };
    let spec = KubesvcIdentitySpec { credential, allow, ..KubesvcIdentitySpec::default() };
    let mut identity = KubesvcIdentity::new(&arguments.name, spec);
    identity.metadata.namespace = Some(session.namespace.clone());
    if arguments.dry_run {
        let object = serde_json::to_value(&identity).map_err(OutputError::Json)?;
        return Ok(terminal::print(&format::yaml(&object)?)?);
    }
    let asked = ResourceRequest { verb: "create", resource: IDENTITIES, namespace: Some(&session.namespace) };
    let parameters =
        PostParams { field_manager: Some(PLUGIN_FIELD_MANAGER.to_owned()), ..PostParams::default() };
    let api = session.api::<KubesvcIdentity>(&session.namespace);
    session.ask(asked, api.create(&parameters, &identity)).await?;
    Ok(terminal::print(&format!("{} created", resource_name(&arguments.name)))?)
}

async fn credential(
    session: &ApiSession,
    arguments: &ShownCredential,
) -> Result<(CredentialMatch, Option<KubesvcAgent>), CommandError> {
    let ShownCredential { from_agent, service_account, uri, fingerprint } = arguments;
    if let Some(name) = from_agent {
        let agents = session.list_agents(Some(&session.namespace)).await?;
        let agent = choose(&agents, name)?.clone();
        let credential = agent.status.as_ref().and_then(|status| status.credential.clone());
        let credential = credential.ok_or_else(|| {
            CommandError::Failed(format!(
                "agent {name} has shown no credential: give it a certificate or a token, and set kubesvc.grpc.auth.mode: log \
                 or bound at the operator"
            ))
        })?;
        return Ok((credential, Some(agent)));
    }
    let mut credential = CredentialMatch::default();
    if let Some(text) = service_account {
        let (namespace, name) = text
            .split_once('/')
            .ok_or_else(|| CommandError::Usage(format!("--service-account {text} is not NAMESPACE/NAME")))?;
        let of = ServiceAccountMatch { namespace: namespace.to_owned(), name: name.to_owned() };
        credential.service_account = Some(of);
    }
    credential.uri.clone_from(uri);
    credential.fingerprints = fingerprint.clone().map(|digest| vec![digest]);
    Ok((credential, None))
}

async fn why(session: &ApiSession, name: &str) -> Result<(), CommandError> {
    let agents = session.list_agents(Some(&session.namespace)).await?;
    let agent = choose(&agents, name)?;
    let status = agent.status.clone().unwrap_or_default();
    let mut lines = vec![format!("Agent {} of zone {}", agent.spec.agent_id, agent.spec.zone_id)];
    let credential = status.credential.as_ref().map(described);
    lines.push(format!("  shows:     {}", credential.as_deref().unwrap_or("nothing that identifies it")));
    let condition = status.conditions.iter().find(|one| one.type_ == IDENTIFIED);
    match (condition, &status.identity) {
        (None, _) => lines.push(
            "  identity:  not asked for: the operator's kubesvc.grpc.auth.mode is open, or the agent has not connected since"
                .to_owned(),
        ),
        (Some(condition), _) => lines.push(format!("  identity:  {}", condition.message)),
    }
    if let Some(session) = status.session.as_ref().filter(|_| !status.connected)
        && let Some(ended) = session.ended
    {
        lines.push(format!("  last end:  {ended:?}"));
    }
    let is_admitted = condition.is_some_and(|one| one.status == "True");
    if condition.is_some() && !is_admitted && credential.is_some() {
        let id = &agent.spec.agent_id;
        lines.push(format!(
            "To admit it: kubectl kubesvc identity create NAME --from-agent {id} -n {}",
            session.namespace
        ));
    }
    Ok(terminal::print(&lines.join("\n"))?)
}

/// Suspends an identity, and prints which accounts its agents were sent: whoever has them can use their credentials until they
/// are changed.
async fn revoke(session: &ApiSession, name: &str) -> Result<(), CommandError> {
    let name = name.strip_prefix("kubesvcidentity.kubesvc.io/").or(name.strip_prefix("ksi/")).unwrap_or(name);
    let agents = session.list_agents(Some(&session.namespace)).await?;
    let ids: BTreeSet<_> = of_identity(&agents, name).map(|agent| agent.spec.agent_id.to_string()).collect();
    let api = session.api::<KubesvcIdentity>(&session.namespace);
    let asked = ResourceRequest { verb: "patch", resource: IDENTITIES, namespace: Some(&session.namespace) };
    let parameters =
        PatchParams { field_manager: Some(PLUGIN_FIELD_MANAGER.to_owned()), ..PatchParams::default() };
    let patch = Patch::Merge(json!({"spec": {"suspended": true}}));
    session.ask(asked, api.patch(name, &parameters, &patch)).await?;
    terminal::print(&format!("{} suspended; agents cut: {}", resource_name(name), ids.len()))?;
    let accounts = kube::Api::<KubesvcAccount>::all(session.client.clone());
    let (accounts, error) = session.pages(&accounts, ListParams::default()).await?;
    if error.is_some() {
        terminal::note(
            "You may not list the accounts of all namespaces: which ones its agents were sent is not shown.",
        );
    }
    let sent = sent(&accounts, &ids);
    if !sent.is_empty() {
        let mut lines =
            vec!["These accounts were sent to them; change their credentials if one was stolen:".to_owned()];
        lines
            .extend(sent.into_iter().map(|(account, agents)| format!("  {account} ({})", agents.join(", "))));
        terminal::print(&lines.join("\n"))?;
    }
    Ok(())
}

/// The accounts that these agents hold, each with those.
fn sent(accounts: &[KubesvcAccount], ids: &BTreeSet<String>) -> BTreeMap<String, Vec<String>> {
    let of = accounts.iter().filter_map(|account| {
        let agents = &account.status.as_ref()?.agents;
        let held: Vec<_> = agents.iter().map(ToString::to_string).filter(|id| ids.contains(id)).collect();
        let key = format!("{}/{}", account.namespace().unwrap_or_default(), account.name_any());
        (!held.is_empty()).then_some((key, held))
    });
    of.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use kubesvc_core::{KubesvcAccountSpec, KubesvcAccountStatus, KubesvcAgentSpec, KubesvcAgentStatus};

    fn identity(name: &str, credential: CredentialMatch) -> KubesvcIdentity {
        let allow = Allowance { zones: vec!["east".into(), "edge-*".into()], ..Allowance::default() };
        KubesvcIdentity::new(
            name,
            KubesvcIdentitySpec { credential, allow, ..KubesvcIdentitySpec::default() },
        )
    }

    fn agent(id: &str, identity: Option<&str>, connected: bool) -> KubesvcAgent {
        let spec = KubesvcAgentSpec { agent_id: id.into(), zone_id: "east".into(), approved: false };
        let mut agent = KubesvcAgent::new(id, spec);
        let identity = identity.map(str::to_owned);
        agent.status = Some(KubesvcAgentStatus { connected, identity, ..KubesvcAgentStatus::default() });
        agent
    }

    #[test]
    fn a_row_says_what_matches_and_how_many_agents_are_connected() {
        let uri = CredentialMatch { uri: Some("spiffe://a/{zone}".into()), ..CredentialMatch::default() };
        let mut suspended = identity("b", CredentialMatch::default());
        suspended.spec.suspended = true;
        let agents = [agent("1", Some("a"), true), agent("2", Some("a"), false), agent("3", None, true)];
        let table = render(&[identity("a", uri), suspended], &agents, Timestamp::UNIX_EPOCH);
        let rows: Vec<Vec<_>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows[1][..5], ["a", "uri", "spiffe://a/{zone}", "east,edge-*", "1"]);
        assert!(rows[2].contains(&"Suspended"), "{table}");
    }

    #[test]
    fn the_accounts_that_a_revoked_agent_was_sent_are_named() {
        let account = |name: &str, agents: &[&str]| {
            let mut account = KubesvcAccount::new(name, KubesvcAccountSpec::default());
            account.metadata.namespace = Some("ns".into());
            let agents = agents.iter().map(|id| (*id).into()).collect();
            account.status = Some(KubesvcAccountStatus { agents, ..KubesvcAccountStatus::default() });
            account
        };
        let accounts = [account("one", &["1", "9"]), account("two", &["9"]), account("three", &["1"])];
        let found = sent(&accounts, &BTreeSet::from(["1".to_owned()]));
        assert_eq!(found.keys().collect::<Vec<_>>(), ["ns/one", "ns/three"]);
        assert_eq!(found["ns/one"], ["1"]);
    }
}
