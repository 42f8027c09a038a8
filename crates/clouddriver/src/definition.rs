//! Converts an entry of a credentials source (`KubernetesAccountProperties.ManagedAccount`) to an account, and back.
//!
//! | direction | where |
//! |---|---|
//! | entry → account | [`convert`]: the object, what its credential is, and a report |
//! | account → entry | [`restored`]: the fields of the spec and those without effect, without credentials |
//! | entry → change | [`change_of`]: what it changes in an account that exists |
//! | entry → hash | [`source_hash`]: tells a changed entry from one that was written anew |
//!
//! A bad entry is a [`EntryRefusal`] in its own [`Conversion`] and hides no other entry. Single fields are read by
//! [`AccountInput`], as those of a REST caller are. Nothing here resolves a reference or reads a file: what has to be
//! read is named by [`EntryCredential`].

mod credential;
mod fields;
mod kept_fields;
mod permissions;
mod report;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use hmac::{Hmac, KeyInit, Mac};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Map, Value};
use sha2::Sha256;

use kubesvc_core::spinnaker::{self, AccountInput, ClusterSource, is_account_name, validate};
use kubesvc_core::{
    CLOUDDRIVER_DEFINITION_ANNOTATION, DesiredState, FINALIZER, KubesvcAccount, KubesvcAccountSpec,
    ORIGIN_LABEL, ORIGIN_MIGRATED, SOURCE_ANNOTATION, SOURCE_HASH_ANNOTATION, ZoneId, object_names,
};

pub use credential::{EntryCredential, FileRoot, RootTarget, file_on_clouddriver, vet_contents};
pub use report::{EntryProblem, EntryRefusal, Reason, Report};

use crate::sources::SourceEntry;
use fields::SortedFields;

/// What a request or a zone rule says about an account. It takes precedence over the entry.
#[derive(Clone, Default)]
pub struct Choice {
    /// Zone of the account.
    pub zone: Option<ZoneId>,
    /// How an agent reaches the cluster. A file is a path on the agent.
    pub source: Option<ClusterSource>,
}

/// Settings that the conversion depends on.
#[derive(Clone, Copy)]
pub struct ConversionSettings<'a> {
    /// Namespace of the accounts.
    pub namespace: &'a str,
    /// `kubesvc.clouddriver.fileRoots`.
    pub file_roots: &'a [FileRoot],
    /// Key of [`source_hash`].
    pub hash_key: &'a [u8],
}

/// An account that an entry describes.
#[derive(Clone)]
pub struct MigratedAccount {
    /// The object to create: INACTIVE, with label, annotations and finalizer.
    pub object: KubesvcAccount,
    /// The credential that its spec names.
    pub credential: EntryCredential,
}

/// What became of an entry.
#[derive(Clone)]
pub struct Conversion {
    /// The entry's [`source_hash`].
    pub hash: String,
    /// The account, or why there is none.
    pub account: Result<MigratedAccount, EntryRefusal>,
    /// What a person should know in either case.
    pub report: Report,
}

/// Converts an entry to an account.
pub fn convert(entry: &SourceEntry, choice: &Choice, settings: ConversionSettings<'_>) -> Conversion {
    let hash = source_hash(settings.hash_key, &entry.name, &entry.definition);
    let mut report = Report::default();
    let account = migrated(entry, choice, settings, &hash, &mut report);
    Conversion { hash, account, report }
}

fn migrated(
    entry: &SourceEntry,
    choice: &Choice,
    settings: ConversionSettings<'_>,
    hash: &str,
    report: &mut Report,
) -> Result<MigratedAccount, EntryRefusal> {
    let mut problems = Vec::new();
    check_name(entry, &mut problems, report);
    let SortedFields { used, cluster_source, mut without_effect } =
        fields::sort(&entry.definition, &mut problems, report);
    let credential = credential::choose(&entry.name, cluster_source, choice, settings, &mut problems);
    let object_name = object_names::object_name(&entry.name);
    let mut spec = KubesvcAccountSpec {
        account_name: (object_name != entry.name).then(|| entry.name.clone()),
        state: Some(DesiredState::Inactive),
        zone_id: choice.zone.clone(),
        ..KubesvcAccountSpec::default()
    };
    apply(used, &mut spec, &mut problems);
    if let Some(credential) = &credential {
        spec.kubeconfig = credential.in_spec(settings.namespace, &object_name);
        if matches!(credential, EntryCredential::ServiceAccount)
            && let Some(context) = spec.context.take()
        {
            without_effect.insert("context".to_owned(), Value::String(context));
        }
        if let EntryCredential::Contents(contents) = credential
            && let Err(problem) = vet_contents(contents, spec.context.as_deref())
        {
            problems.push(problem);
        }
        // Rules about a whole spec. Without a credential they would only repeat that it is missing.
        problems.extend(validate(&spec).into_iter().map(EntryProblem::field));
    }
    without_effect.keys().for_each(|field| report.without_effect.count(field));
    let kept = kept_fields::kept(without_effect, credential.as_ref(), report);
    let (Some(credential), true) = (credential, problems.is_empty()) else {
        return Err(EntryRefusal { problems });
    };
    let metadata = ObjectMeta {
        name: Some(object_name),
        namespace: Some(settings.namespace.to_owned()),
        labels: Some([(ORIGIN_LABEL.to_owned(), ORIGIN_MIGRATED.to_owned())].into()),
        annotations: Some(annotations(&entry.source, hash, kept)),
        finalizers: Some(vec![FINALIZER.to_owned()]),
        ..ObjectMeta::default()
    };
    Ok(MigratedAccount { object: KubesvcAccount { metadata, spec, status: None }, credential })
}

/// Converts an entry to the change that it is to an account that exists: fields that it does not have get their defaults,
/// as in Clouddriver. The credential is that of the entry, if it has one; the input has none.
///
/// # Errors
/// The entry is refused, with all its problems.
pub fn change_of(
    entry: &SourceEntry,
    settings: ConversionSettings<'_>,
) -> Result<(AccountInput, Option<EntryCredential>), EntryRefusal> {
    let (mut problems, mut report) = (Vec::new(), Report::default());
    check_name(entry, &mut problems, &mut report);
    let SortedFields { mut used, cluster_source, .. } =
        fields::sort(&entry.definition, &mut problems, &mut report);
    let has_source = cluster_source.values().any(|value| *value != Value::Bool(false));
    let credential = has_source
        .then(|| credential::choose(&entry.name, cluster_source, &Choice::default(), settings, &mut problems))
        .flatten();
    for field in fields::STORED {
        used.entry(field).or_insert(Value::Null);
    }
    used.insert("name".to_owned(), Value::from(entry.name.as_str()));
    match AccountInput::read(used) {
        Ok(input) if problems.is_empty() => Ok((input, credential)),
        read => {
            problems.extend(read.err().map(|problem| EntryProblem::field(problem.to_string())));
            Err(EntryRefusal { problems })
        }
    }
}

fn check_name(entry: &SourceEntry, problems: &mut Vec<EntryProblem>, report: &mut Report) {
    if !is_account_name(&entry.name) {
        problems.push(EntryProblem::new(
            Reason::InvalidName,
            "name must have 1 to 255 characters, none of them control characters",
        ));
    }
    let inner = entry.definition.get("name").filter(|name| !name.is_null());
    if inner.is_some_and(|name| fields::as_text(name).as_deref() != Some(entry.name.as_str())) {
        problems.push(EntryProblem::new(
            Reason::InvalidName,
            "name differs from the name that the source lists the entry under",
        ));
    }
    if entry.name.contains('/') {
        report.warn("the name contains /: REST and Clouddriver cannot name the account in a path");
    }
}

/// Sets the fields in a spec. Each is read by itself, so that one bad field does not hide another.
fn apply(used: Map<String, Value>, spec: &mut KubesvcAccountSpec, problems: &mut Vec<EntryProblem>) {
    // The name of the account is checked apart from its fields.
    let named =
        |fields: Map<String, Value>| fields.into_iter().chain([("name".to_owned(), Value::from("a"))]);
    let mut good = Map::new();
    for (field, value) in used {
        let alone: Map<String, Value> = [(field.clone(), value.clone())].into_iter().collect();
        match AccountInput::read(named(alone).collect()) {
            Ok(_) => drop(good.insert(field, value)),
            Err(problem) => problems.push(EntryProblem::field(problem.to_string())),
        }
    }
    let applied = AccountInput::read(named(good).collect()).and_then(|input| input.apply_to(spec));
    problems.extend(applied.err().map(|problem| EntryProblem::field(problem.to_string())));
}

fn annotations(source: &str, hash: &str, kept: Map<String, Value>) -> BTreeMap<String, String> {
    let mut annotations: BTreeMap<String, String> =
        [(SOURCE_ANNOTATION, source), (SOURCE_HASH_ANNOTATION, hash)]
            .into_iter()
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect();
    if !kept.is_empty() {
        annotations.insert(CLOUDDRIVER_DEFINITION_ANNOTATION.to_owned(), Value::Object(kept).to_string());
    }
    annotations
}

/// The entry that an account came from: the fields of its spec, and those without effect. Contains no credential.
pub fn restored(account: &KubesvcAccount) -> Map<String, Value> {
    let Value::Object(mut fields) = spinnaker::definition(account) else { return Map::new() };
    for (field, kept) in kept_fields::of(account) {
        match (fields.get_mut(&field), kept) {
            // Rights without effect stand beside those of the spec.
            (Some(Value::Object(present)), Value::Object(kept)) => {
                for (key, value) in kept {
                    present.entry(key).or_insert(value);
                }
            }
            (Some(_), _) => {}
            (None, kept) => drop(fields.insert(field, kept)),
        }
    }
    fields
}

/// An HMAC (SHA-256, hex) of an entry: its name and its fields, references as text, without fields that say nothing.
/// It is keyed because the entry may hold a kubeconfig.
pub fn source_hash(key: &[u8], name: &str, definition: &Map<String, Value>) -> String {
    let mut fields = fields::without_empty(definition);
    for discriminator in ["type", "@type"] {
        fields.remove(discriminator);
    }
    fields.insert("name".to_owned(), Value::from(name));
    let mut hmac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes a key of any length");
    hmac.update(Value::Object(fields).to_string().as_bytes());
    hex::encode(hmac.finalize().into_bytes())
}

/// Names that differ only in case from another one, each with those others. MySQL stores such entries in one row,
/// PostgreSQL in several.
pub fn case_twins<'n>(names: impl IntoIterator<Item = &'n str>) -> BTreeMap<&'n str, Vec<&'n str>> {
    let mut groups: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for name in names {
        let group = groups.entry(name.to_lowercase()).or_default();
        if !group.contains(&name) {
            group.push(name);
        }
    }
    let twins = groups.values().filter(|group| group.len() > 1);
    let others =
        |group: &[&'n str], name: &str| group.iter().copied().filter(|other| *other != name).collect();
    twins.flat_map(|group| group.iter().map(move |name| (*name, others(group, name)))).collect()
}
