//! Times that repeat, as Spring's cron expressions say them: second, minute, hour, day of the month, month, day of the
//! week.
//!
//! Each field is `*`, a number or a name (`JAN`, `SUN`), a range, a step, or a list of these; `?` stands for any day. Days
//! of the week are 0 to 7, where both 0 and 7 are Sunday. A time must fit all six fields.

use std::fmt;
use std::str::FromStr;

use jiff::civil::{Date, DateTime, time};
use jiff::{Timestamp, tz::TimeZone};

/// Days that are looked at for the next time: leap days come within eight years.
const MAX_DAYS_AHEAD: u32 = 366 * 9;
const MONTHS: [&str; 12] =
    ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"];
const WEEKDAYS: [&str; 7] = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];

/// A schedule, in UTC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CronSchedule {
    text: String,
    seconds: Field,
    minutes: Field,
    hours: Field,
    days: Field,
    months: Field,
    weekdays: Field,
}

/// Why a text is no schedule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CronError(String);

/// The numbers that a field takes, as bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Field(u64);

impl Field {
    fn has(self, number: i8) -> bool {
        u32::try_from(number).is_ok_and(|number| self.0 & (1 << number) != 0)
    }

    /// Reads a field whose numbers are `first` to `last`; `names` stand for them from `first` on.
    fn read(text: &str, what: &str, first: u32, last: u32, names: &[&str]) -> Result<Self, CronError> {
        let failed =
            || CronError(format!("its {what} {text:?} must be *, or numbers from {first} to {last}"));
        let number = |text: &str| {
            let named = names.iter().zip(first..).find(|(name, _)| name.eq_ignore_ascii_case(text));
            let number = named.map_or_else(|| text.parse().ok(), |(_, number)| Some(number));
            number.filter(|number| (first..=last).contains(number)).ok_or_else(failed)
        };
        let mut bits = 0;
        for part in text.split(',') {
            let (range, step) = match part.split_once('/') {
                Some((range, step)) => {
                    let step = step.parse().ok().filter(|step: &usize| *step > 0).ok_or_else(failed)?;
                    (range, Some(step))
                }
                None => (part, None),
            };
            let (from, to) = match range.split_once('-') {
                _ if range == "*" => (first, last),
                Some((from, to)) => (number(from)?, number(to)?),
                None => (number(range)?, if step.is_some() { last } else { number(range)? }),
            };
            if from > to {
                return Err(failed());
            }
            (from..=to).step_by(step.unwrap_or(1)).for_each(|number| bits |= 1 << number);
        }
        Ok(Self(bits))
    }
}

impl FromStr for CronSchedule {
    type Err = CronError;

    fn from_str(text: &str) -> Result<Self, CronError> {
        let fields: Vec<&str> = text.split_ascii_whitespace().collect();
        let &[seconds, minutes, hours, days, months, weekdays] = fields.as_slice() else {
            return Err(CronError(format!(
                "{} fields, and a schedule has six: second, minute, hour, day, month, weekday",
                fields.len()
            )));
        };
        let any = |text: &str| if text == "?" { "*".to_owned() } else { text.to_owned() };
        let mut weekdays = Field::read(&any(weekdays), "weekday", 0, 7, &WEEKDAYS)?;
        if weekdays.has(7) {
            weekdays.0 |= 1;
        }
        let schedule = Self {
            text: fields.join(" "),
            seconds: Field::read(seconds, "second", 0, 59, &[])?,
            minutes: Field::read(minutes, "minute", 0, 59, &[])?,
            hours: Field::read(hours, "hour", 0, 23, &[])?,
            days: Field::read(&any(days), "day", 1, 31, &[])?,
            months: Field::read(months, "month", 1, 12, &MONTHS)?,
            weekdays,
        };
        let leap_year = Timestamp::from_second(1_704_067_200).unwrap_or_default();
        if schedule.next_after(leap_year).is_none() {
            return Err(CronError("no day fits all of its fields".to_owned()));
        }
        Ok(schedule)
    }
}

impl fmt::Display for CronSchedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl CronSchedule {
    /// The first time after this one; `None` if there is none within years.
    pub fn next_after(&self, time: Timestamp) -> Option<Timestamp> {
        let after = time.to_zoned(TimeZone::UTC).datetime();
        let mut day = after.date();
        for _ in 0..MAX_DAYS_AHEAD {
            if self.fits(day)
                && let Some(found) = self.first_on(day, (day == after.date()).then_some(after))
            {
                return found.to_zoned(TimeZone::UTC).ok().map(|zoned| zoned.timestamp());
            }
            day = day.tomorrow().ok()?;
        }
        None
    }

    fn fits(&self, day: Date) -> bool {
        self.months.has(day.month())
            && self.days.has(day.day())
            && self.weekdays.has(day.weekday().to_sunday_zero_offset())
    }

    /// The first time on a day, after another time of that day.
    fn first_on(&self, day: Date, after: Option<DateTime>) -> Option<DateTime> {
        let hours = (0..24).filter(|hour| self.hours.has(*hour));
        let minutes =
            |hour| (0..60).filter(|minute| self.minutes.has(*minute)).map(move |minute| (hour, minute));
        let seconds = |(hour, minute)| {
            (0..60).filter(|second| self.seconds.has(*second)).map(move |second| (hour, minute, second))
        };
        hours
            .flat_map(minutes)
            .flat_map(seconds)
            .map(|(hour, minute, second)| day.to_datetime(time(hour, minute, second, 0)))
            .find(|found| after.is_none_or(|after| *found > after))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn next(schedule: &str, after: &str) -> String {
        let schedule: CronSchedule = schedule.parse().expect(schedule);
        let after: Timestamp = after.parse().expect(after);
        schedule.next_after(after).map(|time| time.to_string()).unwrap_or_default()
    }

    #[test]
    fn the_next_time_fits_all_fields() {
        for (schedule, after, expected) in [
            ("0 0 0 * * 0", "2026-11-23T10:00:00Z", "2026-11-29T00:00:00Z"),
            ("0 0 0 * * 7", "2026-11-29T00:00:00Z", "2026-12-06T00:00:00Z"),
            ("0 0 0 ? * SUN", "2026-11-28T23:59:59.5Z", "2026-11-29T00:00:00Z"),
            ("*/20 * * * * *", "2026-11-23T10:00:00Z", "2026-11-23T10:00:20Z"),
            ("0 30 4/6 * * *", "2026-11-23T10:30:00Z", "2026-11-23T16:30:00Z"),
            ("0 0 9-17 * * MON-FRI", "2026-11-27T17:00:00Z", "2026-11-30T09:00:00Z"),
            ("0 0 0 29 FEB *", "2026-11-23T10:00:00Z", "2028-02-29T00:00:00Z"),
            ("5,10 0 0 1 1,6 ?", "2026-01-01T00:00:05Z", "2026-01-01T00:00:10Z"),
        ] {
            assert_eq!(next(schedule, after), expected, "{schedule} after {after}");
        }
    }

    #[test]
    fn what_is_no_schedule_is_refused() {
        for text in [
            "",
            "* * * * *",
            "60 * * * * *",
            "0 0 0 0 * *",
            "0 0 24 * * *",
            "0 0 0 * 13 *",
            "0 0 0 * * 8",
            "0 0 0 * * L",
            "0 0 0 30 2 *",
            "5-1 * * * * *",
            "*/0 * * * * *",
            "@daily",
            "0 0 0 * * 0 *",
        ] {
            assert!(text.parse::<CronSchedule>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn times_only_go_forward(text in "[0-9*/,-]{1,4} [0-9*]{1,2} [0-9*]{1,2} [0-9?*]{1,2} \\* [0-7*]", after in 0i64..4_000_000_000) {
            if let Ok(schedule) = text.parse::<CronSchedule>() {
                let after = Timestamp::from_second(after).expect("in range");
                let next = schedule.next_after(after).expect("there is one");
                prop_assert!(next > after);
            }
        }

        #[test]
        fn no_text_breaks_it(text in "\\PC{0,40}") {
            let _ = text.parse::<CronSchedule>();
        }
    }
}
