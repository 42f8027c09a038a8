//! Which rule of the lifecycle waits for what.

use super::agents::{self, listed};
use super::{AccountFacts, WaitExplanation, can_take, failed};
use crate::conditions::{AWAITING_AGENTS, ZONE_AWAITED};
use crate::ids::AgentId;
use crate::lifecycle::{generation_is_unhandled, retry_is_unhandled};
use crate::{DesiredState, FINALIZER, FORCE_DELETE_ANNOTATION, GrantPhase, State, age};

/// Command that lists the operator's pods.
pub(super) const OPERATOR: &str = "kubectl get pods -A -l app.kubernetes.io/name=kubesvc-operator";

/// What the account waits for, and what to do.
pub(super) fn judge(facts: &AccountFacts<'_>) -> WaitExplanation {
    if facts.account.is_being_deleted() {
        return deletion(facts);
    }
    if facts.is_unseen() {
        return unseen(facts);
    }
    if facts.account.desired() == DesiredState::Inactive && facts.leaves_clouddriver() {
        return leaving_clouddriver(facts, "becomes INACTIVE");
    }
    let state = facts.status.state();
    let revoking = facts.status.phase() == GrantPhase::Revoking;
    if !revoking && generation_is_unhandled(facts.account) {
        return unhandled("The last change of its spec is not handled yet.");
    }
    if !revoking && retry_is_unhandled(facts.account) {
        return unhandled("A retry was asked for, and is not begun yet.");
    }
    match (facts.account.desired(), state) {
        (_, State::Failed) => failed::judge(facts),
        (_, State::Deactivating | State::ToDeactivate) => agents::revoke(facts, "becomes INACTIVE"),
        (_, State::Activating) if revoking => agents::revoke(facts, "goes to its new zone"),
        (DesiredState::Inactive, State::Inactive) => by_wish(facts),
        (DesiredState::Inactive, _) => unhandled("It is to become INACTIVE, and that has not begun."),
        (DesiredState::Active, State::Active) => active(facts),
        (DesiredState::Active, State::Activating) => activating(facts),
        (DesiredState::Active, State::Orphaned) => orphaned(facts),
        (DesiredState::Active, State::ToMigrate) => to_migrate(facts),
        (DesiredState::Active, State::Inactive) if facts.status.reason() == Some(AWAITING_AGENTS) => {
            awaiting_agents(facts)
        }
        (DesiredState::Active, State::Inactive) => {
            unhandled("It is to become ACTIVE, and that has not begun.")
        }
        (DesiredState::Active, State::Deleting | State::DeleteFailed) => {
            unhandled("Its deletion was under way, and the object is not being deleted any more.")
        }
    }
}

/// The next action of a running operator, expected within seconds.
fn unhandled(what: &str) -> WaitExplanation {
    WaitExplanation::waits(format!("{what} An operator that runs takes it up within seconds."))
        .command("If it stays so, see whether the operator runs, and what it logs.", OPERATOR)
}

fn unseen(facts: &AccountFacts<'_>) -> WaitExplanation {
    if !AccountFacts::is_late(facts.age()) {
        return unhandled("It was just made, and no operator has seen it yet.");
    }
    WaitExplanation::waits(format!(
        "No operator has seen the account, for {}: none runs, or none watches namespace {}.",
        age::seconds(facts.age()),
        facts.namespace
    ))
    .command("See whether the operator runs.", OPERATOR)
    .advise(format!("See whether its setting kubesvc.watchNamespaces has {}.", facts.namespace))
}

fn by_wish(facts: &AccountFacts<'_>) -> WaitExplanation {
    let verdict = WaitExplanation::waits(
        "Nothing: it is INACTIVE because that is wished. It is kept, and no agent holds it.",
    );
    match facts.account.gitops_owner() {
        Some(owner) => verdict.advise(format!("When you want it, set spec.state: ACTIVE in {owner}.")),
        None => verdict.command("When you want it, activate it.", facts.plugin("activate")),
    }
}

fn active(facts: &AccountFacts<'_>) -> WaitExplanation {
    if facts.status.reason() == Some(ZONE_AWAITED) {
        let here = facts.status.granted_zone().unwrap_or_default();
        let wanted = facts.zone().unwrap_or_default();
        let mut verdict = agents::nobody(facts);
        verdict.waits_for = format!(
            "It is to move to zone {wanted}, and stays in zone {here}, where it works, until an agent of zone \
             {wanted} is connected. {}",
            verdict.waits_for
        );
        return verdict;
    }
    let holders: Vec<_> = facts.status.agents.iter().map(AgentId::as_str).collect();
    if holders.is_empty() {
        return WaitExplanation::waits("Nothing: it is as desired.");
    }
    WaitExplanation::waits(format!("Nothing: it is as desired, held by {}.", listed(&holders)))
}

fn activating(facts: &AccountFacts<'_>) -> WaitExplanation {
    let zone = facts.status.granted_zone().unwrap_or_default();
    let asked: Vec<_> = facts.agents_of(zone).filter(|agent| can_take(agent)).collect();
    let names: Vec<_> = asked.iter().map(|agent| agent.spec.agent_id.as_str()).collect();
    if facts.known_agents.is_some() && names.is_empty() {
        let mut verdict = agents::nobody(facts);
        verdict.waits_for = format!(
            "It was handed to the agents of zone {zone}, and none of them is connected any more. It becomes FAILED \
             when they have been away for the grace."
        );
        return verdict;
    }
    let who = if names.is_empty() { String::new() } else { format!(" ({})", listed(&names)) };
    WaitExplanation::waits(format!(
        "The first answer of an agent of zone {zone}{who} that it holds the account. An agent that says nothing \
         counts as failed after kubesvc.cache.operationWaitMs (30 s)."
    ))
    .command("Follow it.", facts.plugin("wait"))
}

fn orphaned(facts: &AccountFacts<'_>) -> WaitExplanation {
    let zone = facts.zone().unwrap_or_default();
    if facts.agents_of(zone).any(can_take) {
        return WaitExplanation::waits(format!(
            "The last agent that held it went away. An agent of zone {zone} is connected again, and has still to say \
             that it holds the account."
        ))
        .command("Follow it.", facts.plugin("wait"));
    }
    let mut verdict = agents::nobody(facts);
    verdict.waits_for = format!(
        "The last agent that held it went away. It recovers by itself when one of its zone connects. {}",
        verdict.waits_for
    );
    verdict
}

fn awaiting_agents(facts: &AccountFacts<'_>) -> WaitExplanation {
    let of = facts.zone().map(|zone| format!(" of zone {zone}")).unwrap_or_default();
    WaitExplanation::waits(format!(
        "The operator has just begun to lead, or agents wait to be registered: whoever may take the account{of} may be about \
         to connect. If none has within kubesvc.dynamicAccounts.orphanGraceSeconds (30 s), or when all that wait are \
         registered, it is FAILED (NoAgent), and is tried as soon as one connects; neither uses up a retry."
    ))
    .command("Follow it.", facts.plugin("wait"))
}

fn to_migrate(facts: &AccountFacts<'_>) -> WaitExplanation {
    let told = facts.condition("Ready").map(|ready| ready.message.clone()).unwrap_or_default();
    WaitExplanation::waits(format!("A zone whose agents can reach the cluster, or its credential: {told}."))
        .command("Follow it.", facts.plugin("wait"))
        .command("If it stays so, look at its Events.", facts.plugin("describe"))
}

fn deletion(facts: &AccountFacts<'_>) -> WaitExplanation {
    if !facts.account.has_finalizer() {
        return others_finalizers(facts);
    }
    if facts.leaves_clouddriver() {
        return leaving_clouddriver(facts, "is deleted");
    }
    let begun = matches!(facts.status.state(), State::Deleting | State::DeleteFailed);
    match (facts.status.phase(), begun) {
        (GrantPhase::Revoking, true) => force(facts, agents::revoke(facts, "is deleted")),
        (GrantPhase::None, _) if begun || !AccountFacts::is_late(facts.deleted_for()) => WaitExplanation::waits(
            "No agent holds it any more. Its rows have to go from the database; then the operator removes its finalizer.",
        )
        .command("If it stays so, see whether the operator runs and reaches its database.", OPERATOR),
        _ if !AccountFacts::is_late(facts.deleted_for()) => unhandled("Its deletion was just asked for."),
        _ => WaitExplanation::waits(format!(
            "Its deletion was asked for {} ago, and no operator has acted on it: the finalizer {FINALIZER} keeps it.",
            age::seconds(facts.deleted_for())
        ))
        .command("See whether the operator runs.", OPERATOR)
        .command(
            "Only if kubesvc is uninstalled for good: take the finalizer off.",
            facts.kubectl("patch", r#"--type=json -p '[{"op":"remove","path":"/metadata/finalizers"}]'"#),
        ),
    }
}

/// Clouddriver has still to let go of it, and `then` is what comes afterwards.
fn leaving_clouddriver(facts: &AccountFacts<'_>, then: &str) -> WaitExplanation {
    WaitExplanation::waits(format!(
        "Clouddriver has to let go of it; then its agents drop it, and it {then}. It waits at most for \
         kubesvc.clouddriver.push.removalWaitSeconds (60 s)."
    ))
    .command("To stop waiting for Clouddriver:", facts.plugin("retry"))
}

fn others_finalizers(facts: &AccountFacts<'_>) -> WaitExplanation {
    let left: Vec<_> = facts.account.metadata.finalizers.iter().flatten().map(String::as_str).collect();
    if left.is_empty() {
        return WaitExplanation::waits("Nothing of kubesvc: the API server is removing it.");
    }
    WaitExplanation::waits(format!(
        "kubesvc is done with it. The API server removes it when these finalizers of others are gone: {}.",
        listed(&left)
    ))
    .command("See who set them.", facts.kubectl("get", "-o yaml --show-managed-fields"))
}

fn force(facts: &AccountFacts<'_>, mut verdict: WaitExplanation) -> WaitExplanation {
    if facts.status.state() == State::DeleteFailed {
        verdict.waits_for =
            format!("An agent could not let go of it, or says nothing. {}", verdict.waits_for);
    }
    verdict.command(
        "To stop waiting for the agents, whatever they hold:",
        facts.kubectl("annotate", &format!("{FORCE_DELETE_ANNOTATION}=true")),
    )
}
