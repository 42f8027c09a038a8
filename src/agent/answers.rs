//! Queue of reports that wait to be sent. Beyond a size limit, reports are queued without namespaces; the link
//! session bounds their number.

use std::collections::VecDeque;

use prost::Message;

use crate::wire::MAX_ACCOUNTS_IN_BATCH;
use crate::wire::ops::AccountResult;
use crate::wire::ops::account_result::Outcome;

/// Limit, in bytes, on waiting reports; beyond it, reports are queued without the list of namespaces.
const MAX_WAITING_BYTES: usize = 32 * 1024 * 1024;

/// Reports in the order in which they are sent.
#[derive(Debug, Default)]
pub struct Answers {
    /// Each report with its size in bytes.
    waiting: VecDeque<(AccountResult, usize)>,
    bytes: usize,
}

impl Answers {
    /// Appends a report.
    pub fn push(&mut self, mut answer: AccountResult) {
        let mut bytes = size(&answer);
        if self.bytes + bytes > MAX_WAITING_BYTES {
            without_namespaces(&mut answer);
            bytes = size(&answer);
        }
        self.bytes += bytes;
        self.waiting.push_back((answer, bytes));
    }

    /// Removes the next reports: as many as fit into `max_bytes` and into one frame, at least one. A report
    /// that is too large by itself is sent without its namespaces.
    pub fn take(&mut self, max_bytes: usize) -> Vec<AccountResult> {
        let (mut results, mut bytes) = (Vec::new(), 0);
        while let Some((_, next)) = self.waiting.front() {
            bytes += next;
            if !results.is_empty() && (results.len() == MAX_ACCOUNTS_IN_BATCH || bytes > max_bytes) {
                break;
            }
            let Some((mut answer, size)) = self.waiting.pop_front() else { break };
            self.bytes -= size;
            if size > max_bytes {
                without_namespaces(&mut answer);
            }
            results.push(answer);
        }
        results
    }

    /// Number of waiting reports.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Discards all reports.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

/// Size of a report within a frame, in bytes.
fn size(answer: &AccountResult) -> usize {
    answer.encoded_len() + 8
}

/// Removes the list of namespaces; their count stays.
fn without_namespaces(answer: &mut AccountResult) {
    if let Some(Outcome::Identity(identity)) = &mut answer.outcome {
        identity.namespaces = Vec::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::ops::ClusterIdentity;

    fn held(namespaces: usize) -> AccountResult {
        let identity = ClusterIdentity {
            namespaces: (0..namespaces).map(|one| format!("{one:0>60}")).collect(),
            namespaces_count: u32::try_from(namespaces).expect("few"),
            ..ClusterIdentity::default()
        };
        AccountResult { outcome: Some(Outcome::Identity(identity)), ..AccountResult::default() }
    }

    fn namespaces(answer: &AccountResult) -> (usize, u32) {
        match &answer.outcome {
            Some(Outcome::Identity(identity)) => (identity.namespaces.len(), identity.namespaces_count),
            _ => (0, 0),
        }
    }

    #[test]
    fn what_waits_is_bounded_in_bytes_and_says_how_many_namespaces_there_are_all_the_same() {
        let mut answers = Answers::default();
        (0..100).for_each(|_| answers.push(held(10_000)));
        assert_eq!(answers.len(), 100);
        assert!(answers.bytes <= MAX_WAITING_BYTES + 100 * 64, "{}", answers.bytes);
        let mut all = Vec::new();
        while answers.len() > 0 {
            all.extend(answers.take(1 << 20));
        }
        assert_eq!((all.len(), answers.bytes), (100, 0));
        assert_eq!(namespaces(&all[0]), (10_000, 10_000));
        assert_eq!(namespaces(&all[99]), (0, 10_000));
    }

    #[test]
    fn a_frame_is_no_larger_than_its_hub_takes_even_if_one_answer_is() {
        let mut answers = Answers::default();
        (0..100).for_each(|_| answers.push(held(100)));
        answers.push(held(10_000));
        let mut frames = Vec::new();
        while answers.len() > 0 {
            frames.push(answers.take(64 * 1024));
        }
        assert!(frames.iter().all(|frame| frame.iter().map(size).sum::<usize>() <= 64 * 1024));
        assert_eq!(frames.concat().len(), 101);
    }
}
