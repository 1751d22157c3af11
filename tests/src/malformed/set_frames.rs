//! Frames between the members of sets, from an attacker with a set's key.

use std::io::{Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::path::Path;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use lattice_overlay::address::{Process, Uid};
use lattice_overlay::directory::{Directory, SetRecord};
use lattice_overlay::frame::{Frame, Kind};
use lattice_overlay::greeting::{self, Caller, GUEST, PROOF_LEN, Purpose};
use lattice_overlay::method::Method;

/// Time limit for the greeting of a set's root.
const GREETING: Duration = Duration::from_secs(5);

/// Returns the set of a launch in this directory.
///
/// # Panics
/// Panics if there is none.
pub fn of_launch(directory: &Path, launch: &str) -> SetRecord {
    let directory = Directory::open_existing(directory).expect("the directory can be read").expect("it is there");
    directory.find_launch(launch).expect("its sets can be read").expect("the launch has one")
}

/// Returns a connection that has proved possession of the set's key; `None` if the root accepts no connection.
pub fn connect(set: &SetRecord, purpose: Purpose) -> Option<UnixStream> {
    let address = SocketAddr::from_abstract_name(set.nonce().socket_name()).ok()?;
    let mut socket = UnixStream::connect_addr(&address).ok()?;
    socket.set_read_timeout(Some(GREETING)).ok()?;
    let mut theirs = [0; PROOF_LEN];
    socket.read_exact(&mut theirs).ok()?;
    let caller = Caller { set: set.id(), rank: GUEST, purpose };
    socket.write_all(&greeting::greet(set.key(), caller, &theirs, &[7; PROOF_LEN])).ok()?;
    socket.read_exact(&mut [0; PROOF_LEN]).ok()?;
    Some(socket)
}

/// Returns one frame of each kind and method, for a rank of the set.
pub fn to(set: &SetRecord) -> Vec<Vec<u8>> {
    let kinds = [Kind::Request, Kind::Response, Kind::Error, Kind::Echo, Kind::Echoed];
    let methods = [Method::PING, Method::SET_INFO, Method::CONNECTIVITY, Method::FIRST_OF_PROGRAMS];
    let frame = |kind, method: Method| {
        let mut bytes = BytesMut::new();
        let (source, destination) = (set.id().root(), Uid::new(set.id(), Process::Rank(0)));
        let (body, remaining_ms) = (Bytes::from_static(b"are you there"), 1000);
        let frame =
            Frame { kind, ttl: 9, detours: 0, method: method.0, source, destination, id: 17, remaining_ms, body };
        frame.append(&mut bytes);
        bytes.to_vec()
    };
    kinds.into_iter().flat_map(|kind| methods.map(|method| frame(kind, method))).collect()
}
