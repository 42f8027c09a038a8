use super::*;
use crate::account::{DesiredState, GrantPhase, State};
use crate::account::{Grant, KubesvcAccountSpec, KubesvcAccountStatus};

const NOW: Moment = Duration::from_secs(1000);

pub(in crate::hub) fn asking() -> KubesvcAccount {
    let mut account = KubesvcAccount::new("one", KubesvcAccountSpec::default());
    account.metadata.uid = Some("u".into());
    account.metadata.generation = Some(3);
    let status = KubesvcAccountStatus { state: Some(State::ToMigrate), epoch: 2, ..Default::default() };
    account.status = Some(status);
    account
}

pub(in crate::hub) fn round(account: &KubesvcAccount) -> Round {
    Round::of(account).expect("it asks")
}

fn view() -> SessionView<'static> {
    SessionView { zone: "z", approved: true, ..SessionView::default() }
}

fn step(questions: &Questions, account: &KubesvcAccount, now: Moment) -> Step {
    questions.step(view(), "u", Some(account), now)
}

fn asked(account: &KubesvcAccount) -> Questions {
    let mut questions = Questions::default();
    ask(&mut questions, account);
    questions
}

fn ask(questions: &mut Questions, account: &KubesvcAccount) {
    questions.queue("u", round(account));
    let (uid, round) = questions.next().expect("it is its turn");
    assert!(questions.send(&uid, round));
}

fn changed(change: impl FnOnce(&mut KubesvcAccount)) -> KubesvcAccount {
    let mut account = asking();
    change(&mut account);
    account
}

fn status(account: &mut KubesvcAccount) -> &mut KubesvcAccountStatus {
    account.status.as_mut().expect("it has one")
}

#[test]
fn an_account_asks_exactly_while_it_has_no_zone_and_wants_one() {
    assert!(Round::of(&asking()).is_some());
    let grant = Grant { phase: GrantPhase::Open, zone: Some("z".into()), ..Default::default() };
    let silent = [
        changed(|account| account.spec.zone_id = Some("z".into())),
        changed(|account| account.spec.state = Some(DesiredState::Inactive)),
        changed(|account| {
            account.metadata.deletion_timestamp =
                Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(jiff::Timestamp::UNIX_EPOCH));
        }),
        changed(|account| status(account).grant = Some(grant)),
    ];
    for account in silent {
        assert_eq!(Round::of(&account), None, "{account:?}");
    }
    for state in State::ALL.into_iter().filter(|state| *state != State::ToMigrate) {
        assert_eq!(Round::of(&changed(|account| status(account).state = Some(state))), None, "{state}");
    }
}

#[test]
fn a_session_is_asked_once_in_a_round() {
    let account = asking();
    let mut questions = Questions::default();
    assert_eq!(step(&questions, &account, NOW), Step::Ask(round(&account)));
    questions.queue("u", round(&account));
    assert_eq!(step(&questions, &account, NOW), Step::Nothing, "it waits for its turn");
    let (uid, asked) = questions.next().expect("it is its turn");
    assert_eq!(step(&questions, &account, NOW), Step::Nothing, "its address is looked up");
    assert!(questions.send(&uid, asked));
    assert_eq!(step(&questions, &account, NOW), Step::Nothing, "it is not answered yet");
    assert_eq!(questions.answer("u", 3, 2, true, NOW), Some(asked));
    assert_eq!(step(&questions, &account, NOW), Step::Nothing, "it said yes");
}

#[test]
fn a_new_generation_epoch_or_try_asks_anew() {
    let mut questions = asked(&asking());
    questions.answer("u", 3, 2, true, NOW);
    for account in [
        changed(|account| account.metadata.generation = Some(4)),
        changed(|account| status(account).epoch = 3),
        changed(|account| status(account).failed_count = 1),
    ] {
        assert_eq!(step(&questions, &account, NOW), Step::Ask(round(&account)));
    }
}

#[test]
fn a_no_is_asked_again_after_10_20_40_and_60_seconds() {
    let (account, mut now) = (asking(), NOW);
    let mut questions = Questions::default();
    let mut waits = Vec::new();
    for _ in 0..6 {
        ask(&mut questions, &account);
        assert!(questions.answer("u", 3, 2, false, now).is_some());
        let at = questions.again_at("u").expect("it is paced");
        assert_eq!(step(&questions, &account, now), Step::Later(at));
        waits.push((at - now).as_secs());
        now = at;
        assert_eq!(step(&questions, &account, now), Step::Ask(round(&account)));
    }
    assert_eq!(waits, [10, 20, 40, 60, 60, 60]);
}

#[test]
fn an_account_that_asks_no_more_is_forgotten_so_that_the_next_round_asks_anew() {
    let mut questions = asked(&asking());
    questions.answer("u", 3, 2, false, NOW);
    let active = changed(|account| status(account).state = Some(State::Active));
    assert_eq!(step(&questions, &active, NOW), Step::Forget);
    assert_eq!(questions.step(view(), "u", None, NOW), Step::Forget, "its object is gone");
    questions.forget("u");
    assert_eq!(step(&questions, &active, NOW), Step::Nothing);
    assert_eq!(step(&questions, &asking(), NOW), Step::Ask(round(&asking())));
}

#[test]
fn an_agent_that_is_not_approved_or_is_stopping_is_asked_nothing() {
    let questions = Questions::default();
    let asked = asked(&asking());
    for view in [SessionView { approved: false, ..view() }, SessionView { draining: true, ..view() }] {
        assert_eq!(questions.step(view, "u", Some(&asking()), NOW), Step::Nothing);
        assert_eq!(asked.step(view, "u", Some(&asking()), NOW), Step::Forget);
    }
}

#[test]
fn answers_to_what_was_not_asked_are_none() {
    let mut questions = Questions::default();
    assert_eq!(questions.answer("u", 3, 2, true, NOW), None, "never asked");
    questions.queue("u", round(&asking()));
    assert_eq!(questions.answer("u", 3, 2, true, NOW), None, "not sent yet");
    let mut questions = asked(&asking());
    assert_eq!(questions.answer("v", 3, 2, true, NOW), None, "another account");
    assert_eq!(questions.answer("u", 4, 2, true, NOW), None, "another generation");
    assert_eq!(questions.answer("u", 3, 1, true, NOW), None, "another epoch");
    assert!(questions.answer("u", 3, 2, true, NOW).is_some());
    assert_eq!(questions.answer("u", 3, 2, false, NOW), None, "answered already");
}

#[test]
fn what_cannot_be_sent_is_tried_again() {
    let mut questions = Questions::default();
    questions.queue("u", round(&asking()));
    let (uid, round) = questions.next().expect("it is its turn");
    let at = questions.not_sent(&uid, round, NOW).expect("it is still wanted");
    assert_eq!(step(&questions, &asking(), NOW), Step::Later(at));
    assert_eq!((at - NOW).as_secs(), 10);
}

#[test]
fn an_agent_that_leaves_many_questions_open_is_asked_no_more_until_it_answers() {
    let (mut questions, round) = (Questions::default(), round(&asking()));
    let uids: Vec<_> = (0..MAX_OPEN + 2).map(|number| format!("u{number}")).collect();
    uids.iter().for_each(|uid| questions.queue(uid, round));
    for uid in &uids[..MAX_OPEN] {
        assert_eq!(questions.next().as_ref().map(|(next, _)| next), Some(uid));
        questions.send(uid, round);
    }
    assert_eq!(questions.next(), None);
    questions.answer(&uids[7], 3, 2, false, NOW);
    questions.forget(&uids[MAX_OPEN]);
    assert_eq!(questions.next().map(|(uid, _)| uid), Some(uids[MAX_OPEN + 1].clone()));
    assert_eq!(questions.next(), None);
    uids.iter().for_each(|uid| questions.forget(uid));
    assert_eq!(questions.open, 0);
}
