//! A server that threads share, over real sockets.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use pmi_core::fence::LocalFence;
use pmi_core::ids::{JobId, LocalRank, NodeIndex};
use pmi_core::job::Job;
use pmi_core::server::{EndReason, Server, Settings};
use pmi_core::services::NoServices;
use pmi_core::threads::{NotServed, ThreadedServer};

const INIT: &str = "cmd=init pmi_version=1 pmi_subversion=1\n";

/// A rank's end of its connection.
struct Rank(BufReader<UnixStream>);

impl Rank {
    fn say(&mut self, text: &str) {
        self.0.get_mut().write_all(text.as_bytes()).unwrap();
    }

    fn ask(&mut self, text: &str) -> String {
        self.say(text);
        self.hear()
    }

    fn hear(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line
    }
}

type Served = JoinHandle<Result<(), NotServed>>;

fn host(ranks: u32) -> Arc<ThreadedServer> {
    let job = Job::on_one_node(JobId::new("j").unwrap(), ranks);
    let server = Server::new(job, NodeIndex(0), Settings::default());
    ThreadedServer::new(server, Arc::new(LocalFence), Arc::new(NoServices))
}

fn start(host: &Arc<ThreadedServer>, rank: u32) -> (Rank, Served) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let host = host.clone();
    let served = thread::spawn(move || host.serve(LocalRank(rank), ours));
    let mut rank = Rank(BufReader::new(theirs));
    assert!(rank.ask(INIT).starts_with("cmd=response_to_init rc=0 "));
    (rank, served)
}

#[test]
fn ranks_get_what_others_put_and_leave_in_good_order() {
    let host = host(2);
    let [(mut first, served), (mut second, other)] = [0, 1].map(|rank| start(&host, rank));
    assert_eq!(first.ask("cmd=get kvsname=j key=hasNameServ\n"), "cmd=get_result rc=0 value=FALSE\n");
    assert_eq!(first.ask("cmd=put kvsname=j key=k value=v\n"), "cmd=put_result rc=0\n");
    first.say("cmd=barrier_in\n");
    assert_eq!(second.ask("cmd=barrier_in\n"), "cmd=barrier_out rc=0\n");
    assert_eq!(first.hear(), "cmd=barrier_out rc=0\n");
    assert_eq!(second.ask("cmd=get kvsname=j key=k\n"), "cmd=get_result rc=0 value=v\n");
    for (number, (mut rank, served)) in (0..).zip([(first, served), (second, other)]) {
        assert!(rank.ask("cmd=finalize\n").starts_with("cmd=finalize_ack"));
        drop(rank);
        served.join().unwrap().unwrap();
        host.rank_exited(LocalRank(number)).unwrap();
    }
}

#[test]
fn a_rank_that_reads_nothing_holds_nobody_up() {
    let host = host(2);
    let [(mut silent, served), (mut other, _)] = [0, 1].map(|rank| start(&host, rank));
    let value = "v".repeat(1000);
    silent.ask(&format!("cmd=put kvsname=j key=k value={value}\n"));
    silent.say("cmd=barrier_in\n");
    other.ask("cmd=barrier_in\n");
    silent.hear();
    let mut flood = silent.0.get_ref().try_clone().unwrap();
    // The loop ends when the socket is closed.
    let flooding = thread::spawn(move || while flood.write_all(b"cmd=get kvsname=j key=k\n").is_ok() {});
    for _ in 0..100 {
        assert_eq!(other.ask("cmd=get kvsname=j key=k\n"), format!("cmd=get_result rc=0 value={value}\n"));
    }
    assert_eq!(other.ask("cmd=abort exitcode=7 message=enough\n"), "");
    assert!(matches!(served.join().unwrap(), Err(NotServed::End(EndReason::Abort { code: Some(7), .. }))));
    flooding.join().unwrap();
}

#[test]
fn all_hear_of_a_rank_that_leaves_others_in_a_fence() {
    let host = host(2);
    let [(first, left), (mut second, waits)] = [0, 1].map(|rank| start(&host, rank));
    second.say("cmd=barrier_in\n");
    drop(first);
    let ends = [left.join().unwrap().and_then(|()| host.rank_exited(LocalRank(0))), waits.join().unwrap()];
    assert!(ends.iter().all(|end| matches!(end, Err(NotServed::End(_)))), "{ends:?}");
    assert_eq!(second.hear(), "");
}

#[test]
fn a_rank_is_served_once_and_a_stranger_never() {
    let host = host(1);
    let (_rank, _served) = start(&host, 0);
    for (rank, refusal) in [
        (0, "rank 0 has a connection to its server already"),
        (1, "local rank 1 is not on this node, which has 1 ranks of the job"),
    ] {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        assert_eq!(host.serve(LocalRank(rank), ours).unwrap_err().to_string(), refusal);
    }
}
