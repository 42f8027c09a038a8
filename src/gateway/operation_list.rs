//! The operations of an account: `GET …/accounts/OBJECT/operations?page&items`.

use http::{Method, Response, StatusCode};
use jiff::Timestamp;
use kubesvc_store::{AnswerRecord, OperationRecord, StageRecord};
use serde_json::{Map, Value, json};

use super::checks;
use super::paths::AccountPath;
use super::proxying::narrows;
use super::status::Refusal;
use super::{Body, Call, Gateway};
use crate::access::Principal;
use crate::connected_agents::RequestClass;
use crate::informers::AccountKey;

/// Number of records in a page, unless the caller says another.
const DEFAULT_ITEMS: u32 = 100;
/// Maximum number of records in a page.
const MAX_ITEMS: u32 = 1000;

impl Gateway {
    /// Lists operations and writes of an account, the newest first.
    pub(super) async fn list_operations(
        &self,
        call: &Call,
        principal: &Principal,
        path: &AccountPath,
        query: Option<&str>,
    ) -> Result<Response<Body>, Refusal> {
        if call.method != Method::GET {
            return Err(Refusal::method_not_allowed());
        }
        let (page, items) = page(query.unwrap_or_default())?;
        self.authorize(call, principal, checks::wanted(&Method::GET, RequestClass::Read, path)?).await?;
        let _short = self.in_flight.short(&principal.name)?;
        let key = AccountKey { namespace: path.namespace.clone(), name: path.object.clone() };
        let account = self.ports.accounts.get(&key);
        let account = account.ok_or_else(|| Refusal::unavailable("there is no such account"))?;
        narrows(call, account.account_name())?;
        let offset = u64::from(page - 1) * u64::from(items);
        let read = self.ports.store.operations(Some(account.account_name()), offset, items).await;
        let records = read.map_err(|error| {
            tracing::warn!(error = error.in_full(), "the operations of an account cannot be read");
            Refusal::unavailable("the database with the operations does not answer; try again")
        })?;
        let records: Vec<_> = records.iter().map(shown).collect();
        Ok(super::json(StatusCode::OK, &records))
    }
}

fn page(query: &str) -> Result<(u32, u32), Refusal> {
    let (mut page, mut items) = (1, DEFAULT_ITEMS);
    for (key, value) in url::form_urlencoded::parse(query.as_bytes()) {
        let number = |max: u32| {
            let number = value.parse().ok().filter(|number| (1..=max).contains(number));
            number.ok_or_else(|| {
                Refusal::bad_request(format!("{key} is {value:?}; give a number from 1 to {max}"))
            })
        };
        match key.as_ref() {
            "page" => page = number(u32::MAX)?,
            "items" => items = number(MAX_ITEMS)?,
            _ => {}
        }
    }
    Ok((page, items))
}

/// A record as REST shows it.
fn shown(record: &OperationRecord) -> Value {
    let mut shown = Map::new();
    let mut put = |name: &str, value: Option<Value>| {
        if let Some(value) = value {
            shown.insert(name.to_owned(), value);
        }
    };
    let replica = |stage: &StageRecord| json!({"clouddriverId": stage.id, "time": time(stage.time_ms)});
    let answer = |answer: &AnswerRecord| {
        json!({
            "agentId": answer.agent_id, "clouddriverId": answer.replica_id, "time": time(answer.time_ms),
            "result": {"status": answer.status, "durationMs": answer.duration_ms},
        })
    };
    put("operationId", Some(record.operation_id.as_str().into()));
    put("operationType", Some(record.operation_type.as_str().into()));
    put("account", Some(record.account.as_str().into()));
    put("startTime", Some(time(record.start_time_ms)));
    put("endTime", record.end_time_ms.map(time));
    put("totalDurationMs", record.end_time_ms.map(|end| (end - record.start_time_ms).into()));
    put("finalOutcome", Some(record.outcome.as_str().into()));
    put("principal", record.principal.as_deref().map(Into::into));
    put("requestId", record.request_id.as_deref().map(Into::into));
    put("dryRun", record.dry_run.then(|| true.into()));
    put("opReceivedByClouddriver", record.received.as_ref().map(replica));
    put("opProcessedByClouddriver", record.processed.as_ref().map(replica));
    let sent = record.sent.as_ref();
    put("opSentToAgent", sent.map(|stage| json!({"agentId": stage.id, "time": time(stage.time_ms)})));
    put("resultReceivedFromAgent", record.answered.as_ref().map(answer));
    put("resultReceivedByClouddriver", record.delivered.as_ref().map(replica));
    Value::Object(shown)
}

fn time(ms: i64) -> Value {
    let time = Timestamp::from_millisecond(ms).ok();
    time.map(|time| time.strftime("%Y-%m-%dT%H:%M:%S%.3fZ").to_string()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_bounds() {
        assert_eq!(page("").expect("defaults"), (1, 100));
        assert_eq!(page("page=3&items=10&other=x").expect("a page"), (3, 10));
        for bad in ["page=0", "items=0", "items=1001", "page=x", "page=-1", "page="] {
            assert_eq!(page(bad).expect_err(bad).code, StatusCode::BAD_REQUEST);
        }
    }
}
