//! When the stream is opened and closed.

use super::super::lifetime::{Demand, IDLE_TIME, StreamLifetime};
use super::*;
use kubesvc_core::wire::events::closed::Reason;

const SECOND: Duration = Duration::from_secs(1);

/// A lifetime with a session and an account, whose stream is open.
fn open(now: Instant) -> StreamLifetime {
    let mut lifetime = StreamLifetime::new(now);
    lifetime.session_changed(true);
    lifetime.assigned(true, now);
    assert_eq!(lifetime.demand(now), Demand::Open);
    assert!(lifetime.answered(now));
    lifetime
}

#[test]
fn the_stream_is_opened_with_the_first_account_and_a_session() {
    let now = Instant::now();
    let mut lifetime = StreamLifetime::new(now);
    assert_eq!(lifetime.demand(now), Demand::Wait(None));
    lifetime.assigned(true, now);
    assert_eq!(lifetime.demand(now), Demand::Wait(None));
    lifetime.session_changed(true);
    assert_eq!(lifetime.demand(now), Demand::Open);
    assert!(matches!(lifetime.demand(now), Demand::Wait(Some(_))), "it is opened once");
}

#[test]
fn the_stream_is_closed_a_minute_after_the_last_account() {
    let mut now = Instant::now();
    let mut lifetime = open(now);
    lifetime.assigned(false, now);
    let end = now + IDLE_TIME;
    while now < end {
        match lifetime.demand(now) {
            Demand::Wait(Some(until)) => now = until,
            Demand::Ping(nonce) => lifetime.pong(nonce),
            other => unreachable!("{other:?}"),
        }
    }
    assert_eq!(lifetime.demand(now), Demand::Close);
    assert_eq!(lifetime.demand(now + SECOND), Demand::Wait(None));
    lifetime.assigned(true, now);
    assert_eq!(lifetime.demand(now), Demand::Open);
}

#[test]
fn an_ended_stream_is_opened_again_after_1_to_30_seconds() {
    let mut now = Instant::now();
    let mut lifetime = open(now);
    for seconds in [1, 2, 4, 8, 16, 30, 30] {
        lifetime.ended(None, now);
        assert_eq!(lifetime.demand(now), Demand::Wait(Some(now + seconds * SECOND)));
        now += seconds * SECOND;
        assert_eq!(lifetime.demand(now), Demand::Open);
    }
    lifetime.answered(now);
    now += 31 * SECOND;
    lifetime.ended(None, now);
    assert_eq!(lifetime.demand(now), Demand::Wait(Some(now + SECOND)), "it was stable");
}

#[test]
fn the_hub_says_when_to_try_again() {
    let now = Instant::now();
    let mut lifetime = open(now);
    lifetime.ended(Some((Reason::Overloaded, 7 * SECOND)), now);
    assert_eq!(lifetime.demand(now), Demand::Wait(Some(now + 7 * SECOND)));
    let mut lifetime = open(now);
    lifetime.ended(Some((Reason::Draining, 86_400 * SECOND)), now);
    assert_eq!(lifetime.demand(now), Demand::Wait(Some(now + 300 * SECOND)));
}

#[test]
fn after_the_end_of_the_session_the_next_one_is_waited_for() {
    let now = Instant::now();
    let mut lifetime = open(now);
    lifetime.ended(Some((Reason::SessionEnded, Duration::ZERO)), now);
    assert_eq!(lifetime.demand(now + 60 * SECOND), Demand::Wait(None));
    lifetime.session_changed(true);
    assert_eq!(lifetime.demand(now), Demand::Open);
}

#[test]
fn a_stream_that_does_not_answer_is_opened_again() {
    let mut now = Instant::now();
    let mut lifetime = open(now);
    let mut pings = 0;
    let demand = loop {
        match lifetime.demand(now) {
            Demand::Wait(Some(until)) => now = until,
            Demand::Ping(_) => pings += 1,
            other => break other,
        }
    };
    assert_eq!((demand, lifetime.is_open()), (Demand::Close, false));
    assert!((2..6).contains(&pings), "{pings}");
    assert!(matches!(lifetime.demand(now), Demand::Wait(Some(_))));
}
