//! `kubectl kubesvc migrate`: takes accounts over from Clouddriver's credentials sources. It writes KubesvcMigrations, which
//! the operator carries out, and shows them; a dry run asks the operator what would be done.

mod follow;
mod plan;

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};
use ulid::Ulid;

use self::follow::follow;
use crate::api_session::{ApiSession, ResourceRequest, did_you_mean};
use crate::arguments::{CommandError, ScopeArguments, duration};
use crate::operator_client::{OperatorArguments, OperatorClient, encoded};
use kubesvc_core::migration::{MigrationWave, ZoneRule};
use kubesvc_core::{
    FORCE_ROLLBACK_ANNOTATION, KubesvcMigration, KubesvcMigrationSpec, PLUGIN_FIELD_MANAGER,
    RETRY_ANNOTATION, ZoneId, age,
};
use kubesvc_runtime::terminal::{self, Format, OutputError, Table, format, text};

pub(crate) const EXAMPLES: &str = "\
Examples:
  kubectl kubesvc migrate --all --dry-run
  kubectl kubesvc migrate prod-east prod-west --zone east --progress
  kubectl kubesvc migrate --match 'team-a-.*' --wave 10% --progress
  kubectl kubesvc migrate status
  kubectl kubesvc migrate pause migrate-x7k2p
  kubectl kubesvc migrate rollback migrate-x7k2p --delete

Migrations are KubesvcMigrations in the operator's namespace; Git can hold them too. Exits with 3 if some accounts were
refused or failed, with 4 if a credentials source could not be read completely.";

const STATUS_EXAMPLES: &str = "\
Examples:
  kubectl kubesvc migrate status
  kubectl kubesvc migrate status migrate-x7k2p -o yaml";

const PAUSE_EXAMPLES: &str = "\
Examples:
  kubectl kubesvc migrate pause migrate-x7k2p";

const RESUME_EXAMPLES: &str = "\
Examples:
  kubectl kubesvc migrate resume migrate-x7k2p --progress

The accounts that failed are accepted; those whose writes were refused are tried again.";

const ROLLBACK_EXAMPLES: &str = "\
Examples:
  kubectl kubesvc migrate rollback migrate-x7k2p
  kubectl kubesvc migrate rollback migrate-x7k2p --delete

It takes back the accounts that the migration created and nobody has changed since. To migrate again, set spec.rollback to
none, or make another migration.";

/// Plural of the kind, for messages.
const MIGRATIONS: &str = "kubesvcmigrations";
/// Exit code if some accounts were refused or failed.
const SOME_REFUSED: u8 = 3;
/// Exit code if a source could not be read completely.
const INCOMPLETE: u8 = 4;
/// Prefix of the names of migrations that are not named.
const NAME_PREFIX: &str = "migrate-";

/// Arguments of `migrate`.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct MigrateArguments {
    /// Names of accounts in Clouddriver.
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Accounts whose whole names match a regular expression.
    #[arg(long = "match", value_name = "RE")]
    patterns: Vec<String>,
    /// All accounts of the credentials sources.
    #[arg(long, conflicts_with_all = ["names", "patterns"])]
    all: bool,
    /// Accounts that are left out, by a regular expression for their whole names.
    #[arg(long, value_name = "RE")]
    exclude: Vec<String>,
    /// Only accounts of this credentials source.
    #[arg(long = "source", value_name = "S")]
    sources: Vec<String>,
    /// Zone of the accounts. Default: the agents say which clusters they reach.
    #[arg(long, value_name = "Z")]
    zone: Option<String>,
    /// Show what would be done, and write nothing.
    #[arg(long)]
    dry_run: bool,
    /// Accounts at a time, as a number or a share such as 10%.
    #[arg(long, value_name = "N", default_value = "10%")]
    wave: String,
    /// How long the accounts of a wave must stay well before the next one begins.
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = duration)]
    soak: Duration,
    /// Only create the accounts, and leave them INACTIVE.
    #[arg(long)]
    inactive: bool,
    /// Name of the migration. Default: one that begins with `migrate-`.
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Follow the migration until it is complete or needs someone.
    #[arg(long)]
    progress: bool,
    /// Output format. Default: a table.
    #[arg(short, long, value_enum, value_name = "FORMAT", global = true)]
    output: Option<Format>,
    #[command(flatten)]
    operator: OperatorArguments,
    #[command(subcommand)]
    command: Option<MigrationCommand>,
}

#[derive(Debug, clap::Subcommand)]
enum MigrationCommand {
    /// List migrations, or show one.
    #[command(after_help = STATUS_EXAMPLES)]
    Status {
        /// Name of the migration.
        #[arg(value_name = "NAME")]
        name: Option<String>,
    },
    /// Pause a migration between two accounts.
    #[command(after_help = PAUSE_EXAMPLES)]
    Pause {
        /// Name of the migration.
        #[arg(value_name = "NAME")]
        name: String,
    },
    /// Resume a migration that was paused, or that paused by itself.
    #[command(after_help = RESUME_EXAMPLES)]
    Resume {
        /// Name of the migration.
        #[arg(value_name = "NAME")]
        name: String,
        /// Follow the migration until it is complete or needs someone.
        #[arg(long)]
        progress: bool,
    },
    /// Take back the accounts of a migration: they become INACTIVE.
    #[command(after_help = ROLLBACK_EXAMPLES)]
    Rollback {
        /// Name of the migration.
        #[arg(value_name = "NAME")]
        name: String,
        /// Delete the accounts.
        #[arg(long)]
        delete: bool,
        /// Also those that the credentials sources no longer have.
        #[arg(long)]
        force: bool,
        /// Follow the migration until it is complete or needs someone.
        #[arg(long)]
        progress: bool,
    },
}

/// Runs the command.
pub(crate) async fn run(scope: &ScopeArguments, arguments: &MigrateArguments) -> Result<(), CommandError> {
    let command = arguments.command.as_ref();
    if command.is_none() && arguments.dry_run {
        let operator = OperatorClient::open(scope, &arguments.operator).await?;
        let planned = operator.json(&format!("/armory/migrations/plan?{}", arguments.query()?)).await?;
        return plan::show(&planned, arguments.output);
    }
    let mut session = ApiSession::open(scope).await?;
    if let Some(namespace) = arguments.operator.namespace() {
        namespace.clone_into(&mut session.namespace);
    }
    let migrations = Migrations { api: session.api(&session.namespace), session: &session };
    match command {
        None => {
            let name = migrations.create(arguments).await?;
            if arguments.progress { follow(&migrations, &name).await } else { Ok(()) }
        }
        Some(MigrationCommand::Status { name }) => migrations.status(name.as_deref(), arguments.output).await,
        Some(MigrationCommand::Pause { name }) => {
            migrations.patch(name, &json!({"spec": {"paused": true}}), "is paused").await
        }
        Some(MigrationCommand::Resume { name, progress }) => {
            let resumed = json!({
                "metadata": {"annotations": {RETRY_ANNOTATION: Ulid::generate().to_string()}},
                "spec": {"paused": false},
            });
            migrations.patch(name, &resumed, "goes on").await?;
            if *progress { follow(&migrations, name).await } else { Ok(()) }
        }
        Some(MigrationCommand::Rollback { name, delete, force, progress }) => {
            let force = force.then_some("true");
            let rolled_back = json!({
                "metadata": {"annotations": {FORCE_ROLLBACK_ANNOTATION: force}},
                "spec": {"rollback": if *delete { "delete" } else { "deactivate" }, "paused": false},
            });
            migrations.patch(name, &rolled_back, "is rolled back").await?;
            if *progress { follow(&migrations, name).await } else { Ok(()) }
        }
    }
}

impl MigrateArguments {
    /// The patterns of the accounts, `--all` included.
    fn patterns(&self) -> Result<Vec<String>, CommandError> {
        if self.names.is_empty() && self.patterns.is_empty() && !self.all {
            return Err(CommandError::Usage(
                "say which accounts: their names, --match RE, or --all; --dry-run shows what would be done"
                    .to_owned(),
            ));
        }
        Ok(if self.all { vec![".*".to_owned()] } else { self.patterns.clone() })
    }

    fn query(&self) -> Result<String, CommandError> {
        let patterns = self.patterns()?;
        let of = |key: &'static str, values: &[String]| {
            values.iter().map(move |value| format!("{key}={}", encoded(value))).collect::<Vec<_>>()
        };
        let zone: Vec<String> = self.zone.iter().cloned().collect();
        let all = [
            of("name", &self.names),
            of("pattern", &patterns),
            of("excludePattern", &self.exclude),
            of("source", &self.sources),
            of("zoneId", &zone),
        ];
        Ok(all.concat().join("&"))
    }

    fn spec(&self) -> Result<KubesvcMigrationSpec, CommandError> {
        let zone_rules = self.zone.iter().map(|zone| ZoneRule {
            pattern: ".*".to_owned(),
            zone_id: ZoneId::from(zone.as_str()),
            ..ZoneRule::default()
        });
        Ok(KubesvcMigrationSpec {
            sources: self.sources.clone(),
            names: self.names.clone(),
            patterns: self.patterns()?,
            exclude_patterns: self.exclude.clone(),
            zone_rules: zone_rules.collect(),
            activate: !self.inactive,
            wave: MigrationWave {
                size: self
                    .wave
                    .parse()
                    .map_or_else(|_| IntOrString::String(self.wave.clone()), IntOrString::Int),
                soak: format!("{}s", self.soak.as_secs()),
            },
            ..KubesvcMigrationSpec::default()
        })
    }
}

/// The migrations in the operator's namespace.
struct Migrations<'s> {
    session: &'s ApiSession,
    api: Api<KubesvcMigration>,
}

impl Migrations<'_> {
    fn asked(&self, verb: &'static str) -> ResourceRequest<'_> {
        ResourceRequest { verb, resource: MIGRATIONS, namespace: Some(&self.session.namespace) }
    }

    /// Creates a migration, and returns its name.
    async fn create(&self, arguments: &MigrateArguments) -> Result<String, CommandError> {
        let mut migration = KubesvcMigration::new("", arguments.spec()?);
        migration.metadata.name.clone_from(&arguments.name);
        migration.metadata.generate_name = arguments.name.is_none().then(|| NAME_PREFIX.to_owned());
        let parameters =
            PostParams { field_manager: Some(PLUGIN_FIELD_MANAGER.to_owned()), ..PostParams::default() };
        let created = self.api.create(&parameters, &migration);
        let name = self.session.ask(self.asked("create"), created).await?.name_any();
        terminal::print(&format!("{} created", resource_name(&name)))?;
        if !arguments.progress {
            terminal::note(&format!("Its progress: kubectl kubesvc migrate status {name}"));
        }
        Ok(name)
    }

    async fn patch(&self, name: &str, patch: &Value, outcome: &str) -> Result<(), CommandError> {
        let name = bare(name);
        let parameters = PatchParams::apply(PLUGIN_FIELD_MANAGER);
        let parameters = PatchParams { force: false, ..parameters };
        let patch = Patch::Merge(patch);
        let patched = self.session.try_ask(self.api.patch(name, &parameters, &patch)).await?;
        match patched {
            Ok(_) => Ok(terminal::print(&format!("{} {outcome}", resource_name(name)))?),
            Err(kube::Error::Api(status))
                if status.code == 404 && !status.message.contains("the server could not") =>
            {
                Err(self.unknown(name).await)
            }
            Err(error) => Err(self.session.failed(self.asked("patch"), &error)),
        }
    }

    async fn list(&self) -> Result<Vec<KubesvcMigration>, CommandError> {
        let (items, error) = self.session.pages(&self.api, ListParams::default()).await?;
        error.map_or(Ok(items), |error| Err(self.session.failed(self.asked("list"), &error)))
    }

    /// The error about a migration that does not exist.
    async fn unknown(&self, name: &str) -> CommandError {
        let there = self.list().await.unwrap_or_default();
        let names: Vec<String> = there.iter().map(kube::ResourceExt::name_any).collect();
        let near = did_you_mean(name, names.iter().map(String::as_str));
        let namespace = &self.session.namespace;
        CommandError::Failed(format!(
            "no migration {name:?} in namespace {namespace}{near}; migrations stand in the operator's namespace \
             (--operator-namespace)"
        ))
    }

    /// One migration.
    async fn get(&self, name: &str) -> Result<KubesvcMigration, CommandError> {
        let found = self.session.ask(self.asked("get"), self.api.get_opt(bare(name))).await?;
        match found {
            Some(found) => Ok(found),
            None => Err(self.unknown(bare(name)).await),
        }
    }

    async fn status(&self, name: Option<&str>, output: Option<Format>) -> Result<(), CommandError> {
        let mut shown = match name {
            Some(name) => vec![self.get(name).await?],
            None => self.list().await?,
        };
        let names = || shown.iter().map(|one| resource_name(&one.name_any()));
        let text = match output {
            Some(Format::Name) => names().collect::<Vec<_>>().join("\n"),
            Some(machine @ (Format::Json | Format::Yaml)) => {
                shown.iter_mut().for_each(|one| one.metadata.managed_fields = None);
                let items: Result<Vec<Value>, _> = shown.iter().map(serde_json::to_value).collect();
                let items = items.map_err(OutputError::Json)?;
                let document = match (name, items.first()) {
                    (Some(_), Some(one)) => one.clone(),
                    _ => format::list(&items),
                };
                if machine == Format::Json { format::json(&document)? } else { format::yaml(&document)? }
            }
            Some(Format::Wide) | None if shown.is_empty() => {
                terminal::note(&format!("No migrations in namespace {}.", self.session.namespace));
                return Ok(());
            }
            Some(Format::Wide) | None => {
                let mut text = table(&shown);
                if let (Some(_), Some(one)) = (name, shown.first()) {
                    text.push_str(&notable(one));
                }
                text
            }
        };
        Ok(terminal::print(&text)?)
    }
}

fn table(migrations: &[KubesvcMigration]) -> String {
    let headings = ["NAME", "PHASE", "TOTAL", "DONE", "ACTIVE", "FAILED", "WAVE", "AGE", "MESSAGE"];
    let mut table = Table::new(headings.to_vec());
    let now = jiff::Timestamp::now();
    for one in migrations {
        let status = one.status.clone().unwrap_or_default();
        let created = one.creation_timestamp().map(|created| age::since(created.0, now));
        let numbers = [status.total, status.done, status.active, status.failed, status.wave];
        let mut cells = vec![one.name_any(), format!("{:?}", status.phase)];
        cells.extend(numbers.map(|number| number.to_string()));
        cells.extend([created.unwrap_or_default(), ready(one)]);
        table.row(cells);
    }
    table.lines().join("\n")
}

/// The message of the condition Ready.
fn ready(migration: &KubesvcMigration) -> String {
    let conditions = migration.status.iter().flat_map(|status| &status.conditions);
    let ready = conditions.into_iter().find(|condition| condition.type_ == "Ready");
    ready.map(|ready| text::line(&ready.message)).unwrap_or_default()
}

/// The accounts that someone should look at.
fn notable(migration: &KubesvcMigration) -> String {
    let notable = migration.status.iter().flat_map(|status| &status.notable);
    let mut table = Table::new(vec!["ACCOUNT", "REASON", "MESSAGE"]);
    for one in notable {
        table.row([text::line(&one.name), one.reason.clone(), text::line(&one.message)]);
    }
    let lines = table.lines();
    if lines.len() < 2 { String::new() } else { format!("\n\n{}", lines.join("\n")) }
}

fn resource_name(name: &str) -> String {
    format!("kubesvcmigration.kubesvc.io/{name}")
}

/// The name without a kind, as `-o name` prints it.
fn bare(name: &str) -> &str {
    name.rsplit_once('/').map_or(name, |(_, name)| name)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: MigrateArguments,
    }

    fn arguments(words: &[&str]) -> MigrateArguments {
        let words = ["migrate"].iter().chain(words);
        Line::try_parse_from(words).unwrap_or_else(|error| unreachable!("{error}")).arguments
    }

    #[test]
    fn flags_become_a_spec() {
        let spec = arguments(&["--match", "a.*", "--zone", "east", "--wave", "5", "--source", "sql"])
            .spec()
            .expect("a spec");
        assert_eq!(
            json!(spec),
            json!({
                "sources": ["sql"], "patterns": ["a.*"], "zoneRules": [{"pattern": ".*", "zoneId": "east"}],
                "activate": true, "wave": {"size": 5, "soak": "60s"},
                "limits": {"maxFailed": "5%", "maxInFlight": 572}, "paused": false, "rollback": "none",
                "onSourceChange": "report", "onSourceRemoval": "keep",
            })
        );
        let all = arguments(&["--all", "--wave", "10%", "--inactive"]).spec().expect("a spec");
        assert_eq!(
            (json!(all.patterns), json!(all.wave.size), all.activate),
            (json!([".*"]), json!("10%"), false)
        );
        assert!(matches!(arguments(&[]).spec(), Err(CommandError::Usage(_))));
    }

    #[test]
    fn each_subcommand_takes_the_namespace_that_its_errors_advise() {
        for words in
            [&["status"][..], &["status", "m"], &["pause", "m"], &["resume", "m"], &["rollback", "m"]]
        {
            let with = [words, &["--operator-namespace", "kubesvc"]].concat();
            assert_eq!(arguments(&with).operator.namespace(), Some("kubesvc"), "{words:?}");
        }
    }

    #[test]
    fn a_dry_run_asks_with_encoded_words() {
        let query = arguments(&["a/b", "ü", "--exclude", "x+", "--dry-run"]).query().expect("a query");
        assert_eq!(query, "name=a%2Fb&name=%C3%BC&excludePattern=x%2B");
    }
}
