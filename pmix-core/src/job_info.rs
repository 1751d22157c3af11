//! The facts about a job that a client requires first, and their keys.
//!
//! The facts are the same for every rank of the job on a node, so they are encoded once for each encoding. For ranks on other nodes they
//! hold only the node, in one line for each node. Further facts of such a rank are sent on request ([`JobFacts::of_rank`]). Otherwise
//! each rank of a large job would receive and store a hundred bytes for each rank.

use pmi_core::ids::{LocalRank, NodeIndex, Rank};
use pmi_core::job::Job;

use crate::node_facts::BoundPlace;
use crate::process_set::ProcessSet;
use crate::wire::Encoding;
use crate::wire::reader::Proc;
use crate::wire::value::{Info, Value};
use crate::wire::writer::Writer;

/// Sources of the facts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JobFacts<'a> {
    pub(crate) job: &'a Job,
    /// The names of the job's nodes, by node index.
    pub(crate) hosts: &'a [String],
    /// Directory for files of its ranks.
    pub(crate) directory: Option<&'a str>,
    /// Rank that spawned the job, if any.
    pub(crate) parent: Option<Proc<'a>>,
    /// The node of the receiving ranks, with the places of its ranks.
    pub(crate) here: (NodeIndex, &'a [Option<BoundPlace>]),
    pub(crate) sets: &'a [ProcessSet],
    pub(crate) detail: Detail,
}

/// Facts about ranks that are sent without a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Detail {
    /// All facts of every rank: for ranks of other jobs.
    EveryRank,
    /// All facts of the ranks of this node, and the nodes of all other ranks: for the job's own ranks.
    ThisNode,
}

impl<'a> JobFacts<'a> {
    /// All facts, as a sequence of keys and values.
    pub(crate) fn encode(&self, encoding: Encoding) -> Vec<u8> {
        let mut out = Writer::new(encoding);
        let nodes = self.nodes();
        self.job_level(&mut out, &nodes);
        let is_mapped = self.detail == Detail::ThisNode && nodes.len() > 1;
        for (node, ranks) in &nodes {
            self.node_level(&mut out, (*node, ranks), is_mapped);
        }
        if is_mapped {
            // After the numbers of the nodes: libpmix identifies nodes by their names from then on.
            self.map(&mut out, &nodes);
        }
        self.app_level(&mut out);
        if !self.sets.is_empty() {
            self.set_level(&mut out);
        }
        let told = |node: &NodeIndex| !is_mapped || *node == self.here.0;
        for (node, ranks) in nodes.iter().filter(|(node, _)| told(node)) {
            for (&rank, local) in ranks.iter().zip(0..) {
                self.rank_level(&mut out, rank, *node, LocalRank(local));
            }
        }
        out.into_bytes()
    }

    /// The nodes with ranks of the job, and these ranks. They need not be all nodes of its launch. A node keeps its number in all jobs of
    /// a launch.
    fn nodes(&self) -> Vec<(NodeIndex, Vec<Rank>)> {
        self.job.placement.ranks_by_node().into_iter().collect()
    }

    fn host(&self, node: NodeIndex) -> &'a str {
        self.hosts.get(node.index()).map_or("localhost", String::as_str)
    }

    fn job_level(&self, out: &mut Writer, nodes: &[(NodeIndex, Vec<Rank>)]) {
        let size = self.job.size();
        let hosts: Vec<&str> = nodes.iter().map(|(node, _)| self.host(*node)).collect();
        out.kval("pmix.num.nodes", &Value::U32(nodes.len() as u32));
        out.kval("pmix.nlist", &Value::Text(hosts.join(",").as_bytes()));
        out.kval("pmix.job.size", &Value::U32(size));
        out.kval("pmix.max.size", &Value::U32(size));
        out.kval("pmix.univ.size", &Value::U32(self.job.universe_size.unwrap_or(size)));
        out.kval("pmix.job.napps", &Value::U32(self.job.programs().len() as u32));
        if let Some(directory) = self.directory {
            out.kval("pmix.tmpdir", &Value::Text(directory.as_bytes()));
            out.kval("pmix.nsdir", &Value::Text(format!("{directory}/{}", self.job.id).as_bytes()));
            out.kval("pmix.tdir.rmclean", &Value::Bool(true));
        }
        if let Some(parent) = self.parent {
            out.kval("pmix.spawned", &Value::Bool(true));
            out.kval("pmix.parent", &Value::Proc(parent));
        }
    }

    fn node_level(&self, out: &mut Writer, (node, ranks): (NodeIndex, &[Rank]), is_mapped: bool) {
        let Some(leader) = ranks.first() else { return };
        let mut infos = vec![
            Info::new("pmix.hname", Value::Text(self.host(node).as_bytes())),
            Info::new("pmix.nodeid", Value::U32(node.0)),
            Info::new("pmix.lldr", Value::Rank(leader.0)),
            Info::new("pmix.local.size", Value::U32(ranks.len() as u32)),
        ];
        let peers = listed(ranks);
        if !is_mapped {
            infos.push(Info::new("pmix.lpeers", Value::Text(peers.as_bytes())));
        }
        out.kval("pmix.node.arr", &Value::Infos(infos));
    }

    /// The ranks of each node. libpmix derives from it the list of nodes, the ranks of each node, and each rank's host name.
    fn map(&self, out: &mut Writer, nodes: &[(NodeIndex, Vec<Rank>)]) {
        let mut map = Writer::new(out.encoding());
        map.one();
        map.size(nodes.len() as u64);
        for (node, ranks) in nodes {
            map.kval(self.host(*node), &Value::Text(listed(ranks).as_bytes()));
        }
        out.kval("pmix.mblob", &Value::Bytes(&map.into_bytes()));
    }

    /// Libraries read a rank's process set among the facts about its program, and Open MPI treats a missing one as an error. So if any
    /// program has a set, each program gets one, if necessary with an empty name.
    fn set_level(&self, out: &mut Writer) {
        for program in self.job.programs() {
            let set = self.sets.iter().find(|set| set.contains(program.first.0));
            let name = set.map_or("", |set| set.name.as_str());
            let infos = vec![
                Info::new("pmix.appnum", Value::U32(program.appnum.max(0).unsigned_abs())),
                Info::new("pmix.app.size", Value::U32(program.ranks)),
                Info::new("pmix.aldr", Value::Rank(program.first.0)),
                Info::new("pmix.pset.nm", Value::Text(name.as_bytes())),
            ];
            out.kval("pmix.app.arr", &Value::Infos(infos));
        }
    }

    /// Open MPI 5 reads sizes and first ranks as two texts, if there is more than one program.
    fn app_level(&self, out: &mut Writer) {
        let programs = self.job.programs();
        if programs.len() < 2 {
            return;
        }
        let firsts: Vec<String> = programs.iter().map(|program| program.first.to_string()).collect();
        let sizes: Vec<String> = programs.iter().map(|program| program.ranks.to_string()).collect();
        out.kval("OMPI_APP_SIZES", &Value::Text(sizes.join(" ").as_bytes()));
        out.kval("OMPI_FIRST_RANKS", &Value::Text(firsts.join(" ").as_bytes()));
    }

    fn rank_level(&self, out: &mut Writer, rank: Rank, node: NodeIndex, local: LocalRank) {
        let mut facts = Writer::new(out.encoding());
        facts.one();
        facts.u32(rank.0);
        for (key, value) in self.of_rank_at(rank, node, local) {
            facts.kval(key, &value);
        }
        // Only for ranks of this node: Open MPI compares their places with its own, and treats a rank without CPUs as unbound.
        if let Some(place) = self.here.1.get(local.index()).filter(|_| self.here.0 == node).and_then(Option::as_ref) {
            facts.kval("pmix.cpuset", &Value::Text(place.cpus.as_bytes()));
            facts.kval("pmix.locstr", &Value::Text(place.locality.as_bytes()));
        }
        out.kval("pmix.pblob", &Value::Bytes(&facts.into_bytes()));
    }

    /// Returns the facts about a rank on any node; empty if the job has no such rank.
    pub(crate) fn of_rank(&self, rank: Rank) -> Vec<(&'static str, Value<'a>)> {
        let place = || Some((self.job.placement.node_of(rank)?, self.job.placement.local_rank(rank)?));
        place().map_or_else(Vec::new, |(node, local)| self.of_rank_at(rank, node, local))
    }

    fn of_rank_at(&self, rank: Rank, node: NodeIndex, local: LocalRank) -> Vec<(&'static str, Value<'a>)> {
        let mut facts = vec![
            ("pmix.hname", Value::Text(self.host(node).as_bytes())),
            ("pmix.nodeid", Value::U32(node.0)),
            // Clients read 16 bits, and only to distinguish ranks of one node.
            ("pmix.lrank", Value::U16(local.0 as u16)),
            ("pmix.nrank", Value::U16(local.0 as u16)),
        ];
        facts.extend(u32::try_from(self.job.appnum(rank)).ok().map(|appnum| ("pmix.appnum", Value::U32(appnum))));
        facts
    }
}

fn listed(ranks: &[Rank]) -> String {
    ranks.iter().map(Rank::to_string).collect::<Vec<_>>().join(",")
}
