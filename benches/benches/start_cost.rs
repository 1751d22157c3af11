//! What does it cost to start ranks?
//!
//! The rows are this crate with 1, 2 and 4 threads, a loop of `posix_spawn` (which `std::process::Command` uses), and
//! `mpiexec.hydra` if it is installed. The time is from the first start to the last rank reaped, for 64 and 256 x `/bin/true`.
//! Further rows are the cost of one start from a small process and from one of 2 GiB, and of a sweep that finds nothing. The
//! bench prints the median and the worst of the repetitions.
//!
//! Run it with `cargo bench -p lattice-benches --bench start_cost`. Without `--bench` (`cargo test`) it only proves that it
//! works.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use lattice_benches::machine;
use nix::poll::PollTimeout;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use pmi_core::ids::{JobId, Rank};
use rank_spawner::{
    Arguments, Environment, LaunchTag, Orphans, Program, RankCommand, Spawner, SweepScope, raise_descriptor_limit,
    sweep,
};

fn main() {
    raise_descriptor_limit().expect("raising a soft limit");
    let full = std::env::args().any(|argument| argument == "--bench");
    let (repetitions, sizes): (usize, &[u32]) = if full { (21, &[64, 256]) } else { (1, &[4]) };
    println!("{}", machine::line());
    println!("{:<28} {:>6} {:>12} {:>12}", "start to last rank reaped", "ranks", "median ms", "worst ms");
    for &ranks in sizes {
        for threads in [1, 2, 4] {
            let spawner = Spawner::with_threads(NonZeroUsize::new(threads).unwrap()).unwrap();
            let label = format!("rank-spawner, {threads} thread(s)");
            report(&label, ranks, repetitions, || start_and_reap(&spawner, ranks));
        }
        report("posix_spawn loop", ranks, repetitions, || posix_spawn_and_reap(ranks));
        if full && Command::new("mpiexec.hydra").arg("--version").stdout(Stdio::null()).status().is_ok() {
            report("mpiexec.hydra", ranks, repetitions.min(7), || hydra(ranks));
        }
    }
    println!("\n{:<28} {:>6} {:>12} {:>12}", "one start until exec", "", "median ms", "worst ms");
    let ballast = if full { 2 << 30 } else { 1 << 20 };
    starts_by_parent_size(ballast, repetitions);
    let processes = std::fs::read_dir("/proc").unwrap().count();
    println!("\n(about {processes} processes on this node)");
    report("sweep of an ended launch", 0, repetitions, sweep_nothing);
}

/// Starts a rank from this process, with and without `ballast` additional bytes. The two sizes take turns, so that other load
/// on the machine affects both.
fn starts_by_parent_size(ballast: usize, rounds: usize) {
    let spawner = Spawner::with_threads(NonZeroUsize::MIN).unwrap();
    let (mut small, mut large) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        small.extend((0..20).map(|_| start_one(&spawner)));
        let held = vec![1_u8; ballast];
        large.extend((0..20).map(|_| start_one(&spawner)));
        drop(std::hint::black_box(held));
    }
    print_row("process as it is", 1, small);
    print_row(&format!("with {} MiB more", ballast >> 20), 1, large);
}

fn report(label: &str, ranks: u32, repetitions: usize, mut measure: impl FnMut() -> Duration) {
    print_row(label, ranks, (0..repetitions).map(|_| measure()).collect());
}

fn print_row(label: &str, ranks: u32, mut times: Vec<Duration>) {
    times.sort();
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let (median, worst) = (ms(times[times.len() / 2]), ms(times[times.len() - 1]));
    println!("{label:<28} {ranks:>6} {median:>12.3} {worst:>12.3}");
}

fn command(rank: u32) -> RankCommand {
    let program = Program::resolve("true".as_ref(), None, "/".as_ref()).unwrap();
    let environment = Environment::new(std::env::vars_os()).unwrap();
    let environment = environment.for_rank([("PMI_RANK", rank.to_string())]).unwrap();
    RankCommand::new(Rank(rank), program, Arguments::new(["true"]).unwrap(), environment)
}

fn start_and_reap(spawner: &Spawner, ranks: u32) -> Duration {
    let commands: Vec<_> = (0..ranks).map(command).collect();
    let begin = Instant::now();
    let (sender, receiver) = mpsc::channel();
    spawner.start_all(commands, move |result| sender.send(result.unwrap()).unwrap());
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).unwrap();
    let mut running = HashMap::new();
    for process in receiver {
        epoll.add(process.as_fd(), EpollEvent::new(EpollFlags::EPOLLIN, process.rank.0.into())).unwrap();
        running.insert(u64::from(process.rank.0), process);
    }
    let mut events = [EpollEvent::empty(); 64];
    while !running.is_empty() {
        let ready = epoll.wait(&mut events, PollTimeout::NONE).unwrap();
        for event in &events[..ready] {
            let process = running.remove(&event.data()).unwrap();
            assert!(process.try_wait().unwrap().unwrap().is_success());
        }
    }
    begin.elapsed()
}

fn posix_spawn_and_reap(ranks: u32) -> Duration {
    let begin = Instant::now();
    let children: Vec<_> = (0..ranks).map(|_| Command::new("/bin/true").spawn().unwrap()).collect();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    begin.elapsed()
}

fn hydra(ranks: u32) -> Duration {
    let begin = Instant::now();
    let status = Command::new("mpiexec.hydra").args(["-n", &ranks.to_string(), "/bin/true"]).status().unwrap();
    assert!(status.success());
    begin.elapsed()
}

fn start_one(spawner: &Spawner) -> Duration {
    let command = command(0);
    let begin = Instant::now();
    let process = spawner.start(command).unwrap();
    let elapsed = begin.elapsed();
    while process.try_wait().unwrap().is_none() {
        std::thread::yield_now();
    }
    elapsed
}

fn sweep_nothing() -> Duration {
    let tag = LaunchTag::new(JobId::new("nothing").unwrap());
    let launch = SweepScope { tag: &tag, ranks: &[], orphans: Orphans::Leave };
    let begin = Instant::now();
    assert_eq!(sweep(&launch, Duration::from_secs(1)).unwrap().killed, 0);
    begin.elapsed()
}
