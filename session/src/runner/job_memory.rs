//! Memory from which the ranks of a job on this node read its map, its attributes and the results of its fences.
//!
//! If no rank reads it, it costs one file and the pages of the map: pairs are written once a rank needs them. If it cannot be made,
//! ranks ask their server, as they do for all data that is not in it.

use std::os::fd::OwnedFd;

use job_memory::{JobFacts, JobWriter, NodeFacts, RankFacts};
use pmi_core::driver::Publisher;
use pmi_core::ids::NodeIndex;
use pmi_core::job::{Job, Placement};
use pmi_core::server::Server;
use rank_spawner::CpuSet;

use crate::spec::SessionSpec;

/// Number of ranks on each node, of all jobs of the launch that this session has received.
#[derive(Debug, Default)]
pub(super) struct EarlierRanks(Vec<u32>);

impl EarlierRanks {
    /// Adds a job. Ranks of later jobs are counted after its ranks.
    pub(super) fn count(&mut self, placement: &Placement) {
        let nodes = self.0.len().max(placement.nodes() as usize);
        self.0.resize(nodes, 0);
        for block in placement.blocks() {
            let first = block.first_node.index();
            for ranks in &mut self.0[first..first + block.nodes as usize] {
                *ranks = ranks.saturating_add(block.ranks_per_node);
            }
        }
    }

    fn on(&self, node: u32) -> u32 {
        self.0.get(node as usize).copied().unwrap_or_default()
    }
}

/// Makes the memory of a job. Its ranks on this node are bound to `cpus`. Returns the end for the server's driver, and the end that
/// ranks inherit; `None` if the system has no such memory.
pub(super) fn create(
    spec: &SessionSpec,
    server: &Server,
    earlier: &EarlierRanks,
    cpus: &[Option<CpuSet>],
) -> Option<(Box<dyn Publisher>, OwnedFd)> {
    let facts = JobFacts {
        job_id: spec.job.id.to_string(),
        node: spec.node.0,
        programs: spec.job.programs().len() as u32,
        universe_size: spec.job.universe_size,
        ranks: ranks(&spec.job, spec.node, earlier, cpus),
        nodes: (0..).map(NodeIndex).zip(&spec.hosts).map(|(node, name)| node_facts(spec, node, name)).collect(),
        attributes: server.job_attributes().map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
    };
    let created = JobWriter::create(&facts).inspect_err(|error| tracing::debug!("there is no job memory: {error}"));
    created.ok().map(|(writer, for_ranks)| (Box::new(ToMemory(writer)) as Box<dyn Publisher>, for_ranks))
}

fn node_facts(spec: &SessionSpec, node: NodeIndex, name: &str) -> NodeFacts {
    NodeFacts { name: name.to_owned(), address: spec.addresses.get(node.index()).cloned() }
}

/// Places of all ranks of a job, in order.
fn ranks(job: &Job, here: NodeIndex, earlier: &EarlierRanks, cpus: &[Option<CpuSet>]) -> Vec<RankFacts> {
    let mut appnums = job.apps.iter().flat_map(|app| std::iter::repeat_n(app.appnum, app.ranks as usize));
    let mut locals = vec![0; job.placement.nodes() as usize];
    let mut ranks = Vec::with_capacity(job.size() as usize);
    for block in job.placement.blocks() {
        for node in block.first_node.0..block.first_node.0 + block.nodes {
            for _ in 0..block.ranks_per_node {
                let local = locals[node as usize];
                let bound = cpus.get(local as usize).filter(|_| node == here.0).and_then(Option::as_ref);
                ranks.push(RankFacts {
                    node,
                    local_rank: local,
                    node_rank: earlier.on(node) + local,
                    appnum: appnums.next().unwrap_or(-1),
                    cpus: bound.map(ToString::to_string),
                });
                locals[node as usize] += 1;
            }
        }
    }
    ranks
}

/// Writes data of a job's server to the job's memory.
struct ToMemory(JobWriter);

impl ToMemory {
    fn is_done<E: std::error::Error>(result: Result<(), E>) -> bool {
        result.inspect_err(|error| tracing::info!("ranks ask for pairs from now on: {error}")).is_ok()
    }
}

impl Publisher for ToMemory {
    fn is_wanted(&self) -> bool {
        self.0.is_wanted()
    }

    fn reserve(&mut self, keys: usize) -> bool {
        Self::is_done(self.0.reserve(keys))
    }

    fn publish(&mut self, key: &[u8], value: &[u8]) -> bool {
        Self::is_done(self.0.publish(key, value))
    }

    fn complete(&mut self, fences: u64) {
        self.0.complete(fences);
    }
}

#[cfg(test)]
mod tests {
    use pmi_core::ids::JobId;
    use pmi_core::job::{App, Block};

    use super::*;

    #[test]
    fn every_rank_has_its_place_and_only_those_here_their_cpus() {
        let block =
            |first_node, nodes, ranks_per_node| Block { first_node: NodeIndex(first_node), nodes, ranks_per_node };
        let mut placement = Placement::default();
        [block(0, 2, 1), block(0, 2, 1), block(1, 1, 1)].into_iter().for_each(|block| placement.push(block));
        let apps = vec![App { ranks: 3, appnum: 0 }, App { ranks: 2, appnum: 7 }];
        let job = Job { placement, apps, ..Job::on_one_node(JobId::new("j").unwrap(), 5) };
        let cpus = [Some("0-1".parse().unwrap()), None, Some("2".parse().unwrap())];
        let mut earlier = EarlierRanks::default();
        [Placement::one_node(1), Placement::one_node(3)].iter().for_each(|job| earlier.count(job));
        let ranks = ranks(&job, NodeIndex(1), &earlier, &cpus);
        let seen: Vec<_> = ranks
            .iter()
            .map(|rank| (rank.node, rank.local_rank, rank.node_rank, rank.appnum, rank.cpus.as_deref()))
            .collect();
        let expected = [
            (0, 0, 4, 0, None),
            (1, 0, 0, 0, Some("0-1")),
            (0, 1, 5, 0, None),
            (1, 1, 1, 7, None),
            (1, 2, 2, 7, Some("2")),
        ];
        assert_eq!(seen, expected);
    }
}
