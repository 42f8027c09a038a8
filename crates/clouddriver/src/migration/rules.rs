//! The rules of a migration as numbers: how many accounts at a time, how long, and when to stop.

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use kubesvc_core::KubesvcMigrationSpec;
use kubesvc_core::lifecycle::Tick;
use kubesvc_core::migration::{MigrationRollback, OnSourceChange, OnSourceRemoval};

/// A number of accounts, or a share of all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// A number.
    Count(usize),
    /// A share in percent.
    Percent(usize),
}

impl Share {
    /// Reads what the schema admits; anything else counts as `otherwise`.
    fn read(value: &IntOrString, otherwise: Self) -> Self {
        match value {
            IntOrString::Int(count) => usize::try_from(*count).map_or(otherwise, Self::Count),
            IntOrString::String(text) => text
                .strip_suffix('%')
                .and_then(|percent| percent.parse().ok())
                .filter(|percent| *percent <= 100)
                .map_or(otherwise, Self::Percent),
        }
    }

    /// The number of accounts among `all`, rounded up, at least 1.
    pub fn of(self, all: usize) -> usize {
        match self {
            Self::Count(count) => count.max(1),
            Self::Percent(percent) => all.saturating_mul(percent).div_ceil(100).max(1),
        }
    }

    /// Whether a number of accounts among `all` is larger.
    pub fn is_exceeded_by(self, count: usize, all: usize) -> bool {
        match self {
            Self::Count(most) => count > most,
            Self::Percent(percent) => count.saturating_mul(100) > all.saturating_mul(percent),
        }
    }
}

/// The rules of a migration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MigrationRules {
    /// Accounts of a wave.
    pub wave_size: Share,
    /// Time for which the accounts of a wave must stay well, in ticks.
    pub soak: Tick,
    /// Time after which the next wave begins although accounts have not settled, in ticks.
    pub wave_timeout: Option<Tick>,
    /// Failed accounts above which the migration pauses.
    pub max_failed: Share,
    /// Accounts that are created or activated at a time.
    pub max_in_flight: usize,
    /// The same for each zone.
    pub max_per_zone: Option<usize>,
    /// Whether accounts are activated.
    pub activate: bool,
    /// Whether a person paused the migration.
    pub paused: bool,
    /// What is taken back.
    pub rollback: MigrationRollback,
    /// What becomes of an account whose entry changes.
    pub on_source_change: OnSourceChange,
    /// What becomes of an account that the sources no longer have.
    pub on_source_removal: OnSourceRemoval,
}

impl From<&KubesvcMigrationSpec> for MigrationRules {
    fn from(spec: &KubesvcMigrationSpec) -> Self {
        let count = |number: i32| usize::try_from(number).unwrap_or_default().max(1);
        Self {
            wave_size: Share::read(&spec.wave.size, Share::Percent(10)),
            soak: duration(&spec.wave.soak).unwrap_or(60),
            wave_timeout: None,
            max_failed: Share::read(&spec.limits.max_failed, Share::Percent(5)),
            max_in_flight: count(spec.limits.max_in_flight),
            max_per_zone: spec.limits.max_per_zone.map(count),
            activate: spec.activate,
            paused: spec.paused,
            rollback: spec.rollback,
            on_source_change: spec.on_source_change,
            on_source_removal: spec.on_source_removal,
        }
    }
}

/// Time after which the scanner goes on to its next batch, in ticks.
const SCANNER_WAVE_TIMEOUT: Tick = 60;

/// The migration that the documented settings `namePatterns` and `credentialScanNamePatterns` describe: batches of
/// `scanBatchSize` accounts; the next one begins when the last has settled, or after 60 s. It never pauses by itself for
/// failed accounts.
pub fn scanner_rules(batch_size: usize) -> MigrationRules {
    MigrationRules {
        wave_size: Share::Count(batch_size),
        soak: 0,
        wave_timeout: Some(SCANNER_WAVE_TIMEOUT),
        max_failed: Share::Percent(100),
        // A batch may begin while some of the last have not settled.
        max_in_flight: usize::MAX,
        max_per_zone: None,
        activate: true,
        paused: false,
        rollback: MigrationRollback::None,
        on_source_change: OnSourceChange::Report,
        on_source_removal: OnSourceRemoval::Keep,
    }
}

/// A duration such as `1h30m` or `1.5s`, in ticks, rounded up.
fn duration(text: &str) -> Option<Tick> {
    let mut rest = text;
    let mut total = 0.0;
    while !rest.is_empty() {
        let (number, after) = rest.split_at(rest.find(|letter: char| letter.is_ascii_alphabetic())?);
        let (unit, after) =
            after.split_at(after.find(|letter: char| !letter.is_ascii_alphabetic()).unwrap_or(after.len()));
        let unit = match unit {
            "ms" => 0.001,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3_600.0,
            _ => return None,
        };
        total += number.parse::<f64>().ok().filter(|number| *number >= 0.0)? * unit;
        rest = after;
    }
    // A day at most; a float that is none has become 0 or that.
    (!text.is_empty()).then(|| total.ceil().min(86_400.0) as Tick)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_go_writes_them() {
        for (text, ticks) in [
            ("0s", Some(0)),
            ("60s", Some(60)),
            ("1h30m", Some(5_400)),
            ("1.5s", Some(2)),
            ("500ms", Some(1)),
            ("9999h", Some(86_400)),
            ("", None),
            ("60", None),
            ("s", None),
            ("1d", None),
            ("-1s", None),
        ] {
            assert_eq!(duration(text), ticks, "{text}");
        }
    }

    #[test]
    fn shares_round_up_and_are_exceeded_exactly() {
        let read = |text: &str| Share::read(&IntOrString::String(text.to_owned()), Share::Count(7));
        assert_eq!((read("10%").of(101), read("1%").of(5), Share::Count(3).of(100)), (11, 1, 3));
        assert!(read("5%").is_exceeded_by(6, 100) && !read("5%").is_exceeded_by(5, 100));
        assert!(read("0%").is_exceeded_by(1, 100) && !read("100%").is_exceeded_by(100, 100));
        assert_eq!(
            (read("101%"), read("-1%"), read("x")),
            (Share::Count(7), Share::Count(7), Share::Count(7))
        );
    }
}
