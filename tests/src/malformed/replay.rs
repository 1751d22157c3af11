//! Exchanges of a real client, recorded on their way to a server, and sent again with damage.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use super::{Dice, damage};

/// Maximum size of a read, in bytes. Each write of a client is approximately a frame.
const CHUNK: usize = 64 << 10;
/// Time limit for a server to read a frame.
const PATIENCE: Duration = Duration::from_millis(300);
/// Maximum number of damaged frames on one connection.
const PER_CONNECTION: usize = 40;

/// A connection of any kind.
pub trait Stream: Read + Write + Send {
    /// Returns a duplicate of the connection.
    ///
    /// # Errors
    /// Fails if the system has no free descriptor.
    fn again(&self) -> io::Result<Box<dyn Stream>>;

    /// Shuts down the outgoing direction.
    fn end(&self);

    /// Sets whether reads and writes wait.
    ///
    /// # Errors
    /// Fails if the system refuses.
    fn wait(&self, waits: bool) -> io::Result<()>;
}

macro_rules! stream {
    ($kind:ty) => {
        impl Stream for $kind {
            fn again(&self) -> io::Result<Box<dyn Stream>> {
                Ok(Box::new(self.try_clone()?))
            }

            fn end(&self) {
                // It may have ended already.
                let _ = self.shutdown(Shutdown::Write);
            }

            fn wait(&self, waits: bool) -> io::Result<()> {
                self.set_nonblocking(!waits)
            }
        }
    };
}

stream!(UnixStream);
stream!(TcpStream);

/// Frames from clients: a list for each connection.
#[derive(Clone, Debug, Default)]
pub struct Record(Arc<Mutex<Vec<Vec<Vec<u8>>>>>);

impl Record {
    /// Returns the recorded exchanges.
    pub fn conversations(&self) -> Vec<Vec<Vec<u8>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Relays between `client` and `server` until one of them ends the connection, and records the frames of the client.
    ///
    /// # Errors
    /// Fails if there are no free descriptors.
    pub fn pass_on(&self, client: Box<dyn Stream>, server: Box<dyn Stream>) -> io::Result<()> {
        let (mut from_server, mut to_client) = (server.again()?, client.again()?);
        thread::spawn(move || {
            // A failed copy means that one end has closed its connection.
            let _ = io::copy(&mut from_server, &mut to_client);
            to_client.end();
        });
        let (record, mut from_client, mut to_server) = (self.clone(), client, server);
        let number = {
            let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            all.push(Vec::new());
            all.len() - 1
        };
        thread::spawn(move || {
            let mut chunk = vec![0; CHUNK];
            while let Ok(read @ 1..) = from_client.read(&mut chunk) {
                record.0.lock().unwrap_or_else(PoisonError::into_inner)[number].push(chunk[..read].to_vec());
                if to_server.write_all(&chunk[..read]).is_err() {
                    break;
                }
            }
            to_server.end();
        });
        Ok(())
    }

    /// Accepts connections at a Unix socket in place of a server.
    ///
    /// # Errors
    /// Fails if the path is in use.
    pub fn stand_before_unix(&self, place: &Path, server: &Path) -> io::Result<()> {
        let (listener, record, server) = (UnixListener::bind(place)?, self.clone(), server.to_owned());
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = UnixStream::connect(&server) else { continue };
                // The client detects the end of its connection.
                let _ = record.pass_on(Box::new(client), Box::new(server));
            }
        });
        Ok(())
    }

    /// Accepts connections at a TCP port in place of a server. Returns the address.
    ///
    /// # Errors
    /// Fails if there is no free port.
    pub fn stand_before_tcp(&self, server: SocketAddr) -> io::Result<SocketAddr> {
        let (listener, record) = (TcpListener::bind("127.0.0.1:0")?, self.clone());
        let place = listener.local_addr()?;
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = TcpStream::connect(server) else { continue };
                // The client detects the end of its connection.
                let _ = record.pass_on(Box::new(client), Box::new(server));
            }
        });
        Ok(place)
    }
}

/// Number of sent frames, in a file, because the sending process may be killed.
#[derive(Debug)]
pub struct Count {
    file: File,
    count: usize,
}

impl Count {
    /// Creates a new file for the count.
    ///
    /// # Errors
    /// Fails if the file cannot be created.
    pub fn at(path: &Path) -> io::Result<Self> {
        Ok(Self { file: File::create(path)?, count: 0 })
    }

    /// Returns the number.
    pub fn sent(&self) -> usize {
        self.count
    }

    fn add(&mut self) -> io::Result<()> {
        self.count += 1;
        self.file.write_all_at(format!("{}\n", self.count).as_bytes(), 0)
    }
}

/// Sends `frames` damaged frames of these exchanges, over as many connections as required. Each connection begins like one of the
/// exchanges. Ends early if no new connection is possible.
///
/// # Errors
/// Fails if the count cannot be written.
pub fn send_damaged(
    conversations: &[Vec<Vec<u8>>],
    mut connect: impl FnMut() -> Option<Box<dyn Stream>>,
    frames: usize,
    dice: &mut Dice,
    count: &mut Count,
) -> io::Result<()> {
    let all: Vec<&Vec<u8>> = conversations.iter().flatten().collect();
    while count.count < frames && !all.is_empty() {
        let Some(mut stream) = connect() else { break };
        stream.wait(false)?;
        let conversation = dice.one_of(conversations);
        let beginning = dice.below(conversation.len() + 1);
        let mut is_open = conversation[..beginning].iter().all(|frame| say(&mut *stream, frame));
        let mut left = 1 + dice.below(PER_CONNECTION);
        while is_open && left > 0 && count.count < frames {
            let mut frame = (*dice.one_of(&all)).clone();
            // Some frames are undamaged, but out of order.
            if !dice.once_in(4) {
                damage(&mut frame, dice);
            }
            count.add()?;
            is_open = say(&mut *stream, &frame);
            left -= 1;
        }
    }
    Ok(())
}

/// Sends a frame and reads all available data. Returns false if the other end has closed the connection, or accepts no more data.
fn say(stream: &mut dyn Stream, frame: &[u8]) -> bool {
    let (mut sent, mut waited) = (0, Duration::ZERO);
    while sent < frame.len() {
        match stream.write(&frame[sent..]) {
            Ok(0) => return false,
            Ok(more) => sent += more,
            Err(error) if error.kind() == ErrorKind::WouldBlock && waited < PATIENCE => {
                let pause = Duration::from_millis(1);
                thread::sleep(pause);
                waited += pause;
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return false,
        }
        if !listen(stream) {
            return false;
        }
    }
    listen(stream)
}

/// Reads all available data. Returns false if the other end has closed the connection.
fn listen(stream: &mut dyn Stream) -> bool {
    let mut chunk = [0; 4096];
    loop {
        match stream.read(&mut chunk) {
            Ok(0) => return false,
            Ok(_) => {}
            Err(error) => return matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted),
        }
    }
}
