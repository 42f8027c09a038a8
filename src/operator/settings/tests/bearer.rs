//! The issuers of agents' tokens.
#![expect(clippy::panic, reason = "this is how a test fails")]

use std::path::PathBuf;

use jsonwebtoken::Algorithm;

use super::super::bearer::{BearerKeys, IssuerKeys, WrongIssuer};
use super::{error, operator};
use crate::agent_tokens::{ALGORITHMS, BearerSettings, KeyLocation};

fn by_url(issuer: &str) -> IssuerKeys {
    IssuerKeys {
        issuer: Some(issuer.to_owned()),
        audience: Some("kubesvc-hub".to_owned()),
        jwks_file: None,
        jwks_uri: Some("https://issuer.example/keys".to_owned()),
        discovery: false,
        ca_file: None,
        algorithms: Vec::new(),
    }
}

fn read(issuers: Vec<IssuerKeys>) -> Result<BearerSettings, Vec<WrongIssuer>> {
    BearerKeys { token_review: true, issuers }.settings()
}

#[test]
fn what_cannot_be_honoured_is_named_with_its_remedy() {
    let keys = |change: fn(&mut IssuerKeys)| {
        let mut keys = by_url("https://issuer.example");
        change(&mut keys);
        keys
    };
    for (issuer, key, remedy) in [
        (keys(|one| one.issuer = None), "issuer", "is missing"),
        (keys(|one| one.audience = None), "audience", "such as kubesvc-hub"),
        (keys(|one| one.jwks_uri = None), "jwksFile", "one of jwksFile, jwksUri and discovery"),
        (keys(|one| one.jwks_file = Some("/keys".into())), "jwksFile", "and no more"),
        (keys(|one| one.discovery = true), "jwksUri", "and no more"),
        (keys(|one| one.jwks_uri = Some("http://issuer.example".into())), "jwksUri", "https://"),
        (
            keys(|one| {
                one.jwks_uri = None;
                one.jwks_file = Some("/keys".into());
                one.ca_file = Some("/ca".into());
            }),
            "caFile",
            "leave it out",
        ),
        (
            keys(|one| {
                one.jwks_uri = None;
                one.discovery = true;
                one.issuer = Some("kubernetes/serviceaccount".into());
            }),
            "discovery",
            "https:// URL",
        ),
        (keys(|one| one.algorithms = vec!["RS256".into(), "HS256".into()]), "algorithms", "EdDSA"),
        (keys(|one| one.algorithms = vec!["none".into()]), "algorithms", "RS256, RS384"),
        (keys(|one| one.algorithms = vec!["ES512".into()]), "algorithms", "ES384"),
    ] {
        let wrong = read(vec![by_url("https://first.example"), issuer]).expect_err(key);
        let [(named, why)] = wrong.as_slice() else { panic!("{key}: {wrong:?}") };
        assert_eq!(named, &format!("issuers[1].{key}"));
        assert!(why.contains(remedy), "{key}: {why}");
    }
    let twice = read(vec![by_url("https://a.example"), by_url("https://a.example")]).expect_err("twice");
    assert!(twice[0].0 == "issuers[1].issuer" && twice[0].1.contains("each issuer once"), "{twice:?}");
    let all = IssuerKeys { issuer: None, audience: None, jwks_uri: None, ..by_url("") };
    assert_eq!(read(vec![all]).expect_err("all at once").len(), 3);
}

#[test]
fn what_is_not_set_is_all_that_fits() {
    let settings = read(vec![by_url("https://issuer.example")]).expect("valid");
    assert!(settings.token_review);
    assert_eq!(settings.issuers[0].algorithms, ALGORITHMS.map(|(_, algorithm)| algorithm));
    let url = "https://issuer.example/keys".to_owned();
    assert_eq!(settings.issuers[0].keys, KeyLocation::Url { url, authorities: None });
    let two = IssuerKeys { algorithms: vec!["rs256".into(), "EDDSA".into(), "RS256".into()], ..by_url("a") };
    let settings = read(vec![two]).expect("in any case");
    assert_eq!(settings.issuers[0].algorithms, [Algorithm::RS256, Algorithm::EdDSA]);
    let file = Some(PathBuf::from("/keys"));
    let by_file = IssuerKeys { jwks_file: file, jwks_uri: None, ..by_url("kubernetes/serviceaccount") };
    let settings = read(vec![by_file]).expect("its name need be no URL");
    assert_eq!(settings.issuers[0].keys, KeyLocation::File("/keys".into()));
    let authorities = Some(PathBuf::from("/ca"));
    let discovered = IssuerKeys {
        jwks_uri: None,
        discovery: true,
        ca_file: authorities.clone(),
        ..by_url("https://issuer.example/eu/")
    };
    let settings = read(vec![discovered]).expect("valid");
    assert_eq!(settings.issuers[0].keys, KeyLocation::Discovery { authorities });
}

#[test]
fn tokens_without_a_mode_that_looks_at_them_are_refused() {
    let issuer = "{issuer: https://a.example, audience: b, jwksUri: https://a.example/keys}";
    for (yaml, key) in [
        ("kubesvc.grpc.auth.bearer.tokenReview: true".to_owned(), "tokenReview"),
        (format!("kubesvc.grpc.auth.bearer.issuers: [{issuer}]"), "issuers[0].issuer"),
    ] {
        let message = error(operator(&yaml));
        let begin = format!("c.yml:1: `kubesvc.grpc.auth.bearer.{key}` needs kubesvc.grpc.auth.mode: bound");
        assert!(message.starts_with(&begin), "{message}");
    }
    let loaded = operator("kubesvc.grpc.auth.bearer: {tokenReview: false, issuers: []}")
        .expect("nothing is asked for");
    assert_eq!((loaded.settings.bearer.is_none(), loaded.warnings.len()), (true, 0));
    let message = error(operator("kubesvc.grpc.auth.bearer.issuers: [{jwksUri: 'ftp://x'}]"));
    assert!(message.contains("jwksUri"), "{message}");
}
