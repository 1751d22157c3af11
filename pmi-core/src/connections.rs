//! Connections to a server of any protocol, by number. The number of a connection without a rank is reused. A rank's number is not
//! reused, because answers to it may still be in flight.

/// Maximum length of one answer to a rank: about the length of the answer to a query for all processes of a very large job.
pub const ANSWER_MAX: usize = 256 * 1024 * 1024;

/// Number of a connection to a server: a rank's own socket, or a connection through a listener.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ConnectionId(pub u32);

/// State of each connection of a server.
#[derive(Debug)]
pub struct Connections<C> {
    slots: Vec<Slot<C>>,
    /// Slots of released connections.
    free: Vec<ConnectionId>,
}

#[derive(Debug)]
struct Slot<C> {
    state: C,
    phase: SlotPhase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SlotPhase {
    Open,
    /// Closed for reading.
    Closed,
    /// Closed, and its number may be reused.
    Free,
}

impl<C> Default for Connections<C> {
    fn default() -> Self {
        Self { slots: Vec::new(), free: Vec::new() }
    }
}

impl<C: Default> Connections<C> {
    /// Opens a connection.
    pub fn open(&mut self) -> ConnectionId {
        let slot = Slot { state: C::default(), phase: SlotPhase::Open };
        match self.free.pop() {
            Some(id) => {
                self.slots[id.0 as usize] = slot;
                id
            }
            None => {
                self.slots.push(slot);
                ConnectionId(self.slots.len() as u32 - 1)
            }
        }
    }

    /// Returns the state of a connection; `None` if its number was never used.
    pub fn get(&self, id: ConnectionId) -> Option<&C> {
        self.slots.get(id.0 as usize).map(|slot| &slot.state)
    }

    /// Returns the mutable state of a connection.
    pub fn get_mut(&mut self, id: ConnectionId) -> Option<&mut C> {
        self.slots.get_mut(id.0 as usize).map(|slot| &mut slot.state)
    }

    /// Returns true until the connection is closed.
    pub fn is_open(&self, id: ConnectionId) -> bool {
        self.slots.get(id.0 as usize).is_some_and(|slot| slot.phase == SlotPhase::Open)
    }

    /// Closes a connection of a rank. Its number is not reused.
    pub fn close(&mut self, id: ConnectionId) {
        if let Some(slot) = self.slots.get_mut(id.0 as usize)
            && slot.phase == SlotPhase::Open
        {
            slot.phase = SlotPhase::Closed;
        }
    }

    /// Closes a connection that belongs to no rank, or to no rank any more. Drops its state, and makes its number available again.
    pub fn release(&mut self, id: ConnectionId) {
        if let Some(slot) = self.slots.get_mut(id.0 as usize)
            && slot.phase != SlotPhase::Free
        {
            *slot = Slot { state: C::default(), phase: SlotPhase::Free };
            self.free.push(id);
        }
    }

    /// Returns every open connection, by number.
    pub fn iter(&self) -> impl Iterator<Item = (ConnectionId, &C)> {
        let open = (0..).map(ConnectionId).zip(&self.slots).filter(|(_, slot)| slot.phase == SlotPhase::Open);
        open.map(|(id, slot)| (id, &slot.state))
    }
}

impl<C> std::ops::Index<ConnectionId> for Connections<C> {
    type Output = C;

    fn index(&self, id: ConnectionId) -> &C {
        &self.slots[id.0 as usize].state
    }
}

impl<C> std::ops::IndexMut<ConnectionId> for Connections<C> {
    fn index_mut(&mut self, id: ConnectionId) -> &mut C {
        &mut self.slots[id.0 as usize].state
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_of_strangers_are_given_out_again_and_those_of_ranks_are_not() {
        let mut connections = Connections::<Vec<u8>>::default();
        let [rank, stranger, third] = [(); 3].map(|()| connections.open());
        connections[stranger].push(1);
        connections.close(rank);
        connections.release(stranger);
        connections.release(stranger);
        assert!(!connections.is_open(rank) && !connections.is_open(stranger) && connections.is_open(third));
        assert_eq!(connections.open(), stranger);
        assert!(connections.is_open(stranger) && connections[stranger].is_empty(), "nothing of the old one is left");
        assert_eq!(connections.open(), ConnectionId(3), "a number is given out once at a time");
        assert_eq!(connections.iter().map(|(id, _)| id.0).collect::<Vec<_>>(), [1, 2, 3]);
    }

    #[test]
    fn a_million_strangers_one_after_the_other_take_one_slot() {
        let mut connections = Connections::<u64>::default();
        for _ in 0..1_000_000 {
            let id = connections.open();
            connections.close(id);
            connections.release(id);
        }
        assert_eq!(connections.slots.len(), 1);
    }
}
