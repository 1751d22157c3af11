//! The bytes between a rank and its PMIx server: a greeting, then requests and replies in frames.

use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::MetadataExt;

use pmix_core::wire::Encoding;
use pmix_core::wire::frame::{HEADER, TAG_FIRST_REQUEST, message};
use pmix_core::wire::reader::Reader;
use pmix_core::wire::writer::Writer;

use super::PmixError;
use super::entrance::{Entrance, Security};

/// Maximum size of a reply, in bytes. Facts about a job take about 100 bytes for each rank.
const ANSWER_MAX: usize = 1 << 30;

/// Buffers without the types of their items.
pub(super) const NOT_DESCRIBED: u8 = 1;

/// The version of libpmix that this client implements. Servers choose the layout of some replies by it.
const VERSION: &str = "4.2.2";

/// A connection to a server that has accepted this rank.
#[derive(Debug)]
pub(super) struct Connection {
    stream: TcpStream,
    encoding: Encoding,
    /// Number that the server assigned to this rank, for its headers.
    index: [u8; 4],
    tag: u32,
    /// True after a reply was not read to its end.
    is_out_of_step: bool,
}

/// One reply.
#[derive(Debug)]
pub(super) struct Answer {
    encoding: Encoding,
    payload: Vec<u8>,
}

impl Answer {
    pub(super) fn reader(&self) -> Reader<'_> {
        Reader::new(self.encoding, &self.payload)
    }
}

impl Connection {
    /// Connects to the server, and sends the greeting.
    pub(super) fn open(entrance: &Entrance) -> Result<Self, PmixError> {
        let failed = |source| PmixError::Connect { address: entrance.address.clone(), source };
        let mut stream = TcpStream::connect(&entrance.address).map_err(failed)?;
        // requests are small, and the next one waits for the reply
        stream.set_nodelay(true).map_err(failed)?;
        let greeting = greeting(entrance).map_err(failed)?;
        stream.write_all(&greeting).map_err(|source| broken("greeting", source))?;
        let mut word = || {
            let mut word = [0; 4];
            stream.read_exact(&mut word).map_err(|source| broken("greeting", source)).map(|()| word)
        };
        let status = i32::from_be_bytes(word()?);
        if status != 0 {
            let Entrance { address, rank, .. } = entrance.clone();
            return Err(PmixError::NotWelcome { address, rank, status });
        }
        let index = word()?;
        Ok(Self { stream, encoding: entrance.encoding(), index, tag: TAG_FIRST_REQUEST, is_out_of_step: false })
    }

    pub(super) fn encoding(&self) -> Encoding {
        self.encoding
    }

    /// Sends a request, which is the command and the bytes from `write`, and waits for its reply.
    pub(super) fn ask(
        &mut self,
        request: &'static str,
        command: u8,
        write: impl FnOnce(&mut Writer),
    ) -> Result<Answer, PmixError> {
        self.tell(request, command, write)?;
        loop {
            let received = self.receive(request).inspect_err(|_| self.is_out_of_step = true);
            let (tag, payload) = received?;
            // Events arrive without a request.
            if tag == self.tag {
                return Ok(Answer { encoding: self.encoding, payload });
            }
        }
    }

    /// Sends a request.
    pub(super) fn tell(
        &mut self,
        request: &'static str,
        command: u8,
        write: impl FnOnce(&mut Writer),
    ) -> Result<(), PmixError> {
        if self.is_out_of_step {
            return Err(PmixError::Closed { request });
        }
        let mut payload = Writer::new(self.encoding);
        payload.one();
        payload.byte(command);
        write(&mut payload);
        self.tag = self.tag.checked_add(1).unwrap_or(TAG_FIRST_REQUEST);
        let mut frame = message(self.tag, payload.as_bytes()).to_vec();
        frame[..4].copy_from_slice(&self.index);
        self.stream.write_all(&frame).map_err(|source| broken(request, source))
    }

    fn receive(&mut self, request: &'static str) -> Result<(u32, Vec<u8>), PmixError> {
        let mut header = [0; HEADER];
        self.stream.read_exact(&mut header).map_err(|source| broken(request, source))?;
        let word = |at: usize| u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let (tag, length) = (word(4), word(8) as usize);
        if length > ANSWER_MAX {
            return Err(PmixError::TooLong { request, length, max: ANSWER_MAX });
        }
        let mut payload = Vec::new();
        // The buffer grows with the received bytes, so that an announced length alone takes no memory.
        let read = (&mut self.stream).take(length as u64).read_to_end(&mut payload);
        match read.map_err(|source| broken(request, source))? {
            read if read < length => Err(PmixError::Closed { request }),
            _ => Ok((tag, payload)),
        }
    }
}

/// The first frame. Its header is in the byte order of the machine; the numbers after it are big-endian.
fn greeting(entrance: &Entrance) -> io::Result<Vec<u8>> {
    let credential = match entrance.security {
        Security::None => Vec::new(),
        Security::Native => {
            let own = fs::metadata("/proc/self")?;
            [own.uid().to_ne_bytes(), own.gid().to_ne_bytes()].concat()
        }
    };
    let mut payload = match entrance.security {
        Security::Native => b"native\0".to_vec(),
        Security::None => b"none\0".to_vec(),
    };
    payload.extend((credential.len() as u32).to_be_bytes());
    payload.extend(credential);
    // A launched rank.
    payload.push(0);
    payload.extend(entrance.namespace.bytes().chain([0]));
    payload.extend(entrance.rank.to_be_bytes());
    payload.extend(VERSION.bytes().chain([0]));
    payload.extend(entrance.module.bytes().chain([0]));
    payload.push(NOT_DESCRIBED);
    // With this module the data of the job is part of replies, and not in shared memory with the layout of a
    // libpmix version.
    payload.extend(b"hash\0");
    let mut frame = vec![0xff; 8];
    frame.extend((payload.len() as u32).to_ne_bytes());
    frame.extend([0; 4]);
    frame.extend(payload);
    Ok(frame)
}

/// A closed connection has several error kinds, with the same meaning to the caller.
fn broken(request: &'static str, source: io::Error) -> PmixError {
    match source.kind() {
        ErrorKind::BrokenPipe | ErrorKind::ConnectionReset | ErrorKind::UnexpectedEof => PmixError::Closed { request },
        _ => PmixError::Io { request, source },
    }
}
