//! Fuzz target of the sockets between fork servers and daemons; see [`crate::fuzzing`].

use std::io::IoSlice;
use std::os::fd::{AsFd, AsRawFd};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use nix::unistd::{pipe2, read};

use super::message::Message;
use super::{ForkEvent, ForkServer, control_pair};

/// A packet on a fork server's socket is an event, a handed-over child, a request, or an error. A started process has both of its
/// descriptors, and no descriptor that arrived with a packet stays open.
///
/// The first byte is the number of descriptors, modulo 5; the rest is the packet.
pub fn fork_server_packet(data: &[u8]) {
    let Some((&count, packet)) = data.split_first() else { return };
    let count = usize::from(count % 5);
    check(count, packet, |server| match server.next_event() {
        Ok(Some(event)) => {
            assert!(!matches!(event, ForkEvent::Started(_)) || count >= 2, "started with {count} descriptors");
            Ok(())
        }
        Ok(None) => panic!("the packet was lost"),
        Err(errno) => Err(errno),
    });
    let message = |server: &ForkServer| Message::receive(server.as_fd())?.ok_or(Errno::EPIPE);
    check(count, packet, |server| message(server)?.into_handover().map(drop));
    check(count, packet, |server| message(server)?.into_request().map(drop));
}

/// Sends the packet with this number of descriptors, and reads it.
fn check(count: usize, packet: &[u8], read_it: impl Fn(&ForkServer) -> nix::Result<()>) {
    let (Ok((ours, theirs)), Ok((reader, writer))) = (control_pair(), pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK))
    else {
        return;
    };
    let raw = vec![writer.as_raw_fd(); count];
    let rights = [ControlMessage::ScmRights(&raw)];
    let rights = if raw.is_empty() { &[][..] } else { &rights };
    if sendmsg::<()>(theirs.as_raw_fd(), &[IoSlice::new(packet)], rights, MsgFlags::MSG_NOSIGNAL, None).is_err() {
        // The packet is longer than a socket accepts at once.
        return;
    }
    drop(writer);
    let result = read_it(&ForkServer { control: ours, pid: None, ungrouped: None });
    if let Err(errno) = result {
        assert!(matches!(errno, Errno::EPIPE | Errno::EBADMSG | Errno::EMFILE), "{errno}");
    }
    let is_whole = packet.len() == Message::LEN;
    assert!(is_whole || result.is_err(), "{} bytes are no message", packet.len());
    assert_eq!(read(&reader, &mut [0]), Ok(0), "a descriptor stayed open");
}
