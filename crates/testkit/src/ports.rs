//! Free local TCP ports.

use std::{collections::BTreeSet, net::TcpListener, ops::Range, sync::LazyLock};

use parking_lot::Mutex;

/// Below the range that Linux and macOS use for outgoing connections. Otherwise a listener that restarts could find
/// its port taken: a client that keeps connecting to a closed port of that range may even be assigned the same port
/// as its source, and connect to itself.
const RANGE: Range<u16> = 20_000..32_000;
/// Number of test processes beside one another, each of which has ports of its own.
const LANES: u16 = 8;

/// The ports of this process: all, or those of its lane (`tests/run.sh`).
static OWN: LazyLock<Range<u16>> = LazyLock::new(|| {
    let lane = std::env::var("KUBESVC_TEST_LANE").ok().and_then(|lane| lane.parse::<u16>().ok());
    lane.map_or(RANGE, |lane| {
        let count = (RANGE.end - RANGE.start) / LANES;
        let start = RANGE.start + lane % LANES * count;
        start..start + count
    })
});

static GIVEN: LazyLock<Mutex<BTreeSet<u16>>> = LazyLock::new(Mutex::default);

/// Returns a port of 127.0.0.1 that nothing listens on and that this process has not returned before.
///
/// Another process may still take it first, so starting a server must be retried with another port.
pub fn free() -> u16 {
    for _ in 0..10_000 {
        let port = rand::random_range(OWN.clone());
        if !GIVEN.lock().contains(&port)
            && TcpListener::bind(("127.0.0.1", port)).is_ok()
            && GIVEN.lock().insert(port)
        {
            return port;
        }
    }
    unreachable!("no free TCP port on 127.0.0.1 in {:?}", *OWN)
}
