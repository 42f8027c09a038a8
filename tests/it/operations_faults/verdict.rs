//! What must hold of a write after a fault. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;

use super::rounds::{Fault, Round, Step};
use super::scene::OPERATION_MS;
use super::writes::WriteKind;
use kubesvc_testkit::audit::AuditedWrite;

/// Time beyond an operation's deadline in which its caller must have an answer.
const SLACK: Duration = Duration::from_secs(5);

/// What a caller was told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Told {
    /// The API server's own answer.
    Own(u16),
    /// The outcome is unknown.
    Unknown,
    /// Certainly nothing was done.
    NotDone(String),
    /// The connection broke, or the replica could not be reached.
    Broken(String),
    /// The call was answered before the operation ended.
    Accepted,
    /// Anything else.
    Other(String),
}

/// What became of one write.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub(super) kind: WriteKind,
    pub(super) told: Told,
    /// Time until it was told.
    pub(super) took: Duration,
    /// Its record: the documented outcome.
    pub(super) outcome: Option<String>,
    /// What the API server did of it, oldest first.
    pub(super) writes: Vec<AuditedWrite>,
    /// The object now.
    pub(super) object: Option<Value>,
    /// What the same caller was told who asked again with the same id.
    pub(super) again: Option<Told>,
}

impl Round {
    /// Whether the agent's process lives, with the write's connection, and so does the replica of the caller.
    fn leaves_agent(self) -> bool {
        matches!(self.fault, Fault::StreamCut | Fault::StreamMoved | Fault::BetweenKilled)
    }

    /// Whether the write may have been lost on its way to the replica that died: nobody can say how far it came there.
    fn is_unsure(self, writes: &[AuditedWrite]) -> bool {
        self.fault == Fault::BetweenKilled && self.step < Step::Relayed && writes.is_empty()
    }

    /// Whether the API server's own answer must be had. What never reached the agent is the caller's to repeat.
    fn must_have_answer(self, kind: WriteKind) -> bool {
        match self.fault {
            _ if self.step == Step::Acknowledged => true,
            _ if self.leaves_agent() => self.step >= Step::Opened,
            Fault::ApiCut => self.step >= Step::Answered || (!kind.is_raw() && self.step < Step::Sent),
            _ => false,
        }
    }

    /// Whether a write of a repeatable kind may be there twice: its first outcome was unknown.
    fn may_be_repeated(self, kind: WriteKind) -> bool {
        kind.may_repeat() && matches!(self.fault, Fault::AgentKilled | Fault::ApiCut)
    }
}

/// What is wrong with what was seen.
pub(super) fn faults_of(round: Round, seen: &Seen) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut must = |holds: bool, what: &str| {
        if !holds {
            wrong.push(what.to_owned());
        }
    };
    let Seen { kind, told, outcome, writes, .. } = seen;
    let (mut by_verb, mut by_id) = (BTreeMap::<&str, usize>::new(), BTreeMap::<&str, usize>::new());
    for write in writes {
        *by_verb.entry(&write.verb).or_default() += 1;
        *by_id.entry(&write.audit_id).or_default() += 1;
    }
    // A further run has ids of its own. The agent itself sends a request again after a timeout (`kubernetes.retries`), and
    // no fault here is one.
    must(by_id.values().all(|count| *count == 1), "a request was sent twice under its id");
    must(
        by_verb.values().all(|count| *count <= 1) || round.may_be_repeated(*kind),
        "a write was executed twice",
    );
    must(by_verb.keys().all(|verb| kind.writes().contains(verb)), "something else was written");
    let is_done = kind.is_done(seen.object.as_ref());
    let outcome = outcome.as_deref();
    must(seen.took <= Duration::from_millis(OPERATION_MS) + SLACK, "the caller waited beyond the deadline");
    must(!matches!(told, Told::Other(_)), "the caller was told something else");
    must(outcome != Some("pending"), "its row is open");
    must(outcome.is_some() || writes.is_empty(), "what was done has no record");
    match told {
        Told::Own(status) => {
            must(*status < 400, "the API server refused what must work");
            must(is_done, "it is not done, although the caller was told so");
            must(outcome == Some("completed"), "its record is not completed");
        }
        Told::Unknown => {
            let has_record = !kind.is_raw() || !writes.is_empty();
            must(outcome == Some("unknown") || !has_record, "its record is not unknown");
            must(
                !round.leaves_agent() || round.is_unsure(writes),
                "the outcome is unknown, although the agent's process lives",
            );
        }
        Told::NotDone(_) => {
            must(writes.is_empty(), "something was done, although the caller was told that nothing was");
            must(matches!(outcome, Some("failed" | "timeout")) || kind.is_raw(), "its record differs");
        }
        Told::Broken(_) => must(
            round.fault == Fault::AskedKilled,
            "the caller's connection broke, although its replica lives",
        ),
        Told::Accepted | Told::Other(_) => {}
    }
    let has_answer =
        matches!(told, Told::Own(_)) || (*told == Told::Accepted && outcome == Some("completed"));
    must(!round.must_have_answer(*kind) || has_answer, "the API server's own answer was lost");
    match outcome {
        Some("completed") => must(is_done, "its record is completed, and it is not done"),
        // Nothing was sent: a row that says no more than that it was received.
        Some("failed" | "timeout") => must(writes.is_empty(), "its record is failed, and something was done"),
        // The agent's process lives: its answer decides.
        Some("unknown") => must(
            matches!(round.fault, Fault::AgentKilled | Fault::ApiCut)
                || round.is_unsure(writes)
                || (round.fault == Fault::AskedKilled && !is_decided(*kind, writes)),
            "its record is unknown, although the agent has the answer",
        ),
        _ => {}
    }
    if let Some(again) = &seen.again {
        must(matches!(again, Told::Own(status) if *status < 400), "the same id has another answer");
    }
    wrong
}

/// Whether the answer that the agent has decides what became of an operation whose replica died.
fn is_decided(kind: WriteKind, writes: &[AuditedWrite]) -> bool {
    // Of an object that is made anew the delete comes first.
    !writes.is_empty() && (kind != WriteKind::Recreate || writes.len() == 2)
}

#[test]
fn repeatable_write_may_be_sent_twice_but_not_under_one_id() {
    let write = |audit_id: &str| AuditedWrite {
        verb: "patch".to_owned(),
        group: String::new(),
        resource: "configmaps".to_owned(),
        subresource: String::new(),
        namespace: "n".to_owned(),
        name: "cell-000-merge".to_owned(),
        code: 200,
        user: "u".to_owned(),
        user_agent: String::new(),
        uri: String::new(),
        received: String::new(),
        audit_id: audit_id.to_owned(),
    };
    let wrong = |fault, ids: &[&str]| {
        let round = Round { number: 0, step: Step::Applied, fault, is_relayed: false };
        let seen = Seen {
            kind: WriteKind::MergePatch,
            told: Told::Unknown,
            took: Duration::ZERO,
            outcome: Some("unknown".to_owned()),
            writes: ids.iter().map(|id| write(id)).collect(),
            object: None,
            again: None,
        };
        faults_of(round, &seen)
    };
    for fault in [Fault::AgentKilled, Fault::ApiCut] {
        assert_eq!(wrong(fault, &["1", "2"]), Vec::<String>::new(), "{fault:?}");
        assert_eq!(wrong(fault, &["1", "1"]), ["a request was sent twice under its id"], "{fault:?}");
    }
}
