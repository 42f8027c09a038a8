//! What is recorded of an operation, from its beginning to its end. Pure.

use ulid::Ulid;

use kubesvc_core::ReplicaId;
use kubesvc_core::operations::{Outcome, OutcomeClass};
use kubesvc_store::{
    AnswerRecord, OpenOperation, OperationOutcome, OperationRecord, OperationState, StageRecord,
};

use crate::connected_agents::AskedAgent;

/// The beginning of an operation.
#[derive(Clone, Debug)]
pub(super) struct Beginning<'b> {
    pub(super) id: &'b str,
    pub(super) verb: &'static str,
    pub(super) account: &'b str,
    pub(super) account_uid: &'b str,
    pub(super) principal: &'b str,
    pub(super) replica_id: &'b ReplicaId,
    pub(super) dry_run: bool,
    pub(super) now_ms: i64,
    /// Id that stands for its requests until one writes.
    pub(super) request_id: Option<String>,
}

/// A record of an operation that was received.
pub(super) fn received(begin: &Beginning<'_>) -> OperationRecord {
    OperationRecord {
        operation_id: begin.id.to_owned(),
        operation_type: begin.verb.to_owned(),
        account: begin.account.to_owned(),
        account_uid: Some(begin.account_uid.to_owned()),
        start_time_ms: begin.now_ms,
        end_time_ms: None,
        outcome: OperationOutcome::Pending,
        received: Some(StageRecord { id: begin.replica_id.to_string(), time_ms: begin.now_ms }),
        processed: None,
        sent: None,
        answered: None,
        delivered: None,
        principal: Some(begin.principal.to_owned()),
        request_id: begin.request_id.clone(),
        dry_run: begin.dry_run,
        warnings: Vec::new(),
    }
}

/// An operation of which nothing was sent.
pub(super) fn open(record: OperationRecord, deadline_ms: i64, may_run_again: bool) -> OpenOperation {
    OpenOperation {
        record,
        state: OperationState::Received,
        deadline_ms,
        is_idempotent: may_run_again,
        last_write: None,
        agent_boot_id: None,
    }
}

/// Records that an agent is asked. The first time counts.
pub(super) fn asked(record: &mut OperationRecord, agent: &AskedAgent, now_ms: i64) {
    let agent_id = &agent.process.agent_id;
    let is_same = record.sent.as_ref().is_some_and(|sent| sent.id == agent_id.as_str());
    if !is_same {
        record.sent = Some(StageRecord { id: agent_id.to_string(), time_ms: now_ms });
        record.processed = Some(StageRecord { id: agent.replica_id.to_string(), time_ms: now_ms });
    }
}

/// Ends a record with an outcome. `answered` is the last answer of an agent.
pub(super) fn ended(
    mut record: OperationRecord,
    outcome: &Outcome,
    before_send: bool,
    answered: Option<(&AskedAgent, i64)>,
    replica_id: &ReplicaId,
    now_ms: i64,
) -> OperationRecord {
    record.end_time_ms = Some(now_ms);
    record.outcome = of_outcome(outcome, before_send);
    if let Some((agent, time_ms)) = answered {
        let begun = record.sent.as_ref().map_or(record.start_time_ms, |sent| sent.time_ms);
        record.answered = Some(AnswerRecord {
            agent_id: agent.process.agent_id.to_string(),
            replica_id: agent.replica_id.to_string(),
            time_ms,
            status: i32::from(outcome.status),
            duration_ms: time_ms.saturating_sub(begun).max(0),
        });
    }
    record.delivered = Some(StageRecord { id: replica_id.to_string(), time_ms: now_ms });
    record
}

/// The documented word for an outcome.
fn of_outcome(outcome: &Outcome, before_send: bool) -> OperationOutcome {
    match outcome.failure.as_ref().map(|failure| failure.class) {
        None if outcome.status < 400 => OperationOutcome::Completed,
        Some(OutcomeClass::OutcomeUnknown) => OperationOutcome::Unknown,
        Some(OutcomeClass::Timeout) if before_send => OperationOutcome::Timeout,
        _ => OperationOutcome::Failed,
    }
}

/// What a person says of an operation.
pub(super) fn settled_by_hand(
    record: OperationRecord,
    status: u16,
    replica_id: &ReplicaId,
    now_ms: i64,
) -> OperationRecord {
    let word = if status < 400 { OperationOutcome::Completed } else { OperationOutcome::Failed };
    let agent = record.sent.as_ref().map_or_else(String::new, |sent| sent.id.clone());
    OperationRecord {
        end_time_ms: Some(now_ms),
        outcome: word,
        answered: Some(AnswerRecord {
            agent_id: agent,
            replica_id: replica_id.to_string(),
            time_ms: now_ms,
            status: i32::from(status),
            duration_ms: now_ms.saturating_sub(record.start_time_ms).max(0),
        }),
        delivered: Some(StageRecord { id: replica_id.to_string(), time_ms: now_ms }),
        ..record
    }
}

/// What became of an operation whose replica does not say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Recalled {
    /// The cluster answered its last write.
    Answered {
        /// HTTP status.
        status: u16,
        /// The agent that was given the write.
        agent: AskedAgent,
    },
    /// Nobody knows.
    Lost,
}

/// Ends an operation for a replica that does not do it any more.
pub(super) fn settled_for_another(open: &OpenOperation, recalled: &Recalled, now_ms: i64) -> OperationRecord {
    let mut record = open.record.clone();
    record.end_time_ms = Some(now_ms);
    record.outcome = match recalled {
        Recalled::Answered { status, .. } if *status < 400 => OperationOutcome::Completed,
        // The API server gave it up, and may go on with it.
        Recalled::Answered { status: 408 | 504, .. } => OperationOutcome::Unknown,
        Recalled::Answered { .. } => OperationOutcome::Failed,
        Recalled::Lost if open.state == OperationState::Received => OperationOutcome::Failed,
        Recalled::Lost => OperationOutcome::Unknown,
    };
    if let Recalled::Answered { status, agent } = recalled {
        // Its replica may have died before it wrote which agent it asked.
        let asked_ms = open.last_write.as_deref().and_then(time_of).unwrap_or(record.start_time_ms);
        asked(&mut record, agent, asked_ms);
        record.request_id.clone_from(&open.last_write);
        let begun = record.sent.as_ref().map_or(asked_ms, |sent| sent.time_ms);
        record.answered = Some(AnswerRecord {
            agent_id: agent.process.agent_id.to_string(),
            replica_id: agent.replica_id.to_string(),
            time_ms: now_ms,
            status: i32::from(*status),
            duration_ms: now_ms.saturating_sub(begun).max(0),
        });
    }
    record
}

/// When a request was made, in epoch milliseconds: its id has that.
fn time_of(request_id: &str) -> Option<i64> {
    i64::try_from(Ulid::from_string(request_id).ok()?.timestamp_ms()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connected_agents::AnsweringAgent;
    use crate::operations::tests::fakes;

    fn record() -> OperationRecord {
        fakes::received("01J00000000000000000000000", "Scale", "a", 1_000)
    }

    fn agent() -> AskedAgent {
        let process = AnsweringAgent { agent_id: "agent".into(), boot_id: "boot".into() };
        AskedAgent { process, replica_id: "r-1".into() }
    }

    #[test]
    fn an_end_says_who_did_it_and_how_long_that_took() {
        let mut record = record();
        asked(&mut record, &agent(), 1_010);
        asked(&mut record, &agent(), 1_050);
        let done = Outcome::done(200, kubesvc_core::operations::OutcomeBody::Empty);
        let ended = ended(record, &done, false, Some((&agent(), 1_024)), &"r-0".into(), 1_030);
        assert_eq!(ended.outcome, OperationOutcome::Completed);
        let answered = ended.answered.expect("an answer");
        assert_eq!((answered.status, answered.duration_ms, answered.agent_id.as_str()), (200, 14, "agent"));
        assert_eq!(ended.end_time_ms, Some(1_030));
        let at = |stage: Option<StageRecord>| stage.expect("a stage").id;
        let (received, processed, delivered) = (at(ended.received), at(ended.processed), at(ended.delivered));
        assert_eq!([received, processed, delivered], ["r-0", "r-1", "r-0"], "r-1 has the agent");
        assert_eq!(answered.replica_id, "r-1");
    }

    #[test]
    fn each_outcome_has_its_word() {
        let word = |status, class, before_send| {
            ended(record(), &Outcome::failed(status, class, "why"), before_send, None, &"r".into(), 2_000)
                .outcome
        };
        assert_eq!(word(504, OutcomeClass::OutcomeUnknown, false), OperationOutcome::Unknown);
        assert_eq!(word(504, OutcomeClass::Timeout, true), OperationOutcome::Timeout);
        assert_eq!(word(504, OutcomeClass::Timeout, false), OperationOutcome::Failed);
        assert_eq!(word(403, OutcomeClass::Forbidden, false), OperationOutcome::Failed);
    }

    fn recalled(status: u16) -> Recalled {
        Recalled::Answered { status, agent: agent() }
    }

    #[test]
    fn what_was_never_sent_failed_and_what_nobody_answers_is_unknown() {
        let settled = |state, recalled| {
            let open = OpenOperation { state, ..open(record(), 5_000, true) };
            settled_for_another(&open, &recalled, 9_000).outcome
        };
        assert_eq!(settled(OperationState::Received, Recalled::Lost), OperationOutcome::Failed);
        assert_eq!(settled(OperationState::Sent, Recalled::Lost), OperationOutcome::Unknown);
        assert_eq!(settled(OperationState::Sent, recalled(201)), OperationOutcome::Completed);
        assert_eq!(settled(OperationState::Sent, recalled(409)), OperationOutcome::Failed);
        assert_eq!(settled(OperationState::Sent, recalled(504)), OperationOutcome::Unknown);
    }

    #[test]
    fn a_recalled_answer_says_which_agent_was_asked_and_when() {
        let last_write = Some(Ulid::from_parts(2_000, 0).to_string());
        let sent = OpenOperation { state: OperationState::Sent, last_write, ..open(record(), 5_000, true) };
        let settled = settled_for_another(&sent, &recalled(422), 9_000);
        let answered = settled.answered.expect("an answer");
        assert_eq!((answered.status, answered.duration_ms), (422, 7_000));
        assert_eq!((answered.agent_id.as_str(), answered.replica_id.as_str()), ("agent", "r-1"));
        let stage = |id: &str, time_ms| Some(StageRecord { id: id.to_owned(), time_ms });
        assert_eq!((settled.sent, settled.processed), (stage("agent", 2_000), stage("r-1", 2_000)));
        let mut known = sent;
        asked(&mut known.record, &agent(), 1_010);
        let settled = settled_for_another(&known, &recalled(422), 9_000);
        assert_eq!(settled.sent, stage("agent", 1_010), "its row has it");
    }
}
