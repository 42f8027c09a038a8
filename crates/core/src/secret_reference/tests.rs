//! Valid and invalid references.

use proptest::prelude::*;

use super::*;
use crate::KubesvcAccountSpec;
use crate::spec::SecretKeyReference;

/// Part of every value. Must not appear in any error.
const SECRET: &str = "S3CRET";

fn parsed(text: &str) -> Reference {
    Reference::parse(text).unwrap_or_else(|error| unreachable!("{text}: {error}"))
}

fn refusal(text: &str) -> String {
    let refused = Reference::parse(text).and_then(|reference| {
        reference.check_parameters()?;
        reference.secret_key("own").map(drop)
    });
    let error = refused.err().map(|error| error.to_string());
    error.unwrap_or_else(|| unreachable!("{text:.80} is taken"))
}

#[test]
fn each_form_is_taken_apart() {
    type Case = (&'static str, &'static str, &'static [(&'static str, &'static str)]);
    let cases: [Case; 7] = [
        ("encrypted:noop!v:a", "noop", &[("v", "a")]),
        ("encryptedFile:k8s!n:prod!k:kubeconfig", "k8s", &[("n", "prod"), ("k", "kubeconfig")]),
        ("encrypted:s3!r:eu-1!b:x!f:a/b.yml", "s3", &[("r", "eu-1"), ("b", "x"), ("f", "a/b.yml")]),
        ("encrypted:noop!v:https://host:1:2", "noop", &[("v", "https://host:1:2")]),
        ("encrypted:noop!v:größe 🦀", "noop", &[("v", "größe 🦀")]),
        ("secret://k8s?n=prod&k=kube%2Dconfig", "k8s", &[("n", "prod"), ("k", "kube-config")]),
        ("secret://noop?v=a%21b%26+c%3Dd!=", "noop", &[("v", "a!b& c=d!=")]),
    ];
    for (text, engine, parameters) in cases {
        let reference = parsed(text);
        assert_eq!(reference.engine(), engine, "{text}");
        for (key, value) in parameters {
            assert_eq!(reference.get(key), Some(*value), "{text}");
        }
        assert_eq!(reference.parameters.len(), parameters.len(), "{text}");
        assert_eq!(reference.get("none"), None);
    }
}

#[test]
fn what_is_written_wrong_is_refused_by_its_place_and_without_its_values() {
    let long = format!("encrypted:noop!v:{}", SECRET.repeat(1 << 18));
    let engine = format!("encrypted:{}!v:a", "e".repeat(65));
    let cases: &[(&str, &str)] = &[
        ("", "must start with"),
        ("S3CRET", "must start with"),
        ("noop!v:S3CRET", "must start with"),
        (" encrypted:noop!v:S3CRET", "must start with"),
        ("Encrypted:noop!v:S3CRET", "must start with"),
        ("secretFile://noop?v=S3CRET", "must start with"),
        ("secret:/noop?v=S3CRET", "must start with"),
        ("encrypted:", "names no parameter"),
        ("encrypted:S3CRET", "names no parameter"),
        ("encryptedFile:noop", "write encryptedFile:ENGINE!key:value"),
        ("encrypted:!v:S3CRET", "names no engine"),
        ("encrypted:noop!", "parameter 1 is empty"),
        ("encrypted:noop!v:S3CRET!", "parameter 2 is empty"),
        ("encrypted:noop!!v:S3CRET", "parameter 1 is empty"),
        ("encrypted:noop!S3CRET", "parameter 1 is no key:value"),
        ("encrypted:noop!v=S3CRET", "parameter 1 is no key:value"),
        ("encrypted:noop!v:a!S3CRET", "parameter 2 is no key:value"),
        ("encrypted:noop!v:a!S3CRET:b", "parameter 2 is none of engine noop"),
        ("encrypted:noop!:S3CRET", "key of parameter 1"),
        ("encrypted:noop!v x:S3CRET", "key of parameter 1"),
        ("encrypted:noop!ü:S3CRET", "key of parameter 1"),
        ("encrypted:noop!v:", "parameter 1 has no value"),
        ("encrypted:noop!v:S3CRET!v:b", "parameters 1 and 2 have the same key"),
        ("encrypted:no op!v:S3CRET", "its engine must have"),
        ("encrypted:🦀!v:S3CRET", "its engine must have"),
        ("encrypted:noop:x!v:S3CRET", "its engine must have"),
        ("encrypted:../../etc!v:S3CRET", "its engine must have"),
        ("encrypted:noop!v:S3\0CRET", "control character"),
        ("encrypted:noop!v:S3\nCRET", "control character"),
        ("secret://", "names no parameter"),
        ("secret://noop", "names no parameter"),
        ("secret://noop?", "names no parameter"),
        ("secret://?v=S3CRET", "names no engine"),
        ("secret://noop/x?v=S3CRET", "its engine must have"),
        ("secret://user@noop?v=S3CRET", "its engine must have"),
        ("secret://noop?v", "parameter 1 is no key=value"),
        ("secret://noop?v=", "parameter 1 has no value"),
        ("secret://noop?v=S3CRET&", "parameter 2 is no key=value"),
        ("secret://noop?v=S3CRET&v=b", "parameters 1 and 2 have the same key"),
        ("secret://noop?v=S3CRET#x", "write it as %23"),
        ("secret://noop?v=S3%00CRET", "control character"),
        ("secret://noop?v=S3%zzCRET", "write it as %25"),
        ("secret://noop?v=S3CRET%4", "write it as %25"),
        ("secret://noop?v=S3CRET%ff", "not UTF-8"),
        ("secret://noop?a%3Db=S3CRET", "key of parameter 1"),
        (&long, "more than 2048 characters"),
        (&engine, "its engine must have"),
    ];
    for (text, said) in cases {
        let why = refusal(text);
        assert!(why.contains(said), "{text:.80}: {why}");
        assert!(!why.contains(SECRET) && why.len() < 200, "{text:.80}: {why}");
    }
}

#[test]
fn parameters_are_held_to_what_the_engine_takes() {
    let cases = [
        ("encrypted:k8s!n:a", "engine k8s needs the parameter k"),
        ("encrypted:k8s!k:a", "engine k8s needs the parameter n"),
        ("encrypted:k8s!n:a!k:b!namespace:c", "engine k8s has no parameter namespace; it takes n, k, ns"),
        ("encrypted:file!path:/a", "engine file has no parameter path; it takes p"),
        ("encrypted:s3!b:a!f:b", "engine s3 needs the parameter r"),
        ("secret://secrets-manager?k=a&r=b", "engine secrets-manager needs the parameter s"),
    ];
    for (text, said) in cases {
        assert_eq!(refusal(text), said);
    }
    assert_eq!(parsed("encrypted:of-tomorrow!any:thing").check_parameters(), Ok(()));
}

#[test]
fn a_secret_is_of_the_accounts_own_namespace_unless_another_is_named() {
    let of = |text: &str| {
        let reference = parsed(text);
        let key = reference.secret_key("own")?;
        Ok(key.map(|one| [one.namespace, one.name, one.key].map(str::to_owned)))
    };
    let expected: Result<_, ReferenceError> = Ok(Some(["own", "a.b", "x_Y.z"].map(str::to_owned)));
    assert_eq!(of("encryptedFile:k8s!n:a.b!k:x_Y.z"), expected);
    assert_eq!(of("secret://k8s?ns=own&n=a.b&k=x_Y.z"), expected);
    assert_eq!(of("encrypted:noop!v:a"), Ok(None));
    let other = Ok(Some(["spinnaker", "a", "b"].map(str::to_owned)));
    assert_eq!(of("encryptedFile:k8s!n:a!k:b!ns:spinnaker"), other);
    for (text, said) in [
        ("encrypted:k8s!n:a!k:b!ns:../x", "ns is no name"),
        ("encrypted:k8s!n:a!k:b!ns:Own", "ns is no name"),
        ("encrypted:k8s!n:../b!k:b", "n is no name"),
        ("encrypted:k8s!n:A!k:b", "n is no name"),
        ("encrypted:k8s!n:-a!k:b", "n is no name"),
        ("encrypted:k8s!n:a/b!k:b", "n is no name"),
        ("encrypted:k8s!n:a..b!k:b", "n is no name"),
        ("encrypted:k8s!n:a!k:b/c", "k is no key"),
        ("encrypted:k8s!n:a!k:..", "k is no key"),
        ("encrypted:k8s!n:a!k:b c", "k is no key"),
    ] {
        let why = refusal(text);
        assert!(why.contains(said), "{text}: {why}");
    }
    assert!(refusal(&format!("encrypted:k8s!n:{}!k:b", "a".repeat(254))).contains("n is no name"));
}

#[test]
fn a_reference_is_shown_as_it_is_unless_it_may_hold_the_secret() {
    for text in
        ["encrypted:k8s!n:a!k:b", "secret://secrets-manager?r=a&s=b&k=c", "encryptedFile:vault!e:a!p:b!k:c"]
    {
        assert_eq!(shown(text).as_deref(), Some(text));
        assert!(!is_redacted(text));
    }
    for (text, told) in [
        ("encrypted:noop!v:S3CRET", "encrypted:noop!v:redacted"),
        ("encryptedFile:noop!v:a:S3CRET", "encryptedFile:noop!v:redacted"),
        ("secret://noop?v=S3CRET", "secret://noop?v=redacted"),
    ] {
        assert_eq!(shown(text).as_deref(), Some(told));
        assert!(is_redacted(told) && !is_redacted(text));
    }
    for text in [
        "encrypted:NOOP!v:S3CRET",
        "encrypted: noop!v:S3CRET",
        "encrypted:nop!v:S3CRET",
        "encrypted:noop!v:a!S3CRET:b",
        "S3CRET",
    ] {
        assert_eq!(shown(text), None, "{text}");
    }
}

#[test]
fn the_secret_of_an_account_is_found_by_either_way_of_naming_it() {
    let mut account = KubesvcAccount::new("a", KubesvcAccountSpec::default());
    account.metadata.namespace = Some("own".to_owned());
    assert_eq!(sent_secret_of(&account), None);
    let here = |name: &str| Some(("own".to_owned(), name.to_owned()));
    account.spec.kubeconfig.secret_ref = Some(SecretKeyReference { name: "one".to_owned(), key: None });
    assert_eq!(sent_secret_of(&account), here("one"));
    account.spec.kubeconfig.secret_ref = None;
    for (reference, secret) in [
        ("encryptedFile:k8s!n:two!k:x", here("two")),
        ("secret://k8s?n=three&k=x&ns=own", here("three")),
        ("encrypted:k8s!n:two!k:x!ns:other", Some(("other".to_owned(), "two".to_owned()))),
        ("encrypted:k8s!n:two", None),
        ("encrypted:noop!v:two", None),
        ("nothing", None),
    ] {
        account.spec.kubeconfig.reference = Some(reference.to_owned());
        assert_eq!(sent_secret_of(&account), secret, "{reference}");
        assert!(is_read_by_operator(&account.spec.kubeconfig));
    }
}

proptest! {
    #[test]
    fn what_is_written_by_the_grammar_is_read_back(
        file in any::<bool>(),
        engine in "[a-zA-Z0-9._-]{1,64}",
        parameters in prop::collection::btree_map("[a-zA-Z0-9]{1,8}", "[^!\\p{Cc}]{1,40}", 1..5),
    ) {
        let prefix = if file { "encryptedFile:" } else { "encrypted:" };
        let pieces: String = parameters.iter().map(|(key, value)| format!("!{key}:{value}")).collect();
        let reference = parsed(&format!("{prefix}{engine}{pieces}"));
        prop_assert_eq!(reference.engine(), engine.as_str());
        for (key, value) in &parameters {
            prop_assert_eq!(reference.get(key), Some(value.as_str()));
        }
    }

    #[test]
    fn a_query_is_decoded(engine in "[a-z0-9-]{1,20}", values in prop::collection::btree_map("[a-z]{1,3}", "[^\\p{Cc}]{1,30}", 1..5)) {
        let query = url::form_urlencoded::Serializer::new(String::new()).extend_pairs(&values).finish();
        let reference = parsed(&format!("secret://{engine}?{query}"));
        for (key, value) in &values {
            prop_assert_eq!(reference.get(key), Some(value.as_str()));
        }
    }

    #[test]
    fn no_text_panics_and_no_error_repeats_it(prefix in prop::sample::select(PREFIXES.to_vec()), text in ".{0,80}") {
        let whole = format!("{prefix}{text}");
        shown(&whole);
        is_redacted(&whole);
        if let Err(error) = Reference::parse(&format!("{whole}{SECRET}")) {
            prop_assert!(!error.to_string().contains(SECRET));
        }
    }

    #[test]
    fn the_value_of_noop_is_never_shown(value in "[^\\p{Cc}]{0,40}", prefix in prop::sample::select(vec!["encrypted:noop!v:", "encryptedFile:noop!v:", "secret://noop?v="])) {
        let shown = shown(&format!("{prefix}{SECRET}{value}")).map(Cow::into_owned);
        prop_assert!(shown.is_none_or(|shown| !shown.contains(SECRET)));
    }
}
