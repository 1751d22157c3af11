//! One job as a PMIx server knows it: a namespace, its ranks on this node, and what all its ranks have committed.

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

/// Description by the host of a job that is to be served.
#[derive(Clone, Debug)]
pub struct Namespace {
    /// Its name: letters, digits, `_`, `-` and `.`. Who knows it may claim its ranks, so it must not be guessable.
    pub name: String,
    /// The job.
    pub job: Job,
    /// Index of this node among the job's nodes.
    pub node: NodeIndex,
    /// The names of the job's nodes, by node index.
    pub hosts: Vec<String>,
    /// Id of the allocation that it runs in, if there is one.
    pub allocation: Option<String>,
    /// Directory in which its ranks may keep files; they make it, and the host removes it at the end. `None` lets them choose.
    pub directory: Option<String>,
    /// The namespace and rank that spawned it, if one did.
    pub parent: Option<(String, Rank)>,
    /// What its ranks on this node are told of it.
    pub here: NodeFacts,
    /// The command line of its first program, for those who ask; without a NUL.
    pub command: Bytes,
    /// Ranks that have a name together.
    pub sets: Vec<ProcessSet>,
}

impl Namespace {
    /// A job on one node, which is called `host`, that no other job has spawned and of which no more is told.
    pub fn on_one_node(name: impl Into<String>, job: Job, host: impl Into<String>) -> Self {
        Self { node: NodeIndex(0), ..Self::elsewhere(name.into(), job, vec![host.into()]) }
    }

    /// A job without ranks on this node, whatever its own launch calls the node.
    fn elsewhere(name: String, job: Job, hosts: Vec<String>) -> Self {
        let (node, here) = (NodeIndex(u32::MAX), NodeFacts::default());
        let (allocation, directory, parent) = (None, None, None);
        Self { name, job, node, hosts, allocation, directory, parent, here, command: Bytes::new(), sets: Vec::new() }
    }

    /// The rank that spawned the job, as it is named on the wire.
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

/// Names a job within a server.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct JobIndex(pub usize);

/// A rank of this node, in whatever job.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Seat {
    /// Its job.
    pub job: JobIndex,
    /// Its position among the job's ranks on this node.
    pub local: LocalRank,
}

/// A job at work.
#[derive(Debug)]
pub(crate) struct JobState {
    pub(crate) namespace: Namespace,
    kind: Kind,
    pub(crate) ranks: Roster,
    /// Ranks of all nodes that have died, and that the others do without.
    pub(crate) deaths: Deaths,
    /// Number of collectives of all its ranks that are over.
    pub(crate) fences: u64,
    /// True once a rank of this node has finalized, or its process has ended: from then on others may wait for it in vain.
    pub(crate) has_left: bool,
    /// Files that ranks of this node want removed when they end, by local rank.
    clean_up: Vec<Vec<CleanUp>>,
    /// Data that ranks have committed, of this node or of others.
    pub(crate) data: HashMap<Rank, RankData>,
    /// The job's facts, per encoding that was asked for.
    facts: [Option<Bytes>; 2],
    /// The same with what its ranks on this node are told besides.
    facts_here: [Option<Bytes>; 2],
}

/// The jobs that a server knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Of this launch.
    Own,
    /// Of another launch: its nodes are not counted as those of this one.
    Met,
    /// A tool, which is a job by itself.
    Tool,
}

/// Data that one rank has committed.
#[derive(Debug, Default)]
pub(crate) struct RankData {
    /// For ranks of its node.
    pub(crate) local: BTreeMap<Bytes, Stored>,
    /// For all others.
    pub(crate) remote: BTreeMap<Bytes, Stored>,
    /// Keys of `remote` that a rank of this node has committed, or given another value, since the last fence that took its data to all
    /// nodes of the job.
    pub(crate) unspread: BTreeSet<Bytes>,
    /// The groups it is in: each context id, with the rank's own number of the group's communicator.
    groups: Vec<(u64, u64)>,
}

/// A value as it was committed.
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

    /// The form in which it goes to other nodes: behind the tag of its encoding.
    pub(crate) fn tagged(&self) -> Vec<u8> {
        [&[self.encoding as u8], &self.bytes[..]].concat()
    }

    /// Takes what came from another node; `None` if it cannot be read. It is read once before anybody relies on it.
    pub(crate) fn untag(bytes: &[u8]) -> Option<Self> {
        let (&tag, value) = bytes.split_first()?;
        let encoding = Encoding::ALL.into_iter().find(|&encoding| encoding as u8 == tag)?;
        Reader::new(encoding, value).skip(types::VALUE).ok()?;
        Some(Self { encoding, bytes: Bytes::copy_from_slice(value) })
    }
}

impl JobState {
    /// The most groups of a rank that are remembered.
    const GROUPS_MAX: usize = 1024;

    pub(crate) fn new(namespace: Namespace) -> Self {
        let ranks = Roster::new(namespace.job.placement.ranks_on(namespace.node));
        Self::with_ranks(namespace, Kind::Own, ranks)
    }

    /// A job of another launch.
    pub(crate) fn met(met: &MetJob) -> Self {
        let MetJob { namespace, job, hosts } = met.clone();
        Self::with_ranks(Namespace::elsewhere(namespace, job, hosts), Kind::Met, Roster::default())
    }

    /// A job of which nothing is known.
    pub(crate) fn none() -> Self {
        let id = JobId::new("none").expect("letters are allowed");
        let job = Job { placement: Placement::block(&[]), apps: Vec::new(), ..Job::on_one_node(id, 0) };
        Self::with_ranks(Namespace::elsewhere(String::new(), job, Vec::new()), Kind::Met, Roster::default())
    }

    /// A tool of a launch, under this name. It belongs to no node, for nothing is ever asked of it.
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

    /// Returns true if it is of another launch: everything known of its ranks came from a meeting, and no node can be asked.
    pub(crate) fn is_met(&self) -> bool {
        self.kind == Kind::Met
    }

    /// Returns true if it is of this launch.
    pub(crate) fn is_own(&self) -> bool {
        self.kind == Kind::Own
    }

    /// Returns true if it is a tool.
    pub(crate) fn is_tool(&self) -> bool {
        self.kind == Kind::Tool
    }

    /// The job's facts for ranks of other jobs; written at the first question.
    pub(crate) fn facts(&mut self, encoding: Encoding) -> Bytes {
        let (namespace, facts) = (&self.namespace, &mut self.facts[encoding as usize]);
        facts.get_or_insert_with(|| namespace.facts(Detail::EveryRank).encode(encoding).into()).clone()
    }

    /// The job's facts for its own ranks on this node; written at the first question.
    pub(crate) fn facts_here(&mut self, encoding: Encoding) -> Bytes {
        let (namespace, here) = (&self.namespace, &mut self.facts_here[encoding as usize]);
        // libpmix 4.2 and later, which have this encoding, load the topology in `PMIx_Init`: from what they were told by then, or by
        // looking at the whole node.
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

    /// The position of a rank among those of this node.
    pub(crate) fn local(&self, rank: Rank) -> Option<LocalRank> {
        self.ranks.local(rank)
    }

    /// Files that a rank of this node wants removed.
    pub(crate) fn clean_up(&mut self, local: LocalRank) -> Option<&mut Vec<CleanUp>> {
        self.clean_up.get_mut(local.index())
    }
}

impl JobState {
    /// Returns true while nobody can do without what a rank was to bring: see [`pmi_core::server`].
    pub(crate) fn misses_the_dead(&self) -> bool {
        self.fences == 0 && !self.data.is_empty()
    }

    /// Returns true for a rank of this node that collectives go on without.
    pub(crate) fn can_do_without(&self, local: LocalRank) -> bool {
        self.ranks[local].died.is_some() && !self.misses_the_dead()
    }

    /// The groups of a rank: context ids with its own numbers.
    pub(crate) fn group_ids(&self, rank: Rank) -> &[(u64, u64)] {
        self.data.get(&rank).map_or(&[], |data| &data.groups)
    }

    /// The rank is in one more group. The oldest is forgotten when there are very many: clients ask right after the construction.
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
