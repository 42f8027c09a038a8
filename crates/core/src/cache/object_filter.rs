//! Filter for the objects of a watched scope. The agent applies it to each object before it is sent.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::fingerprints::digest;
use super::left_out::Why;
use super::moniker::{APPLICATION_ANNOTATION, unquoted};
use super::rules::AccountRules;
use super::selection::SelectedScope;

/// Annotation: objects with the value `true` are never cached.
pub const IGNORE_ANNOTATION: &str = "caching.spinnaker.io/ignore";

/// Filter of one scope.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectFilter {
    /// Empty unless the scope covers all namespaces.
    omit_namespaces: Arc<BTreeSet<String>>,
    only_spinnaker_managed: bool,
}

impl ObjectFilter {
    /// A filter that omits the objects of these namespaces and, with `only_spinnaker_managed`, all but Spinnaker's own.
    pub fn new(omit_namespaces: Arc<BTreeSet<String>>, only_spinnaker_managed: bool) -> Self {
        Self { omit_namespaces, only_spinnaker_managed }
    }

    /// The filter of a scope of an account.
    pub fn of(account: &AccountRules, scope: &SelectedScope) -> Self {
        let has_all_namespaces = scope.namespaced && scope.scope.namespace.is_empty();
        let omit_namespaces =
            if has_all_namespaces { Arc::clone(&account.omit_namespaces) } else { Arc::default() };
        Self::new(omit_namespaces, account.only_spinnaker_managed)
    }

    /// Reason for which an object of the scope is not cached; `None` if it is. `annotation` returns the object's value
    /// of [`APPLICATION_ANNOTATION`] or [`IGNORE_ANNOTATION`].
    pub fn leaves_out<'a>(
        &self,
        namespace: &str,
        annotation: impl Fn(&str) -> Option<&'a str>,
    ) -> Option<Why> {
        if self.omit_namespaces.contains(namespace) {
            return Some(Why::OmittedNamespace(namespace.to_owned()));
        }
        if annotation(IGNORE_ANNOTATION).is_some_and(|value| unquoted(value).as_deref() == Some("true")) {
            return Some(Why::Ignored);
        }
        let is_managed = || {
            let application = annotation(APPLICATION_ANNOTATION).and_then(unquoted);
            application.is_some_and(|application| !application.is_empty())
        };
        (self.only_spinnaker_managed && !is_managed()).then_some(Why::NotManaged)
    }

    /// Digest of the filter: 16 hex digits. A checkpoint with another digest is listed against its rows.
    pub fn digest(&self) -> String {
        let only_managed = if self.only_spinnaker_managed { "managed" } else { "all" };
        digest("filter", [only_managed].into_iter().chain(self.omit_namespaces.iter().map(String::as_str)))
    }
}
