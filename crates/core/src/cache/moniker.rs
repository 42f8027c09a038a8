//! Application, cluster, stack, detail and sequence of an object, as derived by Clouddriver's namer
//! `kubernetesAnnotations`, with one addition: the label `app.kubernetes.io/name` precedes the object's name.
//!
//! | part | from |
//! |---|---|
//! | application | annotation, else the label, else the name up to its first dash |
//! | cluster | annotation, else the name without `-vNNN` |
//! | sequence | annotation, else a ReplicaSet's revision, else the NNN of `-vNNN` |
//! | stack, detail | annotation |

use std::borrow::Cow;

/// Annotation: the object's application.
pub const APPLICATION_ANNOTATION: &str = "moniker.spinnaker.io/application";
/// Annotation: the cluster of the application.
pub(crate) const CLUSTER_ANNOTATION: &str = "moniker.spinnaker.io/cluster";
/// Annotation: the stack of the cluster.
pub(crate) const STACK_ANNOTATION: &str = "moniker.spinnaker.io/stack";
/// Annotation: the detail of the cluster.
pub(crate) const DETAIL_ANNOTATION: &str = "moniker.spinnaker.io/detail";
/// Annotation: the number of the object within its cluster.
pub(crate) const SEQUENCE_ANNOTATION: &str = "moniker.spinnaker.io/sequence";
/// Label: the application, unless an annotation names it.
pub const APPLICATION_LABEL: &str = "app.kubernetes.io/name";
/// Annotation of Deployments and their ReplicaSets: the revision, counted from 1.
pub(crate) const REVISION_ANNOTATION: &str = "deployment.kubernetes.io/revision";
/// Prefixes of the labels and annotations that a moniker needs; an agent sends only these.
pub(crate) const META_KEYS: [&str; 3] = ["moniker.spinnaker.io/", APPLICATION_LABEL, REVISION_ANNOTATION];

/// Maximum length of an application, cluster, stack or detail, in characters. A longer value is ignored.
pub(crate) const MAX_PART_CHARS: usize = 255;
/// Digits of a sequence in a name.
const SEQUENCE_DIGITS: usize = 3;

/// Spinnaker's name of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Moniker {
    /// The application.
    pub application: Option<String>,
    /// The cluster of the application.
    pub cluster: Option<String>,
    /// The stack.
    pub stack: Option<String>,
    /// The detail.
    pub detail: Option<String>,
    /// The number within the cluster.
    pub sequence: Option<i32>,
}

impl Moniker {
    /// Derives the moniker of an object. `kind_name` is that of [`kind_name`](super::native::kind_name), and `meta`
    /// returns the value of a label or annotation.
    ///
    /// A value that is empty, longer than 255 characters, or has control characters counts as absent.
    pub fn derive<'a>(kind_name: &str, name: &str, meta: impl Fn(&str) -> Option<&'a str>) -> Self {
        let text = |key: &str| meta(key).and_then(unquoted).filter(|text| is_part(text)).map(Cow::into_owned);
        let number = |key: &str| meta(key).and_then(unquoted).and_then(|text| text.trim().parse().ok());
        let parsed = ParsedName::of(name);
        let parsed = parsed.as_ref();
        let revision = || if kind_name == "replicaSet" { number(REVISION_ANNOTATION) } else { None };
        let own = |part: &str| is_part(part).then(|| part.to_owned());
        Self {
            application: text(APPLICATION_ANNOTATION)
                .or_else(|| text(APPLICATION_LABEL))
                .or_else(|| own(parsed?.application)),
            cluster: text(CLUSTER_ANNOTATION).or_else(|| own(parsed?.cluster)),
            stack: text(STACK_ANNOTATION),
            detail: text(DETAIL_ANNOTATION),
            sequence: number(SEQUENCE_ANNOTATION).or_else(revision).or_else(|| parsed?.sequence),
        }
    }
}

/// An object's name by Frigga's convention: `application[-stack[-detail]][-vNNN]`, of letters, digits, dots,
/// underscores and dashes.
struct ParsedName<'a> {
    application: &'a str,
    cluster: &'a str,
    sequence: Option<i32>,
}

impl<'a> ParsedName<'a> {
    /// `None` if the name does not follow the convention.
    fn of(name: &'a str) -> Option<Self> {
        let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        if !name.bytes().all(is_letter) {
            return None;
        }
        let (cluster, sequence) = match name.rsplit_once("-v") {
            Some((cluster, digits)) if is_sequence(digits) => (cluster, digits.parse().ok()),
            _ => (name, None),
        };
        let application = cluster.split('-').next().filter(|first| !first.is_empty())?;
        Some(Self { application, cluster, sequence })
    }
}

fn is_sequence(digits: &str) -> bool {
    digits.len() == SEQUENCE_DIGITS && digits.bytes().all(|digit| digit.is_ascii_digit())
}

/// Text of an annotation. Old versions of Clouddriver wrote it as JSON, in quotes; `None` if such a value is invalid.
pub(super) fn unquoted(value: &str) -> Option<Cow<'_, str>> {
    if value.len() > 1 && value.starts_with('"') && value.ends_with('"') {
        return serde_json::from_str::<String>(value).ok().map(Cow::Owned);
    }
    Some(Cow::Borrowed(value))
}

fn is_part(text: &str) -> bool {
    !text.is_empty() && text.chars().nth(MAX_PART_CHARS).is_none() && !text.chars().any(char::is_control)
}
