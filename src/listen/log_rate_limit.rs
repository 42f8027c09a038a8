//! Rate limit for log lines that any host on the network can trigger: at most one per minute for each reason and
//! caller.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::addresses::Caller;

/// Minimum interval between two lines for one reason and caller.
const MIN_LOG_INTERVAL: Duration = Duration::from_secs(60);
/// Maximum number of tracked reasons and callers. While it is reached, no line is logged for further ones.
const MAX_TRACKED_CALLERS: usize = 1024;

/// Time of the last line for each reason and caller.
#[derive(Debug, Default)]
pub struct LogRateLimit(Mutex<HashMap<(&'static str, Caller), Instant>>);

impl LogRateLimit {
    /// Whether a line may be logged now. If so, it counts as logged.
    pub fn may_log(&self, reason: &'static str, caller: Caller) -> bool {
        self.may_log_at(reason, caller, Instant::now())
    }

    fn may_log_at(&self, reason: &'static str, caller: Caller, now: Instant) -> bool {
        let mut written = self.0.lock();
        if written.get(&(reason, caller)).is_some_and(|last| now.duration_since(*last) < MIN_LOG_INTERVAL) {
            return false;
        }
        if written.len() >= MAX_TRACKED_CALLERS {
            written.retain(|_, last| now.duration_since(*last) < MIN_LOG_INTERVAL);
        }
        if written.len() >= MAX_TRACKED_CALLERS {
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
    fn each_reason_and_caller_is_logged_once_a_minute() {
        let (complaints, now) = (LogRateLimit::default(), Instant::now());
        assert!(complaints.may_log_at("cap", caller(1), now));
        assert!(!complaints.may_log_at("cap", caller(1), now + MIN_LOG_INTERVAL / 2));
        assert!(complaints.may_log_at("address", caller(1), now), "another reason");
        assert!(complaints.may_log_at("cap", caller(2), now), "another caller");
        assert!(complaints.may_log_at("cap", caller(1), now + MIN_LOG_INTERVAL));
    }

    #[test]
    fn any_number_of_callers_cause_a_bounded_number_of_log_lines() {
        let (complaints, now) = (LogRateLimit::default(), Instant::now());
        let crowd = u32::try_from(MAX_TRACKED_CALLERS).expect("it is small") + 10;
        let spoken = (0..crowd).filter(|number| complaints.may_log_at("cap", caller(*number), now)).count();
        assert_eq!(spoken, MAX_TRACKED_CALLERS);
        assert!(complaints.may_log_at("cap", caller(crowd), now + MIN_LOG_INTERVAL), "the minute is over");
    }
}
