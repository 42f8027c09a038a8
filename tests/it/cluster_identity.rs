//! Identification of the cluster that an account reaches, with two real API servers.

use kubesvc_core::wire::ops::ClusterIdentity;
use kubesvc_core::{KubesvcAccount, RETRY_ANNOTATION, State};
use serde_json::json;

use crate::faults::proxy::Proxy;
use crate::world::{Agent, Cluster, World, condition};
use kubesvc_testkit::controlplane::{ControlPlane, Reused, StartOptions};
use kubesvc_testkit::kubeconfig::{self, Proof};
use kubesvc_testkit::must;
use kubesvc_testkit::simulated_agent::SimulatedAgent;
use kubesvc_testkit::simulated_agent::frames::{Introduction, OnAdd, Policy, identity};

/// The world's own control plane, and another one that accepts the same tokens.
struct TwoClusters {
    world: World,
    other: Reused,
    /// May read everything in both.
    rich: Cluster,
    /// Has at most namespaced permissions in both.
    poor: Cluster,
    _agent: Agent,
}

impl TwoClusters {
    async fn start() -> Self {
        let world = World::start().await;
        let (rich, poor) = (world.cluster("rich").await, world.cluster_without_rights("poor").await);
        let mut options = StartOptions::without_audit();
        options.add_user_with_token("rich", &["system:masters"], rich.token());
        options.add_user_with_token("poor", &["system:serviceaccounts"], poor.token());
        let other = must(ControlPlane::reused(options).await);
        let agent = world.agent("agent-1").start().await;
        Self { world, other, rich, poor, _agent: agent }
    }

    fn port_here(&self) -> u16 {
        port(self.rich.server())
    }

    fn port_there(&self) -> u16 {
        port(&self.other.server_url())
    }

    /// A kubeconfig for the poor user with this authority.
    fn pinned(&self, proxy: &Proxy, authority: &str) -> String {
        kubeconfig::yaml(&url(proxy), authority, Proof::Token(self.poor.token()))
    }

    async fn until_active_after(&self, name: &str, before: &KubesvcAccount) -> KubesvcAccount {
        let epoch = before.status_or_default().epoch;
        let active = self.world.until_account(name, "is ACTIVE anew", |account| {
            let status = account.status_or_default();
            status.state() == State::Active && status.epoch > epoch
        });
        active.await
    }
}

fn url(proxy: &Proxy) -> String {
    format!("https://127.0.0.1:{}", proxy.port())
}

fn port(url: &str) -> u16 {
    must(url.rsplit(':').next().unwrap_or_default().parse().map_err(|_| format!("{url} has no port")))
}

fn first_of(uid: Option<&String>) -> &str {
    &uid.expect("a uid")[..8]
}

/// One pair of control planes for all cases: each needs 300 MB.
#[tokio::test(flavor = "multi_thread")]
async fn clusters_are_distinguished_by_identity_not_address() {
    let two = TwoClusters::start().await;
    clusters_that_swap_addresses_are_a_mismatch_that_names_both(&two).await;
    a_cluster_made_anew_behind_one_address_is_another_one_without_kube_system(&two).await;
    // Runs last: the other control plane's own clients know only the old authority.
    an_authority_that_is_rotated_is_the_same_cluster_at_the_same_and_at_a_new_address(&two).await;
}

async fn clusters_that_swap_addresses_are_a_mismatch_that_names_both(two: &TwoClusters) {
    let (first, second) = (Proxy::to(two.port_here()).await, Proxy::to(two.port_there()).await);
    // Without an authority, so that no certificate reveals the swap.
    let open = |proxy: &Proxy| two.rich.kubeconfig_in_one_line().replace(two.rich.server(), &url(proxy));
    for (name, proxy) in [("one", &first), ("two", &second)] {
        two.world.account(name).zone("east").kubeconfig(&open(proxy)).create().await;
    }
    let one = two.world.until("one", State::Active).await;
    let other = two.world.until("two", State::Active).await;
    let (here, there) =
        (one.status_or_default().cluster_uid.clone(), other.status_or_default().cluster_uid.clone());
    let (here, there) = (first_of(here.as_ref()), first_of(there.as_ref()));
    assert_ne!(here, there);
    let wide = must(two.world.kubectl(&["get", "ksa", "one", "-o", "wide"]).await.ok());
    assert!(wide.contains(&format!("127.0.0.1:{} ({here})", first.port())), "{wide}");

    first.lead_to(two.port_there());
    second.lead_to(two.port_here());
    for (name, bound, reached) in [("one", here, there), ("two", there, here)] {
        two.world.patch(name, json!({"spec": {"kinds": ["deployment"]}})).await;
        let failed = two.world.until_reason(name, State::Failed, "ClusterMismatch").await;
        let status = failed.status_or_default();
        assert_eq!(first_of(status.cluster_uid.as_ref()), bound, "the binding stays");
        let message = status.error_message.clone().unwrap_or_default();
        assert!(message.contains(&format!("(kube-system {reached}), another cluster than")), "{message}");
        assert!(message.contains(&format!("(kube-system {bound})")), "{message}");
    }
    first.lead_to(two.port_here());
    two.world.annotate("one", RETRY_ANNOTATION, "swapped back").await;
    two.world.until("one", State::Active).await;
}

async fn a_cluster_made_anew_behind_one_address_is_another_one_without_kube_system(two: &TwoClusters) {
    let proxy = Proxy::to(two.port_here()).await;
    let mine = json!([two.world.namespace()]);
    let account = two.world.account("anew").zone("east").spec("namespaces", mine);
    account.kubeconfig(&two.pinned(&proxy, two.poor.authority())).create().await;
    let bound = two.world.until("anew", State::Active).await;
    let status = bound.status_or_default();
    assert_eq!(status.cluster_uid, None, "it may not read kube-system");
    assert!(status.token_keys_digest.is_some() && status.authority_key_digest.is_some(), "{status:#?}");
    let known = condition(&bound, "ClusterIdentity").expect("a condition");
    assert_eq!((known.status.as_str(), known.reason.as_str()), ("True", "TokenKeys"));

    proxy.lead_to(two.port_there());
    two.world.secret("anew", two.pinned(&proxy, &two.other.ca_pem()).as_bytes(), true).await;
    let failed = two.world.until_reason("anew", State::Failed, "ClusterMismatch").await;
    let keys = format!("(token keys {})", first_of(status.token_keys_digest.as_ref()));
    let message = failed.status_or_default().error_message.clone().unwrap_or_default();
    assert!(message.contains(&format!("another cluster than {} {keys}", url(&proxy))), "{message}");

    two.world.patch("anew", json!({"spec": {"state": "INACTIVE"}})).await;
    let unbound = two.world.until("anew", State::Inactive).await;
    let cleared = unbound.status_or_default();
    assert_eq!((&cleared.token_keys_digest, &cleared.authority_key_digest), (&None, &None));
    two.world.patch("anew", json!({"spec": {"state": "ACTIVE"}})).await;
    let moved = two.world.until("anew", State::Active).await;
    assert_ne!(moved.status_or_default().token_keys_digest, status.token_keys_digest);
}

async fn an_authority_that_is_rotated_is_the_same_cluster_at_the_same_and_at_a_new_address(
    two: &TwoClusters,
) {
    let (old, new) = (Proxy::to(two.port_there()).await, Proxy::to(two.port_there()).await);
    let mine = json!([two.world.namespace()]);
    let account = two.world.account("rotated").zone("east").spec("namespaces", mine);
    account.kubeconfig(&two.pinned(&old, &two.other.ca_pem())).create().await;
    let mut before = two.world.until("rotated", State::Active).await;
    for proxy in [&old, &new] {
        let authority = two.other.rotate_authority();
        two.world.secret("rotated", two.pinned(proxy, &authority).as_bytes(), true).await;
        let after = two.until_active_after("rotated", &before).await;
        let (was, is) = (before.status_or_default(), after.status_or_default());
        assert_eq!(is.token_keys_digest, was.token_keys_digest);
        assert_ne!(is.authority_key_digest, was.authority_key_digest, "the new one is learnt");
        assert_eq!(is.kube_host, Some(url(proxy)));
        let known = condition(&after, "ClusterIdentity").expect("a condition");
        assert_eq!((known.status.as_str(), known.reason.as_str()), ("True", "TokenKeys"));
        drop((was, is));
        before = after;
    }
}

/// An agent of zone east that runs in a cluster, and holds what it is sent there.
async fn agent_in(world: &World, agent_id: &str, cluster_uid: &str) -> SimulatedAgent {
    let hub = format!("127.0.0.1:{}", world.operator().hub_port());
    let cluster = ClusterIdentity { kube_system_uid: cluster_uid.to_owned(), ..identity(cluster_uid) };
    let policy = Policy { add: OnAdd::Hold(cluster), ..Policy::default() };
    let introduction =
        Introduction { cluster_uid: cluster_uid.to_owned(), ..Introduction::new(agent_id, "east") };
    must(SimulatedAgent::connect(&hub, introduction, policy).await.map_err(|problem| problem.to_string()))
}

#[tokio::test(flavor = "multi_thread")]
async fn in_cluster_account_of_a_zone_with_two_clusters_is_bound_to_none() {
    let world = World::start().await;
    let (prod, other) = ("11111111-2222-4333-8444-555555555555", "99999999-2222-4333-8444-555555555555");
    let _first = agent_in(&world, "agent-1", prod).await;
    let own = || json!({"serviceAccount": true});
    world.account("bound").zone("east").spec("kubeconfig", own()).create().await;
    let bound = world.until("bound", State::Active).await;
    assert_eq!(bound.status_or_default().cluster_uid.as_deref(), Some(prod));

    let second = agent_in(&world, "agent-2", other).await;
    world.account("late").zone("east").spec("kubeconfig", own()).create().await;
    let late = world.until_reason("late", State::Failed, "ZoneSpansClusters").await;
    let status = late.status_or_default();
    let why = status.error_message.clone().unwrap_or_default();
    assert!(why.contains("11111111 (agent agent-1)") && why.contains("99999999 (agent agent-2)"), "{why}");
    assert_eq!((&status.cluster_uid, status.granted_zone()), (&None, None));
    let stays = world.object("bound").await.expect("it is there");
    let status = stays.status_or_default();
    assert_eq!((status.state(), status.cluster_uid.as_deref()), (State::Active, Some(prod)));
    assert!(second.added().is_empty(), "it is in another cluster: {:?}", second.added());

    // Only one cluster is left.
    second.goodbye().await;
    let late = world.until("late", State::Active).await;
    assert_eq!(late.status_or_default().cluster_uid.as_deref(), Some(prod));
}
