//! Settings of a launch that depend on one flag each.

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use lattice_console::environment;
use lattice_console::machine::Machine;
use lattice_overlay::directory;
use lattice_session::request::Ownership;
use lattice_session::settings::{
    AtExec, DataExchange, Entrance, FailedRanks, JobMemory, LaunchSettings, LimitSignal, LostNodes, OverdueRelease,
    PmiFamily, PmiSpec, RankOutput, Restarts, StdinTarget, TemporaryFiles, Timeouts,
};
use pmi_core::ids::Rank;
use rank_spawner::{CpuBind, mpir};

use super::{RequestError, binding, file_of, open_mpi_files};
use crate::args::{
    self, KillOnBadExit, LaunchArgs, Pmi, PmiArgs, ResourceTimeout, Stdin, StreamArgs, TimeArgs, Unbuffered,
};

/// Settings that depend on several flags.
pub(super) struct Settled {
    pub(super) environment: Vec<(OsString, OsString)>,
    pub(super) pmi: PmiSpec,
    pub(super) cpu_bind: CpuBind,
    /// Number of ranks, if known.
    pub(super) size: Option<u32>,
}

/// All settings of a launch.
pub(super) fn settings(
    args: &LaunchArgs,
    machine: &Machine,
    ownership: Ownership,
    settled: Settled,
) -> Result<LaunchSettings, RequestError> {
    let Settled { environment, pmi, cpu_bind, size } = settled;
    Ok(LaunchSettings {
        environment,
        pmi,
        pmi_trace: args.pmi.pmi_trace.is_some(),
        slurm_environment: args.pmi.slurm_env,
        rank_variables: true,
        keeps_transports: open_mpi_files::choose_transports(&machine.environment),
        cpu_bind,
        mem_bind: args.placement.mem_bind.clone().unwrap_or_default(),
        gpu_bind: binding::gpus(&args.placement),
        stdin: stdin(args, machine, ownership),
        stdout: match args.streams.unbuffered {
            Some(Unbuffered::Terminal) => RankOutput::Terminal,
            Some(Unbuffered::Pipe) | None => RankOutput::Pipe,
        },
        failed_ranks: match args.failures.kill_on_bad_exit {
            KillOnBadExit::Yes => FailedRanks::EndLaunch,
            KillOnBadExit::No | KillOnBadExit::Recover => FailedRanks::AreBorne,
        },
        lost_nodes: if args.failures.no_kill { LostNodes::AreBorne } else { LostNodes::EndLaunch },
        overdue_release: match args.failures.resource_timeout {
            ResourceTimeout::Warn => OverdueRelease::Warn,
            ResourceTimeout::Fail => OverdueRelease::Fail,
        },
        shell_limits: args.environment.propagate.clone().unwrap_or_default().of(machine),
        node_memory: args.pmi.node_memory,
        temporary: temporary_files(args.environment.tmpdir.as_deref(), machine),
        at_exec: if args.debuggers.stop_at_start || mpir::is_debugged() { AtExec::Stop } else { AtExec::Run },
        ancestors: directory::ancestors(),
        timeouts: Timeouts { prompt: open_lines(&args.streams, machine, size), ..timeouts(&args.time)? },
    })
}

/// Place of temporary files by the value of `--tmpdir`. Without a value, the directory is in `LATTICE_TMPDIR`, which the flag hides from the
/// parser.
fn temporary_files(directory: Option<&Path>, machine: &Machine) -> TemporaryFiles {
    let Some(given) = directory else { return TemporaryFiles::AsUsual };
    let set = environment::value(&machine.environment, "LATTICE_TMPDIR").map_or(Path::new(""), Path::new);
    let below = [given, set].into_iter().find(|directory| !directory.as_os_str().is_empty());
    TemporaryFiles::OfLaunch { below: below.map(|below| machine.directory.join(below)) }
}

/// Source of standard input. A detached launch has no client that sends input, so its ranks do not wait for it.
fn stdin(args: &LaunchArgs, machine: &Machine, ownership: Ownership) -> StdinTarget {
    if args.streams.pty {
        return StdinTarget::Terminal(machine.terminal.unwrap_or_default());
    }
    match (&args.streams.stdin, ownership) {
        (Stdin::File(_, file), _) => StdinTarget::File(file_of(file, args).below(machine.directory.as_os_str())),
        (Stdin::Rank(rank), Ownership::Client) => StdinTarget::Rank(Rank(*rank)),
        (Stdin::All, Ownership::Client) => StdinTarget::All,
        (Stdin::None, _) | (Stdin::Rank(_) | Stdin::All, Ownership::Detached) => StdinTarget::None,
    }
}

pub(super) fn pmi_spec(args: &PmiArgs) -> PmiSpec {
    PmiSpec {
        family: match args.pmi {
            Pmi::Auto => PmiFamily::Auto,
            Pmi::Pmi1 => PmiFamily::Pmi1,
            Pmi::Pmi2 => PmiFamily::Pmi2,
            Pmi::Pmix => PmiFamily::Pmix,
            Pmi::None => PmiFamily::None,
        },
        entrance: if args.pmi_port || args.restartable.is_some() { Entrance::Port } else { Entrance::Socket },
        group_barriers: args.pmi_group_barriers,
        // Job memory contains values from earlier puts, and restarted programs may have lost it.
        job_memory: if args.no_job_memory || args.restartable.is_some() { JobMemory::Off } else { JobMemory::Shared },
        exchange: match args.exchange {
            args::Exchange::Auto => DataExchange::Auto,
            args::Exchange::Full => DataExchange::Full,
            args::Exchange::Lazy => DataExchange::Lazy,
        },
        restarts: match args.restartable {
            None => Restarts::Unexpected,
            Some(args::Restartable::Keep) => Restarts::Keep,
            Some(args::Restartable::Fresh) => Restarts::Fresh,
        },
    }
}

/// Time after its first byte at which an incomplete line is passed on. It is 0 with `--unbuffered`. It is short on a terminal, and for a single
/// rank, because no other rank can tear its lines. `None` if only whole lines are passed on.
fn open_lines(args: &StreamArgs, machine: &Machine, size: Option<u32>) -> Option<Duration> {
    let of_whole_lines = args.json || args.pty || args.collapse;
    match (of_whole_lines, args.unbuffered.is_some()) {
        (true, _) => None,
        (false, true) => Some(Duration::ZERO),
        (false, false) => (machine.watched || size == Some(1)).then_some(PROMPT),
    }
}

/// Maximum time for which an incomplete line is held back.
pub(super) const PROMPT: Duration = Duration::from_millis(50);

/// Time limits of a launch without an interactive user that waits for prompts.
fn timeouts(args: &TimeArgs) -> Result<Timeouts, RequestError> {
    let positive = |flag, time: Option<Duration>| match time {
        Some(Duration::ZERO) => Err(RequestError::NoTime { flag }),
        time => Ok(time),
    };
    let default = Timeouts::default();
    let limit_signal = args.signal.map(|asked| LimitSignal { signal: asked.signal as i32, ahead: asked.ahead });
    // The flags exclude each other. As with srun, a time of 0 is no limit.
    let time_limit = positive("--timeout", args.timeout)?.or(args.time.filter(|time| !time.is_zero()));
    if let (Some(limit), Some(LimitSignal { ahead, .. })) = (time_limit, limit_signal)
        && ahead >= limit
    {
        return Err(RequestError::SignalAtOnce { ahead, limit });
    }
    if time_limit.is_none() && limit_signal.is_some() {
        return Err(RequestError::SignalWithoutLimit);
    }
    Ok(Timeouts {
        time_limit,
        limit_signal,
        after_first_exit: args.wait.filter(|wait| !wait.is_zero()),
        fence: positive("--fence-timeout", args.fence_timeout)?,
        stuck: positive("--stuck-after", args.stuck_after)?.unwrap_or(default.stuck),
        grace_after_failure: args.kill_wait.unwrap_or(default.grace_after_failure),
        grace_after_interrupt: args.kill_wait.unwrap_or(default.grace_after_interrupt),
        output_end: args.output_end.unwrap_or(default.output_end),
        ..default
    })
}
