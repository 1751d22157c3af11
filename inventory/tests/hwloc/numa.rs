//! NUMA nodes: memory without CPUs, near to some CPUs or to none; nodes that are near to each other; numbers with gaps.

use crate::made_up::Machine;
use crate::{check_machine, singles, words};

#[test]
fn memory_without_cpus() {
    let machine = Machine::new("0-3", "0-3");
    machine.groups("core", &["0", "1", "2", "3"]).groups("package", &["0-1", "2-3"]);
    machine.numa(&[("0-1", "10 20 20"), ("2-3", "20 10 20"), ("", "20 20 10")]);
    check_machine(&machine);
}

/// Two packages of two cores with a NUMA node each, and memory of another kind as nodes 2 and 3.
fn two_kinds_of_memory(distances: [&str; 4]) -> Machine {
    let machine = Machine::new("0-3", "0-3");
    machine.groups("core", &words(&singles(0..4))).groups("package", &["0-1", "2-3"]);
    let nodes: Vec<_> = ["0-1", "2-3", "", ""].into_iter().zip(distances).collect();
    machine.numa(&nodes);
    machine
}

#[test]
fn memory_of_two_kinds_is_at_the_cpus_that_start_its_accesses() {
    // High-bandwidth memory as firmware describes it: access1 is used, since a device is nearest in access0.
    let machine = two_kinds_of_memory(["10 21 13 23", "21 10 23 13", "13 23 10 23", "23 13 23 10"]);
    let initiator = |node: u16, access: u8, from: u16| {
        let about = format!("sys/devices/system/node/node{node}/access{access}/initiators");
        machine.write(&format!("{about}/node{from}/cpulist"), "").write(&format!("{about}/read_latency"), "0");
    };
    for (node, from) in [(0, 0), (1, 1), (2, 1), (3, 0)] {
        initiator(node, 1, from);
        initiator(node, 0, 3);
    }
    let inventory = check_machine(&machine);
    let near: Vec<_> =
        inventory.template.numa.iter().map(|node| (node.cpus.to_string(), node.near.to_string())).collect();
    let [none, first, second] = ["", "0-1", "2-3"].map(str::to_owned);
    assert_eq!(
        near,
        [(first.clone(), none.clone()), (second.clone(), none.clone()), (none.clone(), second), (none, first)]
    );
}

#[test]
fn memory_of_two_kinds_is_at_the_cpus_that_are_least_far() {
    // Memory on a bus, with only distances from firmware: node 3 is as far from both packages as from node 2.
    let machine = two_kinds_of_memory(["10 21 14 24", "21 10 24 24", "14 24 10 24", "24 24 24 10"]);
    let near = check_machine(&machine).template.numa.into_iter().map(|node| node.near.to_string());
    assert_eq!(near.collect::<Vec<_>>(), ["", "", "0-1", ""]);
}

#[test]
fn memory_of_graphics_processors_is_no_numa_node() {
    let machine = Machine::new("0-7,16-23", "0-7,16-23");
    machine.arch("ppc64le");
    machine.groups("core", &["0-3", "4-7", "16-19", "20-23"]).groups("package", &["0-7", "16-23"]);
    machine.numbered_numa(&[
        (0, "0-7", "10 40 80 80"),
        (8, "16-23", "40 10 80 80"),
        (254, "", "80 80 10 80"),
        (255, "", "80 80 80 10"),
    ]);
    for (bus, node) in [(4, 255), (35, 254)] {
        let status = format!("Node:      {node}\nStatus:    online\nSize:      3f0000000");
        machine.write(&format!("proc/driver/nvidia/gpus/{bus:04x}:03:00.0/numa_status"), &status);
    }
    let numa = check_machine(&machine).template.numa.into_iter().map(|node| (node.id, node.distances));
    assert_eq!(numa.collect::<Vec<_>>(), [(0, vec![10, 40]), (8, vec![40, 10])]);
}

#[test]
fn nodes_near_to_each_other_are_grouped() {
    let machine = Machine::new("0-7", "0-7");
    machine.groups("core", &words(&singles(0..8))).groups("package", &words(&singles(0..8)));
    let distance = |from: u16, to: u16| match from ^ to {
        0 => "10",
        1 => "15",
        2 | 3 => "20",
        _ => "40",
    };
    let rows: Vec<String> =
        (0..8).map(|from| (0..8).map(|to| distance(from, to)).collect::<Vec<_>>().join(" ")).collect();
    let cpus = singles(0..8);
    machine.numa(&cpus.iter().zip(&rows).map(|(cpus, row)| (cpus.as_str(), row.as_str())).collect::<Vec<_>>());
    check_machine(&machine);
}

#[test]
fn nodes_with_gaps_between_their_numbers() {
    let machine = Machine::new("0-3,8-11", "0-3,8-11");
    machine.arch("ppc64le").groups("core", &["0-3", "8-11"]).groups("package", &["0-3", "8-11"]);
    machine.numbered_numa(&[(1, "0-3", "10 20"), (17, "8-11", "20 10")]);
    assert_eq!(check_machine(&machine).template.numa.len(), 2);
}

#[test]
fn a_node_with_the_cpus_of_another_does_not_count() {
    let machine = Machine::new("0-3", "0-3");
    machine.groups("core", &words(&singles(0..4))).groups("package", &["0-3"]);
    machine.numa(&[("0-3", "10 20 20"), ("0-3", "20 10 20"), ("2-3", "20 20 10")]);
    assert_eq!(check_machine(&machine).template.numa.len(), 1);
}

#[test]
fn a_node_of_one_cpu_is_not_within_it() {
    let machine = Machine::new("0-3", "0-3");
    machine.groups("package", &["0-3"]);
    machine.numa(&[("0", "10 20 20 20"), ("1", "20 10 20 20"), ("2", "20 20 10 20"), ("3", "20 20 20 10")]);
    check_machine(&machine);
}

#[test]
fn the_first_cpu_and_the_first_node_are_offline() {
    let machine = Machine::new("0-7", "2-7");
    machine.groups("core", &["2,6", "3,7", "4", "5"]).groups("package", &["2,4,6", "3,5,7"]);
    machine.numbered_numa(&[(1, "3,5,7", "10")]);
    let inventory = check_machine(&machine);
    assert_eq!((inventory.template.offline.to_string(), inventory.template.numa.len()), ("0-1".to_owned(), 1));
}
