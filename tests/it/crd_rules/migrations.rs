//! The rules of migrations.

use futures::{StreamExt as _, stream};

use super::{plane, refused};
use kubesvc_testkit::controlplane;
use kubesvc_testkit::kubectl::Output;

const PATTERN: &str = "spec.patterns must be regular expressions in RE2 syntax";
const EXCLUDED: &str = "spec.excludePatterns must be regular expressions in RE2 syntax";
const RULE: &str = "zoneRules[].pattern must be a regular expression in RE2 syntax";
const SIZE: &str = "spec.wave.size must be a number of at least 1, or a share";
const FAILED: &str = "spec.limits.maxFailed must be a number of at least 0, or a share";

/// Specs that are refused: a name, the spec in YAML, and what the message must contain.
const BAD: &[(&str, &str, &str)] = &[
    ("nothing", "{}", "spec.names or spec.patterns is needed"),
    ("empty-lists", "names: []\npatterns: []", "spec.names or spec.patterns is needed"),
    ("only-excluded", "excludePatterns: [a]", "spec.names or spec.patterns is needed"),
    ("name-empty", "names: ['']", "spec.names[0]"),
    ("name-long", "names: [LONG]", "spec.names[0]"),
    ("name-line-break", "names: [\"a\\nb\"]", "spec.names must not contain control characters"),
    ("name-nul", "names: [a, \"\\0\"]", "spec.names must not contain control characters"),
    ("name-number", "names: [5]", "spec.names[0]"),
    ("name-text", "names: a", "spec.names"),
    ("source-empty", "N\nsources: ['']", "spec.sources[0]"),
    ("sources-text", "N\nsources: sql", "spec.sources"),
    ("pattern-empty", "patterns: ['']", "spec.patterns[0]"),
    ("pattern-open", "patterns: ['(']", PATTERN),
    ("pattern-closed", "patterns: [a, ')']", PATTERN),
    ("pattern-escape", "patterns: ['a)|(b']", PATTERN),
    ("pattern-ahead", "patterns: ['(?=x)']", PATTERN),
    ("pattern-not-ahead", "patterns: ['(?!x).*']", PATTERN),
    ("pattern-behind", "patterns: ['(?<=x)']", PATTERN),
    ("pattern-back-reference", r"patterns: ['(a)\1']", PATTERN),
    ("pattern-class", "patterns: ['[a']", PATTERN),
    ("pattern-star", "patterns: ['*']", PATTERN),
    ("pattern-glob", "patterns: ['*-prod']", PATTERN),
    ("pattern-repeat", "patterns: ['a{1001}']", PATTERN),
    ("pattern-repeat-nested", "patterns: ['((a{100}){100}){100}']", PATTERN),
    ("pattern-backslash", r"patterns: ['a\']", PATTERN),
    ("pattern-atomic", "patterns: ['(?>a+)']", PATTERN),
    ("pattern-possessive", "patterns: ['a++']", PATTERN),
    ("pattern-long", "patterns: [PATTERN_LONG]", "spec.patterns[0]"),
    ("excluded-open", "N\nexcludePatterns: ['(']", EXCLUDED),
    ("excluded-ahead", "N\nexcludePatterns: ['(?=x)']", EXCLUDED),
    ("excluded-empty", "N\nexcludePatterns: ['']", "spec.excludePatterns[0]"),
    ("rule-open", "N\nzoneRules: [{pattern: '(', zoneId: z}]", RULE),
    ("rule-ahead", "N\nzoneRules: [{pattern: a, zoneId: z}, {pattern: '(?=x)', zoneId: z}]", RULE),
    ("rule-empty", "N\nzoneRules: [{pattern: '', zoneId: z}]", "spec.zoneRules[0].pattern"),
    ("rule-zone-missing", "N\nzoneRules: [{pattern: a}]", "spec.zoneRules[0].zoneId"),
    ("rule-zone-empty", "N\nzoneRules: [{pattern: a, zoneId: ''}]", "spec.zoneRules[0].zoneId"),
    ("rule-zone-tab", "N\nzoneRules: [{pattern: a, zoneId: \"a\\tb\"}]", "zoneRules[].zoneId must not"),
    (
        "rule-two-sources",
        "N\nzoneRules: [{pattern: a, zoneId: z, kubeconfigFile: /a, serviceAccount: true}]",
        "zoneRules[].kubeconfigFile and zoneRules[].serviceAccount exclude each other",
    ),
    (
        "rule-relative",
        "N\nzoneRules: [{pattern: a, zoneId: z, kubeconfigFile: kube/config}]",
        "zoneRules[].kubeconfigFile must be an absolute path or a secret reference",
    ),
    (
        "rule-up",
        "N\nzoneRules: [{pattern: a, zoneId: z, kubeconfigFile: /a/../b}]",
        "zoneRules[].kubeconfigFile must not contain ..",
    ),
    ("wave-none", "N\nwave: {size: '0%'}", SIZE),
    ("wave-zero", "N\nwave: {size: 0}", SIZE),
    ("wave-negative", "N\nwave: {size: -1}", SIZE),
    ("wave-over", "N\nwave: {size: '101%'}", SIZE),
    ("wave-negative-share", "N\nwave: {size: '-1%'}", SIZE),
    ("wave-text", "N\nwave: {size: '10'}", SIZE),
    ("wave-fraction", "N\nwave: {size: '2.5%'}", SIZE),
    ("wave-line-break", "N\nwave: {size: \"10%\\n\"}", SIZE),
    ("wave-leading-zero", "N\nwave: {size: '01%'}", SIZE),
    ("wave-empty", "N\nwave: {size: ''}", SIZE),
    ("wave-flag", "N\nwave: {size: true}", "spec.wave.size"),
    ("soak-number", "N\nwave: {soak: 60}", "spec.wave.soak"),
    ("soak-bare", "N\nwave: {soak: '60'}", "spec.wave.soak"),
    ("soak-negative", "N\nwave: {soak: -1s}", "spec.wave.soak"),
    ("soak-day", "N\nwave: {soak: 25h}", "spec.wave.soak must be a duration of at most 24h"),
    ("soak-huge", "N\nwave: {soak: 99999999999999999h}", "spec.wave.soak"),
    ("failed-negative", "N\nlimits: {maxFailed: -1}", FAILED),
    ("failed-over", "N\nlimits: {maxFailed: '101%'}", FAILED),
    ("failed-text", "N\nlimits: {maxFailed: few}", FAILED),
    ("in-flight-zero", "N\nlimits: {maxInFlight: 0}", "spec.limits.maxInFlight"),
    ("in-flight-huge", "N\nlimits: {maxInFlight: 10001}", "spec.limits.maxInFlight"),
    ("zone-zero", "N\nlimits: {maxPerZone: 0}", "spec.limits.maxPerZone"),
    ("rollback-yes", "N\nrollback: true", "spec.rollback"),
    ("rollback-all", "N\nrollback: all", "spec.rollback"),
    ("change-ignore", "N\nonSourceChange: ignore", "spec.onSourceChange"),
    ("removal-drop", "N\nonSourceRemoval: drop", "spec.onSourceRemoval"),
    ("paused-text", "N\npaused: 'yes'", "spec.paused"),
    ("unknown-field", "N\npattern: a", "spec.pattern"),
];

/// Specs that are accepted.
const GOOD: &[(&str, &str)] = &[
    ("least", "N"),
    ("one-pattern", "patterns: ['^account1.*', '^.*account2.*']"),
    ("everything", "patterns: ['.*']"),
    ("everything-that-is-empty", "patterns: ['(?:)']"),
    ("linear", "patterns: ['(a+)+$', '(a|a)*b', '(x{1,30}){1,30}']"),
    (
        "syntax",
        r"patterns: ['(?i)prod-\d+', '[[:alpha:]]+', '\p{Greek}+', '(?P<a>b)', 'a*?', '\Aa\z', '(?s).']",
    ),
    ("names", "names: ['Köln 東京 🦀/a', LONGEST, ' a ']"),
    ("shares", "N\nwave: {size: '1%', soak: 0s}\nlimits: {maxFailed: '0%', maxInFlight: 1, maxPerZone: 1}"),
    ("most", "N\nwave: {size: '100%', soak: 24h}\nlimits: {maxFailed: '100%', maxInFlight: 10000}"),
    ("numbers", "N\nwave: {size: 1, soak: 1h30m}\nlimits: {maxFailed: 0}"),
    ("soaks", "N\nwave: {soak: 1.5s}"),
    (
        "rules",
        "N\nzoneRules: [{pattern: '.*-east', zoneId: east, serviceAccount: true}, {pattern: a, zoneId: 'ü', kubeconfigFile: /opt/x}, {pattern: b, zoneId: c, kubeconfigFile: 'encryptedFile:k8s!n:a!k:b', serviceAccount: false}]",
    ),
    (
        "choices",
        "N\nactivate: false\npaused: true\nrollback: delete\nonSourceChange: follow\nonSourceRemoval: deactivate",
    ),
];

async fn apply(namespace: &str, name: &str, spec: &str) -> Output {
    let spec = spec
        .replace("PATTERN_LONG", &"x".repeat(1025))
        .replace("LONGEST", &"x".repeat(255))
        .replace("LONG", &"x".repeat(256));
    let spec = spec.lines().map(|line| if line == "N" { "names: [a]" } else { line });
    let spec = spec.map(|line| format!("  {line}\n")).collect::<String>();
    let text = format!(
        "apiVersion: kubesvc.io/v1alpha1\nkind: KubesvcMigration\nmetadata: {{name: {name}, namespace: {namespace}}}\nspec:\n{spec}"
    );
    controlplane::shared().await.kubectl_with_input(["apply", "-f", "-"], &text).await
}

#[tokio::test]
async fn bad_migrations_are_refused_with_a_message_that_names_the_field() {
    let namespace = plane().await.namespace().await.to_string();
    let wrong: Vec<String> = stream::iter(BAD)
        .map(|(name, spec, part)| async { refused(name, apply(&namespace, name, spec).await, part) })
        .buffered(4)
        .filter_map(async |wrong| wrong)
        .collect()
        .await;
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(BAD.len() >= 50);
}

#[tokio::test]
async fn valid_migrations_are_accepted() {
    let namespace = plane().await.namespace().await.to_string();
    let wrong: Vec<String> = stream::iter(GOOD)
        .map(|(name, spec)| async { apply(&namespace, name, spec).await.ok().err() })
        .buffered(4)
        .filter_map(async |wrong| wrong)
        .collect()
        .await;
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[tokio::test]
async fn a_new_migration_has_its_defaults_and_is_not_yet_observed() {
    let plane = plane().await;
    let namespace = plane.namespace().await.to_string();
    apply(&namespace, "new", "N").await.ok().expect("taken");
    let read = ["get", "ksm", "new", "-n", &namespace, "-o", "jsonpath={.spec}{.status}"];
    let stored = plane.kubectl(read).await.ok().expect("there");
    for part in [
        r#""activate":true"#,
        r#""wave":{"size":"10%","soak":"60s"}"#,
        r#""limits":{"maxFailed":"5%","maxInFlight":572}"#,
        r#""paused":false"#,
        r#""rollback":"none""#,
        r#""onSourceChange":"report""#,
        r#""onSourceRemoval":"keep""#,
        r#""observedGeneration":-1"#,
    ] {
        assert!(stored.contains(part), "{part} is not in {stored}");
    }
    let table = plane.kubectl(["get", "ksm", "-n", &namespace, "-o", "wide"]).await.ok().expect("listed");
    let head: Vec<_> = table.lines().next().unwrap_or_default().split_whitespace().collect();
    assert_eq!(head, ["NAME", "PHASE", "TOTAL", "DONE", "ACTIVE", "FAILED", "WAVE", "AGE", "MESSAGE"]);
    let explained = plane.kubectl(["explain", "ksm.spec.wave"]).await.ok().expect("explained");
    assert!(explained.contains("from `1%` to `100%`"), "{explained}");
}
