//! The settings of cached objects: which kinds are cached, how they are stored and for how long, and what holds for
//! accounts that do not say themselves. What core finds in them becomes errors and warnings of the configuration.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::config::error::{ConfigError, ConfigProblem};
use crate::config::setting_type::SettingValue;
use crate::config::values::Values;
use kubesvc_core::cache::classes::KindClasses;
use kubesvc_core::cache::findings::{Finding, Setting};
use kubesvc_core::cache::rules::{self, OperatorRules};
use kubesvc_core::spec::CustomResourceTreatment;

const CACHE_DEFAULTS: &str = "kubesvc.cache.cacheDefaults";
const CACHE_KINDS: &str = "kubesvc.cache.cacheKinds";
const CACHE_OMIT_KINDS: &str = "kubesvc.cache.cacheOmitKinds";
const CACHE_ALL: &str = "kubesvc.cache.cacheAll";
const DEFAULT_RESOURCES: &str = "kubesvc.runtime.defaults.customResources";
const ACCOUNTS: &str = "kubesvc.runtime.accounts";

/// Which objects are cached, and how.
#[derive(Debug, Clone, PartialEq)]
pub struct CacheSettings {
    /// Which kinds are cached.
    pub rules: OperatorRules,
    /// How the bodies of objects are stored.
    pub body_format: BodyFormat,
    /// How long Kubernetes events are kept after they were last written; 1 s to 365 days.
    pub event_lifetime: Duration,
    /// Whether the cached objects of a static account go with it where it goes for want of agents.
    pub clean_unused_accounts: bool,
    /// Maximum number of uncommitted bytes that all streams together may borrow; 4 MiB to 1 TiB.
    pub pending_bytes: u64,
    /// Number of writers; 1 to 64.
    pub writers: u32,
    /// What holds for accounts that do not say themselves.
    pub defaults: AccountDefaults,
}

/// How the bodies of cached objects are stored.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum BodyFormat {
    /// As JSON.
    #[default]
    Text,
    /// As JSON compressed with zstd.
    Zstd,
}

/// What holds for accounts that do not say themselves: `kubesvc.runtime`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct AccountDefaults {
    /// For all accounts: `defaults`.
    all: RuntimeSettings,
    /// By name of the account: `accounts.*`.
    accounts: BTreeMap<String, RuntimeSettings>,
}

#[derive(Debug, Clone, Default, PartialEq)]
struct RuntimeSettings {
    only_spinnaker_managed: Option<bool>,
    custom_resources: Vec<CustomResourceTreatment>,
}

impl AccountDefaults {
    /// Whether only what Spinnaker deployed is cached for the account of this name, unless it says otherwise.
    pub fn only_spinnaker_managed(&self, account: &str) -> bool {
        let of_account = self.accounts.get(account).and_then(|settings| settings.only_spinnaker_managed);
        of_account.or(self.all.only_spinnaker_managed).unwrap_or_default()
    }

    /// The classes of kinds for the account of this name, whose spec has these custom resources. Findings are left out:
    /// those of the settings are errors of the configuration, those of the spec are told in the account's condition.
    pub fn classes(&self, account: &str, own: &[CustomResourceTreatment]) -> KindClasses {
        let of_account = self.accounts.get(account).map(|settings| settings.custom_resources.as_slice());
        let lists = [
            (Setting::RuntimeCustomResources, self.all.custom_resources.as_slice()),
            (Setting::RuntimeCustomResources, of_account.unwrap_or_default()),
            (Setting::CustomResources, own),
        ];
        KindClasses::read(&lists).0
    }
}

/// Builds the settings.
///
/// # Errors
/// Everything that cannot be meant as it is written.
pub(super) fn build(v: &Values) -> Result<CacheSettings, ConfigError> {
    let (rules, findings) = rules(v)?;
    let mut problems: Vec<_> =
        findings.iter().filter(|found| found.is_error()).map(|found| problem(v, found)).collect();
    let defaults = AccountDefaults {
        all: RuntimeSettings {
            only_spinnaker_managed: Some(v.boolean("kubesvc.runtime.defaults.onlySpinnakerManaged")?),
            custom_resources: v.custom_resources(DEFAULT_RESOURCES)?,
        },
        accounts: runtime_accounts(v),
    };
    problems.extend(unusable_resources(v, &defaults));
    if !problems.is_empty() {
        return Err(ConfigError { problems });
    }
    Ok(CacheSettings {
        rules,
        body_format: match v.string("kubesvc.cache.bodyFormat")?.as_str() {
            "zstd" => BodyFormat::Zstd,
            _ => BodyFormat::Text,
        },
        event_lifetime: v.seconds("kubesvc.cache.eventsCleanupFrequencySeconds")?,
        clean_unused_accounts: v.boolean("kubesvc.cache.cleanDataWithUnusedAccounts")?,
        pending_bytes: v.number("kubesvc.cache.pendingBytes")?,
        writers: v.number("kubesvc.cache.writers")?,
        defaults,
    })
}

/// Warnings about the settings, one line each.
pub(super) fn notes(v: &Values) -> Result<Vec<String>, ConfigProblem> {
    let (_, findings) = rules(v)?;
    let warnings = findings.iter().filter(|found| !found.is_error());
    Ok(warnings.map(|found| format!("{}: {found}", v.origin(key_of(found)))).collect())
}

fn rules(v: &Values) -> Result<(OperatorRules, Vec<Finding>), ConfigProblem> {
    let (defaults, kinds) = (v.optional_list(CACHE_DEFAULTS)?, v.optional_list(CACHE_KINDS)?);
    let omitted = v.list(CACHE_OMIT_KINDS)?;
    Ok(OperatorRules::read(&rules::OperatorRuleFields {
        cache_all: v.boolean(CACHE_ALL)?,
        cache_defaults: defaults.as_deref(),
        cache_kinds: kinds.as_deref(),
        cache_omit_kinds: &omitted,
    }))
}

fn runtime_accounts(v: &Values) -> BTreeMap<String, RuntimeSettings> {
    let groups = v.named_groups(ACCOUNTS).into_iter().map(|(name, group)| {
        let value = |key| group.get(key).map(|slot| &slot.value);
        let settings = RuntimeSettings {
            only_spinnaker_managed: match value("onlySpinnakerManaged") {
                Some(SettingValue::Flag(flag)) => Some(*flag),
                _ => None,
            },
            custom_resources: match value("customResources") {
                Some(SettingValue::CustomResources(resources)) => resources.clone(),
                _ => Vec::new(),
            },
        };
        (name.to_owned(), settings)
    });
    groups.collect()
}

/// The problems of custom resources whose kind is no name.
fn unusable_resources(v: &Values, defaults: &AccountDefaults) -> Vec<ConfigProblem> {
    let of_accounts = defaults
        .accounts
        .iter()
        .map(|(name, settings)| (format!("{ACCOUNTS}.{name}.customResources"), &settings.custom_resources));
    let all = [(DEFAULT_RESOURCES.to_owned(), &defaults.all.custom_resources)];
    let mut problems = Vec::new();
    for (key, resources) in all.into_iter().chain(of_accounts) {
        let (_, findings) = KindClasses::read(&[(Setting::RuntimeCustomResources, resources.as_slice())]);
        problems.extend(findings.iter().map(|found| ConfigProblem::Rule {
            origin: v.origin(&key),
            key: key.clone(),
            why: said(found),
        }));
    }
    problems
}

fn problem(v: &Values, found: &Finding) -> ConfigProblem {
    let key = key_of(found);
    ConfigProblem::Rule { origin: v.origin(key), key: key.to_owned(), why: said(found) }
}

/// The finding, to follow the key of its setting.
fn said(found: &Finding) -> String {
    let text = found.to_string();
    match text.strip_prefix(found.setting().name()) {
        Some(rest) => match rest.strip_prefix(": ") {
            Some(rest) => format!("cannot be used: {rest}"),
            None => rest.trim_start().to_owned(),
        },
        None => text,
    }
}

fn key_of(found: &Finding) -> &'static str {
    found.setting().name()
}
