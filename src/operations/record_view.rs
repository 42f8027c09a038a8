//! A record as callers see it, at REST and at the API of accounts.

use jiff::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;

use kubesvc_store::{OperationRecord, StageRecord};

/// An operation as it is recorded.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct OperationRecordView {
    /// Id of the operation.
    operation_id: String,
    /// `Deploy`, `Delete`, `Patch`, `Scale` …
    operation_type: String,
    /// Name of the account.
    account: String,
    /// Who asked for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    principal: Option<String>,
    /// Id of its last write, as the target cluster's audit log has it. If nothing was written, the log does not have it.
    #[serde(skip_serializing_if = "Option::is_none")]
    request_id: Option<String>,
    /// Whether nothing was to be changed; left out if not.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    dry_run: bool,
    /// When it was received.
    start_time: String,
    /// When it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    end_time: Option<String>,
    /// Time between these, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    total_duration_ms: Option<i64>,
    /// `completed`, `failed`, `timeout`, `unknown` or `pending`.
    final_outcome: &'static str,
    /// What the API server warned of, such as a version that is deprecated; left out if of nothing.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
    /// The replica that received it.
    #[serde(skip_serializing_if = "Option::is_none")]
    op_received_by_clouddriver: Option<ReplicaStage>,
    /// The replica whose agent did it.
    #[serde(skip_serializing_if = "Option::is_none")]
    op_processed_by_clouddriver: Option<ReplicaStage>,
    /// The agent that did it.
    #[serde(skip_serializing_if = "Option::is_none")]
    op_sent_to_agent: Option<AgentStage>,
    /// What the agent answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    result_received_from_agent: Option<AnswerView>,
    /// The replica that gave the answer to the caller.
    #[serde(skip_serializing_if = "Option::is_none")]
    result_received_by_clouddriver: Option<ReplicaStage>,
}

/// What a replica did, and when.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReplicaStage {
    /// Id of the replica.
    clouddriver_id: String,
    /// When.
    time: String,
}

/// What an agent did, and when.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AgentStage {
    /// Id of the agent.
    agent_id: String,
    /// When.
    time: String,
}

/// The answer of an agent.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AnswerView {
    /// Id of the agent.
    agent_id: String,
    /// The replica that received it.
    clouddriver_id: String,
    /// When.
    time: String,
    /// What it says.
    result: AnswerResult,
}

/// Status and duration of an answer.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AnswerResult {
    /// HTTP status.
    status: i32,
    /// Time from the first request to the answer, in milliseconds.
    duration_ms: i64,
}

impl From<OperationRecord> for OperationRecordView {
    fn from(record: OperationRecord) -> Self {
        let at_replica =
            |stage: StageRecord| ReplicaStage { clouddriver_id: stage.id, time: shown(stage.time_ms) };
        Self {
            operation_id: record.operation_id,
            operation_type: record.operation_type,
            account: record.account,
            principal: record.principal,
            request_id: record.request_id,
            dry_run: record.dry_run,
            start_time: shown(record.start_time_ms),
            end_time: record.end_time_ms.map(shown),
            total_duration_ms: record.end_time_ms.map(|end| end.saturating_sub(record.start_time_ms)),
            final_outcome: record.outcome.as_str(),
            warnings: record.warnings,
            op_received_by_clouddriver: record.received.map(at_replica),
            op_processed_by_clouddriver: record.processed.map(at_replica),
            op_sent_to_agent: record
                .sent
                .map(|stage| AgentStage { agent_id: stage.id, time: shown(stage.time_ms) }),
            result_received_from_agent: record.answered.map(|answer| AnswerView {
                agent_id: answer.agent_id,
                clouddriver_id: answer.replica_id,
                time: shown(answer.time_ms),
                result: AnswerResult { status: answer.status, duration_ms: answer.duration_ms },
            }),
            result_received_by_clouddriver: record.delivered.map(at_replica),
        }
    }
}

fn shown(time_ms: i64) -> String {
    format!("{:.3}", Timestamp::from_millisecond(time_ms).unwrap_or_default())
}
