//! How many instructions does a session execute for a barrier?
//!
//! Sessions of one rank each, with their servers and links as in session processes, run on one thread of a process under valgrind's cachegrind.
//! Each rank enters one barrier after the other. The result is the count of a long run minus the count of a short run, for each barrier and
//! session. It does not depend on the machine. The rank's own part is small: two system calls.
//!
//! ```text
//! cargo bench -p lattice-benches --bench fence_instructions
//! ```
//! Without `--bench` (`cargo test --benches`) the bench counts a few barriers.

#[path = "../../../pmi-transport/tests/agents/mod.rs"]
mod agents;

use std::os::unix::net::UnixStream as StdUnixStream;
use std::process::Command;
use std::sync::Arc;

use lattice_benches::is_measured;
use pmi_core::driver::Driver;
use pmi_core::ids::{JobId, LocalRank};
use pmi_core::job::{Job, Placement};
use pmi_core::server::{Server, Settings};
use pmi_core::services::NoServices;
use pmi_transport::fence::{FanOut, JobFence, Limits};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::task::JoinSet;

use crate::agents::World;
use crate::agents::sessions::LAUNCH;

/// Argument with which this program runs the barriers itself.
const RUN: &str = "--run";

const INIT: &[u8] = b"cmd=init pmi_version=1 pmi_subversion=1\n";
const GREETED: &[u8] = b"cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=1\n";
const ENTER: &[u8] = b"cmd=barrier_in\n";
const LEFT: &[u8] = b"cmd=barrier_out rc=0\n";

fn main() {
    let words: Vec<String> = std::env::args().collect();
    if let Some(at) = words.iter().position(|word| word == RUN) {
        let [nodes, barriers] = [&words[at + 1], &words[at + 2]].map(|word| word.parse::<u32>().expect("a number"));
        return run(nodes, barriers);
    }
    let (sizes, short, long) = if is_measured() { (&[2, 4, 16][..], 100, 1100) } else { (&[2][..], 2, 52) };
    println!("{:>5} {:>34}", "nodes", "instructions, barrier and session");
    for &nodes in sizes {
        // The instruction count of a process start varies by some thousands.
        let counted = count(nodes, long).saturating_sub(count(nodes, short));
        println!("{nodes:>5} {:>34}", counted / u64::from(long - short) / u64::from(nodes));
    }
}

/// Counts the instructions of a process in which `nodes` nodes complete `barriers` barriers.
fn count(nodes: u32, barriers: u32) -> u64 {
    let this = std::env::current_exe().expect("this program has a path");
    let options = ["--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"];
    let mut valgrind = Command::new("valgrind");
    valgrind.args(options).arg(this).args([RUN, &nodes.to_string(), &barriers.to_string()]);
    let output = valgrind.output().expect("valgrind runs");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    let count = text.lines().find_map(|line| line.split_once("refs:")).expect("valgrind counts").1;
    count.trim().replace(',', "").parse().expect("a count")
}

fn run(nodes: u32, barriers: u32) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime can be built");
    runtime.block_on(async {
        let world = World::of_sessions(nodes, Limits::default()).await;
        let members = world.all();
        let job = Job { placement: Placement::block(&vec![1; nodes as usize]), ..Job::on_one_node(id(), nodes) };
        let (mut drivers, mut ranks) = (Vec::new(), JoinSet::new());
        for (index, launch) in members.iter().zip(world.join_all(LAUNCH, FanOut::default())) {
            let fence = Arc::new(JobFence::new(Arc::new(launch), id(), members.clone()));
            let server = Server::new(job.clone(), *index, Settings::default());
            let (driver, ended) = Driver::new(server, fence, Arc::new(NoServices), None);
            let (theirs, ours) = StdUnixStream::pair().expect("a pair of sockets");
            driver.connect(LocalRank(0), ours).expect("a rank is served");
            ranks.spawn(go_through(theirs, barriers));
            drivers.push((driver, ended));
        }
        ranks.join_all().await;
    });
}

async fn go_through(socket: StdUnixStream, barriers: u32) {
    socket.set_nonblocking(true).expect("a socket");
    let mut server = UnixStream::from_std(socket).expect("a socket");
    ask(&mut server, INIT, GREETED).await;
    for _ in 0..barriers {
        ask(&mut server, ENTER, LEFT).await;
    }
}

async fn ask(server: &mut UnixStream, request: &[u8], expected: &[u8]) {
    server.write_all(request).await.expect("the server reads");
    let mut answer = [0; 128];
    let answer = &mut answer[..expected.len()];
    server.read_exact(answer).await.expect("the server answers");
    assert_eq!(answer, expected);
}

fn id() -> JobId {
    JobId::new("job").expect("an id")
}
