//! The `KubesvcMigration` object: which accounts of Clouddriver's credentials sources become accounts of kubesvc, in
//! which waves, and when to stop. People or Git write the spec.
#![expect(clippy::duplicated_attributes, reason = "each printer column has a name, a type and a path")]

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::ids::ZoneId;

/// Maximum number of accounts that a status names.
pub const MAX_NOTABLE: usize = 16;
/// Maximum length of a message about an account in a status, in characters.
pub const MAX_NOTABLE_MESSAGE_CHARS: usize = 512;

/// A migration of accounts from Clouddriver's credentials sources. Takes effect in the operator's namespace.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "kubesvc.io",
    version = "v1alpha1",
    kind = "KubesvcMigration",
    plural = "kubesvcmigrations",
    shortname = "ksm",
    category = "spinnaker",
    namespaced,
    status = "KubesvcMigrationStatus",
    derive = "PartialEq",
    doc = "A migration of accounts from Clouddriver's credentials sources to kubesvc, in waves. Takes effect in the operator's namespace only. `kubectl wait --for=condition=Ready ksm/NAME` waits until it is complete.",
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Total", type_ = "integer", json_path = ".status.total"),
    printcolumn(name = "Done", type_ = "integer", json_path = ".status.done"),
    printcolumn(name = "Active", type_ = "integer", json_path = ".status.active"),
    printcolumn(name = "Failed", type_ = "integer", json_path = ".status.failed"),
    printcolumn(name = "Wave", type_ = "integer", json_path = ".status.wave"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(
        name = "Message",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].message",
        priority = "1"
    )
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("(has(self.names) && self.names.size() > 0) || (has(self.patterns) && self.patterns.size() > 0)")
        .message("spec.names or spec.patterns is needed: say which accounts are migrated")
)]
pub struct KubesvcMigrationSpec {
    /// Names of the sources to read, of `kubesvc.clouddriver.sources`. Default: all of them. Their order is that of the setting.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(length(min = 1, max = 255)))]
    pub sources: Vec<String>,

    /// Names of accounts to migrate. An account that a person deleted is migrated again if it is named here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1000), inner(length(min = 1, max = 255)))]
    #[x_kube(validation = Rule::new("!self.exists(name, name.matches('\\\\p{Cc}'))").message("spec.names must not contain control characters"))]
    pub names: Vec<String>,

    /// Regular expressions of names of accounts to migrate, in RE2 syntax. Each is compared with the whole name, case-sensitively.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100), inner(length(min = 1, max = 1024)))]
    #[x_kube(validation = Rule::new("self.all(pattern, ''.matches(pattern) || !''.matches(pattern))").message("spec.patterns must be regular expressions in RE2 syntax, without look-around"))]
    pub patterns: Vec<String>,

    /// Regular expressions of names of accounts that are not migrated, whatever else names them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100), inner(length(min = 1, max = 1024)))]
    #[x_kube(validation = Rule::new("self.all(pattern, ''.matches(pattern) || !''.matches(pattern))").message("spec.excludePatterns must be regular expressions in RE2 syntax, without look-around"))]
    pub exclude_patterns: Vec<String>,

    /// Zones of the accounts. The first rule whose pattern matches an account's name counts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100))]
    pub zone_rules: Vec<ZoneRule>,

    /// Whether the migrated accounts are activated.
    #[serde(default = "enabled")]
    pub activate: bool,

    /// How many accounts are migrated at a time, and how long they must stay well.
    #[serde(default)]
    pub wave: MigrationWave,

    /// When to stop, and how much happens at once.
    #[serde(default)]
    pub limits: MigrationLimits,

    /// Stops the migration before its next account.
    #[serde(default)]
    pub paused: bool,

    /// Takes back the accounts that this migration created and that nobody has changed since: `none`, `deactivate` or `delete`. Accounts that the sources no longer have are left, unless the annotation `kubesvc.io/force-rollback` has a value.
    #[serde(default)]
    pub rollback: MigrationRollback,

    /// What becomes of a migrated account whose entry in the source changes: `report`, or `follow` to update it if nobody has changed it since.
    #[serde(default)]
    pub on_source_change: OnSourceChange,

    /// What becomes of a migrated account that the sources no longer have: `keep`, `deactivate` or `delete`.
    #[serde(default)]
    pub on_source_removal: OnSourceRemoval,
}

fn enabled() -> bool {
    true
}

/// The zone of accounts, and how their agents reach the clusters.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.kubeconfigFile) || !has(self.serviceAccount) || !self.serviceAccount")
    .message("zoneRules[].kubeconfigFile and zoneRules[].serviceAccount exclude each other: remove one of them"))]
pub struct ZoneRule {
    /// Regular expression in RE2 syntax. It is compared with the whole name, case-sensitively.
    #[schemars(length(min = 1, max = 1024))]
    #[x_kube(validation = Rule::new("''.matches(self) || !''.matches(self)").message("zoneRules[].pattern must be a regular expression in RE2 syntax, without look-around"))]
    pub pattern: String,
    /// Zone whose agents hold the accounts.
    #[schemars(with = "String", length(min = 1, max = 255))]
    #[x_kube(validation = Rule::new("!self.matches('\\\\p{Cc}')").message("zoneRules[].zoneId must not contain control characters"))]
    pub zone_id: ZoneId,
    /// Kubeconfig of the accounts: an absolute path on the agent, or a Spinnaker secret reference. Default: as in the source.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    #[x_kube(
        validation = Rule::new("self.startsWith('/') || self.startsWith('encrypted:') || self.startsWith('encryptedFile:') || self.startsWith('secret://')")
            .message("zoneRules[].kubeconfigFile must be an absolute path or a secret reference"),
        validation = Rule::new("!self.startsWith('/') || !self.split('/').exists(part, part == '..')")
            .message("zoneRules[].kubeconfigFile must not contain .. as a part"),
        validation = Rule::new("!self.matches('\\\\p{Cc}')").message("zoneRules[].kubeconfigFile must not contain control characters")
    )]
    pub kubeconfig_file: Option<String>,
    /// Use the agents' own service account, for the cluster that they run in. Default: false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_account: Option<bool>,
}

/// How many accounts are migrated at a time, and how long they must stay well.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct MigrationWave {
    /// Number of accounts of a wave, or their share of all accounts of the migration, from `1%` to `100%`.
    #[serde(default = "default_size")]
    #[x_kube(validation = Rule::new("type(self) == int ? int(self) >= 1 : string(self).matches('^([1-9][0-9]?|100)%$')").message("spec.wave.size must be a number of at least 1, or a share from \"1%\" to \"100%\""))]
    pub size: IntOrString,
    /// Time for which the accounts of a wave must stay well before the next wave begins, for example `60s` or `1h30m`; at most 24h.
    #[serde(default = "default_soak")]
    #[schemars(length(max = 32), regex(pattern = r"^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$"))]
    #[x_kube(validation = Rule::new("duration(self) <= duration('24h')").message("spec.wave.soak must be a duration of at most 24h, such as 60s"))]
    pub soak: String,
}

fn default_size() -> IntOrString {
    IntOrString::String("10%".to_owned())
}

fn default_soak() -> String {
    "60s".to_owned()
}

impl Default for MigrationWave {
    fn default() -> Self {
        Self { size: default_size(), soak: default_soak() }
    }
}

/// When to stop, and how much happens at once.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct MigrationLimits {
    /// Number of failed accounts, or their share of all accounts of the migration, above which it pauses.
    #[serde(default = "default_max_failed")]
    #[x_kube(validation = Rule::new("type(self) == int ? int(self) >= 0 : string(self).matches('^([0-9]|[1-9][0-9]|100)%$')").message("spec.limits.maxFailed must be a number of at least 0, or a share from \"0%\" to \"100%\""))]
    pub max_failed: IntOrString,
    /// Number of accounts that may be created or activated at a time.
    #[serde(default = "default_max_in_flight")]
    #[schemars(range(min = 1, max = 10_000))]
    pub max_in_flight: i32,
    /// Number of accounts of one zone that may be created or activated at a time. Default: no bound.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10_000))]
    pub max_per_zone: Option<i32>,
}

fn default_max_failed() -> IntOrString {
    IntOrString::String("5%".to_owned())
}

fn default_max_in_flight() -> i32 {
    572
}

impl Default for MigrationLimits {
    fn default() -> Self {
        Self { max_failed: default_max_failed(), max_in_flight: default_max_in_flight(), max_per_zone: None }
    }
}

/// What is taken back.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub enum MigrationRollback {
    /// Nothing.
    #[default]
    None,
    /// The accounts become INACTIVE.
    Deactivate,
    /// The accounts are deleted.
    Delete,
}

/// What becomes of a migrated account whose entry in the source changes.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub enum OnSourceChange {
    /// The status names it.
    #[default]
    Report,
    /// It is updated, unless somebody has changed it.
    Follow,
}

/// What becomes of a migrated account that the sources no longer have.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub enum OnSourceRemoval {
    /// It stays.
    #[default]
    Keep,
    /// It becomes INACTIVE.
    Deactivate,
    /// It is deleted.
    Delete,
}

/// Progress of the migration, written by the operator.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct KubesvcMigrationStatus {
    /// What the migration is doing.
    pub phase: MigrationPhase,
    /// Generation of the spec that this status is about.
    pub observed_generation: i64,
    /// Number of accounts that the spec selects in the sources.
    pub total: i32,
    /// Number of those that need nothing more: active, failed, refused, declined, or there before.
    pub done: i32,
    /// Number of those that are ACTIVE.
    pub active: i32,
    /// Number of those that failed in this migration.
    pub failed: i32,
    /// Number of the current or last wave; 0 before the first.
    pub wave: i32,
    /// Last value of the annotation `kubesvc.io/retry` that was acted on: a new one resumes a migration that paused by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 255))]
    pub retry_handled: Option<String>,
    /// Accounts that a person should look at, the most urgent first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub notable: Vec<NotableAccount>,
    /// Ready is True when the migration is complete, Reconciling while it goes on, and Stalled while it waits for a person.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

/// What a migration is doing.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MigrationPhase {
    /// The sources are being read.
    #[default]
    Planning,
    /// The accounts of a wave are created and activated.
    Running,
    /// The accounts of a wave have settled, and must stay well for a while.
    Soaking,
    /// Nothing more is migrated until a person resumes it.
    Paused,
    /// Accounts are taken back.
    RollingBack,
    /// Nothing is left to do.
    Complete,
    /// A value of a later version of the operator that this version does not know.
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}

/// An account that a person should look at.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct NotableAccount {
    /// Name of the account.
    pub name: String,
    /// What is notable, as a word in CamelCase.
    pub reason: String,
    /// The same in a sentence.
    pub message: String,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_not_said_has_the_first_value() {
        let spec: KubesvcMigrationSpec = serde_json::from_value(json!({"names": ["a"]})).expect("a spec");
        assert_eq!(
            serde_json::to_value(spec).expect("JSON"),
            json!({
                "names": ["a"], "activate": true, "wave": {"size": "10%", "soak": "60s"},
                "limits": {"maxFailed": "5%", "maxInFlight": 572}, "paused": false, "rollback": "none",
                "onSourceChange": "report", "onSourceRemoval": "keep",
            })
        );
    }

    #[test]
    fn a_phase_of_a_later_version_is_read() {
        let status: KubesvcMigrationStatus =
            serde_json::from_value(json!({"phase": "Dreaming"})).expect("a status");
        assert_eq!(status.phase, MigrationPhase::Unknown);
    }
}
