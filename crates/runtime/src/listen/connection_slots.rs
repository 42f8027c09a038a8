//! Connections that may be open at once on a port: of all callers, and of each.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::connection_limits::{AddressSlot, Addresses, ClientAddress};
use super::connection_phase::WaitingConnections;

/// Time limit for the slot of a connection that was closed for another one to be free.
const DISPLACEMENT_TIMEOUT: Duration = Duration::from_secs(1);

/// The open connections of a port.
#[derive(Debug)]
pub struct ConnectionSlots {
    addresses: Arc<Addresses>,
    waiting: Arc<WaitingConnections>,
    open: Arc<Semaphore>,
    reserved: Arc<Semaphore>,
    has_reserve: bool,
    freed: Arc<Notify>,
}

/// The slots that a connection holds while it is open.
#[derive(Debug)]
pub struct ConnectionSlot {
    held: Mutex<HeldSlot>,
    /// Dropped last, when what is held is free.
    _freed: Freed,
}

#[derive(Debug)]
struct HeldSlot {
    is_reserved: bool,
    _slot: OwnedSemaphorePermit,
    /// `None`: its caller is not counted, or has reached its limit.
    address: Option<AddressSlot>,
}

/// Wakes who waits for a slot, on drop.
#[derive(Debug)]
struct Freed(Arc<Notify>);

impl Drop for Freed {
    fn drop(&mut self) {
        self.0.notify_waiters();
    }
}

/// Why a connection must be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotRefusal {
    /// Its caller has reached its limit.
    Address,
    /// All slots are in use, and no connection waits for its caller.
    Cap,
}

impl SlotRefusal {
    /// Its reason in metrics, and its message.
    pub fn reason(self) -> (&'static str, &'static str) {
        match self {
            Self::Address => ("address", "the limit of connections per address is reached"),
            Self::Cap => ("cap", "the limit of connections is reached, and all are in use"),
        }
    }
}

impl ConnectionSlots {
    /// Creates the slots of a port: this many connections, of which so many are reserved for a caller that its certificate
    /// identifies.
    pub fn new(connections: usize, reserved: usize, addresses: Arc<Addresses>) -> Self {
        let open = Arc::new(Semaphore::new(connections.saturating_sub(reserved)));
        let (has_reserve, reserved) = (reserved > 0, Arc::new(Semaphore::new(reserved)));
        Self { addresses, waiting: Arc::default(), open, reserved, has_reserve, freed: Arc::default() }
    }

    /// Whether the limits of addresses do not hold for this one.
    pub fn exempts(&self, peer: IpAddr) -> bool {
        self.addresses.exempts(peer)
    }

    /// The connections that wait for their caller.
    pub fn waiting(&self) -> &Arc<WaitingConnections> {
        &self.waiting
    }

    /// Takes the slot of a new connection. If all are in use, the longest-waiting connection of the caller that has the
    /// most is closed. If none waits, or the caller has reached its limit, the connection gets a reserved slot, if one is
    /// left. If the caller has reached its limit and none is left, its own longest-waiting connection that has had no answer
    /// is closed: the identified caller may have the same address (SNAT), and whoever shares it must not keep it out. On a
    /// port with reserved slots, [`ConnectionSlots::settle`] follows.
    ///
    /// # Errors
    /// The connection must be closed.
    pub async fn admit(&self, peer: IpAddr) -> Result<ConnectionSlot, SlotRefusal> {
        let mut has_displaced = false;
        let address = loop {
            let freed = self.freed.notified();
            if let Some(address) = self.addresses.enter(peer) {
                break address;
            }
            if let Ok(slot) = Arc::clone(&self.reserved).try_acquire_owned() {
                return Ok(self.slot(slot, true, None));
            }
            if !has_displaced && self.has_reserve {
                has_displaced = self.waiting.displace_unanswered(ClientAddress::of(peer));
            }
            // What another connection gives up wakes this one too, and its own may go to one that settles.
            if !has_displaced || timeout(DISPLACEMENT_TIMEOUT, freed).await.is_err() {
                return Err(SlotRefusal::Address);
            }
        };
        let (slot, is_reserved) = if let Ok(slot) = Arc::clone(&self.open).try_acquire_owned() {
            (slot, false)
        } else if self.waiting.displace() {
            // The closed connection releases its slot, which may be a reserved one, once its task runs.
            tokio::select! {
                Ok(slot) = Arc::clone(&self.open).acquire_owned() => (slot, false),
                Ok(slot) = Arc::clone(&self.reserved).acquire_owned() => (slot, true),
                else => return Err(SlotRefusal::Cap),
            }
        } else {
            (Arc::clone(&self.reserved).try_acquire_owned().map_err(|_| SlotRefusal::Cap)?, true)
        };
        Ok(self.slot(slot, is_reserved, Some(address)))
    }

    fn slot(
        &self,
        slot: OwnedSemaphorePermit,
        is_reserved: bool,
        address: Option<AddressSlot>,
    ) -> ConnectionSlot {
        let held = Mutex::new(HeldSlot { is_reserved, _slot: slot, address });
        ConnectionSlot { held, _freed: Freed(Arc::clone(&self.freed)) }
    }

    /// Settles the slot of a connection once its caller has shown its certificate, or none. An identified caller gets a
    /// reserved slot, if one is left, and is not counted by its address. Another one that has a reserved slot waits for
    /// one of the others.
    ///
    /// # Errors
    /// The connection must be closed.
    pub async fn settle(&self, slot: &ConnectionSlot, is_identified: bool) -> Result<(), SlotRefusal> {
        let (is_reserved, is_counted) = {
            let held = slot.held.lock();
            (held.is_reserved, held.address.is_some())
        };
        if is_identified {
            slot.held.lock().address = None;
            if !is_reserved && let Ok(reserved) = Arc::clone(&self.reserved).try_acquire_owned() {
                slot.held.lock().replace(reserved, true);
            }
            return Ok(());
        }
        if !is_counted {
            return Err(SlotRefusal::Address);
        }
        if is_reserved {
            let open = Arc::clone(&self.open).acquire_owned().await.map_err(|_| SlotRefusal::Cap)?;
            slot.held.lock().replace(open, false);
        }
        Ok(())
    }
}

impl HeldSlot {
    fn replace(&mut self, slot: OwnedSemaphorePermit, is_reserved: bool) {
        let address = self.address.take();
        *self = Self { is_reserved, _slot: slot, address };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listen::connection_limits::{AddressLimits, ClientAddress};
    use crate::listen::connection_phase::{ConnectionDeadlines, ConnectionPhase};
    use futures::FutureExt as _;

    fn ip(last: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, last])
    }

    fn slots(per_address: usize) -> ConnectionSlots {
        let limits = AddressLimits { per_address, exempt: Vec::new() };
        ConnectionSlots::new(4, 1, Addresses::new(limits))
    }

    /// A connection of the first caller that waits.
    fn waiting(slots: &ConnectionSlots) -> ConnectionPhase {
        let hour = Duration::from_secs(3600);
        let deadlines = ConnectionDeadlines { head: hour, idle: hour };
        ConnectionPhase::new(Arc::clone(slots.waiting()), ClientAddress::of(ip(1)), deadlines)
    }

    fn is_closed(phase: &ConnectionPhase) -> bool {
        phase.overdue().now_or_never().is_some()
    }

    /// Takes a slot of a connection that is being answered.
    fn busy(slots: &ConnectionSlots, last: u8) -> Result<ConnectionSlot, SlotRefusal> {
        slots.admit(ip(last)).now_or_never().expect("nothing is displaced")
    }

    /// Settles the slot, unless it waits.
    fn settle(
        slots: &ConnectionSlots,
        slot: &ConnectionSlot,
        identified: bool,
    ) -> Option<Result<(), SlotRefusal>> {
        slots.settle(slot, identified).now_or_never()
    }

    fn is_reserved(slot: &ConnectionSlot) -> bool {
        slot.held.lock().is_reserved
    }

    #[test]
    fn a_reserved_slot_is_left_when_connections_in_use_fill_the_port() {
        let slots = slots(0);
        let mut open: Vec<_> = (0..3).map(|_| busy(&slots, 1).expect("a slot")).collect();
        assert!(open.iter().all(|slot| !is_reserved(slot) && settle(&slots, slot, false) == Some(Ok(()))));
        let other = busy(&slots, 2).expect("a reserved one");
        assert!(is_reserved(&other));
        assert_eq!(
            settle(&slots, &other, false),
            None,
            "a caller that is not identified waits for an open slot"
        );
        assert_eq!(settle(&slots, &other, true), Some(Ok(())));
        assert_eq!(busy(&slots, 3).err(), Some(SlotRefusal::Cap));
        drop(other);
        let first = open.remove(0);
        assert_eq!(settle(&slots, &first, true), Some(Ok(())));
        assert!(is_reserved(&first));
        assert!(!is_reserved(&busy(&slots, 3).expect("its former slot is free")));
    }

    #[test]
    fn an_identified_caller_is_not_counted_by_its_address() {
        let slots = slots(1);
        let first = busy(&slots, 1).expect("a slot");
        let second = busy(&slots, 1).expect("a reserved one");
        assert_eq!(settle(&slots, &second, false), Some(Err(SlotRefusal::Address)));
        assert_eq!(busy(&slots, 1).err(), Some(SlotRefusal::Address));
        drop(second);
        assert_eq!(settle(&slots, &first, true), Some(Ok(())));
        assert!(!is_reserved(&busy(&slots, 1).expect("the address has room")));
    }

    #[tokio::test]
    async fn one_address_cannot_keep_its_reserved_slots_from_the_identified_caller_behind_it() {
        let slots = slots(1);
        let counted = busy(&slots, 1).expect("a slot");
        let stranger = busy(&slots, 1).expect("a reserved one");
        let waits = [waiting(&slots), waiting(&slots)];
        let displaced = async {
            waits[0].overdue().await;
            drop(stranger);
        };
        let (admitted, ()) = tokio::join!(slots.admit(ip(1)), displaced);
        let admitted = admitted.expect("the slot of the one that waited");
        assert!(is_reserved(&admitted) && !is_closed(&waits[1]));
        assert_eq!(settle(&slots, &admitted, true), Some(Ok(())));
        let (next, ()) = tokio::join!(slots.admit(ip(1)), async {
            waits[1].overdue().await;
            drop(counted);
        });
        let next = next.expect("the place of one that was counted");
        assert!(!is_reserved(&next));
        assert_eq!(busy(&slots, 1).err(), Some(SlotRefusal::Address), "what is in use stays");
    }

    #[tokio::test(start_paused = true)]
    async fn one_connection_is_closed_for_a_new_one_whatever_else_ends() {
        let slots = slots(1);
        let _in_use = [busy(&slots, 1).expect("a slot"), busy(&slots, 1).expect("a reserved one")];
        let other = busy(&slots, 2).expect("a slot");
        let waits = [waiting(&slots), waiting(&slots)];
        let (refused, ()) = tokio::join!(slots.admit(ip(1)), async {
            waits[0].overdue().await;
            drop(other);
        });
        assert_eq!(refused.err(), Some(SlotRefusal::Address));
        assert!(!is_closed(&waits[1]));
    }

    #[tokio::test]
    async fn a_new_connection_gets_the_slot_of_one_that_waits() {
        let slots = slots(0);
        let mut open: Vec<_> = (0..3).map(|_| busy(&slots, 1).expect("a slot")).collect();
        let waits = waiting(&slots);
        let admitted = slots.admit(ip(2)).await.expect("a slot");
        assert!(is_closed(&waits));
        let (settled, ()) = tokio::join!(slots.settle(&admitted, false), async { drop(open.pop()) });
        assert!(settled.is_ok() && !is_reserved(&admitted));
    }
}
