//! Which accounts may use a credential outside their own namespace (a file on an agent, an agent's service account, a
//! file of the operator), and whether a spec may contain the credential itself.

use std::collections::BTreeSet;

use super::KubesvcAccount;
use super::failure::{Failure, FailureClass};
use super::secret_reference::Reference;
use super::spec::KubeconfigSource;

/// Some of the watched namespaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NamespaceSet {
    /// All watched namespaces.
    All,
    /// Only these.
    These(BTreeSet<String>),
}

impl NamespaceSet {
    fn contain(&self, namespace: &str) -> bool {
        match self {
            Self::All => true,
            Self::These(these) => these.contains(namespace),
        }
    }
}

/// Which accounts may use which sources. The default allows everything except Secrets of other namespaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceRules {
    /// Namespaces whose accounts may use an agent's files and its service account.
    pub agent_sources: NamespaceSet,
    /// Namespaces whose accounts may use the engine `file`.
    pub operator_files: NamespaceSet,
    /// Namespaces, besides an account's own, whose Secrets references of the engine `k8s` may name.
    pub secrets: BTreeSet<String>,
    /// Whether references of the engine `noop` are accepted.
    pub noop: bool,
}

impl Default for SourceRules {
    fn default() -> Self {
        let secrets = BTreeSet::new();
        Self { agent_sources: NamespaceSet::All, operator_files: NamespaceSet::All, secrets, noop: true }
    }
}

impl SourceRules {
    /// Checks both sources of an account: its own, and the agents'. An account of an agent's own file is only sent to
    /// agents that list it themselves, so it uses nothing but their own credentials. Such a list has no second
    /// source.
    ///
    /// # Errors
    /// `SourceForbidden`, which names the setting.
    pub fn check(&self, account: &KubesvcAccount) -> Result<(), Failure> {
        if account.is_static() && account.spec.agent_kubeconfig.is_none() {
            return Ok(());
        }
        let namespace = account.metadata.namespace.as_deref().unwrap_or_default();
        account.spec.sources().try_for_each(|(field, source)| self.check_source(namespace, field, source))
    }

    /// Checks one source, found in `field`, for the accounts of a namespace.
    ///
    /// # Errors
    /// See [`check`](Self::check).
    pub fn check_source(
        &self,
        namespace: &str,
        field: &str,
        source: &KubeconfigSource,
    ) -> Result<(), Failure> {
        let of_an_agent =
            [(source.file.is_some(), "file"), (source.service_account == Some(true), "serviceAccount")];
        if let Some((_, part)) = of_an_agent.iter().find(|(used, _)| *used)
            && !self.agent_sources.contain(namespace)
        {
            return Err(forbidden(format!(
                "{field}.{part} is an agent's own, and accounts of namespace {namespace:?} may not use it \
                 (kubesvc.accounts.agentSources); put a kubeconfig into a Secret beside the account"
            )));
        }
        // A malformed reference is refused elsewhere, with its own error.
        let reference = source.reference.as_deref().and_then(|text| Reference::parse(text).ok());
        match reference.as_ref().map(Reference::engine) {
            Some("file") if !self.operator_files.contain(namespace) => Err(forbidden(format!(
                "{field}.reference: engine file reads the operator's files, and accounts of namespace \
                 {namespace:?} may not use it (kubesvc.accounts.operatorFiles); put the kubeconfig into a Secret"
            ))),
            Some("noop") if !self.noop => Err(forbidden(format!(
                "{field}.reference: engine noop is off (kubesvc.secrets.noop); put the kubeconfig into a Secret"
            ))),
            Some("k8s") => {
                self.check_secret(namespace, field, reference.as_ref().and_then(|one| one.get("ns")))
            }
            _ => Ok(()),
        }
    }

    /// Prevents everyone who may write an account from reading other namespaces' Secrets with the operator's
    /// permissions.
    fn check_secret(&self, own: &str, field: &str, named: Option<&str>) -> Result<(), Failure> {
        match named {
            Some(other) if other != own && !self.secrets.contains(other) => Err(forbidden(format!(
                "{field}.reference: ns names namespace {other:?}, and an account may use Secrets of its own \
                 namespace {own:?} and of those in kubesvc.secrets.namespaces alone; put the Secret beside the \
                 account, or have that setting changed"
            ))),
            _ => Ok(()),
        }
    }
}

fn forbidden(message: String) -> Failure {
    Failure::new(FailureClass::SourceForbidden, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::{AGENT_SOURCE, OWN_SOURCE};
    use crate::{KubesvcAccountSpec, ORIGIN_AGENT, ORIGIN_LABEL};

    fn source(field: &str, value: &str) -> KubeconfigSource {
        let value = Some(value.to_owned());
        match field {
            "file" => KubeconfigSource { file: value, ..KubeconfigSource::default() },
            "reference" => KubeconfigSource { reference: value, ..KubeconfigSource::default() },
            _ => KubeconfigSource { service_account: Some(true), ..KubeconfigSource::default() },
        }
    }

    fn shipped() -> SourceRules {
        let own = NamespaceSet::These(["kubesvc".to_owned()].into());
        SourceRules { agent_sources: own.clone(), operator_files: own, secrets: [].into(), noop: false }
    }

    #[test]
    fn sources_that_are_not_in_the_namespace_are_for_the_namespaces_of_the_settings() {
        let used = [
            (source("file", "/etc/kubesvc/x"), "agentSources"),
            (source("serviceAccount", ""), "agentSources"),
            (source("reference", "encryptedFile:file!p:/creds/x"), "operatorFiles"),
            (source("reference", "secret://file?p=/creds/x"), "operatorFiles"),
        ];
        for (source, setting) in used {
            assert_eq!(shipped().check_source("kubesvc", OWN_SOURCE, &source), Ok(()), "{source:?}");
            let failure = shipped().check_source("team", OWN_SOURCE, &source).expect_err("another namespace");
            assert_eq!(failure.class, FailureClass::SourceForbidden);
            assert!(failure.message.contains(setting) && failure.message.contains("team"), "{failure}");
            assert_eq!(SourceRules::default().check_source("team", OWN_SOURCE, &source), Ok(()));
        }
        let own = source("reference", "encryptedFile:k8s!n:prod!k:kubeconfig");
        assert_eq!(shipped().check_source("team", OWN_SOURCE, &own), Ok(()));
    }

    #[test]
    fn secrets_are_of_the_accounts_own_namespace_and_of_those_of_the_setting() {
        let named = |ns: &str| source("reference", &format!("encryptedFile:k8s!n:prod!k:kubeconfig!ns:{ns}"));
        let allowing = SourceRules { secrets: ["spinnaker".to_owned()].into(), ..SourceRules::default() };
        assert_eq!(allowing.check_source("team", OWN_SOURCE, &named("team")), Ok(()));
        assert_eq!(allowing.check_source("team", OWN_SOURCE, &named("spinnaker")), Ok(()));
        for (rules, other) in [(SourceRules::default(), "spinnaker"), (allowing, "kube-system")] {
            let failure =
                rules.check_source("team", OWN_SOURCE, &named(other)).expect_err("another namespace");
            assert_eq!(failure.class, FailureClass::SourceForbidden);
            let names_both =
                failure.message.contains("kubesvc.secrets.namespaces") && failure.message.contains(other);
            assert!(names_both, "{failure}");
        }
    }

    #[test]
    fn the_engine_noop_is_taken_from_no_namespace_where_it_is_off() {
        let failure =
            shipped().check_source("kubesvc", OWN_SOURCE, &source("reference", "encrypted:noop!v:S3CRET"));
        let failure = failure.expect_err("it is off");
        assert_eq!(failure.class, FailureClass::SourceForbidden);
        assert!(failure.message.contains("kubesvc.secrets.noop") && !failure.message.contains("S3CRET"));
    }

    #[test]
    fn the_agents_kubeconfig_is_no_way_around_the_rules_and_the_message_says_which_of_the_two_it_is() {
        let secret = KubeconfigSource { secret_ref: Some(Default::default()), ..Default::default() };
        let account = |own: &KubeconfigSource, agents: &KubeconfigSource| {
            let spec = KubesvcAccountSpec {
                kubeconfig: own.clone(),
                agent_kubeconfig: Some(agents.clone()),
                ..Default::default()
            };
            let mut account = KubesvcAccount::new("a", spec);
            account.metadata.namespace = Some("team".to_owned());
            account
        };
        for forbidden in [
            source("file", "/etc/kubesvc/x"),
            source("serviceAccount", ""),
            source("reference", "encryptedFile:file!p:/creds/x"),
            source("reference", "encrypted:noop!v:S3CRET"),
            source("reference", "encryptedFile:k8s!n:prod!k:kubeconfig!ns:spinnaker"),
        ] {
            let agents =
                shipped().check(&account(&secret, &forbidden)).expect_err("the agents' is forbidden");
            assert_eq!(agents.class, FailureClass::SourceForbidden);
            assert!(agents.message.starts_with(AGENT_SOURCE), "{agents}");
            let own = shipped().check(&account(&forbidden, &secret)).expect_err("its own is forbidden");
            assert!(own.message.starts_with(OWN_SOURCE), "{own}");
            let mut listed = account(&secret, &forbidden);
            listed.metadata.labels = Some([(ORIGIN_LABEL.to_owned(), ORIGIN_AGENT.to_owned())].into());
            assert!(shipped().check(&listed).is_err(), "no agent lists a second source");
        }
        assert_eq!(shipped().check(&account(&secret, &secret)), Ok(()));
    }

    #[test]
    fn an_account_of_an_agents_own_file_needs_no_leave() {
        let spec = KubesvcAccountSpec { kubeconfig: source("file", "/x"), ..Default::default() };
        let mut account = KubesvcAccount::new("a", spec);
        account.metadata.namespace = Some("team".to_owned());
        assert!(shipped().check(&account).is_err());
        account.metadata.labels = Some([(ORIGIN_LABEL.to_owned(), ORIGIN_AGENT.to_owned())].into());
        assert_eq!(shipped().check(&account), Ok(()));
    }
}
