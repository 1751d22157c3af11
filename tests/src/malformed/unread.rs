//! Calls with answers that are requested and not read. The caller opens all windows of HTTP/2, and does not read its socket.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use pmi_transport::proto::v1::{AttachRequest, AttachTo, LaunchTasksRequest, attach_request};
use prost::Message;

/// Maximum size of a frame, in bytes, before its receiver has allowed more.
const FRAME: usize = 16 << 10;
/// Time limit for a server to read the calls.
const PATIENCE: Duration = Duration::from_secs(10);
/// Largest window.
const WINDOW: u32 = i32::MAX as u32;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const WINDOW_UPDATE: u8 = 8;
/// Flag of the last frame of a stream, and of acknowledged settings.
const END: u8 = 1;
const END_HEADERS: u8 = 4;

/// A call: its path, its only message, and whether more messages could follow.
#[derive(Clone, Debug)]
pub struct Call {
    path: &'static str,
    message: Vec<u8>,
    is_stream: bool,
}

impl Call {
    /// Returns the plan of a launch with `bytes` bytes of arguments. Its answer contains them as well.
    pub fn plan(allocation: &str, bytes: usize) -> Self {
        let args = (0..bytes.div_ceil(100_000)).map(|_| "x".repeat(100_000)).collect();
        let (allocation_id, entrypoint) = (allocation.to_owned(), "true".to_owned());
        let request =
            LaunchTasksRequest { allocation_id, entrypoint, args, num_tasks: 1, plan_only: true, ..Default::default() };
        let path = "/lattice.v1.AllocationService/LaunchTasks";
        Self { path, message: request.encode_to_vec(), is_stream: false }
    }

    /// Returns a call that attaches to a launch from its start on.
    pub fn attach(launch: &str) -> Self {
        let to = AttachTo { launch_id: launch.to_owned(), after: 0, tied: false };
        let request = AttachRequest { what: Some(attach_request::What::Attach(to)) };
        Self { path: "/lattice.v1.LaunchService/AttachLaunch", message: request.encode_to_vec(), is_stream: true }
    }

    /// Returns the frames of the call, for this stream of a connection.
    fn frames(&self, stream: u32) -> Vec<u8> {
        // POST, http, and names of the static table; `te` is not in the table (RFC 7541).
        let mut headers = vec![0x83, 0x86, 0x04];
        append(&mut headers, self.path);
        headers.push(0x01);
        append(&mut headers, "server");
        headers.extend([0x0f, 0x10]);
        append(&mut headers, "application/grpc");
        headers.push(0x00);
        append(&mut headers, "te");
        append(&mut headers, "trailers");
        let mut frames = frame(HEADERS, END_HEADERS, stream, &headers);
        let length = u32::try_from(self.message.len()).expect("a message of a few megabytes");
        let body = [&[0], &length.to_be_bytes()[..], &self.message].concat();
        let count = body.chunks(FRAME).count();
        for (number, part) in (1..).zip(body.chunks(FRAME)) {
            let flags = if number == count && !self.is_stream { END } else { 0 };
            frames.extend(frame(DATA, flags, stream, part));
        }
        frames
    }
}

/// Opens a connection with these calls, and does not read their answers.
///
/// # Errors
/// Fails if the server does not listen, or does not accept the calls.
pub fn ask(server: &Path, calls: &[Call]) -> io::Result<UnixStream> {
    let mut socket = UnixStream::connect(server)?;
    socket.set_write_timeout(Some(PATIENCE))?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")?;
    let window_of_streams = [&[0, 4], &WINDOW.to_be_bytes()[..]].concat();
    socket.write_all(&frame(SETTINGS, 0, 0, &window_of_streams))?;
    socket.write_all(&frame(WINDOW_UPDATE, 0, 0, &(WINDOW - 0xffff).to_be_bytes()))?;
    // The windows of the server's streams are valid after its settings, and the window of its connection after its update.
    while next_kind(&mut socket)? != WINDOW_UPDATE {}
    socket.write_all(&frame(SETTINGS, END, 0, &[]))?;
    for (call, stream) in calls.iter().zip((1..).step_by(2)) {
        socket.write_all(&call.frames(stream))?;
    }
    Ok(socket)
}

/// Reads a frame. Returns its kind.
fn next_kind(socket: &mut UnixStream) -> io::Result<u8> {
    let mut head = [0; 9];
    socket.read_exact(&mut head)?;
    let [a, b, c, kind, ..] = head;
    io::copy(&mut socket.take(u32::from_be_bytes([0, a, b, c]).into()), &mut io::sink())?;
    Ok(kind)
}

fn frame(kind: u8, flags: u8, stream: u32, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).expect("a short frame").to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), body].concat()
}

/// Appends a string of less than 127 bytes in the encoding of headers.
fn append(headers: &mut Vec<u8>, text: &str) {
    headers.push(text.len() as u8);
    headers.extend(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the kinds and flags of the frames in these bytes, which must all belong to one stream.
    fn kinds(stream: u8, mut rest: &[u8]) -> Vec<(u8, u8)> {
        let mut kinds = Vec::new();
        while let [a, b, c, kind, flags, 0, 0, 0, of, ..] = *rest {
            assert_eq!(of, stream);
            kinds.push((kind, flags));
            rest = &rest[9 + u32::from_be_bytes([0, a, b, c]) as usize..];
        }
        assert!(rest.is_empty());
        kinds
    }

    #[test]
    fn a_call_is_one_stream_whose_last_frame_says_so() {
        let plan = kinds(3, &Call::plan("a", 100_000).frames(3));
        assert_eq!((plan[0], plan.len()), ((HEADERS, END_HEADERS), 8));
        assert_eq!((plan[1], plan[7]), ((DATA, 0), (DATA, END)));
        let attach = kinds(1, &Call::attach("a").frames(1));
        assert!(attach.len() > 1 && attach.iter().all(|&(_, flags)| flags & END == 0), "more may follow");
    }
}
