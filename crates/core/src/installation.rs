//! Installations of kubesvc, and which of them serves an account: one that two serve would be written by both without
//! an end.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::KubesvcAccount;

/// Annotation: the namespace of the installation that is asked to serve the account, in place of another one.
pub const OPERATOR_ANNOTATION: &str = "kubesvc.io/operator";

/// An installation of kubesvc, by the namespace of its operator.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[serde(rename_all = "camelCase", default)]
pub struct Installation {
    /// Name of the namespace.
    #[schemars(length(max = 63))]
    pub namespace: String,
    /// UID of the namespace: another one may have had its name, and another cluster may have one of its name.
    #[schemars(length(max = 63))]
    pub uid: String,
}

impl fmt::Display for Installation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the installation in namespace {} (uid {})", self.namespace, self.uid)
    }
}

impl KubesvcAccount {
    /// Namespace of the installation that a person asked to serve the account.
    pub(crate) fn asked_operator(&self) -> Option<&str> {
        self.annotation(OPERATOR_ANNOTATION).filter(|namespace| !namespace.is_empty())
    }

    /// Namespace of the installation that serves the account in place of `own`; `None` if `own` does.
    ///
    /// It is the one that wrote the status first, until another one that a person asked for has written it. One whose
    /// namespace `is_gone` serves nothing any more. Before the first status, it is the one that was asked for, if any.
    pub fn foreign_operator(
        &self,
        own: &Installation,
        is_gone: impl FnOnce(&Installation) -> bool,
    ) -> Option<&str> {
        let asked = self.asked_operator();
        if asked == Some(own.namespace.as_str()) {
            return None;
        }
        match self.status.as_ref().and_then(|status| status.operator.as_ref()) {
            Some(operator) if operator.uid == own.uid => None,
            Some(operator) if !is_gone(operator) => Some(&operator.namespace),
            _ => asked,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{KubesvcAccountSpec, KubesvcAccountStatus};

    fn installation(namespace: &str) -> Installation {
        Installation { namespace: namespace.to_owned(), uid: format!("uid-of-{namespace}") }
    }

    #[test]
    fn an_account_is_served_by_the_first_until_a_person_asks_for_another_or_the_first_is_gone() {
        // (who wrote the status, the annotation, whether the writer's namespace is gone): who serves, for `own`
        let table = [
            ((None, None, false), None),
            ((None, Some("own"), false), None),
            ((None, Some("other"), false), Some("other")),
            ((None, Some(""), false), None),
            ((Some("own"), None, false), None),
            ((Some("own"), Some("own"), false), None),
            // The former one serves until the one that was asked for has written: the name may be a typing error.
            ((Some("own"), Some("other"), false), None),
            ((Some("other"), None, false), Some("other")),
            ((Some("other"), Some("own"), false), None),
            ((Some("other"), Some("third"), false), Some("other")),
            ((Some("other"), None, true), None),
            ((Some("other"), Some("own"), true), None),
            ((Some("other"), Some("third"), true), Some("third")),
        ];
        for ((writer, annotation, is_gone), serves) in table {
            let mut account = KubesvcAccount::new("a", KubesvcAccountSpec::default());
            account.status = writer.map(|writer| KubesvcAccountStatus {
                operator: Some(installation(writer)),
                ..KubesvcAccountStatus::default()
            });
            account.metadata.annotations =
                annotation.map(|asked| [(OPERATOR_ANNOTATION.to_owned(), asked.to_owned())].into());
            let found = account.foreign_operator(&installation("own"), |_| is_gone);
            assert_eq!(found, serves, "{writer:?} {annotation:?} {is_gone}");
        }
    }

    #[test]
    fn a_namespace_that_was_made_again_is_another_installation() {
        let mut account = KubesvcAccount::new("a", KubesvcAccountSpec::default());
        let before = Installation { namespace: "own".to_owned(), uid: "before".to_owned() };
        account.status =
            Some(KubesvcAccountStatus { operator: Some(before), ..KubesvcAccountStatus::default() });
        assert_eq!(account.foreign_operator(&installation("own"), |_| false), Some("own"));
        assert_eq!(account.foreign_operator(&installation("own"), |_| true), None);
    }
}
