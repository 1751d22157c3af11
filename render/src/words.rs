//! Messages about a launch: the event, its ranks, and a remedy. This module applies the verbosity, and `console` adds the prefix.

use std::fmt;
use std::time::Duration;

use hostlist::fold;
use lattice_console::Verbosity;
use lattice_console::formatting::{count, duration};
use lattice_daemon::printable;
use lattice_session::call_stacks::RankStack;
use lattice_session::cause::{Cause, CauseKind, RankList, StartClass};
use lattice_session::event::{Event, MpiFamily, MpiLibrary, Notice};
use lattice_session::placed::PlacedLaunch;
use lattice_session::settings::{Entrance, LaunchSettings, PmiFamily, PmiSpec};
use pmi_core::ids::Rank;
use rank_spawner::Limit;

use super::prepared::PreparedLaunch;
use super::updates::StartProgress;

/// Maximum number of missing ranks in a message.
const NAMED: usize = 8;

/// Message about an event, without its prefix; `None` if this verbosity has no message for it.
pub(crate) fn event(event: &Event, verbosity: Verbosity) -> Option<String> {
    let text = match event {
        // The program contains no MPI library: it is a script, or a program that needs no server.
        Event::Notice(Notice::Silent { library: None, .. }) if verbosity < Verbosity::Verbose => return None,
        Event::Notice(warning) if verbosity > Verbosity::Quiet => return Some(notice(warning)),
        Event::Started { rank, pid, .. } => format!("rank {rank} runs as process {pid}"),
        Event::Exited { rank, exit, .. } => format!("rank {rank} {exit}"),
        Event::Ending(cause) => format!("ending the launch: {}", shown(cause)),
        _ => return None,
    };
    (verbosity == Verbosity::Verbose).then_some(text)
}

/// Message about the first cause of a failure, with a remedy if ranks could not be started.
pub(crate) fn cause(cause: &Cause) -> String {
    match &cause.kind {
        CauseKind::NotStarted { class, .. } => match remedy(*class) {
            Some(remedy) => format!("{}\ntry: {remedy}", shown(cause)),
            None => shown(cause),
        },
        _ => shown(cause),
    }
}

/// Remedy for a failed start; `None` if the reason says all.
fn remedy(class: StartClass) -> Option<&'static str> {
    Some(match class {
        StartClass::NotFound => {
            "its path as its nodes have it, or PATH with its directory by --env; --bcast copies it to them"
        }
        StartClass::NotPermitted => "chmod +x, where its nodes have it; or its interpreter before it, as in sh FILE",
        StartClass::IsDirectory => "the path of a program in that directory",
        StartClass::Busy => "the line again when no process writes the file any more; fuser FILE shows which one does",
        StartClass::TooLong => {
            "fewer arguments and variables, or --env-remove of a long one; the limit is a quarter of ulimit -s"
        }
        StartClass::OtherMachine => "a build of it for that machine; lattice nodes --topology shows what each node is",
        StartClass::NoInterpreter => {
            "lattice exec, for a look at that path on its nodes; --bcast, for a program that is whole here"
        }
        StartClass::CannotExecute => {
            "its interpreter before it, as in sh FILE; or #! and its path as the first line, if it is a script"
        }
        StartClass::WorkingDirectory => {
            "--chdir with a directory that all nodes have and you may enter, or mkdir -p it there by lattice exec"
        }
        StartClass::TemporaryDirectory => {
            "--tmpdir=DIR with a directory that all nodes have and you may write to, such as --tmpdir=/tmp"
        }
        StartClass::Gpus => "lattice nodes --topology, which shows the GPUs of each node; or the line without GPUs",
        StartClass::System => return None,
    })
}

/// A cause as one line. A name can contain a line end, and a further line would look like a hint of Lattice.
fn shown(cause: &Cause) -> String {
    printable(&cause.to_string()).into_owned()
}

/// Settings of a launch, for `--verbose`.
pub fn settings(launch: &PreparedLaunch) -> String {
    let PlacedLaunch { launch_id, allocation_id, job, hosts, settings, .. } = &launch.placed;
    let LaunchSettings { pmi, cpu_bind, timeouts, .. } = settings;
    let place = match allocation_id {
        Some(id) => format!("allocation {id}"),
        None => "this machine".to_owned(),
    };
    let pmi = match pmi {
        PmiSpec { family: PmiFamily::None, .. } => "no PMI",
        PmiSpec { family: PmiFamily::Pmix, .. } => "PMIx through a loopback port",
        PmiSpec { entrance: Entrance::Socket, .. } => "PMI through an inherited socket (PMI_FD)",
        PmiSpec { entrance: Entrance::Port, .. } => "PMI through a loopback port (PMI_PORT)",
    };
    let limit = timeouts.time_limit.map_or_else(|| "none".to_owned(), duration);
    let mut text = format!(
        "launch {launch_id} on {} ({place}); size: {}; {pmi}; CPU binding: {cpu_bind}; time limit: {limit}",
        fold(hosts),
        job.size(),
    );
    for (app, program) in job.apps.iter().zip(&launch.placed.apps) {
        text += &format!("\n  {} x {} in {}", app.ranks, program.program.display(), program.directory.display());
        for (name, value) in &program.set {
            text += &format!("\n    {}={}", name.display(), value.display());
        }
    }
    text
}

/// Message about missing output.
pub(crate) fn dropped(bytes: Option<u64>) -> String {
    match bytes {
        Some(bytes) => format!(
            "warning: {} of output {} missing here: no client followed the launch, or this command was too slow",
            count(bytes, "byte"),
            if bytes == 1 { "is" } else { "are" },
        ),
        None => "warning: output may be missing here: it is not kept, or the API server was started anew".to_owned(),
    }
}

/// Progress of a start as one line without its end; empty when all nodes and ranks have started.
pub(crate) fn starting(progress: StartProgress) -> String {
    let StartProgress { nodes, nodes_started, ranks, ranks_started } = progress;
    if nodes_started >= nodes && ranks_started >= ranks {
        return String::new();
    }
    let (nodes, ranks) = (count(nodes, "node"), count(ranks, "rank"));
    format!("lattice: starting: {nodes_started} of {nodes}, {ranks_started} of {ranks}")
}

/// Ranks in MPI_Init as one line without its end; empty if there are none.
pub(crate) fn initializing(ranks: u32, of: u32) -> String {
    if ranks == 0 { String::new() } else { format!("lattice: in MPI_Init: {ranks} of {}", count(of, "rank")) }
}

/// Text of a notice, without the prefix.
pub(crate) fn notice(notice: &Notice) -> String {
    match notice {
        Notice::Silent { ranks, size, ended, after, library } => {
            silent(&Silent { ranks, size: *size, ended: *ended, after: *after }, library.as_ref())
        }
        Notice::Stuck { after, waiting, missing } => stuck(*after, *waiting, missing),
        Notice::Stacks { stacks } => call_stacks(stacks),
        Notice::StdinClosed { rank } => format!(
            "warning: rank {rank} did not read its standard input and held up the other readers; its input was closed"
        ),
        Notice::NotSpawned { rank, reason } => {
            format!("warning: rank {rank} asked for new processes (MPI_Comm_spawn) and got none: {reason}")
        }
        Notice::NameRefused { rank, reason } => format!("warning: rank {rank}: {reason}"),
        Notice::ReleaseOverdue { rank, resource, within, killed } => format!(
            "warning: rank {rank} has not released {resource} within {}, the time that it gave itself{}",
            duration(*within),
            if *killed { "; it is killed for that (--resource-timeout=fail)" } else { "" },
        ),
        Notice::BoundElsewhere { rank, node, planned, seen } => format!(
            "warning: rank {rank} is to be bound to CPUs {planned} of {node}, but the kernel has it on {seen}; a control group of the node \
             leaves it no others\n\
             try: lattice nodes --topology ID, which shows the plan beside the kernel's masks of all ranks"
        ),
        Notice::LimitTooHigh { node, resource, asked, hard } => {
            let (asked, hard) = (LimitValue(*asked), LimitValue(*hard));
            format!(
                "warning: the limit {resource} of this shell is {asked}, but {node} allows no more than {hard}, which its ranks have\n\
                 try: --propagate with the names of other limits; or ask the administrator of {node} for a higher hard limit"
            )
        }
        Notice::OutputHeld { rank, pid, program, after } => format!(
            "warning: process {pid} ({program}) still held the output of rank {rank} {} after the last rank had ended, and was killed; what it \
             had not written is lost\n\
             try: --output-end with a longer time; or have rank {rank} wait for the process, or start it with its output redirected",
            duration(*after)
        ),
        Notice::PmiMisuse { rank, observed } => format!("warning: rank {rank}: {observed}"),
        Notice::Leftover { pids } => {
            let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
            format!("warning: these processes of the launch could not be ended: {}", pids.join(" "))
        }
        _ => "warning: a node reported something that this lattice does not know; is the cluster of another version?"
            .to_owned(),
    }
}

/// Ranks that sent no message to their PMI server.
struct Silent<'a> {
    ranks: &'a [Rank],
    size: u32,
    ended: bool,
    after: Duration,
}

impl Silent<'_> {
    fn happened(&self) -> String {
        let who = RankList(self.ranks);
        let (has, their) = if self.ranks.len() == 1 { ("has", "its") } else { ("have", "their") };
        if self.ended {
            format!("{who} ended without a message to {their} PMI server")
        } else {
            format!("{who} {has} run for {} without a message to {their} PMI server", duration(self.after))
        }
    }

    /// `4 jobs of size 1 instead of one job of size 4`
    fn singletons(&self) -> String {
        let jobs = if self.ranks.len() == 1 { "a job".to_owned() } else { count(self.ranks.len() as u64, "job") };
        format!("{jobs} of size 1 instead of one job of size {}", self.size)
    }
}

fn silent(silent: &Silent<'_>, library: Option<&MpiLibrary>) -> String {
    let happened = silent.happened();
    let singletons = silent.singletons();
    let verb = if silent.ended { "ran" } else { "run" };
    let they = if silent.ranks.len() == 1 { "it" } else { "they" };
    let Some(MpiLibrary { name, file, family }) = library else {
        return format!(
            "note: {happened}; if this is an MPI program {they} {verb} as {singletons} (--pmi=none declares that it is not)"
        );
    };
    match family {
        MpiFamily::Pmix => format!(
            "warning: {happened}, though {name} ({file}) was found, which speaks PMIx: \
             if MPI_Init was called, {they} {verb} as {singletons}\n\
             try: --pmi=auto or --pmi=pmix, if this launch has another --pmi; and look for a wrapper that clears the environment"
        ),
        MpiFamily::Vendor => format!(
            "warning: {happened}: found {name} ({file}), which speaks a protocol of its vendor, so {they} {verb} as {singletons}\n\
             try: start it with the vendor's own launcher, or build it with an MPICH"
        ),
        _ => format!(
            "warning: {happened}, though {name} ({file}) was found, which speaks PMI: \
             if MPI_Init was called, {they} {verb} as {singletons}\n\
             try: --pmi=auto, if this launch has another --pmi; or --pmi-port, if a container runtime or a wrapper closes \
             inherited descriptors or clears the environment"
        ),
    }
}

/// Limit in the format of `ulimit`.
struct LimitValue(u64);

impl fmt::Display for LimitValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == Limit::UNLIMITED { f.write_str("unlimited") } else { self.0.fmt(f) }
    }
}

fn stuck(after: Duration, waiting: usize, missing: &[(Rank, Option<String>)]) -> String {
    let verb = if waiting == 1 { "waits" } else { "wait" };
    let all: Vec<Rank> = missing.iter().map(|(rank, _)| *rank).collect();
    // All ranks of the launch may wait for other jobs: spawned jobs, or jobs that they connect with.
    let others = if all.is_empty() { "processes of other jobs".to_owned() } else { RankList(&all).to_string() };
    let mut text = format!(
        "warning: start-up is not complete after {}: {} {verb} for {others}",
        duration(after),
        count(waiting as u64, "rank"),
    );
    for (rank, last) in missing.iter().take(NAMED) {
        text += &match last {
            Some(command) => format!("\n  rank {rank}: its last PMI command was {command}"),
            None => format!("\n  rank {rank}: has not called MPI_Init"),
        };
    }
    if missing.len() > NAMED {
        text += &format!("\n  and {} more", missing.len() - NAMED);
    }
    text
}

/// Lists each stack once, after the numbers of its ranks, as tools for stack traces of many ranks do.
fn call_stacks(stacks: &[RankStack]) -> String {
    let mut text = "note: call stacks:".to_owned();
    for RankStack { ranks, text: stack } in stacks {
        text += &format!("\n{}:", RankList(ranks));
        stack.lines().for_each(|line| text += &format!("\n  {line}"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn silent_notice(ranks: std::ops::Range<u32>, ended: bool, library: Option<(&str, &str, MpiFamily)>) -> String {
        let library =
            library.map(|(name, file, family)| MpiLibrary { name: name.to_owned(), file: file.to_owned(), family });
        let after = Duration::from_secs(5);
        notice(&Notice::Silent { ranks: ranks.map(Rank).collect(), size: 4, ended, after, library })
    }

    #[test]
    fn names_of_users_make_no_line_of_their_own() {
        let reason = "cannot find program /x\ntry: evil".to_owned();
        let told = cause(&Cause {
            host: "n1".to_owned(),
            kind: CauseKind::NotStarted { reason, class: StartClass::NotFound },
        });
        assert!(told.starts_with("n1: cannot find program /x\\ntry: evil\ntry: its path as"), "{told}");
    }

    #[test]
    fn ranks_that_all_wait_wait_for_other_jobs() {
        let told = stuck(Duration::from_secs(30), 8, &[]);
        assert_eq!(told, "warning: start-up is not complete after 30 s: 8 ranks wait for processes of other jobs");
    }

    #[test]
    fn silent_ranks_are_named_with_what_to_try() {
        assert_eq!(
            silent_notice(0..4, true, None),
            "note: ranks 0-3 ended without a message to their PMI server; if this is an MPI program they ran as 4 jobs of size 1 \
             instead of one job of size 4 (--pmi=none declares that it is not)"
        );
        assert!(silent_notice(2..3, true, None).contains("rank 2 ended without a message to its PMI server"));
        let running = silent_notice(0..4, false, Some(("Open MPI", "libmpi.so.40.30.4", MpiFamily::Pmix)));
        assert!(running.starts_with("warning: ranks 0-3 have run for 5 s without a message"), "{running}");
        assert!(running.contains("Open MPI (libmpi.so.40.30.4) was found, which speaks PMIx"), "{running}");
        assert!(running.contains("\ntry: "), "{running}");
    }

    #[test]
    fn a_program_in_which_no_mpi_was_found_may_be_silent() {
        let check = |ended, name: Option<&str>, verbosity, said| {
            let library = name.map(|name| MpiLibrary {
                name: name.to_owned(),
                file: "libmpi.so.12".to_owned(),
                family: MpiFamily::Pmi,
            });
            let after = Duration::from_secs(5);
            let notice = Notice::Silent { ranks: vec![Rank(0)], size: 2, ended, after, library };
            assert_eq!(event(&Event::Notice(notice), verbosity).is_some(), said, "{ended} {name:?} {verbosity:?}");
        };
        for ended in [false, true] {
            check(ended, None, Verbosity::Quiet, false);
            check(ended, None, Verbosity::Normal, false);
            check(ended, None, Verbosity::Verbose, true);
            check(ended, Some("MPICH"), Verbosity::Quiet, false);
            check(ended, Some("MPICH"), Verbosity::Normal, true);
        }
    }

    #[test]
    fn a_stuck_start_names_the_missing_ranks_and_not_too_many() {
        let missing: Vec<_> = (1..20).map(|rank| (Rank(rank), (rank == 1).then(|| "put".to_owned()))).collect();
        let text = notice(&Notice::Stuck { after: Duration::from_secs(30), waiting: 1, missing });
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "warning: start-up is not complete after 30 s: 1 rank waits for ranks 1-19");
        assert_eq!(lines[1], "  rank 1: its last PMI command was put");
        assert_eq!(lines[2], "  rank 2: has not called MPI_Init");
        assert_eq!(lines.last(), Some(&"  and 11 more"));
    }

    #[test]
    fn ranks_in_mpi_init_are_counted() {
        assert_eq!(initializing(12, 256), "lattice: in MPI_Init: 12 of 256 ranks");
        assert_eq!(initializing(0, 256), "");
    }

    #[test]
    fn call_stacks_are_shown_under_their_ranks() {
        let stack = |ranks: &[u32], text: &str| RankStack {
            ranks: ranks.iter().copied().map(Rank).collect(),
            text: text.to_owned(),
        };
        let stacks = vec![stack(&[0, 1, 2, 5], "1 thread of app\nthread 1 (app) runs\n"), stack(&[3], "x\n")];
        let expected = "note: call stacks:\nranks 0-2,5:\n  1 thread of app\n  thread 1 (app) runs\nrank 3:\n  x";
        assert_eq!(notice(&Notice::Stacks { stacks }), expected);
    }

    #[test]
    fn a_limit_that_a_node_does_not_allow_is_told_with_both_values() {
        let limit = Notice::LimitTooHigh {
            node: "node7".to_owned(),
            resource: rank_spawner::LimitedResource::Memlock,
            asked: Limit::UNLIMITED,
            hard: 65_536,
        };
        let expected = "warning: the limit memlock of this shell is unlimited, but node7 allows no more than 65536, which its ranks have\ntry: ";
        assert!(notice(&limit).starts_with(expected), "{}", notice(&limit));
    }

    #[test]
    fn progress_ends_with_the_start() {
        let progress = |nodes_started, ranks_started| {
            starting(StartProgress { nodes: 64, nodes_started, ranks: 512, ranks_started })
        };
        assert_eq!(progress(12, 96), "lattice: starting: 12 of 64 nodes, 96 of 512 ranks");
        assert_eq!(progress(64, 512), "");
    }

    #[test]
    fn one_and_many_are_told_apart() {
        assert_eq!(
            starting(StartProgress { nodes: 1, nodes_started: 0, ranks: 1, ranks_started: 0 }),
            "lattice: starting: 0 of 1 node, 0 of 1 rank"
        );
        assert!(dropped(Some(1)).starts_with("warning: 1 byte of output is missing here"));
        assert!(dropped(Some(2)).starts_with("warning: 2 bytes of output are missing here"));
        assert!(dropped(None).starts_with("warning: output may be missing here"));
        let text =
            notice(&Notice::Stuck { after: Duration::from_secs(90), waiting: 2, missing: vec![(Rank(3), None)] });
        assert!(
            text.starts_with("warning: start-up is not complete after 1 min 30 s: 2 ranks wait for rank 3"),
            "{text}"
        );
    }

    #[test]
    fn verbosity_decides_which_events_are_told() {
        let started = Event::Started { rank: Rank(1), pid: 7, at: Duration::ZERO };
        let silent = |library| {
            let after = Duration::from_secs(5);
            Event::Notice(Notice::Silent { ranks: vec![Rank(0)], size: 1, ended: true, after, library })
        };
        let leftover = Event::Notice(Notice::Leftover { pids: vec![7, 8] });
        let check = |sample: &Event, expected: [bool; 3]| {
            let told = [Verbosity::Quiet, Verbosity::Normal, Verbosity::Verbose]
                .map(|verbosity| event(sample, verbosity).is_some());
            assert_eq!(told, expected, "{sample:?}");
        };
        check(&started, [false, false, true]);
        check(&silent(None), [false, false, true]);
        check(&leftover, [false, true, true]);
        assert_eq!(event(&started, Verbosity::Verbose).unwrap(), "rank 1 runs as process 7");
        let refused = Notice::NotSpawned { rank: Rank(2), reason: "no rank was asked for".to_owned() };
        let expected = "warning: rank 2 asked for new processes (MPI_Comm_spawn) and got none: no rank was asked for";
        assert_eq!(notice(&refused), expected);
        let refused = Notice::NameRefused { rank: Rank(2), reason: "the name is taken".to_owned() };
        assert_eq!(notice(&refused), "warning: rank 2: the name is taken");
        let (resource, within) = ("shm:7".to_owned(), Duration::from_secs(10));
        let overdue = Notice::ReleaseOverdue { rank: Rank(2), resource, within, killed: true };
        let expected = "warning: rank 2 has not released shm:7 within 10 s, the time that it gave itself; it is killed for that (--resource-timeout=fail)";
        assert_eq!(notice(&overdue), expected);
        assert_eq!(
            event(&leftover, Verbosity::Normal).unwrap(),
            "warning: these processes of the launch could not be ended: 7 8"
        );
    }

    #[test]
    fn each_family_of_libraries_has_its_own_advice() {
        let advice = |family| silent_notice(0..2, true, Some(("MPI", "libmpi.so", family)));
        assert!(advice(MpiFamily::Pmix).contains("try: --pmi=auto or --pmi=pmix"));
        assert!(advice(MpiFamily::Pmi).contains("or --pmi-port, if a container runtime"));
        assert!(advice(MpiFamily::Vendor).contains("try: start it with the vendor's own launcher"));
        assert!(silent_notice(0..1, true, None).contains("it ran as a job of size 1 instead of one job of size 4"));
    }
}
