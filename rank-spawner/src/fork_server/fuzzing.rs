//! Fuzz target of the daemon's end of the socket; see [`crate::fuzzing`].

use std::io::IoSlice;
use std::os::fd::AsRawFd;

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use nix::unistd::{pipe2, read};

use super::message::Message;
use super::{ForkEvent, ForkServer, control_pair};

/// A packet on a fork server's socket is an event or an error, a started process has both of its descriptors, and no descriptor that
/// came with a packet stays open.
///
/// The first byte is the number of descriptors, modulo 4; the rest is the packet.
pub fn fork_server_packet(data: &[u8]) {
    let Some((&count, packet)) = data.split_first() else { return };
    let (Ok((ours, theirs)), Ok((reader, writer))) = (control_pair(), pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK))
    else {
        return;
    };
    let raw = vec![writer.as_raw_fd(); usize::from(count % 4)];
    let rights = [ControlMessage::ScmRights(&raw)];
    let rights = if raw.is_empty() { &[][..] } else { &rights };
    if sendmsg::<()>(theirs.as_raw_fd(), &[IoSlice::new(packet)], rights, MsgFlags::MSG_NOSIGNAL, None).is_err() {
        // Longer than a socket takes at once.
        return;
    }
    drop(writer);
    let server = ForkServer { control: ours };
    let event = server.next_event();
    match &event {
        Ok(Some(ForkEvent::Started(_))) => assert!(raw.len() >= 2, "started with {} descriptors", raw.len()),
        Ok(Some(_)) => {}
        Ok(None) => panic!("the packet was lost"),
        Err(errno) => assert!(matches!(errno, Errno::EPIPE | Errno::EBADMSG), "{errno}"),
    }
    let is_whole = packet.len() == Message::LEN;
    assert!(is_whole || event.is_err(), "{} bytes are no message", packet.len());
    drop(event);
    assert_eq!(read(&reader, &mut [0]), Ok(0), "a descriptor stayed open");
}
