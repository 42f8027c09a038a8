//! Assembles a list from its frames. A list that exceeds a bound is refused as a whole, once, up to its last frame;
//! the previous list stays in force.

use prost::Message;

use crate::wire::{MAX_ACCOUNTS_IN_BATCH, MAX_BATCH_BYTES, ops};

/// Maximum number of accounts in a list.
const MAX_ACCOUNTS: usize = 1000;
/// Maximum size of a list, in bytes.
const MAX_BYTES: usize = 8 * 1024 * 1024;
/// Allowance for the size of a frame without its accounts.
const FRAME_OVERHEAD_BYTES: usize = 1024;

/// Result of one frame.
#[derive(Debug, PartialEq)]
pub(in crate::hub) enum FrameOutcome {
    /// More frames follow, or the rest of a refused list.
    More,
    /// The list is complete.
    Complete(Vec<ops::AccountSpec>),
    /// The list is refused, for this reason.
    Refused(String),
}

/// A list that is being received.
#[derive(Debug, Default)]
pub(in crate::hub) struct IncomingList {
    accounts: Vec<ops::AccountSpec>,
    bytes: usize,
    refused: bool,
}

impl IncomingList {
    /// Adds a frame.
    pub(in crate::hub) fn take(&mut self, frame: ops::StaticAccounts) -> FrameOutcome {
        if self.refused {
            self.refused = !frame.complete;
            return FrameOutcome::More;
        }
        if let Err(why) = self.check(&frame) {
            *self = Self { refused: !frame.complete, ..Self::default() };
            return FrameOutcome::Refused(why);
        }
        self.accounts.extend(frame.accounts);
        if frame.complete {
            FrameOutcome::Complete(std::mem::take(self).accounts)
        } else {
            FrameOutcome::More
        }
    }

    fn check(&mut self, frame: &ops::StaticAccounts) -> Result<(), String> {
        let (accounts, bytes) = (frame.accounts.len(), frame.encoded_len());
        self.bytes += bytes;
        let all = self.accounts.len() + accounts;
        if all > MAX_ACCOUNTS {
            return Err(format!(
                "the agent's file lists more than {MAX_ACCOUNTS} accounts; declare the others as KubesvcAccounts"
            ));
        }
        if accounts > MAX_ACCOUNTS_IN_BATCH {
            return Err(format!(
                "a frame lists {accounts} accounts; at most {MAX_ACCOUNTS_IN_BATCH} may be: upgrade the agent"
            ));
        }
        if bytes > MAX_BATCH_BYTES + FRAME_OVERHEAD_BYTES {
            return Err(format!("a frame of accounts has {bytes} bytes; at most {MAX_BATCH_BYTES} may be"));
        }
        if self.bytes > MAX_BYTES {
            return Err(format!("the agent's accounts take more than {MAX_BYTES} bytes; shorten its file"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(accounts: usize, complete: bool) -> ops::StaticAccounts {
        ops::StaticAccounts { accounts: vec![ops::AccountSpec::default(); accounts], complete }
    }

    fn is_refused(taken: &FrameOutcome, with: &str) -> bool {
        matches!(taken, FrameOutcome::Refused(why) if why.contains(with))
    }

    #[test]
    fn frames_make_one_list_until_one_is_the_last() {
        let mut incoming = IncomingList::default();
        assert_eq!(incoming.take(frame(50, false)), FrameOutcome::More);
        assert!(matches!(incoming.take(frame(3, true)), FrameOutcome::Complete(list) if list.len() == 53));
        assert!(matches!(incoming.take(frame(0, true)), FrameOutcome::Complete(list) if list.is_empty()));
    }

    #[test]
    fn a_thousand_accounts_are_taken_and_one_more_refuses_the_list() {
        let mut incoming = IncomingList::default();
        for _ in 0..19 {
            assert_eq!(incoming.take(frame(50, false)), FrameOutcome::More);
        }
        assert!(matches!(incoming.take(frame(50, true)), FrameOutcome::Complete(list) if list.len() == 1000));
        for _ in 0..20 {
            assert_eq!(incoming.take(frame(50, false)), FrameOutcome::More);
        }
        assert!(is_refused(&incoming.take(frame(1, true)), "more than 1000"));
        assert!(matches!(incoming.take(frame(1, true)), FrameOutcome::Complete(list) if list.len() == 1));
    }

    #[test]
    fn a_list_of_a_million_is_refused_once_and_kept_nowhere() {
        let mut incoming = IncomingList::default();
        let refusals = (0..20_000).filter(|_| incoming.take(frame(50, false)) != FrameOutcome::More).count();
        assert_eq!((refusals, incoming.accounts.len(), incoming.bytes), (1, 0, 0));
        assert_eq!(incoming.take(frame(50, true)), FrameOutcome::More, "the end of the refused list");
        assert!(matches!(incoming.take(frame(2, true)), FrameOutcome::Complete(list) if list.len() == 2));
    }

    #[test]
    fn a_frame_over_its_bounds_refuses_the_list() {
        assert!(is_refused(&IncomingList::default().take(frame(51, true)), "51 accounts"));
        let large = |bytes| ops::StaticAccounts {
            accounts: vec![ops::AccountSpec { context: "x".repeat(bytes), ..Default::default() }],
            complete: false,
        };
        assert!(is_refused(&IncomingList::default().take(large(MAX_BATCH_BYTES + 2000)), "bytes"));
        let mut incoming = IncomingList::default();
        let refused =
            (0..10).map(|_| incoming.take(large(1024 * 1024))).find(|taken| *taken != FrameOutcome::More);
        assert!(refused.is_some_and(|taken| is_refused(&taken, "more than 8388608 bytes")));
    }
}
