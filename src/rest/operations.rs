//! `/armory/agent/operations`, `/armory/agent/operationresults`: operations on accounts, and their records.
//!
//! Checks, in this order: who calls, the parameters, the body, and then what only [`Operations`] knows. Each call that one
//! of them refuses has an audit line. What was done is in its records, which are the same at every replica.
//!
//! [`Operations`]: crate::operations::Operations

use std::time::Duration;

use axum::Json;
use axum::extract::{FromRequestParts, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value};
use tracing::debug;

use super::RestState;
use super::body::{self, MediaTypes, PendingBody};
use super::call_guard::{CallOrigin, shown_certificates};
use super::caller_rules::{AssertedUser, RestAuthMode, named_accounts};
use super::error::{ErrorBody, RestError};
use super::extract::{PathId, RecordPaging, single_value};
use super::operation_views::OperationResultView;
use super::unknown_callers::UnknownCaller;
use crate::access::Caller;
use crate::operations::{OperationCall, OperationCaller, OperationRecordView, OperationRefusal, Submitted};
use kubesvc_core::operations::{MAX_DEADLINE, ParseError, SettledByHand, UnreadOperation, result_from_text};
use kubesvc_core::spinnaker::is_account_name;

/// Header of answers with the id of the operation.
const OPERATION_ID: HeaderName = HeaderName::from_static("x-operation-id");
/// Maximum length of a caller's own id, in characters.
const MAX_ID_CHARS: usize = 255;

/// Verbs of audit lines of calls that are refused before it is known which operation they are about.
const RUN: &str = "run";
const SETTLE: &str = "settle";
const LOOK: &str = "look";
const LIST: &str = "list";
const GET: &str = "get";

/// Parameters of a call for an operation.
#[derive(Debug)]
struct OperationQuery {
    wait: Option<Duration>,
    dry_run: bool,
    client_request_id: Option<String>,
}

impl OperationQuery {
    fn read(query: Option<&str>) -> Result<Self, RestError> {
        let wait = single_value(query, "wait")?.map(|text| {
            duration(&text).filter(|wait| *wait <= MAX_DEADLINE).ok_or_else(|| {
                RestError::bad_request("wait must be a time of at most 10 minutes, such as 30s, 500ms or 2m")
            })
        });
        let dry_run = match single_value(query, "dryRun")?.as_deref() {
            None | Some("") => false,
            Some("All") => true,
            Some(_) => return Err(RestError::bad_request("dryRun must be All, or be left out")),
        };
        let client_request_id = single_value(query, "clientRequestId")?;
        let is_id = |id: &String| {
            !id.is_empty() && id.chars().count() <= MAX_ID_CHARS && !id.chars().any(char::is_control)
        };
        if client_request_id.as_ref().is_some_and(|id| !is_id(id)) {
            return Err(RestError::bad_request(
                "clientRequestId must have 1 to 255 characters, none of them a control character",
            ));
        }
        Ok(Self { wait: wait.transpose()?, dry_run, client_request_id })
    }
}

/// Reads `500ms`, `30s` or `2m`.
fn duration(text: &str) -> Option<Duration> {
    let digits = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().ok()?;
    match unit {
        "ms" => Some(Duration::from_millis(number)),
        "s" => Some(Duration::from_secs(number)),
        "m" => Some(Duration::from_secs(number.checked_mul(60)?)),
        _ => None,
    }
}

impl FromRequestParts<RestState> for OperationCaller {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, state: &RestState) -> Result<Self, Response> {
        let (caller, headers) = (UnknownCaller::of(parts), &parts.headers);
        let certificates = shown_certificates(parts);
        let called = Caller { headers, certificates: &certificates };
        let authenticating = state.operations.authenticate(called, caller.address);
        let principal = state.log_in(CallOrigin::of(parts), called, authenticating).await;
        let principal = principal.map_err(RestError::into_response)?;
        caller.known();
        let asserted = if state.callers.mode == RestAuthMode::Off {
            AssertedUser::of(headers, false)
        } else {
            let asserted = state.callers.asserted(&principal, headers).await;
            asserted.map_err(|error| RestError::from(error).into_response())?
        };
        let name = Some(asserted.name).filter(|name| !name.is_empty());
        let (user, claimed) = if asserted.counts { (name, None) } else { (None, name) };
        Ok(Self { principal, user, claimed, accounts: named_accounts(headers) })
    }
}

impl RestState {
    /// Counts a call that is refused here, and writes its audit line.
    fn refuse(&self, caller: &OperationCaller, verb: &'static str, error: RestError) -> RestError {
        let refusal = OperationRefusal::Malformed { status: error.status, why: error.message.clone() };
        self.operations.refused_call(caller, verb, &refusal);
        error
    }

    /// The same for a call whose body is refused. What is wrong with the contents may repeat them, so the line does not
    /// say it.
    fn refuse_body(&self, caller: &OperationCaller, verb: &'static str, error: RestError) -> RestError {
        let is_about_contents = error.status == StatusCode::BAD_REQUEST;
        let why = if is_about_contents { "the body is malformed" } else { error.message.as_str() };
        let refusal = OperationRefusal::Malformed { status: error.status, why: why.to_owned() };
        self.operations.refused_call(caller, verb, &refusal);
        error
    }
}

impl From<OperationRefusal> for RestError {
    fn from(refusal: OperationRefusal) -> Self {
        if let OperationRefusal::Database(error) = &refusal {
            tracing::warn!(error = error.in_full(), "cannot use the rows of operations");
        }
        Self::new(refusal.status(), refusal.to_string())
    }
}

/// Run an operation on an account.
///
/// `operation` is written in protobuf's text format, or as JSON. Without `wait` the answer comes once the operation is
/// recorded. With `wait` it comes with the result, or with 202 if there is none in that time.
///
/// The caller needs rights on `accounts/proxy` of group `proxy.kubesvc.io`, by a bearer token for the audience `kubesvc`.
#[utoipa::path(post, path = "/armory/agent/operations", operation_id = "runOperation", tag = "operations",
    security(("bearer" = [])),
    params(
        ("wait" = Option<String>, Query, description = "How long to wait for the result, at most 10m", example = "30s"),
        ("dryRun" = Option<String>, Query, description = "`All`: nothing is changed; the result has the object as it would be"),
        ("clientRequestId" = Option<String>, Query, description = "An id of the caller's own: a call with the same one is the same operation, and has its result", min_length = 1, max_length = 255),
        ("X-SPINNAKER-ACCOUNTS" = Option<String>, Header, description = "Accounts that the caller may use, separated by commas: an operation on another one is refused"),
        ("X-SPINNAKER-USER" = Option<String>, Header, description = "The user for whom the caller says that it acts: recorded, never believed"),
    ),
    request_body(content = super::dto::OperationRequest, description = "The operation", example = json!({"operation": "account { name: \"prod\" } scale { target { group: \"apps\" kind: \"Deployment\" namespace: \"shop\" name: \"web\" } replicas: 3 }"})),
    responses(
        (status = 200, description = "With `wait`: the result. Without: nothing; the operation is recorded, and the header `X-Operation-Id` has its id", body = OperationResultView),
        (status = 202, description = "The operation runs still; the id is in the body and in the header `X-Operation-Id`", body = OperationResultView),
        (status = 400, description = "The body or a parameter is malformed", body = ErrorBody),
        (status = 403, description = "The caller may not do that", body = ErrorBody),
        (status = 404, description = "No such account", body = ErrorBody),
        (status = 409, description = "The account takes no requests, its agent is too old for them, or the id is another operation's", body = ErrorBody),
        (status = 429, description = "Too many operations run", body = ErrorBody),
        (status = 503, description = "The operation cannot be recorded, or the caller's rights cannot be looked up", body = ErrorBody),
    ))]
pub(super) async fn run(
    State(state): State<RestState>,
    caller: OperationCaller,
    uri: Uri,
    received: PendingBody,
) -> Result<Response, RestError> {
    let query = OperationQuery::read(uri.query());
    let query = query.map_err(|error| state.refuse(&caller, RUN, error))?;
    let OperationQuery { wait, dry_run, client_request_id } = query;
    let reading = async {
        let (body, held) = body::read(&state, received, MediaTypes::Json).await?;
        Ok::<_, RestError>((operation(body)?, held))
    };
    let read = reading.await.map_err(|error| state.refuse_body(&caller, RUN, error));
    let (operation, held) = read?;
    let held = Box::new(held);
    let call = OperationCall { operation, caller, dry_run, client_request_id, wait, held };
    let Submitted { id, ended } = state.operations.submit(call).await?;
    let mut response = match (&ended, wait) {
        (Some(ended), _) => Json(OperationResultView::ended(&id, ended)).into_response(),
        (None, Some(_)) => (StatusCode::ACCEPTED, Json(OperationResultView::open(&id))).into_response(),
        (None, None) => StatusCode::OK.into_response(),
    };
    if let Ok(id) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(OPERATION_ID, id);
    }
    Ok(response)
}

/// Give an operation a result that a person found out.
///
/// For an operation that is open, or whose outcome is unknown. Callers that wait for it get the result; what the cluster
/// says later is ignored.
#[utoipa::path(post, path = "/armory/agent/operationresults", operation_id = "settleOperation", tag = "operations",
    security(("bearer" = [])),
    request_body(content = super::dto::OperationResultRequest, description = "The result, in protobuf's text format", example = json!({"result": "op_id: \"01G4V5TH5QSWSR2SZE2VH1SDME\" status: 200"})),
    responses(
        (status = 200, description = "The operation has this result"),
        (status = 400, description = "The body is malformed", body = ErrorBody),
        (status = 403, description = "The caller may not do that", body = ErrorBody),
        (status = 404, description = "No such operation", body = ErrorBody),
        (status = 409, description = "The operation has a result", body = ErrorBody),
        (status = 503, description = "The database is unavailable, or the caller's rights cannot be looked up", body = ErrorBody),
    ))]
pub(super) async fn settle(
    State(state): State<RestState>,
    caller: OperationCaller,
    received: PendingBody,
) -> Result<StatusCode, RestError> {
    let reading = async {
        let (body, held) = body::read(&state, received, MediaTypes::Json).await?;
        Ok::<_, RestError>((result(body)?, held))
    };
    let read = reading.await.map_err(|error| state.refuse_body(&caller, SETTLE, error));
    let (result, _held) = read?;
    state.operations.settle_by_hand(&result, &caller).await?;
    Ok(StatusCode::OK)
}

/// Look now at the operations that are open, instead of in a moment.
#[utoipa::path(post, path = "/armory/agent/operations/database", operation_id = "lookAtOpenOperations", tag = "operations",
    security(("bearer" = [])),
    params(("dynamicAccountOps" = Option<bool>, Query, description = "`true`: look at the accounts too")),
    responses(
        (status = 200, description = "They were looked at"),
        (status = 400, description = "The parameter is neither true nor false", body = ErrorBody),
        (status = 503, description = "The database is unavailable, or the caller cannot be looked up", body = ErrorBody),
    ))]
pub(super) async fn look_at_open(
    State(state): State<RestState>,
    caller: OperationCaller,
    uri: Uri,
    headers: HeaderMap,
) -> Result<StatusCode, RestError> {
    let media = body::check_media(&headers, MediaTypes::Unsaid);
    media.map_err(|error| state.refuse(&caller, LOOK, error))?;
    let with_accounts = looks_at_accounts(uri.query());
    let with_accounts = with_accounts.map_err(|error| state.refuse(&caller, LOOK, error))?;
    let looked = state.operations.look_at_open_rows().await;
    looked.inspect_err(|refusal| state.operations.refused_call(&caller, LOOK, refusal))?;
    if with_accounts {
        (state.look_at_accounts)();
    }
    Ok(StatusCode::OK)
}

/// List operations, open and ended, the newest first.
///
/// Those on accounts that the caller may not read are left out.
#[utoipa::path(get, path = "/armory/agent/operations", operation_id = "listOperations", tag = "operations",
    security(("bearer" = [])),
    params(RecordPaging, ("account" = Option<String>, Query, description = "Only operations on this account", min_length = 1, max_length = 255)),
    responses(
        (status = 200, description = "A page of operations", body = [OperationRecordView]),
        (status = 400, description = "A parameter is malformed", body = ErrorBody),
        (status = 403, description = "The caller may not read the account", body = ErrorBody),
        (status = 503, description = "The database is unavailable, or the caller's rights cannot be looked up", body = ErrorBody),
    ))]
pub(super) async fn list(
    State(state): State<RestState>,
    caller: OperationCaller,
    uri: Uri,
) -> Result<Json<Vec<OperationRecordView>>, RestError> {
    let page = listed_page(uri.query());
    let (paging, account) = page.map_err(|error| state.refuse(&caller, LIST, error))?;
    let records = state.operations.records(account.as_deref(), paging.range(), &caller).await?;
    Ok(Json(records.into_iter().map(Into::into).collect()))
}

/// Get one operation, an open one too.
#[utoipa::path(get, path = "/armory/agent/operations/{operationId}", operation_id = "getOperation", tag = "operations",
    security(("bearer" = [])),
    params(("operationId" = String, Path, description = "Id of the operation")),
    responses(
        (status = 200, description = "The operation", body = OperationRecordView),
        (status = 400, description = "The id is not percent-encoded UTF-8", body = ErrorBody),
        (status = 403, description = "The caller may not read the account", body = ErrorBody),
        (status = 404, description = "No such operation", body = ErrorBody),
        (status = 503, description = "The database is unavailable, or the caller's rights cannot be looked up", body = ErrorBody),
    ))]
pub(super) async fn get(
    State(state): State<RestState>,
    caller: OperationCaller,
    id: Result<PathId, RestError>,
) -> Result<Json<OperationRecordView>, RestError> {
    let id = id.map_err(|error| state.refuse(&caller, GET, error))?.0;
    let id: String = id.chars().take(MAX_ID_CHARS).collect();
    let record = state.operations.record(&id, &caller).await?;
    Ok(Json(record.into()))
}

/// Whether the accounts are to be looked at too.
fn looks_at_accounts(query: Option<&str>) -> Result<bool, RestError> {
    match single_value(query, "dynamicAccountOps")?.as_deref() {
        None | Some("" | "false") => Ok(false),
        Some("true") => Ok(true),
        Some(_) => Err(RestError::bad_request("dynamicAccountOps must be true or false")),
    }
}

/// The page of records that is asked for, and of which account.
fn listed_page(query: Option<&str>) -> Result<(RecordPaging, Option<String>), RestError> {
    let paging = RecordPaging::read(query)?;
    let account = single_value(query, "account")?;
    if account.as_ref().is_some_and(|name| !is_account_name(name)) {
        return Err(RestError::bad_request(
            "account must have 1 to 255 characters, none of them a control character",
        ));
    }
    Ok((paging, account))
}

/// The result of a body.
fn result(body: Value) -> Result<SettledByHand, RestError> {
    let Value::String(text) = field(body, "result")? else {
        return Err(RestError::bad_request("result must be a text in protobuf's text format"));
    };
    result_from_text(&text).map_err(|error| malformed("result", &error))
}

/// The operation of a body.
fn operation(body: Value) -> Result<UnreadOperation, RestError> {
    let read = match field(body, "operation")? {
        Value::String(text) => UnreadOperation::from_text(&text),
        json @ Value::Object(_) => UnreadOperation::from_json(json),
        _ => {
            return Err(RestError::bad_request(
                "operation must be a text in protobuf's text format, or an object",
            ));
        }
    };
    read.map_err(|error| malformed("operation", &error))
}

fn malformed(field: &str, error: &ParseError) -> RestError {
    let message: String = error.to_string().chars().take(1024).collect();
    let status = if error.is_too_large() { StatusCode::PAYLOAD_TOO_LARGE } else { StatusCode::BAD_REQUEST };
    RestError::new(status, format!("{field}: {message}"))
}

/// Parameters of the query that are no fields of a body. A dry run that is not heard would be none.
const QUERY_PARAMETERS: [&str; 3] = ["wait", "dryRun", "clientRequestId"];

/// The value of the field of a body that counts. Others are ignored, as in every body, unless they are parameters.
fn field(body: Value, name: &str) -> Result<Value, RestError> {
    let Value::Object(mut fields) = body else {
        return Err(RestError::bad_request(format!("the body must be an object with the field {name}")));
    };
    let value = Map::remove(&mut fields, name);
    let value = value.ok_or_else(|| RestError::bad_request(format!("the body lacks the field {name}")))?;
    if let Some(parameter) = QUERY_PARAMETERS.into_iter().find(|one| fields.contains_key(*one)) {
        return Err(RestError::bad_request(format!("{parameter} belongs in the query, not in the body")));
    }
    if let Some(first) = fields.keys().next() {
        let first: String = first.chars().take(64).collect();
        debug!(name, count = fields.len(), first, "ignored fields that have no effect");
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use kubesvc_core::operations::MAX_MANIFEST_BYTES;
    use serde_json::json;

    use super::*;

    #[test]
    fn parameters_are_read_or_named() {
        let read = |query: &str| OperationQuery::read(Some(query));
        let good = read("wait=30s&dryRun=All&clientRequestId=x").expect("good");
        assert_eq!((good.wait, good.dry_run), (Some(Duration::from_secs(30)), true));
        assert_eq!(good.client_request_id.as_deref(), Some("x"));
        assert_eq!(read("wait=500ms").expect("good").wait, Some(Duration::from_millis(500)));
        assert_eq!(read("wait=10m").expect("good").wait, Some(Duration::from_secs(600)));
        for bad in [
            "wait=11m",
            "wait=",
            "wait=s",
            "wait=1",
            "wait=1h",
            "wait=-1s",
            "wait=1.5s",
            "wait=1s&wait=1s",
            "wait=99999999999999999999s",
            "dryRun=all",
            "clientRequestId=",
            "clientRequestId=%00",
        ] {
            assert_eq!(read(bad).expect_err(bad).status, StatusCode::BAD_REQUEST, "{bad}");
        }
    }

    #[test]
    fn a_body_is_an_operation_in_one_of_two_forms_or_400() {
        let text = json!({"operation": "account { name: \"a\" } discovery {}"});
        let object = json!({"operation": {"account": {"name": "a"}, "discovery": {}}});
        let with_more = json!({"operation": "account { name: \"a\" } discovery {}", "comment": "by hand"});
        for good in [text, object, with_more] {
            assert_eq!(operation(good).expect("good").kind().name, "Discovery");
        }
        for bad in [
            json!([]),
            json!({}),
            json!({"operation": 1}),
            json!({"operation": ""}),
            json!({"operation": "account { name: \"a\" } discovery {}", "wait": 1}),
            json!({"operation": "account { name: \"a\" } discovery {}", "dryRun": "All"}),
            json!({"operation": {"account": {"name": "a"}, "discovery": {}, "list": {}}}),
        ] {
            assert_eq!(operation(bad.clone()).expect_err("bad").status, StatusCode::BAD_REQUEST, "{bad}");
        }
    }

    #[test]
    fn a_manifest_or_patch_above_4_mib_is_413_and_the_bound_is_named() {
        let target = json!({"kind": "ConfigMap", "namespace": "n", "name": "c"});
        let data = " ".repeat(MAX_MANIFEST_BYTES + 1);
        for verb in [
            json!({"account": {"name": "a"}, "deploy": {"manifest": {"data": data}}}),
            json!({"account": {"name": "a"}, "patch": {"target": target, "body": {"data": data}}}),
        ] {
            let refused = operation(json!({ "operation": verb })).expect_err("it is too large");
            assert_eq!(refused.status, StatusCode::PAYLOAD_TOO_LARGE);
            assert!(refused.message.contains("4 MiB"), "{refused}");
        }
    }
}
