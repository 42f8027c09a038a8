//! Durations in kubectl's format: `42s`, `3m5s`, `17h`, `8d`.

use jiff::Timestamp;

const MINUTE: i64 = 60;
const HOUR: i64 = 60 * MINUTE;
const DAY: i64 = 24 * HOUR;
const YEAR: i64 = 365 * DAY;

/// Formats seconds with two units if the smaller one still matters, otherwise with one. Negative durations, from
/// clocks that differ, are `0s`.
pub fn seconds(total: i64) -> String {
    let total = total.max(0);
    let two = |large: i64, name: char, small: i64, small_name: char| {
        let rest = total % large / small;
        let first = total / large;
        if rest == 0 { format!("{first}{name}") } else { format!("{first}{name}{rest}{small_name}") }
    };
    match total {
        ..120 => format!("{total}s"),
        120..600 => two(MINUTE, 'm', 1, 's'),
        600..10_800 => format!("{}m", total / MINUTE),
        10_800..28_800 => two(HOUR, 'h', MINUTE, 'm'),
        28_800..172_800 => format!("{}h", total / HOUR),
        172_800..691_200 => two(DAY, 'd', HOUR, 'h'),
        691_200..63_072_000 => format!("{}d", total / DAY),
        63_072_000..252_288_000 => two(YEAR, 'y', DAY, 'd'),
        _ => format!("{}y", total / YEAR),
    }
}

/// The time since a moment.
pub fn since(moment: Timestamp, now: Timestamp) -> String {
    seconds(now.as_second().saturating_sub(moment.as_second()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_read_as_kubectl_writes_them() {
        for (total, text) in [
            (-5, "0s"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (185, "3m5s"),
            (599, "9m59s"),
            (600, "10m"),
            (3 * HOUR - 1, "179m"),
            (3 * HOUR, "3h"),
            (3 * HOUR + 5 * MINUTE, "3h5m"),
            (8 * HOUR, "8h"),
            (47 * HOUR, "47h"),
            (2 * DAY, "2d"),
            (2 * DAY + 5 * HOUR, "2d5h"),
            (8 * DAY, "8d"),
            (400 * DAY, "400d"),
            (2 * YEAR, "2y"),
            (2 * YEAR + 3 * DAY, "2y3d"),
            (9 * YEAR, "9y"),
        ] {
            assert_eq!(seconds(total), text, "{total}");
        }
    }

    #[test]
    fn a_moment_in_the_future_is_no_age() {
        let now = Timestamp::UNIX_EPOCH;
        assert_eq!(since(Timestamp::from_second(90).expect("a moment"), now), "0s");
        assert_eq!(since(now, Timestamp::from_second(90).expect("a moment")), "90s");
    }
}
