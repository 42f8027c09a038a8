//! The certificates that clients showed, as long as their connections live. When other authorities or revocation lists are in
//! use, each is verified again, and the connections of those that are not accepted any more are closed.

use std::collections::HashMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use rustls::pki_types::CertificateDer;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::hub::metrics::HubMetrics;
use kubesvc_runtime::tls::handshake_errors::problem_of_client;
use kubesvc_runtime::tls::identity::not_after;
use kubesvc_runtime::tls::server::ServerTls;

/// Maximum number of threads that verify certificates at once.
const MAX_THREADS: usize = 8;
/// Maximum number of closed connections that are named for one change; of the others there is only the number.
const MAX_NAMED: usize = 20;

/// Interval between two looks at certificates that may have expired.
const EXPIRY_INTERVAL: Duration = Duration::from_secs(10);

/// A certificate with those that lead to its authority, in DER; empty: none was shown.
pub(crate) type CertificateChain = Arc<[CertificateDer<'static>]>;

/// The clients of a port with TLS.
pub(crate) struct LiveClients {
    tls: Arc<ServerTls>,
    metrics: HubMetrics,
    live: Mutex<Live>,
}

#[derive(Default)]
struct Live {
    next: u64,
    connections: HashMap<u64, LiveConnection>,
}

#[derive(Clone)]
struct LiveConnection {
    chain: CertificateChain,
    peer: SocketAddr,
    close: CancellationToken,
    revoked: Arc<AtomicBool>,
    /// When the certificate expires, in epoch seconds.
    not_after: i64,
}

/// The client of a connection, which is forgotten with it.
#[derive(Default)]
pub(crate) struct LiveClient {
    chain: CertificateChain,
    revoked: Arc<AtomicBool>,
    place: Option<(Arc<LiveClients>, u64)>,
}

impl fmt::Debug for LiveClients {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LiveClients").field("tls", &self.tls).finish_non_exhaustive()
    }
}

impl LiveClient {
    /// What the client showed.
    pub(super) fn chain(&self) -> CertificateChain {
        Arc::clone(&self.chain)
    }

    /// Whether the certificate is not accepted any more.
    pub(super) fn revoked(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.revoked)
    }
}

impl Drop for LiveClient {
    fn drop(&mut self) {
        if let Some((clients, number)) = self.place.take() {
            clients.live.lock().connections.remove(&number);
        }
    }
}

impl LiveClients {
    pub(super) fn new(tls: Arc<ServerTls>, metrics: HubMetrics) -> Arc<Self> {
        Arc::new(Self { tls, metrics, live: Mutex::default() })
    }

    pub(super) fn tls(&self) -> &ServerTls {
        &self.tls
    }

    /// The authorities and lists that are in use now, for [`LiveClients::enter`].
    pub(super) fn trust(&self) -> watch::Receiver<u64> {
        self.tls.trust_changes()
    }

    /// Keeps what a client showed in a handshake that began with this `trust`. `close` closes its connection.
    pub(super) fn enter(
        self: &Arc<Self>,
        chain: &[CertificateDer<'_>],
        peer: SocketAddr,
        close: &CancellationToken,
        trust: &watch::Receiver<u64>,
    ) -> LiveClient {
        if chain.is_empty() {
            return LiveClient::default();
        }
        let chain: CertificateChain = chain.iter().map(|one| one.clone().into_owned()).collect();
        let not_after = not_after(&chain).unwrap_or(i64::MAX);
        let revoked = Arc::<AtomicBool>::default();
        let (held, close) = (Arc::clone(&chain), close.clone());
        let connection =
            LiveConnection { chain: held, peer, close, revoked: Arc::clone(&revoked), not_after };
        let number = {
            let mut live = self.live.lock();
            live.next += 1;
            let number = live.next;
            live.connections.insert(number, connection.clone());
            number
        };
        // They may have changed since the handshake began, and `follow` has not seen this connection then.
        if trust.has_changed().unwrap_or(true) {
            self.verify(&[connection]);
        }
        LiveClient { chain, revoked, place: Some((Arc::clone(self), number)) }
    }

    /// Verifies all connections whenever other authorities or lists than those of `trust` are in use, and closes those whose
    /// certificate expires, until stopped.
    pub(super) async fn follow(self: Arc<Self>, mut trust: watch::Receiver<u64>, stop: CancellationToken) {
        let mut expiry = tokio::time::interval(EXPIRY_INTERVAL);
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = expiry.tick() => {
                    self.close_expired(jiff::Timestamp::now().as_second());
                    continue;
                }
                changed = trust.changed() => if changed.is_err() { return },
            }
            let connections: Vec<_> = self.live.lock().connections.values().cloned().collect();
            let clients = Arc::clone(&self);
            // Thousands of signatures take longer than a task may hold its thread.
            let verified = tokio::task::spawn_blocking(move || clients.verify(&connections)).await;
            if let Err(panic) = verified {
                // Without it, nobody would be cut any more.
                error!(%panic, "cannot verify the certificates of connected agents again; closing all of their connections");
                self.live.lock().connections.values().for_each(|connection| connection.close.cancel());
            }
        }
    }

    /// Closes the connections whose certificates are not accepted.
    fn verify(&self, connections: &[LiveConnection]) {
        let (named, more) = (&AtomicUsize::new(0), &AtomicUsize::new(0));
        let mut chains: HashMap<&[CertificateDer<'_>], Vec<&LiveConnection>> = HashMap::new();
        for connection in connections {
            chains.entry(&connection.chain).or_default().push(connection);
        }
        let chains: Vec<_> = chains.into_iter().collect();
        let threads = thread::available_parallelism().map_or(1, usize::from).min(MAX_THREADS);
        thread::scope(|scope| {
            for some in chains.chunks(chains.len().div_ceil(threads).max(1)) {
                scope.spawn(move || {
                    some.iter().for_each(|(chain, of)| self.verify_chain(chain, of, (named, more)));
                });
            }
        });
        if let more @ 1.. = more.load(Ordering::Relaxed) {
            warn!("{more} more connections closed, since their certificates are not accepted any more");
        }
    }

    fn verify_chain(
        &self,
        chain: &[CertificateDer<'_>],
        connections: &[&LiveConnection],
        (named, more): (&AtomicUsize, &AtomicUsize),
    ) {
        let Err(problem) = self.tls.verify(chain) else { return };
        let why = problem_of_client(&problem);
        for LiveConnection { peer, close, revoked, .. } in connections {
            self.metrics.refuse_connection("certificate");
            revoked.store(true, Ordering::SeqCst);
            close.cancel();
            if named.fetch_add(1, Ordering::Relaxed) < MAX_NAMED {
                warn!(%peer, "connection closed: {why}");
            } else {
                more.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Closes the connections whose certificate has expired.
    fn close_expired(&self, now: i64) {
        let live = self.live.lock();
        for LiveConnection { peer, close, not_after, .. } in live.connections.values() {
            if *not_after <= now && !close.is_cancelled() {
                self.metrics.refuse_connection("certificate");
                close.cancel();
                info!(%peer, "connection closed: the certificate of its client has expired");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rustls::pki_types::pem::PemObject as _;

    use super::*;
    use kubesvc_runtime::tls::clients::ClientAuth;
    use kubesvc_runtime::tls::server::{ServerIdentity, ServerTlsSettings};
    use kubesvc_testkit::certificates::TestAuthority;

    #[tokio::test]
    async fn a_certificate_revoked_during_its_handshake_is_seen_and_each_is_forgotten_with_its_connection() {
        let authority = TestAuthority::new("ca");
        let folder = tempfile::tempdir().expect("a folder");
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).expect("written");
            path
        };
        let settings = ServerTlsSettings {
            identity: ServerIdentity::Made(Arc::default()),
            client_auth: ClientAuth::Required,
            authorities: Some(write("ca", authority.pem())),
            revocation_lists: vec![write("crl", &authority.revoking(&[]))],
            protocols: Vec::new(),
            suites: Vec::new(),
            alpn: &[],
        };
        let tls = Arc::new(ServerTls::read(settings).await.expect("it can be used"));
        let clients = LiveClients::new(Arc::clone(&tls), HubMetrics::default());
        let trust = clients.trust();
        write("crl", &authority.revoking(&[7]));
        assert!(tls.refresh().await.expect("it can be used"));
        for (serial, is_closed) in [(7, true), (8, false)] {
            let leaf = CertificateDer::from_pem_slice(authority.client(serial).0.as_bytes());
            let (chain, close) = ([leaf.expect("a certificate")], CancellationToken::new());
            let client = clients.enter(&chain, ([192, 0, 2, 1], 1).into(), &close, &trust);
            assert_eq!(close.is_cancelled(), is_closed, "{serial}");
            assert_eq!((client.chain().len(), clients.live.lock().connections.len()), (1, 1));
            drop(client);
            assert!(clients.live.lock().connections.is_empty());
        }
        let leaf =
            CertificateDer::from_pem_slice(authority.expired_client().0.as_bytes()).expect("a certificate");
        let (close, now) = (CancellationToken::new(), clients.trust());
        let expired = clients.enter(&[leaf], ([192, 0, 2, 1], 1).into(), &close, &now);
        clients.close_expired(1_600_000_000);
        assert!(!close.is_cancelled(), "its time had not ended");
        clients.close_expired(1_700_000_000);
        assert!(close.is_cancelled());
        drop(expired);
        let without = clients.enter(&[], ([192, 0, 2, 1], 1).into(), &CancellationToken::new(), &trust);
        assert!(without.chain().is_empty() && clients.live.lock().connections.is_empty());
    }
}
