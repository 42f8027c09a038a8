//! `POST /armory/accounts`: accounts that Clouddriver has, taken from its credentials sources.
//!
//! The sources are read when the call comes, and the request is checked as a whole before anything is made. A name is
//! unknown only if every source that could have it was read completely; otherwise the answer is 503. What is made is a
//! snapshot: later changes of the source do not reach the account.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use futures::FutureExt;
use tracing::info;

use super::RestState;
use super::account_writes::{about, create, in_the_way, taken};
use super::body::{self, MediaTypes, PendingBody};
use super::callers::RestCaller;
use super::dto::AccountDefinition;
use super::error::{ErrorBody, RestError};
use super::extract::DynamicAccounts;
use super::lookup::{FoundAccount, all, refuse_if_any, summed_up};
use super::view::ExistingAccount;
use crate::access::{AccessResource, RequestedAccess};
use crate::source_accounts::{EntryError, SourceAccount};
use kubesvc_clouddriver::definition::Choice;
use kubesvc_clouddriver::sources::{MergedSources, NameLookup, SourceEntry};
use kubesvc_core::object_names;
use kubesvc_core::spec::KubesvcAccountSpec;
use kubesvc_core::spinnaker::AccountInput;

/// Time limit for reading the credentials sources.
const SOURCES_TIMEOUT: Duration = Duration::from_secs(20);
/// Add accounts from the credentials sources, as INACTIVE.
#[utoipa::path(post, path = "/armory/accounts", operation_id = "addAccounts", tag = "accounts",
    request_body(content = [AccountDefinition], description = "At most 1,000 accounts; of each, name, zoneId and its kubeconfig count, all else comes from the source"),
    responses(
        (status = 202, description = "Accepted: an empty list; the accounts are INACTIVE", body = [ExistingAccount]),
        (status = 400, description = "The body is malformed, or an account is unknown or refused; nothing was added", body = ErrorBody),
        (status = 409, description = "These accounts already existed; the others were added", body = [ExistingAccount]),
        (status = 501, description = "No credentials source is configured, or dynamic accounts are disabled", body = ErrorBody),
        (status = 503, description = "A credentials source that may have an account cannot be read; nothing was added", body = ErrorBody),
    ))]
pub(super) async fn add(
    _: DynamicAccounts,
    State(state): State<RestState>,
    caller: RestCaller,
    received: PendingBody,
) -> Result<Response, RestError> {
    if state.source_accounts.sources.is_empty() {
        return Err(RestError::new(
            StatusCode::NOT_IMPLEMENTED,
            "no credentials source is configured: list Clouddriver's in kubesvc.clouddriver.sources, or POST definitions \
             to /armory/accounts/dynamic",
        ));
    }
    let (body, held) = body::read(&state, received, MediaTypes::Json).await?;
    let given = body::accounts(body::objects(body)?)?;
    let names: Vec<&str> = given.iter().map(|given| given.name.as_str()).collect();
    state.may_create(&caller, &names).await?;
    // Their credentials are read with the operator's rights.
    let namespace = &state.settings.accounts_namespace;
    let uses = RequestedAccess {
        verb: "use",
        resource: AccessResource::AccountSources,
        namespace: namespace.clone(),
        object: String::new(),
    };
    caller.require(&uses).await?;
    for given in &given {
        caller.may_use(given, namespace, &object_names::object_name(&given.name)).await?;
    }
    state.watches_accounts()?;
    // From here on to the end, because what is found decides what is written.
    let adding = move |state: RestState| async move { add_all(&state, &caller, given).await };
    let existing = state.to_the_end(held, adding).await?;
    let status = if existing.is_empty() { StatusCode::ACCEPTED } else { StatusCode::CONFLICT };
    Ok((status, Json(existing)).into_response())
}

/// Makes the accounts that do not exist. Returns those that did, in the order of the request.
async fn add_all(
    state: &RestState,
    caller: &RestCaller,
    given: Vec<AccountInput>,
) -> Result<Vec<ExistingAccount>, RestError> {
    let names: Vec<_> = given.iter().map(|one| (one.name.as_str(), "get")).collect();
    let found = state.find_all(caller, &names).await?;
    let hidden = names.iter().zip(&found).filter(|(_, found)| found.is_hidden);
    refuse_if_any(hidden.map(|((name, _), _)| taken(name)).collect())?;
    state.creates(caller, given.iter().map(|given| given.name.as_str()).zip(&found));
    let sources = if found.iter().all(|found| found.account.is_some()) {
        MergedSources::default()
    } else {
        state.source_accounts.sources.read_now(SOURCES_TIMEOUT).await
    };
    let (mut steps, mut problems) = (Vec::new(), Vec::new());
    for (given, found) in given.into_iter().zip(found) {
        match state.step(given, found, &sources).await {
            Ok(step) => steps.push(step),
            Err(problem) => problems.push(problem),
        }
    }
    refuse_if_any(problems)?;
    let each = steps.into_iter().map(|step| {
        async move {
            match step {
                AddStep::Exists(existing) => Ok(Some(existing)),
                AddStep::Make(wanted) => make(state, caller, &wanted).await,
            }
        }
        .boxed()
    });
    Ok(summed_up(all(each.collect()).await)?.into_iter().flatten().collect())
}

enum AddStep {
    Exists(ExistingAccount),
    Make(Box<SourceAccount>),
}

async fn make(
    state: &RestState,
    caller: &RestCaller,
    wanted: &SourceAccount,
) -> Result<Option<ExistingAccount>, RestError> {
    let existing = create(state, caller, &wanted.name, &wanted.contents(), &wanted.object).await?;
    Ok(existing.as_ref().map(ExistingAccount::of))
}

impl RestState {
    /// Refuses callers that may not create accounts of these names.
    pub(super) async fn may_create(&self, caller: &RestCaller, names: &[&str]) -> Result<(), RestError> {
        let create = RequestedAccess {
            verb: "create",
            resource: AccessResource::Accounts,
            namespace: self.settings.accounts_namespace.clone(),
            object: String::new(),
        };
        caller.require(&create).await?;
        caller.may_name(names, &create)
    }

    /// Notes the accounts that a call makes: those that were not found.
    pub(super) fn creates<'a>(
        &self,
        caller: &RestCaller,
        found: impl Iterator<Item = (&'a str, &'a FoundAccount)>,
    ) {
        let missing = found.filter(|(_, found)| found.account.is_none());
        missing.for_each(|(name, _)| caller.writes(name, &self.settings.accounts_namespace, ""));
    }

    /// What is to be done for one account of the request, or why it is refused.
    async fn step(
        &self,
        given: AccountInput,
        found: FoundAccount,
        sources: &MergedSources,
    ) -> Result<AddStep, RestError> {
        if let Some(existing) = &found.account {
            return Ok(AddStep::Exists(ExistingAccount::of(existing)));
        }
        let entry = self.entry(&given.name, sources)?;
        if let Some(other) = found.in_the_way {
            return Err(in_the_way(&given.name, Some(&other)));
        }
        let mut spec = KubesvcAccountSpec::default();
        given.apply_to(&mut spec).map_err(|problem| about(&given.name, &problem.to_string()))?;
        let choice = Choice { zone: spec.zone_id, source: given.source };
        self.described(entry, &choice).await.map(|wanted| AddStep::Make(Box::new(wanted)))
    }

    /// The account that an entry describes.
    pub(super) async fn described(
        &self,
        entry: &SourceEntry,
        choice: &Choice,
    ) -> Result<SourceAccount, RestError> {
        match self.source_accounts.describe(entry, choice).await {
            Ok(wanted) => {
                let (without_effect, warnings) =
                    (&wanted.report.without_effect.named, &wanted.report.warnings);
                if !without_effect.is_empty() || !warnings.is_empty() {
                    let (account, source) = (&entry.name, &*entry.source);
                    info!(account, source, ?without_effect, ?warnings, "taken from a credentials source");
                }
                Ok(wanted)
            }
            Err(EntryError::Refused(why)) => Err(about(&entry.name, &why)),
            Err(EntryError::Unreadable(why)) => {
                Err(RestError::unavailable(format!("account {:?}: {why}", entry.name)))
            }
        }
    }

    /// The entry of a name, if it is certain which one counts.
    fn entry<'s>(&self, name: &str, sources: &'s MergedSources) -> Result<&'s SourceEntry, RestError> {
        match sources.lookup(name) {
            NameLookup::Found(entry) => Ok(entry),
            NameLookup::Broken { source, entry } => Err(about(
                name,
                &format!("its entry in credentials source {source} is not usable: {}", entry.reason),
            )),
            NameLookup::Absent => {
                let names: Vec<_> = self.source_accounts.sources.names().collect();
                let why = format!(
                    "it is in none of the credentials sources {}; check its name, or POST its definition to \
                     /armory/accounts/dynamic",
                    names.join(", ")
                );
                Err(about(name, &why))
            }
            NameLookup::Unknown { source, why } => Err(RestError::unavailable(format!(
                "account {name:?}: credentials source {source} may have it, and was not read completely: {why}; \
                 nothing was added"
            ))),
        }
    }
}
