//! Places of connections with a peer that is not known yet. Their number is limited per address and in total. A new connection always
//! gets a place: at the limit, the oldest connection that has sent nothing is closed, or else the oldest of all. So no connection waits
//! in the kernel's queue because of silent connections.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::limits::{FIRST_BYTE_TIMEOUT, GREETINGS_MAX, GREETINGS_PER_ADDRESS};

/// The greetings of one listener.
#[derive(Debug, Default)]
pub struct Greetings {
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    /// Entries in order of arrival.
    by_address: HashMap<IpAddr, BTreeMap<u64, Entry>>,
    count: usize,
    next: u64,
}

#[derive(Debug)]
struct Entry {
    has_spoken: bool,
    gone: CancellationToken,
}

/// Place of one greeting, until it is dropped.
#[derive(Debug)]
pub struct Greeter {
    greetings: Arc<Greetings>,
    address: IpAddr,
    number: u64,
    gone: CancellationToken,
}

impl Greetings {
    /// Takes a place for a connection from `address`. Another connection may lose its place.
    pub fn admit(self: &Arc<Self>, address: IpAddr) -> Greeter {
        let mut table = self.table.lock();
        if table.by_address.get(&address).is_some_and(|own| own.len() >= GREETINGS_PER_ADDRESS) {
            table.dismiss_one_of(address);
        } else if table.count >= GREETINGS_MAX
            && let Some(crowded) = table.most_crowded()
        {
            table.dismiss_one_of(crowded);
        }
        let (number, gone) = (table.next, CancellationToken::new());
        table.next += 1;
        table.count += 1;
        let entry = Entry { has_spoken: false, gone: gone.clone() };
        table.by_address.entry(address).or_default().insert(number, entry);
        Greeter { greetings: Arc::clone(self), address, number, gone }
    }
}

impl Table {
    fn most_crowded(&self) -> Option<IpAddr> {
        self.by_address.iter().max_by_key(|(_, own)| own.len()).map(|(address, _)| *address)
    }

    fn dismiss_one_of(&mut self, address: IpAddr) {
        let Some(own) = self.by_address.get(&address) else { return };
        let silent = own.iter().find(|(_, entry)| !entry.has_spoken);
        if let Some(number) = silent.or(own.first_key_value()).map(|(number, _)| *number)
            && let Some(entry) = self.remove(address, number)
        {
            entry.gone.cancel();
        }
    }

    fn remove(&mut self, address: IpAddr, number: u64) -> Option<Entry> {
        let own = self.by_address.get_mut(&address)?;
        let entry = own.remove(&number)?;
        self.count -= 1;
        if own.is_empty() {
            self.by_address.remove(&address);
        }
        Some(entry)
    }
}

impl Greeter {
    /// Waits for the first byte of the connection of this place, and leaves it in the socket. Returns `None` if the connection has
    /// ended.
    ///
    /// # Errors
    /// `TimedOut` if no byte arrives within two seconds; otherwise the errors of recv(2).
    pub async fn first_byte(&self, stream: &TcpStream) -> io::Result<Option<u8>> {
        let mut first = [0];
        let late = || io::Error::new(io::ErrorKind::TimedOut, format!("it sent nothing within {FIRST_BYTE_TIMEOUT:?}"));
        let len = timeout(FIRST_BYTE_TIMEOUT, stream.peek(&mut first)).await.map_err(|_| late())??;
        self.has_spoken();
        Ok(first[..len].first().copied())
    }

    fn has_spoken(&self) {
        let mut table = self.greetings.table.lock();
        let own = table.by_address.get_mut(&self.address);
        if let Some(entry) = own.and_then(|own| own.get_mut(&self.number)) {
            entry.has_spoken = true;
        }
    }

    /// Waits until another connection needs the place. The caller must then close this connection.
    pub async fn gone(&self) {
        self.gone.cancelled().await;
    }
}

impl Drop for Greeter {
    fn drop(&mut self) {
        self.greetings.table.lock().remove(self.address, self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn address(last: u8) -> IpAddr {
        Ipv4Addr::new(10, 0, 0, last).into()
    }

    fn gone(all: &[Greeter]) -> Vec<usize> {
        all.iter().enumerate().filter(|(_, place)| place.gone.is_cancelled()).map(|(index, _)| index).collect()
    }

    #[test]
    fn the_oldest_that_said_nothing_goes_and_nobody_from_elsewhere() {
        let greetings = Arc::new(Greetings::default());
        let other = greetings.admit(address(2));
        let mut all: Vec<Greeter> = (0..GREETINGS_PER_ADDRESS).map(|_| greetings.admit(address(1))).collect();
        assert_eq!(gone(&all), []);
        all[0].has_spoken();
        all.push(greetings.admit(address(1)));
        assert_eq!(gone(&all), [1]);
        all.iter().for_each(Greeter::has_spoken);
        all.push(greetings.admit(address(1)));
        assert_eq!(gone(&all), [0, 1], "all have spoken: the oldest");
        assert!(!other.gone.is_cancelled());
    }

    #[test]
    fn when_all_places_are_taken_one_of_the_most_crowded_address_goes() {
        let greetings = Arc::new(Greetings::default());
        let rest = GREETINGS_MAX % GREETINGS_PER_ADDRESS;
        assert_eq!(rest, 0, "the numbers below are made for that");
        let addresses = (GREETINGS_MAX / GREETINGS_PER_ADDRESS) as u8;
        let many = |address| (0..GREETINGS_PER_ADDRESS).map(|_| greetings.admit(address)).collect::<Vec<_>>();
        let all: Vec<Vec<Greeter>> = (0..addresses).map(|last| many(address(last))).collect();
        let newcomer = greetings.admit(address(200));
        let dismissed: usize = all.iter().map(|own| gone(own).len()).sum();
        assert_eq!((dismissed, newcomer.gone.is_cancelled()), (1, false));
        assert_eq!(greetings.table.lock().count, GREETINGS_MAX);
        drop((all, newcomer));
        let table = greetings.table.lock();
        assert!(table.count == 0 && table.by_address.is_empty());
    }
}
