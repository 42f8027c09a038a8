//! What holds whatever the agent sends and whatever becomes of its batches.

use proptest::prelude::*;

use super::*;

const BYTES: u64 = 10;

#[derive(Clone, Copy, Debug)]
enum Step {
    /// The agent sends a batch that follows this many batches before its last one.
    Batch(u64),
    /// A writer commits the batches that wait; the outcome may be lost, and is then asked for again.
    Commit { is_lost: bool },
    /// The agent begins anew.
    Begin,
    /// Another replica commits something under the same fence.
    Elsewhere,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => prop_oneof![5 => Just(0), 1 => 1..4_u64].prop_map(Step::Batch),
        4 => any::<bool>().prop_map(|is_lost| Step::Commit { is_lost }),
        1 => Just(Step::Begin),
        1 => Just(Step::Elsewhere),
    ]
}

/// The row of the fence, the batches at the shard, and what the agent knows.
struct World {
    delivery: AccountReceiver,
    committed: i64,
    queued: Vec<(LaneId, i64, i64)>,
    next_lane: LaneId,
    /// Number of the agent's last batch, and the highest that it ever used.
    last: u64,
    highest: u64,
    pending: u64,
    acknowledged: u64,
    must_begin: bool,
}

impl World {
    fn apply(&mut self, effects: Vec<ReceiverEffect>) {
        for effect in effects {
            match effect {
                ReceiverEffect::Queue(batch) => self.queued.push((batch.lane, batch.prev, batch.seq)),
                ReceiverEffect::CloseLane(lane) => self.queued.retain(|(queued, ..)| *queued != lane),
                ReceiverEffect::Release(bytes) => self.pending -= bytes,
                ReceiverEffect::Send(Frame::Ack(ack)) => {
                    assert!(ack.seq <= to_wire(self.committed), "acknowledged before the commit");
                    assert!(ack.seq > self.acknowledged, "acknowledged twice");
                    self.acknowledged = ack.seq;
                }
                ReceiverEffect::Send(Frame::Rewind(_)) => self.must_begin = true,
                ReceiverEffect::Send(Frame::Resume(resume)) => {
                    self.last = resume.committed_seq;
                    self.highest = self.highest.max(self.last);
                    self.must_begin = false;
                }
                _ => {}
            }
        }
    }

    fn begin(&mut self) {
        self.next_lane += 1;
        let effects = self.delivery.begin(begin(&["Pod"], true), self.next_lane).expect("it is well-formed");
        self.apply(effects);
        let effects = self.delivery.assigned(AssignmentState::Stands("one".into()));
        self.apply(effects);
        let effects = self.delivery.progress(None, &stands(self.committed), 0, Reason::Superseded);
        self.apply(effects);
    }

    fn commit(&mut self, is_lost: bool) {
        let Some((lane, prev, _)) = self.queued.first().copied() else { return };
        let of_lane: Vec<_> = self.queued.iter().filter(|(queued, ..)| *queued == lane).copied().collect();
        let last = of_lane.last().map_or(0, |(_, _, seq)| *seq);
        let mut check = || match self.committed {
            committed if committed == prev => {
                self.committed = last;
                FenceCheck::Passed
            }
            committed if committed >= last => FenceCheck::Done,
            committed => FenceCheck::Rewind(committed),
        };
        let mut answer = check();
        if is_lost {
            answer = check();
        }
        self.queued.retain(|(queued, ..)| *queued != lane);
        if self.delivery.lane() == lane {
            let effects = self.delivery.outcome(last, answer, Reason::Superseded);
            self.apply(effects);
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Batch(back) => {
                self.highest += 1;
                self.pending += BYTES;
                let sent = batch(self.last.saturating_sub(back), self.highest);
                self.last = self.highest;
                let effects = self.delivery.batch(sent, BYTES).expect("it is well-formed");
                self.apply(effects);
            }
            Step::Commit { is_lost } => self.commit(is_lost),
            Step::Begin => self.begin(),
            Step::Elsewhere => {
                self.highest += 1;
                self.committed = i64::try_from(self.highest).expect("few");
            }
        }
        if self.must_begin {
            self.begin();
        }
    }
}

proptest! {
    #[test]
    fn nothing_is_acknowledged_before_its_commit_and_no_byte_is_lost(
        steps in prop::collection::vec(step(), 0..80),
    ) {
        let mut world = World {
            delivery: delivery(),
            committed: 0,
            queued: Vec::new(),
            next_lane: 1,
            last: 0,
            highest: 0,
            pending: 0,
            acknowledged: 0,
            must_begin: false,
        };
        world.begin();
        for step in steps {
            world.step(step);
            let outstanding: u64 = world.delivery.outstanding.iter().map(|batch| batch.bytes).sum();
            prop_assert_eq!(world.pending, outstanding);
            prop_assert_eq!(world.queued.len(), world.delivery.outstanding.len());
        }
        world.commit(false);
        world.commit(false);
        prop_assert_eq!(world.pending, 0);
    }
}
