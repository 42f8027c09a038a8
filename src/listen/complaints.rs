//! Log lines that anyone on the network can provoke: at most one a minute for each reason and caller.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::addresses::Caller;

/// Shortest time between two lines for one reason and caller.
const PAUSE: Duration = Duration::from_secs(60);
/// Reasons and callers that are remembered; while there are so many, no line is written for further ones.
const MAX_REMEMBERED: usize = 1024;

/// When which line was written last.
#[derive(Debug, Default)]
pub struct Complaints(Mutex<HashMap<(&'static str, Caller), Instant>>);

impl Complaints {
    /// Whether a line may be written now; true takes the turn.
    pub fn may_speak(&self, reason: &'static str, caller: Caller) -> bool {
        self.may_speak_at(reason, caller, Instant::now())
    }

    fn may_speak_at(&self, reason: &'static str, caller: Caller, now: Instant) -> bool {
        let mut written = self.0.lock();
        if written.get(&(reason, caller)).is_some_and(|last| now.duration_since(*last) < PAUSE) {
            return false;
        }
        if written.len() >= MAX_REMEMBERED {
            written.retain(|_, last| now.duration_since(*last) < PAUSE);
        }
        if written.len() >= MAX_REMEMBERED {
            return false;
        }
        written.insert((reason, caller), now);
        true
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;

    fn caller(number: u32) -> Caller {
        Caller::of(IpAddr::V4(Ipv4Addr::from_bits(number)))
    }

    #[test]
    fn each_reason_and_caller_has_one_line_a_minute() {
        let (complaints, now) = (Complaints::default(), Instant::now());
        assert!(complaints.may_speak_at("cap", caller(1), now));
        assert!(!complaints.may_speak_at("cap", caller(1), now + PAUSE / 2));
        assert!(complaints.may_speak_at("address", caller(1), now), "another reason");
        assert!(complaints.may_speak_at("cap", caller(2), now), "another caller");
        assert!(complaints.may_speak_at("cap", caller(1), now + PAUSE));
    }

    #[test]
    fn a_crowd_of_callers_writes_a_bounded_number_of_lines() {
        let (complaints, now) = (Complaints::default(), Instant::now());
        let crowd = u32::try_from(MAX_REMEMBERED).expect("it is small") + 10;
        let spoken = (0..crowd).filter(|number| complaints.may_speak_at("cap", caller(*number), now)).count();
        assert_eq!(spoken, MAX_REMEMBERED);
        assert!(complaints.may_speak_at("cap", caller(crowd), now + PAUSE), "the minute is over");
    }
}
