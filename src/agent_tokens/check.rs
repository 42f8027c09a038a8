//! The rules of a JWT, without I/O and with the time as an argument.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::Algorithm;
use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};
use serde_json::{Map, Value};

use super::issuers::ALGORITHMS;
use super::key_set::KeySet;
use super::shown;
use super::signatures::is_signed;
use kubesvc_core::wire::MAX_TOKEN_BYTES;

/// Difference of clocks that is forgiven, in seconds.
const LEEWAY: i64 = 30;
/// Maximum life of a token, in seconds.
const MAX_LIFE: i64 = 24 * 3600;
/// Latest time that is read: the end of the year 9999.
const LATEST: i64 = 253_402_300_799;
/// Header parameters that name keys or rules of the token's own choice.
const REFUSED_PARAMETERS: [&str; 5] = ["crit", "jku", "jwk", "x5u", "x5c"];

/// What tokens of an issuer must have.
#[derive(Clone, Copy, Debug)]
pub(super) struct TokenRules<'r> {
    pub(super) issuer: &'r str,
    pub(super) audience: &'r str,
    pub(super) algorithms: &'r [Algorithm],
}

/// Why a token is refused. Contains of the token only what names its issuer, key, algorithm and claims.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TokenRefusal {
    /// It breaks this rule.
    Rule(String),
    /// It keeps the rules, but this key of it is none of the issuer's, as far as they are known.
    UnknownKey(String),
}

impl TokenRefusal {
    /// The rule, for the log.
    pub(super) fn into_text(self) -> String {
        match self {
            Self::Rule(why) | Self::UnknownKey(why) => why,
        }
    }
}

/// What a checked token says.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct CheckedToken {
    pub(super) subject: String,
    pub(super) id: Option<String>,
    pub(super) issued_at: Option<i64>,
    pub(super) expires: i64,
    pub(super) claims: Map<String, Value>,
}

/// A token that was read, of which nothing is known to be true.
pub(super) struct UnverifiedToken<'t> {
    message: &'t str,
    signature: &'t str,
    header: Map<String, Value>,
    claims: Map<String, Value>,
}

/// Whether a text is meant as a JWT: its first part is the base64url of a JSON object.
pub(super) fn is_jwt(token: &str) -> bool {
    token.split_once('.').is_some_and(|(header, _)| object(header).is_some())
}

/// Checks a token at this time, in epoch seconds.
///
/// # Errors
/// It breaks a rule.
#[cfg(test)]
pub(super) fn check(
    token: &str,
    keys: &KeySet,
    rules: TokenRules<'_>,
    now: i64,
) -> Result<CheckedToken, TokenRefusal> {
    UnverifiedToken::read(token)?.check(keys, rules, now)
}

impl<'t> UnverifiedToken<'t> {
    /// Takes a token apart.
    ///
    /// # Errors
    /// It is too long, or has another form.
    pub(super) fn read(token: &'t str) -> Result<Self, TokenRefusal> {
        if token.len() > MAX_TOKEN_BYTES {
            return rule(format!("it has {} bytes, and {MAX_TOKEN_BYTES} are the most", token.len()));
        }
        let mut parts = token.split('.');
        let (Some(header), Some(claims), Some(signature), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return rule("it has not three parts");
        };
        let message = &token[..header.len() + 1 + claims.len()];
        let Some(header) = object(header) else { return rule("its header is no JSON object") };
        let Some(claims) = object(claims) else { return rule("its claims are no JSON object") };
        Ok(Self { message, signature, header, claims })
    }

    /// The issuer that it names.
    pub(super) fn issuer(&self) -> Option<&str> {
        self.claims.get("iss")?.as_str()
    }

    /// Checks header, claims and signature at this time, in epoch seconds. What costs least comes first.
    ///
    /// # Errors
    /// It breaks a rule.
    pub(super) fn check(
        &self,
        keys: &KeySet,
        rules: TokenRules<'_>,
        now: i64,
    ) -> Result<CheckedToken, TokenRefusal> {
        let algorithm = self.algorithm(rules.algorithms)?;
        let checked = self.check_claims(rules, now)?;
        self.check_signature(keys, algorithm)?;
        Ok(checked)
    }

    fn algorithm(&self, allowed: &[Algorithm]) -> Result<Algorithm, TokenRefusal> {
        if let Some(name) = REFUSED_PARAMETERS.iter().find(|name| self.header.contains_key(**name)) {
            return rule(format!("its header has {name}, which is not taken"));
        }
        let Some(name) = self.header.get("alg").and_then(Value::as_str) else {
            return rule("its header names no algorithm (alg)");
        };
        let known = ALGORITHMS.iter().find(|(known, _)| *known == name).map(|(_, algorithm)| *algorithm);
        match known.filter(|algorithm| allowed.contains(algorithm)) {
            Some(algorithm) => Ok(algorithm),
            None => rule(format!("its algorithm {:?} is none of the issuer's", shown(name))),
        }
    }

    fn check_claims(&self, rules: TokenRules<'_>, now: i64) -> Result<CheckedToken, TokenRefusal> {
        match self.issuer() {
            Some(issuer) if issuer == rules.issuer => {}
            Some(issuer) => return rule(format!("its issuer {:?} is another one", shown(issuer))),
            None => return rule("it names no issuer (iss)"),
        }
        let is_ours = |audience: &Value| audience.as_str() == Some(rules.audience);
        match self.claims.get("aud") {
            Some(Value::Array(all)) if all.iter().any(is_ours) => {}
            Some(one) if is_ours(one) => {}
            Some(_) => return rule(format!("its audience (aud) is not {:?}", rules.audience)),
            None => return rule(format!("it has no audience (aud), which must be {:?}", rules.audience)),
        }
        let subject = self.text("sub")?.filter(|subject| !subject.is_empty());
        let Some(subject) = subject else { return rule("it names no subject (sub)") };
        let Some(expires) = self.time("exp")? else { return rule("it has no end (exp)") };
        let (issued_at, not_before) = (self.time("iat")?, self.time("nbf")?);
        if expires.saturating_add(LEEWAY) <= now {
            return rule(format!("it expired {} s ago", now.saturating_sub(expires)));
        }
        let latest = now.saturating_add(LEEWAY);
        if not_before.is_some_and(|from| from > latest) {
            return rule("it is not valid yet (nbf)");
        }
        if issued_at.is_some_and(|issued| issued > latest) {
            return rule("it was issued in the future (iat)");
        }
        let life = expires.saturating_sub(issued_at.unwrap_or(latest));
        if life > MAX_LIFE {
            return rule(format!("it lives {life} s, and {MAX_LIFE} s are the most: have shorter ones made"));
        }
        let id = self.text("jti")?.map(str::to_owned);
        Ok(CheckedToken { subject: subject.to_owned(), id, issued_at, expires, claims: self.claims.clone() })
    }

    fn check_signature(&self, keys: &KeySet, algorithm: Algorithm) -> Result<(), TokenRefusal> {
        let by_key = |key| is_signed(self.message, self.signature, key, algorithm);
        let id = match self.header.get("kid") {
            None => return self.check_signature_without_id(keys, algorithm),
            Some(Value::String(id)) => id,
            Some(_) => return rule("its header names its key by something else than text (kid)"),
        };
        let named: Vec<_> = keys.with_id(id).collect();
        if named.is_empty() {
            return Err(TokenRefusal::UnknownKey(format!("its key {:?} is none of the issuer's", shown(id))));
        }
        let fitting: Vec<_> = named.into_iter().filter(|key| key.fits(algorithm)).collect();
        if fitting.is_empty() {
            return rule(format!("its key {:?} is for another algorithm", shown(id)));
        }
        match fitting.iter().any(|key| by_key(&key.key)) {
            true => Ok(()),
            false => rule(format!("its signature is not by the issuer's key {:?}", shown(id))),
        }
    }

    /// A token without the id of its key is taken while there is one key that may be meant.
    fn check_signature_without_id(&self, keys: &KeySet, algorithm: Algorithm) -> Result<(), TokenRefusal> {
        let mut fitting = keys.fitting(algorithm);
        match (fitting.next(), fitting.next()) {
            (Some(only), None) if is_signed(self.message, self.signature, &only.key, algorithm) => Ok(()),
            (Some(_), Some(_)) => rule("it does not name its key (kid), and its issuer has several"),
            (_, None) | (None, _) => Err(TokenRefusal::UnknownKey(
                "it names no key (kid), and is not signed by the issuer's".to_owned(),
            )),
        }
    }

    /// A claim that is text.
    fn text(&self, name: &str) -> Result<Option<&str>, TokenRefusal> {
        match self.claims.get(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => rule(format!("its claim {name} is no text")),
        }
    }

    /// A claim that is a time, in epoch seconds.
    fn time(&self, name: &str) -> Result<Option<i64>, TokenRefusal> {
        let Some(value) = self.claims.get(name) else { return Ok(None) };
        // Parts of a second are cut: all times are compared with a leeway.
        #[expect(clippy::cast_possible_truncation, reason = "what is out of range is refused")]
        let time = value.as_i64().or_else(|| value.as_f64().map(|seconds| seconds as i64));
        match time.filter(|time| (0..=LATEST).contains(time)) {
            Some(time) => Ok(Some(time)),
            None => rule(format!("its claim {name} is no time")),
        }
    }
}

fn rule<T>(why: impl Into<String>) -> Result<T, TokenRefusal> {
    Err(TokenRefusal::Rule(why.into()))
}

/// The JSON object in a part of a token.
fn object(part: &str) -> Option<Map<String, Value>> {
    let json = URL_SAFE_NO_PAD.decode(part).ok()?;
    serde_json::from_slice::<UniqueMembers>(&json).ok().map(|object| object.0)
}

/// A JSON object whose members have a name each: of two with the same name, readers choose differently.
struct UniqueMembers(Map<String, Value>);

impl<'de> Deserialize<'de> for UniqueMembers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Members;
        impl<'de> Visitor<'de> for Members {
            type Value = UniqueMembers;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<UniqueMembers, A::Error> {
                let mut object = Map::new();
                while let Some((name, value)) = members.next_entry::<String, Value>()? {
                    if object.insert(name, value).is_some() {
                        return Err(A::Error::custom("a member stands twice"));
                    }
                }
                Ok(UniqueMembers(object))
            }
        }
        deserializer.deserialize_map(Members)
    }
}
