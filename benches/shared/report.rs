//! Results: tables for people, and the page that keeps them.

use std::{fs, path::Path};

use crate::{
    processes::Cpu,
    statistics::{Series, shown},
};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/results.md");
/// Section of the results about accounts.
pub(crate) const ACCOUNTS: &str = "results";
/// Section of the results about the cache.
pub(crate) const CACHE: &str = "cache results";
/// Section of the results about requests to accounts.
pub(crate) const REQUESTS: &str = "request results";

/// Target of a value.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Wanted {
    Nothing,
    AtLeast(f64),
    AtMost(f64),
}

/// A row of the table.
#[derive(Debug)]
pub(crate) struct Row {
    benchmark: &'static str,
    what: String,
    value: String,
    spread: String,
    wanted: String,
    good: bool,
}

impl Row {
    /// A row with the median of a series.
    pub(crate) fn series(benchmark: &'static str, what: &str, series: &Series, wanted: Wanted) -> Self {
        let median = series.median();
        let (wanted, good) = match wanted {
            Wanted::Nothing => (String::new(), true),
            Wanted::AtLeast(bound) => (format!("≥ {}", shown(bound)), median >= bound),
            // For an upper bound, the worst round counts.
            Wanted::AtMost(bound) => (format!("≤ {}", shown(bound)), series.max() <= bound),
        };
        let (value, spread) = (shown(median), series.spread());
        Self { benchmark, what: what.into(), value, spread, wanted, good }
    }

    /// A row for a count that must be the same in each round.
    pub(crate) fn exact(
        benchmark: &'static str,
        what: &str,
        counts: impl IntoIterator<Item = u64>,
        wanted: u64,
    ) -> Self {
        let mut counts: Vec<u64> = counts.into_iter().collect();
        let good = counts.iter().all(|count| *count == wanted);
        counts.sort_unstable();
        counts.dedup();
        let value = counts.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        Self {
            benchmark,
            what: what.into(),
            value,
            spread: String::new(),
            wanted: format!("= {wanted}"),
            good,
        }
    }
}

/// All results.
#[derive(Debug, Default)]
pub(crate) struct Report {
    rows: Vec<Row>,
    cpu: Vec<[String; 3]>,
}

impl Report {
    /// Adds a row.
    pub(crate) fn add(&mut self, row: Row) {
        self.rows.push(row);
    }

    /// Adds the CPU seconds of each program, the median of several rounds, beside the elapsed time.
    pub(crate) fn cpu<'a>(&mut self, what: &str, rounds: impl Iterator<Item = (f64, &'a Cpu)>) {
        let rounds: Vec<(f64, &Cpu)> = rounds.collect();
        let seconds: Series = rounds.iter().map(|(seconds, _)| *seconds).collect();
        let programs = rounds.first().map(|(_, cpu)| cpu.0.as_slice()).unwrap_or_default();
        let of = |index: usize| rounds.iter().map(|(_, cpu)| cpu.0[index].1).collect::<Series>().median();
        let used =
            programs.iter().enumerate().map(|(index, (name, _))| format!("{name} {}", shown(of(index))));
        self.cpu.push([what.into(), shown(seconds.median()), used.collect::<Vec<_>>().join(", ")]);
    }

    /// Returns the targets that were missed.
    pub(crate) fn misses(&self) -> Vec<String> {
        let bad = self.rows.iter().filter(|row| !row.good);
        bad.map(|row| format!("{} {}: {} (wanted {})", row.benchmark, row.what, row.value, row.wanted))
            .collect()
    }

    /// Returns the tables as text, in Markdown.
    pub(crate) fn tables(&self) -> String {
        let row = |row: &Row| {
            let verdict = if row.wanted.is_empty() {
                ""
            } else if row.good {
                "yes"
            } else {
                "**no**"
            };
            let Row { benchmark, what, value, spread, wanted, .. } = row;
            [(*benchmark).into(), what.clone(), value.clone(), spread.clone(), wanted.clone(), verdict.into()]
        };
        let rows: Vec<[String; 6]> = self.rows.iter().map(row).collect();
        let mut text = table(
            &["", "measured", "median", "least–greatest", "wanted", "reached"].map(str::to_owned),
            &rows,
        );
        if !self.cpu.is_empty() {
            text.push('\n');
            text +=
                &table(&["while", "seconds", "CPU seconds of each program"].map(str::to_owned), &self.cpu);
        }
        text
    }
}

/// Returns a Markdown table with aligned columns.
fn table<const N: usize>(head: &[String; N], rows: &[[String; N]]) -> String {
    let widths: Vec<usize> = (0..N)
        .map(|column| {
            let cells = rows.iter().chain([head]).map(|row| row[column].chars().count());
            cells.max().unwrap_or_default().max(3)
        })
        .collect();
    let line = |cells: &[String; N]| {
        let padded = cells.iter().zip(&widths).map(|(cell, width)| format!(" {cell:<width$} |"));
        format!("|{}\n", padded.collect::<String>())
    };
    let rule: String = widths.iter().map(|width| format!("{}|", "-".repeat(width + 2))).collect();
    line(head) + &format!("|{rule}\n") + &rows.iter().map(line).collect::<String>()
}

/// Replaces the text between the markers of a section of the page, and returns the page's path.
///
/// # Errors
///
/// The page cannot be read or written, or has not both markers.
pub(crate) fn write(section: &str, text: &str) -> Result<&'static str, String> {
    let path = Path::new(PAGE);
    let problem = |e: &dyn std::fmt::Display| format!("{PAGE}: {e}");
    let page = fs::read_to_string(path).map_err(|e| problem(&e))?;
    let (first, last) = (format!("<!-- {section} -->"), format!("<!-- /{section} -->"));
    let (Some(begin), Some(end)) = (page.find(&first), page.find(&last)) else {
        return Err(problem(&format!("{first} and {last} must be there")));
    };
    if begin > end {
        return Err(problem(&format!("{first} must stand before {last}")));
    }
    let page = format!("{}{first}\n\n{}\n\n{}", &page[..begin], text.trim(), &page[end..]);
    fs::write(path, page).map_err(|e| problem(&e))?;
    Ok(PAGE)
}
