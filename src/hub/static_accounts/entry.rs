//! One account of an agent's file, as the spec of a KubesvcAccount.

use std::collections::{BTreeMap, HashSet};

use crate::account::KubesvcAccountSpec;
use crate::account::names;
use crate::account::spec::{ExposedCustomResource, KubeconfigSource, Scope};
use crate::account::spinnaker::validate;
use crate::hub::static_accounts::refusal;
use crate::wire::common::failure::Class;
use crate::wire::ops::account_spec::Credential;
use crate::wire::ops::{self, StaticAnswer};

/// A valid entry.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::hub) struct ValidEntry {
    /// Account name.
    pub(in crate::hub) name: String,
    /// The spec from the file, pinned to the agent's zone.
    pub(in crate::hub) spec: KubesvcAccountSpec,
}

/// An entry, or its refusal.
pub(in crate::hub) type ListedEntry = Result<ValidEntry, StaticAnswer>;

/// Converts a list for a zone: valid entries, and a refusal for each invalid one. Of two entries with one name the
/// first counts.
pub(in crate::hub) fn read(accounts: Vec<ops::AccountSpec>, zone: &str) -> Vec<ListedEntry> {
    let mut names = HashSet::new();
    let entries = accounts.into_iter().map(|sent| {
        let listed = one(sent, zone)?;
        if !names.insert(listed.name.clone()) {
            let message = format!("account {:?} is in the file twice; remove one of the two", listed.name);
            return Err(refusal(&listed.name, Class::Conflict, message));
        }
        Ok(listed)
    });
    entries.collect()
}

fn one(sent: ops::AccountSpec, zone: &str) -> ListedEntry {
    let name = sent.account.map(|account| account.name).unwrap_or_default();
    let refuse = |message: String| refusal(&name, Class::BadReference, message);
    if name.is_empty() || name.chars().nth(255).is_some() || name.chars().any(char::is_control) {
        let message = "name must have 1 to 255 characters, and no control character among them";
        return Err(refuse(message.to_owned()));
    }
    let kubeconfig = match sent.credential {
        Some(Credential::File(path)) => KubeconfigSource { file: Some(path), ..Default::default() },
        Some(Credential::ServiceAccount(true)) => {
            KubeconfigSource { service_account: Some(true), ..Default::default() }
        }
        Some(Credential::Kubeconfig(_)) => {
            let message =
                "kubeconfig: the contents of a kubeconfig are not taken from an agent; name its file";
            return Err(refusal(&name, Class::BadKubeconfig, message.to_owned()));
        }
        Some(Credential::ServiceAccount(false)) | None => {
            return Err(refuse("give exactly one of kubeconfigFile and serviceAccount: true".to_owned()));
        }
    };
    let age = i64::try_from(sent.max_resumable_resource_age_ms).unwrap_or(i64::MAX);
    let spec = KubesvcAccountSpec {
        account_name: (names::object_name(&name) != name).then(|| name.clone()),
        zone_id: Some(zone.to_owned()),
        kubeconfig,
        context: (!sent.context.is_empty()).then_some(sent.context),
        insecure: sent.insecure.then_some(true),
        namespaces: sent.namespaces,
        omit_namespaces: sent.omit_namespaces,
        kinds: sent.kinds,
        omit_kinds: sent.omit_kinds,
        only_namespaced_resources: sent.only_namespaced_resources.then_some(true),
        custom_resource_definitions: sent.custom_resource_definitions.into_iter().map(exposed).collect(),
        only_spinnaker_managed: sent.only_spinnaker_managed.then_some(true),
        metrics: sent.metrics.then_some(true),
        no_proxy: sent.no_proxy.then_some(true),
        max_resumable_resource_age_ms: (age > 0).then_some(age),
        permissions: permissions(sent.read_roles, sent.write_roles),
        ..Default::default()
    };
    let problems = problems(&spec);
    if problems.is_empty() { Ok(ValidEntry { name, spec }) } else { Err(refuse(problems.join("; "))) }
}

/// Checks what the API server would refuse.
fn problems(spec: &KubesvcAccountSpec) -> Vec<String> {
    const MAX_ROLES: usize = 1000;
    let mut problems = validate(spec);
    for (right, roles) in &spec.permissions {
        let legal = |role: &String| !role.is_empty() && role.chars().nth(255).is_none();
        if roles.len() > MAX_ROLES || !roles.iter().all(legal) {
            problems.push(format!(
                "spec.permissions.{right} must have at most {MAX_ROLES} roles of 1 to 255 characters"
            ));
        }
    }
    problems
}

fn exposed(sent: ops::CustomResourceDefinition) -> ExposedCustomResource {
    ExposedCustomResource { kind: sent.kind, scope: sent.cluster_scoped.then_some(Scope::Cluster) }
}

fn permissions(read: Vec<String>, write: Vec<String>) -> BTreeMap<String, Vec<String>> {
    let given = [("READ", read), ("WRITE", write)].into_iter().filter(|(_, roles)| !roles.is_empty());
    given.map(|(right, roles)| (right.to_owned(), roles)).collect()
}

#[cfg(test)]
pub(in crate::hub) mod tests {
    use super::*;
    use crate::wire::common;

    pub(in crate::hub) fn sent(name: &str) -> ops::AccountSpec {
        ops::AccountSpec {
            account: Some(common::AccountRef { name: name.to_owned(), ..Default::default() }),
            credential: Some(Credential::File("/kubeconfigs/one".to_owned())),
            ..Default::default()
        }
    }

    fn why(answer: &StaticAnswer) -> &str {
        answer.failure.as_ref().map(|failure| failure.message.as_str()).unwrap_or_default()
    }

    #[test]
    fn a_good_entry_becomes_a_spec_pinned_to_the_zone() {
        let full = ops::AccountSpec {
            context: "c".into(),
            insecure: true,
            namespaces: vec!["a".into()],
            kinds: vec!["deployment".into()],
            only_namespaced_resources: true,
            custom_resource_definitions: vec![ops::CustomResourceDefinition {
                kind: "Lamp.example.org".into(),
                cluster_scoped: true,
            }],
            only_spinnaker_managed: true,
            metrics: true,
            no_proxy: true,
            max_resumable_resource_age_ms: 7,
            read_roles: vec!["007".into()],
            ..sent("Prod East")
        };
        let listed = read(vec![full], "east").remove(0).expect("it is good");
        assert_eq!(listed.name, "Prod East");
        let spec = listed.spec;
        assert_eq!(spec.account_name.as_deref(), Some("Prod East"), "it is no name of an object");
        assert_eq!(spec.zone_id.as_deref(), Some("east"));
        assert_eq!(spec.kubeconfig.file.as_deref(), Some("/kubeconfigs/one"));
        assert_eq!((spec.context.as_deref(), spec.insecure), (Some("c"), Some(true)));
        assert_eq!(spec.permissions, BTreeMap::from([("READ".to_owned(), vec!["007".to_owned()])]));
        assert_eq!(spec.max_resumable_resource_age_ms, Some(7));
        assert_eq!(spec.custom_resource_definitions[0].scope, Some(Scope::Cluster));
        assert_eq!(spec.state, None);
        let plain = read(vec![sent("prod")], "east").remove(0).expect("it is good").spec;
        assert_eq!((plain.account_name, plain.context, plain.insecure), (None, None, None));
    }

    #[test]
    fn entries_that_the_api_server_would_refuse_are_answered_with_the_field() {
        let file = |path: &str| ops::AccountSpec {
            credential: Some(Credential::File(path.to_owned())),
            ..sent("one")
        };
        let both = vec!["a".to_owned()];
        let table = [
            (sent(""), "name must have"),
            (sent(&"x".repeat(256)), "name must have"),
            (sent("a\nb"), "name must have"),
            (sent("a\u{85}b"), "name must have"),
            (ops::AccountSpec { account: None, ..sent("one") }, "name must have"),
            (ops::AccountSpec { credential: None, ..sent("one") }, "exactly one of"),
            (
                ops::AccountSpec { credential: Some(Credential::ServiceAccount(false)), ..sent("one") },
                "exactly one of",
            ),
            (file("kubeconfigs/one"), "kubeconfig.file must be an absolute path"),
            (file("/kubeconfigs/../one"), "kubeconfig.file must not contain .."),
            (file("/a\0b"), "kubeconfig.file must not contain control"),
            (file(""), "kubeconfig.file"),
            (file(&format!("/{}", "x".repeat(1024))), "kubeconfig.file"),
            (
                ops::AccountSpec { namespaces: both.clone(), omit_namespaces: both.clone(), ..sent("one") },
                "spec.omitNamespaces exclude",
            ),
            (
                ops::AccountSpec { kinds: both.clone(), omit_kinds: both, ..sent("one") },
                "spec.omitKinds exclude",
            ),
            (ops::AccountSpec { namespaces: vec!["A B".into()], ..sent("one") }, "spec.namespaces"),
            (ops::AccountSpec { only_namespaced_resources: true, ..sent("one") }, "needs spec.namespaces"),
            (
                ops::AccountSpec { max_resumable_resource_age_ms: u64::MAX, ..sent("one") },
                "maxResumableResourceAgeMs",
            ),
            (ops::AccountSpec { read_roles: vec![String::new()], ..sent("one") }, "spec.permissions.READ"),
            (
                ops::AccountSpec { write_roles: vec!["x".into(); 1001], ..sent("one") },
                "spec.permissions.WRITE",
            ),
            (
                ops::AccountSpec {
                    credential: Some(Credential::ServiceAccount(true)),
                    context: "c".into(),
                    ..sent("one")
                },
                "spec.context has no meaning",
            ),
        ];
        for (bad, field) in table {
            let entries = read(vec![bad, sent("good")], "z");
            let answer = entries[0].as_ref().expect_err(field);
            assert!(why(answer).contains(field), "{:?} lacks {field:?}", why(answer));
            assert!(answer.name.chars().count() <= 255 && !answer.name.contains(char::is_control));
            assert!(entries[1].is_ok(), "a good one beside it goes on");
        }
    }

    #[test]
    fn the_contents_of_a_kubeconfig_are_not_taken_and_not_repeated() {
        let secret = Some(Credential::Kubeconfig(b"token: t0ps3cret".to_vec()));
        let answer = read(vec![ops::AccountSpec { credential: secret, ..sent("one") }], "z")
            .remove(0)
            .expect_err("it is refused");
        let failure = answer.failure.as_ref().expect("a reason");
        assert_eq!(failure.class(), Class::BadKubeconfig);
        assert!(!format!("{answer:?}").contains("t0ps3cret"));
    }

    #[test]
    fn the_first_of_two_entries_with_one_name_counts() {
        let second = ops::AccountSpec { metrics: true, ..sent("one") };
        let entries = read(vec![sent("one"), second, sent("two")], "z");
        assert_eq!(entries[0].as_ref().expect("the first").spec.metrics, None);
        assert!(why(entries[1].as_ref().expect_err("the second")).contains("twice"));
        assert!(entries[2].is_ok());
    }
}
