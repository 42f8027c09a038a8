//! The settings of cached objects: which kinds are cached, how they are stored and for how long, and what holds for
//! accounts that do not say themselves. What core finds in them becomes errors and warnings of the configuration.

use std::collections::BTreeMap;
use std::time::Duration;

use super::YEAR;
use super::custom_resources::CUSTOM_RESOURCES;
use crate::account_caches::{AccountDefaults, RuntimeSettings};
use crate::hub::BodyFormat;
use kubesvc_core::cache::classes::KindClasses;
use kubesvc_core::cache::findings::{Finding, Setting};
use kubesvc_core::cache::rules::{self, OperatorRules};
use kubesvc_core::spec::CustomResourceTreatment;
use kubesvc_runtime::config::{
    ConfigError, ConfigProblem, FLAG, FromSetting, SettingType, Source, TEXTS, Values, count, group, key,
    named, seconds,
};
use kubesvc_runtime::settings;

const DEFAULT_RESOURCES: &str = "kubesvc.runtime.defaults.customResources";
const ACCOUNTS: &str = "kubesvc.runtime.accounts";
const KINDS: SettingType = SettingType::OptionalList(TEXTS);

settings! {
    /// The kinds that are cached.
    struct CachedKinds {
        /// kinds cached where cacheKinds is not set; not set: the documented twelve
        defaults: Option<Vec<String>> = key("cacheDefaults", KINDS, "");
        /// kinds cached, as Kind or Kind.group; not set: those of cacheDefaults; an empty list: none
        kinds: Option<Vec<String>> = key("cacheKinds", KINDS, "");
        /// kinds never cached
        omitted: Vec<String> = key("cacheOmitKinds", SettingType::List(TEXTS), "");
        /// cache every kind a cluster has
        all: bool = key("cacheAll", FLAG, "false");
    }

    /// Which objects are cached, and how.
    pub struct CacheSettings {
        /// delete cached objects too where a static account goes for want of agents; false: they wait for the next account
        /// of that name
        clean_unused_accounts: bool = key("cache.cleanDataWithUnusedAccounts", FLAG, "true");
        /// Which kinds are cached.
        rules: OperatorRules = group("cache").read_as(|kinds: CachedKinds, _| Ok(kinds.rules().0));
        /// how cached objects are stored: as JSON, or as JSON compressed with zstd
        body_format: BodyFormat = key("cache.bodyFormat", SettingType::Choice(&["text", "zstd"]), "text");
        /// how long Kubernetes events are kept after they were last seen
        event_lifetime: Duration = key("cache.eventsCleanupFrequencySeconds", seconds(1, YEAR), "7200");
        /// objects that all agents together may have at the hub before they are written, beyond 64 KiB each
        pending_bytes: u64 =
            key("cache.pendingBytes", SettingType::Size(4 << 20, 1 << 40), "268435456");
        /// writers of cached objects, each with a connection
        writers: u32 = key("cache.writers", count(1, 64), "2");
        /// What holds for accounts that do not say themselves.
        defaults: AccountDefaults = group("runtime").read_as(account_defaults);
    }

    struct RuntimeKeys {
        /// For all accounts.
        defaults: DefaultKeys = group("defaults");
        /// By name of the account.
        accounts: BTreeMap<String, AccountOverrides> = named("accounts");
    }

    struct DefaultKeys {
        /// cache only what Spinnaker deployed, where an account does not say
        only_spinnaker_managed: bool = key("onlySpinnakerManaged", FLAG, "false");
        /// what Spinnaker takes custom kinds for; deployPriority, versioned and namespaced have no effect: each
        /// manifest is deployed as it is
        custom_resources: Vec<CustomResourceTreatment> = key("customResources", CUSTOM_RESOURCES, "");
    }

    struct AccountOverrides {
        /// cache only what Spinnaker deployed, where an account does not say
        only_spinnaker_managed: Option<bool> = key("onlySpinnakerManaged", FLAG, "");
        /// what Spinnaker takes custom kinds for; deployPriority, versioned and namespaced have no effect: each
        /// manifest is deployed as it is
        custom_resources: Vec<CustomResourceTreatment> = key("customResources", CUSTOM_RESOURCES, "");
    }
}

impl FromSetting for BodyFormat {}

impl CachedKinds {
    fn rules(&self) -> (OperatorRules, Vec<Finding>) {
        OperatorRules::read(&rules::OperatorRuleFields {
            cache_all: self.all,
            cache_defaults: self.defaults.as_deref(),
            cache_kinds: self.kinds.as_deref(),
            cache_omit_kinds: &self.omitted,
        })
    }
}

fn findings(values: &Values) -> Result<Vec<Finding>, ConfigError> {
    Ok(values.group::<CachedKinds>("kubesvc.cache")?.rules().1)
}

/// Refuses what cannot be meant as it is written.
pub(super) fn checked(settings: CacheSettings, values: &Values) -> Result<CacheSettings, ConfigError> {
    let findings = findings(values)?;
    let errors = findings.iter().filter(|found| found.is_error());
    let mut problems: Vec<_> = errors.map(|found| values.rule(found.setting().name(), said(found))).collect();
    problems.extend(unusable_resources(values, &settings.defaults));
    if problems.is_empty() { Ok(settings) } else { Err(ConfigError { problems }) }
}

/// Warnings about the settings, one line each.
pub(super) fn notes(values: &Values) -> Result<Vec<String>, ConfigError> {
    let findings = findings(values)?;
    let warnings = findings.iter().filter(|found| !found.is_error());
    Ok(warnings.map(|found| format!("{}: {found}", values.origin(found.setting().name()))).collect())
}

fn account_defaults(keys: RuntimeKeys, _: &Values) -> Result<AccountDefaults, ConfigError> {
    let DefaultKeys { only_spinnaker_managed, custom_resources } = keys.defaults;
    let all = RuntimeSettings { only_spinnaker_managed: Some(only_spinnaker_managed), custom_resources };
    let accounts = keys.accounts.into_iter().map(|(name, keys)| {
        let AccountOverrides { only_spinnaker_managed, custom_resources } = keys;
        (name, RuntimeSettings { only_spinnaker_managed, custom_resources })
    });
    Ok(AccountDefaults { all, accounts: accounts.collect() })
}

/// The problems of custom resources whose kind is no name.
fn unusable_resources(values: &Values, defaults: &AccountDefaults) -> Vec<ConfigProblem> {
    let of_accounts = defaults
        .accounts
        .iter()
        .map(|(name, settings)| (format!("{ACCOUNTS}.{name}.customResources"), &settings.custom_resources));
    let all = [(DEFAULT_RESOURCES.to_owned(), &defaults.all.custom_resources)];
    let mut problems = Vec::new();
    for (key, resources) in all.into_iter().chain(of_accounts) {
        let (_, findings) = KindClasses::read(&[(Setting::RuntimeCustomResources, resources.as_slice())]);
        problems.extend(findings.iter().map(|found| values.rule(&key, said(found))));
    }
    problems
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
