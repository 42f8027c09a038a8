//! Rows that adoption cannot take. Each is logged once for each reason.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use tracing::warn;

/// These rows by name, with the reason last logged. Bounded by the number of rows.
#[derive(Debug, Default)]
pub(in crate::controller) struct SkippedRows(Mutex<BTreeMap<String, String>>);

impl SkippedRows {
    /// Records the current rows and logs those that are new or have a new reason.
    pub(super) fn log_new(&self, rows: BTreeMap<String, String>) {
        for (row, why) in self.news(rows) {
            warn!(row, why, "a row that is not of kubesvc cannot become an account; it is left as it is");
        }
    }

    fn news(&self, rows: BTreeMap<String, String>) -> BTreeMap<String, String> {
        let mut told = self.0.lock();
        let mut news = rows.clone();
        news.retain(|name, why| told.get(name) != Some(why));
        *told = rows;
        news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_skipped_row_is_logged_once_for_each_reason() {
        let rows = |all: &[(&str, &str)]| -> BTreeMap<String, String> {
            all.iter().map(|(name, why)| ((*name).to_owned(), (*why).to_owned())).collect()
        };
        let left = SkippedRows::default();
        assert_eq!(left.news(rows(&[("a", "x"), ("b", "x")])), rows(&[("a", "x"), ("b", "x")]));
        assert_eq!(left.news(rows(&[("a", "x"), ("b", "y")])), rows(&[("b", "y")]));
        assert_eq!(left.news(rows(&[("b", "y")])), rows(&[]));
        assert_eq!(left.news(rows(&[("a", "x"), ("b", "y")])), rows(&[("a", "x")]), "it was gone");
    }
}
