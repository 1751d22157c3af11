//! A rank that uses bare PMI-1 over `PMI_FD`, measures its own requests and prints one line of figures.
//!
//! It uses only the standard library, so that it measures the launcher alone. It runs under every launcher that serves PMI-1 on a descriptor.
//! Usage: `pmi_raw BARRIERS PUTS GETS [FENCES]`, with the number of each. All ranks put, enter a barrier and then get at the same time. For each
//! of FENCES they enter a barrier, put a pair of 128 bytes, and enter a barrier again. The line has `name=figure` words, with all times in
//! nanoseconds:
//!
//! ```text
//! rank=3 handshake=812345 barrier=130211 put=51020 get=46800 all_gets=23400000 fence=1420000
//! ```
//! `handshake` is the total of five requests. `barrier`, `put`, `get` and `fence` (the barrier after the put) are medians of one request.
//! `all_gets` is the total of GETS.

use std::env;
use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

type Outcome<T> = Result<T, Box<dyn Error>>;

const VALUE: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456";

fn main() -> Outcome<()> {
    let mut counts = env::args().skip(1).map(|word| word.parse::<usize>());
    let mut count =
        || counts.next().ok_or("usage: pmi_raw BARRIERS PUTS GETS [FENCES]")?.map_err(Box::<dyn Error>::from);
    let (barriers, puts, gets) = (count()?, count()?, count()?);
    let fences = counts.next().unwrap_or(Ok(0))?;
    let (rank, size): (usize, usize) = (variable("PMI_RANK")?, variable("PMI_SIZE")?);
    let mut server = Server::from_environment()?;

    let (kvs, handshake) = timed(|| server.shake_hands())?;
    let barrier = server.repeat(barriers, |_| ("cmd=barrier_in".into(), "cmd=barrier_out"))?;
    let put = server.repeat(puts, |index| {
        (format!("cmd=put kvsname={kvs} key=raw-{rank}-{index} value={VALUE}"), "cmd=put_result rc=0")
    })?;
    // The first barrier exchanges the pairs. The second barrier makes the ranks start together.
    server.repeat(2, |_| ("cmd=barrier_in".into(), "cmd=barrier_out"))?;
    let (get, all_gets) = timed(|| {
        server.repeat(gets, |index| {
            let (owner, index) = ((rank + 1 + index) % size, index % puts.max(1));
            (format!("cmd=get kvsname={kvs} key=raw-{owner}-{index}"), "cmd=get_result rc=0")
        })
    })?;
    let fence = server.fences(rank, &kvs, fences)?;
    server.repeat(1, |_| ("cmd=barrier_in".into(), "cmd=barrier_out"))?;
    server.ask("cmd=finalize", "cmd=finalize_ack")?;

    let times = [handshake, barrier, put, get, all_gets, fence].map(|time| time.as_nanos());
    let names = ["handshake", "barrier", "put", "get", "all_gets", "fence"];
    let figures: String = names.iter().zip(times).map(|(name, time)| format!(" {name}={time}")).collect();
    let line = format!("rank={rank}{figures}\n");
    // A single write, so that lines of several ranks do not mix.
    Ok(std::io::stdout().write_all(line.as_bytes())?)
}

/// The other end of `PMI_FD`.
struct Server {
    replies: BufReader<UnixStream>,
    line: String,
}

impl Server {
    fn from_environment() -> Outcome<Self> {
        let descriptor = variable("PMI_FD")?;
        // SAFETY: the launcher opened this descriptor for this process alone, and nothing else in it uses it.
        #[expect(unsafe_code, reason = "the standard library has no safe way to take over a descriptor by its number")]
        let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
        Ok(Self { replies: BufReader::new(descriptor.into()), line: String::new() })
    }

    /// Sends the first requests of every MPI library. Returns the name of the key-value space.
    fn shake_hands(&mut self) -> Outcome<String> {
        self.ask("cmd=init pmi_version=1 pmi_subversion=1", "cmd=response_to_init")?;
        self.ask("cmd=get_maxes", "cmd=maxes")?;
        self.ask("cmd=get_appnum", "cmd=appnum")?;
        let reply = self.ask("cmd=get_my_kvsname", "cmd=my_kvsname")?;
        let name = reply.split(' ').find_map(|word| word.strip_prefix("kvsname=")).ok_or("a kvsname was asked for")?;
        let name = name.to_owned();
        self.ask("cmd=get_universe_size", "cmd=universe_size")?;
        Ok(name)
    }

    /// Sends requests one after the other. Returns the median time of one request, or zero if there are none.
    fn repeat(&mut self, times: usize, request: impl Fn(usize) -> (String, &'static str)) -> Outcome<Duration> {
        let mut taken = Vec::with_capacity(times);
        for index in 0..times {
            let (request, expected) = request(index);
            taken.push(timed(|| self.ask(&request, expected).map(drop))?.1);
        }
        taken.sort();
        Ok(taken.get(times / 2).copied().unwrap_or_default())
    }

    /// Exchanges a pair of 128 bytes with all ranks, `times` times. Returns the median time of the barrier that exchanges it.
    fn fences(&mut self, rank: usize, kvs: &str, times: usize) -> Outcome<Duration> {
        let mut taken = Vec::with_capacity(times);
        for index in 0..times {
            self.ask("cmd=barrier_in", "cmd=barrier_out")?;
            let put = format!("cmd=put kvsname={kvs} key=fence-{rank:05}-{index:04} value={VALUE:0<112}");
            self.ask(&put, "cmd=put_result rc=0")?;
            taken.push(timed(|| self.ask("cmd=barrier_in", "cmd=barrier_out").map(drop))?.1);
        }
        taken.sort();
        Ok(taken.get(times / 2).copied().unwrap_or_default())
    }

    fn ask(&mut self, request: &str, expected: &str) -> Outcome<&str> {
        self.line.clear();
        self.line.push_str(request);
        self.line.push('\n');
        self.replies.get_mut().write_all(self.line.as_bytes())?;
        self.line.clear();
        self.replies.read_line(&mut self.line)?;
        if !self.line.starts_with(expected) {
            return Err(format!("{request:?} was answered by {:?}, not by {expected:?}", self.line).into());
        }
        Ok(self.line.trim_end())
    }
}

fn timed<T>(work: impl FnOnce() -> Outcome<T>) -> Outcome<(T, Duration)> {
    let start = Instant::now();
    let result = work()?;
    Ok((result, start.elapsed()))
}

fn variable<T: std::str::FromStr<Err: Error + 'static>>(name: &str) -> Outcome<T> {
    Ok(env::var(name).map_err(|error| format!("{name}: {error}"))?.parse()?)
}
