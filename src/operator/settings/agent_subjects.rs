//! The settings of who may connect as an agent, by the subject of its certificate.

use std::sync::Arc;

use kubesvc_core::identity::{SubjectFilters, SubjectMatch};
use kubesvc_runtime::config::{ConfigError, FLAG, SettingType, TEXTS_WITH_COMMAS, Values, key};
use kubesvc_runtime::settings;

pub(super) const GROUP: &str = "kubesvc.grpc.auth.x509";
const MATCHES: SettingType = SettingType::Choice(&["attribute", "search"]);

settings! {
    /// Which subjects are let in, as it is written.
    pub(super) struct SubjectKeys {
        /// let in only agents whose certificate has a subject that a filter matches
        enabled: bool = key("enabled", FLAG, "false");
        /// regular expressions in RE2 syntax, without look-around, for subjects such as CN=agent-1,O=acme
        filters: Vec<String> = key("filters", SettingType::List(TEXTS_WITH_COMMAS), "");
        /// attribute: a match begins and ends where an attribute does; search: anywhere
        how: SubjectMatch = key("match", MATCHES, "attribute");
    }
}

/// Refuses filters that nothing would show a certificate for; `None`: subjects are not looked at.
pub(super) fn checked(
    SubjectKeys { enabled, filters, how }: SubjectKeys,
    values: &Values,
) -> Result<Option<Arc<SubjectFilters>>, ConfigError> {
    let rule = |key: &str, why: &str| values.rule(&format!("{GROUP}.{key}"), why.to_owned()).into();
    if !enabled {
        let is_asked = !filters.is_empty() && !values.is_given(&format!("{GROUP}.enabled"));
        return match is_asked {
            true => {
                Err(rule("filters", "needs kubesvc.grpc.auth.x509.enabled: true; with false it is ignored"))
            }
            false => Ok(None),
        };
    }
    if !values.is_true("kubesvc.grpc.server.security.enabled") {
        return Err(rule(
            "enabled",
            "needs kubesvc.grpc.server.security.enabled: true, since agents show certificates over TLS only",
        ));
    }
    if values.text("kubesvc.grpc.server.security.clientAuth").is_none_or(|word| word == "NONE") {
        return Err(rule(
            "enabled",
            "needs kubesvc.grpc.server.security.clientAuth: REQUIRE, since with NONE no agent is asked for a certificate",
        ));
    }
    match SubjectFilters::compile(&filters, how) {
        Ok(filters) => Ok(Some(Arc::new(filters))),
        Err(error) => Err(rule("filters", &kubesvc_runtime::telemetry::errors::chain(&error))),
    }
}

/// Warnings about the settings.
pub(super) fn notes(values: &Values) -> Result<Vec<String>, ConfigError> {
    let keys = values.group::<SubjectKeys>(GROUP)?;
    let of = |key: &str| values.origin(&format!("{GROUP}.{key}"));
    let mut notes = Vec::new();
    if !keys.enabled && !keys.filters.is_empty() {
        let (origin, switch) = (of("filters"), of("enabled"));
        notes.push(format!(
            "{origin}: `{GROUP}.filters` has no effect, since {GROUP}.enabled is false ({switch})"
        ));
    }
    if keys.enabled && keys.how == SubjectMatch::Search {
        let origin = of("match");
        notes.push(format!(
            "{origin}: `{GROUP}.match` is search: a filter CN=agent also lets in CN=agent-of-somebody-else; set attribute"
        ));
    }
    Ok(notes)
}
