//! Key-value spaces that ranks create in addition to the job's: access, visibility and number.

mod world;

use pmi_core::ids::JobId;
use pmi_core::job::{Job, Placement};
use pmi_core::server::Settings;
use world::{JobIndex, World};

/// A job `j` of two nodes with two ranks each, after `init` of all ranks.
fn two_nodes() -> (World, JobIndex) {
    let mut world = World::kind();
    let job = Job { placement: Placement::block(&[2, 2]), ..Job::on_one_node(JobId::new("j").unwrap(), 4) };
    let job = world.start(job, Settings::default());
    for rank in 0..4 {
        assert!(world.ask(job, rank, "cmd=init pmi_version=1 pmi_subversion=1\n").contains("rc=0"));
    }
    (world, job)
}

fn fence(world: &mut World, job: JobIndex) {
    for rank in 0..4 {
        world.send(job, pmi_core::ids::Rank(rank), b"cmd=barrier_in\n");
    }
    world.settle();
    for rank in 0..4 {
        assert_eq!(world.told(job, rank), "cmd=barrier_out rc=0\n");
    }
}

const PUT: &str = "cmd=put kvsname=j.k0.1 key=k value=made\n";
const GET: &str = "cmd=get kvsname=j.k0.1 key=k\n";
const GET_OWN: &str = "cmd=get kvsname=j key=k\n";

#[test]
fn a_space_is_known_on_its_node_at_once_and_elsewhere_after_a_fence() {
    let (mut world, job) = two_nodes();
    assert_eq!(world.ask(job, 0, "cmd=create_kvs\n"), "cmd=newkvs rc=0 kvsname=j.k0.1\n");
    assert_eq!(world.ask(job, 2, "cmd=create_kvs\n"), "cmd=newkvs rc=0 kvsname=j.k2.1\n");
    assert_eq!(world.ask(job, 1, PUT), "cmd=put_result rc=0\n");
    assert_eq!(world.ask(job, 2, PUT), "cmd=put_result rc=-1 msg=unknown_kvsname\n");
    assert_eq!(world.ask(job, 0, "cmd=put kvsname=j key=k value=own\n"), "cmd=put_result rc=0\n");
    fence(&mut world, job);
    for rank in 0..4 {
        assert_eq!(world.ask(job, rank, GET), "cmd=get_result rc=0 value=made\n", "rank {rank}");
        assert_eq!(world.ask(job, rank, GET_OWN), "cmd=get_result rc=0 value=own\n", "rank {rank}");
    }
    assert_eq!(world.ask(job, 3, "cmd=destroy_kvs kvsname=j.k0.1\n"), "cmd=kvs_destroyed rc=0\n");
    assert!(world.ask(job, 3, GET).contains("unknown_kvsname"));
    assert_eq!(world.ask(job, 0, GET), "cmd=get_result rc=0 value=made\n");
    fence(&mut world, job);
    assert!(world.ask(job, 0, GET).contains("unknown_kvsname"));
    assert_eq!(world.ask(job, 0, GET_OWN), "cmd=get_result rc=0 value=own\n");
    assert!(world.ask(job, 0, "cmd=destroy_kvs kvsname=j.k0.1\n").contains("rc=-1"));
    // A name is never reused.
    assert_eq!(world.ask(job, 0, "cmd=create_kvs\n"), "cmd=newkvs rc=0 kvsname=j.k0.2\n");
}

#[test]
fn a_walk_meets_the_pairs_of_its_space_alone() {
    let (mut world, job) = two_nodes();
    world.ask(job, 0, "cmd=create_kvs\n");
    for (space, key) in [("j", "a"), ("j.k0.1", "a"), ("j", "b"), ("j.k0.1", "c")] {
        world.ask(job, 0, &format!("cmd=put kvsname={space} key={key} value={space}-{key}\n"));
    }
    let mut walk = |space: &str| {
        let (mut next, mut seen) = ("0".to_owned(), Vec::new());
        loop {
            let answer = world.ask(job, 0, &format!("cmd=getbyidx kvsname={space} idx={next}\n"));
            if answer.contains("no_more_keyvals") {
                return seen;
            }
            let fields: Vec<_> = answer.trim_end().split(' ').filter_map(|field| field.split_once('=')).collect();
            let field = |name| fields.iter().find(|(known, _)| *known == name).unwrap().1.to_owned();
            seen.push((field("key"), field("val")));
            next = field("nextidx");
        }
    };
    let pairs = |list: [(&str, &str); 2]| list.map(|(key, value)| (key.to_owned(), value.to_owned())).to_vec();
    assert_eq!(walk("j"), pairs([("a", "j-a"), ("b", "j-b")]));
    assert_eq!(walk("j.k0.1"), pairs([("a", "j.k0.1-a"), ("c", "j.k0.1-c")]));
    assert_eq!(walk(""), pairs([("a", "j-a"), ("b", "j-b")]), "as older clients ask");
}

#[test]
fn a_rank_makes_a_bounded_number_of_spaces_and_reaches_none_by_a_key() {
    let (mut world, job) = two_nodes();
    let made = (0..2000).filter(|_| world.ask(job, 0, "cmd=create_kvs\n").contains("rc=0 kvsname")).count();
    assert_eq!(made, 1024);
    assert!(world.ask(job, 1, "cmd=create_kvs\n").contains("rc=0"), "others make theirs");
    let removed = world.ask(job, 1, "cmd=put kvsname=j key=j.k0.1\0 value=removed\n");
    assert_eq!(removed, "cmd=put_result rc=-1 msg=a_key_has_no_NUL\n");
    assert_eq!(world.ask(job, 1, "cmd=get kvsname=j key=j.k0.1\0\n"), "cmd=get_result rc=1 msg=key_not_found\n");
    assert!(world.ask(job, 1, PUT).contains("rc=0"));
    assert!(world.ask(job, 1, "cmd=destroy_kvs kvsname=j\n").contains("rc=-1"), "the job's own stays");
}
