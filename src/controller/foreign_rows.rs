//! Foreign rows of `kubesvc_accounts`: left alone and reported in the log, unless they are
//! [adopted](super::adoption).

use std::collections::BTreeSet;

use parking_lot::Mutex;
use tracing::warn;

use super::leader::Controller;

/// Maximum number of names in one log line; its count covers all rows.
const MAX_NAMES_LOGGED: usize = 10;

/// Names of the foreign rows as last logged.
#[derive(Debug, Default)]
pub(super) struct ForeignRows(Mutex<BTreeSet<String>>);

impl ForeignRows {
    /// Records the current rows. Returns the text to log if they changed and there are any.
    fn found(&self, names: BTreeSet<String>) -> Option<String> {
        let mut known = self.0.lock();
        let news = *known != names && !names.is_empty();
        let told = news.then(|| first_of(&names));
        *known = names;
        told
    }
}

/// Updates the gauge of known foreign rows, and logs their names if they changed.
pub(super) fn tell(controller: &Controller) {
    let names = controller.context.projection.foreign();
    let count = names.len();
    controller.context.metrics.foreign_rows.set(i64::try_from(count).unwrap_or(i64::MAX));
    // With adoption enabled, rows are logged one by one.
    if let Some(names) = controller.foreign.found(names).filter(|_| controller.context.adopts.is_none()) {
        warn!(
            rows = count,
            names, "table kubesvc_accounts contains rows that are not kubesvc's; leaving them unchanged"
        );
    }
}

fn first_of(names: &BTreeSet<String>) -> String {
    let named =
        names.iter().take(MAX_NAMES_LOGGED).map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ");
    if names.len() > MAX_NAMES_LOGGED { format!("{named}, …") } else { named }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(count: usize) -> BTreeSet<String> {
        (0..count).map(|number| format!("a{number:02}")).collect()
    }

    #[test]
    fn ten_rows_of_somebody_else_are_named_and_more_are_hinted_at() {
        assert_eq!(first_of(&names(2)), r#""a00", "a01""#);
        assert_eq!(first_of(&names(10)).matches("\"a").count(), 10);
        let many = first_of(&names(11));
        assert!(many.ends_with(r#""a09", …"#) && !many.contains("a10"), "{many}");
    }

    #[test]
    fn foreign_rows_are_logged_when_they_change() {
        let rows = ForeignRows::default();
        assert_eq!(rows.found(names(0)), None);
        assert!(rows.found(names(1)).is_some());
        assert_eq!(rows.found(names(1)), None, "it was told");
        assert!(rows.found(names(2)).is_some());
        assert_eq!(rows.found(names(0)), None, "there is nobody to name");
    }
}
