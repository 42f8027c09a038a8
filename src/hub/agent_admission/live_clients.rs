//! The certificates that clients showed, as long as their connections live. When other authorities or revocation lists are in
//! use, each is verified again, and the connections of those that are not accepted any more are closed.

use std::collections::HashMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;

use parking_lot::Mutex;
use rustls::pki_types::CertificateDer;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::hub::metrics::HubMetrics;
use kubesvc_runtime::tls::handshake_errors::problem_of_client;
use kubesvc_runtime::tls::server::ServerTls;

/// Maximum number of threads that verify certificates at once.
const MAX_THREADS: usize = 8;
/// Maximum number of closed connections that are named at once; of the others there is only the number.
const MAX_NAMED: usize = 20;

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
}

/// The client of a connection, which is forgotten with it.
#[derive(Default)]
pub(crate) struct LiveClient {
    chain: CertificateChain,
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
        let connection = LiveConnection { chain: Arc::clone(&chain), peer, close: close.clone() };
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
        LiveClient { chain, place: Some((Arc::clone(self), number)) }
    }

    /// Verifies all connections whenever other authorities or lists are in use, until stopped.
    pub(super) async fn follow(self: Arc<Self>, stop: CancellationToken) {
        let mut trust = self.trust();
        while let Some(Ok(())) = stop.run_until_cancelled(trust.changed()).await {
            let connections: Vec<_> = self.live.lock().connections.values().cloned().collect();
            let clients = Arc::clone(&self);
            // Thousands of signatures take longer than a task may hold its thread.
            let verified = tokio::task::spawn_blocking(move || clients.verify(&connections)).await;
            if let Err(panic) = verified {
                std::panic::resume_unwind(panic.into_panic());
            }
        }
    }

    /// Closes the connections whose certificates are not accepted.
    fn verify(&self, connections: &[LiveConnection]) {
        let mut chains: HashMap<&[CertificateDer<'_>], Vec<&LiveConnection>> = HashMap::new();
        for connection in connections {
            chains.entry(&connection.chain).or_default().push(connection);
        }
        let chains: Vec<_> = chains.into_iter().collect();
        let threads = thread::available_parallelism().map_or(1, usize::from).min(MAX_THREADS);
        thread::scope(|scope| {
            for some in chains.chunks(chains.len().div_ceil(threads).max(1)) {
                scope.spawn(move || some.iter().for_each(|(chain, of)| self.verify_chain(chain, of)));
            }
        });
    }

    fn verify_chain(&self, chain: &[CertificateDer<'_>], connections: &[&LiveConnection]) {
        let Err(problem) = self.tls.verify(chain) else { return };
        let why = problem_of_client(&problem);
        for (at, LiveConnection { peer, close, .. }) in connections.iter().enumerate() {
            self.metrics.refuse_connection("certificate");
            close.cancel();
            if at < MAX_NAMED {
                warn!(%peer, "connection closed: {why}");
            }
        }
        if let Some(more @ 1..) = connections.len().checked_sub(MAX_NAMED) {
            warn!("{more} more connections closed: {why}");
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
        let without = clients.enter(&[], ([192, 0, 2, 1], 1).into(), &CancellationToken::new(), &trust);
        assert!(without.chain().is_empty() && clients.live.lock().connections.is_empty());
    }
}
