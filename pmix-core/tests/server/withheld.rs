//! Fences that leave data on their nodes: fetches, spreads, and how long a node must stay.

use bytes::Bytes;
use pmi_core::fence::Exchange;
use pmix_core::server::{Action, Need};
use pmix_core::wire::Encoding::Flex;
use pmix_core::wire::reader::Proc;
use pmix_core::wire::request::command;
use pmix_core::wire::status;

use super::world::{Client, World, collecting, procs, whole};
use super::{commit, found, get, values};

/// One rank on each node. Each has committed `card` with its rank number and `more` further bytes.
fn committed(exchange: Exchange, nodes: u32, more: usize) -> (World, Vec<Client>) {
    let mut world = World::exchanging(exchange, 1, &vec![1; nodes as usize]);
    let join = |rank| world.join(rank as usize, "job0", rank, Flex).unwrap();
    let clients: Vec<Client> = (0..nodes).map(join).collect();
    for (&client, rank) in clients.iter().zip(0_u8..) {
        commit(&mut world, client, "card", b"near", &[&[rank][..], &vec![0; more]].concat());
    }
    (world, clients)
}

fn fence(world: &mut World, clients: &[Client]) {
    for &client in clients {
        world.send(client, 103, command::FENCE, collecting(&whole("job0")));
    }
    for &client in clients {
        assert_eq!(world.status(client), Some((status::SUCCESS, vec![])));
    }
}

/// Gets a rank's card without a wait; returns the first byte of its value.
fn card(world: &mut World, client: Client, rank: u32) -> Option<u8> {
    get(world, client, "job0", rank, "card", true);
    let (code, objects) = world.status(client).expect("an answer at once");
    (code == status::SUCCESS).then(|| values(Flex, &objects)[0].1[0])
}

fn finish(world: &mut World, client: Client) {
    world.send(client, 104, command::FINALIZE, |_| {});
    assert_eq!(world.status(client), Some((status::SUCCESS, vec![])));
    world.exit(client.node, 0);
}

#[test]
fn each_node_is_asked_once_and_the_first_one_never() {
    let (mut world, clients) = committed(Exchange::Lazy, 3, 0);
    fence(&mut world, &clients);
    assert_eq!(world.questions, 0);
    for _ in 0..2 {
        let known: Vec<_> = (0..3).map(|rank| card(&mut world, clients[2], rank)).collect();
        assert_eq!(known, [Some(0), Some(1), Some(b'n')]);
    }
    assert_eq!(world.questions, 1, "the first node's data came along, and its own is its own");
    get(&mut world, clients[2], "job0", 1, "other", true);
    assert_eq!(world.status(clients[2]), Some((status::NOT_FOUND, vec![])), "a key that nobody has committed");
    assert_eq!(world.questions, 1);
    assert_eq!(card(&mut world, clients[0], 1), Some(1));
    assert_eq!(world.fences, ["fence job0"], "nothing is spread");
}

/// A whole node's data is sent in one answer, and hosts carry answers only up to a limit.
#[test]
fn of_a_node_with_too_much_data_for_one_answer_single_ranks_are_asked() {
    let (mut world, clients) = committed(Exchange::Lazy, 2, 8 << 20);
    for key in ["a", "b", "c"] {
        commit(&mut world, clients[1], key, b"near", &vec![7; 12 << 20]);
    }
    fence(&mut world, &clients);
    get(&mut world, clients[0], "job0", 1, "card", false);
    let (code, objects) = world.status(clients[0]).expect("an answer");
    assert_eq!((code, world.questions), (status::SUCCESS, 2), "its node has no answer, its rank has");
    let keys: Vec<String> = values(Flex, &objects).into_iter().map(|(key, _)| key).collect();
    assert_eq!(keys, ["card"], "what was not asked for stays where it is");
    get(&mut world, clients[0], "job0", 1, "a", false);
    assert_eq!(world.status(clients[0]).map(|(code, _)| code), Some(status::SUCCESS));
    assert!(world.largest < 17 << 20, "an answer of {} bytes", world.largest);
}

#[test]
fn a_later_fence_brings_what_was_committed_since() {
    let (mut world, clients) = committed(Exchange::Lazy, 2, 0);
    fence(&mut world, &clients);
    assert_eq!(card(&mut world, clients[0], 1), Some(1));
    commit(&mut world, clients[1], "more", b"near", b"far");
    get(&mut world, clients[0], "job0", 1, "more", true);
    assert_eq!(world.status(clients[0]), Some((status::NOT_FOUND, vec![])), "no fence has promised it");
    fence(&mut world, &clients);
    get(&mut world, clients[0], "job0", 1, "more", true);
    let (_, objects) = world.status(clients[0]).unwrap();
    assert!(values(Flex, &objects).contains(&found("more", b"far")[0]));
}

#[test]
fn a_key_that_was_put_again_has_its_new_value_after_the_next_fence() {
    let (mut world, clients) = committed(Exchange::Lazy, 2, 0);
    fence(&mut world, &clients);
    assert_eq!(card(&mut world, clients[0], 1), Some(1));
    commit(&mut world, clients[1], "card", b"near", b"far");
    fence(&mut world, &clients);
    get(&mut world, clients[0], "job0", 1, "card", false);
    let (_, objects) = world.status(clients[0]).unwrap();
    assert!(values(Flex, &objects).contains(&found("card", b"far")[0]));
}

/// The answer of a node was in transit while a fence with newer values ended.
#[test]
fn a_late_answer_does_not_replace_the_values_of_a_later_fence() {
    for exchange in [Exchange::Full, Exchange::Auto, Exchange::Lazy] {
        let (mut world, clients) = committed(exchange, 2, 0);
        // If fences carry the data, the value is requested before the first fence.
        if exchange != Exchange::Full {
            fence(&mut world, &clients);
        }
        world.delays_answers = true;
        get(&mut world, clients[0], "job0", 1, "card", false);
        assert_eq!((world.status(clients[0]), world.late.len()), (None, 1), "{exchange:?}");
        commit(&mut world, clients[1], "card", b"near", b"far");
        for &client in &clients {
            world.send(client, 105, command::FENCE, collecting(&whole("job0")));
        }
        world.deliver_late_answers();
        for _ in 0..4 {
            world.status(clients[0]);
        }
        get(&mut world, clients[0], "job0", 1, "card", true);
        let (_, objects) = world.status(clients[0]).expect("an answer");
        assert!(values(Flex, &objects).contains(&found("card", b"far")[0]), "{exchange:?}");
    }
}

#[test]
fn a_spread_brings_what_earlier_rounds_have_withheld_as_well() {
    let (mut world, clients) = committed(Exchange::Auto, 8, 1_000);
    fence(&mut world, &clients);
    for &client in &clients {
        commit(&mut world, client, "more", b"near", b"far");
    }
    fence(&mut world, &clients);
    assert_eq!(world.brought, [8, 8], "the second round brings only what is new");
    for rank in 1..8 {
        assert_eq!(card(&mut world, clients[0], rank), Some(rank as u8), "withheld by the first round");
    }
    assert_eq!(world.fences.last().map(String::as_str), Some("fence job0 spread"));
    let questions = world.questions;
    for rank in (0..8).filter(|&rank| rank != 5) {
        get(&mut world, clients[5], "job0", rank, "card", true);
        let (_, objects) = world.status(clients[5]).unwrap();
        let keys: Vec<String> = values(Flex, &objects).into_iter().map(|(key, _)| key).collect();
        assert_eq!(keys, ["card", "more"], "rank {rank}");
    }
    assert_eq!(world.questions, questions);
}

#[test]
fn data_is_spread_once_a_node_has_fetched_as_much_as_that_costs() {
    // A question counts as 128 KiB. A spread counts as three times all the data and two questions: half of one for each level of the
    // tree.
    let (mut world, clients) = committed(Exchange::Auto, 8, 100_000);
    fence(&mut world, &clients);
    let mut asked = Vec::new();
    for rank in 1..8 {
        assert_eq!(card(&mut world, clients[0], rank), Some(rank as u8));
        asked.push(world.fences.len());
    }
    assert_eq!(asked, [1; 7], "7 x (128 KiB + 100 KB) are less than 3 x 800 KB + 2 x 128 KiB");
    let (mut world, clients) = committed(Exchange::Auto, 8, 10_000);
    fence(&mut world, &clients);
    for rank in [1, 2, 3] {
        assert_eq!(card(&mut world, clients[5], rank), Some(rank as u8));
    }
    assert_eq!(world.fences, ["fence job0"], "3 x (128 KiB + 10 KB) are less than 3 x 80 KB + 2 x 128 KiB");
    assert_eq!(card(&mut world, clients[5], 4), Some(4));
    assert_eq!(world.fences, ["fence job0", "fence job0 spread"]);
    let questions = world.questions;
    for &client in &clients {
        for rank in (0..8).filter(|&rank| rank as usize != client.node) {
            assert_eq!(card(&mut world, client, rank), Some(rank as u8));
        }
    }
    assert_eq!(world.questions, questions, "everything is everywhere");
    fence(&mut world, &clients);
    assert_eq!(world.fences.len(), 3, "the next fence begins anew");
}

#[test]
fn small_data_comes_with_the_fence() {
    let (mut world, clients) = committed(Exchange::Auto, 2, 0);
    world.frame = 1000;
    fence(&mut world, &clients);
    assert_eq!(card(&mut world, clients[0], 1), Some(1));
    assert_eq!((world.questions, world.needed.len()), (0, 0));
}

#[test]
fn a_fence_that_does_not_collect_brings_nothing() {
    let (mut world, clients) = committed(Exchange::Full, 2, 0);
    for &client in &clients {
        world.send(client, 103, command::FENCE, procs(&whole("job0")));
    }
    for &client in &clients {
        assert_eq!(world.status(client), Some((status::SUCCESS, vec![])));
    }
    assert_eq!(card(&mut world, clients[0], 1), None);
    get(&mut world, clients[0], "job0", 1, "card", false);
    assert_eq!(
        world.status(clients[0]).map(|(code, _)| code),
        Some(status::SUCCESS),
        "whoever waits asks the other node"
    );
    assert_eq!(world.questions, 1);
}

#[test]
fn a_node_stays_for_the_others_until_the_ranks_of_all_have_exited() {
    let (mut world, clients) = committed(Exchange::Lazy, 3, 0);
    assert!(world.needed.is_empty());
    fence(&mut world, &clients);
    assert_eq!(Vec::from_iter(world.needed.clone()), [0, 1, 2].map(|node| (node, Need::UntilTold)));
    finish(&mut world, clients[1]);
    assert_eq!(card(&mut world, clients[2], 1), Some(1), "its rank has exited, and its data is there");
    finish(&mut world, clients[2]);
    assert_eq!(world.needed.len(), 3);
    finish(&mut world, clients[0]);
    assert!(world.needed.is_empty());
    assert_eq!(world.fences, ["fence job0", "fence job0 last"]);
    assert!(world.end.is_none());
}

#[test]
fn a_node_stays_while_ranks_run_if_it_alone_has_what_its_own_has_committed() {
    let here = |node: &Client| Vec::from([(node.node, Need::WhileRanksRun)]);
    let needed = |world: &World| Vec::from_iter(world.needed.clone());
    // Without a fence.
    let (mut world, clients) = committed(Exchange::Full, 2, 0);
    finish(&mut world, clients[1]);
    assert_eq!(needed(&world), here(&clients[1]));
    get(&mut world, clients[0], "job0", 1, "card", false);
    assert_eq!(world.status(clients[0]).map(|(code, _)| code), Some(status::SUCCESS), "the rank has exited");
    // After a fence, for later commits.
    let (mut world, clients) = committed(Exchange::Full, 2, 0);
    fence(&mut world, &clients);
    finish(&mut world, clients[0]);
    assert_eq!(needed(&world), []);
    commit(&mut world, clients[1], "late", b"near", b"far");
    finish(&mut world, clients[1]);
    assert_eq!(needed(&world), here(&clients[1]));
    // On a single node, no other node sends requests.
    let (mut world, clients) = committed(Exchange::Full, 1, 0);
    finish(&mut world, clients[0]);
    assert_eq!(needed(&world), []);
}

#[test]
fn a_rank_that_the_host_has_judged_keeps_no_node() {
    let (mut world, clients) = committed(Exchange::Lazy, 2, 0);
    fence(&mut world, &clients);
    finish(&mut world, clients[1]);
    world.nodes[0].handle_death(super::world::seat(0, 0));
    world.run();
    assert!(world.needed.is_empty());
}

#[test]
fn data_of_a_lost_node_is_not_found() {
    let (mut world, clients) = committed(Exchange::Lazy, 3, 0);
    fence(&mut world, &clients);
    world.lost = Some(1);
    assert_eq!(card(&mut world, clients[2], 1), None);
    get(&mut world, clients[2], "job0", 1, "card", false);
    assert_eq!(world.status(clients[2]), Some((status::NOT_FOUND, vec![])));
    assert!(world.timers.is_empty());
}

#[test]
fn a_spread_that_overtakes_the_end_of_its_fence_is_taken_part_in() {
    let (mut world, clients) = committed(Exchange::Auto, 2, 0);
    let spread = |epoch: u64| [&[2][..], &epoch.to_be_bytes(), b"fence job0"].concat();
    world.nodes[1].handle_question(&Bytes::from(spread(0)));
    let Some(Action::Reply { answer, .. }) = world.nodes[1].poll_action() else { panic!("no answer") };
    assert_eq!(answer[..], status::SUCCESS.to_be_bytes());
    fence(&mut world, &clients);
    // The first node has not received the notification yet.
    assert_eq!(world.fences, ["fence job0"]);
    world.nodes[0].handle_question(&Bytes::from(spread(0)));
    let Some(Action::Reply { .. }) = world.nodes[0].poll_action() else { panic!("no answer") };
    world.run();
    assert_eq!(world.fences, ["fence job0", "fence job0 spread"]);
    assert_eq!(card(&mut world, clients[0], 1), Some(1));
}

#[test]
fn members_of_a_smaller_fence_have_their_data_and_no_other() {
    let (mut world, clients) = committed(Exchange::Lazy, 3, 0);
    let some = [0, 1].map(|rank| Proc { namespace: b"job0", rank });
    for &client in &clients[..2] {
        world.send(client, 103, command::FENCE, collecting(&some));
    }
    for &client in &clients[..2] {
        assert_eq!(world.status(client), Some((status::SUCCESS, vec![])));
    }
    assert_eq!(card(&mut world, clients[0], 1), Some(1));
    assert_eq!(card(&mut world, clients[0], 2), None, "no fence has promised its data");
}
