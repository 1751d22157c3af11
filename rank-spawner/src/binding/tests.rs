use lattice_inventory::{CacheKind, CacheType, Group, NumaNode, PciDevice, PciKind, Template, UsableCores};

use super::*;

fn groups(lists: &[&str]) -> Vec<Group> {
    lists.iter().map(|cpus| Group { cpus: cpus.parse().unwrap(), id: None }).collect()
}

fn numbered(lists: &[&str]) -> Vec<Group> {
    (0..).zip(groups(lists)).map(|(id, group)| Group { id: Some(id), ..group }).collect()
}

/// Two packages of two cores of two threads; the second threads have the highest numbers.
fn eight_threads(allowed: &str) -> UsableCores {
    let template = Template {
        cpus: "0-7".parse().unwrap(),
        packages: numbered(&["0-1,4-5", "2-3,6-7"]),
        cores: groups(&["0,4", "1,5", "2,6", "3,7"]),
        ..Template::default()
    };
    UsableCores::of(&template, &allowed.parse().unwrap())
}

/// Two packages. Each has two NUMA nodes, each of two level-3 caches, each of two cores with one thread.
fn sixteen_cores() -> UsableCores {
    UsableCores::of(&two_packages(), &"0-15".parse().unwrap())
}

fn two_packages() -> Template {
    let numa = |id: u16| NumaNode {
        id,
        cpus: format!("{}-{}", 4 * id, 4 * id + 3).parse().unwrap(),
        memory_gib: 1,
        ..NumaNode::default()
    };
    let pairs: Vec<String> = (0..8).map(|pair| format!("{}-{}", 2 * pair, 2 * pair + 1)).collect();
    let caches = CacheKind {
        level: 3,
        kind: CacheType::Unified,
        size: 1 << 20,
        line: 64,
        ways: 16,
        instances: groups(&pairs.iter().map(String::as_str).collect::<Vec<_>>()),
    };
    let cores: Vec<String> = (0..16).map(|core| core.to_string()).collect();
    Template {
        cpus: "0-15".parse().unwrap(),
        packages: numbered(&["0-7", "8-15"]),
        cores: groups(&cores.iter().map(String::as_str).collect::<Vec<_>>()),
        caches: vec![caches],
        numa: (0..4).map(numa).collect(),
        ..Template::default()
    }
}

/// The template of [`sixteen_cores`] with GPUs next to these CPUs, in the order of their addresses.
fn with_gpus(cpus: &[&str]) -> UsableCores {
    let gpu = |(bus, cpus): (u8, &&str)| PciDevice {
        address: format!("0000:{bus:02x}:00.0").parse().unwrap(),
        kind: PciKind::Gpu,
        class: 0x0302,
        id: [0x10de, 1],
        board: [0, 0],
        revision: 0,
        numa: None,
        cpus: cpus.parse().unwrap(),
        link_mb: 0,
        model: String::new(),
        names: Vec::new(),
    };
    let pci = (1..).zip(cpus).map(gpu).collect();
    UsableCores::of(&Template { pci, ..two_packages() }, &"0-15".parse().unwrap())
}

fn check_on(usable: &UsableCores, bind: &str, ranks: u32, expected: &[&str]) {
    let planned = plan(usable, &bind.parse().unwrap(), ranks).unwrap();
    let planned: Vec<String> = planned.into_iter().map(|set| set.unwrap().to_string()).collect();
    assert_eq!(planned, expected, "{bind}");
}

fn check(allowed: &str, bind: &str, ranks: u32, expected: &[&str]) {
    check_on(&eight_threads(allowed), bind, ranks, expected);
}

#[test]
fn cores_are_given_out_whole_and_in_order() {
    check("0-7", "cores", 3, &["0,4", "1,5", "2,6"]);
    check("0-7", "cores", 5, &["0,4", "1,5", "2,6", "3,7", "0,4"]);
    check("1,5-6", "cores", 3, &["1,5", "6", "1,5"]);
}

#[test]
fn cores_are_divided_among_the_ranks() {
    check("0-7", "cores:even", 1, &["0-7"]);
    check("0-7", "cores:even", 2, &["0-1,4-5", "2-3,6-7"]);
    check("0-7", "cores:even", 3, &["0,4", "1,5", "2,6"]);
    check("0-7", "cores:even:over=sockets", 2, &["0-1,4-5", "2-3,6-7"]);
    check("0-7", "cores:even:overcommit", 5, &["0,4", "1,5", "2,6", "3,7", "0,4"]);
    check_on(&sixteen_cores(), "cores:even", 5, &["0-2", "3-5", "6-8", "9-11", "12-14"]);
    assert!(plan(&eight_threads("0-7"), &"cores:even".parse().unwrap(), 5).is_err());
}

#[test]
fn ranks_without_room_may_stay_unbound() {
    check("0-7", "cores:or-none", 3, &["0,4", "1,5", "2,6"]);
    check("0-7", "threads:or-none", 2, &["0", "4"]);
    check("0-7", "cores:cpus=4:or-none", 2, &["0-1,4-5", "2-3,6-7"]);
    check_on(&sixteen_cores(), "numa:over=numa:or-none", 5, &["0-3", "4-7", "8-11", "12-15", "0-3"]);
    for (bind, ranks) in [("cores", 5), ("threads", 9), ("cores:cpus=4", 3), ("numa:over=numa", 5)] {
        let bind = format!("{bind}:or-none").parse().unwrap();
        assert_eq!(plan(&eight_threads("0-7"), &bind, ranks).unwrap(), vec![None; ranks as usize], "{bind}");
    }
}

#[test]
fn threads_are_given_out_core_by_core() {
    check("0-7", "threads", 3, &["0", "4", "1"]);
    check("4-5", "threads", 3, &["4", "5", "4"]);
}

#[test]
fn larger_objects_are_given_out_in_turn() {
    check("0-7", "sockets", 3, &["0-1,4-5", "2-3,6-7", "0-1,4-5"]);
    check_on(&sixteen_cores(), "numa", 5, &["0-3", "4-7", "8-11", "12-15", "0-3"]);
    check_on(&sixteen_cores(), "l3caches", 3, &["0-1", "2-3", "4-5"]);
    // A node without level-3 caches and NUMA.
    check("0-7", "l3caches", 2, &["0-1,4-5", "2-3,6-7"]);
    check("0-7", "numa", 2, &["0-7", "0-7"]);
}

#[test]
fn consecutive_ranks_go_to_different_objects_where_they_are_dealt_out() {
    check("0-7", "cores:over=sockets", 4, &["0,4", "2,6", "1,5", "3,7"]);
    check("0-7", "threads:over=sockets", 5, &["0", "2", "4", "6", "1"]);
    check_on(&sixteen_cores(), "cores:over=numa", 5, &["0", "4", "8", "12", "1"]);
    check_on(&sixteen_cores(), "l3caches:over=sockets", 4, &["0-1", "8-9", "2-3", "10-11"]);
    // One object has fewer CPUs than the other.
    check("0-3,5-7", "cores:over=sockets", 4, &["0", "2,6", "1,5", "3,7"]);
    check("1-3,5-7", "cores:over=sockets", 3, &["1,5", "2,6", "3,7"]);
}

#[test]
fn a_share_is_so_many_threads_or_cores() {
    check("0-7", "cores:cpus=1", 2, &["0,4", "1,5"]);
    check("0-7", "cores:cpus=2", 2, &["0,4", "1,5"]);
    check("0-7", "cores:cpus=3", 2, &["0-1,4-5", "2-3,6-7"]);
    check("0-7", "cores:cores=2", 2, &["0-1,4-5", "2-3,6-7"]);
    check("0-7", "threads:cpus=3", 2, &["0-1,4", "2,5-6"]);
    check("0-7", "cores:cpus=2:over=sockets", 3, &["0,4", "2,6", "1,5"]);
}

#[test]
fn a_share_is_widened_to_the_objects_that_it_touches() {
    check("0-7", "sockets:cpus=2", 3, &["0-1,4-5", "0-1,4-5", "2-3,6-7"]);
    check_on(&sixteen_cores(), "numa:cpus=3", 3, &["0-3", "0-7", "4-11"]);
    check_on(&sixteen_cores(), "l3caches:cores=2:over=sockets", 3, &["0-1", "8-9", "2-3"]);
}

#[test]
fn a_share_stays_in_one_object_where_one_has_room() {
    // The first package has one core left for the third rank, the second has two.
    check("0-3,5-7", "cores:cores=1:over=sockets", 4, &["0", "2,6", "1,5", "3,7"]);
    check_on(&sixteen_cores(), "cores:cores=3:over=numa", 4, &["0-2", "4-6", "8-10", "12-14"]);
    // No node has three cores left, so the fifth rank gets the remaining cores of all nodes.
    check_on(&sixteen_cores(), "cores:cores=3:over=numa", 5, &["0-2", "4-6", "8-10", "12-14", "3,7,11"]);
}

/// The second and third level of srun's `--distribution`.
#[test]
fn each_cpu_of_a_rank_can_be_dealt_out() {
    check("0-7", "cores:cpus=4:each-over=sockets", 2, &["0,2,4,6", "1,3,5,7"]);
    check("0-7", "threads:cpus=2:each-over=sockets", 4, &["0,2", "4,6", "1,3", "5,7"]);
    check("0-7", "threads:cpus=2:each-over=sockets:each-over=cores", 4, &["0,2", "1,3", "4,6", "5,7"]);
    check("0-7", "threads:cpus=2:over=sockets:each-over=cores", 4, &["0-1", "2-3", "4-5", "6-7"]);
    check("0-7", "threads:cpus=2:over=sockets:over=cores", 4, &["0,4", "2,6", "1,5", "3,7"]);
    check("0-7", "threads:over=sockets:over=cores", 8, &["0", "2", "1", "3", "4", "6", "5", "7"]);
    check("0-7", "threads:over=cores", 5, &["0", "1", "2", "3", "4"]);
    check("0-7", "cores:each-over=sockets", 4, &["0,4", "2,6", "1,5", "3,7"]);
    // One socket has fewer CPUs than the other.
    check("0-3,6-7", "threads:cpus=3:each-over=sockets", 2, &["0-2", "3,6-7"]);
    check("0,2-3,6-7", "threads:cpus=5:each-over=sockets", 1, &["0,2-3,6-7"]);
}

#[test]
fn ranks_are_bound_to_the_part_of_the_node_that_is_used() {
    check("0-7", "threads:threads-per-core=1", 5, &["0", "1", "2", "3", "0"]);
    check("0-7", "threads:threads-per-core=2", 3, &["0", "4", "1"]);
    check("0-7", "cores:threads-per-core=1", 2, &["0", "1"]);
    check("0-7", "sockets:threads-per-core=1", 2, &["0-1", "2-3"]);
    check("0-7", "cores:cpus=2:threads-per-core=1", 2, &["0-1", "2-3"]);
    check("0-7", "cores:cores-per-socket=1", 3, &["0,4", "2,6", "0,4"]);
    check("0-7", "cores:threads-per-core=1:cores-per-socket=1", 3, &["0", "2", "0"]);
    let refused = plan(&eight_threads("0-7"), &"cores:cpus=3:threads-per-core=1".parse().unwrap(), 2).unwrap_err();
    assert!(refused.to_string().contains("but CPUs 0-3, which this launch may use, are enough for 1"), "{refused}");
}

#[test]
fn ranks_that_have_too_few_are_told_how_many_have_enough() {
    let refused = plan(&eight_threads("0-7"), &"cores:cpus=4".parse().unwrap(), 3).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "3 local ranks are to be bound to cores:cpus=4, but CPUs 0-7, which this launch may use, are enough for 2; start fewer on a \
         node, or let them share with --overcommit"
    );
    check("0-7", "cores:cpus=4:overcommit", 3, &["0-1,4-5", "2-3,6-7", "0-1,4-5"]);
    // A share that is larger than the node always fails.
    assert!(plan(&eight_threads("0-7"), &"cores:cpus=9:overcommit".parse().unwrap(), 1).is_err());
}

#[test]
fn maps_are_followed_and_wrap_round() {
    check("0-7", "map:0,2,4-5", 4, &["0", "2", "4-5", "0"]);
    check("0-7", "map:0+2,4-5+7", 2, &["0,2", "4-5,7"]);
    check("0-7", "rank", 3, &["0", "1", "2"]);
    check("2,5-6", "rank", 4, &["2", "5", "6", "2"]);
    check_on(&sixteen_cores(), "numa-map:3,0", 3, &["12-15", "0-3", "12-15"]);
}

#[test]
fn unbound_ranks_have_no_set() {
    assert_eq!(plan(&eight_threads(""), &CpuBind::None, 2), Ok(vec![None, None]));
}

#[test]
fn what_cannot_be_had_is_named_beside_what_there_is() {
    let refuse = |allowed: &str, bind: &str, ranks: u32| {
        plan(&eight_threads(allowed), &bind.parse().unwrap(), ranks).unwrap_err().to_string()
    };
    let absent = "local rank 1 is to be bound to CPU 9, but this launch may use CPUs 0-3; name some of those, or have --cpu-bind=cores choose";
    assert_eq!(refuse("0-3", "map:0,9,77", 2), absent);
    let none = "ranks are to be bound to cores, but this launch may use none; leave them unbound with --cpu-bind=none";
    assert_eq!(refuse("", "cores", 1), none);
    assert!(refuse("0-7", "numa-map:0,4", 2).starts_with("local rank 1 is to be bound to NUMA node 4"));
    // An entry that no rank uses may name any CPU.
    assert!(plan(&eight_threads("0"), &"map:0,99".parse().unwrap(), 1).is_ok());
}

#[test]
fn bindings_are_read_and_written_alike() {
    for text in [
        "none",
        "rank",
        "threads",
        "cores",
        "l3caches",
        "numa",
        "sockets",
        "gpus",
        "nics:over=gpus",
        "cores:cpus=4",
        "cores:cores=2:over=numa",
        "sockets:cpus=3:over=sockets:overcommit",
        "threads:cpus=2:over=sockets:each-over=cores",
        "cores:each-over=sockets:threads-per-core=1:cores-per-socket=2:overcommit",
        "cores:over=sockets*2",
        "cores:even:over=sockets:or-none",
        "threads:cpus=2:over=numa*4:each-over=cores:in-order",
        "cores:over=sockets:numbered-over=l3caches:overcommit",
        "map:0,2,4-5",
        "map:0+2,4-5+7",
        "core-map:0,2-3+5,1/0,1/*,*",
        "rank-core-map:3,0",
        "numa-map:1,0",
    ] {
        assert_eq!(text.parse::<CpuBind>().unwrap().to_string(), text);
    }
    for text in [
        "",
        "core",
        "map",
        "map:",
        "map:0,,1",
        "map:x",
        "map:3-1",
        "numa-map:",
        "numa-map:x",
        "none:cpus=1",
        "rank:1",
        "cores:",
        "cores:cpus=0",
        "cores:cpus",
        "cores:cpus=1:cores=1",
        "cores:over=racks",
        "cores:over=sockets*0",
        "cores:over=sockets*",
        "cores:each-over=sockets*2",
        "cores:in-order=1",
        "cores:in-order:numbered-over=sockets",
        "cores:numbered-over",
        "core-map:",
        "core-map:1:2",
        "rank-core-map:x",
        "cores:over=numa:each-over=numa:over=numa",
        "cores:threads-per-core=0",
        "cores:cores-per-socket=1:cores-per-socket=1",
        "cores:overcommit=1",
        "cores:even:cores=2",
        "cores:overcommit:or-none",
        "cores:cpus=99999999999",
    ] {
        assert!(text.parse::<CpuBind>().is_err(), "{text:?} was taken");
    }
}

#[test]
fn an_object_gets_so_many_ranks_before_the_next_one() {
    check("0-7", "cores:over=sockets*2", 5, &["0,4", "1,5", "2,6", "3,7", "0,4"]);
    check("0-7", "threads:over=sockets*2", 6, &["0", "4", "2", "6", "1", "5"]);
    check_on(&sixteen_cores(), "cores:over=numa*2", 5, &["0", "1", "4", "5", "8"]);
    check_on(&sixteen_cores(), "cores:cores=2:over=sockets*2", 4, &["0-1", "2-3", "8-9", "10-11"]);
    // Ranks are bound to the whole object that they are dealt out over.
    check("0-7", "sockets:over=sockets*2", 3, &["0-1,4-5", "0-1,4-5", "2-3,6-7"]);
    check_on(&sixteen_cores(), "sockets:over=numa*1", 2, &["0-7", "8-15"]);
    check_on(&sixteen_cores(), "numa:over=l3caches*2", 5, &["0-3", "0-3", "0-3", "0-3", "4-7"]);
    // One object has fewer CPUs than the other.
    check("0-3,5-7", "threads:over=sockets*2", 4, &["0", "1", "2", "6"]);
    check("1-3,5-7", "cores:over=sockets*2", 3, &["1,5", "2,6", "3,7"]);
}

#[test]
fn ranks_are_numbered_otherwise_than_they_were_dealt_out() {
    check("0-7", "cores:over=sockets:in-order", 4, &["0,4", "1,5", "2,6", "3,7"]);
    check("0-7", "cores:over=sockets:in-order", 3, &["0,4", "1,5", "2,6"]);
    check("0-7", "cores:numbered-over=sockets", 4, &["0,4", "2,6", "1,5", "3,7"]);
    check("0-7", "cores:numbered-over=sockets", 3, &["0,4", "2,6", "1,5"]);
    check("0-7", "sockets:in-order", 4, &["0-1,4-5", "0-1,4-5", "2-3,6-7", "2-3,6-7"]);
    check_on(&sixteen_cores(), "cores:over=sockets:numbered-over=l3caches", 6, &["0", "2", "8", "10", "1", "9"]);
}

#[test]
fn maps_of_cores_count_those_that_may_be_used() {
    check("0-7", "core-map:0,3,1+2", 4, &["0,4", "3,7", "1-2,5-6", "0,4"]);
    check("0-7", "core-map:1/0,0/*,*", 3, &["2,6", "0-1,4-5", "0-7"]);
    check("2-7", "core-map:0,2", 2, &["4", "2,6"]);
    check("2-3,6-7", "core-map:0/1", 1, &["3,7"]);
    let of_ranks = "rank-core-map:0,1,2,3".parse::<CpuBind>().unwrap();
    assert_eq!(of_ranks.of_ranks([3, 1]).to_string(), "core-map:3,1");
    let refused = |map: &str| plan(&eight_threads("0-6"), &map.parse().unwrap(), 2).unwrap_err().to_string();
    assert_eq!(
        refused("core-map:0,4"),
        "local rank 1 is to be bound to cores 4, but this launch may use cores 0 to 3 (2, 2 by socket), which are CPUs 0-6; name some of those, or have \
         --cpu-bind=cores choose"
    );
    assert!(refused("core-map:2/0").starts_with("local rank 0 is to be bound to cores 2/0, but"));
}

#[test]
fn ranks_get_the_cores_next_to_their_gpus() {
    // As on nodes with GPU numbers in another order than the package numbers.
    let node = with_gpus(&["12-15", "8-11", "0-3", "4-7"]);
    check_on(&node, "gpus", 5, &["12-15", "8-11", "0-3", "4-7", "12-15"]);
    check_on(&node, "cores:over=gpus", 5, &["12", "8", "0", "4", "13"]);
    check_on(&node, "cores:over=gpus*2", 4, &["12", "13", "8", "9"]);
    check_on(&node, "cores:cpus=2:over=gpus", 3, &["12-13", "8-9", "0-1"]);
    check_on(&node, "gpus:over=gpus*2", 3, &["12-15", "12-15", "8-11"]);
    check_on(&node, "sockets:over=gpus", 3, &["8-15", "8-15", "0-7"]);
    check_on(&node, "cores:numbered-over=gpus", 3, &["0", "1", "2"]);
    check_on(&node, "cores:numbered-over=gpus", 5, &["0", "4", "1", "2", "3"]);
}

#[test]
fn gpus_of_the_same_cores_share_them_and_others_are_left() {
    let node = with_gpus(&["0-3", "0-3", "8-11", "8-11"]);
    check_on(&node, "gpus", 4, &["0-1", "2-3", "8-9", "10-11"]);
    check_on(&node, "numa:over=gpus", 4, &["0-3", "0-3", "8-11", "8-11"]);
    check_on(&node, "l3caches:over=gpus", 2, &["0-1", "2-3"]);
    check_on(&node, "cores:even:over=gpus", 4, &["0-1", "2-3", "8-9", "10-11"]);
    // Cores next to no GPU stay unused, unless the rank is bound to a larger object.
    check_on(&node, "cores:over=gpus", 9, &["0", "2", "8", "10", "1", "3", "9", "11", "0"]);
    check_on(&with_gpus(&["0-7"]), "l3caches:over=gpus", 1, &["0-7"]);
    assert_eq!(Object::Gpu.count(&node), 4);
    let refused =
        |node: &UsableCores, bind: &str, ranks| plan(node, &bind.parse().unwrap(), ranks).unwrap_err().to_string();
    let none = "ranks are to be bound to gpus, but this launch may use none; leave them unbound with --cpu-bind=none";
    assert_eq!(refused(&sixteen_cores(), "gpus", 1), none);
    assert!(refused(&sixteen_cores(), "cores:cpus=2:over=gpus", 1).contains("may use none; leave"));
    assert!(refused(&node, "cores:cpus=4:over=gpus", 3).contains("are enough for 2"), "two each of two GPUs");
    assert_eq!(Object::Nic.count(&node), 0);
    let unbound = plan(&sixteen_cores(), &"gpus:or-none".parse().unwrap(), 2);
    assert_eq!(unbound, Ok(vec![None, None]));
}
