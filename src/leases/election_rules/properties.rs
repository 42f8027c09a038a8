//! Participants with independent clocks compete for one Lease: no two of them ever lead at once.

use proptest::prelude::*;

use super::*;

/// Real time of one step.
const STEP: Duration = Duration::from_millis(100);
/// Number of steps in a run: ten minutes.
const STEPS: u64 = 6_000;

/// Fault injected into one participant.
#[derive(Clone, Copy, Debug)]
enum ParticipantFault {
    /// Suspended for this many steps while its clock continues.
    Sleeps(u64),
    /// Cut off from the API server for this many steps.
    CutOff(u64),
    /// Releases the Lease if it holds it.
    Releases,
    /// Restarts with the same id.
    Restarts,
}

#[derive(Clone, Debug)]
struct TimedEvent {
    at: u64,
    who: usize,
    fault: ParticipantFault,
}

/// A write in flight: it reaches the API server at one step, and the response arrives at another.
struct Flying {
    sent: Moment,
    replaces: Option<String>,
    lands: u64,
    returns: u64,
    answer: Option<Option<LeaseRecord>>,
}

struct Participant {
    candidate: Candidate,
    /// Clock rate in thousandths of real time; the clock starts at `offset`.
    rate: u64,
    offset: Duration,
    asleep_until: u64,
    cut_until: u64,
    look_at: u64,
    /// The version that the next write replaces.
    version: Option<String>,
    flying: Option<Flying>,
}

impl Participant {
    fn now(&self, step: u64) -> Moment {
        self.offset
            + STEP * u32::try_from(step).expect("it is small") * u32::try_from(self.rate).expect("small")
                / 1000
    }

    fn leads(&self, step: u64) -> bool {
        self.candidate.end().is_some_and(|end| self.now(step) < end)
    }
}

/// A simulated API server with one Lease.
#[derive(Default)]
struct LeaseServer {
    record: Option<LeaseRecord>,
    version: u64,
}

impl LeaseServer {
    fn put(&mut self, holder: &str, replaces: Option<&str>) -> Option<LeaseRecord> {
        if self.record.as_ref().map(|record| record.version.as_str()) != replaces {
            return None;
        }
        self.version += 1;
        let record = LeaseRecord { holder: holder.into(), version: self.version.to_string() };
        self.record = Some(record.clone());
        Some(record)
    }
}

struct Run {
    participants: Vec<Participant>,
    server: LeaseServer,
    delays: Vec<u64>,
    drawn: usize,
    /// Number of steps during which some participant led.
    led: u64,
}

impl Run {
    fn delay(&mut self) -> u64 {
        self.drawn += 1;
        self.delays[self.drawn % self.delays.len()]
    }

    fn suffer(&mut self, event: &TimedEvent) {
        let count = self.participants.len();
        let one = &mut self.participants[event.who % count];
        match event.fault {
            ParticipantFault::Sleeps(steps) => one.asleep_until = event.at + steps,
            ParticipantFault::CutOff(steps) => one.cut_until = event.at + steps,
            ParticipantFault::Restarts => {
                // A write in flight may still be applied, but the response is lost.
                if let Some(Flying { replaces, answer: None, .. }) = one.flying.take() {
                    self.server.put(one.candidate.id.as_str(), replaces.as_deref());
                }
                one.candidate = Candidate::new(&one.candidate.id, one.candidate.times);
                (one.version, one.look_at) = (None, event.at);
            }
            ParticipantFault::Releases if one.candidate.renewed().is_some() && one.flying.is_none() => {
                let now = one.now(event.at);
                one.candidate.step_down();
                one.candidate.pause(now, Duration::from_secs(4));
                self.server.put("", one.version.clone().as_deref());
            }
            ParticipantFault::Releases => {}
        }
    }

    fn go(&mut self, who: usize, step: u64) {
        self.land(who, step);
        let (delay, back) = (self.delay(), self.delay());
        let one = &mut self.participants[who];
        if step < one.asleep_until {
            return;
        }
        let now = one.now(step);
        if let Some(flying) = &one.flying {
            let timed_out = step >= flying.returns.max(one.cut_until);
            let Some(answer) = flying.answer.clone().filter(|_| timed_out) else {
                // Do not wait for the response longer than the Lease is valid.
                if one.candidate.step(now) == LeaseAction::Lost {
                    one.candidate.step_down();
                }
                return;
            };
            let sent = flying.sent;
            one.flying = None;
            match answer {
                Some(record) => {
                    one.version = Some(record.version.clone());
                    one.candidate.wrote(record, sent);
                }
                None => {
                    one.candidate.pause(now, one.candidate.times.retry_period);
                    one.look_at = step;
                }
            }
        }
        if step < one.cut_until {
            if one.candidate.step(now) == LeaseAction::Lost {
                one.candidate.step_down();
            }
            return;
        }
        if step >= one.look_at {
            one.look_at = step + 20 + delay;
            one.version = self.server.record.as_ref().map(|record| record.version.clone());
            one.candidate.saw(self.server.record.clone(), now);
        }
        match one.candidate.step(now) {
            LeaseAction::Lost => one.candidate.step_down(),
            LeaseAction::Wait(_) => {}
            LeaseAction::Acquire | LeaseAction::Renew => {
                let lands = step + delay;
                let replaces = one.version.clone();
                one.flying = Some(Flying { sent: now, replaces, lands, returns: lands + back, answer: None });
            }
        }
    }

    /// Applies a write that has reached the API server, even if its sender is suspended.
    fn land(&mut self, who: usize, step: u64) {
        let one = &mut self.participants[who];
        if let Some(flying) = &mut one.flying
            && flying.answer.is_none()
            && step >= flying.lands
        {
            flying.answer = Some(self.server.put(one.candidate.id.as_str(), flying.replaces.as_deref()));
        }
    }

    fn run(&mut self, events: &[TimedEvent]) -> Result<(), TestCaseError> {
        for step in 0..STEPS {
            for event in events.iter().filter(|event| event.at == step) {
                self.suffer(event);
            }
            for who in 0..self.participants.len() {
                self.go(who, step);
                let leaders: Vec<_> = self.participants.iter().filter(|one| one.leads(step)).collect();
                prop_assert!(leaders.len() < 2, "two lead at step {step}");
            }
            self.led += u64::from(self.participants.iter().any(|one| one.leads(step)));
        }
        Ok(())
    }
}

fn event() -> impl Strategy<Value = TimedEvent> {
    let fault = prop_oneof![
        (1_u64..600).prop_map(ParticipantFault::Sleeps),
        (1_u64..600).prop_map(ParticipantFault::CutOff),
        Just(ParticipantFault::Releases),
        Just(ParticipantFault::Restarts),
    ];
    (0..STEPS, 0_usize..8, fault).prop_map(|(at, who, fault)| TimedEvent { at, who, fault })
}

fn participants() -> impl Strategy<Value = Vec<Participant>> {
    // Clock rates between 90 and 110 percent of real time.
    let one =
        (900_u64..=1100, 0_u64..1_000_000).prop_map(|(rate, offset)| (rate, Duration::from_millis(offset)));
    prop::collection::vec(one, 1..6).prop_map(|all| {
        let new = |(who, (rate, offset)): (usize, (u64, Duration))| Participant {
            candidate: Candidate::new(&format!("replica-{who}").into(), Times::default()),
            rate,
            offset,
            asleep_until: 0,
            cut_until: 0,
            look_at: 0,
            version: None,
            flying: None,
        };
        all.into_iter().enumerate().map(new).collect()
    })
}

impl std::fmt::Debug for Participant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} at {} ‰ from {:?}", self.candidate.id, self.rate, self.offset)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn never_do_two_lead(
        participants in participants(),
        events in prop::collection::vec(event(), 0..40),
        delays in prop::collection::vec(0_u64..40, 1..200),
    ) {
        let mut run = Run { participants, server: LeaseServer::default(), delays, drawn: 0, led: 0 };
        run.run(&events)?;
    }

    #[test]
    fn one_candidate_leads_almost_always_without_faults(
        participants in participants(),
        delays in prop::collection::vec(0_u64..8, 1..200),
    ) {
        let mut run = Run { participants, server: LeaseServer::default(), delays, drawn: 0, led: 0 };
        run.run(&[])?;
        prop_assert!(run.led > STEPS - 100, "somebody led for {} of {STEPS} steps", run.led);
    }
}
