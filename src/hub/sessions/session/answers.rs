//! Handling of the agent's frames: records its reports in the ledger.

use std::ops::ControlFlow;

use tonic::Status;
use tracing::{debug, warn};

use crate::account::KubesvcAccount;
use crate::account::lifecycle::{AgentReport, is_another_cluster};
use crate::hub::sessions::events::SessionEvent;
use crate::hub::sessions::ledger::AnswerEffect;
use crate::hub::sessions::session::session_loop::{LoopEnd, SessionLoop};
use crate::hub::sessions::wire_conversion::{self, AccountAnswer};
use crate::wire::ops::{self, agent_frame};

impl SessionLoop {
    /// Handles a frame of the agent, or the end of its stream.
    pub(super) fn handle_frame(
        &mut self,
        frame: Option<Result<ops::AgentFrame, Status>>,
    ) -> ControlFlow<LoopEnd> {
        let frame = match frame {
            None => return ControlFlow::Break(LoopEnd::Gone("the agent closed the stream")),
            Some(Err(status)) => {
                debug!(agentId = self.session.agent.id, code = ?status.code(), "stream of agent failed");
                return ControlFlow::Break(match status.code() {
                    tonic::Code::Cancelled | tonic::Code::Unknown | tonic::Code::Unavailable => {
                        LoopEnd::Gone("the connection broke")
                    }
                    code => LoopEnd::Cut(
                        "a frame was malformed or too large",
                        Status::new(code, status.message()),
                    ),
                });
            }
            Some(Ok(frame)) => frame,
        };
        self.parts.context.metrics.frames_in.inc();
        self.ack = self.ack.max(frame.seq);
        self.session.frame(self.parts.context.ticks.now());
        let of_accounts = matches!(
            frame.frame,
            Some(
                agent_frame::Frame::AccountResults(_)
                    | agent_frame::Frame::Lost(_)
                    | agent_frame::Frame::Working(_)
                    | agent_frame::Frame::StaticAccounts(_)
                    | agent_frame::Frame::ProbeResult(_)
            )
        );
        if of_accounts && !self.session.was_approved() {
            self.parts.context.metrics.ignore("never_approved");
            self.session.ignore_claims();
            return ControlFlow::Continue(());
        }
        match frame.frame {
            Some(agent_frame::Frame::AccountResults(results)) => {
                for result in results.results {
                    self.record_answer(wire_conversion::answer(result));
                }
            }
            Some(agent_frame::Frame::Lost(lost)) => self.record_answer(wire_conversion::loss(lost)),
            Some(agent_frame::Frame::Working(working)) => self.working(working),
            Some(agent_frame::Frame::Heartbeat(_)) => {}
            Some(agent_frame::Frame::Draining(_)) => {
                self.accounts.agent_drains();
                // A draining agent is not probed.
                self.session.wakes.wake_all(self.session.zone_probes.lock().uids());
            }
            Some(agent_frame::Frame::Goodbye(_)) => {
                self.session.said_goodbye();
                return ControlFlow::Break(LoopEnd::Gone("the agent said goodbye"));
            }
            Some(agent_frame::Frame::Hello(_)) => {
                self.parts.context.metrics.ignore("second_hello");
                warn!(agentId = self.session.agent.id, "a second hello on the same stream is ignored");
            }
            Some(agent_frame::Frame::StaticAccounts(list)) => self.static_accounts.take_in(list),
            Some(agent_frame::Frame::ProbeResult(result)) => match self.prober.record_answer(result) {
                Ok(again) => self.accounts.check_later(again),
                Err(("late", _)) => self.parts.context.metrics.ignore("late"),
                Err((reason, uid)) => self.count_ignored(reason, &uid),
            },
            // A frame of a later protocol version.
            None => self.parts.context.metrics.ignore("unknown_frame"),
        }
        ControlFlow::Continue(())
    }

    fn working(&mut self, working: ops::Working) {
        let Some((uid, _)) = working.account.and_then(wire_conversion::reference) else {
            return self.parts.context.metrics.ignore("malformed_answer");
        };
        self.session.ledger.lock().working(&uid, self.parts.context.ticks.now());
    }

    fn record_answer(&mut self, answer: Option<AccountAnswer>) {
        let Some(answer) = answer else { return self.count_ignored("malformed_answer", "") };
        let AccountAnswer { uid, epoch, report: word, of_drop, namespaces } = answer;
        let mut tells_namespaces = false;
        if let AgentReport::Held(reached) = &word {
            let account = self.parts.context.accounts.by_uid(&uid);
            let status = account.as_deref().map(KubesvcAccount::status_or_default);
            let zone = Some(self.session.agent.zone.as_str());
            let Some(status) = status.filter(|status| status.granted_zone() == zone) else {
                return self.count_ignored("no_grant", &uid);
            };
            // Without namespaces in the report, only their number is known.
            tells_namespaces = !is_another_cluster(&status, reached)
                && (reached.namespaces_count == 0 || !namespaces.is_empty());
        }
        let (heard, freed) = {
            let mut ledger = self.session.ledger.lock();
            let heard = ledger.record_answer(&uid, epoch, word, of_drop, self.parts.context.moment());
            let name = ledger.entry(&uid).map(|entry| entry.name.clone());
            (heard, name.map(|name| ledger.freed(&name)).unwrap_or_default())
        };
        match heard {
            AnswerEffect::Taken => {
                if tells_namespaces {
                    self.parts.tables.tell_namespaces(&uid, namespaces);
                }
                self.session.wakes.wake_all(freed);
                self.session.wakes.wake(uid.clone());
                self.parts.sessions.publish(&self.session, SessionEvent::AnswerChanged(&uid));
            }
            AnswerEffect::Late => self.parts.context.metrics.ignore("late"),
            AnswerEffect::NeverSent => self.count_ignored("never_sent", &uid),
            AnswerEffect::Future => self.count_ignored("future_epoch", &uid),
        }
    }

    fn count_ignored(&self, reason: &'static str, uid: &str) {
        self.parts.context.metrics.ignore(reason);
        if self.parts.context.may_log(reason, self.session.agent.peer) {
            let uid: String = uid.chars().take(64).filter(|c| !c.is_control()).collect();
            warn!(agentId = self.session.agent.id, reason, uid, "an answer of the agent is ignored");
        }
    }
}
