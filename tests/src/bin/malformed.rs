//! An attacker for tests. It sends a number of malformed frames, from a seed, to an interface of Lattice, and prints the number at its end.
//!
//! ```text
//! malformed FRAMES SEED calls ADDRESS PEER CERTIFICATES SERVICES WORDS     calls of gRPC; PEER is the required identity of the server
//! malformed FRAMES SECONDS begun ADDRESS PEER CERTIFICATES PATH            calls that send 3.9 MB, and nothing more for SECONDS
//! malformed FRAMES SECONDS unread SERVER CONNECTIONS plan ALLOCATION BYTES  calls over so many connections, with answers that are not read for
//!                                                                          SECONDS: plans with BYTES of arguments
//! malformed FRAMES SECONDS unread SERVER CONNECTIONS attach LAUNCH...       the same with calls that attach to these launches in turn
//! malformed FRAMES SEED unix SERVER PLACE COUNT COMMAND...                 frames of COMMAND, recorded at the socket PLACE
//! malformed FRAMES SEED set DIRECTORY LAUNCH COUNT                         frames, to the launch's set in this directory
//! malformed FRAMES SEED pmi COUNT COMMAND...                               frames of COMMAND to the PMI server; the rank's socket is
//!                                                                          standard input
//! malformed FRAMES SEED pmix COUNT COMMAND...                              frames of COMMAND to the PMIx server
//! ```
//! COUNT is a file with the number of frames, for attackers that are killed.

use std::env;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use lattice_overlay::greeting::Purpose;
use lattice_tests::malformed::calls::{Calls, begin};
use lattice_tests::malformed::replay::{Count, Record, Stream, send_damaged};
use lattice_tests::malformed::unread::{Call, ask};
use lattice_tests::malformed::{Dice, set_frames};
use pmi_transport::address::Address;
use pmi_transport::connect::{Channel, channel};
use pmi_transport::identity::{Caller, Security, TlsFiles};

/// Variables with the address of a PMIx server.
const PMIX_URIS: [&str; 5] =
    ["PMIX_SERVER_URI41", "PMIX_SERVER_URI4", "PMIX_SERVER_URI3", "PMIX_SERVER_URI21", "PMIX_SERVER_URI2"];

/// Common parameters of all attacks.
struct Attack {
    frames: usize,
    dice: Dice,
}

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let [frames, seed, interface, rest @ ..] = &words[..] else { usage() };
    let seed = seed.parse().expect("the seed is a number");
    let attack = Attack { frames: frames.parse().expect("the number of frames is one"), dice: Dice::new(seed) };
    match (*interface, rest) {
        ("calls", [address, peer, certificates, services, words]) => {
            attack.calls(address, peer, Path::new(certificates), &list(services), &list(words));
        }
        ("begun", [address, peer, certificates, path]) => {
            attack.begun(address, peer, Path::new(certificates), path, Duration::from_secs(seed));
        }
        ("unread", [server, connections, "plan", allocation, bytes]) => {
            let call = Call::plan(allocation, bytes.parse().expect("a number of bytes"));
            attack.unread(Path::new(server), connections, &[call], Duration::from_secs(seed));
        }
        ("unread", [server, connections, "attach", launches @ ..]) => {
            let calls: Vec<Call> = launches.iter().map(|launch| Call::attach(launch)).collect();
            attack.unread(Path::new(server), connections, &calls, Duration::from_secs(seed));
        }
        ("unix", [server, place, count, command @ ..]) => attack.unix(Path::new(server), place, count, command),
        ("set", [directory, launch, count]) => attack.set(Path::new(directory), launch, count),
        ("pmi", [count, command @ ..]) => attack.pmi(count, command),
        ("pmix", [count, command @ ..]) => attack.pmix(count, command),
        _ => usage(),
    }
}

fn usage() -> ! {
    panic!("see the first lines of tests/src/bin/malformed.rs")
}

fn list(words: &str) -> Vec<String> {
    words.split_whitespace().map(str::to_owned).collect()
}

impl Attack {
    fn calls(mut self, address: &str, peer: &str, certificates: &Path, services: &[String], words: &[String]) {
        let answered = run_here(async {
            let channel = connection(address, peer, certificates);
            Calls::new(words).make(&channel, services, self.frames, &mut self.dice).await
        });
        assert!(answered > self.frames / 4, "{answered} of {} calls were answered", self.frames);
        println!("sent {}", self.frames);
    }

    fn begun(self, address: &str, peer: &str, certificates: &Path, path: &str, time: Duration) {
        let over = run_here(async {
            let connections: Vec<_> = (0..4).map(|_| connection(address, peer, certificates)).collect();
            begin(&connections, path, self.frames, 3_900_000, time).await
        });
        println!("sent {}, of which {over} were refused", self.frames);
    }

    fn unread(self, server: &Path, connections: &str, calls: &[Call], time: Duration) {
        let connections: usize = connections.parse().expect("a number of connections");
        let calls: Vec<Call> = calls.iter().cycle().take(self.frames).cloned().collect();
        let asked = calls.chunks(self.frames.div_ceil(connections)).map(|calls| ask(server, calls));
        let open: Vec<UnixStream> = asked.collect::<Result<_, _>>().expect("the server takes them");
        println!("sent {} over {}", self.frames, open.len());
        std::thread::sleep(time);
    }

    fn unix(self, server: &Path, place: &str, count: &str, command: &[&str]) {
        let record = Record::default();
        record.stand_before_unix(Path::new(place), server).expect("the place is free");
        run(command, |command| command);
        self.replay(&record, count, || Some(Box::new(UnixStream::connect(server).ok()?)));
    }

    fn set(self, directory: &Path, launch: &str, count: &str) {
        let set = set_frames::of_launch(directory, launch);
        let mut purposes = [Purpose::Frames, Purpose::Rank, Purpose::Meeting, Purpose::Presence].into_iter().cycle();
        let connect = || Some(Box::new(set_frames::connect(&set, purposes.next()?)?) as Box<dyn Stream>);
        self.send(&[set_frames::to(&set)], count, connect);
    }

    fn pmi(self, count: &str, command: &[&str]) {
        let own = std::io::stdin().as_fd().try_clone_to_owned().expect("standard input is open");
        let own = UnixStream::from(own);
        let (ours, theirs) = UnixStream::pair().expect("a pair of sockets");
        let record = Record::default();
        record.pass_on(Box::new(ours), own.again().expect("a descriptor")).expect("descriptors");
        // A client does not accept a standard stream as its socket.
        let command = [&["bash", "-c", "exec 9<&0 </dev/null; exec \"$@\"", "bash"], command].concat();
        run(&command, |command| command.stdin(OwnedFd::from(theirs)).env("PMI_FD", "9"));
        let mut own: Option<Box<dyn Stream>> = Some(Box::new(own));
        self.replay(&record, count, || own.take());
    }

    fn pmix(self, count: &str, command: &[&str]) {
        let uri = PMIX_URIS.iter().find_map(|name| env::var(name).ok()).expect("a rank of a launch that serves PMIx");
        let (_, server) = uri.split_once("://").expect("an address");
        let server: SocketAddr = server.parse().expect("an address and a port");
        let record = Record::default();
        let place = record.stand_before_tcp(server).expect("a port").to_string();
        run(command, |command| {
            for name in PMIX_URIS {
                if let Ok(uri) = env::var(name) {
                    command.env(name, uri.replace(&server.to_string(), &place));
                }
            }
            command
        });
        self.replay(&record, count, || Some(Box::new(TcpStream::connect(server).ok()?)));
    }

    fn replay(self, record: &Record, count: &str, connect: impl FnMut() -> Option<Box<dyn Stream>>) {
        let conversations = record.conversations();
        assert!(conversations.iter().any(|conversation| !conversation.is_empty()), "nothing was said");
        self.send(&conversations, count, connect);
    }

    fn send(mut self, conversations: &[Vec<Vec<u8>>], count: &str, connect: impl FnMut() -> Option<Box<dyn Stream>>) {
        let mut count = Count::at(Path::new(count)).expect("a new file");
        send_damaged(conversations, connect, self.frames, &mut self.dice, &mut count).expect("frames can be counted");
        println!("sent {}", count.sent());
    }
}

fn run_here<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(work)
}

/// Returns a connection to a server, with this required identity.
fn connection(address: &str, peer: &str, certificates: &Path) -> Channel {
    let (address, peer): (Address, Caller) = (address.parse().expect("an address"), peer.parse().expect("a caller"));
    let security = match address {
        // On a Unix socket the kernel provides the identity of the client.
        Address::Unix(_) => Security::Insecure { name: peer.clone() },
        _ => Security::from_files(&TlsFiles::in_directory(certificates)).expect("certificates"),
    };
    channel(&address, &peer, &security).expect("certificates do")
}

/// Runs a command to its end.
fn run(words: &[&str], change: impl FnOnce(&mut Command) -> &mut Command) {
    let [program, arguments @ ..] = words else { usage() };
    let mut command = Command::new(program);
    let status = change(command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null())).status();
    assert!(status.is_ok_and(|status| status.success()), "{words:?} failed");
}
