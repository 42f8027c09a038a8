//! `GET /armory/migrations/plan`: what a migration would do, account by account. Nothing is written.

use std::time::Duration;

use axum::Json;
use axum::extract::{RawQuery, State};
use serde::Serialize;
use utoipa::ToSchema;

use super::RestState;
use super::error::{ErrorBody, RestError};
use crate::source_accounts::Assessments;
use kubesvc_clouddriver::migration::{MigrationSelection, Plan, PlanOutcome, PlannedAccount};
use kubesvc_core::migration::ZoneRule;
use kubesvc_core::{KubesvcMigrationSpec, ZoneId};

/// Time limit for reading the credentials sources.
const SOURCES_TIMEOUT: Duration = Duration::from_secs(20);

/// Bounds of a plan, those of a KubesvcMigration.
const MAX_NAMES: usize = 1000;
const MAX_SOURCES: usize = 32;
const MAX_PATTERNS: usize = 100;
const MAX_PATTERN_BYTES: usize = 1024;

/// What a migration would do.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct MigrationPlan {
    /// The selected accounts, by name.
    accounts: Vec<AccountPlan>,
    /// Selected entries that do not count, because an earlier source has an account of the name.
    shadowed: Vec<ShadowedAccount>,
    /// What may surprise about the selection.
    warnings: Vec<String>,
    /// A source that may have more accounts and was not read completely.
    #[serde(skip_serializing_if = "Option::is_none")]
    unread_source: Option<String>,
}

/// What would become of one account.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct AccountPlan {
    name: String,
    /// `create`, `exists`, `declined`, `refused`, `missing` or `undecided`.
    outcome: &'static str,
    /// Why it is refused, as a word in CamelCase.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
    /// Why it is not created, for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
    /// The source whose entry counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    source: Option<String>,
    /// Its zone, if a rule names one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    zone_id: Option<ZoneId>,
    /// Kind of its credential.
    #[serde(skip_serializing_if = "Option::is_none")]
    credential: Option<&'static str>,
    /// Fields of the entry that have no effect in kubesvc.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    without_effect: Vec<String>,
    /// What may surprise about the entry.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
}

/// An entry that does not count.
#[derive(Debug, Serialize, ToSchema)]
struct ShadowedAccount {
    name: String,
    /// Its source.
    source: String,
    /// The source whose entry counts.
    by: String,
}

impl AccountPlan {
    fn of(name: &str, planned: &PlannedAccount) -> Self {
        let (reason, message) = match &planned.outcome {
            PlanOutcome::Refused { reason, message } => (Some(*reason), Some(message.clone())),
            PlanOutcome::Undecided { source } => {
                (None, Some(format!("source {source:?} may have it, and was not read completely")))
            }
            PlanOutcome::Declined => {
                let why = "it was deleted, and its entry has not changed since; name it in spec.names to migrate it";
                (None, Some(why.to_owned()))
            }
            PlanOutcome::Missing => (None, Some("no source has an account of this name".to_owned())),
            PlanOutcome::Create | PlanOutcome::Exists => (None, None),
        };
        let assessed = planned.entry.as_ref().map(|(_, assessed)| assessed);
        let mut warnings = planned.warnings.clone();
        warnings.extend(assessed.into_iter().flat_map(|assessed| assessed.report.warnings.iter().cloned()));
        Self {
            name: name.to_owned(),
            outcome: planned.outcome.as_str(),
            reason,
            message,
            source: planned.source().map(str::to_owned),
            zone_id: planned.zone().cloned(),
            credential: assessed.and_then(|assessed| assessed.credential),
            without_effect: assessed
                .map(|assessed| assessed.report.without_effect.named.clone())
                .unwrap_or_default(),
            warnings,
        }
    }
}

impl From<&Plan> for MigrationPlan {
    fn from(plan: &Plan) -> Self {
        let shadowed = plan.shadowed.iter().map(|one| ShadowedAccount {
            name: one.name.clone(),
            source: one.source.to_string(),
            by: one.by.to_string(),
        });
        Self {
            accounts: plan.accounts.iter().map(|(name, planned)| AccountPlan::of(name, planned)).collect(),
            shadowed: shadowed.collect(),
            warnings: plan.warnings.clone(),
            unread_source: plan.unread_source().map(str::to_owned),
        }
    }
}

/// Show what a migration would do, by the credentials sources as they are now. Nothing is written.
#[utoipa::path(get, path = "/armory/migrations/plan", operation_id = "planMigration", tag = "accounts",
    params(
        ("name" = Option<Vec<String>>, Query, description = "Account to migrate; may be repeated, as all parameters"),
        ("pattern" = Option<Vec<String>>, Query, description = "Regular expression for whole names of accounts to migrate"),
        ("excludePattern" = Option<Vec<String>>, Query, description = "The same for accounts that are left out"),
        ("source" = Option<Vec<String>>, Query, description = "Credentials source; default: all"),
        ("zoneId" = Option<String>, Query, description = "Zone of the accounts"),
    ),
    responses(
        (status = 200, description = "What would become of each selected account", body = MigrationPlan),
        (status = 400, description = "Nothing is selected, or a pattern does not compile", body = ErrorBody),
    ))]
pub(super) async fn plan(
    State(state): State<RestState>,
    RawQuery(query): RawQuery,
) -> Result<Json<MigrationPlan>, RestError> {
    let selection = selection(query.as_deref().unwrap_or_default())?;
    let accounts = &state.source_accounts;
    let Ok(_turn) = accounts.planning.try_acquire() else {
        return Err(RestError::unavailable("another plan of a migration is being made; try again"));
    };
    let (sources, declined) =
        tokio::join!(accounts.sources.read_now(SOURCES_TIMEOUT), accounts.declined.read());
    let (plan, _) = accounts.plan_apart(selection, sources, declined?.names, Assessments::default(), 0).await;
    Ok(Json(MigrationPlan::from(&plan)))
}

fn selection(query: &str) -> Result<MigrationSelection, RestError> {
    let refuse = |problem: &str| Err(RestError::bad_request(problem));
    let mut spec = KubesvcMigrationSpec::default();
    for (key, value) in url::form_urlencoded::parse(query.as_bytes()) {
        let value = value.into_owned();
        match &*key {
            "name" => spec.names.push(value),
            "pattern" => spec.patterns.push(value),
            "excludePattern" => spec.exclude_patterns.push(value),
            "source" => spec.sources.push(value),
            "zoneId" => spec.zone_rules.push(ZoneRule {
                pattern: ".*".to_owned(),
                zone_id: ZoneId::from(value.as_str()),
                ..ZoneRule::default()
            }),
            _ => {
                return refuse(
                    "a query parameter is unknown; there are name, pattern, excludePattern, source and zoneId",
                );
            }
        }
    }
    if spec.names.len() > MAX_NAMES || spec.sources.len() > MAX_SOURCES {
        return refuse("at most 1,000 names and 32 sources fit into one plan; give a pattern");
    }
    let patterns = || spec.patterns.iter().chain(&spec.exclude_patterns);
    if patterns().count() > MAX_PATTERNS || patterns().any(|one| one.len() > MAX_PATTERN_BYTES) {
        return refuse("at most 100 patterns of at most 1,024 bytes fit into one plan; join them with |");
    }
    if spec.zone_rules.len() > 1 {
        return refuse("zoneId is there twice; give one");
    }
    if spec.names.is_empty() && spec.patterns.is_empty() {
        return refuse("name or pattern is needed: say which accounts are migrated");
    }
    MigrationSelection::compile(&spec).map_err(|error| RestError::bad_request(error.to_string()))
}
