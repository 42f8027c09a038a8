//! What each reason of FAILED waits for.

use super::{AccountFacts, WaitExplanation, agents, shell};
use crate::GrantPhase;
use crate::failure::{FailureClass, Outlook};
use crate::name_precedence::awaits_request;
use crate::spec::SecretKeyReference;

/// FAILED: what went wrong, and what would resolve it.
pub(super) fn judge(facts: &AccountFacts<'_>) -> WaitExplanation {
    let class = facts.status.failure_class();
    if facts.status.phase() == GrantPhase::Revoking && class != Some(FailureClass::ClusterMismatch) {
        let mut verdict = agents::revoke(facts, "goes on to what is desired");
        verdict.waits_for =
            format!("An agent could not let go of it. {} {}", verdict.waits_for, outlook(facts));
        return verdict.command("To ask the agents again at once:", facts.plugin("retry"));
    }
    match class {
        Some(FailureClass::NoAgent) => agents::nobody(facts),
        Some(FailureClass::ZoneAmbiguous) => agents::name_a_zone(
            facts,
            "Agents of several zones are connected, and the account names none: which zone is to hold it has to be \
             said, or only one zone may be left.",
        ),
        Some(FailureClass::ZoneRequired) => agents::name_a_zone(
            facts,
            "The account names no zone, and no agent may offer to take it (kubesvc.agents.offers): which zone is to \
             hold it has to be said.",
        ),
        Some(FailureClass::DuplicateName) => duplicate(facts),
        Some(FailureClass::RowExists) => row_exists(facts),
        Some(FailureClass::ClusterMismatch) => mismatch(facts),
        Some(FailureClass::CredentialMissing) => credential_missing(facts),
        Some(class) => retry(facts, WaitExplanation::waits(class.meaning()), class.remedy()),
        None => retry(facts, WaitExplanation::waits("The last try failed."), "See the message above."),
    }
}

/// When the account is retried, in a sentence.
fn outlook(facts: &AccountFacts<'_>) -> String {
    if facts.status.is_refused_while_held() {
        return "Its agent goes on asking, and it is ACTIVE again as soon as the cluster accepts the credential."
            .to_owned();
    }
    let stalled = facts.is_true("Stalled");
    let cannot_pass =
        facts.status.failure_class().is_some_and(|class| class.outlook() == Outlook::CannotPass);
    let said = match (stalled, facts.status.next_retry_time.is_some()) {
        (true, true) => "All its retries are used up; it goes on being tried, at the slowest pace.",
        (false, true) => "It is tried again by itself.",
        (true, false) if cannot_pass => "It is not tried again until its spec or its credential changes.",
        _ => "It is not tried again by itself.",
    };
    said.to_owned()
}

/// Advises a remedy, followed by an immediate retry.
fn retry(
    facts: &AccountFacts<'_>,
    mut verdict: WaitExplanation,
    remedy: impl Into<String>,
) -> WaitExplanation {
    verdict.waits_for = format!("{} {}", verdict.waits_for, outlook(facts));
    verdict = verdict.advise(remedy);
    if let Some(secret) = secret(facts) {
        let key = secret.key();
        verdict = verdict.command(
            format!("Its kubeconfig is key {key} of Secret {}. To replace it:", secret.name),
            create(facts, secret) + " --dry-run=client -o yaml | kubectl apply -f -",
        );
    }
    verdict.command("Then, to have it tried at once:", facts.plugin("retry"))
}

fn secret<'a>(facts: &'a AccountFacts<'_>) -> Option<&'a SecretKeyReference> {
    facts.account.spec.agent_source().secret_ref.as_ref()
}

/// Command that creates the Secret from a kubeconfig file.
fn create(facts: &AccountFacts<'_>, secret: &SecretKeyReference) -> String {
    let (name, namespace, key) = (shell(&secret.name), shell(facts.namespace), shell(secret.key()));
    format!("kubectl create secret generic {name} -n {namespace} --from-file={key}=FILE")
}

fn credential_missing(facts: &AccountFacts<'_>) -> WaitExplanation {
    let Some(secret) = secret(facts) else {
        let spec = &facts.account.spec;
        let (source, field) = (spec.agent_source(), spec.agent_source_field());
        let place = source.file.as_deref().or(source.reference.as_deref());
        let what = place.map_or_else(
            || "Its credential is not there.".to_owned(),
            |place| format!("{place} is not there, or cannot be read."),
        );
        return retry(
            facts,
            WaitExplanation::waits(what),
            format!("Put it in its place, or correct {field}."),
        );
    };
    let (name, key) = (&secret.name, secret.key());
    WaitExplanation::waits(format!(
        "Secret {name} with key {key} has to be in namespace {}. {}",
        facts.namespace,
        outlook(facts)
    ))
    .command("Make it from a kubeconfig file.", create(facts, secret))
    .command("Then, to have it tried at once:", facts.plugin("retry"))
}

fn mismatch(facts: &AccountFacts<'_>) -> WaitExplanation {
    let known = facts.status.cluster.as_deref().or(facts.status.kube_host.as_deref());
    let bound = known.unwrap_or("its first cluster");
    let verdict = WaitExplanation::waits(format!(
        "The kubeconfig leads to another cluster than {bound}, which the account is bound to. It is not tried again \
         until its spec or its credential changes."
    ))
    .advise("If the kubeconfig is wrong, correct it: it is then tried at once.");
    match facts.account.gitops_owner() {
        Some(owner) => verdict.advise(format!(
            "If the move is meant, set spec.state: INACTIVE and then ACTIVE in {owner}: that unbinds it."
        )),
        None => verdict
            .command(
                "If the move is meant, deactivate it once, which unbinds it,",
                facts.plugin("deactivate") + " --wait",
            )
            .command("and activate it again:", facts.plugin("activate")),
    }
}

fn duplicate(facts: &AccountFacts<'_>) -> WaitExplanation {
    let name = facts.account.account_name();
    let verdict = if awaits_request(facts.account) {
        WaitExplanation::waits(format!(
            "An object of another namespace has the account name {name:?}, or had it last: this one is tried when that \
             one is gone and a retry is asked for."
        ))
        .command("If that one is gone, and this one is to have the name:", facts.plugin("retry"))
        .command("Else delete one of the two. This one:", facts.kubectl("delete", ""))
    } else {
        WaitExplanation::waits(format!(
            "Another object has the account name {name:?}. This one is tried when that one is gone."
        ))
        .command("Delete one of the two. This one:", facts.kubectl("delete", ""))
    };
    verdict.advise("Or make this one anew under another spec.accountName.")
}

fn row_exists(facts: &AccountFacts<'_>) -> WaitExplanation {
    WaitExplanation::waits(format!(
        "The database has a row of the name {:?} that is not of kubesvc, and such rows are left alone. {}",
        facts.account.account_name(),
        outlook(facts)
    ))
    .advise(
        "Delete the row where it was made, or make this account anew under another spec.accountName. To have such rows \
         taken over, set kubesvc.dynamicAccounts.adoptRows: true in the operator's settings.",
    )
    .command("Then, to have it tried at once:", facts.plugin("retry"))
}
