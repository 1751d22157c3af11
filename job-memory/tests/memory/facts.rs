//! Constant part of the memory.

use std::fs::File;

use job_memory::{JobFacts, JobReader, JobWriter, Node, NodeFacts, NotReadable, Rank, RankFacts};

use crate::JOB;

fn facts(ranks: u32, nodes: u32) -> JobFacts {
    let rank = |rank: u32| RankFacts {
        node: rank % nodes,
        local_rank: rank / nodes,
        node_rank: rank / nodes + 1,
        appnum: if rank == 0 { -1 } else { 1 },
        cpus: rank.is_multiple_of(nodes).then(|| format!("{rank}")),
    };
    let node = |node: u32| NodeFacts {
        name: format!("node{node}"),
        address: (nodes > 1).then(|| format!("10.0.0.{node}:50052")),
    };
    JobFacts {
        job_id: JOB.to_owned(),
        node: 0,
        programs: 2,
        universe_size: Some(ranks),
        ranks: (0..ranks).map(rank).collect(),
        nodes: (0..nodes).map(node).collect(),
        attributes: vec![("universeSize".into(), "9".into()), ("hasNameServ".into(), "TRUE".into())],
    }
}

fn reader(facts: &JobFacts) -> (JobWriter, JobReader) {
    let (writer, descriptor) = JobWriter::create(facts).unwrap();
    (writer, JobReader::of(File::from(descriptor), &facts.job_id).unwrap())
}

#[test]
fn the_map_is_read_before_any_fence() {
    let (_writer, reader) = reader(&facts(5, 2));
    assert_eq!((reader.size(), reader.nodes(), reader.node_index(), reader.local_size()), (5, 2, 0, 3));
    assert_eq!((reader.job_id().as_deref(), reader.programs(), reader.universe_size()), (Some(JOB), 2, Some(5)));
    let rank = |node, local_rank, appnum, cpus: Option<&str>| {
        Some(Rank { node, local_rank, node_rank: local_rank + 1, appnum, cpus: cpus.map(Into::into) })
    };
    assert_eq!(reader.rank(0), rank(0, 0, -1, Some("0")));
    assert_eq!(reader.rank(3), rank(1, 1, 1, None));
    assert_eq!(reader.rank(5), None);
    assert_eq!([0, 3, 5].map(|rank| reader.appnum(rank)), [Some(-1), Some(1), None]);
    let node = Node { name: "node1".into(), address: Some("10.0.0.1:50052".into()), ranks: 2 };
    assert_eq!((reader.node(1), reader.node(2)), (Some(node), None));
    assert_eq!(reader.attribute("hasNameServ").as_deref(), Some(b"TRUE".as_slice()));
    assert_eq!((reader.attribute("nonesuch"), reader.fences()), (None, None));
}

#[test]
fn one_node_has_no_address_and_an_unset_universe_is_none() {
    let (_writer, reader) = reader(&JobFacts { universe_size: None, attributes: Vec::new(), ..facts(1, 1) });
    assert_eq!(reader.node(0), Some(Node { name: "node0".into(), address: None, ranks: 1 }));
    assert_eq!((reader.universe_size(), reader.attribute("universeSize")), (None, None));
}

#[test]
fn a_map_larger_than_what_is_mapped_at_first_is_read_whole() {
    let (_writer, reader) = reader(&facts(100_000, 1000));
    assert_eq!(reader.rank(99_999).map(|rank| (rank.node, rank.local_rank)), Some((999, 99)));
    assert_eq!(reader.node(999).map(|node| node.ranks), Some(100));
}

#[test]
fn another_jobs_memory_is_refused() {
    let (_writer, descriptor) = JobWriter::create(&facts(1, 1)).unwrap();
    let error = JobReader::of(File::from(descriptor), "kvs_1_0").unwrap_err();
    assert!(matches!(&error, NotReadable::OtherJob { .. }), "{error}");
    assert_eq!(error.to_string(), "the job memory is of job kvs_4711_0, not of kvs_1_0");
}
