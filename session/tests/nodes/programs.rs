//! Programs of real MPI libraries and of libpmix, on several nodes that are one machine.

use lattice_session::event::Event;
use lattice_session::session_io::Control;
use lattice_tests::mpi::{Flavour, MPICHS, OPEN_MPIS};

use crate::cluster::{Cluster, Outcome};

/// MPICH 4.0.2 cannot spawn under any launcher.
const SPAWNING: [Flavour; 3] = [Flavour::WheelMpich, Flavour::DebianOpenMpi, Flavour::WheelOpenMpi];

fn launch(counts: &[u32], flavour: Flavour, name: &'static str, words: &[&str]) -> Cluster {
    let program = flavour.program(name);
    let words = [&[program.to_str().unwrap()], words].concat();
    Cluster::launch(counts, &words, |_| {})
}

async fn run(counts: &[u32], flavour: Flavour, name: &'static str, words: &[&str]) -> Outcome {
    launch(counts, flavour, name, words).finish().await
}

#[tokio::test]
async fn hello_of_every_library() {
    for flavour in MPICHS.into_iter().chain(OPEN_MPIS) {
        let outcome = run(&[2, 1], flavour, "hello", &[]).await;
        outcome.printed((0..3).map(|rank| format!("rank {rank} of 3")));
    }
}

#[tokio::test]
async fn sums_of_every_library() {
    for flavour in MPICHS.into_iter().chain(OPEN_MPIS) {
        run(&[1, 2], flavour, "allreduce", &[]).await.printed(["3 ranks, 0 wrong sums".to_owned()]);
    }
}

#[tokio::test]
async fn values_are_got_from_other_nodes_without_a_fence() {
    let outcome = run(&[1, 2], Flavour::Pmix, "pmix_direct", &[]).await;
    outcome.printed((0..3).map(|rank| format!("rank {rank} of 3: 0 wrong")));
}

#[tokio::test]
async fn children_of_every_library_are_spawned_on_all_nodes() {
    for flavour in SPAWNING {
        let outcome = run(&[1, 1], flavour, "spawn", &["3"]).await;
        let parents = (0..2).map(|rank| format!("parent {rank} of 2: {rank} of 5 together, the last word is '3'"));
        let children = (0..3).map(|rank| {
            format!("child {rank} of 3: {} of 5 together, the last word is 'words that belong together'", rank + 2)
        });
        outcome.printed(parents.chain(children));
    }
}

/// Releases node 1, which has no rank of the launched job, after `ranks` ranks have exited.
async fn release_after(ranks: usize, cluster: &mut Cluster) -> Vec<(u32, u32)> {
    let mut ended = Vec::new();
    let all_ended = |node, event: &Event| {
        if let Event::Exited { rank, .. } = event {
            ended.push((rank.0, node));
        }
        (ended.len() == ranks).then_some(())
    };
    cluster.wait_for(all_ended).await;
    cluster.ask(1, Control::Release).await;
    ended.sort_unstable();
    ended
}

#[tokio::test]
async fn children_of_pmi_2_find_what_their_parent_left_for_them() {
    let mut cluster = launch(&[1, 0], Flavour::SlurmPmi2, "pmi2_spawn", &[]);
    release_after(4, &mut cluster).await;
    let child = |rank, word, appnum| format!("child {rank} of 3: {word}, appnum {appnum}, found 'hello; child'");
    let children = [child(0, "first", 0), child(1, "the; second", 1), child(2, "the; second", 1)];
    let parent = "parent: spawn 0, a job with a name".to_owned();
    cluster.finish().await.printed(children.into_iter().chain([parent]));
}

#[tokio::test]
async fn jobs_meet_though_a_node_had_no_rank_before() {
    let mut cluster = launch(&[1, 0], Flavour::Pmix, "pmix_spawn", &[]);
    let shown = release_after(4, &mut cluster).await;
    assert_eq!(shown, [(0, 0), (1, 1), (2, 0), (3, 1)]);
    // Each job adds the numbers of the other job's ranks.
    let children = (0..3).map(|rank| format!("child {rank}: SUCCESS, 1 others, whose numbers make 1"));
    let parent = "parent 0: SUCCESS, 3 others, whose numbers make 33".to_owned();
    cluster.finish().await.printed(children.chain([parent]));
}

#[tokio::test]
async fn a_spawn_that_fails_harms_nobody() {
    for flavour in SPAWNING {
        let mut cluster = launch(&[1, 0], flavour, "spawn_missing", &[]);
        release_after(1, &mut cluster).await;
        cluster.finish().await.printed(["rank 0: the spawn fails, 1 ranks go on".to_owned()]);
    }
}
