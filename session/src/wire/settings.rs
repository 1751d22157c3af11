//! Settings that apply to every rank, in the fields of a [`proto::LaunchSpec`].

use std::num::NonZeroU64;
use std::path::PathBuf;

use pmi_core::ids::Rank;
use pmi_transport::proto::v1 as proto;
use proto::stdin_target::Target;
use rank_spawner::{CpuBind, MemBind};

use super::{
    WireError, bytes, decode_variables, encode_variables, milliseconds, os_string, shell_limits, terminal, time, wrong,
};
use crate::gpus::GpuBind;
use crate::names::ANCESTORS_MAX;
use crate::settings::{
    AtExec, DataExchange, Entrance, FailedRanks, JobMemory, LaunchSettings, LimitSignal, LostNodes, OverdueRelease,
    PmiFamily, PmiSpec, RankOutput, Restarts, StdinTarget, TemporaryFiles, Timeouts,
};
use crate::template::Template;

/// Returns a message with only these settings.
pub(super) fn encode(settings: &LaunchSettings) -> proto::LaunchSpec {
    proto::LaunchSpec {
        environment: encode_variables(&settings.environment),
        pmi_family: encode_family(settings.pmi.family).into(),
        pmi_port: settings.pmi.entrance == Entrance::Port,
        pmi_group_barriers: settings.pmi.group_barriers,
        no_job_memory: settings.pmi.job_memory == JobMemory::Off,
        data_exchange: encode_exchange(settings.pmi.exchange).into(),
        restarts: encode_restarts(settings.pmi.restarts).into(),
        slurm_environment: settings.slurm_environment,
        no_rank_variables: !settings.rank_variables,
        keeps_transports: settings.keeps_transports,
        cpu_bind: settings.cpu_bind.to_string(),
        mem_bind: if settings.mem_bind == MemBind::None { String::new() } else { settings.mem_bind.to_string() },
        gpu_bind: if settings.gpu_bind == GpuBind::None { String::new() } else { settings.gpu_bind.to_string() },
        stdin: Some(encode_stdin(&settings.stdin)),
        bears_failed_ranks: settings.failed_ranks == FailedRanks::AreBorne,
        bears_lost_nodes: settings.lost_nodes == LostNodes::AreBorne,
        fails_overdue_releases: settings.overdue_release == OverdueRelease::Fail,
        patience: Some(encode_timeouts(&settings.timeouts)),
        trace: settings.pmi_trace,
        shell_limits: Some(shell_limits::encode(&settings.shell_limits)),
        node_memory: settings.node_memory.map_or(0, NonZeroU64::get),
        temporary_files: encode_temporary(&settings.temporary),
        stops_ranks: settings.at_exec == AtExec::Stop,
        stdout_terminal: settings.stdout == RankOutput::Terminal,
        ancestors: settings.ancestors.clone(),
        ..proto::LaunchSpec::default()
    }
}

/// Removes the settings from a message. Its other fields are unchanged.
///
/// # Errors
/// Fails for unknown values, and for times over the limit.
pub(super) fn take(spec: &mut proto::LaunchSpec) -> Result<LaunchSettings, WireError> {
    Ok(LaunchSettings {
        environment: decode_variables(std::mem::take(&mut spec.environment)),
        pmi: PmiSpec {
            family: decode_family(spec.pmi_family)?,
            entrance: if spec.pmi_port { Entrance::Port } else { Entrance::Socket },
            group_barriers: spec.pmi_group_barriers,
            job_memory: if spec.no_job_memory { JobMemory::Off } else { JobMemory::Shared },
            exchange: decode_exchange(spec.data_exchange)?,
            restarts: decode_restarts(spec.restarts)?,
        },
        pmi_trace: spec.trace,
        slurm_environment: spec.slurm_environment,
        rank_variables: !spec.no_rank_variables,
        keeps_transports: spec.keeps_transports,
        cpu_bind: if spec.cpu_bind.is_empty() { CpuBind::None } else { spec.cpu_bind.parse()? },
        mem_bind: if spec.mem_bind.is_empty() { MemBind::None } else { spec.mem_bind.parse()? },
        gpu_bind: if spec.gpu_bind.is_empty() { GpuBind::None } else { spec.gpu_bind.parse()? },
        stdin: decode_stdin(spec.stdin.take())?,
        stdout: if spec.stdout_terminal { RankOutput::Terminal } else { RankOutput::Pipe },
        failed_ranks: if spec.bears_failed_ranks { FailedRanks::AreBorne } else { FailedRanks::EndLaunch },
        lost_nodes: if spec.bears_lost_nodes { LostNodes::AreBorne } else { LostNodes::EndLaunch },
        overdue_release: if spec.fails_overdue_releases { OverdueRelease::Fail } else { OverdueRelease::Warn },
        timeouts: decode_timeouts(spec.patience.take())?,
        shell_limits: shell_limits::decode(spec.shell_limits.take())?,
        node_memory: NonZeroU64::new(spec.node_memory),
        temporary: decode_temporary(spec.temporary_files.take())?,
        at_exec: if spec.stops_ranks { AtExec::Stop } else { AtExec::Run },
        ancestors: decode_ancestors(std::mem::take(&mut spec.ancestors))?,
    })
}

fn decode_ancestors(ancestors: Vec<u64>) -> Result<Vec<u64>, WireError> {
    match ancestors.len() {
        0..=ANCESTORS_MAX => Ok(ancestors),
        given => Err(wrong("the number of ancestors of a launcher", given, format!("at most {ANCESTORS_MAX}"))),
    }
}

fn encode_temporary(files: &TemporaryFiles) -> Option<proto::TemporaryFiles> {
    match files {
        TemporaryFiles::AsUsual => None,
        TemporaryFiles::OfLaunch { below } => {
            let below = below.clone().unwrap_or_default().into_os_string();
            Some(proto::TemporaryFiles { below: bytes(&below) })
        }
    }
}

fn decode_temporary(files: Option<proto::TemporaryFiles>) -> Result<TemporaryFiles, WireError> {
    let Some(proto::TemporaryFiles { below }) = files else { return Ok(TemporaryFiles::AsUsual) };
    let below = PathBuf::from(os_string(below));
    match below.as_os_str().is_empty() {
        true => Ok(TemporaryFiles::OfLaunch { below: None }),
        false if below.is_absolute() => Ok(TemporaryFiles::OfLaunch { below: Some(below) }),
        false => Err(wrong("the directory of temporary files", below.display(), "an absolute path")),
    }
}

fn encode_family(family: PmiFamily) -> proto::PmiFamily {
    match family {
        PmiFamily::Auto => proto::PmiFamily::Auto,
        PmiFamily::Pmi1 => proto::PmiFamily::Pmi1,
        PmiFamily::Pmi2 => proto::PmiFamily::Pmi2,
        PmiFamily::Pmix => proto::PmiFamily::PmixOnly,
        PmiFamily::None => proto::PmiFamily::None,
    }
}

fn decode_family(number: i32) -> Result<PmiFamily, WireError> {
    let family =
        proto::PmiFamily::try_from(number).map_err(|_| wrong("the kind of PMI", number, "0 (auto) to 4 (none)"))?;
    Ok(match family {
        proto::PmiFamily::Auto => PmiFamily::Auto,
        proto::PmiFamily::Pmi1 => PmiFamily::Pmi1,
        proto::PmiFamily::Pmi2 => PmiFamily::Pmi2,
        proto::PmiFamily::PmixOnly => PmiFamily::Pmix,
        proto::PmiFamily::None => PmiFamily::None,
    })
}

fn encode_restarts(restarts: Restarts) -> proto::Restarts {
    match restarts {
        Restarts::Unexpected => proto::Restarts::Unexpected,
        Restarts::Keep => proto::Restarts::KeepPairs,
        Restarts::Fresh => proto::Restarts::FreshPairs,
    }
}

fn decode_restarts(number: i32) -> Result<Restarts, WireError> {
    let restarts = proto::Restarts::try_from(number);
    Ok(match restarts.map_err(|_| wrong("the meaning of restarts", number, "0 (none) to 2 (fresh)"))? {
        proto::Restarts::Unexpected => Restarts::Unexpected,
        proto::Restarts::KeepPairs => Restarts::Keep,
        proto::Restarts::FreshPairs => Restarts::Fresh,
    })
}

fn encode_exchange(exchange: DataExchange) -> proto::DataExchange {
    match exchange {
        DataExchange::Auto => proto::DataExchange::WhicheverIsCheaper,
        DataExchange::Full => proto::DataExchange::ToAll,
        DataExchange::Lazy => proto::DataExchange::ToThoseWhoAsk,
    }
}

fn decode_exchange(number: i32) -> Result<DataExchange, WireError> {
    let exchange = proto::DataExchange::try_from(number);
    Ok(match exchange.map_err(|_| wrong("the way of the data of fences", number, "0 (auto) to 2 (lazy)"))? {
        proto::DataExchange::WhicheverIsCheaper => DataExchange::Auto,
        proto::DataExchange::ToAll => DataExchange::Full,
        proto::DataExchange::ToThoseWhoAsk => DataExchange::Lazy,
    })
}

fn encode_stdin(stdin: &StdinTarget) -> proto::StdinTarget {
    let target = match stdin {
        StdinTarget::None => None,
        StdinTarget::Rank(rank) => Some(Target::Rank(rank.0)),
        StdinTarget::All => Some(Target::All(proto::Nothing {})),
        StdinTarget::File(template) => Some(Target::File(bytes(&template.to_text()))),
        StdinTarget::Terminal(size) => Some(Target::Terminal(terminal::encode_size(*size))),
    };
    proto::StdinTarget { target }
}

fn decode_stdin(stdin: Option<proto::StdinTarget>) -> Result<StdinTarget, WireError> {
    Ok(match stdin.and_then(|stdin| stdin.target) {
        None => StdinTarget::None,
        Some(Target::Rank(rank)) => StdinTarget::Rank(Rank(rank)),
        Some(Target::All(_)) => StdinTarget::All,
        Some(Target::File(name)) => StdinTarget::File(Template::parse(&os_string(name))?),
        Some(Target::Terminal(size)) => StdinTarget::Terminal(terminal::decode_size(&size)),
    })
}

fn encode_timeouts(timeouts: &Timeouts) -> proto::Patience {
    proto::Patience {
        silent_ms: milliseconds(timeouts.silent),
        stuck_ms: milliseconds(timeouts.stuck),
        after_failure_ms: milliseconds(timeouts.grace_after_failure),
        after_interrupt_ms: milliseconds(timeouts.grace_after_interrupt),
        prompt_ms: timeouts.prompt.map(milliseconds),
        output_end_ms: milliseconds(timeouts.output_end),
        timeout_ms: timeouts.time_limit.map(milliseconds),
        fence_ms: timeouts.fence.map(milliseconds),
        after_first_exit_ms: timeouts.after_first_exit.map(milliseconds),
        limit_signal: timeouts
            .limit_signal
            .map(|LimitSignal { signal, ahead }| proto::LimitSignal { signal, ahead_ms: milliseconds(ahead) }),
    }
}

fn decode_limit_signal(sent: proto::LimitSignal) -> Result<LimitSignal, WireError> {
    let ahead = time("the time from a signal to the time limit", sent.ahead_ms)?;
    Ok(LimitSignal { signal: sent.signal, ahead })
}

/// Decodes the timeouts. A launch without timeouts gets the defaults.
fn decode_timeouts(timeouts: Option<proto::Patience>) -> Result<Timeouts, WireError> {
    let Some(timeouts) = timeouts else { return Ok(Timeouts::default()) };
    let optional = |what, milliseconds: Option<u64>| milliseconds.map(|number| time(what, number)).transpose();
    Ok(Timeouts {
        silent: time("the timeout of silent ranks", timeouts.silent_ms)?,
        stuck: time("the timeout of a start-up", timeouts.stuck_ms)?,
        grace_after_failure: time("the grace after a failure", timeouts.after_failure_ms)?,
        grace_after_interrupt: time("the grace after an interrupt", timeouts.after_interrupt_ms)?,
        prompt: optional("the timeout of an open line", timeouts.prompt_ms)?,
        output_end: time("the time for the rest of the output", timeouts.output_end_ms)?,
        time_limit: optional("the time limit", timeouts.timeout_ms)?,
        fence: optional("the timeout of a fence", timeouts.fence_ms)?,
        limit_signal: timeouts.limit_signal.map(decode_limit_signal).transpose()?,
        after_first_exit: optional("the time after the first exit", timeouts.after_first_exit_ms)?,
    })
}
