//! Whose process is at the other end of a loopback connection. The protocol's own credential proves nothing; the kernel knows.

use std::fs;
use std::net::{IpAddr, SocketAddr};

/// The user who owns the socket with this address; `None` if there is none any more.
pub(super) fn owner_of(peer: SocketAddr) -> Option<u32> {
    let address = written(peer)?;
    // A socket of the newer family may be connected to an address of the older one.
    ["/proc/net/tcp", "/proc/net/tcp6"]
        .into_iter()
        .find_map(|table| owner_in(&fs::read_to_string(table).ok()?, &address))
}

/// The end of an address as the kernel's tables write it: in the byte order of the machine.
fn written(peer: SocketAddr) -> Option<String> {
    match peer.ip() {
        IpAddr::V4(ip) => Some(format!("{:08X}:{:04X}", u32::from_ne_bytes(ip.octets()), peer.port())),
        IpAddr::V6(_) => None,
    }
}

/// Columns: number, own address, other address, state, queues, timer, retransmits, uid.
fn owner_in(table: &str, address: &str) -> Option<u32> {
    const ESTABLISHED: &str = "01";
    table.lines().skip(1).find_map(|line| {
        let mut columns = line.split_ascii_whitespace().skip(1);
        let own = columns.next()?;
        let state = columns.nth(1)?;
        let uid = columns.nth(3)?;
        (own.ends_with(address) && state == ESTABLISHED).then(|| uid.parse().ok()).flatten()
    })
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn the_owner_of_a_connection_is_found_while_it_lasts() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (_accepted, peer) = listener.accept().unwrap();
        let own = fs::metadata("/proc/self").unwrap().uid();
        assert_eq!(owner_of(peer), Some(own));
        assert_eq!(stream.local_addr().unwrap(), peer);
        let nobody = "127.0.0.1:1".parse().unwrap();
        assert_eq!(owner_of(nobody), None);
    }
}
