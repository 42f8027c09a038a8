//! `kubectl kubesvc import`: takes over an installation of the Armory Scale Agent, and changes nothing of it.

mod agents;
mod creation;
mod report;
mod rows;
pub(crate) mod settings;

use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use futures::{StreamExt as _, stream};
use secrecy::SecretString;

use self::agents::AgentConfig;
use self::creation::AccountCreator;
use self::report::ImportReport;
use self::rows::{ExistingAccounts, RowLine, RowPlan, RowResult};
use self::settings::{ImportedSettings, ROOTS, judged};
use crate::account_api;
use crate::api_session::ApiSession;
use crate::arguments::{CommandError, ScopeArguments};
use crate::program_settings::ProgramSettings;
use kubesvc_clouddriver::sources::{NamedText, read_settings};
use kubesvc_core::account_row::ForeignRow;
use kubesvc_runtime::config::ConfigProblem;
use kubesvc_runtime::telemetry::errors::chain;
use kubesvc_runtime::terminal::{self, Progress, format};
use kubesvc_store::{
    ClouddriverDatabase, ClouddriverTableError, VendorTableError, check_clouddriver_url, read_vendor_accounts,
};

pub(crate) const EXAMPLES: &str = "\
Examples:
  kubectl kubesvc import -n kubesvc --clouddriver-config clouddriver.yml --agent-config ./agent/config --dry-run
  kubectl kubesvc import -n kubesvc --clouddriver-config clouddriver.yml --clouddriver-config clouddriver-local.yml \\
      --agent-config configmap/spinnaker/armory-agent-config \\
      --database mysql://reader@db.example:3306/clouddriver --database-password-file ./password

It changes nothing of the Scale Agent. Accounts are created INACTIVE; those that exist are left as they are.
Exit codes: 0; 3, something was refused; 4, something could not be read or created. docs/migrate-from-scale-agent.md has all steps.";

/// Exit code if something was refused.
const REFUSED: u8 = 3;
/// Exit code if something could not be read as a whole, or an account could not be created.
const INCOMPLETE: u8 = 4;
/// Maximum number of accounts that are created at once.
const MAX_CONCURRENT_CREATES: usize = 8;
/// Maximum size of a file of Clouddriver, in bytes.
const MAX_FILE_BYTES: u64 = 16 << 20;

/// Arguments of `import`.
#[derive(Debug, clap::Args)]
pub(crate) struct ImportArguments {
    /// Folder with an agent's armory-agent.yml, or configmap/[NAMESPACE/]NAME; may be repeated.
    #[arg(long, value_name = "DIR|configmap/NAME")]
    agent_config: Vec<AgentConfig>,
    /// A YAML file of Clouddriver with [armory.]kubesvc settings; may be repeated.
    #[arg(long, value_name = "FILE", required = true)]
    clouddriver_config: Vec<PathBuf>,
    /// Spring profiles that are active in Clouddriver, besides local.
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    clouddriver_profiles: Vec<String>,
    /// Database of the plugin, mysql:// or postgresql://, without a password. SELECT on kubesvc_accounts is enough. Without it, no account is created.
    #[arg(long, value_name = "URL")]
    database: Option<String>,
    /// File with the password of the database's user. Default: KUBESVC_DATABASE_PASSWORD in the environment.
    #[arg(long, value_name = "FILE", requires = "database")]
    database_password_file: Option<PathBuf>,
    /// Where the operator's settings are written; a file that differs is not overwritten.
    #[arg(long, value_name = "FILE", default_value = "kubesvc-imported.yml")]
    settings_out: PathBuf,
    /// Write nothing, neither objects nor the file. The API server checks each account.
    #[arg(long)]
    dry_run: bool,
    /// Output format.
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t = ReportFormat::Table)]
    output: ReportFormat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ReportFormat {
    Table,
    Json,
    Yaml,
}

/// Runs the command.
pub(crate) async fn run(
    scope: &ScopeArguments,
    arguments: &ImportArguments,
    programs: ProgramSettings,
) -> Result<(), CommandError> {
    if scope.all_namespaces {
        return Err(CommandError::Usage("--all-namespaces has no meaning here; give --namespace".to_owned()));
    }
    let session = ApiSession::open(scope).await?;
    // All that can be wrong is found before anything is written.
    let settings = imported_settings(arguments, programs)?;
    let has_gateway = account_api::require(&session).await.is_ok();
    let mut agents = Vec::new();
    for config in &arguments.agent_config {
        agents.push(agents::read(&session, config, programs).await?);
    }
    let mut incomplete: Vec<String> = settings.incomplete.iter().cloned().collect();
    let rows = match &arguments.database {
        None => Vec::new(),
        Some(url) => {
            let read = read_rows(url, arguments.database_password_file.as_deref()).await?;
            if read.unread > 0 {
                incomplete.push(format!("{} rows of kubesvc_accounts were not read", read.unread));
            }
            read.rows
        }
    };
    let existing = if rows.is_empty() { Vec::new() } else { session.list_accounts(None).await? };
    let existing = ExistingAccounts::of(existing.iter().map(|one| &one.account));
    if !arguments.dry_run {
        write_settings(&arguments.settings_out, &settings_file(&settings))?;
    }
    let accounts = accounts(&session, &rows, &existing, arguments.dry_run).await;
    let failed = accounts.iter().filter(|one| one.result == RowResult::Failed).count();
    if failed > 0 {
        incomplete.push(format!("accounts that failed: {failed}; the same command again goes on with them"));
    }
    let report = ImportReport {
        warning: ImportReport::warning(has_gateway),
        dry_run: arguments.dry_run,
        settings_file: arguments.settings_out.display().to_string(),
        settings: settings.lines,
        agents,
        namespace: session.namespace.clone(),
        accounts,
        has_database: arguments.database.is_some(),
        incomplete,
    };
    terminal::print(&match (arguments.output, report.warning) {
        (ReportFormat::Table, _) => report.lines().join("\n"),
        (ReportFormat::Json, _) => format::json(&report)?,
        (ReportFormat::Yaml, None) => format::yaml(&report)?,
        (ReportFormat::Yaml, Some(warning)) => format!("# {warning}\n{}", format::yaml(&report)?),
    })?;
    match (report.incomplete.is_empty(), report.has_refusals()) {
        (false, _) => Err(CommandError::Ended(INCOMPLETE)),
        (true, true) => Err(CommandError::Ended(REFUSED)),
        (true, false) => Ok(()),
    }
}

/// Reads Clouddriver's files, and checks the operator's file that they become.
fn imported_settings(
    arguments: &ImportArguments,
    programs: ProgramSettings,
) -> Result<ImportedSettings, CommandError> {
    let files = arguments.clouddriver_config.iter().map(|path| {
        let name = path.display().to_string();
        let size = std::fs::metadata(path).map(|metadata| metadata.len());
        if size.is_ok_and(|size| size > MAX_FILE_BYTES) {
            return Err(CommandError::Failed(format!("{name}: it is larger than 16 MiB")));
        }
        let text = std::fs::read_to_string(path).map_err(|error| format!("{name}: {error}"))?;
        Ok(NamedText { name, text })
    });
    let files: Vec<_> = files.collect::<Result<_, _>>()?;
    let found =
        read_settings(&files, &arguments.clouddriver_profiles, &ROOTS).map_err(|fault| fault.to_string())?;
    let mut settings = judged((programs.operator)(), &found);
    let trial = tempfile::Builder::new().suffix(".yml").tempfile();
    let trial = trial.map_err(|error| format!("the operator's file cannot be checked: {error}"))?;
    let check = |text: &str| {
        let unwritten = |error: std::io::Error| ConfigProblem::Unreadable {
            file: trial.path().display().to_string().into(),
            why: error.to_string(),
        };
        std::fs::write(trial.path(), text).map_err(unwritten)?;
        (programs.check_operator)(trial.path())
    };
    settings.refuse_unfit(check).map_err(|error| {
        let problems: Vec<_> = error.problems.iter().map(ConfigProblem::reason).collect();
        format!("the operator would refuse these settings together: {}", problems.join("; "))
    })?;
    let (path, text) = (&arguments.settings_out, settings_file(&settings));
    let differs = std::fs::read_to_string(path).is_ok_and(|there| there != text);
    if differs && !arguments.dry_run {
        let path = path.display();
        return Err(CommandError::Failed(format!(
            "{path} is there and differs: give --settings-out another file"
        )));
    }
    Ok(settings)
}

fn settings_file(settings: &ImportedSettings) -> String {
    format!(
        "# Settings of the Armory Scale Agent's plugin, by kubectl kubesvc import.\n\
         # kubesvc has a database of its own: set kubesvc.database.url.\n{}",
        settings.file
    )
}

/// Writes the file, which only the user may read.
fn write_settings(path: &Path, text: &str) -> Result<(), CommandError> {
    if std::fs::read_to_string(path).is_ok_and(|there| there == text) {
        return Ok(());
    }
    let file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
    Ok(written.map_err(|error| format!("{}: {error}", path.display()))?)
}

/// Reads the vendor's rows.
async fn read_rows(
    url: &str,
    password: Option<&Path>,
) -> Result<kubesvc_store::VendorAccounts, CommandError> {
    const URL: &str = "--database must be mysql://USER@HOST:PORT/DATABASE or postgresql://USER@HOST:PORT/DATABASE, without \
                       a password, which is for --database-password-file or KUBESVC_DATABASE_PASSWORD";
    check_clouddriver_url(url).map_err(|_| CommandError::Usage(URL.to_owned()))?;
    let password = match password {
        Some(path) => {
            let text =
                std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
            Some(text.trim_end_matches(['\r', '\n']).to_owned())
        }
        None => std::env::var("KUBESVC_DATABASE_PASSWORD").ok(),
    };
    let database = ClouddriverDatabase {
        url: url.to_owned(),
        password: password.map(SecretString::from),
        authority: None,
    };
    let said = |code: u8, text: String| {
        crate::arguments::complain(&text);
        CommandError::Ended(code)
    };
    read_vendor_accounts(&database).await.map_err(|error| match error {
        VendorTableError::Unreadable(ClouddriverTableError::Login { database, .. }) => {
            let text = format!("the database {database} refuses the user: check --database and the password");
            said(INCOMPLETE, text)
        }
        VendorTableError::Unreadable(error) => said(INCOMPLETE, chain(&error)),
        error => said(REFUSED, error.to_string()),
    })
}

/// Creates the accounts of rows, and says what became of each, in the order of the rows.
async fn accounts(
    session: &ApiSession,
    rows: &[ForeignRow],
    existing: &ExistingAccounts,
    dry_run: bool,
) -> Vec<RowLine> {
    let (creator, bar) = (AccountCreator::new(session, dry_run), Progress::new(rows.len() as u64));
    let lines = stream::iter(rows).map(|row| async {
        let (result, reason) = match rows::plan(row, &session.namespace, existing) {
            RowPlan::Create(adoption) => creator.create(&adoption).await,
            RowPlan::Exists(why) => (RowResult::Exists, why),
            RowPlan::Left(why) => (RowResult::Left, why.to_owned()),
            RowPlan::Refused(why) => (RowResult::Refused, why),
        };
        let is_imported = matches!(result, RowResult::Created | RowResult::Exists);
        RowLine {
            name: row.name.clone(),
            status: row.status.clone(),
            zone_id: row.zone_id.clone(),
            desired_state: is_imported.then(|| rows::desired(row)),
            result,
            reason,
        }
    });
    let mut done = 0;
    let lines = lines.buffered(MAX_CONCURRENT_CREATES).inspect(|_| {
        done += 1;
        bar.show(done, "accounts".to_owned());
    });
    lines.collect().await
}
