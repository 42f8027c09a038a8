//! Bad input, as data: each kind has one clear answer, at the direct door, behind the operator's API server and at REST,
//! and from API servers that misbehave; and the next good request works. `refusals.rs` has those that say who may, the
//! texts of operations and manifests are in `crates/core/src/operations/tests`, and frames in `src/hub/tests/requests.rs`.
//!
//! | file | what |
//! |---|---|
//! | `bytes.rs` | requests as bytes: paths, headers, bodies, tokens |
//! | `calls.rs` | operations by REST |
//! | `servers.rs` | API servers of accounts that misbehave, read and written |
//! | `time_limits.rs` | what is slow or hangs, until the time that it may take is over |

mod bytes;
mod calls;
pub(super) mod servers;
mod time_limits;

use kubesvc_core::State;
use serde_json::json;
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use super::place::{EVERYTHING, Place};
use super::refusals::{connect, connect_to, get};
use crate::world::MAX_WAIT;
use kubesvc_testkit::must;
use kubesvc_testkit::wait::eventually;
use servers::MisbehavingServer;

/// Number of kinds that this test has at least.
const KINDS: usize = 70;

/// A door of the gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Door {
    /// Its own port.
    Direct,
    /// The API server of the operator's cluster.
    Aggregated,
}

impl Door {
    /// Connects to it over TLS.
    async fn connect(self, place: &Place) -> TlsStream<TcpStream> {
        match self {
            Self::Direct => connect(place, None).await,
            Self::Aggregated => {
                let plane = place.world.control_plane();
                let port = plane.server_url().rsplit(':').next().and_then(|port| port.parse().ok());
                connect_to(port.expect("an address has a port"), &plane.ca_pem(), None).await
            }
        }
    }
}

/// What was tried, and what was answered wrongly.
#[derive(Default)]
pub(super) struct Tried {
    kinds: usize,
    wrong: Vec<String>,
}

impl Tried {
    fn note(&mut self, what: &str, answered: Result<(), String>) {
        self.kinds += 1;
        if let Err(why) = answered {
            self.wrong.push(format!("{what}: {why}"));
        }
    }

    fn append(&mut self, more: Self) {
        self.kinds += more.kinds;
        self.wrong.extend(more.wrong);
    }
}

/// Whether a request to the good account is answered.
async fn good(place: &Place, token: &str) -> Result<(), String> {
    let pods = format!("{}/api/v1/namespaces/default/pods", place.path());
    let answered = get(place, &pods, token).await?;
    if (answered.code, &answered.body["kind"]) == (200, &json!("PodList")) {
        return Ok(());
    }
    Err(format!("{answered:?}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_input_has_one_clear_answer_and_the_next_good_request_works() {
    let place = Place::start(true).await;
    let token = place.person("ann", EVERYTHING, Some("kubesvc")).await;
    let own_token = place.token("ann", None).await;
    let world = &place.world;
    world
        .account("bounded")
        .zone("east")
        .kubeconfig(&place.target.admin_kubeconfig())
        .spec("namespaces", json!(["default"]))
        .spec("onlyNamespacedResources", true)
        .create()
        .await;
    let server = MisbehavingServer::start(&place.target).await;
    world.account("odd").zone("east").kubeconfig(&server.kubeconfig).create().await;
    world.until("bounded", State::Active).await;
    world.until("odd", State::Active).await;

    eventually("an available APIService", MAX_WAIT, async || {
        let wait =
            ["wait", "--for=condition=Available", "apiservice/v1alpha1.proxy.kubesvc.io", "--timeout=5s"];
        world.control_plane().kubectl(wait).await.ok()
    })
    .await;

    let (mut tried, mut until_limits) = (Tried::default(), Tried::default());
    let at_once = async {
        bytes::try_all(&place, &token, &own_token, &mut tried).await;
        tried.note("the next good request", good(&place, &token).await);
        calls::try_all(&place, &token, &mut tried).await;
        tried.note("the next good request", good(&place, &token).await);
        server.try_all(&place, &token, &mut tried).await;
        tried.note("the next good request", good(&place, &token).await);
    };
    tokio::join!(at_once, time_limits::try_all(&place, &token, &own_token, &mut until_limits));
    tried.append(until_limits);
    tried.note("the next good request", good(&place, &token).await);

    assert!(tried.wrong.is_empty(), "{} of {}:\n{}", tried.wrong.len(), tried.kinds, tried.wrong.join("\n"));
    assert!(tried.kinds >= KINDS, "{} kinds", tried.kinds);
    for log in [world.operator().log_text(), place.agent.log_text()] {
        assert!(!log.contains("panicked"), "{log}");
        assert!(!log.contains(&token) && !log.contains(&own_token), "a token is logged");
    }
    must(world.operator().check_running());
}
