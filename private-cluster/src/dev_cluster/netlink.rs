//! Requests to the kernel about network interfaces (rtnetlink(7)), of the few kinds that a network of namespaces needs. The library for all
//! kinds (rtnetlink) is not used: it adds half a megabyte to the 12 that `lattice` may have.
//!
//! ```text
//! netlink header | ifinfomsg or ifaddrmsg | attribute, attribute ...       attribute: length, kind, value, padding to 4 bytes
//! ```

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, OwnedFd};

use netlink_packet_core::{
    DecodeError, DefaultNla, Emitable, NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REQUEST, NetlinkDeserializable,
    NetlinkHeader, NetlinkMessage, NetlinkPayload, NetlinkSerializable,
};
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};
use nix::libc;

/// Attribute that describes the peer end of a veth pair (`VETH_INFO_PEER` of linux/veth.h).
const VETH_INFO_PEER: u16 = 1;

/// Size of the buffer for an answer. An answer repeats the request, which has some hundred bytes.
const ANSWER_MAX: usize = 4096;

/// A netlink socket for the interfaces of one network namespace: that of the thread that opens it.
pub(super) struct Netlink(Socket);

/// An interface to create.
#[derive(Debug)]
pub(super) struct NewLink<'a> {
    pub(super) name: &'a str,
    /// Interface index, which must be free.
    pub(super) index: u32,
    pub(super) kind: Kind<'a>,
}

/// Kind of an interface.
#[derive(Debug)]
pub(super) enum Kind<'a> {
    /// A bridge with its own hardware address.
    Bridge { address: [u8; 6] },
    /// One end of a veth pair, which is a port of a bridge. The other end is in another namespace, and down.
    Cable { bridge: u32, far_name: &'a str, far_index: u32, far_namespace: &'a OwnedFd },
}

impl Netlink {
    pub(super) fn open() -> io::Result<Self> {
        let socket = Socket::new(NETLINK_ROUTE)?;
        socket.connect(&SocketAddr::new(0, 0))?;
        Ok(Self(socket))
    }

    /// Creates an interface and brings it up.
    pub(super) fn add_link(&self, link: &NewLink<'_>) -> io::Result<()> {
        let mut body = interface(link.index, State::Up);
        body.extend(attribute(libc::IFLA_IFNAME, &text(link.name)));
        match &link.kind {
            Kind::Bridge { address } => {
                body.extend(attribute(libc::IFLA_ADDRESS, address));
                body.extend(kind_of_link("bridge", None));
            }
            Kind::Cable { bridge, far_name, far_index, far_namespace } => {
                body.extend(attribute(libc::IFLA_MASTER, &bridge.to_ne_bytes()));
                let mut far_end = interface(*far_index, State::Down);
                far_end.extend(attribute(libc::IFLA_IFNAME, &text(far_name)));
                far_end.extend(attribute(libc::IFLA_NET_NS_FD, &far_namespace.as_raw_fd().to_ne_bytes()));
                body.extend(kind_of_link("veth", Some(&attribute(VETH_INFO_PEER, &far_end))));
            }
        }
        self.ask(Request { kind: libc::RTM_NEWLINK, body }, NLM_F_CREATE | NLM_F_EXCL)
    }

    /// Brings an interface up.
    pub(super) fn start(&self, index: u32) -> io::Result<()> {
        self.ask(Request { kind: libc::RTM_NEWLINK, body: interface(index, State::Up) }, 0)
    }

    /// Adds an address to an interface, in a network of 2^(32 - `prefix_len`) addresses.
    pub(super) fn add_address(&self, index: u32, address: Ipv4Addr, prefix_len: u8) -> io::Result<()> {
        // struct ifaddrmsg: family, length of the prefix, flags, scope, interface
        let mut body = vec![libc::AF_INET as u8, prefix_len, 0, libc::RT_SCOPE_UNIVERSE];
        body.extend(index.to_ne_bytes());
        body.extend(attribute(libc::IFA_LOCAL, &address.octets()));
        body.extend(attribute(libc::IFA_ADDRESS, &address.octets()));
        self.ask(Request { kind: libc::RTM_NEWADDR, body }, NLM_F_CREATE | NLM_F_EXCL)
    }

    /// Sends a request, and reads the kernel's answer, which is available at once.
    fn ask(&self, request: Request, flags: u16) -> io::Result<()> {
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | NLM_F_ACK | flags;
        let mut message = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(request));
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        self.0.send(&bytes, 0)?;
        let mut answer = [0; ANSWER_MAX];
        let length = self.0.recv(&mut &mut answer[..], 0)?;
        match NetlinkMessage::<News>::deserialize(&answer[..length]).map_err(io::Error::other)?.payload {
            NetlinkPayload::Error(answer) if answer.code.is_none() => Ok(()),
            NetlinkPayload::Error(answer) => Err(answer.to_io()),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

/// Body of a request, which follows the netlink header.
struct Request {
    kind: u16,
    body: Vec<u8>,
}

impl NetlinkSerializable for Request {
    fn message_type(&self) -> u16 {
        self.kind
    }

    fn buffer_len(&self) -> usize {
        self.body.len()
    }

    fn serialize(&self, buffer: &mut [u8]) {
        buffer.copy_from_slice(&self.body);
    }
}

/// A message that is not an answer. None arrives, because this socket subscribes to none.
struct News;

impl NetlinkDeserializable for News {
    type Error = DecodeError;

    fn deserialize(_: &NetlinkHeader, _: &[u8]) -> Result<Self, DecodeError> {
        Ok(Self)
    }
}

#[derive(Clone, Copy, Debug)]
enum State {
    Up,
    Down,
}

/// `struct ifinfomsg`: family and padding, type, number, flags, flags that change.
fn interface(index: u32, state: State) -> Vec<u8> {
    let flags = match state {
        State::Up => libc::IFF_UP as u32,
        State::Down => 0,
    };
    [0, index, flags, flags].into_iter().flat_map(u32::to_ne_bytes).collect()
}

/// Kind of an interface, with the data of that kind.
fn kind_of_link(name: &str, data: Option<&[u8]>) -> Vec<u8> {
    let mut info = attribute(libc::IFLA_INFO_KIND, name.as_bytes());
    info.extend(data.into_iter().flat_map(|data| attribute(libc::IFLA_INFO_DATA, data)));
    attribute(libc::IFLA_LINKINFO, &info)
}

fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let attribute = DefaultNla::new(kind, value.to_vec());
    let mut bytes = vec![0; attribute.buffer_len()];
    attribute.emit(&mut bytes);
    bytes
}

/// A name with a final zero byte, as the kernel expects it.
fn text(name: &str) -> Vec<u8> {
    [name.as_bytes(), &[0]].concat()
}
