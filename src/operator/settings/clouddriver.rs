//! The settings of Clouddriver: where it is, and the accounts that are registered in it.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

use super::{DAY, PATH};
use kubesvc_runtime::config::{
    ConfigError, FLAG, FromSetting, HTTP_URL, NAMESPACES, SettingType, Values, count, group, key, seconds,
};
use kubesvc_runtime::settings;

settings! {
    /// Clouddriver.
    pub struct ClouddriverSettings {
        /// URL of Clouddriver, such as `http://spin-clouddriver.spinnaker:7002`; none: it is not called
        base_url: Option<String> = key("baseUrl", HTTP_URL, "");
        /// which paths REST passes on to Clouddriver: /credentials alone, or all that are not its own
        pass_through: PassThrough = key("passThrough", SettingType::Choice(&["none", "all"]), "none");
        /// pass GET /credentials/type/… and …/history on too, whose answers have resolved secrets
        pass_secrets: bool = key("passSecrets", FLAG, "false");
        /// How Clouddriver is called over TLS.
        tls: ClouddriverTls = group("tls");
        /// Accounts registered in Clouddriver.
        push: PushSettings = group("push");
    }

    /// How Clouddriver is called over TLS.
    pub struct ClouddriverTls {
        /// certificate authorities of Clouddriver, PEM; none: those of the system
        ca_file: Option<PathBuf> = key("caFile", PATH, "");
        /// certificate shown to Clouddriver, PEM
        certificate_file: Option<PathBuf> = key("certificateFile", PATH, "");
        /// private key of that certificate, PEM
        key_file: Option<PathBuf> = key("keyFile", PATH, "");
    }

    /// Accounts registered in Clouddriver.
    pub struct PushSettings {
        /// register ACTIVE accounts in Clouddriver, and remove those that go
        enabled: bool = key("enabled", FLAG, "false");
        /// namespaces whose accounts are registered; none: the operator's own
        namespaces: Vec<String> = key("namespaces", SettingType::List(NAMESPACES), "");
        /// user as whom Clouddriver is called (X-SPINNAKER-USER); where Fiat is on, a Fiat admin
        user: String = key("user", SettingType::Text(255), "kubesvc");
        /// URL of the API of accounts as Clouddriver reaches it; none: https://kubesvc-operator.NAMESPACE.svc:6443
        gateway: Option<String> = key("gateway", HTTP_URL, "");
        /// file in Clouddriver's pod with its token
        token_file: String = key("tokenFile", SettingType::Text(4096), "/var/run/secrets/kubesvc/token");
        /// file in Clouddriver's pod with the certificate authority of the API of accounts
        ca_file: String = key("caFile", SettingType::Text(4096), "/var/run/secrets/kubesvc/ca.crt");
        /// time between two reads of Clouddriver's accounts; that between two of its polls
        poll: Duration = key("pollSeconds", seconds(1, DAY), "30");
        /// time within which each registered account is compared once
        resync: Duration = key("resyncSeconds", seconds(1, DAY), "300");
        /// time between two reads of an account's objects by Clouddriver
        cache_interval_seconds: u64 = key("cacheIntervalSeconds", count(1, DAY), "30");
        /// longest time for which an account that goes is kept until Clouddriver has it no longer; 0: none
        removal_wait: Duration = key("removalWaitSeconds", seconds(0, DAY), "60");
        /// send the namespaces that an agent found, for accounts that name none; at most every 10 minutes
        fill_namespaces: bool = key("fillNamespaces", FLAG, "false");
        /// write an account again that somebody changed in Clouddriver
        force: bool = key("force", FLAG, "false");
    }
}

/// Which paths besides `/credentials` are passed on to Clouddriver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PassThrough {
    /// None.
    None,
    /// All that are not REST's own.
    All,
}

impl FromSetting for PassThrough {}

/// Refuses settings that need others which are not set.
pub(super) fn checked(
    settings: ClouddriverSettings,
    values: &Values,
) -> Result<ClouddriverSettings, ConfigError> {
    const PUSH: &str = "kubesvc.clouddriver.push.enabled";
    let wants = |given: &str, what: &str| Err(values.rule(given, format!("needs {what}")).into());
    if settings.push.enabled && settings.base_url.is_none() {
        return wants(PUSH, "kubesvc.clouddriver.baseUrl: the URL of Clouddriver");
    }
    if settings.push.enabled && !values.is_true("kubesvc.gateway.enabled") {
        return wants(PUSH, "kubesvc.gateway.enabled: true, the API of accounts that Clouddriver then uses");
    }
    if settings.pass_through == PassThrough::All && settings.base_url.is_none() {
        return wants(
            "kubesvc.clouddriver.passThrough",
            "kubesvc.clouddriver.baseUrl: the URL of Clouddriver",
        );
    }
    match (&settings.tls.certificate_file, &settings.tls.key_file) {
        (Some(_), None) => wants(
            "kubesvc.clouddriver.tls.certificateFile",
            "kubesvc.clouddriver.tls.keyFile, its private key",
        ),
        (None, Some(_)) => wants(
            "kubesvc.clouddriver.tls.keyFile",
            "kubesvc.clouddriver.tls.certificateFile, its certificate",
        ),
        _ => Ok(settings),
    }
}
