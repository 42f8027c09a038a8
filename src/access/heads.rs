//! The memory of heads whose callers are not authenticated yet: anybody who reaches a port makes the operator hold them until
//! it is known who calls.

use std::collections::HashMap;
use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue, Request, Uri};
use parking_lot::Mutex;

use kubesvc_runtime::listen::connection_limits::ClientAddress;

/// Maximum size of these heads together, in bytes.
const MAX_HEADS_BYTES: usize = 32 * 1024 * 1024;
/// Maximum size of those of one address, in bytes.
const MAX_HEADS_OF_ADDRESS_BYTES: usize = 4 * 1024 * 1024;
/// What a header costs besides its bytes, as HTTP/2 counts it.
const HEADER_OVERHEAD_BYTES: usize = 32;

/// Heads whose callers are not authenticated yet.
#[derive(Debug, Default)]
pub struct UnknownHeads(Mutex<HeadBytes>);

#[derive(Debug, Default)]
struct HeadBytes {
    all: usize,
    /// Of each address. Those without any are not in it.
    of_addresses: HashMap<ClientAddress, usize>,
}

/// A head that is held, until this is dropped.
#[derive(Debug)]
pub struct HeldHead {
    heads: Arc<UnknownHeads>,
    address: ClientAddress,
    bytes: usize,
}

/// The heads of callers that are not authenticated yet have no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too many requests wait until it is known who calls; try again")]
pub struct TooManyHeads;

impl UnknownHeads {
    /// Takes the memory of a head from this address.
    ///
    /// # Errors
    /// There is no room, for this address or for any.
    pub fn hold(self: &Arc<Self>, address: ClientAddress, bytes: usize) -> Result<HeldHead, TooManyHeads> {
        let mut taken = self.0.lock();
        let of_address = taken.of_addresses.get(&address).copied().unwrap_or_default() + bytes;
        if of_address > MAX_HEADS_OF_ADDRESS_BYTES || taken.all + bytes > MAX_HEADS_BYTES {
            return Err(TooManyHeads);
        }
        taken.all += bytes;
        taken.of_addresses.insert(address, of_address);
        Ok(HeldHead { heads: Arc::clone(self), address, bytes })
    }
}

impl Drop for HeldHead {
    fn drop(&mut self) {
        let mut taken = self.heads.0.lock();
        taken.all -= self.bytes;
        if let Some(of_address) = taken.of_addresses.get_mut(&self.address) {
            *of_address -= self.bytes;
            if *of_address == 0 {
                taken.of_addresses.remove(&self.address);
            }
        }
    }
}

/// Gives each part of a head memory of its own. In HTTP/2, a part keeps alive what was decoded with it: up to twice the largest
/// head before it on its connection, and [`UnknownHeads`] counts only its bytes.
pub fn compact<B>(request: &mut Request<B>) {
    let own = |value: &HeaderValue| {
        let mut own = HeaderValue::from_bytes(value.as_bytes())?;
        own.set_sensitive(value.is_sensitive());
        Ok::<_, http::Error>(own)
    };
    let headers = request
        .headers()
        .iter()
        .map(|(name, value)| Ok((HeaderName::from_bytes(name.as_str().as_bytes())?, own(value)?)));
    // What was read once can be read again.
    if let Ok(headers) = headers.collect::<Result<HeaderMap, http::Error>>() {
        *request.headers_mut() = headers;
    }
    if let Ok(uri) = request.uri().to_string().parse() {
        *request.uri_mut() = uri;
    }
}

/// Size of a request's head, in bytes.
pub fn head_bytes(uri: &Uri, headers: &HeaderMap) -> usize {
    let path = uri.path_and_query().map_or(0, |path| path.as_str().len());
    let of_header = |(name, value): (&HeaderName, &HeaderValue)| {
        name.as_str().len() + value.len() + HEADER_OVERHEAD_BYTES
    };
    path + headers.iter().map(of_header).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: usize = 128 * 1024;

    fn address(number: u32) -> ClientAddress {
        ClientAddress::of(std::net::Ipv4Addr::from_bits(number).into())
    }

    #[test]
    fn one_address_gets_its_part_and_all_together_no_more_than_there_is() {
        let heads = Arc::<UnknownHeads>::default();
        let of = |number| std::iter::from_fn(|| heads.hold(address(number), HEAD).ok()).collect::<Vec<_>>();
        let mut held: Vec<_> = (0..8).map(of).collect();
        assert!(held.iter().all(|of_one| of_one.len() * HEAD == MAX_HEADS_OF_ADDRESS_BYTES));
        assert!(of(8).is_empty(), "eight addresses have all of it");
        held.pop();
        assert_eq!(of(8).len() * HEAD, MAX_HEADS_OF_ADDRESS_BYTES, "what was given back may be taken");
        drop(held);
        let taken = heads.0.lock();
        assert_eq!((taken.all, taken.of_addresses.len()), (0, 0));
    }

    #[test]
    fn every_part_of_a_head_leaves_the_memory_it_was_decoded_into() {
        let decoded = hyper::body::Bytes::from("/version?x=1x-name value".repeat(1000));
        let part = |at: std::ops::Range<usize>| decoded.slice(at);
        let path = http::uri::PathAndQuery::from_maybe_shared(part(0..12)).expect("a path");
        let name = HeaderName::from_bytes(&part(12..18)).expect("a name");
        let value = HeaderValue::from_maybe_shared(part(19..24)).expect("a value");
        let mut request = Request::new(());
        *request.uri_mut() = path.into();
        request.headers_mut().append(name.clone(), value.clone());
        request.headers_mut().append(name, value);
        let headers = request.headers().clone();
        assert!(!decoded.is_unique());
        compact(&mut request);
        assert_eq!((request.headers(), request.uri().to_string().as_str()), (&headers, "/version?x=1"));
        drop(headers);
        assert!(decoded.is_unique(), "nothing else holds it");
    }
}
