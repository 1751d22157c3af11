//! Events of a node on their way to the user.

use std::time::Duration;

use bytes::Bytes;
use pmi_core::ids::{NodeIndex, Rank};
use pmi_transport::limits::kept_cost;
use pmi_transport::proto::v1 as proto;
use proto::mpi_library::Family;
use proto::node_event::What;
use proto::notice::What as NoticeWhat;
use rank_spawner::RankExit;

use super::cause::{
    decode_exit, decode_missing, decode_ranks, decode_reached, encode_exit, encode_missing, encode_ranks,
};
use super::{WireError, cause, death, gathered, input, job_id, milliseconds, progress, shell_limits, time, wrong};
use crate::call_stacks::RankStack;
use crate::event::{Event, MpiFamily, MpiLibrary, Notice, Output, Report, Stream, Usage, UsageRange};
use crate::gathered::{Gathered, NodeSelection};
use crate::map_hash::MapHash;
use crate::shell_limits::SoftLimit;

/// Item in a node's report stream.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum NodeHappening {
    /// An event of the session.
    Event(Event),
    /// Number of input bytes that the reading ranks have taken.
    StdinTaken(u64),
    /// The node's part of the launch has ended.
    Report {
        /// Exit status or signal of each rank of the node, without ranks that never started.
        exits: Vec<(Rank, RankExit)>,
        /// Time from the first start to the end of the last rank.
        duration: Duration,
        /// Resources that the ranks used; `None` if unknown.
        usage: Option<Usage>,
    },
    /// A PMI message of a traced launch: one line with its line end.
    Trace(Bytes),
    /// Answers that the session has gathered from several nodes.
    Gathered {
        /// Number of the question.
        question: u64,
        /// Answers of the nodes.
        gathered: Gathered,
    },
    /// The ranks of several nodes have taken a piece of input.
    InputPassed {
        /// Offset of its first byte in the launch's input.
        offset: u64,
        /// Nodes that have not received it; `None` if all nodes have it.
        missed: Option<NodeSelection>,
    },
}

/// Encodes an event.
pub fn encode(event: &Event) -> proto::NodeEvent {
    let what = match event {
        Event::Mapped(hash) => What::Mapped(hash.0),
        Event::Started { rank, pid, at } => What::Started(proto::RankStarted {
            rank: rank.0,
            pid: *pid,
            program: Bytes::new(),
            at_us: microseconds(*at),
        }),
        Event::Output(output) => What::Output(proto::RankOutput {
            rank: output.rank.0,
            on_stderr: output.stream == Stream::Stderr,
            data: output.bytes.clone(),
        }),
        Event::Notice(notice) => What::Notice(proto::Notice { what: Some(encode_notice(notice)) }),
        Event::Exited { rank, exit, reached, ran } => {
            let exit = encode_exit(*rank, *exit, *reached);
            What::Exited(proto::RankExitStatus { ran_us: microseconds(*ran), ..exit })
        }
        Event::Spawned { job, failure } => What::Spawned(proto::Spawned {
            job_id: job.as_str().to_owned(),
            failure: failure.clone().unwrap_or_default(),
        }),
        Event::Progress { question, ranks, stacks } => What::Progress(proto::Progress {
            question: *question,
            ranks: ranks.iter().map(progress::encode).collect(),
            stacks: stacks.as_deref().map(|stacks| proto::RankStacks { stacks: encode_stacks(stacks) }),
        }),
        Event::LongWait { since } => What::LongWaitMs(milliseconds(*since)),
        Event::Waiting { ranks } => What::Waiting(proto::Waiting { ranks: encode_ranks(ranks) }),
        Event::Died(dead) => What::Died(death::encode(dead)),
        Event::Ending(first) => What::Ending(cause::encode(first)),
    };
    unnumbered(what)
}

/// Output credit, in bytes, that an event costs; 0 for rare events, which need no credit. Both ends of the report stream use this function.
pub fn cost(event: &proto::NodeEvent) -> usize {
    match &event.what {
        Some(What::Output(output)) => kept_cost(output.data.len()),
        Some(What::Trace(line)) => kept_cost(line.len()),
        _ => 0,
    }
}

/// Output credit, in bytes, that a decoded item costs; equal to [`cost`] of its message.
pub fn happening_cost(happening: &NodeHappening) -> usize {
    match happening {
        NodeHappening::Event(Event::Output(output)) => kept_cost(output.bytes.len()),
        NodeHappening::Trace(line) => kept_cost(line.len()),
        _ => 0,
    }
}

/// Largest cost of one event of a session, in bytes. A node may overdraw its credit by this amount.
pub const COST_MAX: usize = kept_cost(Output::PIECE_MAX);

/// Encodes an item of a node's report stream.
pub fn encode_happening(happening: &NodeHappening) -> proto::NodeEvent {
    let what = match happening {
        NodeHappening::Event(event) => return encode(event),
        NodeHappening::StdinTaken(bytes) => What::StdinTaken(*bytes),
        NodeHappening::Report { exits, duration, usage } => {
            let report = Report { exits: exits.clone(), duration: *duration, usage: *usage, ..Report::default() };
            return encode_report(&report);
        }
        NodeHappening::Trace(line) => What::Trace(line.clone()),
        NodeHappening::Gathered { question, gathered } => return encode_gathered(*question, gathered),
        NodeHappening::InputPassed { offset, missed } => {
            What::InputPassed(input::encode_passed(*offset, missed.as_ref()))
        }
    };
    unnumbered(what)
}

/// Encodes the answer to a question to several nodes.
pub fn encode_gathered(question: u64, gathered: &Gathered) -> proto::NodeEvent {
    unnumbered(What::Gathered(gathered::encode(question, gathered)))
}

/// Returns an event without a number.
fn unnumbered(what: What) -> proto::NodeEvent {
    proto::NodeEvent { what: Some(what), ..proto::NodeEvent::default() }
}

/// Encodes the end of a node's part of a launch. [`Event::Ending`] has reported its cause.
pub fn encode_report(report: &Report) -> proto::NodeEvent {
    let exits = report.exits.iter().map(|&(rank, exit)| encode_exit(rank, exit, None)).collect();
    let (duration_us, usage) = (microseconds(report.duration), report.usage.map(encode_usage));
    unnumbered(What::Report(proto::SessionReport { exits, duration_us, usage }))
}

fn microseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// Encodes the resource usage of ranks.
pub fn encode_usage(usage: Usage) -> proto::Usage {
    let Usage { user, system, peak_memory } = usage;
    proto::Usage { user_us: microseconds(user), system_us: microseconds(system), peak_memory_bytes: peak_memory }
}

/// Decodes the resource usage of ranks.
pub fn decode_usage(usage: proto::Usage) -> Usage {
    Usage {
        user: Duration::from_micros(usage.user_us),
        system: Duration::from_micros(usage.system_us),
        peak_memory: usage.peak_memory_bytes,
    }
}

/// Encodes the resource usage of a node's ranks.
pub fn encode_node_usage((node, usage): (NodeIndex, Usage)) -> proto::NodeUsage {
    proto::NodeUsage { node: node.0, usage: Some(encode_usage(usage)) }
}

/// Decodes the range of the nodes' resource usage; `None` if it is incomplete.
pub fn decode_usage_range(least: Option<proto::NodeUsage>, most: Option<proto::NodeUsage>) -> Option<UsageRange> {
    let of = |told: proto::NodeUsage| Some((NodeIndex(told.node), decode_usage(told.usage?)));
    Some(UsageRange { least: of(least?)?, most: of(most?)? })
}

/// Decodes an item of a node's report stream.
///
/// # Errors
/// Fails for an unknown item or notice, and for times over the limit.
pub fn decode(event: proto::NodeEvent) -> Result<NodeHappening, WireError> {
    Ok(NodeHappening::Event(match event.what.ok_or(WireError::Missing { what: "event" })? {
        What::Mapped(hash) => Event::Mapped(MapHash(hash)),
        What::Started(proto::RankStarted { rank, pid, at_us, .. }) => {
            Event::Started { rank: Rank(rank), pid, at: Duration::from_micros(at_us) }
        }
        What::Output(output) => Event::Output(Output {
            rank: Rank(output.rank),
            stream: if output.on_stderr { Stream::Stderr } else { Stream::Stdout },
            bytes: output.data,
        }),
        What::Exited(exit) => Event::Exited {
            rank: Rank(exit.rank),
            exit: decode_exit(&exit),
            reached: decode_reached(&exit),
            ran: Duration::from_micros(exit.ran_us),
        },
        What::Notice(notice) => {
            Event::Notice(decode_notice(notice.what.ok_or(WireError::Missing { what: "notice" })?)?)
        }
        What::Ending(first) => Event::Ending(cause::decode(first)?),
        What::Spawned(spawned) => Event::Spawned {
            job: job_id("the spawned job", &spawned.job_id)?,
            failure: Some(spawned.failure).filter(|failure| !failure.is_empty()),
        },
        What::Progress(progress) => Event::Progress {
            question: progress.question,
            ranks: progress.ranks.into_iter().map(progress::decode).collect(),
            stacks: progress.stacks.map(|stacks| decode_stacks(stacks.stacks)),
        },
        What::LongWaitMs(millis) => Event::LongWait { since: time("the time of a wait", millis)? },
        What::Waiting(waiting) => Event::Waiting { ranks: decode_ranks(waiting.ranks) },
        What::Died(dead) => Event::Died(death::decode(dead)?),
        What::StdinTaken(bytes) => return Ok(NodeHappening::StdinTaken(bytes)),
        What::Report(report) => {
            let exits = report.exits.iter().map(|exit| (Rank(exit.rank), decode_exit(exit))).collect();
            let (duration, usage) = (Duration::from_micros(report.duration_us), report.usage.map(decode_usage));
            return Ok(NodeHappening::Report { exits, duration, usage });
        }
        What::Trace(line) => return Ok(NodeHappening::Trace(line)),
        What::InputPassed(answer) => {
            return Ok(NodeHappening::InputPassed { offset: answer.offset, missed: input::decode_missed(answer)? });
        }
        What::Gathered(answer) => {
            let question = answer.question;
            return Ok(NodeHappening::Gathered { question, gathered: gathered::decode(answer)? });
        }
    }))
}

/// Encodes call stacks.
pub fn encode_stacks(stacks: &[RankStack]) -> Vec<proto::RankStack> {
    let stack = |stack: &RankStack| proto::RankStack { ranks: encode_ranks(&stack.ranks), text: stack.text.clone() };
    stacks.iter().map(stack).collect()
}

/// Decodes call stacks.
pub fn decode_stacks(stacks: Vec<proto::RankStack>) -> Vec<RankStack> {
    let stack = |stack: proto::RankStack| RankStack { ranks: decode_ranks(stack.ranks), text: stack.text };
    stacks.into_iter().map(stack).collect()
}

fn encode_notice(notice: &Notice) -> NoticeWhat {
    match notice {
        Notice::Silent { ranks, size, ended, after, library } => NoticeWhat::Silent(proto::SilentRanks {
            ranks: encode_ranks(ranks),
            size: *size,
            ended: *ended,
            after_ms: milliseconds(*after),
            library: library.as_ref().map(encode_library),
        }),
        Notice::Stuck { after, waiting, missing } => NoticeWhat::Stuck(proto::StuckStart {
            after_ms: milliseconds(*after),
            waiting: u32::try_from(*waiting).unwrap_or(u32::MAX),
            missing: encode_missing(missing),
        }),
        Notice::Leftover { pids } => NoticeWhat::Leftover(proto::Leftover { pids: pids.clone() }),
        Notice::Stacks { stacks } => NoticeWhat::Stacks(proto::RankStacks { stacks: encode_stacks(stacks) }),
        Notice::StdinClosed { rank } => NoticeWhat::StdinClosed(proto::StdinClosed { rank: rank.0 }),
        Notice::NotSpawned { rank, reason } => {
            NoticeWhat::NotSpawned(proto::NotSpawned { rank: rank.0, reason: reason.clone() })
        }
        Notice::NameRefused { rank, reason } => {
            NoticeWhat::NameRefused(proto::NameRefused { rank: rank.0, reason: reason.clone() })
        }
        Notice::ReleaseOverdue { rank, resource, within, killed } => {
            NoticeWhat::ReleaseOverdue(proto::ReleaseOverdue {
                rank: rank.0,
                resource: resource.clone(),
                within_ms: milliseconds(*within),
                killed: *killed,
            })
        }
        Notice::BoundElsewhere { rank, node, planned, seen } => NoticeWhat::BoundElsewhere(proto::BoundElsewhere {
            rank: rank.0,
            node: node.clone(),
            planned: planned.to_string(),
            seen: seen.to_string(),
        }),
        Notice::OutputHeld { rank, pid, program, after } => NoticeWhat::OutputHeld(proto::OutputHeld {
            rank: rank.0,
            pid: *pid,
            program: program.clone(),
            after_ms: milliseconds(*after),
        }),
        Notice::PmiMisuse { rank, observed } => {
            NoticeWhat::PmiMisuse(proto::PmiMisuse { rank: rank.0, observed: observed.clone() })
        }
        Notice::LimitTooHigh { node, resource, asked, hard } => {
            let asked = shell_limits::encode_soft(&SoftLimit { resource: *resource, value: *asked });
            NoticeWhat::LimitTooHigh(proto::LimitTooHigh { node: node.clone(), asked: Some(asked), hard: *hard })
        }
    }
}

fn decode_notice(notice: NoticeWhat) -> Result<Notice, WireError> {
    Ok(match notice {
        NoticeWhat::Silent(silent) => Notice::Silent {
            ranks: decode_ranks(silent.ranks),
            size: silent.size,
            ended: silent.ended,
            after: time("the time that ranks were silent", silent.after_ms)?,
            library: silent.library.map(decode_library).transpose()?,
        },
        NoticeWhat::Stuck(stuck) => Notice::Stuck {
            after: time("the time of a start-up", stuck.after_ms)?,
            waiting: stuck.waiting as usize,
            missing: decode_missing(stuck.missing),
        },
        NoticeWhat::Leftover(leftover) => Notice::Leftover { pids: leftover.pids },
        NoticeWhat::Stacks(stacks) => Notice::Stacks { stacks: decode_stacks(stacks.stacks) },
        NoticeWhat::StdinClosed(closed) => Notice::StdinClosed { rank: Rank(closed.rank) },
        NoticeWhat::NotSpawned(proto::NotSpawned { rank, reason }) => Notice::NotSpawned { rank: Rank(rank), reason },
        NoticeWhat::NameRefused(proto::NameRefused { rank, reason }) => {
            Notice::NameRefused { rank: Rank(rank), reason }
        }
        NoticeWhat::ReleaseOverdue(overdue) => Notice::ReleaseOverdue {
            rank: Rank(overdue.rank),
            resource: overdue.resource,
            within: time("the time of a release", overdue.within_ms)?,
            killed: overdue.killed,
        },
        NoticeWhat::BoundElsewhere(proto::BoundElsewhere { rank, node, planned, seen }) => {
            let cpus = |text: &str| text.parse().map_err(|_| wrong("a set of CPUs", text, "one such as 0-3,8"));
            Notice::BoundElsewhere { rank: Rank(rank), node, planned: cpus(&planned)?, seen: cpus(&seen)? }
        }
        NoticeWhat::OutputHeld(proto::OutputHeld { rank, pid, program, after_ms }) => {
            let after = time("the time for the rest of the output", after_ms)?;
            Notice::OutputHeld { rank: Rank(rank), pid, program, after }
        }
        NoticeWhat::PmiMisuse(proto::PmiMisuse { rank, observed }) => Notice::PmiMisuse { rank: Rank(rank), observed },
        NoticeWhat::LimitTooHigh(proto::LimitTooHigh { node, asked, hard }) => {
            let asked = asked.ok_or(WireError::Missing { what: "limit" })?;
            let SoftLimit { resource, value } = shell_limits::decode_soft(&asked)?;
            Notice::LimitTooHigh { node, resource, asked: value, hard }
        }
    })
}

fn encode_library(library: &MpiLibrary) -> proto::MpiLibrary {
    let family = match library.family {
        MpiFamily::Pmi => Family::Pmi,
        MpiFamily::Pmix => Family::Pmix,
        MpiFamily::Vendor => Family::Vendor,
    };
    proto::MpiLibrary { name: library.name.clone(), file: library.file.clone(), family: family.into() }
}

fn decode_library(library: proto::MpiLibrary) -> Result<MpiLibrary, WireError> {
    let family = match Family::try_from(library.family) {
        Ok(Family::Pmi) => MpiFamily::Pmi,
        Ok(Family::Pmix) => MpiFamily::Pmix,
        Ok(Family::Vendor) => MpiFamily::Vendor,
        Err(_) => return Err(wrong("the family of an MPI library", library.family, "0 to 2")),
    };
    Ok(MpiLibrary { name: library.name, file: library.file, family })
}
