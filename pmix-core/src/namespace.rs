//! One job of a PMIx server: a namespace, its ranks on this node, and the committed data of all its ranks.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use bytes::Bytes;
use pmi_core::deaths::Deaths;
use pmi_core::ids::{JobId, LocalRank, NodeIndex, Rank};
use pmi_core::job::{Job, Placement};
use pmi_core::roster::Roster;
use pmi_core::services::MetJob;

use crate::clean_up::CleanUp;
use crate::job_info::{Detail, JobFacts};
use crate::node_facts::{NodeFacts, TOPOLOGY};
use crate::process_set::ProcessSet;
use crate::wire::Encoding;
use crate::wire::reader::{Proc, Reader};
use crate::wire::reply::Encoded;
use crate::wire::types;
use crate::wire::value::Value;
use crate::wire::writer::Writer;

/// The host's description of a job to serve.
#[derive(Clone, Debug)]
pub struct Namespace {
    /// Its name: letters, digits, `_`, `-` and `.`. Any process with the name may claim its ranks, so the name must not be guessable.
    pub name: String,
    /// The job.
    pub job: Job,
    /// Index of this node among the job's nodes.
    pub node: NodeIndex,
    /// The names of the job's nodes, by node index.
    pub hosts: Vec<String>,
    /// Id of its allocation, if any.
    pub allocation: Option<String>,
    /// Directory for files of its ranks. The ranks create it, and the host removes it at the end. With `None` the ranks choose one.
    pub directory: Option<String>,
    /// The namespace and rank that spawned it, if any.
    pub parent: Option<(String, Rank)>,
    /// Facts for its ranks on this node.
    pub here: NodeFacts,
    /// The command line of its first program, for queries; without a NUL.
    pub command: Bytes,
    /// Named sets of its ranks.
    pub sets: Vec<ProcessSet>,
}

impl Namespace {
    /// Creates a job on the one node `host`, without a spawner and without further facts.
    pub fn on_one_node(name: impl Into<String>, job: Job, host: impl Into<String>) -> Self {
        Self { node: NodeIndex(0), ..Self::elsewhere(name.into(), job, vec![host.into()]) }
    }

    /// Creates a job without ranks on this node. Its own launch may have another name for this node.
    fn elsewhere(name: String, job: Job, hosts: Vec<String>) -> Self {
        let (node, here) = (NodeIndex(u32::MAX), NodeFacts::default());
        let (allocation, directory, parent) = (None, None, None);
        Self { name, job, node, hosts, allocation, directory, parent, here, command: Bytes::new(), sets: Vec::new() }
    }

    /// The rank that spawned the job, in its wire format.
    pub(crate) fn parent_proc(&self) -> Option<Proc<'_>> {
        self.parent.as_ref().map(|(name, rank)| Proc { namespace: name.as_bytes(), rank: rank.0 })
    }

    /// The facts about the job.
    pub(crate) fn facts(&self, detail: Detail) -> JobFacts<'_> {
        let Self { job, node, hosts, directory, here, sets, .. } = self;
        let (directory, parent) = (directory.as_deref(), self.parent_proc());
        JobFacts { job, hosts, directory, parent, here: (*node, &here.places), sets, detail }
    }
}

/// Number of a job in a server.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct JobIndex(pub usize);

/// A rank of this node, in any job.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Seat {
    /// Its job.
    pub job: JobIndex,
    /// Its position among the job's ranks on this node.
    pub local: LocalRank,
}

/// A served job.
#[derive(Debug)]
pub(crate) struct JobState {
    pub(crate) namespace: Namespace,
    kind: Kind,
    pub(crate) ranks: Roster,
    /// Dead ranks of all nodes, without which the other ranks continue.
    pub(crate) deaths: Deaths,
    /// Number of complete collectives of all its ranks.
    pub(crate) fences: u64,
    /// True after a rank of this node has finalized, or its process has ended: other ranks may then wait for it in vain.
    pub(crate) has_left: bool,
    /// Files to remove at the end of ranks of this node, by local rank.
    clean_up: Vec<Vec<CleanUp>>,
    /// Committed data of ranks, of this node or of other nodes.
    pub(crate) data: HashMap<Rank, RankData>,
    /// Encoded facts about the job, for each requested encoding.
    facts: [Option<Bytes>; 2],
    /// The same with the additional facts for its ranks on this node.
    facts_here: [Option<Bytes>; 2],
}

/// Origin of a job in a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A job of this launch.
    Own,
    /// A job of another launch: its node numbers are not the numbers of this launch.
    Met,
    /// A tool, which is a separate job.
    Tool,
}

/// Committed data of one rank.
#[derive(Debug, Default)]
pub(crate) struct RankData {
    /// For ranks of its node.
    pub(crate) local: BTreeMap<Bytes, Stored>,
    /// For all other ranks.
    pub(crate) remote: BTreeMap<Bytes, Stored>,
    /// Keys of `remote` that a rank of this node has committed or changed since the last fence that distributed its data to all nodes of
    /// the job.
    pub(crate) unspread: BTreeSet<Bytes>,
    /// The groups of the rank: each context id, with the rank's own number of the group's communicator.
    groups: Vec<(u64, u64)>,
}

/// A value in its committed encoding.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    pub(crate) encoding: Encoding,
    /// Type code and value.
    pub(crate) bytes: Bytes,
}

impl Stored {
    pub(crate) fn encoded(&self) -> Encoded<'_> {
        Encoded { encoding: self.encoding, bytes: &self.bytes }
    }

    /// Returns the form for other nodes: the value after the tag of its encoding.
    pub(crate) fn tagged(&self) -> Vec<u8> {
        [&[self.encoding as u8], &self.bytes[..]].concat()
    }

    /// Decodes a value from another node; `None` if it is malformed. The value is checked once, before any use.
    pub(crate) fn untag(bytes: &[u8]) -> Option<Self> {
        let (&tag, value) = bytes.split_first()?;
        let encoding = Encoding::ALL.into_iter().find(|&encoding| encoding as u8 == tag)?;
        Reader::new(encoding, value).skip(types::VALUE).ok()?;
        Some(Self { encoding, bytes: Bytes::copy_from_slice(value) })
    }
}

impl JobState {
    /// Maximum number of stored groups of a rank.
    const GROUPS_MAX: usize = 1024;

    pub(crate) fn new(namespace: Namespace) -> Self {
        let ranks = Roster::new(namespace.job.placement.ranks_on(namespace.node));
        Self::with_ranks(namespace, Kind::Own, ranks)
    }

    /// Creates a job of another launch.
    pub(crate) fn met(met: &MetJob) -> Self {
        let MetJob { namespace, job, hosts } = met.clone();
        Self::with_ranks(Namespace::elsewhere(namespace, job, hosts), Kind::Met, Roster::default())
    }

    /// Creates a job without facts.
    pub(crate) fn none() -> Self {
        let id = JobId::new("none").expect("letters are allowed");
        let job = Job { placement: Placement::block(&[]), apps: Vec::new(), ..Job::on_one_node(id, 0) };
        Self::with_ranks(Namespace::elsewhere(String::new(), job, Vec::new()), Kind::Met, Roster::default())
    }

    /// Creates a tool of a launch with this name. It belongs to no node, because no node ever sends it a question.
    pub(crate) fn tool(name: String, launch: JobId) -> Self {
        let namespace = Namespace::elsewhere(name, Job::on_one_node(launch, 1), Vec::new());
        Self::with_ranks(namespace, Kind::Tool, Roster::new([Rank(0)]))
    }

    fn with_ranks(namespace: Namespace, kind: Kind, ranks: Roster) -> Self {
        let clean_up = vec![Vec::new(); ranks.len()];
        let (deaths, data) = (Deaths::default(), HashMap::new());
        let (facts, facts_here) = ([None, None], [None, None]);
        Self { namespace, kind, ranks, deaths, fences: 0, has_left: false, clean_up, data, facts, facts_here }
    }

    /// Returns true if it belongs to another launch: all data of its ranks comes from a meeting, and no node can be asked.
    pub(crate) fn is_met(&self) -> bool {
        self.kind == Kind::Met
    }

    /// Returns true if it belongs to this launch.
    pub(crate) fn is_own(&self) -> bool {
        self.kind == Kind::Own
    }

    /// Returns true if it is a tool.
    pub(crate) fn is_tool(&self) -> bool {
        self.kind == Kind::Tool
    }

    /// The job's facts for ranks of other jobs; encoded at the first request.
    pub(crate) fn facts(&mut self, encoding: Encoding) -> Bytes {
        let (namespace, facts) = (&self.namespace, &mut self.facts[encoding as usize]);
        facts.get_or_insert_with(|| namespace.facts(Detail::EveryRank).encode(encoding).into()).clone()
    }

    /// The job's facts for its own ranks on this node; encoded at the first request.
    pub(crate) fn facts_here(&mut self, encoding: Encoding) -> Bytes {
        let (namespace, here) = (&self.namespace, &mut self.facts_here[encoding as usize]);
        // libpmix 4.2 and later, which have this encoding, load the topology in `PMIx_Init`: from the facts received by then, or by
        // discovery of the whole node.
        let topology = namespace.here.topology.as_ref().filter(|_| encoding == Encoding::Flex);
        here.get_or_insert_with(|| {
            let mut out = Writer::new(encoding);
            out.raw(&namespace.facts(Detail::ThisNode).encode(encoding));
            if let Some(topology) = topology {
                out.kval(TOPOLOGY, &Value::Text(topology));
            }
            out.into_bytes().into()
        })
        .clone()
    }

    /// The position of a rank among the ranks of this node.
    pub(crate) fn local(&self, rank: Rank) -> Option<LocalRank> {
        self.ranks.local(rank)
    }

    /// Files to remove at the end of a rank of this node.
    pub(crate) fn clean_up(&mut self, local: LocalRank) -> Option<&mut Vec<CleanUp>> {
        self.clean_up.get_mut(local.index())
    }
}

impl JobState {
    /// Returns true while all ranks need each other's data: see [`pmi_core::server`].
    pub(crate) fn misses_the_dead(&self) -> bool {
        self.fences == 0 && !self.data.is_empty()
    }

    /// Returns true for a dead rank of this node that collectives do not wait for.
    pub(crate) fn can_do_without(&self, local: LocalRank) -> bool {
        self.ranks[local].died.is_some() && !self.misses_the_dead()
    }

    /// Returns the other node of a rank; `None` if the rank is on this node.
    pub(crate) fn other_node(&self, rank: Rank) -> Option<NodeIndex> {
        self.namespace.job.placement.node_of(rank).filter(|&node| node != self.namespace.node)
    }

    /// Returns true for a rank of this node that commits nothing more.
    pub(crate) fn is_gone(&self, rank: Rank) -> bool {
        self.local(rank).is_some_and(|local| self.ranks[local].is_gone())
    }

    /// The committed values of a rank for ranks of this node, if it has committed any value.
    pub(crate) fn values(&self, rank: Rank) -> Option<&BTreeMap<Bytes, Stored>> {
        let data = self.data.get(&rank)?;
        Some(if self.local(rank).is_some() { &data.local } else { &data.remote })
    }

    /// Returns true if ranks of this node can read a key of a rank; `None` means any key.
    pub(crate) fn has_value(&self, rank: Rank, key: Option<&[u8]>) -> bool {
        self.values(rank).is_some_and(|values| key.map_or(!values.is_empty(), |key| values.contains_key(key)))
    }

    /// The groups of a rank: context ids with the rank's own numbers.
    pub(crate) fn group_ids(&self, rank: Rank) -> &[(u64, u64)] {
        self.data.get(&rank).map_or(&[], |data| &data.groups)
    }

    /// Adds a group of the rank. Above the limit the oldest group is removed: clients send their request right after the construction.
    pub(crate) fn add_group(&mut self, rank: Rank, context: u64, number: u64) {
        let groups = &mut self.data.entry(rank).or_default().groups;
        if groups.iter().any(|&(known, _)| known == context) {
            return;
        }
        if groups.len() >= Self::GROUPS_MAX {
            groups.remove(0);
        }
        groups.push((context, number));
    }
}
