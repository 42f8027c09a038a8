//! The delays before the agent dials again.

use super::*;
use crate::tests::default_settings;

fn backoff() -> BackoffSettings {
    default_settings().hub.backoff
}

/// The delays of the default settings with other steps.
fn pace(backoff: &BackoffSettings) -> DialBackoff {
    DialBackoff::new(backoff, default_settings().reconnect)
}

#[test]
fn waits_grow_to_the_longest_and_start_over() {
    let mut pace = pace(&BackoffSettings { jitter: 0.0, max: Duration::from_secs(3), ..backoff() });
    let waits: Vec<_> = (0..5).map(|_| pace.next().as_millis()).collect();
    assert_eq!(waits, [1000, 1600, 2560, 3000, 3000]);
    pace.reset();
    assert_eq!(pace.next(), Duration::from_secs(1));
}

#[test]
fn only_the_first_wait_after_an_accepted_stream_is_that_of_reconnecting() {
    let mut pace = pace(&BackoffSettings { jitter: 0.0, ..backoff() });
    pace.was_accepted();
    assert_eq!(pace.next(), Duration::from_secs(5));
    assert_eq!(pace.next(), Duration::from_millis(1600));
}

#[test]
fn waits_vary_by_the_share() {
    for _ in 0..1000 {
        let wait = pace(&backoff()).next().as_secs_f64();
        assert!((0.8..=1.2).contains(&wait), "{wait}");
    }
}

#[test]
fn refusal_grows_the_backoff_only_if_it_names_no_time() {
    let mut pace = pace(&BackoffSettings { jitter: 0.0, ..backoff() });
    for _ in 0..9 {
        assert!(pace.after_refusal(Duration::from_secs(40), false) >= Duration::from_secs(40));
    }
    assert_eq!(pace.next(), Duration::from_secs(1));
    assert_eq!(pace.after_refusal(Duration::ZERO, false), Duration::from_millis(1600));
    assert_eq!(pace.after_refusal(Duration::ZERO, true), backoff().max);
}

#[test]
fn delay_named_by_the_hub_is_kept_with_little_jitter() {
    for _ in 0..1000 {
        assert!(a_little_of(Duration::from_secs(10)) <= Duration::from_millis(500));
        assert!(a_little_of(Duration::from_secs(300)) <= Duration::from_secs(1));
    }
}

#[test]
fn odd_settings_still_wait() {
    let odd = BackoffSettings {
        base: Duration::from_secs(9),
        multiplier: f64::NAN,
        jitter: 7.0,
        max: Duration::from_secs(2),
    };
    let mut pace = DialBackoff::new(&odd, Duration::ZERO);
    assert!((0..100).all(|_| pace.next() <= Duration::from_secs(4)));
}

#[test]
fn refusals_are_never_answered_by_dialling_at_once() {
    let none = BackoffSettings { base: Duration::ZERO, jitter: 0.0, ..backoff() };
    assert_eq!(pace(&none).after_refusal(Duration::ZERO, false), MIN_REFUSED_DELAY);
    let none = BackoffSettings { max: Duration::ZERO, ..none };
    assert_eq!(pace(&none).after_refusal(Duration::ZERO, false), LEAST_REFUSED_DELAY);
    let mut usual = pace(&BackoffSettings { jitter: 0.0, ..backoff() });
    let waits: Vec<_> = (0..3).map(|_| usual.after_refusal(Duration::ZERO, false).as_millis()).collect();
    assert_eq!(waits, [1000, 1600, 2560]);
}
