//! The way to ACTIVE, and staying there.

use super::observation::{Context, Fact, Identity, SessionFact, Tick, Word, earlier, silence};
use super::write::{StatusWrite, retry_after_failure};
use super::{Action, Decision};
use crate::account::failure::{Failure, FailureClass};
use crate::account::state::State;

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
    if context.retry_asked().is_some() || context.generation_is_new() || observation.credential_changed {
        return Due::Now;
    }
    let class = context.failure_class().unwrap_or(FailureClass::Internal);
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
    if context.state() == State::Failed {
        let waits_for_agents =
            matches!(context.failure_class(), Some(FailureClass::NoAgent | FailureClass::ZoneAmbiguous));
        match (&zone, due(context)) {
            (Err(failure), _) if waits_for_agents && context.fails_already_with(failure) => {
                return Decision::nothing();
            }
            (_, Due::Now) => {}
            _ if waits_for_agents => {}
            (_, Due::At(tick)) => return Decision::wait_until(tick),
            (_, Due::OnChange) => return Decision::nothing(),
        }
    }
    match (&context.observation.credential, zone) {
        (Fact::Unknown, _) => await_credential(context),
        (Fact::Known(Err(failure)), _) => StatusWrite::failed(context, failure).into(),
        (Fact::Known(Ok(_)), Ok(zone)) => StatusWrite::open(context, &zone).into(),
        (Fact::Known(Ok(_)), Err(failure)) => match grace_of_leadership(context) {
            Some(until) => Decision::wait_until(until),
            None => StatusWrite::failed(context, &failure).into(),
        },
    }
}

/// A zone has the grant, and the account is to be ACTIVE: see that it is.
pub(super) fn keep(context: &Context<'_>) -> Decision {
    let zone = context.status.granted_zone().unwrap_or_default();
    let pinned = context.observation.account.spec.zone_id.as_deref();
    if let Some(wanted) = pinned.filter(|wanted| *wanted != zone) {
        if context.connected(wanted).next().is_some() {
            return StatusWrite::to(context, State::Activating).revoking().into();
        }
        if context.generation_is_new() {
            return StatusWrite::awaiting_zone(context, wanted).into();
        }
    } else if definition_is_new(context) {
        if context.state() != State::Failed || matches!(due(context), Due::Now) {
            return reopen(context, zone);
        }
    } else if context.generation_is_new() && context.state() != State::Failed {
        return StatusWrite::acknowledged(context).into();
    }
    match &context.observation.credential {
        Fact::Known(Ok(credential)) if credential.version != context.status.credential_version => {
            reopen(context, zone)
        }
        Fact::Known(Err(failure)) if context.state() != State::Failed => {
            StatusWrite::failed(context, failure).into()
        }
        _ => weigh(context, zone),
    }
}

/// What the agents of the zone say.
fn weigh(context: &Context<'_>, zone: &str) -> Decision {
    let words = Words::of(context, zone);
    let failed = context.state() == State::Failed;
    if let Some(identity) = words.held
        && !(failed && fails_by_its_credential(context))
    {
        let settled = context.state() == State::Active
            && context.retry_asked().is_none()
            && !context.generation_is_new();
        return if settled { Decision::nothing() } else { StatusWrite::held(context, identity).into() };
    }
    if failed {
        return retry(context, zone, words.connected);
    }
    if context.retry_asked().is_some() {
        return StatusWrite::acknowledged(context).into();
    }
    if words.connected == 0 {
        return deserted(context, zone);
    }
    let may_return = match context.state() {
        State::Active | State::Orphaned => context.zone_may_return_until(zone),
        _ => None,
    };
    match (words.verdict, may_return) {
        (Verdict::Open(wake), _) => Decision { action: None, wake },
        (Verdict::AllFailed(_), Some(until)) => Decision::wait_until(until),
        (Verdict::AllFailed(failure), None) => StatusWrite::failed(context, &failure).into(),
    }
}

/// FAILED under an open grant: try again when it is due.
fn retry(context: &Context<'_>, zone: &str, connected: usize) -> Decision {
    let no_agent = context.failure_class() == Some(FailureClass::NoAgent);
    if connected == 0 {
        let failure = no_agent_in(zone);
        let wait = context.zone_may_return_until(zone).or(grace_of_leadership(context));
        return match wait {
            Some(until) => Decision::wait_until(until),
            None if no_agent && context.fails_already_with(&failure) => Decision::nothing(),
            None => StatusWrite::failed(context, &failure).into(),
        };
    }
    match due(context) {
        Due::Now => reopen(context, zone),
        _ if no_agent => reopen(context, zone),
        Due::At(tick) => Decision::wait_until(tick),
        Due::OnChange => Decision::nothing(),
    }
}

/// Every agent of the zone is away: wait for the grace, then say so.
fn deserted(context: &Context<'_>, zone: &str) -> Decision {
    if let Some(until) = context.zone_may_return_until(zone).or(grace_of_leadership(context)) {
        return Decision::wait_until(until);
    }
    match context.state() {
        State::Active => StatusWrite::to(context, State::Orphaned).into(),
        State::Orphaned => Decision::nothing(),
        _ => StatusWrite::failed(context, &no_agent_in(zone)).into(),
    }
}

/// Opens the grant anew in the same zone, under a new epoch; the old definition serves until the new one stands.
fn reopen(context: &Context<'_>, zone: &str) -> Decision {
    match &context.observation.credential {
        Fact::Unknown => Action::ResolveCredential.into(),
        Fact::Known(Err(failure)) => StatusWrite::failed(context, failure).into(),
        Fact::Known(Ok(credential)) => {
            let write = StatusWrite::open(context, zone);
            let changed = definition_is_new(context)
                || credential.version != context.status.credential_version
                || context.observation.credential_changed;
            if changed { write.forgiven().into() } else { write.into() }
        }
    }
}

fn await_credential(context: &Context<'_>) -> Decision {
    if context.observation.credential_slow && context.state() == State::Inactive {
        StatusWrite::to(context, State::ToMigrate).into()
    } else {
        Action::ResolveCredential.into()
    }
}

fn definition_is_new(context: &Context<'_>) -> bool {
    let granted = context.status.grant.as_ref().and_then(|grant| grant.definition.as_deref());
    granted != Some(context.definition.as_str())
}

/// The failure was the credential's own: that an agent still holds the old one does not heal it.
fn fails_by_its_credential(context: &Context<'_>) -> bool {
    use FailureClass::{BadKubeconfig, BadReference, ClusterMismatch, CredentialMissing, ExecForbidden};
    matches!(
        context.failure_class(),
        Some(BadKubeconfig | BadReference | ClusterMismatch | CredentialMissing | ExecForbidden)
    )
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
                _ if context.silent_at(session).is_some_and(|at| at <= context.observation.now) => {
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
/// read, host and fingerprint must both differ.
fn mismatch(context: &Context<'_>, session: &SessionFact, reached: &Identity) -> Option<Failure> {
    let bound_host = context.status.kube_host.as_deref()?;
    let differs = match context.status.cluster_uid.as_deref() {
        Some(bound) if !reached.cluster_uid.is_empty() => bound != reached.cluster_uid,
        _ => {
            let bound_fingerprint = context.status.cert_fingerprint.as_deref().unwrap_or_default();
            bound_host != reached.host && bound_fingerprint != reached.cert_fingerprint
        }
    };
    differs.then(|| {
        let message = format!(
            "agent {} reached {}, another cluster than {bound_host}, which the account is bound to; \
             correct the kubeconfig, or set spec.state to INACTIVE once to unbind the account",
            session.agent_id, reached.host
        );
        Failure::new(FailureClass::ClusterMismatch, message)
    })
}
