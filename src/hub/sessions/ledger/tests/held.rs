//! What an agent holds while a later definition of the account fails: the ledger at one end, the agent's own table at the
//! other, in arbitrary orders.

use std::collections::VecDeque;

use jiff::Timestamp;
use proptest::prelude::*;

use super::*;
use crate::hub::sessions::wire_conversion;
use kubesvc_agent::{AccountTable, ActivatedAccount, Attempt, Definition, Effect};
use kubesvc_core::wire::common::{AccountRef, failure::Class};
use kubesvc_core::wire::ops::{self, AccountResult, AccountSpec, HeldAccount};

fn held_epoch(ledger: &Ledger) -> Option<i64> {
    ledger.entry("u").and_then(|entry| entry.held.as_ref()).map(|held| held.epoch.0)
}

/// A ledger whose agent holds epoch 3.
fn holding() -> Ledger {
    let mut ledger = sent(3);
    ledger.record_answer("u", GrantEpoch(3), held(), false, NOW);
    ledger
}

fn send(ledger: &mut Ledger, epoch: i64) {
    ledger.prepare("u", "one", GrantEpoch(epoch), 0);
    ledger.added("u", GrantEpoch(epoch), 0);
}

#[test]
fn a_later_definition_that_fails_for_whatever_reason_leaves_the_earlier_one_held() {
    for class in FailureClass::ALL {
        let failure = Failure::new(*class, "so it is");
        let mut ledger = holding();
        for epoch in 4..7 {
            send(&mut ledger, epoch);
            assert_eq!(held_epoch(&ledger), Some(3), "{class:?}: while it starts");
            let report = AgentReport::Failed(failure.clone());
            assert_eq!(
                ledger.record_answer("u", GrantEpoch(epoch), report.clone(), false, NOW),
                AnswerEffect::Taken
            );
            assert_eq!(
                super::report(&ledger),
                Some((GrantEpoch(epoch), report)),
                "the report tells of the new one"
            );
            // An account that its identity does not allow is no failure of the agent.
            let failed = usize::from(*class != FailureClass::ZoneForbidden);
            assert_eq!((held_epoch(&ledger), ledger.counts()), (Some(3), (1, failed)), "{class:?}");
        }
        // A credential that cannot be read, or is refused, is not even sent.
        ledger.prepare("u", "one", GrantEpoch(7), 0);
        ledger.not_sent("u", GrantEpoch(7), Some(failure), NOW, Duration::from_secs(5));
        assert_eq!(held_epoch(&ledger), Some(3), "{class:?}: not sent");
        send(&mut ledger, 8);
        ledger.record_answer("u", GrantEpoch(8), held(), false, NOW);
        assert_eq!((held_epoch(&ledger), ledger.counts()), (Some(8), (1, 0)), "the new one works");
    }
}

#[test]
fn nothing_is_held_once_a_drop_is_sent_or_the_agent_lost_it() {
    let mut dropping = holding();
    dropping.dropping("u", "one", GrantEpoch(4), 0);
    assert_eq!(held_epoch(&dropping), None, "no request overtakes the drop");
    dropping.record_answer("u", GrantEpoch(3), held(), false, NOW);
    assert_eq!(held_epoch(&dropping), None, "it was said before the drop arrived");

    let mut lost = holding();
    send(&mut lost, 4);
    lost.record_answer("u", GrantEpoch(4), AgentReport::Failed(failure()), false, NOW);
    let loss = || AgentReport::Lost(failure());
    assert_eq!(lost.record_answer("u", GrantEpoch(3), loss(), false, NOW), AnswerEffect::Taken);
    assert_eq!(held_epoch(&lost), None);
    assert!(matches!(report(&lost), Some((GrantEpoch(4), AgentReport::Failed(_)))));
    assert_eq!(lost.record_answer("u", GrantEpoch(3), loss(), false, NOW), AnswerEffect::Late);

    let mut failed = holding();
    send(&mut failed, 3);
    failed.record_answer("u", GrantEpoch(3), AgentReport::Failed(failure()), false, NOW);
    assert_eq!(held_epoch(&failed), None, "it failed for the very epoch");
}

#[test]
fn an_agent_that_comes_back_is_believed_about_an_earlier_definition_only_with_its_cluster() {
    let of_hello = |cluster: &str, former: &Ledger| {
        let mut ledger = Ledger::new(0);
        ledger.seed(&[claim(3, cluster)], former);
        ledger.entry("u").and_then(|entry| entry.held.clone())
    };
    let none = Ledger::new(0);
    assert_eq!(of_hello("", &none), None, "nothing says that it is the right cluster");
    let claimed = HeldAtAgent { epoch: GrantEpoch(3), cluster_uid: "k".into(), is_claim: true };
    assert_eq!(of_hello("k", &none), Some(claimed));
    let mut former = holding();
    send(&mut former, 4);
    former.record_answer("u", GrantEpoch(4), AgentReport::Failed(failure()), false, NOW);
    assert!(of_hello("", &former).is_some_and(|held| !held.is_claim), "the former stream has told");
    former.dropping("u", "one", GrantEpoch(5), 0);
    assert_eq!(of_hello("", &former), None);
}

/// A hub and an agent with one account, and what is on its way between them.
#[derive(Default)]
struct Ends {
    ledger: Ledger,
    table: AccountTable,
    starting: Option<Attempt>,
    down: VecDeque<Result<(AccountRef, Definition), AccountRef>>,
    up: VecDeque<Result<AccountResult, ops::Lost>>,
    epoch: i64,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Add { definition: u8 },
    Drop,
    Down,
    Finish { succeeds: bool },
    Lose,
    Up,
    Reconnect { elsewhere: bool },
}

impl Ends {
    fn take(&mut self, step: Step) {
        match step {
            Step::Add { .. } if self.ledger.name_is_busy("one") => {}
            Step::Add { definition } => {
                self.epoch += 1;
                send(&mut self.ledger, self.epoch);
                let spec = AccountSpec { context: definition.to_string(), ..AccountSpec::default() };
                self.down.push_back(Ok((self.reference(), Definition::split(spec).1)));
            }
            Step::Drop => {
                self.epoch += 1;
                self.ledger.dropping("u", "one", GrantEpoch(self.epoch), 0);
                self.down.push_back(Err(self.reference()));
            }
            Step::Down => {
                let effects = match self.down.pop_front() {
                    Some(Ok((account, definition))) => self.table.add(account, definition),
                    Some(Err(account)) => self.table.drop_account(account),
                    None => return,
                };
                self.carry_out(effects);
            }
            Step::Finish { succeeds } => {
                let Some(attempt) = self.starting.take() else { return };
                let identity = ops::ClusterIdentity { kube_system_uid: "k".into(), ..Default::default() };
                let reached = ActivatedAccount { identity, files: Vec::new(), at: Timestamp::UNIX_EPOCH };
                let failure = || kubesvc_core::wire::common::Failure {
                    class: Class::Unreachable.into(),
                    ..Default::default()
                };
                let effects =
                    self.table.finished("u", attempt, if succeeds { Ok(reached) } else { Err(failure()) });
                self.carry_out(effects);
            }
            Step::Lose => {
                let Some(held) = self.table.held_definition("u") else { return };
                let effects = self.table.lost("u", &held.definition, Default::default());
                self.carry_out(effects);
            }
            Step::Up => {
                let answer = match self.up.pop_front() {
                    Some(Ok(result)) => wire_conversion::answer(result),
                    Some(Err(lost)) => wire_conversion::loss(lost),
                    None => return,
                };
                let answer = answer.expect("it names the account");
                self.ledger.record_answer(&answer.uid, answer.epoch, answer.report, answer.of_drop, NOW);
            }
            Step::Reconnect { elsewhere } => {
                self.down.clear();
                self.up.clear();
                let effects = self.table.stream_lost();
                self.carry_out(effects);
                let former = if elsewhere { Ledger::new(0) } else { self.ledger.clone() };
                self.ledger = Ledger::new(0);
                let claims = self.table.held().map(claim_of).collect::<Vec<_>>();
                self.ledger.seed(&claims, &former);
            }
        }
    }

    fn reference(&self) -> AccountRef {
        wire_conversion::account_ref("u", "one", GrantEpoch(self.epoch), self.epoch)
    }

    fn carry_out(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Start { attempt, .. } => self.starting = Some(attempt),
                Effect::Cancel { attempt, .. } => {
                    self.starting.take_if(|one| *one == attempt);
                }
                Effect::Stop { keep, .. } => {
                    self.starting.take_if(|one| Some(*one) != keep);
                }
                Effect::Answer(answer) => self.up.push_back(Ok(*answer)),
                Effect::Lost(lost) => self.up.push_back(Err(*lost)),
                Effect::Kept { .. } => {}
            }
        }
    }

    /// The epoch that the agent holds, as the hub knows it once everything has arrived. A loss on its way is not known.
    fn check(&self) {
        let own = self.table.held_epoch("u").and_then(|epoch| i64::try_from(epoch).ok());
        let believed = held_epoch(&self.ledger);
        let is_lost = self.up.iter().any(Result::is_err);
        assert!(is_lost || believed <= own, "asked under {believed:?}, and holds {own:?}");
    }
}

fn claim_of(held: HeldAccount) -> HeldClaim {
    let account = held.account.expect("it is named");
    let epoch = GrantEpoch::from_wire(account.epoch).expect("an epoch");
    HeldClaim { uid: account.uid, name: account.name, epoch, cluster_uid: held.cluster_uid }
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0..3u8).prop_map(|definition| Step::Add { definition }),
        1 => Just(Step::Drop),
        6 => Just(Step::Down),
        4 => any::<bool>().prop_map(|succeeds| Step::Finish { succeeds }),
        1 => Just(Step::Lose),
        6 => Just(Step::Up),
        1 => any::<bool>().prop_map(|elsewhere| Step::Reconnect { elsewhere }),
    ]
}

proptest! {
    #[test]
    fn requests_go_where_the_account_is_held_whatever_fails(steps in prop::collection::vec(step(), 1..80)) {
        let mut ends = Ends::default();
        for step in steps {
            ends.take(step);
            ends.check();
        }
        // Another definition fails: the one before it is still asked.
        for _ in 0..200 {
            ends.take(Step::Down);
            ends.take(Step::Finish { succeeds: true });
            ends.take(Step::Up);
        }
        ends.take(Step::Add { definition: 3 });
        let before = ends.table.held_epoch("u");
        for step in [Step::Down, Step::Finish { succeeds: false }, Step::Up] {
            ends.take(step);
            ends.check();
        }
        for reconnect in [None, Some(Step::Reconnect { elsewhere: true })] {
            reconnect.into_iter().for_each(|step| ends.take(step));
            let believed = held_epoch(&ends.ledger).map(i64::cast_unsigned);
            prop_assert_eq!((believed, ends.table.held_epoch("u")), (before, before));
        }
    }
}
