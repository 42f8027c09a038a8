use proptest::prelude::*;
use serde_json::json;

use super::*;

#[test]
fn each_path_is_the_call_that_clouddriver_reads() {
    use CredentialsCall as Call;
    let named = |name: &str| name.to_owned();
    for (method, path, call) in [
        ("POST", "/credentials", Call::Create),
        ("POST", "/credentials/", Call::Create),
        ("POST", "//credentials;a=b", Call::Create),
        ("PUT", "/credentials", Call::Upsert),
        ("PUT", "/credentials/prod", Call::Update(named("prod"))),
        ("PUT", "/credentials/gr%C3%B6%C3%9Fe%201", Call::Update(named("größe 1"))),
        ("DELETE", "/credentials/a%2Fb", Call::Delete(named("a/b"))),
        ("DELETE", "/credentials/./x/../prod;v=1", Call::Delete(named("prod"))),
        ("DELETE", "/credentials/type", Call::Delete(named("type"))),
        ("GET", "/credentials/type", Call::Read),
        ("GET", "/credentials", Call::Read),
        ("GET", "/credentials/history", Call::Read),
        ("GET", "/credentials/prod/authorized", Call::Read),
        ("PATCH", "/credentials/prod", Call::Other),
        ("POST", "/kubernetes/ops", Call::Elsewhere),
        ("POST", "/credentials/../kubernetes/ops", Call::Elsewhere),
        ("POST", "/credentials/%2e%2e/kubernetes/ops", Call::Elsewhere),
        ("GET", "/credentialsx", Call::Elsewhere),
        ("GET", "/credentials/%ff", Call::Elsewhere),
        ("GET", "*", Call::Elsewhere),
    ] {
        assert_eq!(Call::of(method, path), call, "{method} {path}");
    }
    for path in [
        "/credentials/type/kubernetes",
        "/credentials/type/kubernetes/",
        "/credentials/%74ype/kubernetes",
        "/credentials/%2574ype/kubernetes",
        "/credentials;x/type;y/kubernetes",
        "/%63redentials/type/aws",
        "//credentials//type//aws",
        "/x/../credentials/type/aws",
        "/credentials/type%2Faws",
        "/credentials/type%5Caws",
        "/credentials/%2e/type/aws",
        "/credentials/prod/history",
        "/credentials/prod/hist%6Fry",
        "/credentials/type/history",
    ] {
        for method in ["GET", "HEAD", "POST", "DELETE"] {
            assert_eq!(Call::of(method, path), Call::Secrets, "{method} {path}");
        }
    }
}

#[test]
fn a_body_names_the_kubernetes_accounts_in_it() {
    let names = |call: &CredentialsCall, body: &str| {
        let write = AccountsWrite::of(call, serde_json::from_str(body).unwrap_or_default());
        write.map(|write| write.map(|write| write.accounts.into_keys().collect::<Vec<_>>().join(",")))
    };
    let some = |names: &str| Ok(Some(names.to_owned()));
    let create = CredentialsCall::Create;
    for (body, expected) in [
        (r#"{"type":"kubernetes","name":"a"}"#, "a"),
        (r#"{"type":"kubernetes","name":12}"#, "12"),
        (r#"{"type":"kubernetes","name":null}"#, ""),
        (r#"{"type":"aws","name":{}}"#, ""),
        (
            r#"[{"type":"kubernetes","name":"b"},{"type":"aws","name":"c"},{"type":"kubernetes","name":"a"}]"#,
            "a,b",
        ),
        (r#"{"@type":"kubernetes","name":"a"}"#, ""),
        (r#"{"type":"kubernetes"}"#, ""),
        ("[]", ""),
        ("null", ""),
    ] {
        assert_eq!(names(&create, body), some(expected), "{body}");
    }
    for name in ["1.50", "123456789012345678901", "true", "[]", "{}"] {
        let body = format!(r#"[0, {{"type":"kubernetes","name":{name}}}]"#);
        assert_eq!(names(&create, &body), Err(UnfitAccounts::Name(1)), "{body}");
    }
    let update = CredentialsCall::Update("a".to_owned());
    assert_eq!(names(&update, r#"{"type":"kubernetes","name":"a"}"#), some("a"));
    assert_eq!(names(&update, r#"{"type":"kubernetes","name":"b"}"#), some(""), "400 there");
    assert_eq!(names(&CredentialsCall::Delete("a".to_owned()), ""), some("a"));
    assert_eq!(names(&CredentialsCall::Read, r#"{"type":"kubernetes","name":"a"}"#), Ok(None));
    let many = |count| json!(vec![json!({"type": "kubernetes", "name": "a"}); count]).to_string();
    assert_eq!(names(&create, &many(MAX_ACCOUNTS)), some("a"));
    assert_eq!(names(&create, &many(MAX_ACCOUNTS + 1)), Err(UnfitAccounts::TooMany(MAX_ACCOUNTS + 1)));
}

fn known() -> impl Strategy<Value = Option<KnownAccount>> {
    proptest::option::of(any::<[bool; 5]>().prop_map(
        |[is_static, is_kept, is_leaving, is_of_write, was_in_clouddriver]| KnownAccount {
            is_static,
            owner: is_kept.then(|| "Argo CD".to_owned()),
            is_leaving,
            is_of_write,
            was_in_clouddriver,
        },
    ))
}

const VERBS: [WriteVerb; 3] = [WriteVerb::Post, WriteVerb::Put, WriteVerb::Delete];

proptest! {
    /// What a write leads to is stable: looking again changes nothing more, whatever of it was done before.
    #[test]
    fn effects_protect_what_is_not_rests_to_change(known in known(), verb in 0..3usize, present: bool) {
        let (verb, presence) = (VERBS[verb], if present { AccountPresence::Present } else { AccountPresence::Absent });
        let follow_up = follow_up(verb, presence, known.as_ref());
        match (&follow_up, &known) {
            (FollowUp::Create, known) => {
                prop_assert!(known.is_none());
                // The next look leaves what was made, and takes it back if Clouddriver has not the account after all.
                let made = KnownAccount { is_of_write: true, ..KnownAccount::default() };
                prop_assert!(matches!(super::follow_up(verb, presence, Some(&made)), FollowUp::Leave(_)));
                prop_assert_eq!(super::follow_up(verb, AccountPresence::Absent, Some(&made)), FollowUp::Delete);
            }
            (FollowUp::Update | FollowUp::Delete, known) => {
                let known = known.as_ref().expect("there is an account");
                prop_assert!(!known.is_static && known.owner.is_none());
                prop_assert_eq!(follow_up == FollowUp::Delete, presence == AccountPresence::Absent);
            }
            (FollowUp::Wait(_), known) => prop_assert!(known.as_ref().is_some_and(|known| known.is_leaving)),
            (FollowUp::Leave(why), _) => prop_assert!(!why.is_empty()),
        }
        // Nothing but a deletion that found the account, or what the write itself made, deletes.
        if follow_up == FollowUp::Delete {
            let known = known.expect("there is an account");
            let may = match verb {
                WriteVerb::Post => known.is_of_write,
                WriteVerb::Put => false,
                WriteVerb::Delete => known.was_in_clouddriver && is_carried_out(verb, presence, true),
            };
            prop_assert!(may);
            prop_assert!(verb != WriteVerb::Delete || !is_carried_out(verb, presence, false));
        }
    }

    #[test]
    fn no_text_is_too_odd(method in "GET|PUT|DELETE", path in "/\\PC{0,40}", body in "[\\[{}\\],:\"a0.]{0,12}") {
        let call = CredentialsCall::of(&method, &path);
        let _ = AccountsWrite::of(&call, serde_json::from_str(&body).unwrap_or_default());
    }

    #[test]
    fn encodings_do_not_hide_secrets(kind in "[a-z]{1,6}", twice: bool) {
        let encode = |text: &str| text.bytes().map(|byte| format!("%{byte:02X}")).collect::<String>();
        let mut path = format!("/{}/{}/{kind}", encode("credentials"), encode("type"));
        if twice {
            path = path.replace('%', "%25");
        }
        prop_assert_eq!(CredentialsCall::of("GET", &path), CredentialsCall::Secrets);
    }
}
