//! What hangs, why, and in which order to remove what is there: a pure function of what was found.

use std::collections::BTreeSet;

/// Most names in one line.
const MAX_NAMES: usize = 5;
/// Selects what charts and `config/` label as kubesvc's.
pub(super) const LABEL: &str = "app.kubernetes.io/name in (kubesvc-operator, kubesvc-agent)";

/// An object, as far as the report is about it.
#[derive(Clone, Debug, Default)]
pub(super) struct Item {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) is_being_deleted: bool,
    /// Whether it has the operator's finalizer.
    pub(super) has_finalizer: bool,
    /// Finalizers of others.
    pub(super) other_finalizers: Vec<String>,
    /// Whether a pod of it is ready, it is connected (an agent), or the API server reaches who serves it.
    pub(super) is_serving: bool,
    /// Whether an account is registered in Clouddriver, as far as its status says.
    pub(super) is_registered: bool,
    /// Release of Helm that it belongs to.
    pub(super) release: Option<String>,
}

/// What the cluster has of kubesvc.
#[derive(Clone, Debug, Default)]
pub(super) struct InstalledObjects {
    pub(super) definitions: Vec<Item>,
    pub(super) accounts: Vec<Item>,
    /// Agents that are connected, from here or from other clusters.
    pub(super) agents: Vec<Item>,
    /// Deployments of operators, and StatefulSets of agents.
    pub(super) operators: Vec<Item>,
    pub(super) agent_workloads: Vec<Item>,
    /// The APIService of the API of accounts, which is cluster-wide and outlives its operator's namespace.
    pub(super) gateway: Option<Item>,
    /// Namespaces that are being deleted.
    pub(super) ending_namespaces: Vec<String>,
    /// Number of ClusterRoles and of their bindings.
    pub(super) cluster_roles: usize,
    /// Namespaces with Leases of operators.
    pub(super) leases: BTreeSet<String>,
    /// What the user may not list, or the API server does not answer about: one line each.
    pub(super) unknown: Vec<String>,
}

impl InstalledObjects {
    fn has_operator(&self) -> bool {
        self.operators.iter().any(|operator| operator.is_serving)
    }

    fn has_workloads(&self) -> bool {
        !self.operators.is_empty() || !self.agent_workloads.is_empty()
    }

    fn is_empty(&self) -> bool {
        let has_rights = self.cluster_roles > 0 || !self.leases.is_empty();
        self.definitions.is_empty() && self.gateway.is_none() && !self.has_workloads() && !has_rights
    }

    /// Accounts that nothing but the operator, or a person, releases.
    fn kept(&self) -> Vec<&Item> {
        self.accounts.iter().filter(|account| account.has_finalizer).collect()
    }
}

/// The report, line by line.
pub(super) fn report(found: &InstalledObjects) -> Vec<String> {
    if found.is_empty() && found.unknown.is_empty() {
        return vec!["Nothing of kubesvc is in this cluster.".to_owned()];
    }
    let mut lines = Vec::new();
    let hanging = hanging(found);
    lines.push(if hanging.is_empty() { "Nothing hangs.".to_owned() } else { "What hangs:".to_owned() });
    lines.extend(hanging.into_iter().map(|line| format!("  {line}")));
    let steps = steps(found);
    if !steps.is_empty() {
        lines.extend([String::new(), "To remove everything, in this order:".to_owned()]);
    }
    for (number, (what, commands)) in steps.into_iter().enumerate() {
        lines.push(format!("  {}. {what}", number + 1));
        lines.extend(commands.into_iter().map(|command| format!("       {command}")));
    }
    if !found.unknown.is_empty() {
        lines.extend([String::new(), "Not known:".to_owned()]);
        lines.extend(found.unknown.iter().map(|line| format!("  {line}")));
    }
    lines
}

/// What waits for something that may never happen.
fn hanging(found: &InstalledObjects) -> Vec<String> {
    let mut lines = Vec::new();
    let kept = found.kept();
    let deleted: Vec<_> = kept.iter().filter(|account| account.is_being_deleted).collect();
    if !deleted.is_empty() {
        let why = if found.has_operator() {
            "the operator releases each once its agents have dropped it: kubectl kubesvc why NAME".to_owned()
        } else {
            format!("their finalizer {} is the operator's, and no operator runs", kubesvc_core::FINALIZER)
        };
        lines.push(format!(
            "{}: {}; {why}",
            count(deleted.len(), "deleted account stays", "deleted accounts stay"),
            names(deleted.iter().map(|account| format!("{}/{}", account.namespace, account.name)))
        ));
    }
    for account in found.accounts.iter().filter(|account| account.is_being_deleted) {
        if !account.other_finalizers.is_empty() {
            let (namespace, name, others) = (&account.namespace, &account.name, &account.other_finalizers);
            lines.push(format!(
                "account {namespace}/{name} stays for finalizers of others: {}",
                names(others.iter().cloned())
            ));
        }
    }
    let waits = |number| count(number, "account with a finalizer", "accounts with a finalizer");
    for definition in found.definitions.iter().filter(|definition| definition.is_being_deleted) {
        let why = if !kept.is_empty() && definition.name.starts_with("kubesvcaccounts.") {
            format!("it waits for {}", waits(kept.len()))
        } else {
            "the API server deletes its objects".to_owned()
        };
        lines.push(format!("definition {} is being deleted: {why}", definition.name));
    }
    for namespace in &found.ending_namespaces {
        let held = kept.iter().filter(|account| account.namespace == *namespace).count();
        if held > 0 {
            lines.push(format!("namespace {namespace} is being deleted: it waits for {}", waits(held)));
        }
    }
    if let Some(gateway) = found.gateway.as_ref().filter(|gateway| !gateway.is_serving) {
        let waiting = match found.ending_namespaces.len() {
            0 => "no namespace can be deleted".to_owned(),
            _ => format!("namespaces stay Terminating: {}", names(found.ending_namespaces.iter().cloned())),
        };
        lines.push(format!("APIService {} has no operator behind it: {waiting}", gateway.name));
    }
    lines
}

/// What is to be done, in order: a sentence, and commands.
fn steps(found: &InstalledObjects) -> Vec<(String, Vec<String>)> {
    let mut steps = Vec::new();
    let removal = |kind, of: &[Item]| of.iter().map(|item| remove(kind, item)).collect();
    steps.extend(leave_clouddriver(found));
    if !found.agent_workloads.is_empty() || !found.agents.is_empty() {
        let connected = match &found.agents[..] {
            [] => String::new(),
            agents => format!(
                "; connected: {}",
                names(agents.iter().map(|one| format!("{}/{}", one.namespace, one.name)))
            ),
        };
        let what = format!(
            "The agents, here and in other clusters (kubectl kubesvc agents{connected}), so that none holds an account."
        );
        steps.push((what, removal("statefulset", &found.agent_workloads)));
    }
    steps.extend(remove_accounts(found));
    if !found.operators.is_empty() {
        steps.push(("The operator.".to_owned(), removal("deployment", &found.operators)));
    }
    if let Some(gateway) = &found.gateway {
        let what = match gateway.is_serving {
            false => Some("The APIService that no operator serves."),
            // Helm removes that of its release.
            true if found.operators.iter().all(|operator| operator.release.is_some()) => None,
            true => Some(
                "The APIService, which outlives the operator's Deployment: namespaces would stay Terminating.",
            ),
        };
        let command = format!("kubectl delete apiservice {} --ignore-not-found", gateway.name);
        steps.extend(what.map(|what| (what.to_owned(), vec![command])));
    }
    let definitions: Vec<_> =
        found.definitions.iter().filter(|one| !one.is_being_deleted).map(|one| one.name.as_str()).collect();
    if !definitions.is_empty() {
        let what = "The definitions, and with them every account and agent that is left.".to_owned();
        steps.push((what, vec![format!("kubectl delete crd {}", definitions.join(" "))]));
    }
    let mut rights = Vec::new();
    if found.cluster_roles > 0 && !found.has_workloads() {
        rights.push(format!("kubectl delete clusterroles,clusterrolebindings --selector '{LABEL}'"));
    }
    let leases = |namespace| format!("kubectl delete leases --namespace {namespace} --selector '{LABEL}'");
    rights.extend(found.leases.iter().map(leases));
    if !rights.is_empty() {
        steps.push(("Rights and Leases, which nothing else removes.".to_owned(), rights));
    }
    steps
}

fn remove(kind: &str, Item { namespace, name, release, .. }: &Item) -> String {
    match release {
        Some(release) => format!("helm uninstall {release} --namespace {namespace}"),
        None => format!(
            "kubectl delete {kind}/{name} --namespace {namespace}   # or kubectl delete -k, with what you applied"
        ),
    }
}

/// Accounts that Clouddriver would keep, and for which it would go on to call an operator that is gone.
fn leave_clouddriver(found: &InstalledObjects) -> Option<(String, Vec<String>)> {
    let registered: Vec<_> = found.accounts.iter().filter(|account| account.is_registered).collect();
    if registered.is_empty() || !found.has_operator() {
        return None;
    }
    let what = format!(
        "{} in Clouddriver, while the operator runs: it removes them there. Go on when no account has the condition \
         SpinnakerRegistered any more.",
        count(registered.len(), "account", "accounts")
    );
    let exclude = |namespace| {
        format!(
            "kubectl get kubesvcaccounts --namespace {namespace} --output name | xargs -r -n 1 kubectl --namespace {namespace} \
             patch --type=merge --patch '{{\"spec\":{{\"spinnaker\":{{\"register\":false}}}}}}'"
        )
    };
    Some((what, namespaces(registered).map(exclude).collect()))
}

fn remove_accounts(found: &InstalledObjects) -> Option<(String, Vec<String>)> {
    if found.has_operator() {
        let delete =
            |namespace| format!("kubectl delete kubesvcaccounts --all --namespace {namespace} --timeout=2m");
        let commands: Vec<_> = namespaces(&found.accounts).map(delete).collect();
        let what = format!(
            "The accounts ({}), while the operator runs: it takes them out of agents and database.",
            found.accounts.len()
        );
        return (!commands.is_empty()).then_some((what, commands));
    }
    let kept = found.kept();
    let what_helps = if kept.iter().any(|account| found.ending_namespaces.contains(&account.namespace)) {
        "Their namespace is being deleted, so that no operator can be installed there: remove their finalizers"
    } else {
        "Install the operator again, and delete them while it runs; or, if it is gone for good, remove their finalizers"
    };
    let release = |namespace| {
        format!(
            "kubectl get kubesvcaccounts --namespace {namespace} --output name | xargs -r -n 1 kubectl --namespace \
             {namespace} patch --type=merge --patch '{{\"metadata\":{{\"finalizers\":null}}}}'"
        )
    };
    let what = format!(
        "{} that no operator releases. {what_helps}: their rows stay in the database, and agents that run keep them.",
        count(kept.len(), "account", "accounts")
    );
    let commands: Vec<_> = namespaces(kept).map(release).collect();
    (!commands.is_empty()).then_some((what, commands))
}

/// The namespaces of accounts, each once.
fn namespaces<'a>(accounts: impl IntoIterator<Item = &'a Item>) -> impl Iterator<Item = &'a str> {
    accounts.into_iter().map(|account| account.namespace.as_str()).collect::<BTreeSet<_>>().into_iter()
}

fn count(number: usize, one: &str, several: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { several })
}

fn names(all: impl Iterator<Item = String>) -> String {
    let all: Vec<_> = all.collect();
    let shown = all[..all.len().min(MAX_NAMES)].join(", ");
    if all.len() > MAX_NAMES { format!("{shown} and {} more", all.len() - MAX_NAMES) } else { shown }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn definitions(is_being_deleted: bool) -> Vec<Item> {
        ["kubesvcaccounts.kubesvc.io", "kubesvcagents.kubesvc.io"]
            .map(|name| Item { name: name.to_owned(), is_being_deleted, ..Item::default() })
            .into()
    }

    fn account(name: &str, is_being_deleted: bool) -> Item {
        let (namespace, name) = ("spin".to_owned(), name.to_owned());
        Item { namespace, name, is_being_deleted, has_finalizer: true, ..Item::default() }
    }

    fn operator(is_serving: bool) -> Item {
        let (namespace, name) = ("kubesvc".to_owned(), "kubesvc-operator".to_owned());
        Item { namespace, name, is_serving, release: Some("kubesvc".to_owned()), ..Item::default() }
    }

    fn text(found: &InstalledObjects) -> String {
        report(found).join("\n")
    }

    #[test]
    fn rights_and_leases_that_are_left_are_removed_by_label() {
        let found = InstalledObjects {
            cluster_roles: 5,
            leases: ["kubesvc".to_owned()].into(),
            ..InstalledObjects::default()
        };
        let said = text(&found);
        for command in
            ["kubectl delete clusterroles,clusterrolebindings ", "kubectl delete leases --namespace kubesvc "]
        {
            assert!(said.contains(command), "{said}");
        }
        let with_release = text(&InstalledObjects { operators: vec![operator(true)], ..found });
        assert!(!with_release.contains("clusterroles"), "the release removes them:\n{with_release}");
    }

    #[test]
    fn an_empty_cluster_has_nothing_to_remove() {
        assert_eq!(text(&InstalledObjects::default()), "Nothing of kubesvc is in this cluster.");
    }

    #[test]
    fn everything_is_removed_from_the_agents_to_the_definitions() {
        let found = InstalledObjects {
            definitions: definitions(false),
            accounts: vec![account("prod", false)],
            agents: vec![Item { name: "worker".to_owned(), ..operator(true) }],
            operators: vec![operator(true)],
            ..InstalledObjects::default()
        };
        let text = text(&found);
        assert!(text.starts_with("Nothing hangs."), "{text}");
        let places: Vec<_> = [
            "1. The agents, here and in other clusters (kubectl kubesvc agents; connected: kubesvc/worker)",
            "2. The accounts (1), while the operator runs",
            "kubectl delete kubesvcaccounts --all --namespace spin",
            "3. The operator",
            "helm uninstall kubesvc --namespace kubesvc",
            "4. The definitions",
            "kubectl delete crd kubesvcaccounts.kubesvc.io kubesvcagents.kubesvc.io",
        ]
        .iter()
        .map(|part| text.find(part).unwrap_or_else(|| unreachable!("{part} is missing:\n{text}")))
        .collect();
        assert!(places.is_sorted(), "{text}");
    }

    #[test]
    fn accounts_in_clouddriver_leave_it_before_the_operator_goes() {
        let registered = Item { is_registered: true, ..account("prod", false) };
        let found = InstalledObjects {
            accounts: vec![registered, account("dev", false)],
            operators: vec![operator(true)],
            ..InstalledObjects::default()
        };
        let text = text(&found);
        assert!(text.contains("1. 1 account in Clouddriver, while the operator runs"), "{text}");
        assert!(text.contains("patch '{\"spec\":{\"spinnaker\":{\"register\":false}}}'"), "{text}");
        assert!(text.find("in Clouddriver") < text.find("The accounts (2)"), "{text}");
    }

    #[test]
    fn the_wrong_order_is_explained_and_has_a_way_out() {
        for operators in [Vec::new(), vec![operator(false)]] {
            let found = InstalledObjects {
                definitions: definitions(true),
                accounts: vec![account("a", true), account("b", true)],
                ending_namespaces: vec!["spin".to_owned(), "other".to_owned()],
                operators,
                ..InstalledObjects::default()
            };
            let text = text(&found);
            for part in [
                "2 deleted accounts stay: spin/a, spin/b; their finalizer kubesvc.io/account is the operator's, and no operator",
                "definition kubesvcaccounts.kubesvc.io is being deleted: it waits for 2 accounts with a finalizer",
                "namespace spin is being deleted: it waits for 2 accounts",
                "1. 2 accounts that no operator releases. Their namespace is being deleted, so that no operator can be installed there",
                "patch --type=merge --patch '{\"metadata\":{\"finalizers\":null}}'",
            ] {
                assert!(text.contains(part), "{part:?} is missing:\n{text}");
            }
            assert!(!text.contains("kubectl delete crd") && !text.contains("namespace other"), "{text}");
        }
    }

    #[test]
    fn accounts_of_a_namespace_that_stays_are_deleted_by_an_operator_that_is_installed_again() {
        let found = InstalledObjects {
            definitions: definitions(true),
            accounts: vec![account("a", true)],
            ..InstalledObjects::default()
        };
        let said = text(&found);
        assert!(
            said.contains("1. 1 account that no operator releases. Install the operator again"),
            "{said}"
        );
    }

    #[test]
    fn an_account_with_a_finalizer_of_somebody_else_hangs() {
        let other_finalizers = vec!["example.com/hold".to_owned()];
        let held = Item { has_finalizer: false, other_finalizers, ..account("a", true) };
        let said = text(&InstalledObjects {
            definitions: definitions(false),
            accounts: vec![held],
            ..InstalledObjects::default()
        });
        assert!(said.contains("account spin/a stays for finalizers of others: example.com/hold"), "{said}");
    }

    #[test]
    fn an_api_without_an_operator_is_said_to_keep_namespaces() {
        let gateway = |is_serving| {
            Some(Item { name: "v1alpha1.proxy.kubesvc.io".to_owned(), is_serving, ..Item::default() })
        };
        let mut found = InstalledObjects {
            gateway: gateway(false),
            ending_namespaces: vec!["spin".to_owned()],
            ..InstalledObjects::default()
        };
        let lost = text(&found);
        for part in [
            "APIService v1alpha1.proxy.kubesvc.io has no operator behind it: namespaces stay Terminating: spin",
            "1. The APIService that no operator serves.",
            "kubectl delete apiservice v1alpha1.proxy.kubesvc.io --ignore-not-found",
        ] {
            assert!(lost.contains(part), "{part:?} is missing:\n{lost}");
        }
        // With its operator it goes like the rest of the release, if there is one.
        (found.gateway, found.operators) = (gateway(true), vec![operator(true)]);
        assert!(!text(&found).contains("APIService"), "{}", text(&found));
        found.operators[0].release = None;
        let applied = text(&found);
        for part in [
            "2. The APIService, which outlives the operator's Deployment",
            "kubectl delete apiservice v1alpha1.proxy.kubesvc.io --ignore-not-found",
        ] {
            assert!(applied.contains(part), "{part:?} is missing:\n{applied}");
        }
        assert!(!applied.contains("has no operator behind it"), "{applied}");
    }

    #[test]
    fn what_the_user_may_not_list_is_named() {
        let found = InstalledObjects {
            unknown: vec!["deployments: you may not list them".to_owned()],
            ..InstalledObjects::default()
        };
        assert_eq!(
            text(&found),
            "Nothing hangs.

Not known:
  deployments: you may not list them"
        );
    }

    #[test]
    fn long_lists_are_cut() {
        let accounts = (0..1000).map(|n| account(&format!("a{n}"), true)).collect();
        let found =
            InstalledObjects { definitions: definitions(false), accounts, ..InstalledObjects::default() };
        let text = text(&found);
        assert!(text.contains("and 995 more") && text.len() < 2000, "{text}");
    }
}
