//! What signatures cover, and what they reject.

use super::*;

const NOW: i64 = 1_763_740_800_000;
const GET: SignedCall<'_> =
    SignedCall { method: "GET", path: "/internal/v1/agents?x=1", body: b"", relayed_for: None };

fn key(byte: u8) -> SigningKey {
    SigningKey::new(vec![byte; 32]).expect("long enough")
}

fn headers(from: &str, to: &str, time: i64, call: SignedCall<'_>) -> HeaderMap {
    let stamp = CallStamp::new(from, to, time, "nonce-1".to_owned());
    stamp.headers(&key(1), call).expect("headers").into_iter().collect()
}

fn outcome(
    headers: &HeaderMap,
    here: &str,
    now: i64,
    with: &SigningKey,
    call: SignedCall<'_>,
) -> Result<(), SignatureError> {
    let here = Recipient { id: here, address: None, since_ms: i64::MIN };
    let signed = CallSignature::read(headers, here, now)?;
    if signed.fits(with, call) { Ok(()) } else { Err(SignatureError::Wrong) }
}

#[test]
fn a_signed_call_is_taken_by_the_replica_it_is_for() {
    for (here, to) in [("b", "b"), ("b ü\n", "b ü\n")] {
        let headers = headers("a ü", to, NOW, GET);
        assert_eq!(outcome(&headers, here, NOW, &key(1), GET), Ok(()), "{here} {to:?}");
    }
    let elsewhere = outcome(&headers("a", "c", NOW, GET), "b", NOW, &key(1), GET);
    assert_eq!(elsewhere, Err(SignatureError::Elsewhere { to: "c".into(), here: "b".into() }));
}

#[test]
fn a_call_to_an_address_is_taken_where_it_was_sent_to() {
    let taken = |to: &str, at: Option<&str>| {
        let address = at.map(|at| at.parse().expect("an address"));
        let here = Recipient { id: "b", address, since_ms: NOW };
        CallSignature::read(&headers("a", to, NOW, GET), here, NOW).map(drop)
    };
    for (to, at) in [
        ("10.0.0.1:7002", "10.0.0.1:7002"),
        ("10.0.0.1:7002", "[::ffff:10.0.0.1]:7002"),
        ("[fd00::1]:7002", "[fd00::1]:7002"),
        // Behind a proxy on the same machine, or called by a host name.
        ("10.0.0.1:7002", "127.0.0.1:15006"),
        ("hub.example:7002", "10.0.0.1:7002"),
    ] {
        assert_eq!(taken(to, Some(at)), Ok(()), "{to} {at}");
    }
    for (to, at) in
        [("10.0.0.1:7002", "10.0.0.2:7002"), ("10.0.0.1:7002", "10.0.0.1:7003"), ("*", "10.0.0.1:1")]
    {
        let elsewhere = SignatureError::Elsewhere { to: to.to_owned(), here: "b".to_owned() };
        assert_eq!(taken(to, Some(at)), Err(elsewhere), "{to} {at}");
    }
}

#[test]
fn call_signed_before_the_start_is_refused() {
    let read = |since_ms| {
        CallSignature::read(&headers("a", "b", NOW, GET), Recipient { id: "b", address: None, since_ms }, NOW)
            .map(drop)
    };
    assert_eq!(read(NOW), Ok(()));
    assert_eq!(read(NOW + 1), Err(SignatureError::BeforeStart));
}

#[test]
fn nothing_of_a_call_can_be_changed() {
    let good = headers("a", "b", NOW, GET);
    for call in [
        SignedCall { method: "POST", ..GET },
        SignedCall { path: "/internal/v1/agents", ..GET },
        SignedCall { path: "/internal/v1/agents?x=1\n", ..GET },
        SignedCall { body: b" ", ..GET },
        SignedCall { relayed_for: Some(b""), ..GET },
    ] {
        assert_eq!(outcome(&good, "b", NOW, &key(1), call), Err(SignatureError::Wrong), "{call:?}");
    }
    assert_eq!(outcome(&good, "b", NOW, &key(2), GET), Err(SignatureError::Wrong));
    for (name, value) in [
        (FROM, "x".to_owned()),
        (TO, "10.0.0.1:7002".to_owned()),
        (TIME, (NOW + 1).to_string()),
        (NONCE, "nonce-2".to_owned()),
        (SIGNATURE, "00".to_owned()),
        (SIGNATURE, hex::encode([0; 32])),
    ] {
        let mut changed = good.clone();
        changed.insert(name.clone(), HeaderValue::from_str(&value).expect("a value"));
        assert_eq!(outcome(&changed, "b", NOW, &key(1), GET), Err(SignatureError::Wrong), "{name}");
    }
}

#[test]
fn each_part_of_a_signature_must_be_there_and_well_formed() {
    let good = headers("a", "b", NOW, GET);
    for name in [FROM, TO, TIME, NONCE, KEY, SIGNATURE] {
        let mut missing = good.clone();
        missing.remove(&name);
        let unsigned = Err(SignatureError::Unsigned(name.to_string()));
        assert_eq!(outcome(&missing, "b", NOW, &key(1), GET), unsigned);
        for bad in ["", "\u{e9}"] {
            missing.insert(name.clone(), HeaderValue::from_bytes(bad.as_bytes()).expect("bytes"));
            assert_eq!(outcome(&missing, "b", NOW, &key(1), GET), unsigned, "{bad:?}");
        }
        missing.insert(name.clone(), HeaderValue::from_str(&"1".repeat(MAX_HEADER_BYTES + 1)).expect("text"));
        assert_eq!(outcome(&missing, "b", NOW, &key(1), GET), unsigned);
    }
    for (name, bad) in [(TIME, "soon"), (TIME, "99999999999999999999"), (SIGNATURE, "xyz")] {
        let mut malformed = good.clone();
        malformed.insert(name.clone(), HeaderValue::from_static(bad));
        let unsigned = Err(SignatureError::Unsigned(name.to_string()));
        assert_eq!(outcome(&malformed, "b", NOW, &key(1), GET), unsigned, "{bad}");
    }
}

#[test]
fn a_signature_is_good_for_half_a_minute_on_either_side() {
    let at = |time: i64| outcome(&headers("a", "b", time, GET), "b", NOW, &key(1), GET);
    assert_eq!(at(NOW - 30_000), Ok(()));
    assert_eq!(at(NOW + 30_000), Ok(()));
    assert_eq!(at(NOW - 31_000), Err(SignatureError::Untimely { apart: 31, when: "ago" }));
    assert_eq!(at(NOW + 31_000), Err(SignatureError::Untimely { apart: 31, when: "ahead" }));
    for time in [i64::MIN, i64::MAX] {
        assert!(matches!(at(time), Err(SignatureError::Untimely { .. })));
    }
}

#[test]
fn refusals_and_key_errors_contain_no_key() {
    let headers = headers("a", "b", NOW, GET);
    let needle = hex::encode([1; 32]);
    let all = format!("{headers:?} {:?} {}", key(1), SignatureError::Wrong);
    assert!(!all.contains(&needle) && !all.contains("[1, 1"), "{all}");
}

#[test]
fn an_answer_is_good_for_one_call_and_only_as_it_was_signed() {
    let signed: HeaderMap = answer_headers(&key(1), "nonce", StatusCode::OK, b"{}").into_iter().collect();
    let fits = |with: u8, nonce: &str, status: StatusCode, body: &[u8]| {
        names_key(&signed, &key(with)) && answer_fits(&signed, &key(with), nonce, status, body)
    };
    assert!(fits(1, "nonce", StatusCode::OK, b"{}"));
    assert!(!fits(2, "nonce", StatusCode::OK, b"{}"), "another key");
    assert!(!fits(1, "other", StatusCode::OK, b"{}"), "of another call");
    assert!(!fits(1, "nonce", StatusCode::NOT_FOUND, b"{}"), "another status");
    assert!(!fits(1, "nonce", StatusCode::OK, b"{ }"), "another body");
    assert!(!names_key(&HeaderMap::new(), &key(1)), "no signature at all");
    let call = headers("a", "b", NOW, GET);
    assert!(
        !answer_fits(&call, &key(1), "nonce-1", StatusCode::OK, b""),
        "a call's signature is no answer's"
    );
}
