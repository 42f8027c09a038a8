//! What hangs, why, and in which order to remove what is there: a pure function of what was found.

/// Most names in one line.
const MAX_NAMES: usize = 5;

/// A definition of kubesvc.io.
#[derive(Clone, Debug, Default)]
pub(crate) struct Definition {
    pub(crate) name: String,
    pub(crate) is_being_deleted: bool,
    /// Whether other versions are converted by a webhook, without which nothing can be read or deleted.
    pub(crate) has_conversion_webhook: bool,
}

/// An account.
#[derive(Clone, Debug, Default)]
pub(crate) struct Account {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) is_being_deleted: bool,
    pub(crate) has_finalizer: bool,
    /// Finalizers of others, which the operator does not remove.
    pub(crate) other_finalizers: Vec<String>,
}

/// An agent as the operator last wrote it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Agent {
    pub(crate) id: String,
    pub(crate) zone: String,
    pub(crate) is_connected: bool,
    pub(crate) held: i32,
    pub(crate) finalizers: Vec<String>,
}

/// A Deployment or StatefulSet in this cluster.
#[derive(Clone, Debug, Default)]
pub(crate) struct Workload {
    pub(crate) kind: &'static str,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) ready: i32,
    /// Release of Helm that it belongs to.
    pub(crate) release: Option<String>,
}

impl Workload {
    fn command(&self) -> String {
        match &self.release {
            Some(release) => format!("helm uninstall {release} --namespace {}", self.namespace),
            None => format!(
                "kubectl delete {}/{} --namespace {}   # or kubectl delete -k, with what you applied",
                self.kind, self.name, self.namespace
            ),
        }
    }
}

/// The APIService of the API of accounts, which is cluster-wide and outlives its operator's namespace.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gateway {
    pub(crate) api_service: String,
    /// Whether the API server reaches an operator behind it.
    pub(crate) is_available: bool,
}

/// Selects what charts and `config/` label as kubesvc's.
pub(crate) const LABEL: &str = "app.kubernetes.io/name in (kubesvc-operator, kubesvc-agent)";

/// What the cluster has of kubesvc.
#[derive(Clone, Debug, Default)]
pub(crate) struct Found {
    pub(crate) definitions: Vec<Definition>,
    pub(crate) accounts: Vec<Account>,
    pub(crate) agents: Vec<Agent>,
    pub(crate) operators: Vec<Workload>,
    pub(crate) agent_workloads: Vec<Workload>,
    /// Webhook configurations with rules about kubesvc.io. kubesvc makes none.
    pub(crate) webhooks: Vec<String>,
    pub(crate) gateway: Option<Gateway>,
    /// APIServices of kubesvc.io that a Service serves. kubesvc makes none.
    pub(crate) api_services: Vec<String>,
    /// Namespaces that are being deleted.
    pub(crate) ending_namespaces: Vec<String>,
    /// Number of ClusterRoles and of their bindings.
    pub(crate) cluster_roles: usize,
    /// Namespaces with Leases of operators.
    pub(crate) leases: Vec<String>,
    /// What the user may not list, or the API server does not answer about: one line each.
    pub(crate) unknown: Vec<String>,
}

impl Found {
    fn has_operator(&self) -> bool {
        self.operators.iter().any(|operator| operator.ready > 0)
    }

    fn is_empty(&self) -> bool {
        let has_rights = self.cluster_roles > 0 || !self.leases.is_empty();
        self.definitions.is_empty() && self.gateway.is_none() && !self.has_workloads() && !has_rights
    }

    fn has_workloads(&self) -> bool {
        !self.operators.is_empty() || !self.agent_workloads.is_empty()
    }

    /// Accounts that nothing but the operator, or a person, releases.
    fn kept(&self) -> Vec<&Account> {
        self.accounts.iter().filter(|account| account.has_finalizer).collect()
    }
}

/// The report, line by line.
pub(crate) fn report(found: &Found) -> Vec<String> {
    let mut lines = Vec::new();
    if found.is_empty() && found.unknown.is_empty() {
        lines.push("Nothing of kubesvc is in this cluster.".to_owned());
        return lines;
    }
    let hanging = hanging(found);
    if hanging.is_empty() {
        lines.push("Nothing hangs.".to_owned());
    } else {
        lines.push("What hangs:".to_owned());
        lines.extend(hanging.into_iter().map(|line| format!("  {line}")));
    }
    let steps = steps(found);
    if !steps.is_empty() {
        lines.push(String::new());
        lines.push("To remove everything, in this order:".to_owned());
    }
    for (number, step) in steps.into_iter().enumerate() {
        lines.push(format!("  {}. {}", number + 1, step.what));
        lines.extend(step.commands.into_iter().map(|command| format!("       {command}")));
    }
    if !found.unknown.is_empty() {
        lines.push(String::new());
        lines.push("Not known:".to_owned());
        lines.extend(found.unknown.iter().map(|line| format!("  {line}")));
    }
    lines
}

/// What waits for something that may never happen.
fn hanging(found: &Found) -> Vec<String> {
    let mut lines = Vec::new();
    let deleted: Vec<_> = found.kept().into_iter().filter(|account| account.is_being_deleted).collect();
    if !deleted.is_empty() {
        let names = names(deleted.iter().map(|account| format!("{}/{}", account.namespace, account.name)));
        let why = if found.has_operator() {
            "the operator releases each once its agents have dropped it: kubectl kubesvc why NAME".to_owned()
        } else {
            format!("their finalizer {} is the operator's, and no operator runs", kubesvc_core::FINALIZER)
        };
        lines.push(format!(
            "{}: {names}; {why}",
            count(deleted.len(), "deleted account stays", "deleted accounts stay")
        ));
    }
    for account in
        found.accounts.iter().filter(|one| one.is_being_deleted && !one.other_finalizers.is_empty())
    {
        lines.push(format!(
            "account {}/{} stays for finalizers of others: {}",
            account.namespace,
            account.name,
            account.other_finalizers.join(", ")
        ));
    }
    for definition in found.definitions.iter().filter(|definition| definition.is_being_deleted) {
        let kept = found.kept().len();
        let why = if kept > 0 && definition.name.starts_with("kubesvcaccounts.") {
            format!("it waits for {}", count(kept, "account with a finalizer", "accounts with a finalizer"))
        } else {
            "the API server deletes its objects".to_owned()
        };
        lines.push(format!("definition {} is being deleted: {why}", definition.name));
    }
    for namespace in &found.ending_namespaces {
        let kept = found.kept().iter().filter(|account| account.namespace == *namespace).count();
        if kept > 0 {
            let accounts = count(kept, "account with a finalizer", "accounts with a finalizer");
            lines.push(format!("namespace {namespace} is being deleted: it waits for {accounts}"));
        }
    }
    if let Some(gateway) = found.gateway.as_ref().filter(|gateway| !gateway.is_available) {
        let waiting = match found.ending_namespaces.len() {
            0 => "no namespace can be deleted".to_owned(),
            _ => format!("namespaces stay Terminating: {}", names(found.ending_namespaces.iter().cloned())),
        };
        lines.push(format!("APIService {} has no operator behind it: {waiting}", gateway.api_service));
    }
    for agent in found.agents.iter().filter(|agent| !agent.finalizers.is_empty()) {
        lines.push(format!("agent {} has finalizers of others: {}", agent.id, agent.finalizers.join(", ")));
    }
    for definition in found.definitions.iter().filter(|definition| definition.has_conversion_webhook) {
        lines.push(format!(
            "definition {} converts by a webhook, which is not kubesvc's; without it nothing can be read or deleted",
            definition.name
        ));
    }
    for webhook in &found.webhooks {
        lines.push(format!("{webhook} is about kubesvc.io and not kubesvc's; if what it calls is gone, nothing can be changed"));
    }
    for service in &found.api_services {
        lines.push(format!(
            "APIService {service} is not kubesvc's; while it is not available, no namespace can be deleted"
        ));
    }
    lines
}

struct Step {
    what: String,
    commands: Vec<String>,
}

fn steps(found: &Found) -> Vec<Step> {
    let mut steps = Vec::new();
    steps.extend(remove_agents(found));
    steps.extend(remove_accounts(found));
    if !found.operators.is_empty() {
        let commands = found.operators.iter().map(Workload::command).collect();
        steps.push(Step { what: "The operator.".to_owned(), commands });
    }
    if let Some(gateway) = &found.gateway {
        let command = format!("kubectl delete apiservice {} --ignore-not-found", gateway.api_service);
        if !gateway.is_available {
            steps.push(Step {
                what: "The APIService that no operator serves.".to_owned(),
                commands: vec![command],
            });
        } else if found.operators.iter().any(|operator| operator.release.is_none()) {
            steps.push(Step {
                what: "The APIService, which outlives the operator's Deployment: namespaces would stay Terminating."
                    .to_owned(),
                commands: vec![command],
            });
        }
    }
    let definitions: Vec<_> = found.definitions.iter().filter(|one| !one.is_being_deleted).collect();
    if !definitions.is_empty() {
        let names: Vec<_> = definitions.iter().map(|one| one.name.as_str()).collect();
        steps.push(Step {
            what: "The definitions, and with them every account and agent that is left.".to_owned(),
            commands: vec![format!("kubectl delete crd {}", names.join(" "))],
        });
    }
    steps.extend(remove_rights(found));
    steps
}

/// What no release removes, or no release is left to remove.
fn remove_rights(found: &Found) -> Option<Step> {
    let mut commands = Vec::new();
    if found.cluster_roles > 0 && !found.has_workloads() {
        commands.push(format!("kubectl delete clusterroles,clusterrolebindings --selector '{LABEL}'"));
    }
    commands.extend(
        found
            .leases
            .iter()
            .map(|namespace| format!("kubectl delete leases --namespace {namespace} --selector '{LABEL}'")),
    );
    let what = "Rights and Leases, which nothing else removes.".to_owned();
    (!commands.is_empty()).then_some(Step { what, commands })
}

fn remove_agents(found: &Found) -> Option<Step> {
    let connected: Vec<_> = found.agents.iter().filter(|agent| agent.is_connected).collect();
    if found.agent_workloads.is_empty() && connected.is_empty() {
        return None;
    }
    let mut what = "The agents, so that none holds an account.".to_owned();
    if !connected.is_empty() {
        let each =
            connected.iter().map(|one| format!("{} of zone {} with {}", one.id, one.zone, held(one.held)));
        let verb = if found.has_operator() { "Connected" } else { "Connected when an operator last ran" };
        what.push_str(&format!(" {verb}, here or in other clusters: {}.", names(each)));
    }
    Some(Step { what, commands: found.agent_workloads.iter().map(Workload::command).collect() })
}

fn held(accounts: i32) -> String {
    if accounts == 1 { "1 account".to_owned() } else { format!("{accounts} accounts") }
}

fn remove_accounts(found: &Found) -> Option<Step> {
    let kept = found.kept();
    if found.has_operator() {
        let namespaces = namespaces(found.accounts.iter());
        if namespaces.is_empty() {
            return None;
        }
        let delete = |namespace: &&str| {
            format!("kubectl delete kubesvcaccounts --all --namespace {namespace} --timeout=2m")
        };
        return Some(Step {
            what: format!(
                "The accounts ({}), while the operator runs: it takes them out of agents and database.",
                found.accounts.len()
            ),
            commands: namespaces.iter().map(delete).collect(),
        });
    }
    if kept.is_empty() {
        return None;
    }
    let release = |namespace: &&str| {
        format!(
            "kubectl get kubesvcaccounts --namespace {namespace} --output name | xargs -r -n 1 kubectl --namespace \
             {namespace} patch --type=merge --patch '{{\"metadata\":{{\"finalizers\":null}}}}'"
        )
    };
    let is_ending = |account: &&Account| found.ending_namespaces.contains(&account.namespace);
    let what_helps = if kept.iter().any(is_ending) {
        "Their namespace is being deleted, so that no operator can be installed there: remove their finalizers"
    } else {
        "Install the operator again, and delete them while it runs; or, if it is gone for good, remove their finalizers"
    };
    Some(Step {
        what: format!(
            "{} that no operator releases. {what_helps}: their rows stay in the database, and agents that run keep them.",
            count(kept.len(), "account", "accounts")
        ),
        commands: namespaces(kept.into_iter()).iter().map(release).collect(),
    })
}

fn namespaces<'a>(accounts: impl Iterator<Item = &'a Account>) -> Vec<&'a str> {
    let mut all: Vec<_> = accounts.map(|account| account.namespace.as_str()).collect();
    all.sort_unstable();
    all.dedup();
    all
}

fn count(number: usize, one: &str, several: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { several })
}

fn names(all: impl Iterator<Item = String>) -> String {
    let all: Vec<_> = all.collect();
    let shown = all.iter().take(MAX_NAMES).cloned().collect::<Vec<_>>().join(", ");
    if all.len() > MAX_NAMES { format!("{shown} and {} more", all.len() - MAX_NAMES) } else { shown }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn definitions(is_being_deleted: bool) -> Vec<Definition> {
        ["kubesvcaccounts.kubesvc.io", "kubesvcagents.kubesvc.io"]
            .map(|name| Definition { name: name.to_owned(), is_being_deleted, has_conversion_webhook: false })
            .into()
    }

    fn account(name: &str, is_being_deleted: bool) -> Account {
        let (namespace, name) = ("spin".to_owned(), name.to_owned());
        Account { namespace, name, is_being_deleted, has_finalizer: true, ..Account::default() }
    }

    fn operator(ready: i32) -> Workload {
        let (namespace, name) = ("kubesvc".to_owned(), "kubesvc-operator".to_owned());
        Workload { kind: "deployment", namespace, name, ready, release: Some("kubesvc".to_owned()) }
    }

    fn text(found: &Found) -> String {
        report(found).join("\n")
    }

    #[test]
    fn rights_and_leases_that_are_left_are_removed_by_label() {
        let found = Found { cluster_roles: 5, leases: vec!["kubesvc".to_owned()], ..Found::default() };
        let said = text(&found);
        for command in
            ["kubectl delete clusterroles,clusterrolebindings ", "kubectl delete leases --namespace kubesvc "]
        {
            assert!(said.contains(command), "{said}");
        }
        let with_release = text(&Found { operators: vec![operator(1)], ..found });
        assert!(!with_release.contains("clusterroles"), "the release removes them:\n{with_release}");
    }

    #[test]
    fn an_empty_cluster_has_nothing_to_remove() {
        assert_eq!(text(&Found::default()), "Nothing of kubesvc is in this cluster.");
    }

    #[test]
    fn everything_is_removed_from_the_agents_to_the_definitions() {
        let agent = Agent {
            id: "a".to_owned(),
            zone: "east".to_owned(),
            is_connected: true,
            held: 1,
            ..Agent::default()
        };
        let found = Found {
            definitions: definitions(false),
            accounts: vec![account("prod", false)],
            agents: vec![agent],
            operators: vec![operator(1)],
            ..Found::default()
        };
        let text = text(&found);
        assert!(text.starts_with("Nothing hangs."), "{text}");
        let places: Vec<_> = [
            "1. The agents",
            "a of zone east with 1 account",
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
    fn the_wrong_order_is_explained_and_has_a_way_out() {
        for operators in [Vec::new(), vec![operator(0)]] {
            let found = Found {
                definitions: definitions(true),
                accounts: vec![account("a", true), account("b", true)],
                ending_namespaces: vec!["spin".to_owned(), "other".to_owned()],
                operators,
                ..Found::default()
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
        let found =
            Found { definitions: definitions(true), accounts: vec![account("a", true)], ..Found::default() };
        let said = text(&found);
        assert!(
            said.contains("1. 1 account that no operator releases. Install the operator again"),
            "{said}"
        );
    }

    #[test]
    fn an_api_without_an_operator_is_said_to_keep_namespaces() {
        let gateway = |is_available| {
            Some(Gateway { api_service: "v1alpha1.proxy.kubesvc.io".to_owned(), is_available })
        };
        let mut found =
            Found { gateway: gateway(false), ending_namespaces: vec!["spin".to_owned()], ..Found::default() };
        let lost = text(&found);
        for part in [
            "APIService v1alpha1.proxy.kubesvc.io has no operator behind it: namespaces stay Terminating: spin",
            "1. The APIService that no operator serves.",
            "kubectl delete apiservice v1alpha1.proxy.kubesvc.io --ignore-not-found",
        ] {
            assert!(lost.contains(part), "{part:?} is missing:\n{lost}");
        }
        // With its operator it goes like the rest of the release, if there is one.
        (found.gateway, found.operators) = (gateway(true), vec![operator(1)]);
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
    fn what_kubesvc_does_not_make_is_named() {
        let mut definitions = definitions(false);
        definitions[0].has_conversion_webhook = true;
        let found = Found {
            definitions,
            webhooks: vec!["ValidatingWebhookConfiguration policy".to_owned()],
            api_services: vec!["v1.kubesvc.io".to_owned()],
            unknown: vec!["deployments: you may not list them".to_owned()],
            ..Found::default()
        };
        let text = text(&found);
        for part in [
            "converts by a webhook",
            "ValidatingWebhookConfiguration policy",
            "APIService v1.kubesvc.io",
            "Not known:",
        ] {
            assert!(text.contains(part), "{part:?} is missing:\n{text}");
        }
    }

    #[test]
    fn long_lists_are_cut() {
        let accounts = (0..1000).map(|n| account(&format!("a{n}"), true)).collect();
        let found = Found { definitions: definitions(false), accounts, ..Found::default() };
        let text = text(&found);
        assert!(text.contains("and 995 more") && text.len() < 2000, "{text}");
    }
}
