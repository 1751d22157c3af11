//! Jobs on up to 64 nodes in one thread. Ranks receive the same answers in any order of messages, any split of bytes and any order of
//! fences.

mod transcript;
mod world;

use std::collections::BTreeMap;

use pmi_core::Offer;
use pmi_core::fence::FenceError;
use pmi_core::ids::{JobId, NodeIndex, Rank};
use pmi_core::job::{Block, Job, Placement};
use pmi_core::server::{EndReason, Settings};
use proptest::prelude::*;
use world::{Dice, JobIndex, World};

const INIT: &str = "cmd=init pmi_version=1 pmi_subversion=1\n";

/// Messages of one rank; the rank waits for an answer after each.
type Script = Vec<String>;

fn pmi2(body: &str) -> String {
    format!("{:<6}{body}", body.len())
}

/// Uneven nodes, some without ranks, in blocks and cyclic.
fn uneven(nodes: u32, dice: &mut Dice) -> Placement {
    let mut placement = Placement::default();
    for _ in 0..2 {
        for node in 0..nodes {
            let ranks_per_node = [0, 1, 1, 2, 5][dice.below(5)];
            placement.push(Block { first_node: NodeIndex(node), nodes: 1, ranks_per_node });
        }
    }
    placement.push(Block { first_node: NodeIndex(nodes - 1), nodes: 1, ranks_per_node: 1 });
    placement
}

fn job(name: &str, placement: Placement) -> Job {
    let size = placement.size();
    Job { placement, ..Job::on_one_node(JobId::new(name).unwrap(), size) }
}

/// Rounds of puts, a fence, gets, a fence. Each rank uses PMI-1 or PMI-2.
fn scripts(name: &str, size: u32, rounds: u32, dice: &mut Dice) -> Vec<Script> {
    let talk = |rank: u32, dice: &mut Dice| {
        let is_pmi2 = rank % 3 == 1;
        let put = |key: &str, value: &str| match is_pmi2 {
            true => pmi2(&format!("cmd=kvs-put;key={key};value={value};")),
            false => format!("cmd=put kvsname={name} key={key} value={value}\n"),
        };
        let get = |key: &str| match is_pmi2 {
            true => pmi2(&format!("cmd=kvs-get;jobid={name};srcid=-1;key={key};")),
            false => format!("cmd=get kvsname={name} key={key}\n"),
        };
        let fence = if is_pmi2 { pmi2("cmd=kvs-fence;") } else { "cmd=barrier_in\n".to_owned() };
        let mut script = vec![if is_pmi2 { INIT.replace("version=1", "version=2") } else { INIT.to_owned() }];
        for round in 0..rounds {
            script.push(put(&format!("card-{rank}"), &format!("of {rank} in {round}")));
            script.push(put(&format!("new-{rank}-{round}"), "x"));
            script.push(fence.clone());
            for _ in 0..3 {
                script.push(get(&format!("card-{}", dice.below(size as usize))));
                script.push(get(&format!("new-{}-{}", dice.below(size as usize), round / 2)));
            }
            script.push(get("absent"));
            script.push(fence.clone());
        }
        script.push(if is_pmi2 { pmi2("cmd=finalize;") } else { "cmd=finalize\n".to_owned() });
        script
    };
    (0..size).map(|rank| talk(rank, dice)).collect()
}

/// Runs all scripts to their end, in a random order and with random splits. Returns the answers to each rank.
fn play(world: &mut World, casts: &[(JobIndex, &[Script])], dice: &mut Dice, cut: bool) -> Vec<Vec<u8>> {
    struct Player<'s> {
        job: JobIndex,
        rank: Rank,
        script: &'s [String],
        told: Vec<u8>,
        waits: bool,
    }
    let mut players: Vec<_> = casts
        .iter()
        .flat_map(|(job, scripts)| scripts.iter().zip(0..).map(|(script, rank)| (*job, script, Rank(rank))))
        .map(|(job, script, rank)| Player { job, rank, script, told: Vec::new(), waits: false })
        .collect();
    let mut order: Vec<usize> = (0..players.len()).collect();
    loop {
        dice.shuffle(&mut order);
        let mut progress = false;
        for &index in &order {
            let player = &mut players[index];
            let answer = world.take(player.job, player.rank);
            player.waits &= answer.is_empty();
            player.told.extend_from_slice(&answer);
            if player.waits {
                continue;
            }
            let Some((message, rest)) = player.script.split_first() else { continue };
            let mut bytes = message.as_bytes();
            while !bytes.is_empty() {
                let (piece, behind) = bytes.split_at(if cut { 1 + dice.below(bytes.len()) } else { bytes.len() });
                world.send(player.job, player.rank, piece);
                bytes = behind;
            }
            player.script = rest;
            player.waits = true;
            progress = true;
            if dice.below(4) == 0 {
                world.step();
            }
        }
        progress |= world.step();
        if !progress {
            break;
        }
    }
    for player in &players {
        assert!(player.script.is_empty() && !player.waits, "rank {} of {:?} is stuck", player.rank, player.job);
    }
    players.into_iter().map(|player| player.told).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn any_split_and_any_interleaving_gives_the_same_answers(seed: u64, nodes in 1..8_u32) {
        let mut dice = Dice::new(seed);
        let jobs = ["one", "two"].map(|name| job(name, uneven(nodes, &mut dice)));
        let scripts = jobs.clone().map(|job| scripts(job.id.as_str(), job.size(), 3, &mut dice));
        let mut perform = |mut world: World, cut: bool| {
            let indices = jobs.clone().map(|job| world.start(job, Settings::default()));
            let casts: Vec<_> = indices.into_iter().zip(scripts.iter().map(Vec::as_slice)).collect();
            let told = play(&mut world, &casts, &mut dice, cut);
            assert!(indices.iter().all(|&job| world.ended(job).is_none()));
            told
        };
        let plain = perform(World::kind(), false);
        prop_assert_eq!(&plain, &perform(World::unkind(seed), true));
        prop_assert_eq!(&plain, &perform(World::unkind(!seed), false));
    }

}

proptest! {
    // 64 nodes each
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn after_a_fence_every_rank_sees_every_put_and_later_ones_win(seed: u64) {
        let mut dice = Dice::new(seed);
        let job = job("j", uneven(64, &mut dice));
        let size = job.size();
        let mut world = World::unkind(seed);
        let job = world.start(job, Settings::default());
        let mut expected = BTreeMap::new();
        for rank in 0..size {
            world.ask(job, rank, INIT);
        }
        for round in 0..3 {
            let mut rivals: BTreeMap<String, Vec<String>> = BTreeMap::new();
            for rank in 0..size {
                for _ in 0..dice.below(3) {
                    let (key, value) = (format!("k{}", dice.below(40)), format!("{rank}.{round}.{}", dice.below(99)));
                    world.send(job, Rank(rank), format!("cmd=put kvsname=j key={key} value={value}\n").as_bytes());
                    rivals.entry(key).or_default().push(value);
                }
            }
            for rank in 0..size {
                world.take(job, Rank(rank));
                world.send(job, Rank(rank), b"cmd=barrier_in\n");
            }
            world.settle();
            for rank in 0..size {
                prop_assert_eq!(world.told(job, rank), "cmd=barrier_out rc=0\n");
            }
            // Of several puts in one round any may win, but the same one on every node.
            for (key, values) in rivals {
                let winner = world.ask(job, 0, &format!("cmd=get kvsname=j key={key}\n"));
                let candidates = values.iter().map(|value| format!("cmd=get_result rc=0 value={value}\n"));
                prop_assert!(candidates.clone().any(|candidate| candidate == winner), "{:?} is none of {:?}", winner, values);
                expected.insert(key, winner);
            }
            for rank in 0..size {
                for (key, winner) in &expected {
                    let found = world.ask(job, rank, &format!("cmd=get kvsname=j key={key}\n"));
                    prop_assert_eq!(&found, winner, "rank {} in round {}", rank, round);
                }
            }
        }
    }

    #[test]
    fn a_lost_node_fails_everybody_who_needs_it_and_nobody_else(seed: u64, nodes in 2..64_u32) {
        let mut dice = Dice::new(seed);
        let mut world = World::unkind(seed);
        let [hit, spared] = ["hit", "spared"].map(|name| {
            let placement = Placement::block(&vec![2; nodes as usize]);
            world.start(job(name, placement), Settings::default())
        });
        let lost = NodeIndex(dice.below(nodes as usize) as u32);
        for job in [hit, spared] {
            for rank in 0..2 * nodes {
                world.ask(job, rank, INIT);
            }
        }
        let lose_after = dice.below(2 * nodes as usize);
        let mut order: Vec<u32> = (0..2 * nodes).collect();
        dice.shuffle(&mut order);
        for (arrived, rank) in order.into_iter().enumerate() {
            if arrived == lose_after {
                world.lose(hit, lost);
            }
            world.send(spared, Rank(rank), b"cmd=barrier_in\n");
            if rank / 2 != lost.0 {
                world.send(hit, Rank(rank), b"cmd=barrier_in\n");
            }
        }
        world.settle();
        for (node, ended) in world.endings(hit) {
            let Some(EndReason::Fence(error)) = ended else {
                prop_assert_eq!(node, lost);
                continue;
            };
            let names_it = matches!(**error, FenceError::NodeLost { node, .. } if node == lost);
            prop_assert!(names_it, "{:?}", error);
        }
        for rank in 0..2 * nodes {
            prop_assert_eq!(world.told(spared, rank), "cmd=barrier_out rc=0\n");
        }
        prop_assert!(world.ended(spared).is_none());
    }
}

#[test]
fn fences_of_different_scopes_are_open_at_once() {
    for seed in 0..50 {
        let mut world = World::unkind(seed);
        let offer = Offer { group_barriers: true, ..Offer::default() };
        let job = job("j", Placement::block(&[2, 1, 3]));
        let job = world.start(job, Settings { offer, ..Settings::default() });
        let messages = |rank: u32| {
            let ring = pmi2(&format!("cmd=ring;thrid=9;ring-count={};ring-left=l{rank};ring-right=r{rank};", rank + 1));
            let mut messages = vec!["cmd=barrier_in\n".to_owned(), ring];
            messages.extend(["WORLD:7", "NODE:0", "WORLD:8"].map(|group| format!("cmd=barrier_in group={group}\n")));
            messages.extend(rank.is_multiple_of(2).then(|| "cmd=barrier_in group=0,2,4:3\n".to_owned()));
            messages
        };
        let mut dice = Dice::new(seed);
        let mut all: Vec<(u32, String)> =
            (0..6).flat_map(|rank| messages(rank).into_iter().map(move |m| (rank, m))).collect();
        for rank in 0..6 {
            world.ask(job, rank, INIT);
        }
        for round in 0..3 {
            dice.shuffle(&mut all);
            for (rank, message) in &all {
                world.send(job, Rank(*rank), message.as_bytes());
                if dice.below(2) == 0 {
                    world.step();
                }
            }
            world.settle();
            for rank in 0..6 {
                let told = world.told(job, rank);
                let (before, after) = ((rank + 5) % 6, (rank + 1) % 6);
                let count: u32 = (1..=rank).sum();
                let ring = format!(
                    "cmd=ring-response;thrid=9;rc=0;ring-count={count};ring-left=r{before};ring-right=l{after};"
                );
                assert!(told.contains(&ring), "rank {rank} in round {round} of seed {seed}: {told:?} has no {ring}");
                for (tag, times) in [(0, 2), (7, 1), (8, 1), (3, usize::from(rank.is_multiple_of(2)))] {
                    let line = format!("cmd=barrier_out rc=0 tag={tag}\n");
                    assert_eq!(told.matches(&line).count(), times, "{line:?} in {told:?}");
                }
            }
        }
    }
}

#[test]
fn a_put_before_a_group_barrier_is_seen_by_its_members_on_other_nodes() {
    let offer = Offer { group_barriers: true, ..Offer::default() };
    let mut world = World::unkind(1);
    let job = world.start(job("j", Placement::block(&[1, 1, 1])), Settings { offer, ..Settings::default() });
    for rank in 0..3 {
        world.ask(job, rank, INIT);
    }
    for (round, value) in ["first", "second"].into_iter().enumerate() {
        world.ask(job, 0, &format!("cmd=put kvsname=j key=k value={value}\n"));
        assert_eq!(world.ask(job, 0, "cmd=barrier_in group=0,2:5\n"), "", "round {round}");
        assert_eq!(world.ask(job, 2, "cmd=barrier_in group=0,2:5\n"), "cmd=barrier_out rc=0 tag=5\n");
        assert_eq!(world.told(job, 0), "cmd=barrier_out rc=0 tag=5\n");
        assert_eq!(world.ask(job, 2, "cmd=get kvsname=j key=k\n"), format!("cmd=get_result rc=0 value={value}\n"));
    }
    assert_eq!(world.ask(job, 1, "cmd=get kvsname=j key=k\n"), "cmd=get_result rc=1 msg=key_not_found\n");
    for rank in 0..3 {
        world.send(job, Rank(rank), b"cmd=barrier_in\n");
    }
    world.settle();
    world.told(job, 1);
    assert_eq!(world.ask(job, 1, "cmd=get kvsname=j key=k\n"), "cmd=get_result rc=0 value=second\n");
}

#[test]
fn a_pair_from_before_the_job_began_hides_no_put_of_any_node() {
    for writer in 0..3 {
        let mut world = World::unkind(1);
        let preput = vec![("k".into(), "preput".into()), ("other".into(), "preput".into())];
        let placement = Placement::block(&[1, 1, 1]);
        let job = world
            .start(Job { placement, preput, ..Job::on_one_node(JobId::new("j").unwrap(), 3) }, Settings::default());
        let get = |world: &mut World, rank, key: &str| world.ask(job, rank, &format!("cmd=get kvsname=j key={key}\n"));
        for rank in 0..3 {
            world.ask(job, rank, INIT);
            assert_eq!(get(&mut world, rank, "k"), "cmd=get_result rc=0 value=preput\n");
        }
        world.ask(job, writer, "cmd=put kvsname=j key=k value=put\n");
        assert_eq!(get(&mut world, writer, "k"), "cmd=get_result rc=0 value=put\n");
        for round in 0..2 {
            (0..3).for_each(|rank| world.send(job, Rank(rank), b"cmd=barrier_in\n"));
            world.settle();
            for rank in 0..3 {
                world.told(job, rank);
                assert_eq!(
                    get(&mut world, rank, "k"),
                    "cmd=get_result rc=0 value=put\n",
                    "writer {writer}, round {round}"
                );
                assert_eq!(get(&mut world, rank, "other"), "cmd=get_result rc=0 value=preput\n");
            }
        }
    }
}

#[test]
fn a_group_barrier_during_a_world_fence_hides_nothing_that_is_on_its_way() {
    let offer = Offer { group_barriers: true, ..Offer::default() };
    let mut world = World::kind();
    let job = world.start(job("j", Placement::block(&[1, 1])), Settings { offer, ..Settings::default() });
    let get = "cmd=get kvsname=j key=k\n";
    for (rank, value) in ["first", "second"].into_iter().enumerate() {
        world.ask(job, rank as u32, INIT);
        world.ask(job, rank as u32, &format!("cmd=put kvsname=j key=k value={value}\n"));
    }
    // one thread of rank 0 is in the fence of all, another in the one of the group
    assert_eq!(world.ask(job, 0, "cmd=barrier_in\n"), "");
    for rank in 0..2 {
        world.send(job, Rank(rank), b"cmd=barrier_in group=0,1:3\n");
    }
    world.settle();
    assert_eq!([0, 1].map(|rank| world.told(job, rank)), ["cmd=barrier_out rc=0 tag=3\n"; 2]);
    assert_eq!(world.ask(job, 0, get), "cmd=get_result rc=0 value=first\n");
    assert_eq!(world.ask(job, 1, "cmd=barrier_in\n"), "cmd=barrier_out rc=0 tag=0\n");
    assert_eq!(world.told(job, 0), "cmd=barrier_out rc=0 tag=0\n");
    assert_eq!([0, 1].map(|rank| world.ask(job, rank, get)), ["cmd=get_result rc=0 value=second\n"; 2]);
}

#[test]
fn a_group_barrier_that_ends_after_later_fences_brings_nothing_old_back() {
    let offer = Offer { group_barriers: true, ..Offer::default() };
    let get = "cmd=get kvsname=j key=k\n";
    for seed in 0..50 {
        let mut world = World::unkind(seed);
        let job = world.start(job("j", Placement::block(&[1, 2])), Settings { offer, ..Settings::default() });
        for rank in 0..3 {
            world.ask(job, rank, INIT);
        }
        // threads of rank 0 put one value after the other, each in a separate fence, and all fences are in progress at once
        let fences = [
            "cmd=barrier_in group=0,1:3\n",
            "cmd=barrier_in group=0,2:4\n",
            "cmd=barrier_in\n",
            "cmd=barrier_in group=0,1:5\n",
        ];
        for (value, fence) in fences.into_iter().enumerate() {
            world.send(job, Rank(0), format!("cmd=put kvsname=j key=k value={value}\n").as_bytes());
            let members =
                (0..3).filter(|rank| !fence.contains("group") || fence.contains(&format!(",{rank}:")) || *rank == 0);
            members.for_each(|rank| world.send(job, Rank(rank), fence.as_bytes()));
        }
        world.settle();
        for rank in 0..3 {
            world.told(job, rank);
            assert_eq!(world.ask(job, rank, get), "cmd=get_result rc=0 value=3\n", "rank {rank} with seed {seed}");
        }
    }
}

#[test]
fn ranks_of_other_nodes_are_nobodys_deserters_here() {
    let mut world = World::kind();
    let job = world.start(job("j", Placement::block(&[1, 1, 1])), Settings::default());
    world.exit(job, Rank(1));
    for (rank, message) in [(0, "cmd=barrier_in\n"), (2, "cmd=finalize\n")] {
        world.ask(job, rank, INIT);
        world.ask(job, rank, message);
    }
    assert!(world.ended(job).is_none(), "{:?}", world.endings(job));
    let pending = world.server_of(job, Rank(0)).pending_fences();
    let [standing] = &pending[..] else { panic!("{pending:?}") };
    assert!(standing.whole_job && standing.missing.is_empty(), "whoever sees all nodes must judge: {standing:?}");
}

#[test]
fn the_mapping_of_64_uneven_nodes_is_the_same_on_all_of_them() {
    let mut dice = Dice::new(7);
    let mut world = World::kind();
    let job = job("j", uneven(64, &mut dice));
    let placement = job.placement.clone();
    let job = world.start(job, Settings::default());
    let mut answers: Vec<_> = (0..placement.size())
        .map(|rank| {
            world.ask(job, rank, INIT);
            world.ask(job, rank, "cmd=get kvsname=j key=PMI_process_mapping\n")
        })
        .collect();
    answers.dedup();
    let expected = match placement.process_mapping() {
        Some(mapping) => format!("cmd=get_result rc=0 value={mapping}\n"),
        None => "cmd=get_result rc=1 msg=key_not_found\n".to_owned(),
    };
    assert_eq!(answers, [expected]);
}
