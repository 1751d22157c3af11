use proptest::prelude::*;

use lattice_session::request::ProgramRequest;
use lattice_session::spec::AppSpec;

use super::*;

fn nodes(count: usize) -> Vec<String> {
    (0..count).map(|index| format!("node{index}")).collect()
}

/// Number of ranks on each node of the placement.
fn counts(placed: &Assignment) -> Vec<usize> {
    (0..placed.hosts.len()).map(|node| placed.placement.ranks_on(NodeIndex(node as u32)).len()).collect()
}

fn per_node(ranks: u32) -> PlacementRequest {
    PlacementRequest { tasks_per_node: NonZeroU32::new(ranks), ..PlacementRequest::default() }
}

fn on_nodes(nodes: u32) -> PlacementRequest {
    PlacementRequest { nodes: NonZeroU32::new(nodes), ..PlacementRequest::default() }
}

fn names(list: &str) -> Vec<String> {
    hostlist::expand(list).unwrap()
}

/// The lines of a hostfile, each with at least one slot.
fn hosts(lines: &[(&str, u32)], distribution: Option<Distribution>) -> PlacementRequest {
    let line =
        |&(node, slots): &(&str, u32)| HostSlots { node: node.to_owned(), slots: NonZeroU32::new(slots).unwrap() };
    let candidates = Candidates::Hostfile(lines.iter().map(line).collect());
    PlacementRequest { candidates, distribution, ..PlacementRequest::default() }
}

/// Programs with these numbers of ranks; 0 stands for a program without a number.
fn programs(ranks: &[u32]) -> Programs {
    let app = AppSpec {
        program: "app".into(),
        args: Vec::new(),
        directory: "/".into(),
        set: Vec::new(),
        remove: Vec::new(),
        process_set: None,
    };
    let program = |&ranks: &u32| ProgramRequest { app: app.clone(), ranks: NonZeroU32::new(ranks), number: 0 };
    Programs::new(ranks.iter().map(program).collect()).unwrap()
}

fn placed(request: &PlacementRequest, ranks: &[u32], nodes: &[String]) -> Result<Assignment, PlacementError> {
    place(request, &programs(ranks), nodes, |_| None)
}

/// Placement of `srun -n` on such nodes by Slurm 22.05.
#[test]
fn ranks_fill_the_cpus_of_unequal_nodes() {
    let cpus =
        |node: &str| node.strip_prefix("node").and_then(|number| [1, 2, 1].get(number.parse::<usize>().ok()?).copied());
    let check = |request: &PlacementRequest, ranks: u32, expected: &[usize]| {
        let placed = place(request, &programs(&[ranks]), &nodes(3), cpus).unwrap();
        assert_eq!(counts(&placed), expected, "{request:?} {ranks}");
    };
    let plain = PlacementRequest::default();
    check(&plain, 3, &[1, 1, 1]);
    check(&plain, 4, &[1, 2, 1]);
    check(&plain, 8, &[2, 4, 2]);
    check(&plain, 5, &[2, 2, 1]);
    let cyclic = PlacementRequest { distribution: Some(Distribution::Cyclic), ..plain.clone() };
    check(&cyclic, 4, &[1, 2, 1]);
    check(&cyclic, 5, &[2, 2, 1]);
    let bounded = PlacementRequest { tasks_per_node: NonZeroU32::new(2), ..plain.clone() };
    check(&bounded, 4, &[1, 2, 1]);
    check(&bounded, 6, &[2, 2, 2]);
    let listed =
        PlacementRequest { candidates: Candidates::Listed(vec!["node2".to_owned(), "node1".to_owned()]), ..plain };
    check(&listed, 3, &[1, 2]);
}

#[test]
fn ranks_are_shared_out_evenly_and_in_order() {
    let check = |request: &PlacementRequest, ranks: &[u32], available, expected: &[usize]| {
        let placed = placed(request, ranks, &nodes(available)).unwrap();
        assert_eq!(counts(&placed), expected, "{request:?} {ranks:?}");
    };
    let any = PlacementRequest::default();
    check(&any, &[10], 3, &[4, 3, 3]);
    check(&any, &[2], 4, &[1, 1]);
    check(&any, &[0], 4, &[1]);
    check(&any, &[0, 3, 0], 2, &[3, 2]);
    check(&per_node(2), &[0], 3, &[2, 2, 2]);
    check(&per_node(4), &[10], 3, &[4, 3, 3]);
    check(&on_nodes(2), &[10], 3, &[5, 5]);
    check(&on_nodes(3), &[2], 3, &[1, 1, 0]);
    check(&on_nodes(3), &[0], 4, &[1, 1, 1]);
    check(&PlacementRequest { nodes: NonZeroU32::new(2), ..per_node(3) }, &[0], 4, &[3, 3]);
}

fn plane(ranks: u32) -> Distribution {
    Distribution::Plane(NonZeroU32::new(ranks).unwrap())
}

/// The examples in srun(1) and in Slurm's page on planes (dist_plane), where the figures show the ranks of each node.
#[test]
fn slurms_documented_examples_have_the_ranks_where_slurm_has_them() {
    let check = |words: &str, distribution, size, expected: &[&[u32]]| {
        let request = PlacementRequest { distribution: Some(distribution), ..on_nodes(expected.len() as u32) };
        let placed = placed(&request, &[size], &nodes(expected.len())).unwrap();
        for (node, expected) in (0..).zip(expected) {
            let ranks: Vec<u32> = placed.placement.ranks_on(NodeIndex(node)).iter().map(|rank| rank.0).collect();
            assert_eq!(&ranks, expected, "{words}: node {node}");
        }
    };
    // srun(1), --distribution: four tasks on three nodes with two CPUs each.
    check("-N3 -n4 -m block", Distribution::Block, 4, &[&[0, 1], &[2], &[3]]);
    check("-N3 -n4 -m cyclic", Distribution::Cyclic, 4, &[&[0, 3], &[1], &[2]]);
    let all: Vec<u32> = (0..21).collect();
    check("-N1-1 -n21 -m plane=4", plane(4), 21, &[&all]);
    check(
        "-N4-4 -n21 -m plane=4",
        plane(4),
        21,
        &[&[0, 1, 2, 3, 16, 17, 18, 19], &[4, 5, 6, 7, 20], &[8, 9, 10, 11], &[12, 13, 14, 15]],
    );
    check(
        "-N4-4 -n21 -m plane=2",
        plane(2),
        21,
        &[&[0, 1, 8, 9, 16, 17], &[2, 3, 10, 11, 18, 19], &[4, 5, 12, 13, 20], &[6, 7, 14, 15]],
    );
}

#[test]
fn planes_use_no_more_nodes_than_they_need_and_stay_within_bounds() {
    let check = |request: PlacementRequest, size, expected: &[usize]| {
        assert_eq!(counts(&placed(&request, &[size], &nodes(4)).unwrap()), expected, "{request:?}");
    };
    let planes = |ranks, request| PlacementRequest { distribution: Some(plane(ranks)), ..request };
    check(planes(3, PlacementRequest::default()), 7, &[3, 3, 1]);
    check(planes(3, on_nodes(4)), 7, &[3, 3, 1, 0]);
    check(planes(3, per_node(4)), 14, &[4, 4, 3, 3]);
    check(planes(2, hosts(&[("node1", 3), ("node0", 5)], None)), 8, &[3, 5]);
    check(planes(u32::MAX, PlacementRequest::default()), 8, &[8]);
    // Nodes smaller than a plane.
    check(planes(4, per_node(1)), 3, &[1, 1, 1]);
    check(planes(4, hosts(&[("node1", 1), ("node0", 1), ("node2", 5), ("node3", 1)], None)), 4, &[1, 1, 2]);
}

/// Steps side by side, as srun(1) shows them for --relative.
#[test]
fn a_launch_begins_with_the_node_that_is_named_by_its_number() {
    let on = |request: PlacementRequest| placed(&request, &[0], &nodes(4)).map(|placed| placed.hosts);
    let relative = |relative, request| PlacementRequest { relative, ..request };
    assert_eq!(on(relative(2, on_nodes(2))), Ok(names("node[2-3]")));
    assert_eq!(on(relative(0, on_nodes(2))), Ok(names("node[0-1]")));
    assert_eq!(on(relative(3, PlacementRequest::default())), Ok(names("node3")));
    let refused = |request| on(request).unwrap_err().to_string();
    assert_eq!(
        refused(relative(4, PlacementRequest::default())),
        "there is no node 4 to begin with; counted from 0, there are: node[0-3]\n\
         try: --relative with a smaller number, or -w with the names of nodes"
    );
    assert_eq!(
        refused(relative(3, on_nodes(2))),
        "2 nodes were asked for, and 1 can be used: node3\n\
         try: -N 1; or lattice alloc create -N 2, and its id as --alloc ID"
    );
}

#[test]
fn a_hostfile_is_filled_in_its_order() {
    let lines = [("node2", 2), ("node0", 3), ("node2", 1)];
    let check = |distribution, ranks, expected_nodes: &[&str], expected_ranks: &[&[u32]]| {
        let placed = placed(&hosts(&lines, distribution), &[ranks], &nodes(4)).unwrap();
        assert_eq!(placed.hosts, expected_nodes);
        for (node, expected) in (0..).zip(expected_ranks) {
            let ranks: Vec<u32> = placed.placement.ranks_on(NodeIndex(node)).iter().map(|rank| rank.0).collect();
            assert_eq!(&ranks, expected, "{distribution:?}, node {node}");
        }
    };
    check(Some(Distribution::Block), 0, &["node2", "node0"], &[&[0, 1, 2], &[3, 4, 5]]);
    check(Some(Distribution::Block), 3, &["node2"], &[&[0, 1, 2]]);
    check(Some(Distribution::Cyclic), 5, &["node2", "node0"], &[&[0, 2, 4], &[1, 3]]);
    check(None, 0, &["node2", "node0"], &[&[0, 1, 5], &[2, 3, 4]]);
    check(None, 2, &["node2"], &[&[0, 1]]);
    check(None, 3, &["node2", "node0"], &[&[0, 1], &[2]]);
}

/// A node of a hostfile without ranks takes no part, and need not be ready. `-N` requests nodes, with or without ranks.
#[test]
fn hosts_without_a_rank_take_no_part() {
    let lines = [("node0", 2), ("node1", 2), ("node2", 2)];
    for distribution in [None, Some(Distribution::Block), Some(Distribution::Cyclic), Some(plane(2))] {
        let placed = placed(&hosts(&lines, distribution), &[2], &nodes(3)).unwrap();
        assert!(counts(&placed).iter().all(|&ranks| ranks > 0), "{distribution:?}: {:?}", placed.hosts);
    }
    let asked = PlacementRequest { nodes: NonZeroU32::new(3), ..hosts(&lines, None) };
    assert_eq!(counts(&placed(&asked, &[2], &nodes(3)).unwrap()), [2, 0, 0]);
}

#[test]
fn nodes_are_chosen_by_name() {
    let check = |only: &str, except: &str, ranks, expected: &[&str]| {
        let candidates = if only.is_empty() { Candidates::All } else { Candidates::Listed(names(only)) };
        let request = PlacementRequest { candidates, except: names(except), ..Default::default() };
        assert_eq!(placed(&request, &[ranks], &nodes(6)).unwrap().hosts, expected);
    };
    check("node[4,1]", "", 2, &["node4", "node1"]);
    check("", "node[0-3]", 8, &["node4", "node5"]);
    check("node[0-2]", "node1", 2, &["node0", "node2"]);
    check("node[2,2,0]", "", 2, &["node2", "node0"]);
}

#[test]
fn what_cannot_be_placed_is_refused_in_words() {
    let check = |request: &PlacementRequest, ranks: &[u32], expected: &str| {
        let error = placed(request, ranks, &nodes(3)).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    };
    check(&on_nodes(4), &[4], "4 nodes were asked for, and 3 can be used: node[0-2]");
    check(&per_node(2), &[7], "3 nodes with at most 2 ranks each hold 6");
    let one = PlacementRequest { nodes: NonZeroU32::new(1), ..per_node(1) };
    check(&one, &[7], "1 node with at most 1 rank each holds 1\ntry: -n 1, or fewer; --tasks-per-node=7");
    check(&hosts(&[("node0", 2)], None), &[3], "have 2 slots");
    check(&hosts(&[("node7", 2)], None), &[1], "node node7 is not in the allocation, which has node[0-2]");
    check(&PlacementRequest { except: nodes(3), ..Default::default() }, &[1], "no node is left");
    check(&PlacementRequest::default(), &[RANKS_MAX, 1], "1048577 ranks were asked for; a launch has at most 1048576");
    check(&per_node(u32::MAX), &[0], "12884901885 ranks were asked for; a launch has at most 1048576");
    let cyclic = PlacementRequest { distribution: Some(Distribution::Cyclic), ..Default::default() };
    check(&cyclic, &[RANKS_MAX], "too irregular");
    check(&hosts(&[], None), &[1], "no node is left");
}

proptest! {
    /// For every request, ranks 0..n are on exactly one node each, and no node exceeds its limit.
    #[test]
    fn every_rank_has_one_place(
        ranks in proptest::collection::vec(0_u32..40, 1..4),
        available in 1_usize..20,
        asked in 0_u32..20,
        bound in 0_u32..20,
        cyclic: bool,
    ) {
        let request = PlacementRequest {
            nodes: NonZeroU32::new(asked),
            tasks_per_node: NonZeroU32::new(bound),
            distribution: cyclic.then_some(Distribution::Cyclic),
            ..Default::default()
        };
        if let Ok(placed) = placed(&request, &ranks, &nodes(available)) {
            let mut seen: Vec<u32> = (0..placed.hosts.len())
                .flat_map(|node| placed.placement.ranks_on(NodeIndex(node as u32)))
                .map(|rank| rank.0)
                .collect();
            seen.sort_unstable();
            let size: u32 = placed.ranks.iter().sum();
            prop_assert_eq!(seen, (0..size).collect::<Vec<_>>());
            let counts = counts(&placed);
            let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
            prop_assert!(most - least <= 1, "{:?}", counts);
            prop_assert!(bound == 0 || *most <= bound as usize);
            prop_assert!(asked == 0 || placed.hosts.len() == asked as usize);
        }
    }

    /// For every hostfile, no node gets more ranks than slots. Without a number of ranks every slot gets one.
    #[test]
    fn a_hostfiles_slots_are_never_exceeded(
        lines in proptest::collection::vec((0_usize..5, 1_u32..9), 1..12),
        ranks in 0_u32..60,
        distribution in prop_oneof![
            Just(None),
            Just(Some(Distribution::Block)),
            Just(Some(Distribution::Cyclic)),
            (1..6_u32).prop_map(|ranks| Some(plane(ranks))),
        ],
    ) {
        let nodes = nodes(5);
        let lines: Vec<(&str, u32)> = lines.iter().map(|&(node, slots)| (nodes[node].as_str(), slots)).collect();
        let slots_of = |host: &str| -> u32 { lines.iter().filter(|(node, _)| *node == host).map(|(_, slots)| slots).sum() };
        let all: u32 = lines.iter().map(|(_, slots)| slots).sum();
        let size = if ranks == 0 { all } else { ranks };
        match placed(&hosts(&lines, distribution), &[ranks], &nodes) {
            Ok(placed) => {
                prop_assert_eq!(placed.placement.size(), size);
                for (host, ranks) in placed.hosts.iter().zip(counts(&placed)) {
                    prop_assert!(ranks <= slots_of(host) as usize);
                }
            }
            Err(error) => {
                prop_assert!(size > all, "{}", error);
            }
        }
    }

    /// Files are copied to the nodes of a plan before the launch is placed.
    #[test]
    fn a_request_that_is_pinned_to_its_nodes_is_placed_as_before(
        ranks in proptest::collection::vec(0_u32..20, 1..4),
        lines in proptest::collection::vec((0_usize..6, 1_u32..9), 1..9),
        form in 0..3,
        (asked, bound, relative) in (0_u32..5, 0_u32..9, 0_u32..4),
        (lost, except) in (0_usize..8, 0_usize..8),
        distribution in prop_oneof![
            Just(None),
            Just(Some(Distribution::Block)),
            Just(Some(Distribution::Cyclic)),
            (1..6_u32).prop_map(|ranks| Some(plane(ranks))),
        ],
    ) {
        let nodes = nodes(6);
        let named: Vec<(&str, u32)> = lines.iter().map(|&(node, slots)| (nodes[node].as_str(), slots)).collect();
        let candidates = match form {
            0 => Candidates::All,
            1 => Candidates::Listed(named.iter().map(|&(node, _)| node.to_owned()).collect()),
            _ => hosts(&named, None).candidates,
        };
        let request = PlacementRequest {
            nodes: NonZeroU32::new(asked),
            tasks_per_node: NonZeroU32::new(bound),
            candidates,
            relative,
            except: nodes.get(except).cloned().into_iter().collect(),
            distribution,
            numbering: [None, Some(Numbering::NodeByNode), Some(Numbering::InTurn)][relative as usize % 3],
            cpus_per_rank: None,
        };
        // The plan may have replaced a node that was not ready, and is ready now.
        let ready: Vec<String> = (0..).zip(&nodes).filter(|&(index, _)| index != lost).map(|(_, node)| node.clone()).collect();
        for first in [&nodes, &ready] {
            let Ok(plan) = placed(&request, &ranks, first) else { continue };
            let mut pinned = request.clone();
            pinned.pin(plan.hosts.clone());
            let again = placed(&pinned, &ranks, &nodes).unwrap();
            prop_assert_eq!((again.hosts, again.ranks, again.placement), (plan.hosts, plan.ranks, plan.placement));
        }
    }
}
