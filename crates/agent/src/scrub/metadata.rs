//! The metadata of an object: who it is, which labels, annotations and owners are sent apart from the body, and what is
//! cut out of it.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;

use kubesvc_core::wire::events::OwnerReference;

use crate::scrub::body::{MemberCuts, Splice};
use crate::scrub::identity::{FoundIdentity, FoundText};
use crate::scrub::json::{Entries, JsonEntry, is_null, text};
use crate::scrub::object::BodyError;
use crate::scrub::rules::{APPLICATION_ANNOTATION, Annotations, IGNORE_ANNOTATION, ObjectRules};
use crate::scrub::{MAX_META_BYTES, MAX_OWNERS};

/// Bytes that a label or annotation counts for beside its text, so that many short ones are bounded too.
const META_ENTRY_BYTES: usize = 64;
/// Length of a key in a message, in characters.
const SHOWN_KEY_CHARS: usize = 128;

/// What was found in the metadata.
#[derive(Debug, Default)]
pub(super) struct ScannedMetadata {
    pub(super) identity: FoundIdentity,
    pub(super) annotations: Annotations,
    pub(super) owners: Vec<OwnerReference>,
    /// The first member that is not as it should be. What was found is then not complete.
    pub(super) problem: Option<BodyError>,
    sent_labels: HashMap<String, String>,
    sent_annotations: HashMap<String, String>,
    meta_bytes: usize,
}

impl ScannedMetadata {
    /// Reads the metadata that begins at `start`, and adds what is cut out of it.
    pub(super) fn read(&mut self, bytes: &[u8], start: usize, rules: &ObjectRules, splice: &mut Splice) {
        let mut cuts = MemberCuts::default();
        for entry in Entries::members(bytes, start) {
            let Ok(entry) = entry else { return self.found(BodyError::WrongType("metadata")) };
            if matches!(&*entry.key, "managedFields" | "selfLink") {
                cuts.cut(&entry, splice);
                continue;
            }
            cuts.keep(&entry, splice);
            let found = || found_text(bytes, &entry.value);
            match &*entry.key {
                "name" => self.identity.name = found(),
                "namespace" => self.identity.namespace = found(),
                "uid" => self.identity.uid = found(),
                "resourceVersion" => {
                    self.identity.resource_version = found();
                    splice.unhashed(entry.value.clone());
                }
                _ if is_null(bytes, &entry.value) => {}
                "labels" => self.labels(bytes, &entry, rules),
                "annotations" => self.annotations(bytes, &entry, rules, splice),
                "ownerReferences" => self.owners(bytes, &entry, rules),
                _ => {}
            }
        }
        cuts.finish(splice);
    }

    /// The labels and annotations that are sent apart from the body. Of a key in both, the annotation's value counts.
    pub(super) fn take_meta(&mut self) -> HashMap<String, String> {
        let mut meta = std::mem::take(&mut self.sent_labels);
        meta.extend(std::mem::take(&mut self.sent_annotations));
        meta
    }

    fn found(&mut self, problem: BodyError) {
        self.problem.get_or_insert(problem);
    }

    fn labels(&mut self, bytes: &[u8], labels: &JsonEntry<'_>, rules: &ObjectRules) {
        for entry in Entries::members(bytes, labels.value.start) {
            let Ok(entry) = entry else { return self.found(BodyError::WrongType("metadata.labels")) };
            if let Some((key, value)) = self.sent(bytes, &entry, rules) {
                self.sent_labels.insert(key, value);
            }
        }
    }

    fn annotations(
        &mut self,
        bytes: &[u8],
        annotations: &JsonEntry<'_>,
        rules: &ObjectRules,
        splice: &mut Splice,
    ) {
        let mut cuts = MemberCuts::default();
        for entry in Entries::members(bytes, annotations.value.start) {
            let Ok(entry) = entry else { return self.found(BodyError::WrongType("metadata.annotations")) };
            let value = || text(bytes, &entry.value).map(Cow::into_owned);
            let length = || text(bytes, &entry.value).map(|value| value.len());
            let is_cut = rules.cuts_annotation(&entry.key, rules.is_secret.then(length).flatten());
            if is_cut {
                cuts.cut(&entry, splice);
            } else {
                cuts.keep(&entry, splice);
            }
            match &*entry.key {
                IGNORE_ANNOTATION => self.annotations.ignore = value(),
                APPLICATION_ANNOTATION => self.annotations.application = value(),
                _ => {}
            }
            if is_cut {
                continue;
            }
            if let Some((key, value)) = self.sent(bytes, &entry, rules) {
                self.sent_annotations.insert(key, value);
            }
        }
        cuts.finish(splice);
    }

    /// Key and value of a label or annotation that is sent apart from the body.
    fn sent(&mut self, bytes: &[u8], entry: &JsonEntry<'_>, rules: &ObjectRules) -> Option<(String, String)> {
        if self.meta_bytes > MAX_META_BYTES || !rules.sends_meta(&entry.key) {
            return None;
        }
        let value = text(bytes, &entry.value).filter(|value| !value.contains('\0'));
        let Some(value) = value.filter(|_| !entry.key.contains('\0')) else {
            let key = entry.key.chars().take(SHOWN_KEY_CHARS).collect();
            self.found(BodyError::BadMetaValue { key });
            return None;
        };
        self.meta_bytes += entry.key.len() + value.len() + META_ENTRY_BYTES;
        if self.meta_bytes > MAX_META_BYTES {
            self.found(BodyError::TooMuchMeta { max: MAX_META_BYTES });
            return None;
        }
        Some((entry.key.clone().into_owned(), value.into_owned()))
    }

    fn owners(&mut self, bytes: &[u8], owners: &JsonEntry<'_>, rules: &ObjectRules) {
        // Of a repeated member, the last one counts.
        self.owners.clear();
        for (index, entry) in Entries::elements(bytes, owners.value.start).enumerate() {
            let Ok(entry) = entry else {
                return self.found(BodyError::WrongType("metadata.ownerReferences"));
            };
            if index >= MAX_OWNERS {
                return self.found(BodyError::TooManyOwners { max: MAX_OWNERS });
            }
            let Some(owner) = owner(bytes, entry.value.start, rules) else {
                return self.found(BodyError::BadOwner { index });
            };
            self.owners.push(owner);
        }
    }
}

fn owner(bytes: &[u8], start: usize, rules: &ObjectRules) -> Option<OwnerReference> {
    let mut owner = OwnerReference::default();
    for entry in Entries::members(bytes, start) {
        let entry = entry.ok()?;
        let stored = || text(bytes, &entry.value).filter(|text| !text.contains(char::is_control));
        match &*entry.key {
            "apiVersion" => {
                owner.group = stored()?.split_once('/').map_or("", |(group, _)| group).to_owned();
            }
            "kind" => owner.kind = stored()?.into_owned(),
            "name" => owner.name = stored()?.into_owned(),
            "uid" => owner.uid = stored()?.into_owned(),
            "controller" => owner.controller = bytes.get(entry.value.clone()) == Some(b"true"),
            _ => {}
        }
    }
    owner.cluster_scoped = rules.cluster_scoped_kinds.contains(&owner.group, &owner.kind);
    (!owner.kind.is_empty() && !owner.name.is_empty()).then_some(owner)
}

fn found_text(bytes: &[u8], value: &Range<usize>) -> FoundText {
    match text(bytes, value).map(Cow::into_owned) {
        Some(text) => FoundText::Text(text),
        None if is_null(bytes, value) => FoundText::Missing,
        None => FoundText::NotText,
    }
}
