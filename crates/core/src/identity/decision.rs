//! Which KubesvcIdentity an agent has by its credential, and what it may do. Pure: every replica decides the same.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use kube::ResourceExt;

use super::KubesvcIdentity;
use super::credential::{
    AgentCredential, CertificateFacts, TokenFacts, TokenHolder, normal_fingerprint, normal_serial,
};
use super::resource::{Allowance, CredentialMatch, TokenSecret};
use super::subject::Subject;
use super::template::{Captures, Claim, Template, TemplateError};

/// Why an object identifies nobody: the field, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("spec.{field}: {problem}")]
pub struct UnusableIdentity {
    field: &'static str,
    problem: String,
}

impl UnusableIdentity {
    fn new(field: &'static str, problem: &(impl std::fmt::Display + ?Sized)) -> Self {
        Self { field, problem: problem.to_string() }
    }

    fn forms(count: usize) -> Self {
        let needed = "needs exactly one of uri, subject, fingerprints, serviceAccount, jwt and tokenSecret";
        Self::new("match", &format!("{needed}; it has {count}"))
    }
}

/// Why an agent is not let in.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdentityRefusal {
    /// It shows nothing.
    #[error("it shows neither a certificate nor a token")]
    NoCredential,
    /// What it shows has expired.
    #[error("its credential has expired")]
    Expired,
    /// No object matches what it shows.
    #[error("no KubesvcIdentity matches its {0}")]
    Unknown(String),
    /// These objects match.
    #[error("its credential matches several KubesvcIdentities: {}; let only one of them match", .0.join(", "))]
    Ambiguous(Vec<String>),
    /// The object of this name is suspended.
    #[error("KubesvcIdentity {0} is suspended")]
    Suspended(String),
    /// The object revokes what it shows.
    #[error("KubesvcIdentity {identity} revokes {what}")]
    Revoked {
        /// Name of the object.
        identity: String,
        /// What is revoked.
        what: &'static str,
    },
}

/// Why an agent with an identity may not be what it claims to be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("KubesvcIdentity {identity} does not allow {what} {claimed:?}")]
pub struct ClaimRefusal {
    identity: String,
    what: &'static str,
    claimed: String,
}

/// What an agent may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentRights {
    /// Name of the KubesvcIdentity that gives them.
    pub identity: String,
    zones: Vec<Claim>,
    agent_ids: Vec<Claim>,
    /// Namespace and name of each.
    accounts: Vec<(Claim, Claim)>,
    /// Whether accounts of the agent's own file are taken.
    pub static_accounts: bool,
    /// Whether it may offer to take accounts that name no zone.
    pub offers: bool,
}

impl AgentRights {
    /// Checks the zone and the id that the agent claims.
    ///
    /// # Errors
    /// One of them is not allowed.
    pub fn check_claim(&self, zone: &str, agent_id: &str) -> Result<(), ClaimRefusal> {
        let refuse = |what, claimed: &str| {
            Err(ClaimRefusal { identity: self.identity.clone(), what, claimed: claimed.to_owned() })
        };
        if !self.zones.iter().any(|allowed| allowed.admits(zone)) {
            return refuse("zone", zone);
        }
        if !self.agent_ids.is_empty() && !self.agent_ids.iter().any(|allowed| allowed.admits(agent_id)) {
            return refuse("agent id", agent_id);
        }
        Ok(())
    }

    /// Whether the agent may hold the account of this object.
    pub fn may_hold(&self, namespace: &str, name: &str) -> bool {
        let allows = |(of, named): &(Claim, Claim)| of.admits(namespace) && named.admits(name);
        self.accounts.is_empty() || self.accounts.iter().any(allows)
    }
}

/// An object, ready to be compared with credentials.
#[derive(Clone, Debug)]
struct CompiledIdentity {
    name: String,
    matcher: Matcher,
    issuer: Option<String>,
    allow: Allowance,
    is_suspended: bool,
    fingerprints: HashSet<String>,
    serials: HashSet<String>,
    token_ids: HashSet<String>,
    /// In epoch seconds.
    issued_before: Option<i64>,
}

#[derive(Clone, Debug)]
enum Matcher {
    Uri(Template),
    Subject(Vec<(String, Template)>),
    Fingerprints(HashSet<String>),
    ServiceAccount { namespace: Template, name: Template },
    Jwt { issuer: String, subject: Template, claims: Vec<(String, Template)> },
    Secret(TokenSecret),
}

impl Matcher {
    fn compile(of: &CredentialMatch) -> Result<Self, UnusableIdentity> {
        let CredentialMatch { uri, subject, fingerprints, issuer: _, service_account, jwt, token_secret } =
            of;
        let template = |field, text: &str| {
            Template::compile(text).map_err(|problem| UnusableIdentity::new(field, &problem))
        };
        let templates = |field, values: &BTreeMap<String, String>| {
            let compiled = values.iter().map(|(key, text)| Ok((key.clone(), template(field, text)?)));
            compiled.collect::<Result<Vec<_>, UnusableIdentity>>()
        };
        let mut forms = Vec::new();
        if let Some(uri) = uri {
            forms.push(Self::Uri(template("match.uri", uri)?));
        }
        if let Some(subject) = subject {
            forms.push(Self::Subject(templates("match.subject", subject)?));
        }
        if let Some(fingerprints) = fingerprints {
            forms.push(Self::Fingerprints(digests("match.fingerprints", fingerprints)?));
        }
        if let Some(of) = service_account {
            let namespace = template("match.serviceAccount.namespace", &of.namespace)?;
            forms.push(Self::ServiceAccount {
                namespace,
                name: template("match.serviceAccount.name", &of.name)?,
            });
        }
        if let Some(of) = jwt {
            let subject = template("match.jwt.subject", &of.subject)?;
            let claims = templates("match.jwt.claims", &of.claims)?;
            forms.push(Self::Jwt { issuer: of.issuer.clone(), subject, claims });
        }
        if let Some(secret) = token_secret {
            forms.push(Self::Secret(secret.clone()));
        }
        match forms.pop() {
            // An empty subject would match every certificate.
            Some(Self::Subject(attributes)) if attributes.is_empty() => Err(UnusableIdentity::forms(0)),
            Some(one) if forms.is_empty() => Ok(one),
            one => Err(UnusableIdentity::forms(forms.len() + usize::from(one.is_some()))),
        }
    }

    fn names(&self) -> Vec<String> {
        let templates: Vec<&Template> = match self {
            Self::Uri(uri) => vec![uri],
            Self::Subject(attributes) => attributes.iter().map(|(_, template)| template).collect(),
            Self::ServiceAccount { namespace, name } => vec![namespace, name],
            Self::Jwt { subject, claims, .. } => {
                claims.iter().map(|(_, template)| template).chain([subject]).collect()
            }
            Self::Fingerprints(_) | Self::Secret(_) => Vec::new(),
        };
        templates.into_iter().flat_map(|template| template.names().iter().cloned()).collect()
    }

    fn is_of_certificates(&self) -> bool {
        matches!(self, Self::Uri(_) | Self::Subject(_) | Self::Fingerprints(_))
    }

    fn certificate(&self, facts: &CertificateFacts, captures: &mut Captures) -> bool {
        match self {
            Self::Uri(template) => facts.uris.iter().any(|uri| template.matches(uri, captures)),
            Self::Subject(wanted) => wanted.iter().all(|(kind, template)| {
                let mut values = facts.attributes.iter().filter(|(name, _)| name == kind);
                match (values.next(), values.next()) {
                    (Some((_, Some(value))), None) => template.matches(value, captures),
                    _ => false,
                }
            }),
            Self::Fingerprints(of) => of.contains(&facts.fingerprint),
            Self::ServiceAccount { .. } | Self::Jwt { .. } | Self::Secret(_) => false,
        }
    }

    fn token(&self, facts: &TokenFacts, captures: &mut Captures) -> bool {
        match (self, &facts.holder) {
            (
                Self::ServiceAccount { namespace, name },
                TokenHolder::ServiceAccount { namespace: of, name: is },
            ) => namespace.matches(of, captures) && name.matches(is, captures),
            (
                Self::Jwt { issuer, subject, claims },
                TokenHolder::Jwt { issuer: by, subject: of, claims: shown },
            ) => {
                issuer == by
                    && subject.matches(of, captures)
                    && claims.iter().all(|(claim, template)| match shown.get(claim) {
                        Some(serde_json::Value::String(text)) => template.matches(text, captures),
                        Some(serde_json::Value::Array(all)) => all
                            .iter()
                            .filter_map(serde_json::Value::as_str)
                            .any(|text| template.matches(text, captures)),
                        _ => false,
                    })
            }
            (Self::Secret(secret), TokenHolder::Secrets(secrets)) => secrets.contains(secret),
            _ => false,
        }
    }
}

fn digests(field: &'static str, texts: &[String]) -> Result<HashSet<String>, UnusableIdentity> {
    let digest = |text: &String| {
        let problem = || UnusableIdentity::new(field, &format!("{text:?} is no SHA-256 in hexadecimal"));
        normal_fingerprint(text).ok_or_else(problem)
    };
    texts.iter().map(digest).collect()
}

impl CompiledIdentity {
    fn compile(object: &KubesvcIdentity) -> Result<Self, UnusableIdentity> {
        let spec = &object.spec;
        let matcher = Matcher::compile(&spec.credential)?;
        if spec.credential.issuer.is_some() && !matcher.is_of_certificates() {
            return Err(UnusableIdentity::new(
                "match.issuer",
                "belongs to uri, subject or fingerprints; remove it",
            ));
        }
        if spec.allow.zones.is_empty() {
            return Err(UnusableIdentity::new(
                "allow.zones",
                "empty: name the zones that the agents may claim",
            ));
        }
        let names = matcher.names();
        let claims = [("allow.zones", &spec.allow.zones), ("allow.agentIds", &spec.allow.agent_ids)];
        for (field, texts) in claims {
            for text in texts {
                Claim::check(text, &names).map_err(|problem| UnusableIdentity::new(field, &problem))?;
            }
        }
        for text in &spec.allow.accounts {
            let checked = halves(text)
                .and_then(|(of, name)| Claim::check(of, &names).and_then(|()| Claim::check(name, &names)));
            checked.map_err(|problem| UnusableIdentity::new("allow.accounts", &problem))?;
        }
        let revoked = &spec.revoked;
        let serial = |text: &String| {
            let serial = normal_serial(text);
            let is_number = serial.bytes().all(|one| one.is_ascii_hexdigit());
            let problem =
                || UnusableIdentity::new("revoked.serials", &format!("{text:?} is no number in hexadecimal"));
            if is_number { Ok(serial) } else { Err(problem()) }
        };
        Ok(Self {
            name: object.name_any(),
            matcher,
            issuer: spec.credential.issuer.clone(),
            allow: spec.allow.clone(),
            is_suspended: spec.suspended,
            fingerprints: digests("revoked.fingerprints", &revoked.fingerprints)?,
            serials: revoked.serials.iter().map(serial).collect::<Result<_, _>>()?,
            token_ids: revoked.token_ids.iter().cloned().collect(),
            issued_before: revoked.issued_before.as_ref().map(|time| time.0.as_second()),
        })
    }

    /// What the placeholders stood for, if the credential matches.
    fn captures(&self, credential: &AgentCredential) -> Option<Captures> {
        let mut captures = Captures::new();
        let is_pinned = |issuer: &Subject| {
            self.issuer.as_deref().is_none_or(|wanted| issuer.forms().any(|form| form == wanted))
        };
        let certificate = credential.certificate.as_ref();
        let of_certificate = certificate
            .is_some_and(|facts| is_pinned(&facts.issuer) && self.matcher.certificate(facts, &mut captures));
        let of_token = credential.token.as_ref();
        let of_token = of_token.is_some_and(|facts| self.matcher.token(facts, &mut captures));
        (of_certificate || of_token).then_some(captures)
    }

    /// What of the credential is revoked.
    fn revokes(&self, credential: &AgentCredential) -> Option<&'static str> {
        let too_old = |issued: Option<i64>| {
            self.issued_before.is_some_and(|least| issued.is_none_or(|issued| issued < least))
        };
        if let Some(facts) = &credential.certificate {
            if self.fingerprints.contains(&facts.fingerprint) {
                return Some("the fingerprint of its certificate");
            }
            if self.serials.contains(&facts.serial) {
                return Some("the serial number of its certificate");
            }
            if too_old(Some(facts.not_before)) {
                return Some("certificates that were issued so early");
            }
        }
        let token = credential.token.as_ref()?;
        if token.id.as_ref().is_some_and(|id| self.token_ids.contains(id)) {
            return Some("the id of its token");
        }
        too_old(token.issued_at).then_some("tokens that were issued so early, or do not say when")
    }

    fn rights(&self, captures: &Captures) -> Result<AgentRights, TemplateError> {
        let claims = |texts: &[String]| {
            texts.iter().map(|text| Claim::fill(text, captures)).collect::<Result<Vec<_>, _>>()
        };
        let account = |text: &String| {
            let (namespace, name) = halves(text)?;
            Ok((Claim::fill(namespace, captures)?, Claim::fill(name, captures)?))
        };
        Ok(AgentRights {
            identity: self.name.clone(),
            zones: claims(&self.allow.zones)?,
            agent_ids: claims(&self.allow.agent_ids)?,
            accounts: self.allow.accounts.iter().map(account).collect::<Result<_, TemplateError>>()?,
            static_accounts: self.allow.static_accounts,
            offers: self.allow.offers,
        })
    }
}

fn halves(text: &str) -> Result<(&str, &str), TemplateError> {
    let halves = text.split_once('/').filter(|(_, name)| !name.contains('/'));
    halves.ok_or_else(|| TemplateError::new(text, "has to be NAMESPACE/NAME"))
}

/// All KubesvcIdentities of the operator's namespace, by name. An object that cannot be used identifies nobody.
#[derive(Clone, Debug, Default)]
pub struct Identities {
    by_name: BTreeMap<String, Arc<CompiledIdentity>>,
}

impl Identities {
    /// Adds an object, or replaces the one of its name.
    ///
    /// # Errors
    /// It cannot be used, and the one of its name is removed.
    pub fn put(&mut self, object: &KubesvcIdentity) -> Result<(), UnusableIdentity> {
        match CompiledIdentity::compile(object) {
            Ok(compiled) => {
                self.by_name.insert(compiled.name.clone(), Arc::new(compiled));
                Ok(())
            }
            Err(error) => {
                self.by_name.remove(&object.name_any());
                Err(error)
            }
        }
    }

    /// Removes an object.
    pub fn remove(&mut self, name: &str) {
        self.by_name.remove(name);
    }

    /// The Secrets with static tokens.
    pub fn token_secrets(&self) -> Vec<TokenSecret> {
        let of = self.by_name.values().filter_map(|one| match &one.matcher {
            Matcher::Secret(secret) => Some(secret.clone()),
            _ => None,
        });
        of.collect()
    }

    /// Whether a change of this object may change what an agent with this credential may do.
    pub fn concerns(&self, name: &str, credential: &AgentCredential) -> bool {
        self.by_name.get(name).is_some_and(|one| one.captures(credential).is_some())
    }

    /// What an agent with this credential may do at this time, in epoch seconds.
    ///
    /// # Errors
    /// It shows nothing, or what it shows has expired, matches no object or several, or is revoked.
    pub fn identify(&self, credential: &AgentCredential, now: i64) -> Result<AgentRights, IdentityRefusal> {
        if credential.is_empty() {
            return Err(IdentityRefusal::NoCredential);
        }
        if credential.expires().is_some_and(|end| end <= now) {
            return Err(IdentityRefusal::Expired);
        }
        let matches = self.by_name.values().filter_map(|one| Some((one, one.captures(credential)?)));
        let mut matches: Vec<_> = matches.collect();
        let Some((identity, captures)) = matches.pop() else {
            return Err(IdentityRefusal::Unknown(credential.to_string()));
        };
        if !matches.is_empty() {
            let names = matches.iter().map(|(one, _)| one.name.clone()).chain([identity.name.clone()]);
            return Err(IdentityRefusal::Ambiguous(names.collect()));
        }
        if identity.is_suspended {
            return Err(IdentityRefusal::Suspended(identity.name.clone()));
        }
        if let Some(what) = identity.revokes(credential) {
            return Err(IdentityRefusal::Revoked { identity: identity.name.clone(), what });
        }
        // Placeholders were checked when the object was compiled.
        identity.rights(&captures).map_err(|_| IdentityRefusal::Unknown(credential.to_string()))
    }
}
