//! What becomes of the objects of one scope: which are left out, and which of their labels and annotations are sent
//! apart from the body.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::RwLock;

use kubesvc_core::cache::left_out::Why;
pub use kubesvc_core::cache::moniker::APPLICATION_ANNOTATION;
pub use kubesvc_core::cache::object_filter::{IGNORE_ANNOTATION, ObjectFilter};

/// Annotation that repeats an object as it was applied, the data of a Secret included. It is never sent.
pub const LAST_APPLIED_ANNOTATION: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Prefixes of the annotations of Secrets that are kept: those of Spinnaker, Helm and service accounts. Others may repeat
/// the data.
const SECRET_ANNOTATION_PREFIXES: [&str; 6] = [
    "moniker.spinnaker.io/",
    "strategy.spinnaker.io/",
    "artifact.spinnaker.io/",
    "caching.spinnaker.io/",
    "meta.helm.sh/",
    "kubernetes.io/service-account.",
];
/// Maximum length of an annotation of a Secret that is kept, in bytes.
const MAX_SECRET_ANNOTATION_BYTES: usize = 1024;

/// What becomes of the objects of one scope.
#[derive(Clone, Debug, Default)]
pub struct ObjectRules {
    /// API version of the scope, for example `apps/v1`.
    pub api_version: String,
    pub kind: String,
    /// Namespace of the scope; empty for all, or for cluster-wide objects.
    pub namespace: String,
    /// Prefixes of the labels and annotations that are sent apart from the body.
    pub meta_keys: Arc<[String]>,
    pub filter: ObjectFilter,
    /// Whether these are Secrets, of which only apiVersion, kind and metadata are sent.
    pub is_secret: bool,
    /// Whether these are CustomResourceDefinitions, which are sent without the schemas of their versions.
    pub is_crd: bool,
    /// Kinds that are cluster-wide, for owners.
    pub cluster_scoped_kinds: Arc<ClusterScopedKinds>,
}

impl ObjectRules {
    /// Whether the label or annotation is sent apart from the body.
    pub(super) fn sends_meta(&self, key: &str) -> bool {
        key != LAST_APPLIED_ANNOTATION && self.meta_keys.iter().any(|prefix| key.starts_with(prefix.as_str()))
    }

    /// Whether the annotation is cut out. A value without a length is no text.
    pub(super) fn cuts_annotation(&self, key: &str, length: Option<usize>) -> bool {
        let is_kept_of_secrets = || {
            SECRET_ANNOTATION_PREFIXES.iter().any(|prefix| key.starts_with(prefix))
                && length.is_some_and(|length| length <= MAX_SECRET_ANNOTATION_BYTES)
        };
        key == LAST_APPLIED_ANNOTATION || self.is_secret && !is_kept_of_secrets()
    }

    /// Why the object is left out, if it is.
    pub(super) fn exclusion(&self, namespace: &str, annotations: &Annotations) -> Option<Exclusion> {
        let Annotations { ignore, application } = annotations;
        let annotation = |key: &str| match key {
            IGNORE_ANNOTATION => ignore.as_deref(),
            APPLICATION_ANNOTATION => application.as_deref(),
            _ => None,
        };
        self.filter.leaves_out(namespace, annotation).map(|why| match why {
            Why::Ignored => Exclusion::Ignored,
            Why::NotManaged => Exclusion::NotSpinnakerManaged,
            _ => Exclusion::OmittedNamespace,
        })
    }
}

/// The annotations that say whether an object is left out.
#[derive(Clone, Debug, Default)]
pub(super) struct Annotations {
    /// Value of [`IGNORE_ANNOTATION`].
    pub(super) ignore: Option<String>,
    /// Value of [`APPLICATION_ANNOTATION`].
    pub(super) application: Option<String>,
}

/// Why an object is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Exclusion {
    /// Its namespace is left out. No object of the scope in it was ever sent under these rules.
    OmittedNamespace,
    /// It is annotated as one to ignore. It may have been sent before it was.
    Ignored,
    /// Spinnaker does not manage it. It may have been sent while Spinnaker did.
    NotSpinnakerManaged,
}

impl Exclusion {
    /// Whether the object may have a row from a time when it was not left out.
    pub fn may_have_row(self) -> bool {
        self != Self::OmittedNamespace
    }
}

/// The kinds of a cluster whose objects have no namespace. All readers of an account share them: kinds come and go.
#[derive(Debug, Default)]
pub struct ClusterScopedKinds(RwLock<BTreeMap<String, BTreeSet<String>>>);

impl ClusterScopedKinds {
    /// Whether the objects of this kind have no namespace.
    pub fn contains(&self, group: &str, kind: &str) -> bool {
        self.0.read().get(group).is_some_and(|kinds| kinds.contains(kind))
    }

    /// Takes these pairs of group and kind in place of the former ones.
    pub fn replace(&self, kinds: impl IntoIterator<Item = (String, String)>) {
        let mut groups: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for (group, kind) in kinds {
            groups.entry(group).or_default().insert(kind);
        }
        *self.0.write() = groups;
    }

    /// The pairs of group and kind of these groups.
    pub fn of_groups(&self, is_asked: impl Fn(&str) -> bool) -> Vec<(String, String)> {
        let groups = self.0.read();
        let asked = groups.iter().filter(|(group, _)| is_asked(group));
        asked.flat_map(|(group, kinds)| kinds.iter().map(|kind| (group.clone(), kind.clone()))).collect()
    }
}

impl FromIterator<(String, String)> for ClusterScopedKinds {
    /// Collects pairs of group and kind.
    fn from_iter<I: IntoIterator<Item = (String, String)>>(kinds: I) -> Self {
        let all = Self::default();
        all.replace(kinds);
        all
    }
}
