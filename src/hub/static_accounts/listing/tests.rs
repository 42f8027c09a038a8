use super::*;
use kubesvc_core::wire::common;

#[test]
fn an_agent_lists_the_account_that_its_own_entry_makes_and_none_that_differs_in_its_source() {
    let entry = AccountSpec { context: "c".into(), metrics: true, ..sent("Prod East") };
    let made = read(vec![entry.clone()], &"z".into()).remove(0).expect("it is good");
    let account = |name: &str| {
        let mut account = KubesvcAccount::new("x", made.spec.clone());
        account.spec.account_name = Some(name.to_owned());
        account
    };
    assert!(Listing::of(std::slice::from_ref(&entry)).has(&account("Prod East")));
    assert!(!Listing::of(std::slice::from_ref(&entry)).has(&account("Prod West")));
    let others = [
        AccountSpec { insecure: true, ..entry.clone() },
        AccountSpec { context: String::new(), ..entry.clone() },
        AccountSpec { credential: Some(Credential::File("/other".into())), ..entry.clone() },
        AccountSpec { credential: Some(Credential::ServiceAccount(true)), ..entry },
    ];
    for other in others {
        let listing = Listing::of(&[other]);
        assert!(listing.has_name("Prod East") && !listing.has(&account("Prod East")));
    }
}

fn frame(accounts: usize, complete: bool) -> ops::StaticAccounts {
    ops::StaticAccounts { accounts: vec![AccountSpec::default(); accounts], complete }
}

fn is_refused(taken: &ListingStep, with: &str) -> bool {
    matches!(taken, ListingStep::Refused(why) if why.to_string().contains(with))
}

#[test]
fn frames_make_one_list_until_one_is_the_last() {
    let mut incoming = IncomingList::default();
    assert_eq!(incoming.take(frame(50, false)), ListingStep::More);
    assert!(matches!(incoming.take(frame(3, true)), ListingStep::Complete(list) if list.len() == 53));
    assert!(matches!(incoming.take(frame(0, true)), ListingStep::Complete(list) if list.is_empty()));
}

#[test]
fn list_of_a_thousand_is_accepted_and_a_longer_one_refused() {
    let mut incoming = IncomingList::default();
    for _ in 0..19 {
        assert_eq!(incoming.take(frame(50, false)), ListingStep::More);
    }
    assert!(matches!(incoming.take(frame(50, true)), ListingStep::Complete(list) if list.len() == 1000));
    for _ in 0..20 {
        assert_eq!(incoming.take(frame(50, false)), ListingStep::More);
    }
    assert!(is_refused(&incoming.take(frame(1, true)), "more than 1000"));
    assert!(matches!(incoming.take(frame(1, true)), ListingStep::Complete(list) if list.len() == 1));
}

#[test]
fn list_of_a_million_is_refused_once_without_storing_it() {
    let mut incoming = IncomingList::default();
    let refusals = (0..20_000).filter(|_| incoming.take(frame(50, false)) != ListingStep::More).count();
    assert_eq!((refusals, incoming.accounts.len(), incoming.bytes), (1, 0, 0));
    assert_eq!(incoming.take(frame(50, true)), ListingStep::More, "the end of the refused list");
    assert!(matches!(incoming.take(frame(2, true)), ListingStep::Complete(list) if list.len() == 2));
}

#[test]
fn a_frame_over_its_bounds_refuses_the_list() {
    assert!(is_refused(&IncomingList::default().take(frame(51, true)), "51 accounts"));
    let large = |bytes| ops::StaticAccounts {
        accounts: vec![AccountSpec { context: "x".repeat(bytes), ..Default::default() }],
        complete: false,
    };
    assert!(is_refused(&IncomingList::default().take(large(MAX_BATCH_BYTES + 2000)), "bytes"));
    let mut incoming = IncomingList::default();
    let refused =
        (0..10).map(|_| incoming.take(large(1024 * 1024))).find(|taken| *taken != ListingStep::More);
    assert!(refused.is_some_and(|taken| is_refused(&taken, "more than 8388608 bytes")));
}

pub(crate) fn sent(name: &str) -> AccountSpec {
    AccountSpec {
        account: Some(common::AccountRef { name: name.to_owned(), ..Default::default() }),
        credential: Some(Credential::File("/kubeconfigs/one".to_owned())),
        ..Default::default()
    }
}

fn why(answer: &StaticAnswer) -> &str {
    answer.failure.as_ref().map(|failure| failure.message.as_str()).unwrap_or_default()
}

#[test]
fn a_good_entry_becomes_a_spec_pinned_to_the_zone() {
    let full = AccountSpec {
        context: "c".into(),
        insecure: true,
        namespaces: vec!["a".into()],
        kinds: vec!["deployment".into()],
        only_namespaced_resources: true,
        custom_resource_definitions: vec![ops::CustomResourceDefinition {
            kind: "Lamp.example.org".into(),
            cluster_scoped: true,
        }],
        only_spinnaker_managed: true,
        metrics: true,
        no_proxy: true,
        max_resumable_resource_age_ms: 7,
        read_roles: vec!["007".into()],
        ..sent("Prod East")
    };
    let listed = read(vec![full], &"east".into()).remove(0).expect("it is good");
    assert_eq!(listed.name, "Prod East");
    let spec = listed.spec;
    assert_eq!(spec.account_name.as_deref(), Some("Prod East"), "it is no name of an object");
    assert_eq!(spec.zone_id.as_ref().map(ZoneId::as_str), Some("east"));
    assert_eq!(spec.kubeconfig.file.as_deref(), Some("/kubeconfigs/one"));
    assert_eq!((spec.context.as_deref(), spec.insecure), (Some("c"), Some(true)));
    assert_eq!(spec.permissions, BTreeMap::from([("READ".to_owned(), vec!["007".to_owned()])]));
    assert_eq!(spec.max_resumable_resource_age_ms, Some(7));
    assert_eq!(spec.custom_resource_definitions[0].scope, Some(Scope::Cluster));
    assert_eq!(spec.state, None);
    let plain = read(vec![sent("prod")], &"east".into()).remove(0).expect("it is good").spec;
    assert_eq!((plain.account_name, plain.context, plain.insecure), (None, None, None));
}

#[test]
fn entries_that_the_api_server_would_refuse_are_answered_with_the_field() {
    let file =
        |path: &str| AccountSpec { credential: Some(Credential::File(path.to_owned())), ..sent("one") };
    let both = vec!["a".to_owned()];
    let table = [
        (sent(""), "name must have"),
        (sent(&"x".repeat(256)), "name must have"),
        (sent("a\nb"), "name must have"),
        (sent("a\u{85}b"), "name must have"),
        (AccountSpec { account: None, ..sent("one") }, "name must have"),
        (AccountSpec { credential: None, ..sent("one") }, "exactly one of"),
        (
            AccountSpec { credential: Some(Credential::ServiceAccount(false)), ..sent("one") },
            "exactly one of",
        ),
        (file("kubeconfigs/one"), "kubeconfig.file must be an absolute path"),
        (file("/kubeconfigs/../one"), "kubeconfig.file must not contain .."),
        (file("/a\0b"), "kubeconfig.file must not contain control"),
        (file(""), "kubeconfig.file"),
        (file(&format!("/{}", "x".repeat(1024))), "kubeconfig.file"),
        (
            AccountSpec { namespaces: both.clone(), omit_namespaces: both.clone(), ..sent("one") },
            "spec.omitNamespaces exclude",
        ),
        (AccountSpec { kinds: both.clone(), omit_kinds: both, ..sent("one") }, "spec.omitKinds exclude"),
        (AccountSpec { namespaces: vec!["A B".into()], ..sent("one") }, "spec.namespaces"),
        (AccountSpec { only_namespaced_resources: true, ..sent("one") }, "needs spec.namespaces"),
        (AccountSpec { max_resumable_resource_age_ms: u64::MAX, ..sent("one") }, "maxResumableResourceAgeMs"),
        (AccountSpec { read_roles: vec![String::new()], ..sent("one") }, "spec.permissions.READ"),
        (AccountSpec { write_roles: vec!["x".into(); 1001], ..sent("one") }, "spec.permissions.WRITE"),
        (
            AccountSpec {
                credential: Some(Credential::ServiceAccount(true)),
                context: "c".into(),
                ..sent("one")
            },
            "spec.context has no meaning",
        ),
    ];
    for (bad, field) in table {
        let entries = read(vec![bad, sent("good")], &"z".into());
        let answer = entries[0].as_ref().expect_err(field);
        assert!(why(answer).contains(field), "{:?} lacks {field:?}", why(answer));
        assert!(answer.name.chars().count() <= 255 && !answer.name.contains(char::is_control));
        assert!(entries[1].is_ok(), "a good one beside it goes on");
    }
}

#[test]
fn inline_kubeconfig_is_refused_without_repeating_it() {
    let secret = Some(Credential::Kubeconfig(b"token: t0ps3cret".to_vec()));
    let answer = read(vec![AccountSpec { credential: secret, ..sent("one") }], &"z".into())
        .remove(0)
        .expect_err("it is refused");
    let failure = answer.failure.as_ref().expect("a reason");
    assert_eq!(failure.class(), Class::BadKubeconfig);
    assert!(!format!("{answer:?}").contains("t0ps3cret"));
}

#[test]
fn the_first_of_two_entries_with_one_name_counts() {
    let second = AccountSpec { metrics: true, ..sent("one") };
    let entries = read(vec![sent("one"), second, sent("two")], &"z".into());
    assert_eq!(entries[0].as_ref().expect("the first").spec.metrics, None);
    assert!(why(entries[1].as_ref().expect_err("the second")).contains("twice"));
    assert!(entries[2].is_ok());
}
