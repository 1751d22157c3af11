use proptest::prelude::*;

use super::*;

fn nodes(count: usize) -> Vec<String> {
    (0..count).map(|index| format!("node{index}")).collect()
}

/// How many ranks each node of the placement gets.
fn counts(placed: &Placed) -> Vec<usize> {
    (0..placed.nodes.len()).map(|node| placed.placement.ranks_on(NodeIndex(node as u32)).len()).collect()
}

fn per_node(ranks: u32) -> Wish {
    Wish { tasks_per_node: NonZeroU32::new(ranks), ..Wish::default() }
}

fn on_nodes(nodes: u32) -> Wish {
    Wish { nodes: NonZeroU32::new(nodes), ..Wish::default() }
}

fn hosts(lines: &[(&str, u32)], distribution: Distribution) -> Wish {
    let hosts = lines.iter().map(|&(node, slots)| (node.to_owned(), slots)).collect();
    Wish { hosts, distribution, ..Wish::default() }
}

#[test]
fn ranks_are_shared_out_evenly_and_in_order() {
    let check = |wish: &Wish, ranks: &[u32], available, expected: &[usize]| {
        let placed = wish.place(ranks, &nodes(available)).unwrap();
        assert_eq!(counts(&placed), expected, "{wish:?} {ranks:?}");
    };
    let any = Wish::default();
    check(&any, &[10], 3, &[4, 3, 3]);
    check(&any, &[2], 4, &[1, 1]);
    check(&any, &[0], 4, &[1]);
    check(&any, &[0, 3, 0], 2, &[3, 2]);
    check(&per_node(2), &[0], 3, &[2, 2, 2]);
    check(&per_node(4), &[10], 3, &[4, 3, 3]);
    check(&on_nodes(2), &[10], 3, &[5, 5]);
    check(&on_nodes(3), &[2], 3, &[1, 1, 0]);
    check(&on_nodes(3), &[0], 4, &[1, 1, 1]);
    check(&Wish { nodes: NonZeroU32::new(2), ..per_node(3) }, &[0], 4, &[3, 3]);
}

#[test]
fn a_hostfile_is_filled_in_its_order() {
    let lines = [("node2", 2), ("node0", 3), ("node2", 1)];
    let check = |distribution, ranks, expected_nodes: &[&str], expected_ranks: &[&[u32]]| {
        let placed = hosts(&lines, distribution).place(&[ranks], &nodes(4)).unwrap();
        assert_eq!(placed.nodes, expected_nodes);
        for (node, expected) in (0..).zip(expected_ranks) {
            let ranks: Vec<u32> = placed.placement.ranks_on(NodeIndex(node)).iter().map(|rank| rank.0).collect();
            assert_eq!(&ranks, expected, "{distribution:?}, node {node}");
        }
    };
    check(Distribution::Block, 0, &["node2", "node0"], &[&[0, 1, 2], &[3, 4, 5]]);
    check(Distribution::Block, 3, &["node2"], &[&[0, 1, 2]]);
    check(Distribution::Cyclic, 5, &["node2", "node0"], &[&[0, 2, 4], &[1, 3]]);
    check(Distribution::Explicit, 0, &["node2", "node0"], &[&[0, 1, 5], &[2, 3, 4]]);
}

#[test]
fn nodes_are_chosen_by_name() {
    let check = |only: &str, except: &str, ranks, expected: &[&str]| {
        let request = PlacementRequest { only: only.to_owned(), except: except.to_owned(), ..Default::default() };
        let placed = Wish::read(&request).unwrap().place(&[ranks], &nodes(6)).unwrap();
        assert_eq!(placed.nodes, expected);
    };
    check("node[4,1]", "", 2, &["node4", "node1"]);
    check("", "node[0-3]", 8, &["node4", "node5"]);
    check("node[0-2]", "node1", 2, &["node0", "node2"]);
}

#[test]
fn what_cannot_be_placed_is_refused_in_words() {
    let check = |wish: &Wish, ranks: &[u32], expected: &str| {
        let error = wish.place(ranks, &nodes(3)).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    };
    check(&on_nodes(4), &[4], "4 nodes were asked for, and 3 can be used: node[0-2]");
    check(&per_node(2), &[7], "3 nodes with at most 2 ranks each hold 6");
    check(&hosts(&[("node0", 2)], Distribution::Block), &[3], "have 2 slots");
    check(
        &hosts(&[("node7", 2)], Distribution::Block),
        &[1],
        "node node7 is not in the allocation, which has node[0-2]",
    );
    check(&Wish { except: nodes(3), ..Wish::default() }, &[1], "no node is left");
    check(&Wish::default(), &[u32::MAX, u32::MAX], "at most 1048576");
    check(&Wish { distribution: Distribution::Cyclic, ..Wish::default() }, &[RANKS_MAX], "too irregular");
    check(&Wish::default(), &[], "no program");
}

#[test]
fn contradictions_are_seen_before_any_node_is() {
    let line = pmi_transport::proto::v1::HostSlots { node: "node0".to_owned(), slots: 1 };
    let both = PlacementRequest { only: "node0".to_owned(), hosts: vec![line], ..Default::default() };
    assert_eq!(Wish::read(&both), Err(PlacementError::OnlyAndHosts));
    let explicit = PlacementRequest { distribution: Distribution::Explicit.into(), ..Default::default() };
    assert_eq!(Wish::read(&explicit), Err(PlacementError::ExplicitWithoutHosts));
    let number = PlacementRequest { distribution: 9, ..Default::default() };
    assert_eq!(Wish::read(&number), Err(PlacementError::Distribution { number: 9 }));
}

proptest! {
    /// Whatever is asked for, ranks 0..n sit on exactly one node each, and no node gets more than it may.
    #[test]
    fn every_rank_has_one_place(
        ranks in proptest::collection::vec(0_u32..40, 1..4),
        available in 1_usize..20,
        asked in 0_u32..20,
        bound in 0_u32..20,
        cyclic: bool,
    ) {
        let distribution = if cyclic { Distribution::Cyclic } else { Distribution::Block };
        let wish = Wish {
            nodes: NonZeroU32::new(asked),
            tasks_per_node: NonZeroU32::new(bound),
            distribution,
            ..Wish::default()
        };
        if let Ok(placed) = wish.place(&ranks, &nodes(available)) {
            let mut seen: Vec<u32> = (0..placed.nodes.len())
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
            prop_assert!(asked == 0 || placed.nodes.len() == asked as usize);
        }
    }
}
