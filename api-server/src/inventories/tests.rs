//! Tests of the inventories that are known.

use lattice_inventory::NumaNode;

use super::telling::{DEVICES_MAX, TEMPLATE_MAX};
use super::*;
use crate::listed_nodes;

fn template(arch: &str) -> Template {
    Template { arch: arch.to_owned(), cpus: "0-3".parse().unwrap(), ..Template::default() }
}

fn telling(template: &Template) -> ReceivedReport {
    ReceivedReport {
        signature: template.signature().0.to_vec().into(),
        devices: "{}".into(),
        ..ReceivedReport::default()
    }
}

/// All kinds, when no node is of unknown kind.
fn told(inventories: &Inventories) -> Vec<KindOfNodes> {
    inventories.kinds(&BTreeSet::new(), &Template::default())
}

#[test]
fn a_thousand_nodes_of_two_kinds_send_two_templates() {
    let (mut inventories, now) = (Inventories::default(), Instant::now());
    let kinds = ["x86_64", "aarch64"].map(template);
    let mut sent = 0;
    for number in 0..1000 {
        let (node, kind) = (format!("node{number}"), &kinds[number % 2]);
        if inventories.tell(&node, telling(kind), now).unwrap().answer == Answer::WantTemplate {
            let whole = ReceivedReport { template: kind.encode().into(), ..telling(kind) };
            assert_eq!(inventories.tell(&node, whole, now).unwrap().answer, Answer::Enough);
            sent += 1;
        }
    }
    let kinds = told(&inventories);
    assert_eq!((sent, kinds.len()), (2, 2));
    assert!(kinds[0].nodes.starts_with("node[0,2,4,6,8,10,12,"), "{}", kinds[0].nodes);
    assert_eq!(kinds[0].template, Some(template("x86_64").encode()));
}

#[test]
fn another_node_is_asked_when_the_first_does_not_answer() {
    let (mut inventories, now) = (Inventories::default(), Instant::now());
    let kind = template("x86_64");
    assert_eq!(inventories.tell("n1", telling(&kind), now).unwrap().answer, Answer::WantTemplate);
    let half = ANSWER_TIME / 2;
    // The answer includes the time of the next report. Otherwise the node would never be asked.
    let answer = inventories.tell("n2", telling(&kind), now + half).unwrap().answer;
    assert_eq!(answer, Answer::AskedElsewhere(ANSWER_TIME - half));
    assert_eq!(inventories.tell("n2", telling(&kind), now + ANSWER_TIME).unwrap().answer, Answer::WantTemplate);
}

#[test]
fn what_cannot_be_is_refused() {
    let (mut inventories, now) = (Inventories::default(), Instant::now());
    let kind = template("x86_64");
    let mut check = |telling: ReceivedReport, expected: &str| {
        let error = inventories.tell("n1", telling, now).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    };
    check(ReceivedReport { signature: vec![0; 4].into(), ..telling(&kind) }, "a signature of 4 bytes; it has 16");
    check(ReceivedReport { devices: vec![b' '; DEVICES_MAX + 1].into(), ..telling(&kind) }, "addresses of 65537 bytes");
    check(ReceivedReport { devices: "[]".into(), ..telling(&kind) }, "the addresses cannot be read");
    check(
        ReceivedReport { template: vec![b' '; TEMPLATE_MAX + 1].into(), ..telling(&kind) },
        "a template of 1048577 bytes",
    );
    let vast = Template { cpus: "0-8192".parse().unwrap(), ..Template::default() };
    check(ReceivedReport { template: vast.encode().into(), ..telling(&vast) }, "a template of 8193 CPUs");
    let numa = NumaNode { memory_gib: u64::MAX, ..NumaNode::default() };
    let vast = Template { numa: vec![numa.clone(), numa], ..Template::default() };
    check(ReceivedReport { template: vast.encode().into(), ..telling(&vast) }, "of more than 8589934592 GiB of memory");
    let usable = |cpus: &str| ReceivedReport { usable_cpus: cpus.to_owned(), ..telling(&kind) };
    check(usable("0-8192"), "a list of usable CPUs of 8193 CPUs");
    check(usable(&"0,".repeat(12_289)), "a list of usable CPUs of 24578 bytes");
    check(usable("3-1"), "the CPUs that ranks may use cannot be read");
    check(ReceivedReport { template: template("other").encode().into(), ..telling(&kind) }, "was sent");
    assert_eq!(told(&inventories), []);
}

#[test]
fn nodes_tell_the_cpus_that_they_leave_ranks() {
    let (mut inventories, now) = (Inventories::default(), Instant::now());
    let kind = template("x86_64");
    for (node, cpus) in [("n0", ""), ("n1", "1-2"), ("n2", "3,100"), ("n3", "1-2")] {
        let usable_cpus = cpus.to_owned();
        let whole = ReceivedReport { template: kind.encode().into(), usable_cpus, ..telling(&kind) };
        inventories.tell(node, whole, now).unwrap();
    }
    let limited = |inventories: &Inventories| {
        inventories.limited().into_iter().map(|(nodes, cpus)| format!("{nodes}: {cpus}")).collect::<Vec<_>>()
    };
    assert_eq!(limited(&inventories), ["n[1,3]: 1-2", "n2: 3,100"]);
    assert_eq!(["n0", "n1", "n2", "n9"].map(|node| inventories.usable_cpus(node)), [Some(4), Some(2), Some(1), None]);
    // The agent restarted, with all CPUs.
    inventories.tell("n2", telling(&kind), now).unwrap();
    assert_eq!(limited(&inventories), ["n[1,3]: 1-2"]);
}

#[test]
fn kinds_of_no_node_make_room() {
    let (mut inventories, now) = (Inventories::default(), Instant::now());
    let mut tell = |node: &str, number: usize| {
        let kind = template(&number.to_string());
        inventories.tell(node, ReceivedReport { template: kind.encode().into(), ..telling(&kind) }, now).unwrap();
        inventories.kinds.len()
    };
    for number in 0..KINDS_MAX * 2 {
        assert!(tell("n", number) <= KINDS_MAX);
    }
    // Kinds with nodes are kept.
    for number in 0..=KINDS_MAX {
        assert!(tell(&format!("n{number}"), number) <= KINDS_MAX);
    }
    let known = told(&inventories).iter().filter(|kind| kind.template.is_some()).count();
    assert_eq!((known, told(&inventories).len()), (KINDS_MAX, KINDS_MAX + 2));
}

#[test]
fn trouble_is_told_once_for_all_its_nodes() {
    let (mut inventories, now) = (Inventories::default(), Instant::now());
    let kind = template("x86_64");
    let devices = r#"{"mlx5_0":[{"kind":"node_guid","value":"b8ce"}]}"#;
    for node in ["n2", "n10", "n1"] {
        let trouble = vec!["pci: permission denied".to_owned()];
        inventories.tell(node, ReceivedReport { trouble, devices: devices.into(), ..telling(&kind) }, now).unwrap();
    }
    assert_eq!(inventories.trouble(), [("n[1-2,10]".to_owned(), "pci: permission denied".to_owned())]);
    let between = trouble_between(&inventories.devices());
    assert_eq!(between.len(), 2, "{between:?}");
    assert_eq!(between[0], "mlx5_0 of n10 and mlx5_0 of n1 have the same node GUID, b8ce");
}

#[test]
fn a_node_that_is_not_what_its_list_says_is_told_once() {
    let list = "[[topology]]\nname = 'milan'\nfile = 'node.xml'\n[[nodes]]\nlist = 'n[0-3]'\ntopology = 'milan'";
    let (mut inventories, now) = (Inventories::new(listed_nodes::tests::read(list).unwrap()), Instant::now());
    let kind = |cpus: &str| Template { cpus: cpus.parse().unwrap(), ..template("x86_64") };
    let (whole, half) = (kind("0-3"), kind("0-1"));
    let mut tell = |node: &str, kind: &Template| {
        let first = inventories.tell(node, telling(kind), now).unwrap();
        let message = ReceivedReport { template: kind.encode().into(), ..telling(kind) };
        let second = inventories.tell(node, message, now).unwrap();
        [first.news, second.news].concat()
    };
    let text = "2 of 4 CPUs of \"milan\" are missing";
    let packages = "1 of 1 package of \"milan\" is missing";
    assert_eq!(tell("n0", &whole), [format!("n0: {packages}")]);
    assert_eq!(tell("n1", &half), [format!("n1: {packages}"), format!("n1: {text}")]);
    assert_eq!((tell("n1", &half), tell("other", &half)), (vec![], vec![]));
    assert_eq!(inventories.trouble(), [("n[0-1]".to_owned(), packages.to_owned()), ("n1".to_owned(), text.to_owned())]);
    let registered = ["n0", "n1", "n2", "other", "unheard"].map(str::to_owned).into();
    let kinds = inventories.kinds(&registered, &template("head"));
    let seen: Vec<_> = kinds.iter().map(|kind| (kind.nodes.as_str(), kind.name.as_deref(), kind.origin)).collect();
    assert_eq!(
        seen,
        [
            ("n0", Some("milan"), Origin::Told),
            ("n1,other", None, Origin::Told),
            ("n[2-3]", Some("milan"), Origin::Listed),
            ("unheard", None, Origin::Assumed),
        ]
    );
}
