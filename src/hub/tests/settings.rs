//! Settings of tests: the shipped ones.

use std::time::Duration;

use crate::hub::*;

impl Default for AdmissionSettings {
    fn default() -> Self {
        Self { approves_new: true, registration_qps: 50, orphan_grace: Duration::from_secs(30) }
    }
}

impl Default for StaticAccountSettings {
    fn default() -> Self {
        Self { namespace: String::new(), watched: true }
    }
}

impl Default for CachingSettings {
    fn default() -> Self {
        Self { pending_bytes: 256 * 1024 * 1024, writers: 2, body_format: BodyFormat::default() }
    }
}

impl Default for AssignmentChecks {
    fn default() -> Self {
        Self { initial_delay: Duration::ZERO, period: Duration::from_secs(60) }
    }
}
