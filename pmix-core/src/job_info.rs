//! The facts about a job that a client wants before anything else, and the keys it knows them by.
//!
//! The facts are the same for every rank of the job, so they are written once per encoding.

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
    /// Directory in which its ranks may keep files.
    pub(crate) directory: Option<&'a str>,
    /// Rank that spawned the job, if one did.
    pub(crate) parent: Option<Proc<'a>>,
    /// The node that these facts are told on, with the places of its ranks.
    pub(crate) here: (NodeIndex, &'a [Option<BoundPlace>]),
    pub(crate) sets: &'a [ProcessSet],
}

impl JobFacts<'_> {
    /// All facts, as a row of keys with values.
    pub(crate) fn encode(&self, encoding: Encoding) -> Vec<u8> {
        let mut out = Writer::new(encoding);
        let nodes = self.nodes();
        self.job_level(&mut out, &nodes);
        for (node, ranks) in &nodes {
            self.node_level(&mut out, *node, ranks);
        }
        self.app_level(&mut out);
        if !self.sets.is_empty() {
            self.set_level(&mut out);
        }
        for (node, ranks) in &nodes {
            for (&rank, local) in ranks.iter().zip(0..) {
                self.rank_level(&mut out, rank, *node, LocalRank(local));
            }
        }
        out.into_bytes()
    }

    /// The nodes that hold ranks of the job, which need not be all nodes of its launch, and their ranks. A node keeps its number in all
    /// jobs of a launch.
    fn nodes(&self) -> Vec<(NodeIndex, Vec<Rank>)> {
        let all = (0..self.job.placement.nodes()).map(NodeIndex);
        all.map(|node| (node, self.job.placement.ranks_on(node))).filter(|(_, ranks)| !ranks.is_empty()).collect()
    }

    fn host(&self, node: NodeIndex) -> &str {
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
        out.kval("pmix.job.napps", &Value::U32(self.job.apps.len() as u32));
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

    fn node_level(&self, out: &mut Writer, node: NodeIndex, ranks: &[Rank]) {
        let peers: Vec<String> = ranks.iter().map(Rank::to_string).collect();
        let Some(leader) = ranks.first() else { return };
        let infos = vec![
            Info::new("pmix.hname", Value::Text(self.host(node).as_bytes())),
            Info::new("pmix.nodeid", Value::U32(node.0)),
            Info::new("pmix.lldr", Value::Rank(leader.0)),
            Info::new("pmix.local.size", Value::U32(ranks.len() as u32)),
        ];
        let peers = peers.join(",");
        let infos = [infos, vec![Info::new("pmix.lpeers", Value::Text(peers.as_bytes()))]].concat();
        out.kval("pmix.node.arr", &Value::Infos(infos));
    }

    /// Libraries read a rank's process set among the facts about its program, and Open MPI takes one without for an error. So each program
    /// has one where any has, if only of no name.
    fn set_level(&self, out: &mut Writer) {
        let mut first = 0;
        for app in &self.job.apps {
            let set = self.sets.iter().find(|set| set.contains(first));
            let name = set.map_or("", |set| set.name.as_str());
            let infos = vec![
                Info::new("pmix.appnum", Value::U32(app.appnum.max(0).unsigned_abs())),
                Info::new("pmix.app.size", Value::U32(app.ranks)),
                Info::new("pmix.aldr", Value::Rank(first)),
                Info::new("pmix.pset.nm", Value::Text(name.as_bytes())),
            ];
            out.kval("pmix.app.arr", &Value::Infos(infos));
            first += app.ranks;
        }
    }

    /// Open MPI 5 reads sizes and first ranks as two texts, where there is more than one program.
    fn app_level(&self, out: &mut Writer) {
        if self.job.apps.len() < 2 {
            return;
        }
        let mut first = 0;
        let mut firsts = Vec::new();
        let mut sizes = Vec::new();
        for app in &self.job.apps {
            firsts.push(first.to_string());
            sizes.push(app.ranks.to_string());
            first += app.ranks;
        }
        out.kval("OMPI_APP_SIZES", &Value::Text(sizes.join(" ").as_bytes()));
        out.kval("OMPI_FIRST_RANKS", &Value::Text(firsts.join(" ").as_bytes()));
    }

    fn rank_level(&self, out: &mut Writer, rank: Rank, node: NodeIndex, local: LocalRank) {
        let mut facts = Writer::new(out.encoding());
        facts.one();
        facts.u32(rank.0);
        facts.kval("pmix.hname", &Value::Text(self.host(node).as_bytes()));
        facts.kval("pmix.nodeid", &Value::U32(node.0));
        // Clients read 16 bits, and only to tell neighbours apart.
        facts.kval("pmix.lrank", &Value::U16(local.0 as u16));
        facts.kval("pmix.nrank", &Value::U16(local.0 as u16));
        if let Ok(appnum) = u32::try_from(self.job.appnum(rank)) {
            facts.kval("pmix.appnum", &Value::U32(appnum));
        }
        // Only of neighbours: Open MPI compares their places with its own, and takes a rank without CPUs for unbound.
        if let Some(place) = self.here.1.get(local.index()).filter(|_| self.here.0 == node).and_then(Option::as_ref) {
            facts.kval("pmix.cpuset", &Value::Text(place.cpus.as_bytes()));
            facts.kval("pmix.locstr", &Value::Text(place.locality.as_bytes()));
        }
        out.kval("pmix.pblob", &Value::Bytes(&facts.into_bytes()));
    }
}
