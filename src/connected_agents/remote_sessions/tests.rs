use super::*;
use crate::leases::Times;
use kubesvc_core::agent_resource::AgentSession;
use kubesvc_core::lifecycle::{AgentReport, ClusterIdentity, Offer};
use kubesvc_core::report_outbox::{OutboxResult, SessionReport, awaited};
use kubesvc_core::{
    Grant, GrantEpoch, GrantPhase, KubesvcAccountSpec, KubesvcAccountStatus, KubesvcAgentSpec,
    KubesvcAgentStatus, State, object_names,
};

struct RemoteScene {
    remote: RemoteSessions,
    agents: Arc<AgentIndex>,
    accounts: Arc<AccountIndex>,
    lives: Arc<Replicas>,
    ticks: Arc<LeaderClock>,
    leader: WorkQueue<String>,
    version: u64,
}

impl RemoteScene {
    fn new() -> Self {
        let (agents, accounts) = (Arc::new(AgentIndex::default()), Arc::new(AccountIndex::default()));
        let (lives, ticks) =
            (Replicas::unknown(&"me".into(), Times::default()), Arc::new(LeaderClock::default()));
        lives.now_are(&["other", "third"]);
        let replicas = Arc::clone(&lives);
        let remote = RemoteSessions::new(
            &"me".into(),
            Arc::clone(&agents),
            Arc::clone(&accounts),
            replicas,
            Arc::clone(&ticks),
        );
        Self { remote, agents, accounts, lives, ticks, leader: WorkQueue::default(), version: 0 }
    }

    /// An account granted to zone `z` with epoch 4.
    fn account(&self, name: &str, state: State) -> KubesvcAccount {
        let mut account = KubesvcAccount::new(name, KubesvcAccountSpec::default());
        account.metadata.namespace = Some("ns".into());
        account.metadata.uid = Some(format!("uid-{name}"));
        account.metadata.resource_version = Some("1".into());
        account.metadata.generation = Some(1);
        let grant =
            Grant { phase: GrantPhase::Open, zone: Some("z".into()), generation: 1, definition: None };
        account.status = Some(KubesvcAccountStatus {
            state: Some(state),
            epoch: GrantEpoch(4),
            grant: (state != State::ToMigrate).then_some(grant),
            ..KubesvcAccountStatus::default()
        });
        self.accounts.show(account.clone());
        account
    }

    /// Sets what an agent's object says from now on.
    fn agent(&mut self, id: &str, zone: &str, replica: &str, change: impl FnOnce(&mut KubesvcAgentStatus)) {
        let spec = KubesvcAgentSpec { agent_id: id.into(), zone_id: zone.into(), approved: true };
        let mut agent = KubesvcAgent::new(&format!("{id}-{zone}"), spec);
        self.version += 1;
        agent.metadata.resource_version = Some(self.version.to_string());
        let session = AgentSession { id: "s".into(), replica: replica.into(), ..AgentSession::default() };
        let mut status = KubesvcAgentStatus { session: Some(session), connected: true, ..Default::default() };
        change(&mut status);
        agent.status = Some(status);
        self.agents.seen(agent);
    }

    /// Applies all changes and returns the names of the accounts that are woken.
    fn woken(&self) -> Vec<String> {
        self.remote.take_in(self.remote.changed.try_take(usize::MAX), &self.leader);
        let mut uids = self.leader.try_take(usize::MAX);
        uids.sort();
        uids
    }

    fn presences(&self, account: &KubesvcAccount) -> Vec<Presence> {
        self.remote.sessions(account).iter().map(|fact| fact.presence).collect()
    }
}

fn held(uid: &str) -> OutboxEntry {
    OutboxEntry {
        uid: uid.into(),
        epoch: GrantEpoch(4),
        result: OutboxResult::Held,
        identity: Some(ClusterIdentity::default()),
        ..OutboxEntry::default()
    }
}

#[test]
fn a_report_at_another_replica_reaches_the_leader() {
    let mut scene = RemoteScene::new();
    let account = scene.account("a", State::Activating);
    scene.agent("one", "z", "other", |_| {});
    assert_eq!(scene.woken(), ["uid-a"], "an agent of its zone came");
    assert_eq!(scene.remote.sessions(&account)[0].report, None);
    scene.agent("one", "z", "other", |status| status.outbox = vec![held("uid-a")]);
    assert_eq!(scene.woken(), ["uid-a"]);
    let word = Some((GrantEpoch(4), AgentReport::Held(ClusterIdentity::default())));
    assert_eq!(scene.remote.sessions(&account)[0].report, word);
    scene.agent("one", "z", "other", |status| {
        status.outbox = vec![held("uid-a")];
        status.held = Some(1);
    });
    assert_eq!(scene.woken(), Vec::<String>::new(), "nothing that matters has changed");
}

/// One outbox has reports for many accounts. A read for the sake of one of them must not leave the others
/// waiting for a change that never comes.
#[tokio::test]
async fn agents_read_for_one_account_update_all_accounts() {
    let mut scene = RemoteScene::new();
    for name in ["a", "b"] {
        scene.account(name, State::Activating);
    }
    scene.agent("one", "z", "other", |_| {});
    assert_eq!(scene.woken(), ["uid-a", "uid-b"]);
    scene.agent("one", "z", "other", |status| status.outbox = vec![held("uid-a"), held("uid-b")]);
    scene.remote.catch_up(&BTreeSet::from(["z".into()]));
    let stop = CancellationToken::new();
    let woken = async {
        let mut uids = Vec::new();
        while uids.len() < 2 {
            uids.extend(scene.leader.take(9).await);
        }
        uids.sort();
        uids
    };
    let told = tokio::select! {
        uids = woken => uids,
        () = scene.remote.follow(&scene.leader, &stop) => Vec::new(),
        () = tokio::time::sleep(std::time::Duration::from_secs(10)) => Vec::new(),
    };
    assert_eq!(told, ["uid-a", "uid-b"]);
}

#[test]
fn a_read_includes_changes_not_yet_applied_by_the_follower() {
    let mut scene = RemoteScene::new();
    let account = scene.account("a", State::Active);
    scene.agent("one", "z", "other", |_| {});
    let in_hand = scene.remote.changed.try_take(9);
    scene.remote.catch_up(&BTreeSet::from(["z".into()]));
    assert_eq!(scene.presences(&account), [Presence::Connected]);
    assert_eq!(scene.remote.unpublished.try_take(9), ["uid-a"]);
    scene.remote.take_in(in_hand, &scene.leader);
    assert!(scene.leader.is_empty(), "it was taken in, and is told once");
    scene.remote.catch_up(&BTreeSet::from(["z".into()]));
    assert!(scene.remote.unpublished.is_empty());
}

#[test]
fn an_agent_whose_replica_dies_is_away_from_then_on() {
    let mut scene = RemoteScene::new();
    let account = scene.account("a", State::Active);
    scene.agent("one", "z", "other", |_| {});
    scene.woken();
    scene.ticks.advance();
    scene.lives.now_are(&["third"]);
    let all = vec!["one-z".to_owned()];
    scene.remote.take_in(all.clone(), &scene.leader);
    assert_eq!(scene.leader.try_take(9), ["uid-a"]);
    assert_eq!(scene.presences(&account), [Presence::Away(1)]);
    scene.ticks.advance();
    scene.remote.take_in(all, &scene.leader);
    assert_eq!(scene.presences(&account), [Presence::Away(1)], "it is away since then");
    assert!(scene.leader.is_empty());
    scene.agent("one", "z", "third", |_| {});
    assert_eq!(
        (scene.woken(), scene.presences(&account)),
        (vec!["uid-a".to_owned()], vec![Presence::Connected])
    );
}

#[test]
fn agent_of_a_restarted_replica_is_away_until_registered_again() {
    let mut scene = RemoteScene::new();
    let account = scene.account("a", State::Active);
    scene.lives.now_are(&["other"]);
    let of = |process: &'static str| {
        move |status: &mut KubesvcAgentStatus| {
            if let Some(session) = &mut status.session {
                session.incarnation = Some(process.to_owned());
            }
        }
    };
    scene.agent("one", "z", "other", of("zero"));
    scene.woken();
    assert!(matches!(scene.presences(&account)[..], [Presence::Away(_)]));
    scene.agent("one", "z", "other", of("one"));
    assert_eq!(
        (scene.woken(), scene.presences(&account)),
        (vec!["uid-a".to_owned()], vec![Presence::Connected])
    );
}

#[test]
fn agent_that_left_before_the_first_read_is_gone() {
    let mut scene = RemoteScene::new();
    let account = scene.account("a", State::Active);
    scene.agent("one", "z", "other", |status| status.connected = false);
    scene.woken();
    assert_eq!(scene.presences(&account), [Presence::Away(0)]);
    scene.agent("one", "z", "other", |_| {});
    scene.woken();
    (0..7).for_each(|_| scene.ticks.advance());
    scene.agent("one", "z", "other", |status| status.connected = false);
    scene.woken();
    assert_eq!(scene.presences(&account), [Presence::Away(7)]);
}

#[test]
fn agents_of_this_replica_are_no_matter_here() {
    let mut scene = RemoteScene::new();
    let account = scene.account("a", State::Active);
    scene.agent("one", "z", "me", |_| {});
    assert_eq!((scene.woken(), scene.presences(&account)), (vec![], vec![]));
    scene.agent("one", "z", "other", |_| {});
    assert_eq!(scene.woken(), ["uid-a"]);
    scene.agent("one", "z", "me", |_| {});
    assert_eq!((scene.woken(), scene.presences(&account)), (vec!["uid-a".to_owned()], vec![]));
}

#[test]
fn an_offer_of_any_zone_reaches_the_account_that_asks() {
    let mut scene = RemoteScene::new();
    let account = scene.account("a", State::ToMigrate);
    let said = SessionReport { offers: true, ..SessionReport::default() };
    let offer = awaited(&account, &"y".into(), said).expect("it is awaited").entry;
    scene.agent("two", "y", "other", |_| {});
    scene.agent("one", "y", "other", |_| {});
    assert_eq!(scene.woken(), ["uid-a"]);
    assert_eq!(scene.remote.sessions(&account).len(), 1, "one of a zone is enough while none offers");
    scene.agent("two", "y", "other", |status| status.outbox = vec![offer]);
    assert_eq!(scene.woken(), ["uid-a"]);
    let offers: Vec<_> = scene.remote.sessions(&account).into_iter().filter_map(|fact| fact.offer).collect();
    assert_eq!(offers, [(1, Offer::Yes)]);
    let mut again = account;
    again.metadata.resource_version = Some("2".into());
    again.status.get_or_insert_default().retry_handled = Some("now".into());
    let offers: Vec<_> = scene.remote.sessions(&again).into_iter().filter_map(|fact| fact.offer).collect();
    assert_eq!(offers, [], "it was made in the round before");
}

#[test]
fn credential_mismatch_at_another_replica_reaches_the_leader_while_its_agent_is_connected() {
    let mut scene = RemoteScene::new();
    let account = scene.account("a", State::Active);
    scene.agent("one", "z", "other", |_| {});
    scene.woken();
    assert!(!scene.remote.mismatched(&account));
    let said = SessionReport { credential_mismatch: true, ..SessionReport::default() };
    let mismatch = awaited(&account, &"z".into(), said).expect("it is awaited").entry;
    for connected in [true, false] {
        let outbox = vec![mismatch.clone()];
        scene.agent("one", "z", "other", |status| (status.outbox, status.connected) = (outbox, connected));
        assert_eq!(scene.woken(), ["uid-a"]);
        assert_eq!(scene.remote.mismatched(&account), connected);
    }
    let mut renewed = account;
    renewed.status.get_or_insert_default().epoch = GrantEpoch(5);
    scene.agent("one", "z", "other", |status| status.outbox = vec![mismatch]);
    scene.woken();
    assert!(!scene.remote.mismatched(&renewed), "it was about the grant before");
}

#[test]
fn listed_accounts_are_recognized_by_their_digests() {
    let mut scene = RemoteScene::new();
    let account = scene.account("a", State::Active);
    scene.agent("one", "z", "other", |_| {});
    scene.woken();
    assert_eq!(scene.remote.sessions(&account)[0].lists, Fact::Unknown);
    for (listed, expected) in
        [(vec![object_names::digest("a")], true), (vec![object_names::digest("b")], false)]
    {
        scene.agent("one", "z", "other", |status| status.static_accounts = Some(listed));
        assert_eq!(scene.woken(), ["uid-a"]);
        assert_eq!(scene.remote.sessions(&account)[0].lists, Fact::Known(expected));
    }
    let other = KubesvcAccountSpec { insecure: Some(true), ..account.spec.clone() };
    for (spec, expected) in [(&other, false), (&account.spec, true)] {
        let digest = object_names::source_digest("a", spec);
        scene.agent("one", "z", "other", |status| {
            status.static_accounts = Some(vec![object_names::digest("a")]);
            status.static_sources = Some(vec![digest.clone()]);
            status.connected = false;
        });
        assert_eq!(scene.woken(), ["uid-a"]);
        let fact = &scene.remote.sessions(&account)[0];
        assert_eq!(fact.lists, Fact::Known(expected), "with the same source, and also of one that is away");
    }
}
