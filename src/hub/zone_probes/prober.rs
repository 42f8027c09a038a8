//! The prober of one session: looks up targets, sends probes to the agent and records its answers.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use secrecy::ExposeSecret;

use crate::hub::sessions::duties::SessionView;
use crate::hub::sessions::ledger::HubUptime;
use crate::hub::sessions::session::Session;
use crate::hub::sessions::session::frame_queue::FrameQueue;
use crate::hub::sessions::session::session_loop::detached;
use crate::hub::sessions::wire_conversion;
use crate::hub::zone_probes::ZoneProbes;
use crate::hub::zone_probes::probe::{ProbeRound, ProbeStep};
use crate::hub::zone_probes::{OfferChange, SharedTarget};
use crate::secrets::{Credential, CredentialKind};
use kubesvc_core::failure::{Failure, FailureClass};
use kubesvc_core::lifecycle::Offer;
use kubesvc_core::wire::ops::hub_frame::Frame;
use kubesvc_core::wire::ops::probe::Target;
use kubesvc_core::wire::{common, ops};
use kubesvc_core::{GrantEpoch, KubesvcAccount, kubeconfig};

/// Maximum number of concurrent target lookups of one session.
const MAX_TARGET_LOOKUPS: usize = 16;
/// Time limit for reading a credential.
const CREDENTIAL_TIMEOUT: Duration = Duration::from_secs(30);

/// A probe whose target was looked up, or could not be.
struct PreparedProbe {
    uid: String,
    round: ProbeRound,
    target: Option<Target>,
}

pub(crate) struct ZoneProber {
    probes: Arc<ZoneProbes>,
    session: Arc<Session>,
    looking_up: FuturesUnordered<BoxFuture<'static, PreparedProbe>>,
    ready: VecDeque<(ProbeRound, ops::Probe)>,
}

impl ZoneProber {
    pub(crate) fn new(probes: Arc<ZoneProbes>, session: Arc<Session>) -> Self {
        Self { probes, session, looking_up: FuturesUnordered::new(), ready: VecDeque::new() }
    }

    /// Checks an account. Returns the time of the next check.
    pub(crate) fn check(&mut self, view: SessionView<'_>, uid: &str) -> Option<HubUptime> {
        let account = self.probes.context.accounts.by_uid(uid);
        self.forget_what_was_closed(uid, account.as_deref());
        let step =
            self.session.zone_probes.lock().step(view, uid, account.as_deref(), self.probes.context.moment());
        match step {
            ProbeStep::Nothing => None,
            ProbeStep::Later(at) => Some(at),
            ProbeStep::Send(round) => {
                let had_offered = {
                    let mut probes = self.session.zone_probes.lock();
                    let had_offered = probes.has_offered(uid);
                    probes.queue(uid, round);
                    had_offered
                };
                if had_offered {
                    // The offer of the previous round is withdrawn from the outbox.
                    self.probes.offer_changed(&self.session, uid, OfferChange::default());
                }
                None
            }
            ProbeStep::Forget => {
                self.session.zone_probes.lock().forget(uid);
                self.probes.withdraw(&self.session, uid);
                None
            }
        }
    }

    /// Forgets an answer if probing ended and started again before this check: the answer went with the first round.
    fn forget_what_was_closed(&self, uid: &str, account: Option<&KubesvcAccount>) {
        let Some(round) = account.and_then(ProbeRound::of) else { return };
        let mut probes = self.session.zone_probes.lock();
        let known = self.probes.offers.lock().of(uid, round, &self.session.agent.zone, self.session.serial);
        if known.is_none() && probes.offers(uid, round) {
            probes.forget(uid);
            self.probes.offer_changed(&self.session, uid, OfferChange::default());
        }
    }

    /// Starts the queued probes whose turn has come.
    pub(crate) fn begin(&mut self) {
        while self.looking_up.len() + self.ready.len() < MAX_TARGET_LOOKUPS {
            let Some((uid, round)) = self.session.zone_probes.lock().next() else { return };
            let target = self.probes.offers.lock().ask(&uid, round, self.session.serial);
            self.looking_up.push(detached(prepare(Arc::clone(&self.probes), uid, round, target)).boxed());
        }
    }

    pub(crate) fn is_looking_up(&self) -> bool {
        !self.looking_up.is_empty()
    }

    /// Waits for a target. Returns the account to check again, and when.
    pub(crate) async fn target_ready(&mut self) -> Option<(HubUptime, String)> {
        let PreparedProbe { uid, round, target } = self.looking_up.next().await?;
        let Some(target) = target else {
            let at = self.session.zone_probes.lock().not_sent(&uid, round, self.probes.context.moment());
            self.begin();
            return at.map(|at| (at, uid));
        };
        let account = self.probes.context.accounts.by_uid(&uid);
        if let Some(account) = account.filter(|account| ProbeRound::of(account) == Some(round)) {
            let account =
                wire_conversion::account_ref(&uid, account.account_name(), round.epoch, round.generation);
            self.ready.push_back((round, ops::Probe { account: Some(account), target: Some(target) }));
        } else {
            self.session.wakes.wake(uid);
        }
        self.begin();
        None
    }

    /// Sends ready probes, as far as the queue has capacity.
    pub(crate) fn flush(&mut self, frames: &mut FrameQueue) {
        while frames.has_capacity()
            && let Some((round, probe)) = self.ready.pop_front()
        {
            let uid = probe.account.as_ref().map(|account| account.uid.as_str()).unwrap_or_default();
            if self.session.zone_probes.lock().send(uid, round) {
                self.probes.context.metrics.probes.inc();
                frames.push(Frame::Probe(probe));
            }
        }
        self.begin();
    }

    /// Records an answer. Returns the account to ask again, and when.
    ///
    /// # Errors
    /// The reason, for the metrics, why the answer is ignored: never asked, or late.
    pub(crate) fn record_answer(
        &mut self,
        result: ops::ProbeResult,
    ) -> Result<Option<(HubUptime, String)>, (&'static str, String)> {
        let account = result.account.and_then(probed_account).ok_or(("malformed_answer", String::new()))?;
        let (uid, epoch, generation) = account;
        let now = self.probes.context.moment();
        let answered = self.session.zone_probes.lock().answer(&uid, generation, epoch, result.ok, now);
        let Some(round) = answered else { return Err(("never_asked", uid)) };
        let current = self.probes.context.accounts.by_uid(&uid).and_then(|account| ProbeRound::of(&account));
        if current != Some(round) {
            self.session.wakes.wake(uid.clone());
            return Err(("late", uid));
        }
        let offer = if result.ok { Offer::Yes } else { Offer::No(reason(result.failure.as_ref())) };
        let (zone, serial) = (&self.session.agent.zone, self.session.serial);
        let changed = self.probes.offers.lock().answer(&uid, round, zone, serial, offer);
        self.probes.offer_changed(&self.session, &uid, changed);
        let again = self.session.zone_probes.lock().again_at(&uid);
        self.begin();
        Ok(again.map(|at| (at, uid)))
    }
}

/// Returns uid, epoch and generation of an answer.
fn probed_account(account: common::AccountRef) -> Option<(String, GrantEpoch, i64)> {
    let generation = i64::try_from(account.generation).ok()?;
    let (uid, epoch) = wire_conversion::reference(account)?;
    Some((uid, epoch, generation))
}

fn reason(failure: Option<&common::Failure>) -> Failure {
    failure.map_or_else(
        || Failure::new(FailureClass::Unreachable, "the agent cannot reach the account and gave no reason"),
        wire_conversion::read_failure,
    )
}

async fn prepare(
    probes: Arc<ZoneProbes>,
    uid: String,
    round: ProbeRound,
    target: SharedTarget,
) -> PreparedProbe {
    // Shared by all sessions: the first one reads the credential, the others wait for it.
    let target = target.get_or_try_init(|| resolve_target(&probes, &uid, round)).await.ok().cloned();
    PreparedProbe { uid, round, target }
}

/// Looks up the target of a probe. Fails if the account is not probed any more, or its credential cannot be read; the
/// leader finds and reports the latter by itself.
async fn resolve_target(probes: &ZoneProbes, uid: &str, round: ProbeRound) -> Result<Target, ()> {
    let _permit = probes.credentials.permit().await;
    let account = probes
        .context
        .accounts
        .by_uid(uid)
        .filter(|account| ProbeRound::of(account) == Some(round))
        .ok_or(())?;
    let reading = probes.credentials.resolve(&account, false);
    let credential = tokio::time::timeout(CREDENTIAL_TIMEOUT, reading).await.map_err(drop)?.map_err(drop)?;
    target(&credential).ok_or(())
}

/// Returns the address of the account, without credentials.
fn target(credential: &Credential) -> Option<Target> {
    Some(match &credential.kind {
        CredentialKind::File(path) => Target::File(path.clone()),
        CredentialKind::ServiceAccount => Target::ServiceAccount(true),
        CredentialKind::Kubeconfig(bytes) => {
            let vetted = kubeconfig::vet(bytes.expose_secret(), None).ok()?;
            Target::Cluster(ops::ProbedCluster {
                server: vetted.server.to_string(),
                certificate_authority: vetted.certificate_authority.unwrap_or_default(),
                tls_server_name: vetted.tls_server_name.unwrap_or_default(),
                insecure: vetted.insecure_skip_tls_verify,
            })
        }
    })
}
