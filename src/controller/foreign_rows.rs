//! Rows of `kubesvc_accounts` that somebody else wrote: they are left alone, and people are told of them, unless
//! they are [adopted](super::adopt).

use std::collections::BTreeSet;

use parking_lot::Mutex;
use tracing::warn;

use super::leader::Controller;

/// Maximum number of names in one log line; its count is of all.
const MAX_NAMES_LOGGED: usize = 10;

/// The names of these rows, as people were told of them last.
#[derive(Debug, Default)]
pub(super) struct ForeignRows(Mutex<BTreeSet<String>>);

impl ForeignRows {
    /// Takes in the rows as they are now. Answers with what people are to be told, if that is news.
    fn found(&self, names: BTreeSet<String>) -> Option<String> {
        let mut known = self.0.lock();
        let news = *known != names && !names.is_empty();
        let told = news.then(|| first_of(&names));
        *known = names;
        told
    }
}

/// Counts the rows that are known of, and names them in the log where that is news.
pub(super) fn tell(controller: &Controller) {
    let names = controller.context.projection.foreign();
    let count = names.len();
    controller.context.metrics.foreign_rows.set(i64::try_from(count).unwrap_or(i64::MAX));
    // What is adopted is told of one by one.
    if let Some(names) = controller.foreign.found(names).filter(|_| controller.context.adopts.is_none()) {
        warn!(
            rows = count,
            names, "table kubesvc_accounts has rows that are not of kubesvc; they are left alone"
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
