//! Constant part of a job's memory: header, map of the ranks, nodes, attributes. The writer writes all of it before the first rank
//! starts.

use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use crate::layout::{
    ATTRIBUTE_BYTES, HEADER_WORDS, MAGIC, MAJOR, MINOR, NODE_BYTES, ORDER_MARK, RANK_BYTES, State, TEXT_MAX, WORD, at,
    join, words,
};

/// Facts about a job, at the start of its memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobFacts {
    /// Id of the job, also the name of its key-value space.
    pub job_id: String,
    /// Index of the node of the ranks that read this memory.
    pub node: u32,
    /// Number of programs.
    pub programs: u32,
    /// Value of `MPI_UNIVERSE_SIZE`, if there is one.
    pub universe_size: Option<u32>,
    /// All ranks of the job, in order.
    pub ranks: Vec<RankFacts>,
    /// All nodes of the launch, by index.
    pub nodes: Vec<NodeFacts>,
    /// Names and values of facts that PMI clients can query.
    pub attributes: Vec<(String, String)>,
}

/// Location of a rank.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RankFacts {
    /// Index of the rank's node.
    pub node: u32,
    /// Position among the job's ranks on the node.
    pub local_rank: u32,
    /// Position among the launch's ranks on the node.
    pub node_rank: u32,
    /// Value of `MPI_APPNUM`; -1 without one.
    pub appnum: i32,
    /// CPUs that the rank is bound to, as a list such as `0-3,8`; `None` for an unbound rank, and for a rank of another node.
    pub cpus: Option<String>,
}

/// Node of the launch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeFacts {
    /// Name of the node.
    pub name: String,
    /// Address of the node's session, as `host:port`; `None` if no other node needs it.
    pub address: Option<String>,
}

impl JobFacts {
    /// Initial bytes of the memory; the writer appends pairs after them.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut image = Image::default();
        image.set(at::MAGIC, u64::from_ne_bytes(MAGIC));
        image.set(at::VERSION, version());
        image.set(at::HEADER, (HEADER_WORDS * WORD) as u64);
        image.set(at::RANKS_NODES, join(self.ranks.len() as u32, self.nodes.len() as u32));
        let locals = self.ranks.iter().filter(|rank| rank.node == self.node).count();
        image.set(at::NODE_LOCALS, join(self.node, locals as u32));
        image.set(at::PROGRAMS_UNIVERSE, join(self.programs, self.universe_size.unwrap_or(0)));
        let ranks = image.table(at::RANK_TABLE, RANK_BYTES, self.ranks.len());
        let nodes = image.table(at::NODE_TABLE, NODE_BYTES, self.nodes.len());
        let attributes = image.table(at::ATTRIBUTE_TABLE, ATTRIBUTE_BYTES, self.attributes.len());
        let job_id = image.text(&self.job_id);
        image.set(at::JOB_ID, job_id);
        self.encode_ranks(&mut image, ranks);
        self.encode_nodes(&mut image, nodes);
        for (entry, (key, value)) in (attributes..).step_by(ATTRIBUTE_BYTES as usize / WORD).zip(&self.attributes) {
            let (key, value) = (image.text(key), image.text(value));
            image.set(entry, key);
            image.set(entry + 1, value);
        }
        image.set(at::STATE, State::Unasked as u64);
        let used = image.bytes.len() as u64;
        image.set(at::USED, used);
        image.bytes
    }

    fn encode_ranks(&self, image: &mut Image, first: usize) {
        for (entry, rank) in (first..).step_by(RANK_BYTES as usize / WORD).zip(&self.ranks) {
            image.set(entry, join(rank.node, rank.local_rank));
            image.set(entry + 1, join(rank.node_rank, rank.appnum.cast_unsigned()));
            if let Some(cpus) = &rank.cpus {
                let cpus = image.text(cpus);
                image.set(entry + 2, cpus);
            }
        }
    }

    fn encode_nodes(&self, image: &mut Image, first: usize) {
        let mut ranks = vec![0; self.nodes.len()];
        for rank in &self.ranks {
            if let Some(ranks) = ranks.get_mut(rank.node as usize) {
                *ranks += 1;
            }
        }
        for ((entry, node), ranks) in (first..).step_by(NODE_BYTES as usize / WORD).zip(&self.nodes).zip(ranks) {
            let name = image.text(&node.name);
            image.set(entry, name);
            if let Some(address) = &node.address {
                let address = image.text(address);
                image.set(entry + 1, address);
            }
            image.set(entry + 2, join(ranks, 0));
        }
    }
}

/// Second word of every memory of this version.
fn version() -> u64 {
    let [a, b] = MAJOR.to_ne_bytes();
    let [c, d] = MINOR.to_ne_bytes();
    join(u32::from_ne_bytes([a, b, c, d]), ORDER_MARK)
}

/// Initial bytes of the memory under construction.
struct Image {
    bytes: Vec<u8>,
}

impl Default for Image {
    fn default() -> Self {
        Self { bytes: vec![0; HEADER_WORDS * WORD] }
    }
}

impl Image {
    fn set(&mut self, at: usize, word: u64) {
        self.bytes[at * WORD..(at + 1) * WORD].copy_from_slice(&word.to_ne_bytes());
    }

    /// Appends an empty table, writes its place into the header, and returns its first word.
    fn table(&mut self, header: usize, entry: u32, count: usize) -> usize {
        let first = self.bytes.len();
        self.bytes.resize(first + entry as usize * count, 0);
        self.set(header, first as u64);
        self.set(header + 1, join(entry, count as u32));
        first / WORD
    }

    /// Appends a text and returns its offset. Cuts a text that is too long for readers.
    fn text(&mut self, text: &str) -> u64 {
        let text = &text.as_bytes()[..text.len().min(TEXT_MAX)];
        let first = self.bytes.len();
        self.bytes.extend_from_slice(&(text.len() as u64).to_ne_bytes());
        self.bytes.extend_from_slice(text);
        // A zero byte follows, for readers in C.
        self.bytes.resize(first + WORD + words(text.len() + 1) * WORD, 0);
        first as u64
    }
}
