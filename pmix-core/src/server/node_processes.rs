//! Processes of a job on one node: the data for ranks that query them, and its encoding between nodes.

use std::collections::BTreeMap;

use bytes::Bytes;
use pmi_core::ids::{NodeIndex, Rank};
use pmi_core::services::{JobProcesses, ProcessState};

use crate::namespace::JobIndex;
use crate::wire::reader::Reader;
use crate::wire::writer::Writer;
use crate::wire::{Encoding, WireError, status, types};

/// Processes by job and node.
pub(super) type Seen = BTreeMap<(JobIndex, NodeIndex), NodeProcesses>;

/// Processes of a job on one node, and the memory there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NodeProcesses {
    /// Bytes of memory of the node; 0 if unknown.
    pub(super) node_memory: u64,
    /// Bytes of memory of the server's process; 0 if unknown.
    pub(super) server_memory: u64,
    /// Seconds until the time limit. All nodes have the same limit, so that no node requests it from another.
    pub(super) seconds_left: Option<u32>,
    pub(super) ranks: Vec<ProcessOfRank>,
}

/// Process of one rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ProcessOfRank {
    pub(super) rank: Rank,
    pub(super) pid: u32,
    /// Without a NUL.
    pub(super) program: Bytes,
    /// State of the process, as a number of PMIx.
    pub(super) state: u8,
    pub(super) memory: u64,
}

impl NodeProcesses {
    /// Converts the processes from the host; `is_connected` returns whether a rank is connected to its server.
    pub(super) fn new(seen: &JobProcesses, is_connected: impl Fn(Rank) -> bool) -> Self {
        let ranks = seen.ranks.iter().map(|process| ProcessOfRank {
            rank: process.rank,
            pid: process.pid,
            program: process.program.iter().copied().filter(|&byte| byte != 0).collect(),
            state: match process.state {
                ProcessState::Running if is_connected(process.rank) => types::PROC_STATE_CONNECTED,
                ProcessState::Running => types::PROC_STATE_RUNNING,
                ProcessState::Ended => types::PROC_STATE_TERMINATED,
                ProcessState::Failed => types::PROC_STATE_TERM_NON_ZERO,
                ProcessState::Killed => types::PROC_STATE_ABORTED_BY_SIG,
            },
            memory: process.memory,
        });
        let JobProcesses { node_memory, server_memory, seconds_left, .. } = *seen;
        Self { node_memory, server_memory, seconds_left, ranks: ranks.collect() }
    }

    /// Encodes the answer to another node's server.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Writer::new(Encoding::Flex);
        out.raw(&status::SUCCESS.to_be_bytes());
        out.u64(self.node_memory);
        out.u64(self.server_memory);
        out.size(self.ranks.len() as u64);
        for process in &self.ranks {
            out.u32(process.rank.0);
            out.u32(process.pid);
            out.text(Some(&process.program));
            out.byte(process.state);
            out.u64(process.memory);
        }
        out.into_bytes()
    }

    /// Decodes the answer of another node's server; `None` for a failure or a malformed answer.
    pub(super) fn decode(answer: &[u8]) -> Option<Self> {
        let (code, rest) = answer.split_first_chunk()?;
        if i32::from_be_bytes(*code) != status::SUCCESS {
            return None;
        }
        Self::read(&mut Reader::new(Encoding::Flex, rest)).ok()
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        let (node_memory, server_memory) = (reader.u64()?, reader.u64()?);
        let count = reader.size()?;
        let count = reader.checked_count(i64::try_from(count).unwrap_or(i64::MAX))?;
        let process = |_| {
            Ok(ProcessOfRank {
                rank: Rank(reader.u32()?),
                pid: reader.u32()?,
                program: Bytes::copy_from_slice(reader.required_text("a program")?),
                state: reader.byte()?,
                memory: reader.u64()?,
            })
        };
        let ranks = (0..count).map(process).collect::<Result<_, WireError>>()?;
        Ok(Self { node_memory, server_memory, seconds_left: None, ranks })
    }

    /// Returns the mean memory of the ranks that use any, in bytes.
    pub(super) fn mean_memory(&self) -> u64 {
        let used = || self.ranks.iter().map(|process| process.memory).filter(|&memory| memory > 0);
        used().fold(0_u64, u64::saturating_add).checked_div(used().count() as u64).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use pmi_core::services::RankProcess;

    use super::*;

    #[test]
    fn processes_survive_the_way_between_nodes() {
        let process = |rank, state, memory| RankProcess {
            rank: Rank(rank),
            pid: 1000 + rank,
            program: Bytes::from_static(b"/bin/a\0b"),
            state,
            memory,
        };
        let seen = JobProcesses {
            node_memory: 1 << 34,
            server_memory: 1 << 20,
            seconds_left: None,
            ranks: vec![
                process(0, ProcessState::Running, 4096),
                process(2, ProcessState::Running, 8192),
                process(4, ProcessState::Ended, 0),
                process(6, ProcessState::Failed, 0),
                process(8, ProcessState::Killed, 0),
            ],
        };
        let processes = NodeProcesses::new(&seen, |rank| rank == Rank(2));
        let states: Vec<u8> = processes.ranks.iter().map(|process| process.state).collect();
        assert_eq!(states, [5, 6, 20, 62, 54], "numbers of pmix_common.h");
        assert_eq!((processes.mean_memory(), &processes.ranks[0].program[..]), (6144, &b"/bin/ab"[..]));
        let encoded = processes.encode();
        assert_eq!(NodeProcesses::decode(&encoded), Some(processes));
        for length in 0..encoded.len() {
            assert_eq!(NodeProcesses::decode(&encoded[..length]), None, "{length} bytes");
        }
        assert_eq!(NodeProcesses::decode(&status::NOT_FOUND.to_be_bytes()), None);
    }
}
