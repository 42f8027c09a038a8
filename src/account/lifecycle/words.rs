//! What the agents of a zone say about the account.

use super::cluster_identity::mismatch;
use super::context::{Context, earlier, silence};
use super::observation::{Identity, SessionFact, Tick, Word};
use crate::account::KubesvcAccount;
use crate::account::failure::Failure;

/// What the connected sessions of a zone say about the account, taken together.
pub(super) struct Words<'a> {
    /// How many are connected.
    pub(super) connected: usize,
    /// The cluster that one of them holds it in, which is the one the account is bound to.
    pub(super) held: Option<&'a Identity>,
    /// Whether there is hope.
    pub(super) verdict: Verdict,
    /// Whether each of them failed, and for a reason that agents of another zone may not have.
    pub(super) all_failed_by_place: bool,
}

/// What follows from the words of all.
pub(super) enum Verdict {
    /// Someone is still to answer, and will count as silent at this tick.
    Open(Option<Tick>),
    /// Everyone failed or is silent; this is the most telling reason.
    AllFailed(Failure),
}

impl<'a> Words<'a> {
    /// What they say for the epoch of the status.
    pub(super) fn of(context: &Context<'a>, zone: &str) -> Self {
        let verdict = Verdict::Open(None);
        let mut words = Self { connected: 0, held: None, verdict, all_failed_by_place: true };
        let (mut pending, mut wake) = (false, None);
        let (mut said, mut silent) = (None, None);
        for session in context.connected(zone) {
            words.connected += 1;
            let word = word_for_epoch(context, session);
            words.all_failed_by_place &=
                matches!(word, Some(Word::Failed(failure)) if failure.class.is_of_place());
            match word {
                Some(Word::Held(identity)) => match mismatch(&context.status, &session.agent_id, identity) {
                    None => words.held = words.held.or(Some(identity)),
                    Some(failure) => said = said.or(Some(failure)),
                },
                Some(Word::Failed(failure)) => said = said.or_else(|| Some(failure.clone())),
                _ if context.is_silent(session) => {
                    silent = silent.or_else(|| Some(silence(&session.agent_id)));
                }
                _ => {
                    pending = true;
                    wake = earlier(wake, context.silent_at(session));
                    wake = earlier(wake, context.lists_until(session));
                }
            }
        }
        if let (false, Some(failure)) = (pending, said.or(silent)) {
            words.verdict = Verdict::AllFailed(failure);
        } else {
            words.verdict = Verdict::Open(wake);
        }
        words.all_failed_by_place &= words.connected > 0;
        words
    }
}

/// Whether an agent that runs in this cluster is none for the account: it asks for the cluster that its agents are in, and
/// is bound to another one. `own` is empty where it is not known.
pub fn runs_in_another_cluster(account: &KubesvcAccount, own: &str) -> bool {
    let status = account.status_or_default();
    let bound = status.cluster_uid.as_deref().filter(|bound| !bound.is_empty());
    account.spec.agent_source().service_account == Some(true)
        && !own.is_empty()
        && bound.is_some_and(|bound| bound != own)
}

fn word_for_epoch<'a>(context: &Context<'_>, session: &'a SessionFact) -> Option<&'a Word> {
    let (epoch, word) = session.word.as_ref()?;
    (*epoch == context.status.epoch).then_some(word)
}
