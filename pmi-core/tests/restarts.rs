//! Restarts of all ranks together: by key on new connections, or on the existing ones.

mod transcript;
mod world;

use pmi_core::claim::ClaimKeys;
use pmi_core::ids::{JobId, LocalRank, NodeIndex, Rank};
use pmi_core::job::{Job, Placement};
use pmi_core::server::{EndReason, Restarts, Server, Settings};
use transcript::field;
use world::{JobIndex, World};

const INIT: &str = "cmd=init pmi_version=1 pmi_subversion=1\n";
const SERVED: &str = "cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=1\n";
const BARRIER: &str = "cmd=barrier_in\n";

fn job(counts: &[u32]) -> Job {
    let preput = vec![("given".into(), "at the start".into())];
    let job = Job::on_one_node(JobId::new("j").unwrap(), counts.iter().sum());
    Job { placement: Placement::block(counts), preput, ..job }
}

/// Keys of a node: 2^24 and the number of the rank on it.
fn key(local: u32) -> u32 {
    ClaimKeys::MIN + local
}

/// A job with ranks that have connected by key, or are about to connect.
struct Launch {
    world: World,
    job: JobIndex,
    counts: Vec<u32>,
}

impl Launch {
    fn new(counts: &[u32], restarts: Restarts) -> Self {
        let mut world = World::kind();
        let settings = Settings { restarts, ..Settings::default() };
        let started = world.start_unconnected(job(counts), settings);
        for (node, &count) in counts.iter().enumerate() {
            let mut keys = ClaimKeys::MIN..;
            let keys = ClaimKeys::draw(count as usize, || Ok::<_, ()>(keys.next().unwrap())).unwrap();
            world.require_keys(started, NodeIndex(node as u32), keys);
        }
        let mut launch = Self { world, job: started, counts: counts.to_vec() };
        launch.ranks().for_each(|rank| assert_eq!(launch.come(rank), SERVED));
        launch
    }

    fn ranks(&self) -> std::ops::Range<u32> {
        0..self.counts.iter().sum()
    }

    fn local(&mut self, rank: u32) -> u32 {
        let placement = &self.world.job(self.job).placement;
        placement.local_rank(Rank(rank)).unwrap().0
    }

    /// A program of the rank opens a new connection and sends `init`; returns the answer.
    fn come(&mut self, rank: u32) -> String {
        let key = key(self.local(rank));
        self.world.come_through_port(self.job, Rank(rank));
        let claimed = self.ask(rank, &format!("cmd=initack pmiid={key}\n"));
        assert_eq!(field(claimed.as_bytes(), "rc").as_deref(), Some("0"), "{claimed}");
        self.ask(rank, INIT)
    }

    fn ask(&mut self, rank: u32, message: &str) -> String {
        self.world.ask(self.job, rank, message)
    }

    fn put(&mut self, rank: u32, key: &str, value: &str) {
        let answer = self.ask(rank, &format!("cmd=put kvsname=j key={key} value={value}\n"));
        assert_eq!(field(answer.as_bytes(), "rc").as_deref(), Some("0"), "{answer}");
    }

    /// The value, or an empty text.
    fn get(&mut self, rank: u32, key: &str) -> String {
        let answer = self.ask(rank, &format!("cmd=get kvsname=j key={key}\n"));
        field(answer.as_bytes(), "value").filter(|_| answer.contains("rc=0")).unwrap_or_default()
    }

    /// All programs are killed, and started again.
    fn restart_all(&mut self) {
        self.ranks().for_each(|rank| self.world.disconnect(self.job, Rank(rank)));
        let last = self.ranks().end - 1;
        (0..last).for_each(|rank| assert_eq!(self.come(rank), "", "rank {rank} waits for the others"));
        assert_eq!(self.come(last), SERVED);
        (0..last).for_each(|rank| assert_eq!(self.world.told(self.job, rank), SERVED));
    }

    fn fence(&mut self) {
        self.ranks().for_each(|rank| self.world.send(self.job, Rank(rank), BARRIER.as_bytes()));
        self.world.settle();
        self.ranks().for_each(|rank| assert!(self.world.told(self.job, rank).starts_with("cmd=barrier_out")));
    }

    fn generations(&self) -> Vec<u32> {
        self.world.servers(self.job).map(Server::generation).collect()
    }
}

#[test]
fn ranks_that_come_again_have_the_space_that_was_asked_for() {
    let check = |restarts, counts: &[u32], kept: &str| {
        let mut launch = Launch::new(counts, restarts);
        let last = launch.ranks().end - 1;
        for generation in 1..=3 {
            launch.put(0, "card", &format!("of {generation}"));
            launch.put(0, &format!("only {generation}").replace(' ', "-"), "x");
            launch.fence();
            assert_eq!(launch.get(last, "card"), format!("of {generation}"));
            launch.restart_all();
            assert!(launch.generations().iter().all(|&now| now == generation), "{:?}", launch.generations());
            for rank in [0, last] {
                assert_eq!(
                    launch.get(rank, "card"),
                    kept.replace('N', &generation.to_string()),
                    "{restarts:?} {counts:?}"
                );
                assert_eq!(launch.get(rank, "given"), "at the start");
            }
            assert_eq!(launch.get(last, "only-1").is_empty(), kept.is_empty());
        }
        assert!(launch.world.ended(launch.job).is_none());
    };
    for counts in [&[1][..], &[3], &[2, 1, 2]] {
        check(Restarts::Keep, counts, "of N");
        check(Restarts::Fresh, counts, "");
    }
}

#[test]
fn a_rank_is_claimed_again_by_its_key_alone_and_after_the_end_of_its_connection() {
    let check = |restarts, ended: bool, key: u32, expected: &str| {
        let mut launch = Launch::new(&[2], restarts);
        if ended {
            launch.world.disconnect(launch.job, Rank(0));
        }
        let stranger = launch.world.accept(launch.job, NodeIndex(0));
        let claim = format!("cmd=initack pmiid={key}\n");
        launch.world.send_on(launch.job, NodeIndex(0), stranger, claim.as_bytes());
        let answer = String::from_utf8(launch.world.take_on(launch.job, NodeIndex(0), stranger)).unwrap();
        assert!(answer.contains(expected), "{restarts:?} {ended} {key}: {answer}");
    };
    check(Restarts::Keep, true, key(0), "rc=0");
    check(Restarts::Keep, false, key(0), "rank_0_is_claimed_already");
    check(Restarts::Keep, true, key(7), "this_PMI_ID_is_not_on_this_node");
    check(Restarts::Keep, true, 0, "this_PMI_ID_is_not_on_this_node");
    check(Restarts::Unexpected, true, key(0), "rank_0_is_claimed_already");
}

/// The end of a killed program and the first message of the next program arrive on different sockets.
#[test]
fn a_connection_whose_end_was_not_seen_yet_is_looked_at_before_a_claim_is_refused() {
    let mut launch = Launch::new(&[2], Restarts::Keep);
    for generation in 1..3 {
        launch.ranks().for_each(|rank| launch.world.disconnect_unseen(launch.job, Rank(rank)));
        assert_eq!((launch.come(0), launch.come(1)), (String::new(), SERVED.to_owned()));
        assert_eq!((launch.world.told(launch.job, 0), launch.generations()), (SERVED.to_owned(), vec![generation]));
    }
}

#[test]
fn what_comes_late_on_an_old_connection_counts_for_nothing() {
    let mut launch = Launch::new(&[1], Restarts::Keep);
    let connection = launch.world.server_of(launch.job, Rank(0)).connection_of(LocalRank(0)).unwrap();
    launch.world.send(launch.job, Rank(0), b"cmd=put kvsname=j key=half value=");
    launch.world.disconnect(launch.job, Rank(0));
    launch.world.send_on(launch.job, NodeIndex(0), connection, b"late\ncmd=abort exitcode=3\n");
    assert_eq!(launch.come(0), SERVED, "nothing of it is left before the first words of the next one");
    assert_eq!((launch.get(0, "half"), launch.generations()), (String::new(), vec![1]));
    assert!(launch.world.ended(launch.job).is_none());
}

#[test]
fn a_rank_that_says_init_again_on_its_connection_begins_again_with_the_others() {
    let mut launch = Launch::new(&[2], Restarts::Fresh);
    launch.put(1, "card", "old");
    assert_eq!(launch.ask(0, INIT), "");
    assert_eq!(launch.ask(1, INIT), SERVED);
    assert_eq!((launch.world.told(launch.job, 0), launch.get(1, "card")), (SERVED.to_owned(), String::new()));
    launch.fence();
    assert_eq!(launch.generations(), [1]);
}

#[test]
fn a_program_that_is_replaced_before_the_others_have_come_waits_with_its_last_connection() {
    let mut launch = Launch::new(&[1, 2], Restarts::Keep);
    launch.ranks().for_each(|rank| launch.world.disconnect(launch.job, Rank(rank)));
    for _ in 0..3 {
        assert_eq!(launch.come(1), "");
        launch.world.disconnect(launch.job, Rank(1));
    }
    assert_eq!((launch.come(1), launch.come(0), launch.come(2)), (String::new(), String::new(), SERVED.to_owned()));
    [0, 1].into_iter().for_each(|rank| assert_eq!(launch.world.told(launch.job, rank), SERVED));
    assert_eq!(launch.generations(), [1, 1]);
    launch.fence();
}

#[test]
fn fences_that_some_had_begun_when_all_were_killed_hold_nobody_up() {
    for restarts in [Restarts::Keep, Restarts::Fresh] {
        // Both ranks of node 0 are in a fence, the rank of node 1 is not, and one rank of node 2 is.
        let mut launch = Launch::new(&[2, 1, 2], restarts);
        launch.fence();
        launch.put(0, "card", "old");
        for rank in [0, 1, 3] {
            launch.world.send(launch.job, Rank(rank), BARRIER.as_bytes());
        }
        launch.world.settle();
        for _ in 0..2 {
            launch.restart_all();
            launch.put(0, "card", "new");
            launch.fence();
            launch.ranks().for_each(|rank| assert_eq!(launch.get(rank, "card"), "new", "{restarts:?}"));
        }
        assert!(launch.world.ended(launch.job).is_none());
    }
}

#[test]
fn groups_and_rings_that_some_had_begun_hold_nobody_up() {
    let mut launch = Launch::new(&[1, 1], Restarts::Keep);
    let job = launch.job;
    launch.world.send(job, Rank(0), b"cmd=barrier_in group=0,1:5\n");
    launch.restart_all();
    for rank in [0, 1] {
        launch.world.send(job, Rank(rank), b"cmd=barrier_in group=0,1:5\n");
    }
    launch.world.settle();
    for rank in [0, 1] {
        let told = launch.world.told(job, rank);
        assert!(told.contains("barrier_out"), "{told}");
    }
    let ring = |rank: u32| {
        let body = format!("cmd=ring;ring-count=1;ring-left=l{rank};ring-right=r{rank};");
        format!("{:>6}{body}", body.len())
    };
    launch.world.send(job, Rank(1), ring(1).as_bytes());
    launch.restart_all();
    for rank in [0, 1] {
        launch.world.send(job, Rank(rank), ring(rank).as_bytes());
    }
    launch.world.settle();
    let told = launch.world.told(job, 0);
    assert!(told.contains("ring-left=r1"), "{told}");
}

#[test]
fn a_rank_that_left_for_good_deserts_those_who_begin_again() {
    let mut launch = Launch::new(&[2], Restarts::Keep);
    launch.ask(1, "cmd=finalize\n");
    launch.world.disconnect(launch.job, Rank(0));
    assert_eq!(launch.come(0), "");
    assert!(launch.world.ended(launch.job).is_none(), "its next program may come");
    launch.world.exit(launch.job, Rank(1));
    let ended = launch.world.ended(launch.job);
    assert!(matches!(ended, Some(EndReason::LeftFence { rank: Rank(1), .. })), "{ended:?}");
}

#[test]
fn clients_of_pmi_2_begin_again_as_well() {
    let mut launch = Launch::new(&[2], Restarts::Keep);
    let job = launch.job;
    let message = |body: &str| format!("{:>6}{body}", body.len());
    let come = |launch: &mut Launch, rank: u32| {
        launch.world.come_through_port(job, Rank(rank));
        launch.ask(rank, "cmd=init pmi_version=2 pmi_subversion=0\n");
        launch.ask(rank, &message(&format!("cmd=fullinit;pmijobid=j;pmirank={};threaded=FALSE;", key(rank))))
    };
    launch.ask(0, &message("cmd=info-putnodeattr;key=shm;value=old;"));
    launch.ranks().for_each(|rank| launch.world.disconnect(job, Rank(rank)));
    assert_eq!(come(&mut launch, 0), "");
    assert!(come(&mut launch, 1).contains("rank=1;"));
    assert!(launch.world.told(job, 0).contains("rank=0;size=2;"));
    let found = launch.ask(1, &message("cmd=info-getnodeattr;key=shm;wait=FALSE;"));
    assert!(
        found.contains("found=FALSE"),
        "what ranks of a node tell each other is asked for without a fence: {found}"
    );
}
