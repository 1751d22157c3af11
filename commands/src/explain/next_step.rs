//! The next step after each kind of first cause.

use lattice_console::exit;
use lattice_session::cause::{Cause, CauseKind, StartClass};
use rank_spawner::RankExit;

/// Next step after `cause` ended launch `id`.
pub(super) fn next_step(cause: &Cause, id: &str) -> String {
    let host = &cause.host;
    match &cause.kind {
        CauseKind::Failed { rank, exit } => {
            after_end(*exit).map_or_else(|| output_of(&rank.to_string()), str::to_owned)
        }
        CauseKind::LeftWithoutFinalize { rank } => {
            format!("look for an exit of rank {rank} before MPI_Finalize; in Python: python3 -m mpi4py PROGRAM")
        }
        CauseKind::LeftBeforeInit { rank, .. } => {
            format!(
                "call MPI_Init in each rank, or start programs without MPI in a launch of their own; {}",
                output_of(&rank.to_string())
            )
        }
        CauseKind::LeftFence { rank, .. } => {
            format!("look for a collective call that rank {rank} skips; in Python: python3 -m mpi4py PROGRAM")
        }
        CauseKind::Aborted { rank, .. } => output_of(&rank.to_string()),
        CauseKind::Offence { .. } => {
            "--pmi-trace FILE records the messages of PMI, for a report of the problem".to_owned()
        }
        CauseKind::NotServed { .. } => "the same line without --pmi".to_owned(),
        CauseKind::Fence { .. } => {
            "build all programs with one MPI library; lattice nodes shows the state of the nodes".to_owned()
        }
        CauseKind::FenceTimeout { .. } => {
            "a longer --fence-timeout; lattice stacks ID during the next launch shows the functions of the ranks"
                .to_owned()
        }
        CauseKind::NodeLost { .. } => {
            format!("lattice nodes, and journalctl -u lattice-agent on {host}; --no-kill keeps the other nodes")
        }
        CauseKind::NotStarted { class: StartClass::NotFound, .. } => {
            format!("./PROGRAM, or a path that exists on {host}; --bcast copies the program there")
        }
        CauseKind::NotStarted { class: StartClass::CannotExecute, .. } => {
            "chmod +x PROGRAM, or its interpreter before it".to_owned()
        }
        CauseKind::NotStarted { .. } => format!("lattice doctor on {host} shows its limits; or fewer ranks there"),
        CauseKind::Interrupted { .. } => {
            "none, if that was the intent; --detach starts a launch without a terminal".to_owned()
        }
        CauseKind::Ended { .. } => {
            "none, if that was the intent; lattice queue shows the allocations and their limits".to_owned()
        }
        CauseKind::TimedOut { .. } => "a longer --timeout or --time".to_owned(),
        CauseKind::FirstExit { rank, .. } => {
            format!(
                "a longer --wait, or find the reason for the early end of rank {rank}: {}",
                output_of(&rank.to_string())
            )
        }
        CauseKind::FailedRanks { failed } => {
            output_of_first(failed.first().map(|(rank, exit)| (rank.to_string(), *exit)), id)
        }
        CauseKind::LostNodes { .. } => "lattice nodes, and journalctl -u lattice-agent on these nodes".to_owned(),
        _ => format!("lattice status {id} shows the end of each rank"),
    }
}

fn output_of_first(failed: Option<(String, RankExit)>, id: &str) -> String {
    match failed {
        Some((rank, exit)) => after_end(exit).map_or_else(|| output_of(&rank), str::to_owned),
        None => format!("lattice status {id} shows the end of each rank"),
    }
}

/// Next step after a rank that a signal killed, if the signal has a usual reason.
fn after_end(exit: RankExit) -> Option<&'static str> {
    match exit {
        RankExit::Signal { signal, .. } => exit::usual_action(exit::by_signal(signal)),
        _ => None,
    }
}

fn output_of(rank: &str) -> String {
    format!("read the output of rank {rank}: -l shows the rank of each line, --output FILE keeps it")
}

#[cfg(test)]
mod tests {
    use pmi_core::ids::Rank;

    use super::*;

    #[test]
    fn a_cause_has_its_own_next_step() {
        let check = |kind: CauseKind, expected: &str| {
            let step = next_step(&Cause { host: "pc1".to_owned(), kind }, "k3jq09zmf2");
            assert!(step.contains(expected), "{step}");
        };
        let rank = Rank(2);
        let killed = |signal| RankExit::Signal { signal, core_dumped: false };
        check(CauseKind::Failed { rank, exit: RankExit::Code(3) }, "output of rank 2");
        check(CauseKind::Failed { rank, exit: killed(9) }, "dmesg");
        check(CauseKind::Failed { rank, exit: killed(11) }, "core file");
        check(CauseKind::Failed { rank, exit: killed(34) }, "output of rank 2");
        check(CauseKind::FailedRanks { failed: vec![(rank, killed(9))] }, "dmesg");
        let not_started = |class| CauseKind::NotStarted { reason: "gone".to_owned(), class };
        check(not_started(StartClass::NotFound), "exists on pc1");
        check(not_started(StartClass::CannotExecute), "chmod +x");
        check(not_started(StartClass::System), "lattice doctor on pc1");
        check(CauseKind::NodeLost { reason: "no heartbeat".to_owned() }, "journalctl -u lattice-agent on pc1");
        check(CauseKind::NotServed { rank, protocol: "PMI-1".to_owned() }, "without --pmi");
    }
}
