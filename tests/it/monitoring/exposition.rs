//! Metrics as a program exposes them.

use std::collections::{BTreeMap, BTreeSet};

/// Samples by name; of each, the labels with the values that were seen.
#[derive(Clone, Debug, Default)]
pub(super) struct Exposition(BTreeMap<String, BTreeMap<String, BTreeSet<String>>>);

impl Exposition {
    /// Reads OpenMetrics text.
    pub(super) fn read(text: &str) -> Self {
        let mut samples = Self::default();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let (sample, _) = line.rsplit_once(' ').expect("a sample has a value");
            let (name, labels) = sample.split_once('{').unwrap_or((sample, ""));
            let seen = samples.0.entry(name.to_owned()).or_default();
            // No value has a quotation mark in it.
            for label in labels.trim_end_matches('}').split_inclusive("\",").filter(|one| !one.is_empty()) {
                let (label, value) = label.split_once("=\"").expect("a label has a value");
                let value = value.trim_end_matches(',').trim_end_matches('"');
                seen.entry(label.to_owned()).or_default().insert(value.to_owned());
            }
        }
        samples
    }

    /// These metrics, and those of another program.
    pub(super) fn with(mut self, other: Self) -> Self {
        for (name, labels) in other.0 {
            let seen = self.0.entry(name).or_default();
            for (label, values) in labels {
                seen.entry(label).or_default().extend(values);
            }
        }
        self
    }

    /// The labels of a metric with the values that were seen; `None` if there is no such metric.
    pub(super) fn labels_of(&self, metric: &str) -> Option<&BTreeMap<String, BTreeSet<String>>> {
        self.0.get(metric)
    }
}

#[test]
fn samples_are_read_with_their_labels_and_values() {
    let text = "# TYPE a counter\na_total{x=\"1\",y=\"two, or } more\"} 7\na_total{x=\"2\",y=\"z\"} 1e3\nb -1\n# EOF\n";
    let read = Exposition::read(text);
    let labels = read.labels_of("a_total").expect("a_total");
    let values = |label: &str| labels[label].iter().map(String::as_str).collect::<Vec<_>>();
    assert_eq!((values("x"), values("y")), (vec!["1", "2"], vec!["two, or } more", "z"]));
    assert!(read.labels_of("b").is_some_and(BTreeMap::is_empty) && read.labels_of("a").is_none());
}
