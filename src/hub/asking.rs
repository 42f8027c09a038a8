//! What a session is asked about accounts that have no zone yet: whether its agent could reach them.
//!
//! An account *asks* while it is TO_MIGRATE without a grant, is to be ACTIVE, names no zone and is not being deleted.
//! Each approved session is asked once in a round; one that said No is asked again, at the pace of
//! [`RETRY_DELAYS_SECONDS`]. What was answered counts for its round only, and is forgotten when the account asks no more.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use super::duties::SessionView;
use super::ledger::{Moment, RETRY_DELAYS_SECONDS};
use crate::account::KubesvcAccount;
use crate::account::zones;

/// Questions that one agent may leave unanswered; further ones wait.
pub(super) const MAX_OPEN: usize = 256;

/// What an answer counts for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Round {
    pub(super) generation: i64,
    pub(super) epoch: i64,
    /// The [name](zones::round) of the round.
    mark: [u8; 16],
}

impl Round {
    /// The round an account is in; absent: it does not ask.
    pub(super) fn of(account: &KubesvcAccount) -> Option<Self> {
        let status = account.status_or_default();
        let mark = zones::round(account)?.into_bytes().try_into().ok()?;
        Some(Self { generation: account.generation(), epoch: status.epoch, mark })
    }
}

/// How far a question is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// It waits until fewer are open.
    Waiting,
    /// The address of the cluster is being looked up.
    Readying,
    /// It was sent.
    Sent,
    /// The agent can reach the account.
    Yes,
    /// It cannot, or could not be asked; it is asked again at this moment.
    Again(Moment),
}

#[derive(Clone, Copy, Debug)]
struct Question {
    round: Round,
    stage: Stage,
    /// How often it was answered No in this round.
    refused: usize,
}

/// What is to be done about one account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Nothing, until the account or the session changes.
    Nothing,
    /// Nothing before this moment.
    Later(Moment),
    /// The agent is to be asked.
    Ask(Round),
    /// What was asked and answered is of no use any more.
    Forget,
}

/// All that one session was asked.
#[derive(Debug, Default)]
pub(super) struct Questions {
    questions: HashMap<String, Question>,
    waiting: VecDeque<String>,
    open: usize,
}

impl Questions {
    /// Decides about one account; absent where no object has the uid.
    pub(super) fn step(
        &self,
        view: SessionView<'_>,
        uid: &str,
        account: Option<&KubesvcAccount>,
        now: Moment,
    ) -> Step {
        let known = self.questions.get(uid);
        let round = account.and_then(Round::of).filter(|_| view.approved && !view.draining);
        match (round, known) {
            (None, None) => Step::Nothing,
            (None, Some(_)) => Step::Forget,
            (Some(round), Some(question)) if question.round == round => match question.stage {
                Stage::Again(at) if at <= now => Step::Ask(round),
                Stage::Again(at) => Step::Later(at),
                _ => Step::Nothing,
            },
            (Some(round), _) => Step::Ask(round),
        }
    }

    /// The agent is to be asked when it is the question's turn.
    pub(super) fn queue(&mut self, uid: &str, round: Round) {
        let before = self.questions.get(uid).filter(|question| question.round == round);
        let refused = before.map_or(0, |question| question.refused);
        if self.stage(uid) != Some(Stage::Waiting) {
            self.waiting.push_back(uid.to_owned());
        }
        self.put(uid, Question { round, stage: Stage::Waiting, refused });
    }

    /// The question whose turn it is, if the agent owes few enough answers.
    pub(super) fn next(&mut self) -> Option<(String, Round)> {
        while self.open < MAX_OPEN {
            let uid = self.waiting.pop_front()?;
            let Some(question) = self.questions.get(&uid).copied() else { continue };
            if question.stage == Stage::Waiting {
                self.put(&uid, Question { stage: Stage::Readying, ..question });
                return Some((uid, question.round));
            }
        }
        None
    }

    /// The question goes out now; false: it is not wanted any more.
    pub(super) fn send(&mut self, uid: &str, round: Round) -> bool {
        self.advance(uid, round, Stage::Readying, Stage::Sent)
    }

    /// The question cannot be sent: it is tried again after a while. Answers when.
    pub(super) fn not_sent(&mut self, uid: &str, round: Round, now: Moment) -> Option<Moment> {
        let at = now + Duration::from_secs(RETRY_DELAYS_SECONDS[0]);
        self.advance(uid, round, Stage::Readying, Stage::Again(at)).then_some(at)
    }

    /// Takes in an answer, and says for which round it is; absent: nothing of the kind was asked. A No is paced.
    pub(super) fn answer(
        &mut self,
        uid: &str,
        generation: i64,
        epoch: i64,
        yes: bool,
        now: Moment,
    ) -> Option<Round> {
        let question = self.questions.get(uid).copied()?;
        let asked = question.round.generation == generation && question.round.epoch == epoch;
        if !asked || question.stage != Stage::Sent {
            return None;
        }
        let wait =
            Duration::from_secs(RETRY_DELAYS_SECONDS[question.refused.min(RETRY_DELAYS_SECONDS.len() - 1)]);
        let (stage, more) = if yes { (Stage::Yes, 0) } else { (Stage::Again(now + wait), 1) };
        self.put(uid, Question { stage, refused: question.refused + more, ..question });
        Some(question.round)
    }

    /// Whether the agent has said in this round that it can reach the account.
    pub(super) fn offers(&self, uid: &str, round: Round) -> bool {
        self.questions.get(uid).is_some_and(|one| one.round == round && one.stage == Stage::Yes)
    }

    /// Whether the agent has said last that it can reach the account, in whatever round.
    pub(super) fn has_offered(&self, uid: &str) -> bool {
        self.stage(uid) == Some(Stage::Yes)
    }

    /// When the agent is to be asked again.
    pub(super) fn again_at(&self, uid: &str) -> Option<Moment> {
        match self.stage(uid) {
            Some(Stage::Again(at)) => Some(at),
            _ => None,
        }
    }

    /// The account asks no more.
    pub(super) fn forget(&mut self, uid: &str) {
        let Some(question) = self.questions.remove(uid) else { return };
        self.open -= usize::from(is_open(question.stage));
        if question.stage == Stage::Waiting {
            self.waiting.retain(|one| one != uid);
        }
    }

    /// All accounts that the session was or is to be asked about.
    pub(super) fn uids(&self) -> Vec<String> {
        self.questions.keys().cloned().collect()
    }

    fn stage(&self, uid: &str) -> Option<Stage> {
        self.questions.get(uid).map(|question| question.stage)
    }

    fn advance(&mut self, uid: &str, round: Round, from: Stage, to: Stage) -> bool {
        let question = self.questions.get(uid).copied();
        let Some(question) = question.filter(|one| one.round == round && one.stage == from) else {
            return false;
        };
        self.put(uid, Question { stage: to, ..question });
        true
    }

    fn put(&mut self, uid: &str, question: Question) {
        self.open += usize::from(is_open(question.stage));
        if let Some(before) = self.questions.insert(uid.to_owned(), question) {
            self.open -= usize::from(is_open(before.stage));
        }
    }
}

fn is_open(stage: Stage) -> bool {
    matches!(stage, Stage::Readying | Stage::Sent)
}

#[cfg(test)]
pub(in crate::hub) mod tests;
