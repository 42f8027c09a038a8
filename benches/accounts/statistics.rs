//! Medians and extremes, and numbers as people read them.

/// What several rounds measured.
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
    /// The middle one; between the two in the middle where there is none. 0 of nothing.
    pub(crate) fn median(&self) -> f64 {
        let middle = self.0.len() / 2;
        match self.0.len() {
            0 => 0.0,
            odd if odd % 2 == 1 => self.0[middle],
            _ => f64::midpoint(self.0[middle - 1], self.0[middle]),
        }
    }

    /// The least; 0 of nothing.
    pub(crate) fn min(&self) -> f64 {
        self.0.first().copied().unwrap_or_default()
    }

    /// The greatest; 0 of nothing.
    pub(crate) fn max(&self) -> f64 {
        self.0.last().copied().unwrap_or_default()
    }

    /// The least and the greatest, as `least–greatest`.
    pub(crate) fn spread(&self) -> String {
        match (self.0.first(), self.0.last()) {
            (Some(least), Some(greatest)) => format!("{}–{}", shown(*least), shown(*greatest)),
            _ => String::new(),
        }
    }
}

/// Three digits that matter, and whole numbers from 100 on.
pub(crate) fn shown(value: f64) -> String {
    match value.abs() {
        0.0 => "0".into(),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}
