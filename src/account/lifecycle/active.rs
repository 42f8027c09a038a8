//! The way to ACTIVE, and staying there.

use super::observation::{Context, Fact, Identity, SessionFact, Tick, Word, earlier, silence};
use super::retry::waits_for_agents;
use super::write::{Draft, retry_after_failure};
use super::{Action, Decision};
use crate::account::failure::{Failure, FailureClass};
use crate::account::state::{GrantPhase, State};

/// When a FAILED account may be tried again.
pub(super) enum Due {
    /// Now.
    Now,
    /// At this tick, unless something changes before.
    At(Tick),
    /// Only when something changes.
    OnChange,
}

/// When this FAILED or DELETE_FAILED account may be tried again.
pub(super) fn due(context: &Context<'_>) -> Due {
    let observation = context.observation;
    let judged_otherwise = observation.credential_changed && context.status.phase() != GrantPhase::Revoking;
    let class = context.failure_class().unwrap_or(FailureClass::Internal);
    let rival_is_gone = class == FailureClass::DuplicateName && observation.rival.is_none();
    if context.starts_anew() || judged_otherwise || rival_is_gone {
        return Due::Now;
    }
    match retry_after_failure(context, class, context.status.failed_count).after {
        None => Due::OnChange,
        Some(after) => {
            let at = observation.in_state_since.saturating_add(after);
            if at <= observation.now { Due::Now } else { Due::At(at) }
        }
    }
}

/// No zone has the grant, and the account is to be ACTIVE: find a zone and open the grant.
pub(super) fn open(context: &Context<'_>) -> Decision {
    let zone = choose_zone(context);
    if let Some(wait) = not_yet(context, &zone) {
        return wait;
    }
    match (&context.observation.credential, zone) {
        (Fact::Unknown, _) => await_credential(context),
        (Fact::Known(Err(failure)), _) => Draft::failed(context, failure).into(),
        (Fact::Known(Ok(_)), Ok(zone)) => Draft::open(context, &zone).into(),
        (Fact::Known(Ok(_)), Err(failure)) => match grace_of_leadership(context) {
            Some(until) => Decision::wait_until(until),
            None => Draft::failed(context, &failure).into(),
        },
    }
}

/// Why a FAILED account without a grant is not tried now.
fn not_yet(context: &Context<'_>, zone: &Result<String, Failure>) -> Option<Decision> {
    if context.state() != State::Failed {
        return None;
    }
    if context.failure_class().is_some_and(waits_for_agents) {
        let said = zone.as_ref().is_err_and(|failure| context.fails_already_with(failure));
        return said.then(Decision::nothing);
    }
    // Without a grant no agent was asked: it was the credential that failed, and it has healed.
    if matches!(context.observation.credential, Fact::Known(Ok(_))) {
        return None;
    }
    match due(context) {
        Due::Now => None,
        Due::At(tick) => Some(Decision::wait_until(tick)),
        Due::OnChange => Some(Decision::nothing()),
    }
}

/// A zone has the grant, and the account is to be ACTIVE: see that it is.
pub(super) fn keep(context: &Context<'_>) -> Decision {
    let zone = context.status.granted_zone().unwrap_or_default();
    if let Some(wanted) = context.zone_awaited()
        && context.connected(wanted).next().is_some()
    {
        let why = format!("leaves zone {zone} for zone {wanted}");
        return Draft::to(context, State::Activating).forgiven().revoking().saying(why).into();
    }
    let words = Words::of(context, zone);
    if context.state() == State::Failed {
        return retry(context, zone, &words);
    }
    let recovers_later = context.state() == State::Orphaned && words.connected == 0;
    if !recovers_later && (context.definition_is_new() || context.credential_is_new()) {
        return reopen(context, zone);
    }
    if let Fact::Known(Err(failure)) = &context.observation.credential {
        return Draft::failed(context, failure).into();
    }
    weigh(context, zone, &words)
}

/// What the agents of the zone say.
fn weigh(context: &Context<'_>, zone: &str, words: &Words<'_>) -> Decision {
    let unseen = context.generation_is_new() || context.retry_asked().is_some();
    match words.held {
        Some(_) if context.state() == State::Active && !unseen => return Decision::nothing(),
        Some(identity) => return Draft::held(context, identity).into(),
        None if unseen => return Draft::acknowledged(context).into(),
        None => {}
    }
    if words.connected == 0 {
        return deserted(context, zone);
    }
    let may_return = match context.state() {
        State::Active | State::Orphaned => context.zone_may_return_until(zone),
        _ => None,
    };
    match (&words.verdict, may_return) {
        (Verdict::Open(wake), _) => Decision { action: None, wake: *wake },
        (Verdict::AllFailed(_), Some(until)) => Decision::wait_until(until),
        (Verdict::AllFailed(failure), None) => Draft::failed(context, failure).into(),
    }
}

/// FAILED under an open grant: an agent that holds it after all heals it, unless the credential is refused; else it is
/// tried again when it is due.
fn retry(context: &Context<'_>, zone: &str, words: &Words<'_>) -> Decision {
    let waits = context.failure_class().is_some_and(waits_for_agents);
    let changed = context.definition_is_new() || context.credential_is_new();
    if let Some(identity) = words.held.filter(|_| !changed) {
        match &context.observation.credential {
            Fact::Unknown => return Action::ResolveCredential.into(),
            Fact::Known(Ok(_)) => return Draft::held(context, identity).into(),
            Fact::Known(Err(_)) => {}
        }
    }
    match due(context) {
        Due::Now => try_again(context, zone, words),
        _ if waits => try_again(context, zone, words),
        _ if context.generation_is_new() => Draft::acknowledged(context).into(),
        Due::At(tick) => Decision::wait_until(tick),
        Due::OnChange => Decision::nothing(),
    }
}

/// Opens the grant anew, or says that nobody is there to take the account.
fn try_again(context: &Context<'_>, zone: &str, words: &Words<'_>) -> Decision {
    if words.connected > 0 {
        return reopen(context, zone);
    }
    let failure = no_agent_in(zone);
    if context.fails_already_with(&failure) {
        return Decision::nothing();
    }
    match context.zone_may_return_until(zone).or(grace_of_leadership(context)) {
        Some(until) => Decision::wait_until(until),
        None => Draft::failed(context, &failure).into(),
    }
}

/// Every agent of the zone is away: wait for the grace, then say so.
fn deserted(context: &Context<'_>, zone: &str) -> Decision {
    if let Some(until) = context.zone_may_return_until(zone).or(grace_of_leadership(context)) {
        return Decision::wait_until(until);
    }
    match context.state() {
        State::Active => Draft::to(context, State::Orphaned).into(),
        State::Orphaned => Decision::nothing(),
        _ => Draft::failed(context, &no_agent_in(zone)).into(),
    }
}

/// Opens the grant anew in the same zone, under a new epoch; the old definition serves until the new one stands.
fn reopen(context: &Context<'_>, zone: &str) -> Decision {
    match &context.observation.credential {
        Fact::Unknown => Action::ResolveCredential.into(),
        Fact::Known(Err(failure)) => Draft::failed(context, failure).into(),
        Fact::Known(Ok(_)) => Draft::open(context, zone).into(),
    }
}

fn await_credential(context: &Context<'_>) -> Decision {
    if context.observation.credential_slow && context.state() == State::Inactive {
        Draft::to(context, State::ToMigrate).into()
    } else {
        Action::ResolveCredential.into()
    }
}

/// The pinned zone, else the one it was in, else the only one with agents.
fn choose_zone(context: &Context<'_>) -> Result<String, Failure> {
    if let Some(pinned) = context.observation.account.spec.zone_id.as_deref() {
        let connected = context.connected(pinned).next().is_some();
        return if connected { Ok(pinned.to_owned()) } else { Err(no_agent_in(pinned)) };
    }
    let zones = context.connected_zones();
    if let Some(before) = context.status.zone_id.as_deref().filter(|zone| zones.contains(zone)) {
        return Ok(before.to_owned());
    }
    let mut names = zones.iter();
    match (names.next(), names.next()) {
        (None, _) => Err(Failure::new(
            FailureClass::NoAgent,
            "no agent connected; start one, or see why none can connect",
        )),
        (Some(only), None) => Ok((*only).to_owned()),
        _ => {
            let listed = zones.into_iter().collect::<Vec<_>>().join(", ");
            let message =
                format!("agents of several zones are connected ({listed}); set spec.zoneId to one of them");
            Err(Failure::new(FailureClass::ZoneAmbiguous, message))
        }
    }
}

fn no_agent_in(zone: &str) -> Failure {
    Failure::new(FailureClass::NoAgent, format!("no agent connected for zone {zone}"))
}

/// A leader that has just begun has not seen the agents yet.
fn grace_of_leadership(context: &Context<'_>) -> Option<Tick> {
    let until = context.observation.leading_since.saturating_add(context.observation.policy.orphan_grace);
    (until > context.observation.now).then_some(until)
}

/// What the connected sessions of a zone say about the account, taken together.
struct Words<'a> {
    connected: usize,
    held: Option<&'a Identity>,
    verdict: Verdict,
}

enum Verdict {
    /// Someone is still to answer, and will count as silent at this tick.
    Open(Option<Tick>),
    /// Everyone failed or is silent; this is the most telling reason.
    AllFailed(Failure),
}

impl<'a> Words<'a> {
    fn of(context: &Context<'a>, zone: &str) -> Self {
        let mut words = Self { connected: 0, held: None, verdict: Verdict::Open(None) };
        let (mut pending, mut wake) = (false, None);
        let (mut said, mut silent) = (None, None);
        for session in context.connected(zone) {
            words.connected += 1;
            match word_for_epoch(context, session) {
                Some(Word::Held(identity)) => match mismatch(context, session, identity) {
                    None => words.held = words.held.or(Some(identity)),
                    Some(failure) => said = said.or(Some(failure)),
                },
                Some(Word::Failed(failure)) => said = said.or_else(|| Some(failure.clone())),
                _ if context.is_silent(session) => {
                    silent = silent.or_else(|| Some(silence(session)));
                }
                _ => {
                    pending = true;
                    wake = earlier(wake, context.silent_at(session));
                }
            }
        }
        if let (false, Some(failure)) = (pending, said.or(silent)) {
            words.verdict = Verdict::AllFailed(failure);
        } else {
            words.verdict = Verdict::Open(wake);
        }
        words
    }
}

fn word_for_epoch<'a>(context: &Context<'_>, session: &'a SessionFact) -> Option<&'a Word> {
    let (epoch, word) = session.word.as_ref()?;
    (*epoch == context.status.epoch).then_some(word)
}

/// Whether the agent reached another cluster than the account is bound to. Certificates rotate: where a uid cannot be
/// read, host and fingerprint must both be known and both differ.
fn mismatch(context: &Context<'_>, session: &SessionFact, reached: &Identity) -> Option<Failure> {
    let status = &context.status;
    let differs = |bound: &Option<String>, reached: &str| {
        bound
            .as_deref()
            .filter(|bound| !bound.is_empty() && !reached.is_empty())
            .map(|bound| bound != reached)
    };
    let other_cluster = differs(&status.cluster_uid, &reached.cluster_uid).unwrap_or_else(|| {
        differs(&status.kube_host, &reached.host) == Some(true)
            && differs(&status.cert_fingerprint, &reached.cert_fingerprint) == Some(true)
    });
    other_cluster.then(|| {
        let bound = status.kube_host.as_deref().or(status.cluster_uid.as_deref()).unwrap_or_default();
        let message = format!(
            "agent {} reached {}, another cluster than {bound}, which the account is bound to; \
             correct the kubeconfig, or set spec.state to INACTIVE once to unbind the account",
            session.agent_id, reached.host
        );
        Failure::new(FailureClass::ClusterMismatch, message)
    })
}
