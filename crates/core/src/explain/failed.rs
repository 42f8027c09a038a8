//! What each reason of FAILED waits for.

use super::{AccountFacts, WaitExplanation, agents, shell};
use crate::GrantPhase;
use crate::failure::{FailureClass, Outlook};
use crate::name_precedence::awaits_request;
use crate::spec::SecretKeyReference;

/// FAILED: what went wrong, and what would resolve it.
pub(super) fn judge(facts: &AccountFacts<'_>) -> WaitExplanation {
    let class = facts.class();
    if facts.status.phase() == GrantPhase::Revoking && class != Some(FailureClass::ClusterMismatch) {
        let mut verdict = agents::revoke(facts, "goes on to what is desired");
        verdict.waits_for =
            format!("An agent could not let go of it. {} {}", verdict.waits_for, outlook(facts));
        return verdict.command("To ask the agents again at once:", facts.plugin("retry"));
    }
    match class {
        Some(FailureClass::NoAgent) => agents::nobody(facts),
        Some(FailureClass::ZoneAmbiguous) => agents::several_zones(facts),
        Some(FailureClass::ZoneRequired) => agents::no_offers(facts),
        Some(FailureClass::DuplicateName) => duplicate(facts),
        Some(FailureClass::RowExists) => row_exists(facts),
        Some(FailureClass::ClusterMismatch) => mismatch(facts),
        Some(FailureClass::CredentialMissing) => credential_missing(facts),
        Some(class) => retry(facts, WaitExplanation::waits(what_failed(class)), remedy(class)),
        None => retry(facts, WaitExplanation::waits("The last try failed."), "See the message above."),
    }
}

fn what_failed(class: FailureClass) -> &'static str {
    match class {
        FailureClass::Auth => "The cluster refused the credential (401).",
        FailureClass::Forbidden => "The credential lacks a right in the cluster (403).",
        FailureClass::Unreachable => "The agent gets no connection to the cluster.",
        FailureClass::Tls => "The cluster's certificate is not trusted, or TLS failed otherwise.",
        FailureClass::Timeout => "No answer came in time, from the cluster or from the agent.",
        FailureClass::BadKubeconfig => "The kubeconfig is refused.",
        FailureClass::ExecForbidden => {
            "The kubeconfig would run a program to log in; that is never done on an agent."
        }
        FailureClass::BadReference => "The path or reference of the credential cannot be used as it stands.",
        FailureClass::Discovery => "The cluster's kinds could not be read.",
        FailureClass::Conflict => "Something else holds what is asked for.",
        FailureClass::CredentialDiffers => "The replicas of the operator read different credentials.",
        FailureClass::Internal => "kubesvc itself failed, or its API server could not be asked.",
        FailureClass::ZoneSpansClusters => {
            "The account asks for the cluster its agents are in, and the agents of its zone are in different ones."
        }
        FailureClass::SourceForbidden => "Accounts of its namespace may not use this source of a kubeconfig.",
        FailureClass::CredentialMissing
        | FailureClass::ZoneRequired
        | FailureClass::ClusterMismatch
        | FailureClass::NoAgent
        | FailureClass::ZoneAmbiguous
        | FailureClass::DuplicateName
        | FailureClass::RowExists => "The last try failed.",
    }
}

fn remedy(class: FailureClass) -> &'static str {
    match class {
        FailureClass::Auth => "Put a valid credential into the kubeconfig.",
        FailureClass::Forbidden => "Grant the user of the kubeconfig the right that the message names.",
        FailureClass::Unreachable => {
            "Look at the address in the kubeconfig, the network between agent and cluster, and the cluster."
        }
        FailureClass::Tls => "Do what the message says about the certificate.",
        FailureClass::BadKubeconfig => "Correct the kubeconfig as the message says.",
        FailureClass::ExecForbidden => {
            "Use a token, or client-certificate-data with client-key-data, in place of exec."
        }
        FailureClass::BadReference => {
            "Correct spec.kubeconfig, or spec.agentKubeconfig, as the message says."
        }
        FailureClass::CredentialDiffers => "See that every replica has the same file, and the same Secret.",
        FailureClass::Internal => "See the operator's log.",
        FailureClass::ZoneSpansClusters => {
            "Give the agents of each cluster a zoneId of their own, and name it in spec.zoneId."
        }
        FailureClass::SourceForbidden => {
            "Put a kubeconfig into a Secret beside the account, or have the setting that the message names changed."
        }
        FailureClass::Timeout => {
            "Do what the message says of the path, if it does; else see the agent's log."
        }
        FailureClass::Discovery => "See the agent's log.",
        _ => "See the message above.",
    }
}

/// When the account is retried, in a sentence.
fn outlook(facts: &AccountFacts<'_>) -> String {
    if facts.status.is_refused_while_held() {
        return "Its agent goes on asking, and it is ACTIVE again as soon as the cluster accepts the credential."
            .to_owned();
    }
    let stalled = facts.is_true("Stalled");
    let cannot_pass = facts.class().is_some_and(|class| class.outlook() == Outlook::CannotPass);
    match (stalled, facts.status.next_retry_time.is_some()) {
        (_, true) if stalled => {
            "All its retries are used up; it goes on being tried, at the slowest pace.".to_owned()
        }
        (_, true) => "It is tried again by itself.".to_owned(),
        (true, false) if cannot_pass => {
            "It is not tried again until its spec or its credential changes.".to_owned()
        }
        _ => "It is not tried again by itself.".to_owned(),
    }
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
            format!(
                "kubectl create secret generic {} -n {} --from-file={}=FILE --dry-run=client -o yaml | kubectl apply -f -",
                shell(&secret.name),
                shell(facts.namespace),
                shell(key)
            ),
        );
    }
    verdict.command("Then, to have it tried at once:", facts.plugin("retry"))
}

fn secret<'a>(facts: &'a AccountFacts<'_>) -> Option<&'a SecretKeyReference> {
    facts.account.spec.agent_source().secret_ref.as_ref()
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
    .command(
        "Make it from a kubeconfig file.",
        format!(
            "kubectl create secret generic {} -n {} --from-file={}=FILE",
            shell(name),
            shell(facts.namespace),
            shell(key)
        ),
    )
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
    if awaits_request(facts.account) {
        return WaitExplanation::waits(format!(
            "An object of another namespace has the account name {name:?}, or had it last: this one is tried when that \
             one is gone and a retry is asked for."
        ))
        .command("If that one is gone, and this one is to have the name:", facts.plugin("retry"))
        .command("Else delete one of the two. This one:", facts.kubectl("delete", ""))
        .advise("Or make this one anew under another spec.accountName.");
    }
    WaitExplanation::waits(format!(
        "Another object has the account name {name:?}. This one is tried when that one is gone."
    ))
    .command("Delete one of the two. This one:", facts.kubectl("delete", ""))
    .advise("Or make this one anew under another spec.accountName.")
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
