//! The user that owns the other end of a TCP connection within this machine, as the kernel reports it.
//!
//! The kernel finds that one socket by both of its addresses (netlink, `sock_diag(7)`). Connections to different peers share local ports,
//! so the local address alone does not identify a socket. Without `tcp_diag` in the kernel, the caller must read the tables below
//! `/proc/net`. They hold every socket of the network namespace, and are slow.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};

use netlink_packet_core::{NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_sock_diag::SockDiagMessage;
use netlink_packet_sock_diag::constants::{AF_INET, AF_INET6, IPPROTO_TCP, TCP_ESTABLISHED};
use netlink_packet_sock_diag::inet::{ExtensionFlags, InetRequest, InetResponseHeader, SocketId, StateFlags};
use netlink_sys::protocols::NETLINK_SOCK_DIAG;
use netlink_sys::{Socket, SocketAddr as NetlinkAddress};

/// An answer has about 100 bytes; an error repeats the request.
const ANSWER_MAX: usize = 4096;

/// One side of a TCP connection: the address of the socket, and that of its peer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Endpoint {
    pub(super) local: SocketAddr,
    pub(super) remote: SocketAddr,
}

impl Endpoint {
    fn other(self) -> Self {
        Self { local: self.remote, remote: self.local }
    }
}

/// Owner of the peer of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    User(u32),
    /// The peer is not, or no longer, an open socket of this network namespace.
    Nobody,
    /// The kernel gives no answer; use [`owner_in_tables`].
    Unknown,
}

/// True after the kernel has reported a socket. From then on, a socket without a report does not exist.
static HAS_SERVICE: AtomicBool = AtomicBool::new(false);

/// Requests the owner of the peer of `accepted` from the kernel. Never blocks.
///
/// `is_connected` returns whether the accepted end still has a peer. So a process that resets its connections at once causes no reads of
/// the tables.
pub(super) fn owner_of_peer(accepted: Endpoint, is_connected: impl FnOnce() -> bool) -> Owner {
    let found = match find(accepted.other()) {
        // "No such socket" and "no such service" are one error code. The accepted end exists, so a search for it distinguishes the two.
        Ok(None) if HAS_SERVICE.load(Ordering::Relaxed) || matches!(find(accepted), Ok(Some(_))) => None,
        Ok(None) | Err(_) => return if is_connected() { Owner::Unknown } else { Owner::Nobody },
        Ok(found) => found,
    };
    HAS_SERVICE.store(true, Ordering::Relaxed);
    found.as_ref().and_then(owner).map_or(Owner::Nobody, Owner::User)
}

/// Requests one socket from the kernel. Never blocks: the answer is available as soon as the request is sent.
fn find(wanted: Endpoint) -> io::Result<Option<InetResponseHeader>> {
    let socket = Socket::new(NETLINK_SOCK_DIAG)?;
    socket.set_non_blocking(true)?;
    socket.connect(&NetlinkAddress::new(0, 0))?;
    socket.send(&question(wanted), 0)?;
    let mut answer = [0; ANSWER_MAX];
    let length = socket.recv(&mut &mut answer[..], 0)?;
    let answer = NetlinkMessage::<SockDiagMessage>::deserialize(&answer[..length]).map_err(io::Error::other)?;
    match answer.payload {
        NetlinkPayload::InnerMessage(SockDiagMessage::InetResponse(socket)) => Ok(Some(socket.header)),
        NetlinkPayload::Error(error) => match error.to_io() {
            error if error.kind() == io::ErrorKind::NotFound => Ok(None),
            error => Err(error),
        },
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// A closed socket has no inode, and user 0, until the connection has ended.
fn owner(socket: &InetResponseHeader) -> Option<u32> {
    (socket.state == TCP_ESTABLISHED && socket.inode != 0).then_some(socket.uid)
}

fn question(wanted: Endpoint) -> Vec<u8> {
    let family = if wanted.local.is_ipv4() { AF_INET } else { AF_INET6 };
    let socket_id = SocketId {
        source_port: wanted.local.port(),
        destination_port: wanted.remote.port(),
        source_address: wanted.local.ip(),
        destination_address: wanted.remote.ip(),
        interface_id: 0,
        // Any: the addresses identify the socket.
        cookie: [0xff; 8],
    };
    let (extensions, states) = (ExtensionFlags::empty(), StateFlags::ESTABLISHED);
    let request = InetRequest { family, protocol: IPPROTO_TCP, extensions, states, socket_id };
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST;
    let mut message = NetlinkMessage::new(header, SockDiagMessage::InetRequest(request).into());
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    bytes
}

/// Searches the kernel's tables of all sockets for the peer of `accepted`. Blocks.
pub(super) fn owner_in_tables(accepted: Endpoint) -> Owner {
    // An IPv6 socket may be connected to an IPv4 address.
    let found = ["/proc/net/tcp", "/proc/net/tcp6"]
        .into_iter()
        .find_map(|table| owner_in(&std::fs::read_to_string(table).ok()?, accepted.other()));
    found.map_or(Owner::Nobody, Owner::User)
}

/// Columns: number, own address, other address, state, queues, timer, retransmits, uid, timeout, inode.
fn owner_in(table: &str, wanted: Endpoint) -> Option<u32> {
    const ESTABLISHED: &str = "01";
    let (local, remote) = (written(wanted.local), written(wanted.remote));
    table.lines().skip(1).find_map(|line| {
        let mut columns = line.split_ascii_whitespace().skip(1);
        let is_wanted = columns.next()?.ends_with(&local) & columns.next()?.ends_with(&remote);
        let is_open = columns.next()? == ESTABLISHED;
        let uid = columns.nth(3)?;
        let inode = columns.nth(1)?;
        (is_wanted && is_open && inode != "0").then(|| uid.parse().ok()).flatten()
    })
}

/// Formats an address as in the tables: each word of four bytes in the byte order of the machine.
fn written(address: SocketAddr) -> String {
    let octets = match address.ip() {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let words = octets.chunks_exact(4).map(|word| u32::from_ne_bytes([word[0], word[1], word[2], word[3]]));
    let words: String = words.map(|word| format!("{word:08X}")).collect();
    format!("{words}:{:04X}", address.port())
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::fs::MetadataExt;

    use super::*;

    const IPV4: &str = "127.0.0.1:0";
    const IPV6: &str = "[::1]:0";

    fn own_uid() -> u32 {
        std::fs::metadata("/proc/self").unwrap().uid()
    }

    /// A connection to a listener: the accepted end, its addresses, and the other end.
    fn connection(listener: &TcpListener) -> (TcpStream, Endpoint, TcpStream) {
        let theirs = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (ours, remote) = listener.accept().unwrap();
        let local = ours.local_addr().unwrap();
        (ours, Endpoint { local, remote }, theirs)
    }

    /// The kernel's answer, or else the answer of its tables.
    fn told(accepted: Endpoint) -> Owner {
        match owner_of_peer(accepted, || true) {
            Owner::Unknown => owner_in_tables(accepted),
            told => told,
        }
    }

    #[test]
    fn the_owner_is_known_while_the_connection_lasts_and_not_afterwards() {
        for address in [IPV4, IPV6] {
            // Not every machine has IPv6.
            let Ok(listener) = TcpListener::bind(address) else { continue };
            let (_ours, accepted, theirs) = connection(&listener);
            assert_eq!(told(accepted), Owner::User(own_uid()), "{address}");
            drop(theirs);
            assert_eq!(told(accepted), Owner::Nobody, "{address}");
        }
    }

    #[test]
    fn nobody_owns_the_end_of_a_connection_that_never_was() {
        let listener = TcpListener::bind(IPV4).unwrap();
        let (_ours, accepted, _theirs) = connection(&listener);
        let elsewhere = Endpoint { remote: "127.0.0.1:1".parse().unwrap(), ..accepted };
        assert_eq!(told(elsewhere), Owner::Nobody);
    }

    /// Otherwise a peer that closes at once makes its server read the tables, which hold every socket of the node.
    #[test]
    fn the_kernel_tells_a_closed_peer_from_a_missing_service() {
        let listener = TcpListener::bind(IPV4).unwrap();
        let (_ours, accepted, theirs) = connection(&listener);
        let Ok(Some(peer)) = find(accepted.other()) else { return };
        assert_eq!(owner(&peer), Some(own_uid()));
        drop(theirs);
        assert!(find(accepted.other()).unwrap().is_none_or(|peer| owner(&peer).is_none()));
        assert!(find(accepted).unwrap().is_some());
    }

    /// After a reset, the accepted end no longer shows whether the kernel has the service.
    #[test]
    fn a_peer_that_resets_its_connection_is_not_looked_for_in_the_tables() {
        let listener = TcpListener::bind(IPV4).unwrap();
        let (mut ours, accepted, theirs) = connection(&listener);
        // A close with unread bytes resets the connection.
        ours.write_all(b"unread").unwrap();
        drop(theirs);
        assert!(ours.read(&mut [0]).is_err() && ours.peer_addr().is_err());
        assert_eq!(owner_of_peer(accepted, || ours.peer_addr().is_ok()), Owner::Nobody);
    }

    #[test]
    fn the_tables_say_the_same_as_the_kernel() {
        for address in [IPV4, IPV6] {
            let Ok(listener) = TcpListener::bind(address) else { continue };
            let (_ours, accepted, _theirs) = connection(&listener);
            assert_eq!(owner_in_tables(accepted), Owner::User(own_uid()), "{address}");
        }
    }

    /// Two users may have connections from one port, to different peers.
    #[test]
    fn a_port_that_two_users_share_is_told_apart_by_the_other_address() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
            0: 0100007F:9C40 0100007F:0050 01 00000000:00000000 00:00000000 00000000  1001        0 11 1\n\
            1: 0100007F:9C40 0100007F:1F90 01 00000000:00000000 00:00000000 00000000  1002        0 12 1\n\
            2: 0100007F:9C41 0100007F:1F90 06 00000000:00000000 03:00000000 00000000     0        0 0 3\n";
        if cfg!(target_endian = "big") {
            return;
        }
        let owner = |local: u16, remote: u16| {
            let address = |port| SocketAddr::from(([127, 0, 0, 1], port));
            owner_in(table, Endpoint { local: address(local), remote: address(remote) })
        };
        assert_eq!(owner(40000, 80), Some(1001));
        assert_eq!(owner(40000, 8080), Some(1002));
        assert_eq!(owner(40000, 8081), None);
        assert_eq!(owner(40001, 8080), None, "closed ends have no owner");
    }
}
