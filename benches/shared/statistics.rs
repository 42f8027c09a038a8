//! Medians, extremes, and number formatting.

/// Measurements of several rounds, sorted.
#[derive(Debug, Clone, Default)]
pub(crate) struct Series(Vec<f64>);

impl FromIterator<f64> for Series {
    fn from_iter<I: IntoIterator<Item = f64>>(values: I) -> Self {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        Self(values)
    }
}

impl Series {
    /// Returns the median, or 0 if there are no values.
    pub(crate) fn median(&self) -> f64 {
        let middle = self.0.len() / 2;
        match self.0.len() {
            0 => 0.0,
            odd if odd % 2 == 1 => self.0[middle],
            _ => f64::midpoint(self.0[middle - 1], self.0[middle]),
        }
    }

    /// Returns the minimum, or 0 if there are no values.
    pub(crate) fn min(&self) -> f64 {
        self.0.first().copied().unwrap_or_default()
    }

    /// Returns the maximum, or 0 if there are no values.
    pub(crate) fn max(&self) -> f64 {
        self.0.last().copied().unwrap_or_default()
    }

    /// Returns minimum and maximum as `minimum–maximum`.
    pub(crate) fn spread(&self) -> String {
        match (self.0.first(), self.0.last()) {
            (Some(least), Some(greatest)) => format!("{}–{}", shown(*least), shown(*greatest)),
            _ => String::new(),
        }
    }
}

/// Formats a number with three significant digits, and without decimals from 100 on.
pub(crate) fn shown(value: f64) -> String {
    match value.abs() {
        0.0 => "0".into(),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}
