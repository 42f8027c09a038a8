use std::sync::LazyLock;

use super::*;
use kubesvc_core::{DesiredState, GrantPhase, State, ZoneId};
use kubesvc_core::{Grant, KubesvcAccountSpec, KubesvcAccountStatus};

const NOW: HubUptime = Duration::from_secs(1000);

pub(crate) fn asking() -> KubesvcAccount {
    let mut account = KubesvcAccount::new("one", KubesvcAccountSpec::default());
    account.metadata.uid = Some("u".into());
    account.metadata.generation = Some(3);
    let status =
        KubesvcAccountStatus { state: Some(State::ToMigrate), epoch: GrantEpoch(2), ..Default::default() };
    account.status = Some(status);
    account
}

pub(crate) fn round(account: &KubesvcAccount) -> ProbeRound {
    ProbeRound::of(account).expect("it asks")
}

static ZONE: LazyLock<ZoneId> = LazyLock::new(|| "z".into());

fn view() -> SessionView<'static> {
    SessionView { zone: &ZONE, approved: true, ..SessionView::default() }
}

fn step(probes: &SessionProbes, account: &KubesvcAccount, now: HubUptime) -> ProbeStep {
    probes.step(view(), "u", Some(account), now)
}

fn asked(account: &KubesvcAccount) -> SessionProbes {
    let mut probes = SessionProbes::default();
    ask(&mut probes, account);
    probes
}

fn ask(probes: &mut SessionProbes, account: &KubesvcAccount) {
    probes.queue("u", round(account));
    let (uid, round) = probes.next().expect("it is its turn");
    assert!(probes.send(&uid, round));
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
    assert!(ProbeRound::of(&asking()).is_some());
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
        assert_eq!(ProbeRound::of(&account), None, "{account:?}");
    }
    for state in State::ALL.into_iter().filter(|state| *state != State::ToMigrate) {
        assert_eq!(ProbeRound::of(&changed(|account| status(account).state = Some(state))), None, "{state}");
    }
}

#[test]
fn a_session_is_asked_once_in_a_round() {
    let account = asking();
    let mut probes = SessionProbes::default();
    assert_eq!(step(&probes, &account, NOW), ProbeStep::Send(round(&account)));
    probes.queue("u", round(&account));
    assert_eq!(step(&probes, &account, NOW), ProbeStep::Nothing, "it waits for its turn");
    let (uid, asked) = probes.next().expect("it is its turn");
    assert_eq!(step(&probes, &account, NOW), ProbeStep::Nothing, "its address is looked up");
    assert!(probes.send(&uid, asked));
    assert_eq!(step(&probes, &account, NOW), ProbeStep::Nothing, "it is not answered yet");
    assert_eq!(probes.answer("u", 3, GrantEpoch(2), true, NOW), Some(asked));
    assert_eq!(step(&probes, &account, NOW), ProbeStep::Nothing, "it said yes");
}

#[test]
fn new_generation_epoch_or_retry_starts_a_new_round() {
    let mut probes = asked(&asking());
    probes.answer("u", 3, GrantEpoch(2), true, NOW);
    for account in [
        changed(|account| account.metadata.generation = Some(4)),
        changed(|account| status(account).epoch = GrantEpoch(3)),
        changed(|account| status(account).failed_count = 1),
    ] {
        assert_eq!(step(&probes, &account, NOW), ProbeStep::Send(round(&account)));
    }
}

#[test]
fn a_no_is_asked_again_after_10_20_40_and_60_seconds() {
    let (account, mut now) = (asking(), NOW);
    let mut probes = SessionProbes::default();
    let mut waits = Vec::new();
    for _ in 0..6 {
        ask(&mut probes, &account);
        assert!(probes.answer("u", 3, GrantEpoch(2), false, now).is_some());
        let at = probes.again_at("u").expect("it is paced");
        assert_eq!(step(&probes, &account, now), ProbeStep::Later(at));
        waits.push((at - now).as_secs());
        now = at;
        assert_eq!(step(&probes, &account, now), ProbeStep::Send(round(&account)));
    }
    assert_eq!(waits, [10, 20, 40, 60, 60, 60]);
}

#[test]
fn account_that_needs_no_zone_is_forgotten_and_can_be_probed_again() {
    let mut probes = asked(&asking());
    probes.answer("u", 3, GrantEpoch(2), false, NOW);
    let active = changed(|account| status(account).state = Some(State::Active));
    assert_eq!(step(&probes, &active, NOW), ProbeStep::Forget);
    assert_eq!(probes.step(view(), "u", None, NOW), ProbeStep::Forget, "its object is gone");
    probes.forget("u");
    assert_eq!(step(&probes, &active, NOW), ProbeStep::Nothing);
    assert_eq!(step(&probes, &asking(), NOW), ProbeStep::Send(round(&asking())));
}

#[test]
fn an_agent_that_is_not_approved_or_is_stopping_is_asked_nothing() {
    let probes = SessionProbes::default();
    let asked = asked(&asking());
    for view in [SessionView { approved: false, ..view() }, SessionView { draining: true, ..view() }] {
        assert_eq!(probes.step(view, "u", Some(&asking()), NOW), ProbeStep::Nothing);
        assert_eq!(asked.step(view, "u", Some(&asking()), NOW), ProbeStep::Forget);
    }
}

#[test]
fn unrequested_probe_answers_have_no_effect() {
    let mut probes = SessionProbes::default();
    assert_eq!(probes.answer("u", 3, GrantEpoch(2), true, NOW), None, "never asked");
    probes.queue("u", round(&asking()));
    assert_eq!(probes.answer("u", 3, GrantEpoch(2), true, NOW), None, "not sent yet");
    let mut probes = asked(&asking());
    assert_eq!(probes.answer("v", 3, GrantEpoch(2), true, NOW), None, "another account");
    assert_eq!(probes.answer("u", 4, GrantEpoch(2), true, NOW), None, "another generation");
    assert_eq!(probes.answer("u", 3, GrantEpoch(1), true, NOW), None, "another epoch");
    assert!(probes.answer("u", 3, GrantEpoch(2), true, NOW).is_some());
    assert_eq!(probes.answer("u", 3, GrantEpoch(2), false, NOW), None, "answered already");
}

#[test]
fn unsent_probe_is_retried() {
    let mut probes = SessionProbes::default();
    probes.queue("u", round(&asking()));
    let (uid, round) = probes.next().expect("it is its turn");
    let at = probes.not_sent(&uid, round, NOW).expect("it is still wanted");
    assert_eq!(step(&probes, &asking(), NOW), ProbeStep::Later(at));
    assert_eq!((at - NOW).as_secs(), 10);
}

#[test]
fn an_agent_that_leaves_many_questions_open_is_asked_no_more_until_it_answers() {
    let (mut probes, round) = (SessionProbes::default(), round(&asking()));
    let uids: Vec<_> = (0..MAX_OPEN_PROBES + 2).map(|number| format!("u{number}")).collect();
    uids.iter().for_each(|uid| probes.queue(uid, round));
    for uid in &uids[..MAX_OPEN_PROBES] {
        assert_eq!(probes.next().as_ref().map(|(next, _)| next), Some(uid));
        probes.send(uid, round);
    }
    assert_eq!(probes.next(), None);
    probes.answer(&uids[7], 3, GrantEpoch(2), false, NOW);
    probes.forget(&uids[MAX_OPEN_PROBES]);
    assert_eq!(probes.next().map(|(uid, _)| uid), Some(uids[MAX_OPEN_PROBES + 1].clone()));
    assert_eq!(probes.next(), None);
    uids.iter().for_each(|uid| probes.forget(uid));
    assert_eq!(probes.open, 0);
}
