//! Events from a session to its launch, and requests from the launch to the session.

use std::time::Duration;

use lattice_session::cause::{Cause, CauseKind};
use lattice_session::event::Event;
use lattice_session::session_io::Control;
use pmi_core::Phase;
use pmi_core::ids::Rank;

use crate::cluster::Cluster;

/// Runs PMI-1 up to a barrier, and waits for the end of the barrier.
const BARRIER: &str = "say() { echo \"cmd=$1\" >&$PMI_FD; read -r answer <&$PMI_FD; }
    say 'init pmi_version=1 pmi_subversion=1'; say barrier_in; echo \"$answer\"; say finalize";

/// Runs [`BARRIER`] on all nodes except node 1. The ranks of node 1 use no PMI and do not exit.
fn one_node_is_missing() -> String {
    format!("if [ $LATTICE_NODE = 1 ]; then exec sleep 100; fi; {BARRIER}")
}

#[tokio::test]
async fn ranks_know_their_node_and_how_others_reach_it() {
    let script = "echo $LATTICE_RANK $LATTICE_NODE $LATTICE_NNODES $LATTICE_NODELIST $LATTICE_LOCAL_RANK $PMI_HOSTNAME $PMIX_HOSTNAME";
    let cluster = Cluster::launch(&[2, 0, 1], &["bash", "-c", script], |_| {});
    cluster.ask(1, Control::Release).await;
    cluster.finish().await.printed(
        ["0 0 3 n0,n1,n2 0 127.0.0.1 n0", "1 0 3 n0,n1,n2 1 127.0.0.1 n0", "2 2 3 n0,n1,n2 0 127.0.0.1 n2"]
            .map(str::to_owned),
    );
}

#[tokio::test]
async fn a_node_without_ranks_waits_for_its_release() {
    let mut cluster = Cluster::launch(&[1, 0], &["true"], |_| {});
    cluster.wait_for(|node, event| (node == 0 && matches!(event, Event::Exited { .. })).then_some(())).await;
    cluster.ask(1, Control::AskProgress(7)).await;
    let ranks = cluster.wait_for(|node, event| match event {
        Event::Progress { question: 7, ranks, .. } if node == 1 => Some(ranks.clone()),
        _ => None,
    });
    assert_eq!(ranks.await, []);
    cluster.ask(1, Control::Release).await;
    cluster.finish().await.printed([]);
}

#[tokio::test]
async fn a_session_that_gives_up_has_no_cause() {
    let mut cluster = Cluster::launch(&[2, 0], &["sleep", "100"], |_| {});
    let mut started = 0;
    let all = |_, event: &Event| {
        started += usize::from(matches!(event, Event::Started { .. }));
        (started == 2).then_some(())
    };
    cluster.wait_for(all).await;
    for node in 0..2 {
        cluster.ask(node, Control::GiveUp).await;
    }
    let outcome = cluster.finish().await;
    assert!(outcome.reports.iter().all(|report| report.cause.is_none()));
    assert_eq!(outcome.reports[0].exits.len(), 2);
    assert!(!outcome.events.iter().any(|(_, event)| matches!(event, Event::Ending(_))), "{:#?}", outcome.events);
}

#[tokio::test]
async fn a_node_tells_that_it_waits_for_others_and_how_far_its_ranks_are() {
    let mut cluster = Cluster::launch(&[2, 1], &["bash", "-c", &one_node_is_missing()], |_| {});
    let ranks = cluster.wait_for(|node, event| match event {
        Event::Waiting { ranks } => Some((node, ranks.clone())),
        _ => None,
    });
    assert_eq!(ranks.await, (0, vec![Rank(0), Rank(1)]));
    let mut progress = Vec::new();
    for node in 0..2 {
        cluster.ask(node, Control::AskProgress(node as u64)).await;
        let told = cluster.wait_for(|_, event| match event {
            Event::Progress { ranks, .. } => Some(ranks.clone()),
            _ => None,
        });
        progress.extend(told.await.into_iter().map(|rank| (rank.phase, rank.waiting, rank.last_command)));
    }
    let waits = (Some(Phase::Open), true, Some("barrier_in".to_owned()));
    assert_eq!(progress, [waits.clone(), waits, (Some(Phase::Silent), false, None)]);
    for node in 0..2 {
        cluster.ask(node, Control::GiveUp).await;
    }
    let outcome = cluster.finish().await;
    let phases = |event: &(u32, Event)| match event {
        (_, Event::Exited { rank, reached, .. }) => Some((*rank, reached.map(|reached| reached.phase))),
        _ => None,
    };
    let mut phases: Vec<_> = outcome.events.iter().filter_map(phases).collect();
    phases.sort_unstable_by_key(|(rank, _)| *rank);
    assert_eq!(
        phases.iter().map(|(_, phase)| *phase).collect::<Vec<_>>(),
        [Some(Phase::Open), Some(Phase::Open), Some(Phase::Silent)]
    );
}

#[tokio::test]
async fn a_fence_that_takes_too_long_ends_the_launch() {
    let script = format!("if [ $LATTICE_RANK != 0 ]; then exec sleep 100; fi; {BARRIER}");
    let limit = Duration::from_millis(700);
    let mut cluster =
        Cluster::launch(&[2, 1], &["bash", "-c", &script], |spec| spec.settings.timeouts.fence = Some(limit));
    let cause = cluster.wait_for(|_, event| match event {
        Event::Ending(cause) => Some(cause.clone()),
        _ => None,
    });
    let kind = CauseKind::FenceTimeout { limit, waiting: 1, missing: vec![(Rank(1), None)] };
    assert_eq!(cause.await, Cause { host: "n0".to_owned(), kind });
    cluster.ask(1, Control::GiveUp).await;
    cluster.finish().await;
}

#[tokio::test]
async fn the_loss_of_a_node_is_told_with_its_name() {
    let mut cluster = Cluster::launch(&[1, 1], &["bash", "-c", &one_node_is_missing()], |_| {});
    cluster.wait_for(|_, event| matches!(event, Event::Waiting { .. }).then_some(())).await;
    cluster.cut_off_node_1();
    let cause = cluster.wait_for(|_, event| match event {
        Event::Ending(cause) => Some(cause.clone()),
        _ => None,
    });
    let kind = CauseKind::NodeLost { reason: "its cable was cut".to_owned() };
    assert_eq!(cause.await, Cause { host: "n1".to_owned(), kind });
    cluster.ask(1, Control::GiveUp).await;
    cluster.finish().await;
}

#[tokio::test]
async fn ranks_of_all_nodes_leave_a_barrier_together() {
    let cluster = Cluster::launch(&[2, 1, 3], &["bash", "-c", BARRIER], |_| {});
    cluster.finish().await.printed(vec!["cmd=barrier_out rc=0".to_owned(); 6]);
}
