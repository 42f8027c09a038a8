//! Errors of a command, and messages about the API server's errors.

use kube::core::Status;

use crate::telemetry::errors::chain;
use crate::ui::out::OutputError;

/// Why a command failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CommandError {
    /// The command line is invalid: exit code 2.
    Usage(String),
    /// One line that says what is wrong and what to do: exit code 1.
    Failed(String),
    /// The message was already printed: exit code 1.
    Told,
}

impl From<String> for CommandError {
    fn from(reason: String) -> Self {
        Self::Failed(reason)
    }
}

impl From<OutputError> for CommandError {
    fn from(error: OutputError) -> Self {
        Self::Failed(chain(&error))
    }
}

/// A request to the API server.
#[derive(Clone, Copy, Debug)]
pub(super) struct ApiRequest<'a> {
    /// RBAC verb.
    pub(super) verb: &'static str,
    /// Plural of the resource.
    pub(super) resource: &'static str,
    /// Namespace; `None` means all.
    pub(super) namespace: Option<&'a str>,
}

/// Resource name of accounts.
pub(super) const ACCOUNTS: &str = "kubesvcaccounts";
/// Resource name of agents.
pub(super) const AGENTS: &str = "kubesvcagents";

impl ApiRequest<'_> {
    /// Returns one line about a failed request: what it was, and what to do.
    pub(super) fn explain(&self, server: &str, error: &kube::Error) -> String {
        let place = match self.namespace {
            Some(namespace) => format!("in namespace {namespace}"),
            None => "in all namespaces".to_owned(),
        };
        match error {
            kube::Error::Api(status) => self.refused(server, &place, status),
            kube::Error::Auth(error) => {
                format!("no credential for {server}: {}; log in again", chain(error))
            }
            kube::Error::SerdeError(error) => format!(
                "{server} answered with something that this version of kubectl-kubesvc cannot read: {error}; \
                 use the version of the operator"
            ),
            error => format!(
                "{server} cannot be reached: {}; is the cluster up, and the right --context chosen?",
                chain(error)
            ),
        }
    }

    fn refused(&self, server: &str, place: &str, status: &Status) -> String {
        let Self { verb, resource, .. } = self;
        match status.code {
            401 => format!("{server} does not accept your credential (401); log in again"),
            403 => format!(
                "you may not {verb} {resource} {place}; ask for a Role with verb {verb} on {resource} ({})",
                status.message
            ),
            404 if !is_about_an_object(status) => format!(
                "{server} does not know {resource}.kubesvc.io: kubesvc is not installed there, or this is another \
                 cluster; check --context, or install it: kubesvc-operator crds | kubectl apply -f -"
            ),
            _ => format!("{verb} {resource} {place}: {} ({})", status.message, status.code),
        }
    }
}

/// Whether a 404 is about one object rather than an unknown kind.
pub(super) fn is_about_an_object(status: &Status) -> bool {
    status.details.as_ref().is_some_and(|details| !details.name.is_empty())
}

/// Minimum Jaro-Winkler similarity of a name to be suggested, from 0 to 1.
const MIN_SIMILARITY: f64 = 0.8;
/// Maximum number of suggested names.
const MAX_SUGGESTIONS: usize = 3;

/// Returns `; did you mean a or b?`, or an empty string if no name is similar.
pub(super) fn did_you_mean<'a>(name: &str, there: impl IntoIterator<Item = &'a str>) -> String {
    let mut near: Vec<_> = there
        .into_iter()
        .map(|other| (strsim::jaro_winkler(name, other), other))
        .filter(|(alike, _)| *alike >= MIN_SIMILARITY)
        .collect();
    near.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.cmp(b.1)));
    near.dedup_by(|a, b| a.1 == b.1);
    let names: Vec<_> = near.into_iter().take(MAX_SUGGESTIONS).map(|(_, name)| name).collect();
    if names.is_empty() { String::new() } else { format!("; did you mean {}?", names.join(" or ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_names_are_offered_the_nearest_first() {
        let there = ["production", "prod-2", "staging"];
        assert_eq!(did_you_mean("prodution", there), "; did you mean production or prod-2?");
        assert_eq!(did_you_mean("zzz", there), "");
    }

    #[test]
    fn a_refusal_names_the_right_that_is_missing() {
        let asked = ApiRequest { verb: "list", resource: ACCOUNTS, namespace: Some("spin") };
        let status = Status { code: 403, message: "User \"x\" cannot".to_owned(), ..Status::default() };
        let said = asked.explain("https://c", &kube::Error::Api(status.boxed()));
        assert!(said.contains("you may not list kubesvcaccounts in namespace spin"), "{said}");
    }
}
