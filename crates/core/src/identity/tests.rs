//! Which identity a credential has, what it may do, and that no change of the objects widens it by accident.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use proptest::prelude::*;
use rcgen::{CertificateParams, DnType, Issuer, KeyPair, SanType, SerialNumber};
use serde_json::{Value, json};

use super::template::{Captures, Claim, Template};
use super::*;

/// 2033-05-18.
const NOW: i64 = 2_000_000_000;

fn object(name: &str, spec: &Value) -> KubesvcIdentity {
    let text = json!({
        "apiVersion": "kubesvc.io/v1alpha1", "kind": "KubesvcIdentity", "metadata": {"name": name}, "spec": spec,
    });
    serde_json::from_value(text).expect("an identity")
}

fn identities(specs: &[(&str, Value)]) -> Identities {
    let mut all = Identities::default();
    for (name, spec) in specs {
        all.put(&object(name, spec)).expect("it can be used");
    }
    all
}

fn certificate(uris: &[&str], names: &[(DnType, &str)]) -> AgentCredential {
    let key = KeyPair::generate().expect("a key");
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    names.iter().for_each(|(kind, value)| params.distinguished_name.push(kind.clone(), *value));
    params.subject_alt_names =
        uris.iter().map(|uri| SanType::URI((*uri).try_into().expect("a URI"))).collect();
    params.serial_number = Some(SerialNumber::from_slice(&[0, 0x0a, 0xff]));
    (params.not_before, params.not_after) =
        (rcgen::date_time_ymd(2033, 5, 8), rcgen::date_time_ymd(2033, 5, 28));
    let mut of_authority = CertificateParams::default();
    of_authority.distinguished_name = rcgen::DistinguishedName::new();
    of_authority.distinguished_name.push(DnType::OrganizationName, "acme");
    of_authority.distinguished_name.push(DnType::CommonName, "ca");
    let authority = KeyPair::generate().expect("a key");
    let authority = Issuer::new(of_authority, authority);
    let der = params.signed_by(&key, &authority).expect("a certificate").der().to_vec();
    AgentCredential { certificate: Some(CertificateFacts::read(&der).expect("facts")), token: None }
}

fn token(holder: TokenHolder) -> AgentCredential {
    let facts =
        TokenFacts { holder, id: Some("one".into()), issued_at: Some(NOW - 60), expires: Some(NOW + 60) };
    AgentCredential { certificate: None, token: Some(facts) }
}

fn service_account(namespace: &str, name: &str) -> AgentCredential {
    token(TokenHolder::ServiceAccount { namespace: namespace.into(), name: name.into() })
}

fn jwt(issuer: &str, subject: &str, claims: &Value) -> AgentCredential {
    let claims = claims.as_object().cloned().unwrap_or_default();
    token(TokenHolder::Jwt { issuer: issuer.into(), subject: subject.into(), claims })
}

fn name_of(of: &Identities, credential: &AgentCredential) -> Result<String, String> {
    of.identify(credential, NOW).map(|rights| rights.identity).map_err(|refusal| refusal.to_string())
}

#[test]
fn each_form_of_a_credential_matches_exactly_and_nothing_else() {
    let agent = certificate(
        &["spiffe://acme/agent/east"],
        &[(DnType::CommonName, "agent-1"), (DnType::OrganizationName, "acme")],
    );
    let fingerprint = agent.certificate.as_ref().expect("it").fingerprint.clone();
    let colons: Vec<_> = fingerprint
        .to_uppercase()
        .as_bytes()
        .chunks(2)
        .map(|pair| String::from_utf8_lossy(pair).into_owned())
        .collect();
    let colons = colons.join(":");
    let secret = TokenSecret { name: "s".into(), key: "k".into() };
    let of_secret = token(TokenHolder::Secrets(vec![secret]));
    let sa = service_account("east", "agent");
    let foreign = jwt("https://b", "system:serviceaccount:x:agent", &json!({"groups": ["g1", "g2"], "n": 1}));
    for (spec, credential, does_match) in [
        (json!({"uri": "spiffe://acme/agent/east"}), &agent, true),
        (json!({"uri": "spiffe://acme/agent/*"}), &agent, true),
        (json!({"uri": "spiffe://acme/{a}/{b}"}), &agent, true),
        (json!({"uri": "spiffe://acme/*"}), &agent, false),
        (json!({"uri": "spiffe://acme/agent/eas"}), &agent, false),
        (json!({"uri": "spiffe://acme/agent/east"}), &sa, false),
        (json!({"subject": {"CN": "agent-1"}}), &agent, true),
        (json!({"subject": {"CN": "agent-*", "O": "acme"}}), &agent, true),
        (json!({"subject": {"CN": "agent-1", "OU": "acme"}}), &agent, false),
        (json!({"subject": {"CN": "agent-1"}, "issuer": "CN=ca,O=acme"}), &agent, true),
        (json!({"subject": {"CN": "agent-1"}, "issuer": "O=acme, CN=ca"}), &agent, true),
        (json!({"subject": {"CN": "agent-1"}, "issuer": "CN=ca"}), &agent, false),
        (json!({"fingerprints": [fingerprint]}), &agent, true),
        (json!({"fingerprints": [colons]}), &agent, true),
        (json!({"fingerprints": ["0".repeat(64)]}), &agent, false),
        (json!({"serviceAccount": {"namespace": "east", "name": "agent"}}), &sa, true),
        (json!({"serviceAccount": {"namespace": "*", "name": "agent"}}), &sa, true),
        (json!({"serviceAccount": {"namespace": "east", "name": "Agent"}}), &sa, false),
        (json!({"serviceAccount": {"namespace": "x", "name": "agent"}}), &foreign, false),
        (
            json!({"jwt": {"issuer": "https://b", "subject": "system:serviceaccount:{ns}:agent"}}),
            &foreign,
            true,
        ),
        (
            json!({"jwt": {"issuer": "https://b/", "subject": "system:serviceaccount:x:agent"}}),
            &foreign,
            false,
        ),
        (json!({"jwt": {"issuer": "https://b", "subject": "system:*:agent"}}), &foreign, false),
        (
            json!({"jwt": {"issuer": "https://b", "subject": "*:*:*:*", "claims": {"groups": "g2"}}}),
            &foreign,
            true,
        ),
        (
            json!({"jwt": {"issuer": "https://b", "subject": "*:*:*:*", "claims": {"groups": "g3"}}}),
            &foreign,
            false,
        ),
        (
            json!({"jwt": {"issuer": "https://b", "subject": "*:*:*:*", "claims": {"n": "1"}}}),
            &foreign,
            false,
        ),
        (json!({"tokenSecret": {"name": "s", "key": "k"}}), &of_secret, true),
        (json!({"tokenSecret": {"name": "s", "key": "K"}}), &of_secret, false),
    ] {
        let all = identities(&[("a", json!({"match": spec, "allow": {"zones": ["z"]}}))]);
        let found = name_of(&all, credential);
        assert_eq!(found.is_ok(), does_match, "{spec} {credential} {found:?}");
        assert_eq!(all.concerns("a", credential), does_match);
    }
}

#[test]
fn an_attribute_that_is_there_twice_or_a_value_with_separators_matches_no_template() {
    let all =
        identities(&[("a", json!({"match": {"subject": {"CN": "{zone}"}}, "allow": {"zones": ["{zone}"]}}))]);
    for value in ["a,b", "a/b", "a:b", "", "a\u{7}b"] {
        let of = certificate(&[], &[(DnType::CommonName, value)]);
        assert!(name_of(&all, &of).is_err(), "{value:?}");
    }
    let plus = certificate(&[], &[(DnType::CommonName, "a+b=c")]);
    let rights = all.identify(&plus, NOW).expect("it has one");
    assert!(rights.check_claim("a+b=c", "x").is_ok());
    let star = certificate(&[], &[(DnType::CommonName, "*")]);
    let rights = all.identify(&star, NOW).expect("it has one");
    assert!(rights.check_claim("*", "x").is_ok(), "what a credential says is compared as it is");
    assert!(rights.check_claim("east", "x").is_err(), "and opens no other zone");
    let brace = certificate(&[], &[(DnType::CommonName, "{zone}")]);
    assert!(all.identify(&brace, NOW).expect("it has one").check_claim("east", "x").is_err());

    let two = identities(&[(
        "a",
        json!({"match": {"subject": {"CN": "{z}", "O": "{z}"}}, "allow": {"zones": ["{z}"]}}),
    )]);
    let of = |cn: &str, o: &str| certificate(&[], &[(DnType::CommonName, cn), (DnType::OrganizationName, o)]);
    assert!(name_of(&two, &of("a", "a")).is_ok());
    assert!(name_of(&two, &of("a", "b")).is_err(), "one name stands for one text");
}

#[test]
fn rights_are_the_objects_alone() {
    let all = identities(&[(
        "a",
        json!({
            "match": {"uri": "spiffe://acme/{cluster}/agent"},
            "allow": {
                "zones": ["{cluster}", "edge-*"], "agentIds": ["{cluster}-*"],
                "accounts": ["team-{cluster}/*", "shared/one"], "staticAccounts": false, "offers": true,
            },
        }),
    )]);
    let rights = all.identify(&certificate(&["spiffe://acme/east/agent"], &[]), NOW).expect("it has one");
    assert!(!rights.static_accounts && rights.offers);
    for (zone, agent, is_allowed) in [
        ("east", "east-1", true),
        ("edge-7", "east-", true),
        ("west", "east-1", false),
        ("east", "west-1", false),
        ("eastern", "east-1", false),
        ("", "east-1", false),
    ] {
        assert_eq!(rights.check_claim(zone, agent).is_ok(), is_allowed, "{zone} {agent}");
    }
    for (namespace, name, is_allowed) in [
        ("team-east", "x", true),
        ("shared", "one", true),
        ("shared", "two", false),
        ("team-west", "x", false),
        ("team-east/x", "y", false),
    ] {
        assert_eq!(rights.may_hold(namespace, name), is_allowed, "{namespace}/{name}");
    }
    let refusal = rights.check_claim("west", "east-1").expect_err("another zone").to_string();
    assert_eq!(refusal, "KubesvcIdentity a does not allow zone \"west\"");
}

#[test]
fn who_shows_nothing_or_expired_or_ambiguous_or_revoked_credentials_is_refused_by_name() {
    let by_uri = json!({"match": {"uri": "spiffe://a/*"}, "allow": {"zones": ["*"]}});
    let by_cn = json!({"match": {"subject": {"CN": "a"}}, "allow": {"zones": ["*"]}});
    let of = certificate(&["spiffe://a/1"], &[(DnType::CommonName, "a")]);
    let facts = of.certificate.clone().expect("it");
    let both = identities(&[("one", by_uri.clone()), ("two", by_cn)]);
    assert_eq!(
        name_of(&both, &of).expect_err("two match"),
        "its credential matches several KubesvcIdentities: one, two; let only one of them match"
    );
    let one = identities(&[("one", by_uri.clone())]);
    assert_eq!(one.identify(&AgentCredential::default(), NOW), Err(IdentityRefusal::NoCredential));
    assert_eq!(one.identify(&of, facts.not_after), Err(IdentityRefusal::Expired));
    assert!(one.identify(&of, facts.not_after - 1).is_ok());
    let unknown = name_of(&one, &service_account("a", "b")).expect_err("none");
    assert_eq!(unknown, "no KubesvcIdentity matches its token of service account a/b");

    let time = |seconds: i64| Time(Timestamp::from_second(seconds).expect("a time"));
    for (change, what) in [
        (json!({"suspended": true}), "KubesvcIdentity one is suspended"),
        (
            json!({"revoked": {"fingerprints": [facts.fingerprint.to_uppercase()]}}),
            "KubesvcIdentity one revokes the fingerprint of its certificate",
        ),
        (
            json!({"revoked": {"serials": ["00:0A:FF"]}}),
            "KubesvcIdentity one revokes the serial number of its certificate",
        ),
        (
            json!({"revoked": {"issuedBefore": time(facts.not_before + 1)}}),
            "KubesvcIdentity one revokes certificates that were issued so early",
        ),
    ] {
        let mut spec = by_uri.clone();
        spec.as_object_mut().expect("an object").extend(change.as_object().expect("an object").clone());
        assert_eq!(name_of(&identities(&[("one", spec)]), &of).expect_err(what), what);
    }
    let of_token = |revoked: Value| {
        let spec = json!({"match": {"serviceAccount": {"namespace": "a", "name": "b"}}, "allow": {"zones": ["z"]}, "revoked": revoked});
        identities(&[("t", spec)])
    };
    let shown = service_account("a", "b");
    assert!(name_of(&of_token(json!({"tokenIds": ["two"], "issuedBefore": time(NOW - 60)})), &shown).is_ok());
    assert!(name_of(&of_token(json!({"tokenIds": ["one"]})), &shown).is_err());
    assert!(name_of(&of_token(json!({"issuedBefore": time(NOW - 59)})), &shown).is_err());
    let mut undated = shown;
    undated.token.as_mut().expect("it").issued_at = None;
    assert!(name_of(&of_token(json!({"issuedBefore": time(1)})), &undated).is_err());
    assert!(name_of(&of_token(json!({})), &undated).is_ok());
}

#[test]
fn a_certificate_and_a_token_have_one_identity_together() {
    let by_uri = json!({"match": {"uri": "spiffe://a/1"}, "allow": {"zones": ["z"]}});
    let by_token =
        json!({"match": {"serviceAccount": {"namespace": "a", "name": "b"}}, "allow": {"zones": ["z"]}});
    let both = AgentCredential {
        token: service_account("a", "b").token,
        ..certificate(&["spiffe://a/1"], &[(DnType::CommonName, "a")])
    };
    assert!(name_of(&identities(&[("one", by_uri.clone())]), &both).is_ok());
    assert!(name_of(&identities(&[("two", by_token.clone())]), &both).is_ok());
    assert!(name_of(&identities(&[("one", by_uri), ("two", by_token)]), &both).is_err());
    assert_eq!(both.expires(), Some(NOW + 60), "the earlier of both ends");
}

#[test]
fn an_object_that_cannot_be_used_says_why_and_identifies_nobody() {
    let ok = json!({"zones": ["z"]});
    for (spec, why) in [
        (json!({"match": {}, "allow": ok}), "it has 0"),
        (json!({"match": {"uri": "a", "subject": {"CN": "a"}}, "allow": ok}), "it has 2"),
        (json!({"match": {"subject": {}}, "allow": ok}), "it has 0"),
        (json!({"match": {"uri": "a{"}, "allow": ok}), "match.uri: \"a{\" has a brace without its partner"),
        (json!({"match": {"uri": "a}"}, "allow": ok}), "brace"),
        (json!({"match": {"uri": "{1}"}, "allow": ok}), "begins with a letter"),
        (json!({"match": {"uri": "{a}*"}, "allow": ok}), "side by side"),
        (json!({"match": {"uri": "{a}/{a}"}, "allow": ok}), "twice"),
        (json!({"match": {"uri": "a"}, "allow": {"zones": []}}), "allow.zones: empty"),
        (
            json!({"match": {"uri": "a"}, "allow": {"zones": ["{b}"]}}),
            "allow.zones: \"{b}\" uses {b}, which spec.match does not have",
        ),
        (json!({"match": {"uri": "a"}, "allow": {"zones": ["z"], "accounts": ["a"]}}), "NAMESPACE/NAME"),
        (json!({"match": {"uri": "a"}, "allow": {"zones": ["z"], "accounts": ["a/b/c"]}}), "NAMESPACE/NAME"),
        (json!({"match": {"fingerprints": ["ab"]}, "allow": ok}), "\"ab\" is no SHA-256"),
        (
            json!({"match": {"uri": "a"}, "allow": ok, "revoked": {"fingerprints": ["x"]}}),
            "revoked.fingerprints",
        ),
        (
            json!({"match": {"uri": "a"}, "allow": ok, "revoked": {"serials": ["xyz"]}}),
            "no number in hexadecimal",
        ),
        (
            json!({"match": {"serviceAccount": {"namespace": "a", "name": "b"}, "issuer": "CN=a"}, "allow": ok}),
            "match.issuer: belongs to",
        ),
    ] {
        let mut all = identities(&[("a", json!({"match": {"uri": "a"}, "allow": {"zones": ["z"]}}))]);
        let error = all.put(&object("a", &spec)).expect_err("it cannot be used").to_string();
        assert!(error.contains(why), "{spec}: {error}");
        assert!(name_of(&all, &certificate(&["a"], &[])).is_err(), "{spec}: what was there before is gone");
    }
}

#[test]
fn an_object_made_from_a_credential_matches_it() {
    let secret = TokenSecret { name: "s".into(), key: "k".into() };
    for credential in [
        certificate(&["spiffe://a/1"], &[(DnType::CommonName, "x")]),
        certificate(&["a", "b"], &[(DnType::CommonName, "x"), (DnType::OrganizationName, "y")]),
        certificate(&["a*"], &[(DnType::CommonName, "{x}")]),
        certificate(&[], &[]),
        service_account("n", "s"),
        jwt("https://i", "sub", &json!({})),
        token(TokenHolder::Secrets(vec![secret])),
    ] {
        let wanted = credential.to_match().expect("a match");
        let spec = KubesvcIdentitySpec {
            credential: wanted,
            allow: Allowance { zones: vec!["z".into()], ..Allowance::default() },
            ..KubesvcIdentitySpec::default()
        };
        let mut all = Identities::default();
        all.put(&KubesvcIdentity::new("made", spec)).expect("it can be used");
        assert_eq!(name_of(&all, &credential), Ok("made".into()));
    }
    assert_eq!(AgentCredential::default().to_match(), None);
    assert_eq!(jwt("i", "a*", &json!({})).to_match(), None, "a subject that would be a template");
}

fn spec() -> impl Strategy<Value = Value> {
    let word = prop::sample::select(vec!["a", "b", "*", "{n}", "{n}-x"]);
    let form = (0..3_u8, word.clone(), word).prop_map(|(form, one, other)| match form {
        0 => json!({"uri": one}),
        1 => json!({"serviceAccount": {"namespace": one, "name": other.replace("{n}", "{m}")}}),
        _ => json!({"subject": {"CN": one}}),
    });
    let zone = prop::sample::select(vec!["a", "b", "*", "a*"]);
    (form, prop::collection::vec(zone, 1..3), any::<bool>()).prop_map(
        |(form, zones, suspended)| json!({"match": form, "allow": {"zones": zones}, "suspended": suspended}),
    )
}

fn credentials() -> Vec<AgentCredential> {
    let mut all = Vec::new();
    for one in ["a", "b", "a-x"] {
        all.push(certificate(&[one], &[(DnType::CommonName, "b")]));
        all.push(service_account("a", one));
    }
    let both = AgentCredential { token: all[1].token.clone(), ..all[0].clone() };
    all.push(both);
    all
}

fn zones_of(all: &Identities, credential: &AgentCredential) -> Vec<&'static str> {
    let Ok(rights) = all.identify(credential, NOW) else { return Vec::new() };
    ["a", "b", "ab", "c"].into_iter().filter(|zone| rights.check_claim(zone, "x").is_ok()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn the_order_of_objects_does_not_matter_and_no_revocation_widens_rights(
        specs in prop::collection::vec(spec(), 1..5), which in any::<prop::sample::Index>(),
    ) {
        thread_local! { static CREDENTIALS: Vec<AgentCredential> = credentials(); }
        let named: BTreeMap<_, _> = specs.iter().enumerate().map(|(number, spec)| (format!("i{number}"), spec.clone())).collect();
        let put = |objects: Vec<(&String, &Value)>| {
            let mut all = Identities::default();
            for (name, spec) in objects {
                let _ = all.put(&object(name, spec));
            }
            all
        };
        let forwards = put(named.iter().collect());
        let backwards = put(named.iter().rev().collect());
        let changed = named.keys().nth(which.index(named.len())).expect("one").clone();
        let mut narrower = named.clone();
        let spec = narrower.get_mut(&changed).expect("one").as_object_mut().expect("an object");
        spec.insert("suspended".into(), json!(true));
        let suspended = put(narrower.iter().collect());
        spec_with(&mut narrower, &changed, "revoked", json!({"issuedBefore": "2999-01-01T00:00:00Z"}));
        spec_with(&mut narrower, &changed, "suspended", named[&changed]["suspended"].clone());
        let revoked = put(narrower.iter().collect());
        let mut without = forwards.clone();
        without.remove(&changed);
        CREDENTIALS.with(|all| {
            for credential in all {
                let before = zones_of(&forwards, credential);
                assert_eq!(forwards.identify(credential, NOW), backwards.identify(credential, NOW));
                for after in [zones_of(&suspended, credential), zones_of(&revoked, credential)] {
                    assert!(after.iter().all(|zone| before.contains(zone)), "{credential}");
                }
                // Where it made the credential ambiguous, the object that is left decides.
                let was_ambiguous = matches!(forwards.identify(credential, NOW), Err(IdentityRefusal::Ambiguous(_)));
                let after = zones_of(&without, credential);
                assert!(was_ambiguous || after.iter().all(|zone| before.contains(zone)), "{credential}");
            }
        });
    }

    #[test]
    fn a_claim_admits_what_its_text_says(text in "[ab*]{0,8}", value in "[ab]{0,8}") {
        let claim = Claim::fill(&text, &Captures::new()).expect("it has no placeholder");
        let pattern = format!("^{}$", text.replace('*', ".*"));
        assert_eq!(claim.admits(&value), regex::Regex::new(&pattern).expect("a pattern").is_match(&value));
    }

    #[test]
    fn any_text_is_a_template_or_refused(text in any::<String>(), value in any::<String>()) {
        if let Ok(template) = Template::compile(&text) {
            let _ = template.matches(&value, &mut Captures::new());
            let _ = Claim::fill(&text, &Captures::new());
        }
    }
}

fn spec_with(all: &mut BTreeMap<String, Value>, name: &str, key: &str, value: Value) {
    all.get_mut(name).expect("one").as_object_mut().expect("an object").insert(key.into(), value);
}
