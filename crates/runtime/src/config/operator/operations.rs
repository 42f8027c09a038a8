//! The settings of operations on accounts.

use std::time::Duration;

use super::{ConfigProblem, Values};
use kubesvc_core::cron::CronSchedule;

const WEEK: u64 = 7 * 86_400;
const PURGE_CRON: &str = "kubesvc.jobs.operation-history.purge.cron";

/// Operations on accounts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OperationsSettings {
    /// Whether callers must be known.
    pub auth: OperationsAuth,
    /// Maximum number of runs after the first one; up to 1000.
    pub max_retries: u32,
    /// Time for an operation that only reads; 1 ms to 1 day.
    pub read_wait: Duration,
    /// Maximum number of rows of the history; at least 1.
    pub max_rows: u64,
    /// Time for which the history is kept; whole weeks, up to 5200.
    pub kept_for: Duration,
    /// When the history is purged.
    pub purge: CronSchedule,
    /// Maximum length of the metric's label `result`, in characters; up to 65,535.
    pub max_result_label: usize,
}

/// Whether callers of operations must be known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OperationsAuth {
    /// They must, and need rights.
    Required,
    /// Everybody may do everything.
    None,
}

pub(super) fn build(v: &Values) -> Result<OperationsSettings, ConfigProblem> {
    let weeks: u64 = v.number("kubesvc.jobs.operation-history.purge.weeks")?;
    Ok(OperationsSettings {
        auth: match v.string("kubesvc.operations.auth")?.as_str() {
            "none" => OperationsAuth::None,
            _ => OperationsAuth::Required,
        },
        max_retries: v.number("kubesvc.operations.retry.maxRetries")?,
        read_wait: v.millis("kubesvc.cache.onDemandQuickWaitMs")?,
        max_rows: v.number("kubesvc.operations.history.maxRows")?,
        kept_for: Duration::from_secs(weeks * WEEK),
        purge: v.string(PURGE_CRON)?.parse().map_err(|_| v.mismatch(PURGE_CRON))?,
        max_result_label: v.number("kubesvc.ops.processTime.metric.result.maxLength")?,
    })
}
