//! Free local TCP ports.

use std::{collections::BTreeSet, net::TcpListener, ops::RangeInclusive, sync::LazyLock};

use parking_lot::Mutex;

/// Below the range from which Linux and macOS take the ports of outgoing connections. A listener that stops and
/// comes back on its port could otherwise find it taken: a client that keeps dialling a closed port of that range
/// may even be given the very same port as its own, and connect to itself.
const RANGE: RangeInclusive<u16> = 20_000..=32_000;

static GIVEN: LazyLock<Mutex<BTreeSet<u16>>> = LazyLock::new(Mutex::default);

/// A port of 127.0.0.1 that nothing listens on and that this process has not given out before.
///
/// Another process may still take it first: whoever starts a server retries with another port.
pub(crate) fn free() -> u16 {
    for _ in 0..10_000 {
        let port = rand::random_range(RANGE);
        if !GIVEN.lock().contains(&port)
            && TcpListener::bind(("127.0.0.1", port)).is_ok()
            && GIVEN.lock().insert(port)
        {
            return port;
        }
    }
    unreachable!("no free TCP port on 127.0.0.1 in {RANGE:?}")
}
