//! Commands to a node's part of a running launch.

use bytes::Bytes;
use pmi_core::ids::{NodeIndex, Rank};
use pmi_transport::proto::v1 as proto;
use proto::node_command::What;
use rank_spawner::CpuBind;

use super::{WireError, death, gathered, input, job, job_id, terminal, wrong};
use crate::gathered::GatherOrder;
use crate::input_piece::InputPiece;
use crate::rank_ranges::RankRanges;
use crate::session_io::Control;
use crate::spawn::SpawnOrder;

/// A command to a node, by its receiver.
#[derive(Debug)]
#[non_exhaustive]
pub enum Command {
    /// Request to the session.
    Control(Control),
    /// Question to the sessions of several nodes. This node is the first of them. The answer repeats the number.
    Gather {
        /// Number of the question.
        question: u64,
        /// The question.
        order: GatherOrder,
    },
    /// Input for the ranks that read it.
    Stdin(Bytes),
    /// End of the input.
    StdinEnd,
    /// Input for the ranks of several nodes. This node is the first of them.
    Input(InputPiece),
    /// Grant of this number of bytes of output credit.
    OutputCredit(u64),
}

/// Decodes a command of a launch on `nodes` nodes.
///
/// # Errors
/// Fails for an unknown command, for ranges without ranks or nodes, and for a spawn with inconsistent parts.
pub fn decode(command: proto::NodeCommand, nodes: usize) -> Result<Command, WireError> {
    Ok(match command.what.ok_or(WireError::Missing { what: "command" })? {
        What::Signal(signal) => Command::Control(Control::Signal(signal)),
        What::SignalRanks(proto::SignalRanks { signal, ranks }) => {
            Command::Control(Control::SignalRanks(signal, decode_ranges(&ranks)?))
        }
        What::ResizeTerminal(size) => Command::Control(Control::ResizeTerminal(terminal::decode_size(&size))),
        What::End(signal) => Command::Control(Control::End(signal)),
        What::Kill(signal) => Command::Control(Control::Kill(signal)),
        What::GiveUp(proto::Nothing {}) => Command::Control(Control::GiveUp),
        What::AskProgress(question) => Command::Control(Control::AskProgress(question)),
        What::AskUsage(question) => Command::Control(Control::AskUsage(question)),
        What::AskStacks(question) => Command::Control(Control::AskStacks(question)),
        What::Release(proto::Nothing {}) => Command::Control(Control::Release),
        What::LookAtStacks(proto::RankSelection { ranks }) => {
            Command::Control(Control::LookAtStacks(decode_ranges(&ranks)?))
        }
        What::Deaths(deaths) => Command::Control(Control::Deaths(death::decode_all(deaths)?)),
        What::CutOff(node) => Command::Control(Control::CutOff(NodeIndex(node))),
        What::Spawn(order) => Command::Control(Control::Spawn(spawn(order, nodes)?)),
        What::Disown(job) => Command::Control(Control::Disown(job_id("the job to end", &job)?)),
        What::JobOver(job) => Command::Control(Control::JobOver(job_id("the job that is over", &job)?)),
        What::Gather(proto::Gather { question, order }) => {
            Command::Gather { question, order: gathered::decode_order(order, nodes)? }
        }
        What::Stdin(bytes) => Command::Stdin(bytes),
        What::StdinEnd(proto::Nothing {}) => Command::StdinEnd,
        What::Input(piece) => Command::Input(input::decode(piece, nodes)?),
        What::OutputCredit(bytes) => Command::OutputCredit(bytes),
        // The agent answers this command with the session's help.
        What::Resume(_) => {
            return Err(wrong("a command to a session", "the order to resume", "one that concerns its ranks"));
        }
    })
}

/// Decodes a selection of ranks.
///
/// # Errors
/// Fails like [`RankRanges::new`].
pub fn decode_ranges(ranges: &[proto::RankRange]) -> Result<RankRanges, WireError> {
    let ends: Vec<_> = ranges.iter().map(|range| (range.first, range.last)).collect();
    Ok(RankRanges::new(&ends)?)
}

/// Encodes a selection of ranks.
pub fn encode_ranges(ranges: &RankRanges) -> Vec<proto::RankRange> {
    ranges.ends().map(|(first, last)| proto::RankRange { first, last }).collect()
}

fn spawn(order: proto::SpawnOrder, nodes: usize) -> Result<SpawnOrder, WireError> {
    let job = job::decode(order.job.ok_or(WireError::Missing { what: "job" })?, nodes)?;
    Ok(SpawnOrder {
        apps: job::decode_apps(order.apps, &job)?,
        job,
        parent_rank: Rank(order.parent_rank),
        first_shown: Rank(order.first_shown),
        cpu_bind: if order.cpu_bind.is_empty() { CpuBind::None } else { order.cpu_bind.parse()? },
    })
}

/// Encodes a spawn order.
pub fn encode_spawn(order: &SpawnOrder) -> proto::SpawnOrder {
    proto::SpawnOrder {
        job: Some(job::encode(&order.job)),
        apps: order.apps.iter().map(job::encode_app).collect(),
        parent_rank: order.parent_rank.0,
        first_shown: order.first_shown.0,
        cpu_bind: if order.cpu_bind == CpuBind::None { String::new() } else { order.cpu_bind.to_string() },
    }
}
