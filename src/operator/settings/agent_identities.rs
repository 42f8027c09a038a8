//! The setting of whether the identities of agents count.

use serde::Deserialize;

use super::hub_tls;
use crate::hub::IdentityMode;
use kubesvc_runtime::config::{ConfigError, FromSetting, SettingType, Values};

pub(super) const MODE: &str = "kubesvc.grpc.auth.mode";
pub(super) const MODES: SettingType = SettingType::Choice(&["open", "log", "bound"]);

/// How agents are let in, as it is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum IdentityKey {
    /// Nobody is asked for an identity.
    #[default]
    Open,
    /// What would be refused is logged and counted.
    Log,
    /// KubesvcIdentities decide.
    Bound,
}

impl FromSetting for IdentityKey {}

/// Refuses identities by certificates that any authority of the machine signs; `None`: identities do not count.
pub(super) fn checked(key: IdentityKey, values: &Values) -> Result<Option<IdentityMode>, ConfigError> {
    let mode = match key {
        IdentityKey::Open => return Ok(None),
        IdentityKey::Log => IdentityMode::Log,
        IdentityKey::Bound => IdentityMode::Bound,
    };
    let of = |key: &str| format!("{}.{key}", hub_tls::GROUP);
    let asks = values.text(&of("clientAuth")).is_some_and(|word| word != "NONE");
    let has_authorities = values.text(&of("trustCertCollection")).is_some_and(|path| !path.is_empty());
    if mode == IdentityMode::Bound && values.is_true(&of("enabled")) && asks && !has_authorities {
        let why = "needs kubesvc.grpc.server.security.trustCertCollection, since clientAuth is not NONE: without it, a \
                   certificate of any authority that the machine trusts would be looked at";
        return Err(values.rule(MODE, why.to_owned()).into());
    }
    Ok(Some(mode))
}
