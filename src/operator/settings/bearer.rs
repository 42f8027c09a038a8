//! The settings of agents' bearer tokens: whose are accepted.

use std::collections::HashSet;
use std::path::PathBuf;

use super::PATH;
use crate::agent_tokens::{ALGORITHMS, BearerSettings, IssuerSettings, KeyLocation};
use kubesvc_runtime::config::{ConfigError, FLAG, HTTP_URL, SettingType, TEXTS, Values, fold, key, list};
use kubesvc_runtime::settings;

pub(super) const GROUP: &str = "kubesvc.grpc.auth.bearer";
const MODE: &str = "kubesvc.grpc.auth.mode";
/// Maximum number of issuers.
const MAX_ISSUERS: usize = 64;
const NAME: SettingType = SettingType::Optional(2048);

settings! {
    /// Whose tokens are accepted, as it is written.
    pub(super) struct BearerKeys {
        /// accept tokens of service accounts of the operator's own cluster, with the audience kubesvc-hub: their signature is
        /// checked here, then the API server is asked (TokenReview), once a minute
        token_review: bool = key("tokenReview", FLAG, "false");
        /// Other issuers.
        issuers: Vec<IssuerKeys> = list("issuers", MAX_ISSUERS);
    }

    /// An issuer, as it is written.
    pub(super) struct IssuerKeys {
        /// an issuer whose tokens are accepted, exactly as they name it (iss)
        issuer: Option<String> = key("issuer", NAME, "");
        /// audience that its tokens must be for (aud)
        audience: Option<String> = key("audience", NAME, "");
        /// file with its public keys (JWKS), read again when it changes
        jwks_file: Option<PathBuf> = key("jwksFile", PATH, "");
        /// or https URL of its keys
        jwks_uri: Option<String> = key("jwksUri", HTTP_URL, "");
        /// or true: its keys are where ISSUER/.well-known/openid-configuration says
        discovery: bool = key("discovery", FLAG, "false");
        /// authorities of the certificates behind these URLs, PEM, in place of the system's
        ca_file: Option<PathBuf> = key("caFile", PATH, "");
        /// algorithms that its tokens may be signed with, of RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384 and EdDSA;
        /// none: all that fit the key
        algorithms: Vec<String> = key("algorithms", SettingType::List(TEXTS), "");
    }
}

/// A key below the group, and what is wrong with it, to follow the key.
pub(super) type WrongIssuer = (String, String);

/// Refuses what cannot be honoured; `None`: no credential of agents is looked at.
pub(super) fn checked(keys: BearerKeys, values: &Values) -> Result<Option<BearerSettings>, ConfigError> {
    let rule = |(key, why): WrongIssuer| values.rule(&format!("{GROUP}.{key}"), why);
    if !is_read(values) {
        // Without a written switch, these keys may be meant to protect something.
        let asked = asked(&keys).filter(|_| !values.is_given(MODE));
        let why = || format!("needs {MODE}: bound (or log); with open it is ignored");
        let problems: Vec<_> = asked.map(|key| rule((key.to_owned(), why()))).into_iter().collect();
        return if problems.is_empty() { Ok(None) } else { Err(ConfigError { problems }) };
    }
    let length = values.listed(&format!("{GROUP}.issuers")).map_or(0, |listed| listed.len);
    let too_many = (length > MAX_ISSUERS).then(|| {
        (format!("issuers[{MAX_ISSUERS}]"), format!("is one of {length}, and {MAX_ISSUERS} are the most"))
    });
    match keys.settings() {
        Ok(settings) if too_many.is_none() => Ok(Some(settings)),
        read => {
            let problems = read.err().into_iter().flatten().chain(too_many);
            Err(ConfigError { problems: problems.map(rule).collect() })
        }
    }
}

/// Whether credentials of agents are looked at.
fn is_read(values: &Values) -> bool {
    values.text(MODE).is_some_and(|mode| mode != "open")
}

/// The first key that asks for tokens.
fn asked(keys: &BearerKeys) -> Option<&'static str> {
    match (keys.token_review, keys.issuers.is_empty()) {
        (true, _) => Some("tokenReview"),
        (false, false) => Some("issuers[0].issuer"),
        (false, true) => None,
    }
}

/// Warnings about the settings.
pub(super) fn notes(values: &Values) -> Result<Vec<String>, ConfigError> {
    let keys = values.group::<BearerKeys>(GROUP)?;
    let ignored = asked(&keys).filter(|_| !is_read(values));
    Ok(ignored
        .map(|key| {
            let (origin, switch) = (values.origin(&format!("{GROUP}.{key}")), values.origin(MODE));
            format!("{origin}: `{GROUP}` has no effect, since {MODE} is open ({switch})")
        })
        .into_iter()
        .collect())
}

impl BearerKeys {
    /// The settings, or all that is wrong with them.
    pub(super) fn settings(self) -> Result<BearerSettings, Vec<WrongIssuer>> {
        let (mut problems, mut names) = (Vec::new(), HashSet::new());
        let mut settings = BearerSettings { token_review: self.token_review, issuers: Vec::new() };
        for (at, keys) in self.issuers.into_iter().enumerate() {
            match keys.issuer(&mut names) {
                Ok(issuer) => settings.issuers.push(issuer),
                Err(wrong) => {
                    problems
                        .extend(wrong.into_iter().map(|(key, why)| (format!("issuers[{at}].{key}"), why)));
                }
            }
        }
        if problems.is_empty() { Ok(settings) } else { Err(problems) }
    }
}

impl IssuerKeys {
    fn issuer(self, names: &mut HashSet<String>) -> Result<IssuerSettings, Vec<(&'static str, String)>> {
        let mut problems = Vec::new();
        let mut wrong = |key, why: &str| problems.push((key, why.to_owned()));
        let issuer = self.issuer.clone().unwrap_or_default();
        if issuer.is_empty() {
            wrong("issuer", "is missing: give what tokens of this issuer have as iss");
        } else if !names.insert(issuer.clone()) {
            wrong("issuer", "is an earlier issuer too: give each issuer once, with all its keys in one set");
        }
        let audience = self.audience.clone().unwrap_or_default();
        if audience.is_empty() {
            wrong("audience", "is missing: give what agents' tokens have as aud, such as kubesvc-hub");
        }
        let mut algorithms = Vec::new();
        for name in &self.algorithms {
            match ALGORITHMS.iter().find(|(known, _)| fold(known) == fold(name)) {
                Some((_, algorithm)) if algorithms.contains(algorithm) => {}
                Some((_, algorithm)) => algorithms.push(*algorithm),
                None => {
                    let known: Vec<_> = ALGORITHMS.iter().map(|(name, _)| *name).collect();
                    wrong("algorithms", &format!("has {name:?}; the algorithms are {}", known.join(", ")));
                }
            }
        }
        if algorithms.is_empty() {
            algorithms = ALGORITHMS.map(|(_, algorithm)| algorithm).to_vec();
        }
        let keys = self.keys().map_err(|(key, why)| wrong(key, &why)).ok();
        match keys {
            Some(keys) if problems.is_empty() => Ok(IssuerSettings { issuer, audience, keys, algorithms }),
            _ => Err(problems),
        }
    }

    fn keys(&self) -> Result<KeyLocation, (&'static str, String)> {
        const ONE: &str = "one of jwksFile, jwksUri and discovery: true is needed, and no more";
        let is_https = |url: &str| url.get(..8).is_some_and(|scheme| scheme.eq_ignore_ascii_case("https://"));
        let authorities = self.ca_file.clone();
        match (&self.jwks_file, &self.jwks_uri, self.discovery) {
            (Some(_), None, false) if authorities.is_some() => {
                Err(("caFile", "is for jwksUri and discovery; leave it out with jwksFile".to_owned()))
            }
            (Some(file), None, false) => Ok(KeyLocation::File(file.clone())),
            (None, Some(url), false) if !is_https(url) => Err((
                "jwksUri",
                "must begin with https://, since who changes the keys makes tokens".to_owned(),
            )),
            (None, Some(url), false) => Ok(KeyLocation::Url { url: url.clone(), authorities }),
            (None, None, true) => {
                let issuer = self.issuer.as_deref().unwrap_or_default();
                if !is_https(issuer) || HTTP_URL.parse(issuer).is_none() {
                    let why =
                        "needs an issuer that is an https:// URL; else name its keys by jwksUri or jwksFile";
                    return Err(("discovery", why.to_owned()));
                }
                Ok(KeyLocation::Discovery { authorities })
            }
            (None, None, false) => Err(("jwksFile", format!("is missing: {ONE}"))),
            (Some(_), _, _) => Err(("jwksFile", format!("is not alone: {ONE}"))),
            (None, Some(_), true) => Err(("jwksUri", format!("is not alone: {ONE}"))),
        }
    }
}
