//! Validates a spec against the rules of its schema before the API server does, with the same messages.

use crate::secret_reference::is_reference;
use crate::spec::{KubeconfigSource, KubesvcAccountSpec};

const MAX_ITEMS: usize = 1000;
const MAX_RESUMABLE_AGE_MS: i64 = 86_400_000;

pub(super) const NAMESPACES_EXCLUDE: &str =
    "spec.namespaces and spec.omitNamespaces exclude each other: remove one of them";
pub(super) const KINDS_EXCLUDE: &str = "spec.kinds and spec.omitKinds exclude each other: remove one of them";
pub(super) const NEEDS_NAMESPACES: &str =
    "spec.onlyNamespacedResources needs spec.namespaces: list the namespaces to watch";
pub(super) const CONTEXT_MEANINGLESS: &str =
    "spec.context has no meaning with spec.kubeconfig.serviceAccount: remove it";
pub(super) const AGENT_CONTEXT_MEANINGLESS: &str =
    "spec.context has no meaning with spec.agentKubeconfig.serviceAccount: remove it";
pub(super) const NAME_CONTROL: &str = "spec.accountName must not contain control characters";
pub(super) const ZONE_CONTROL: &str = "spec.zoneId must not contain control characters";
pub(super) const RIGHTS: &str = "spec.permissions may have only READ and WRITE, in upper case";
pub(super) const ONE_SOURCE: &str =
    "exactly one of secretRef, reference, file and serviceAccount: true is needed";
pub(super) const REFERENCE: &str = "reference must start with encrypted:, encryptedFile: or secret://";
pub(super) const FILE_ABSOLUTE: &str = "file must be an absolute path";
pub(super) const FILE_DOTS: &str = "file must not contain .. as a part";
pub(super) const FILE_CONTROL: &str = "file must not contain control characters";
pub(super) const PRIORITY: &str = "spec.customResources[].deployPriority must be digits, as a string";

/// Whether a name can be an account's: 1 to 255 characters, without control characters.
pub fn is_account_name(name: &str) -> bool {
    has_length(name, 255) && !has_control(name)
}

/// Everything in a spec that violates its schema; empty if the spec is valid. Each rule is reported once, however
/// many items violate it.
pub fn validate(spec: &KubesvcAccountSpec) -> Vec<String> {
    let mut problems = Problems(Vec::new());
    names(spec, &mut problems);
    lists(spec, &mut problems);
    for (field, kubeconfig) in spec.sources() {
        source(field, kubeconfig, &mut problems);
    }
    let has_context = spec.context.is_some();
    let own = |source: &KubeconfigSource| has_context && source.service_account == Some(true);
    problems.unless(!own(&spec.kubeconfig), CONTEXT_MEANINGLESS);
    problems.unless(!spec.agent_kubeconfig.as_ref().is_some_and(own), AGENT_CONTEXT_MEANINGLESS);
    custom_resources(spec, &mut problems);
    let permissions = &spec.permissions;
    problems.unless(permissions.keys().all(|right| right == "READ" || right == "WRITE"), RIGHTS);
    let age = spec.max_resumable_resource_age_ms.unwrap_or_default();
    problems.unless(
        (0..=MAX_RESUMABLE_AGE_MS).contains(&age),
        "spec.maxResumableResourceAgeMs must be between 0 and 86400000",
    );
    problems.0
}

struct Problems(Vec<String>);

impl Problems {
    fn add(&mut self, problem: String) {
        if !self.0.contains(&problem) {
            self.0.push(problem);
        }
    }

    fn unless(&mut self, good: bool, problem: &str) {
        if !good {
            self.add(problem.to_owned());
        }
    }

    fn length(&mut self, field: &str, text: Option<impl AsRef<str>>, max: usize) {
        self.length_at(&format!("spec.{field}"), text, max);
    }

    fn length_at(&mut self, path: &str, text: Option<impl AsRef<str>>, max: usize) {
        if text.is_some_and(|text| !has_length(text.as_ref(), max)) {
            self.add(format!("{path} must have 1 to {max} characters"));
        }
    }

    /// Checks a rule about a part of a source, which `rule` begins with.
    fn unless_in(&mut self, good: bool, source: &str, rule: &str) {
        if !good {
            self.add(format!("{source}.{rule}"));
        }
    }

    fn count(&mut self, field: &str, count: usize) {
        if count > MAX_ITEMS {
            self.add(format!("spec.{field} must have at most {MAX_ITEMS} items"));
        }
    }
}

fn names(spec: &KubesvcAccountSpec, problems: &mut Problems) {
    problems.length("accountName", spec.account_name.as_ref(), 255);
    problems.unless(!spec.account_name.as_deref().is_some_and(has_control), NAME_CONTROL);
    problems.length("zoneId", spec.zone_id.as_ref(), 255);
    problems.unless(!spec.zone_id.as_ref().is_some_and(|zone| has_control(zone.as_str())), ZONE_CONTROL);
    problems.length("context", spec.context.as_ref(), 255);
    problems.length("environment", spec.environment.as_ref(), 255);
    problems.length("accountType", spec.account_type.as_ref(), 255);
}

fn lists(spec: &KubesvcAccountSpec, problems: &mut Problems) {
    for (field, namespaces) in [("namespaces", &spec.namespaces), ("omitNamespaces", &spec.omit_namespaces)] {
        problems.count(field, namespaces.len());
        if !namespaces.iter().all(|namespace| crate::object_names::is_dns_label(namespace)) {
            problems.add(format!(
                "spec.{field} must hold names of namespaces: lower-case letters, digits and dashes, at most 63"
            ));
        }
    }
    for (field, kinds) in [("kinds", &spec.kinds), ("omitKinds", &spec.omit_kinds)] {
        problems.count(field, kinds.len());
        if !kinds.iter().all(|kind| has_length(kind, 255)) {
            problems.add(format!("spec.{field} must hold kinds of 1 to 255 characters"));
        }
    }
    problems.unless(spec.namespaces.is_empty() || spec.omit_namespaces.is_empty(), NAMESPACES_EXCLUDE);
    problems.unless(spec.kinds.is_empty() || spec.omit_kinds.is_empty(), KINDS_EXCLUDE);
    let bare = spec.only_namespaced_resources == Some(true) && spec.namespaces.is_empty();
    problems.unless(!bare, NEEDS_NAMESPACES);
}

fn source(field: &str, source: &KubeconfigSource, problems: &mut Problems) {
    let own = source.service_account == Some(true);
    let given = [source.secret_ref.is_some(), source.reference.is_some(), source.file.is_some(), own];
    if given.into_iter().filter(|given| *given).count() != 1 {
        problems.add(format!("{field}: {ONE_SOURCE}"));
    }
    problems.length_at(&format!("{field}.reference"), source.reference.as_ref(), 2048);
    problems.length_at(&format!("{field}.file"), source.file.as_ref(), 1024);
    if let Some(reference) = &source.reference {
        problems.unless_in(is_reference(reference), field, REFERENCE);
    }
    if let Some(file) = &source.file {
        problems.unless_in(file.starts_with('/'), field, FILE_ABSOLUTE);
        problems.unless_in(!file.split('/').any(|part| part == ".."), field, FILE_DOTS);
        problems.unless_in(!has_control(file), field, FILE_CONTROL);
    }
}

fn custom_resources(spec: &KubesvcAccountSpec, problems: &mut Problems) {
    problems.count("customResources", spec.custom_resources.len());
    problems.count("customResourceDefinitions", spec.custom_resource_definitions.len());
    for treatment in &spec.custom_resources {
        problems.length("customResources[].kubernetesKind", Some(&treatment.kubernetes_kind), 320);
        problems.length("customResources[].deployPriority", treatment.deploy_priority.as_ref(), 9);
        let priority = treatment.deploy_priority.as_deref().unwrap_or("0");
        problems.unless(priority.bytes().all(|byte| byte.is_ascii_digit()), PRIORITY);
    }
    for exposed in &spec.custom_resource_definitions {
        problems.length("customResourceDefinitions[].kind", Some(&exposed.kind), 320);
    }
}

fn has_length(text: &str, max: usize) -> bool {
    !text.is_empty() && text.chars().nth(max).is_none()
}

fn has_control(text: &str) -> bool {
    text.chars().any(char::is_control)
}
