//! `lattice nodes --topology LAUNCH`: the nodes of a launch, with its ranks in the cores on which the kernel lets them run.
//!
//! ```text
//! launch k3jq09zmf2: 4 ranks on node0
//! node0  2 packages, 2 NUMA nodes, 8 cores, 8 threads, 128 GiB
//!  package 0 ─ NUMA 0  64 GiB  L3 32 MiB  cores 0-3  [0 0 1 1]
//!  package 1 ─ NUMA 1  64 GiB  L3 32 MiB  cores 4-7  [2 2 · ·]
//!  not bound: rank 3, on CPUs 0-7
//!  not as planned: rank 1 was bound to CPUs 2-3, and may run on 2
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;

use lattice_cluster_client::{Cluster, KnownNode};
use lattice_console::formatting::count;
use lattice_console::{print_json, print_lines};
use lattice_inventory::picture::{self, Cores, View};
use lattice_inventory::{Allowed, CpuSet, Inventory, Template, ThisNode, xml};
use lattice_session::cause::{RankList, RankNumbers};
use lattice_session::event::RankAffinity;
use pmi_core::ids::Rank;
use pmi_transport::proto::v1 as proto;
use serde::Serialize;
use tonic::Code;

use super::error::CommandError;
use super::questions::here;
use super::status::{RankView, ranks_of};
use crate::args::{TableArgs, TopologyFormat};

/// A launch on its nodes.
pub(super) struct LaunchTopology {
    id: String,
    ranks: usize,
    nodes: Vec<NodeWithRanks>,
}

/// A node with the ranks that run on it.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct NodeWithRanks {
    node: String,
    ranks: Vec<PlacedRank>,
    /// `null` if the node has not reported its template.
    #[cfg_attr(test, schemars(with = "Option<serde_json::Map<String, serde_json::Value>>"))]
    template: Option<Template>,
    /// CPUs that ranks may use; `null` if these are all CPUs of the node.
    #[cfg_attr(test, schemars(with = "Option<String>"))]
    usable_cpus: Option<CpuSet>,
}

/// A rank with its CPUs.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct PlacedRank {
    #[cfg_attr(test, schemars(with = "u32"))]
    rank: Rank,
    /// CPUs planned for the rank; `null` if it is not bound.
    #[cfg_attr(test, schemars(with = "Option<String>"))]
    planned: Option<CpuSet>,
    /// CPUs on which the kernel lets the rank run.
    #[cfg_attr(test, schemars(with = "String"))]
    allowed: CpuSet,
}

impl LaunchTopology {
    /// Returns the launch with this id on this machine, if it exists.
    ///
    /// # Errors
    /// Fails if the launch does not answer.
    pub(super) fn here(launch: &str, args: &TableArgs) -> Result<Option<Self>, CommandError> {
        let Some(local) = here(launch, &args.api) else { return Ok(None) };
        let template = ThisNode::default().inventory().template.clone();
        let usable = local.usable_cpus().map(|usable| usable.intersection(&template.cpus));
        let usable = usable.unwrap_or_else(|| template.cpus.clone());
        let known = KnownNode { template: Arc::new(template), usable };
        Ok(Some(Self::of(launch, &local.status()?, |_| Some(known.clone()))))
    }

    /// Returns the launch with this id on the cluster, if it exists.
    ///
    /// # Errors
    /// Fails if the API server does not answer, or the launch belongs to another user.
    pub(super) async fn on(cluster: &Cluster, launch: &str) -> Result<Option<Self>, CommandError> {
        let request = proto::GetLaunchRequest { id: launch.to_owned(), ..Default::default() };
        let status = cluster.ask(async {
            match cluster.launches().get_launch(request).await {
                Ok(status) => Ok(status.map(Some)),
                Err(refusal) if matches!(refusal.code(), Code::NotFound | Code::InvalidArgument) => Ok(None.into()),
                Err(refusal) => Err(refusal),
            }
        });
        let Some(status) = status.await? else { return Ok(None) };
        let templates = cluster.templates().await?;
        Ok(Some(Self::of(launch, &status, |node| Some(templates.of(node)?.1.clone()))))
    }

    fn of(id: &str, status: &proto::LaunchStatus, known: impl Fn(&str) -> Option<KnownNode>) -> Self {
        let placed = |view: RankView<'_>| {
            let RankAffinity { bound_to, allowed } = view.progress.affinity?;
            Some(PlacedRank { rank: view.progress.rank, planned: bound_to, allowed })
        };
        let node = |node: &proto::NodeStatus| {
            let mut ranks: Vec<PlacedRank> = ranks_of(node).filter_map(placed).collect();
            ranks.sort_unstable_by_key(|placed| placed.rank);
            let known = known(&node.node_id);
            NodeWithRanks {
                node: node.node_id.clone(),
                ranks,
                usable_cpus: known.as_ref().and_then(|known| known.limit().cloned()),
                template: known.map(|known| Template::clone(&known.template)),
            }
        };
        let nodes: Vec<NodeWithRanks> = status.nodes.iter().map(node).filter(|node| !node.ranks.is_empty()).collect();
        Self { id: id.to_owned(), ranks: nodes.iter().map(|node| node.ranks.len()).sum(), nodes }
    }

    /// Prints the launch in this format; returns the exit code.
    ///
    /// # Errors
    /// Fails for a format that shows one node, if the ranks do not run on exactly one node with a known template.
    pub(super) fn show(&self, format: TopologyFormat) -> Result<u8, CommandError> {
        let print = |text: String| print_lines(&text.lines().map(str::to_owned).collect::<Vec<_>>());
        Ok(match format {
            TopologyFormat::Text => print_lines(&self.lines())?,
            TopologyFormat::Json => print_json(&self.nodes)?,
            TopologyFormat::Svg => {
                let (node, template) = self.only()?;
                let words = |core: &CpuSet| Some(RankList(&node.in_core(core)?).to_string());
                print(picture::svg(node.view(template, Cores::With(&words)), &node.head()))?
            }
            TopologyFormat::Xml => {
                let (_, template) = self.only()?;
                let inventory = Inventory::of_kind(template.clone());
                print(xml::write(&inventory, &Allowed::all(template)).ok_or(CommandError::NoTemplate)?)?
            }
        })
    }

    fn only(&self) -> Result<(&NodeWithRanks, &Template), CommandError> {
        match &self.nodes[..] {
            [] => Err(CommandError::NoRanks { launch: self.id.clone() }),
            [only] => Ok((only, only.template.as_ref().ok_or(CommandError::NoTemplate)?)),
            several => Err(CommandError::SeveralNodes { number: several.len() }),
        }
    }

    fn lines(&self) -> Vec<String> {
        let names: Vec<&str> = self.nodes.iter().map(|node| node.node.as_str()).collect();
        let head = match self.nodes.is_empty() {
            true => format!("launch {}: no rank runs", self.id),
            false => format!("launch {}: {} on {}", self.id, count(self.ranks as u32, "rank"), hostlist::fold(&names)),
        };
        [head].into_iter().chain(self.nodes.iter().flat_map(NodeWithRanks::lines)).collect()
    }
}

impl NodeWithRanks {
    fn head(&self) -> String {
        match &self.template {
            Some(template) => format!("{}  {}  {}", self.node, picture::summary(template), template.model),
            None => format!("{}  not reported yet", self.node),
        }
        .trim_end()
        .to_owned()
    }

    fn lines(&self) -> Vec<String> {
        let picture = self.template.as_ref().map(|template| {
            let words = |core: &CpuSet| Some(RankNumbers(&self.in_core(core)?).to_string());
            picture::lines(self.view(template, Cores::With(&words)))
        });
        let below = picture.into_iter().flatten().chain(self.unbound()).chain(self.not_as_planned());
        [self.head()].into_iter().chain(below.map(|line| format!(" {line}"))).collect()
    }

    fn view<'a>(&'a self, template: &'a Template, cores: Cores<'a>) -> View<'a> {
        View { template, usable: self.usable_cpus.as_ref().unwrap_or(&template.cpus), cores }
    }

    /// Bound ranks that the kernel lets run on CPUs of a core; `None` if there are none.
    fn in_core(&self, core: &CpuSet) -> Option<Vec<Rank>> {
        let is_in = |rank: &&PlacedRank| rank.planned.is_some() && !rank.allowed.is_disjoint(core);
        let ranks: Vec<Rank> = self.ranks.iter().filter(is_in).map(|rank| rank.rank).collect();
        (!ranks.is_empty()).then_some(ranks)
    }

    /// Ranks that are not bound, grouped by their CPUs.
    fn unbound(&self) -> impl Iterator<Item = String> {
        let mut by_cpus: BTreeMap<String, Vec<Rank>> = BTreeMap::new();
        for rank in self.ranks.iter().filter(|rank| rank.planned.is_none()) {
            by_cpus.entry(rank.allowed.to_string()).or_default().push(rank.rank);
        }
        by_cpus.into_iter().map(|(cpus, ranks)| format!("not bound: {}, on CPUs {cpus}", RankList(&ranks)))
    }

    fn not_as_planned(&self) -> impl Iterator<Item = String> + '_ {
        self.ranks.iter().filter_map(|PlacedRank { rank, planned, allowed }| {
            let planned = planned.as_ref().filter(|planned| *planned != allowed)?;
            Some(format!("not as planned: rank {rank} was bound to CPUs {planned}, and may run on {allowed}"))
        })
    }
}

#[cfg(test)]
mod tests {
    use lattice_inventory::Group;

    use super::*;

    fn cpus(list: &str) -> CpuSet {
        list.parse().unwrap()
    }

    fn placed(rank: u32, planned: Option<&str>, allowed: &str) -> PlacedRank {
        PlacedRank { rank: Rank(rank), planned: planned.map(cpus), allowed: cpus(allowed) }
    }

    #[test]
    fn ranks_stand_in_the_cores_that_the_kernel_gives_them() {
        let group = |id: u32, list: &str| Group { cpus: cpus(list), id: Some(id) };
        let template = Template {
            cpus: cpus("0-7"),
            packages: vec![group(0, "0-7")],
            cores: vec![group(0, "0-1"), group(1, "2-3"), group(2, "4-5"), group(3, "6-7")],
            ..Template::default()
        };
        let ranks = vec![
            placed(0, Some("0-1"), "0-1"),
            placed(1, Some("0-3"), "2"),
            placed(4, Some("2-3"), "2-3"),
            placed(5, None, "0-7"),
            placed(6, None, "0-7"),
        ];
        let node =
            NodeWithRanks { node: "n0".to_owned(), ranks, template: Some(template), usable_cpus: Some(cpus("0-3,7")) };
        let launch = LaunchTopology { id: "k3jq".to_owned(), ranks: 5, nodes: vec![node] };
        assert_eq!(
            launch.lines(),
            [
                "launch k3jq: 5 ranks on n0",
                "n0  1 package, 4 cores, 8 threads",
                " package 0 ─ CPUs 0-7  cores 0,2,4,6  [0 1,4 × ·]",
                " ranks may use CPUs 0-3,7 only; × marks cores without one",
                " not bound: ranks 5-6, on CPUs 0-7",
                " not as planned: rank 1 was bound to CPUs 0-3, and may run on 2",
            ]
        );
        let json = serde_json::to_value(&launch.nodes).unwrap();
        assert_eq!(json[0]["ranks"][1], serde_json::json!({ "rank": 1, "planned": "0-3", "allowed": "2" }));
        assert_eq!(json[0]["ranks"][3]["planned"], serde_json::Value::Null);
    }

    #[test]
    fn a_launch_without_ranks_says_so() {
        let launch = LaunchTopology { id: "k3jq".to_owned(), ranks: 0, nodes: Vec::new() };
        assert_eq!(launch.lines(), ["launch k3jq: no rank runs"]);
        assert!(launch.only().unwrap_err().to_string().contains("k3jq"));
    }
}
