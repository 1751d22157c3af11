//! CPUs of ranks that differ from the CPUs of the plan.

use std::process::{Command, Stdio};

use lattice_inventory::ThisNode;
use lattice_session::event::{Event, Notice};
use lattice_session::session_io::SessionIo;
use lattice_session::settings::{Entrance, JobMemory};
use lattice_session::spawner::{Deliver, RankSpawner};
use lattice_session::spec::SessionSpec;
use rank_spawner::{RankCommand, RankProcess, usable_here};
use tokio::sync::mpsc;

/// Starts ranks without binding them.
struct Unbound;

impl RankSpawner for Unbound {
    fn start_all(&self, commands: Vec<RankCommand>, deliver: Deliver) {
        for RankCommand { rank, program, .. } in commands {
            let mut command = Command::new(program.path());
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
            deliver(RankProcess::start(rank, &mut command));
        }
    }
}

#[tokio::test]
async fn the_first_rank_that_has_other_cpus_than_planned_is_told() {
    let mut spec = SessionSpec::on_one_node(3, "true".into(), Vec::new()).unwrap();
    (spec.settings.pmi.entrance, spec.settings.pmi.job_memory) = (Entrance::Port, JobMemory::Off);
    spec.settings.cpu_bind = "core-map:0".parse().unwrap();
    let (events, mut happened) = mpsc::channel(64);
    let (_orders, control) = mpsc::channel(1);
    let io = SessionIo { spawner: Some(Box::new(Unbound)), ..SessionIo::on_one_node(&spec, events, control).unwrap() };
    let session = tokio::spawn(lattice_session::run(spec, io));
    let mut told = Vec::new();
    while let Some(event) = happened.recv().await {
        if let Event::Notice(Notice::BoundElsewhere { planned, seen, .. }) = event {
            told.push((planned, seen));
        }
    }
    session.await.unwrap();
    let usable = usable_here(&ThisNode::default()).unwrap();
    let (planned, seen) = (usable.cores()[0].cpus.clone(), usable.cpus());
    // With one core, a rank can have no other CPUs.
    let expected = if planned == seen { Vec::new() } else { vec![(planned, seen)] };
    assert_eq!(told, expected);
}
