//! The facts about a job, as a table of keys by level: job, application, node, process.

use std::collections::BTreeMap;

use pmi_core::ids::{JobId, NodeIndex, Rank};
use pmi_core::job::{App, Job, Placement};
use pmix_core::wire::Encoding;
use pmix_core::wire::reader::{Proc, Reader};
use pmix_core::wire::request::command;
use pmix_core::wire::value::Value;
use pmix_core::{BoundPlace, Namespace, NodeFacts, ProcessSet};

use super::get;
use super::world::World;

/// Two programs of 3 ranks and 1 rank on two nodes: ranks 0 and 1 on the first, 2 and 3 on the second.
fn two_programs() -> Namespace {
    let job = Job {
        placement: Placement::block(&[2, 2]),
        apps: vec![App { ranks: 3, appnum: 0 }, App { ranks: 1, appnum: 1 }],
        universe_size: Some(16),
        ..Job::on_one_node(JobId::new("kvs_0").unwrap(), 4)
    };
    let hosts = ["alpha", "beta"].map(str::to_owned).to_vec();
    let directory = Some("/tmp/lattice.1".to_owned());
    Namespace {
        name: "secret".to_owned(),
        job,
        node: NodeIndex(0),
        hosts,
        allocation: None,
        directory,
        parent: None,
        here: NodeFacts::default(),
        command: bytes::Bytes::new(),
        sets: Vec::new(),
    }
}

type Facts = BTreeMap<String, Vec<String>>;

/// The facts that a rank of the job receives, as text: each key with its values, in their order.
fn told(namespace: Namespace, encoding: Encoding) -> Facts {
    let mut world = World::new(1, &[1]);
    let name = namespace.name.clone();
    let node = world.add_job(namespace);
    let client = world.join(node, &name, 0, encoding).unwrap();
    world.send(client, 101, command::REQ, |_| {});
    let payload = world.receive(client).unwrap().payload;
    let mut reader = Reader::new(encoding, &payload);
    reader.one().unwrap();
    assert_eq!(reader.text().unwrap(), Some(name.as_bytes()));
    pairs(&mut reader)
}

fn pairs(reader: &mut Reader<'_>) -> Facts {
    let mut facts = Facts::new();
    while !reader.is_empty() {
        reader.one().unwrap();
        let key = String::from_utf8(reader.required_text("a key").unwrap().to_vec()).unwrap();
        let value = match reader.value().unwrap() {
            Value::Bytes(blob) if key == "pmix.mblob" => {
                let mut map = Reader::new(reader.encoding(), blob);
                map.one().unwrap();
                let nodes = map.size().unwrap();
                let lists = pairs(&mut map).into_iter().map(|(host, ranks)| format!(" {host}={}", ranks.join("|")));
                format!("{nodes}:{}", lists.collect::<String>())
            }
            value => words(reader.encoding(), &value),
        };
        facts.entry(key).or_default().push(value);
    }
    facts
}

fn words(encoding: Encoding, value: &Value<'_>) -> String {
    let text = |text: &[u8]| String::from_utf8(text.to_vec()).unwrap();
    match value {
        Value::Text(bytes) => text(bytes),
        Value::Bool(on) => on.to_string(),
        Value::U16(number) => format!("{number}/16"),
        Value::U32(number) => number.to_string(),
        Value::Rank(rank) => format!("rank {rank}"),
        Value::Proc(Proc { namespace, rank }) => format!("{rank} of {}", text(namespace)),
        Value::Infos(infos) => {
            let info = |info: &pmix_core::wire::value::Info<'_>| {
                assert_eq!(info.flags, 0);
                format!("{}={}", text(info.key), words(encoding, &info.value))
            };
            infos.iter().map(info).collect::<Vec<_>>().join(" ")
        }
        Value::Bytes(blob) => {
            let mut blob = Reader::new(encoding, blob);
            blob.one().unwrap();
            let rank = blob.u32().unwrap();
            let facts = pairs(&mut blob).into_iter().map(|(key, values)| format!(" {key}={}", values.join("|")));
            format!("{rank}:{}", facts.collect::<String>())
        }
        other => panic!("{other:?}"),
    }
}

fn check(namespace: Namespace, expected: &[(&str, &[&str])]) {
    for encoding in Encoding::ALL {
        let module = if encoding == Encoding::Fixed { "v3" } else { "v41" };
        let mut facts = told(namespace.clone(), encoding);
        assert_eq!(facts.remove("pmix.bfrops.mod"), Some(vec![module.to_owned()]));
        let expected: Facts = expected
            .iter()
            .map(|(key, values)| ((*key).to_owned(), values.iter().map(|value| (*value).to_owned()).collect()))
            .collect();
        assert_eq!(facts, expected, "{encoding:?}");
    }
}

#[test]
fn a_job_of_two_programs_on_two_nodes_is_described_on_every_level() {
    check(
        two_programs(),
        &[
            // The job.
            ("pmix.num.nodes", &["2"]),
            ("pmix.nlist", &["alpha,beta"]),
            ("pmix.job.size", &["4"]),
            ("pmix.max.size", &["4"]),
            ("pmix.univ.size", &["16"]),
            ("pmix.job.napps", &["2"]),
            ("pmix.tmpdir", &["/tmp/lattice.1"]),
            ("pmix.nsdir", &["/tmp/lattice.1/kvs_0"]),
            ("pmix.tdir.rmclean", &["true"]),
            // Its programs.
            ("OMPI_APP_SIZES", &["3 1"]),
            ("OMPI_FIRST_RANKS", &["0 3"]),
            // Its nodes.
            (
                "pmix.node.arr",
                &[
                    "pmix.hname=alpha pmix.nodeid=0 pmix.lldr=rank 0 pmix.local.size=2",
                    "pmix.hname=beta pmix.nodeid=1 pmix.lldr=rank 2 pmix.local.size=2",
                ],
            ),
            ("pmix.mblob", &["2: alpha=0,1 beta=2,3"]),
            // Its ranks of this node.
            (
                "pmix.pblob",
                &[
                    "0: pmix.appnum=0 pmix.hname=alpha pmix.lrank=0/16 pmix.nodeid=0 pmix.nrank=0/16",
                    "1: pmix.appnum=0 pmix.hname=alpha pmix.lrank=1/16 pmix.nodeid=0 pmix.nrank=1/16",
                ],
            ),
        ],
    );
}

/// Facts about ranks on other nodes: no rank commits them, and no other node is asked.
#[test]
fn what_is_known_of_a_rank_elsewhere_is_told_at_once_when_it_is_asked_for() {
    for encoding in Encoding::ALL {
        let mut world = World::new(1, &[1]);
        let node = world.add_job(two_programs());
        let client = world.join(node, "secret", 0, encoding).unwrap();
        for key in ["pmix.lrank", "pmix.nodeid", "pmix.hname", "pmix.appnum"] {
            get(&mut world, client, "secret", 3, key, false);
            let payload = world.receive(client).unwrap().payload;
            let mut reader = Reader::new(encoding, &payload);
            reader.one().unwrap();
            assert_eq!(reader.i32().unwrap(), 0);
            reader.one().unwrap();
            let mut object = Reader::new(encoding, reader.byte_object().unwrap());
            object.one().unwrap();
            assert_eq!(object.proc().unwrap(), Proc { namespace: b"secret", rank: 3 });
            let facts = pairs(&mut object);
            let expected = [
                ("pmix.appnum", "1"),
                ("pmix.hname", "beta"),
                ("pmix.lrank", "1/16"),
                ("pmix.nodeid", "1"),
                ("pmix.nrank", "1/16"),
            ];
            let expected = expected.map(|(key, value)| (key.to_owned(), vec![value.to_owned()]));
            assert_eq!(facts, Facts::from(expected), "{key}");
        }
    }
}

#[test]
fn each_program_has_a_set_where_one_has() {
    let sets = vec![ProcessSet { name: "app://ice".to_owned(), ranks: std::iter::once(3..4).collect() }];
    for encoding in Encoding::ALL {
        let facts = told(Namespace { sets: sets.clone(), ..two_programs() }, encoding);
        let programs = [
            "pmix.appnum=0 pmix.app.size=3 pmix.aldr=rank 0 pmix.pset.nm=",
            "pmix.appnum=1 pmix.app.size=1 pmix.aldr=rank 3 pmix.pset.nm=app://ice",
        ];
        assert_eq!(facts["pmix.app.arr"], programs, "{encoding:?}");
    }
}

#[test]
fn ranks_hear_where_their_neighbours_are_bound() {
    let place = |cpu: u32| Some(BoundPlace { cpus: cpu.to_string(), locality: format!("CR{cpu}:HT{cpu}") });
    let here = NodeFacts { topology: Some("<topology/>".into()), places: vec![place(0), None] };
    for encoding in Encoding::ALL {
        let facts = told(Namespace { here: here.clone(), ..two_programs() }, encoding);
        // Clients of the older encoding request it when they need it.
        assert_eq!(facts.contains_key("pmix.hwlocxml2"), encoding == Encoding::Flex);
        let ranks = &facts["pmix.pblob"];
        assert!(ranks[0].contains(" pmix.cpuset=0 pmix.hname=alpha pmix.locstr=CR0:HT0 "), "{ranks:?}");
        assert!(
            ranks[1..].iter().all(|rank| !rank.contains("pmix.cpuset") && !rank.contains("pmix.locstr")),
            "{ranks:?}"
        );
    }
}

#[test]
fn a_spawned_job_knows_its_parent_and_a_plain_one_has_no_directory_of_ours() {
    let job = Job::on_one_node(JobId::new("kvs_0.s1").unwrap(), 1);
    let (hosts, parent) = (vec!["alpha".to_owned()], Some(("secret".to_owned(), Rank(3))));
    let spawned = Namespace {
        name: "child".to_owned(),
        job,
        node: NodeIndex(0),
        hosts,
        allocation: None,
        directory: None,
        parent,
        here: NodeFacts::default(),
        command: bytes::Bytes::new(),
        sets: Vec::new(),
    };
    let plain = [
        ("pmix.num.nodes", &["1"][..]),
        ("pmix.nlist", &["alpha"]),
        ("pmix.job.size", &["1"]),
        ("pmix.max.size", &["1"]),
        ("pmix.univ.size", &["1"]),
        ("pmix.job.napps", &["1"]),
        ("pmix.node.arr", &["pmix.hname=alpha pmix.nodeid=0 pmix.lldr=rank 0 pmix.local.size=1 pmix.lpeers=0"]),
        ("pmix.pblob", &["0: pmix.appnum=0 pmix.hname=alpha pmix.lrank=0/16 pmix.nodeid=0 pmix.nrank=0/16"]),
    ];
    check(Namespace { parent: None, ..spawned.clone() }, &plain);
    let parents = [("pmix.spawned", &["true"][..]), ("pmix.parent", &["3 of secret"])];
    check(spawned, &[&plain[..], &parents].concat());
}
