//! The command lines, as the tables in `tests/transparency/*.yaml` have them.

use std::collections::BTreeMap;
use std::fs;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::world::in_repository;
use kubesvc_testkit::must;

/// Files of the table, in the order in which they are run: later ones use the objects of earlier ones.
pub(super) const FILES: [&str; 5] = ["1-writes", "2-reads", "3-rollouts", "4-cluster", "5-helm"];

/// A command line. In all texts `$NS` is the namespace of the way, `$WAY` its name, `$DIR` a folder with files, and
/// `$CHART` the chart.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct Line {
    /// Arguments of kubectl.
    #[serde(default)]
    run: String,
    /// Arguments of Helm, in place of `run`.
    #[serde(default)]
    helm: String,
    /// Standard input.
    #[serde(default)]
    pub(super) input: String,
    /// Expected exit code, of all ways that may not differ.
    #[serde(default)]
    pub(super) code: i32,
    #[serde(default)]
    pub(super) user: User,
    #[serde(default)]
    pub(super) env: BTreeMap<String, String>,
    /// Arguments of kubectl that are run before at the cluster itself, each until it succeeds. Not compared.
    #[serde(default)]
    pub(super) before: Vec<String>,
    /// The same, while the line runs, once it printed its first line.
    #[serde(default)]
    pub(super) meanwhile: Vec<String>,
    /// When `meanwhile` begins.
    #[serde(default)]
    pub(super) starts: Starts,
    /// Lines of standard output after which a program that would go on is ended.
    pub(super) lines: Option<usize>,
    /// Whether the program prints its lines in an order that is chance.
    #[serde(default)]
    pub(super) any_order: bool,
    pub(super) differs: Option<Difference>,
}

/// Whose credential is used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum User {
    /// Someone with all rights.
    #[default]
    Admin,
    /// Someone who may read ConfigMaps.
    Limited,
}

/// When the changes begin that are made while a line runs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Starts {
    /// With the first line of output.
    #[default]
    FirstLine,
    /// At once: the line prints nothing before.
    AtOnce,
}

/// A difference that cannot be mended.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Difference {
    /// Ways that differ.
    pub(super) ways: Vec<Door>,
    pub(super) reason: String,
}

/// A door of the account's API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Door {
    Aggregated,
    Direct,
}

impl Line {
    /// The words of the command line, the first of which is the program.
    pub(super) fn words(&self) -> Vec<String> {
        let (program, rest) = if self.run.is_empty() { ("helm", &self.helm) } else { ("kubectl", &self.run) };
        let mut words = vec![program.to_owned()];
        words.extend(split(rest));
        words
    }

    /// Whether it can change an object.
    pub(super) fn writes(&self) -> bool {
        const READS: [&str; 15] = [
            "get",
            "describe",
            "events",
            "api-resources",
            "api-versions",
            "explain",
            "version",
            "cluster-info",
            "top",
            "logs",
            "exec",
            "attach",
            "port-forward",
            "cp",
            "wait",
        ];
        let first = self.run.split(' ').next().unwrap_or_default();
        !READS.contains(&first)
    }

    /// Whether nothing changes by it, so that it may be run again.
    pub(super) fn only_reads(&self) -> bool {
        !self.writes() && self.meanwhile.is_empty()
    }

    /// As a person would type it.
    pub(super) fn shown(&self) -> String {
        let line =
            if self.run.is_empty() { format!("helm {}", self.helm) } else { format!("kubectl {}", self.run) };
        if self.user == User::Limited { format!("{line} (as limited)") } else { line }
    }

    pub(super) fn may_differ(&self, door: Door) -> bool {
        self.differs.as_ref().is_some_and(|one| one.ways.contains(&door))
    }
}

/// Reads a file of the table.
pub(super) fn read<T: DeserializeOwned>(file: &str) -> T {
    let path = in_repository(&format!("tests/transparency/{file}.yaml"));
    let text = must(fs::read_to_string(&path).map_err(|e| format!("{path}: {e}")));
    must(serde_saphyr::from_str(&text).map_err(|e| format!("{path}: {e}")))
}

/// The words of a line, which single quotes hold together.
pub(super) fn split(line: &str) -> Vec<String> {
    let (mut words, mut word, mut is_quoted) = (Vec::new(), String::new(), false);
    for letter in line.chars() {
        match letter {
            '\'' => is_quoted = !is_quoted,
            ' ' if !is_quoted => {
                words.extend(Some(std::mem::take(&mut word)).filter(|word| !word.is_empty()));
            }
            _ => word.push(letter),
        }
    }
    words.extend(Some(word).filter(|word| !word.is_empty()));
    words
}

#[test]
fn the_table_is_long_enough_and_each_line_once() {
    let lines: Vec<_> = FILES.into_iter().flat_map(read::<Vec<Line>>).collect();
    let shown: std::collections::BTreeSet<_> =
        lines.iter().map(|line| (line.shown(), line.input.clone(), line.env.clone())).collect();
    assert!(shown.len() >= 80, "{}", shown.len());
    for line in &lines {
        assert!(line.run.is_empty() != line.helm.is_empty(), "{line:?}");
        assert!(line.differs.as_ref().is_none_or(|one| !one.reason.is_empty() && !one.ways.is_empty()));
    }
    assert_eq!(split("a 'b c'd  e"), ["a", "b cd", "e"]);
}
