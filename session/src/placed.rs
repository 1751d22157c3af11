//! A launch with a place for every rank: the second of the stages in [`crate::request`].
//!
//! All nodes of the launch have the same data, and so has the client that shows it. It contains no secret. Further decisions of
//! the API server are in [`ClusterTerms`], which users do not see in full.

use std::num::NonZeroU32;

use lattice_overlay::address::SetId;
use pmi_core::ids::{LocalRank, NodeIndex, Rank};
use pmi_core::job::Job;
use pmi_transport::session_link::LinkKey;

use crate::settings::LaunchSettings;
use crate::spec::{AppSpec, LaunchSecret, SessionSpec};

/// Maximum number of characters of a command in a list.
const COMMAND_MAX: usize = 200;

/// A launch that can be started, or was started.
#[derive(Clone, Debug, PartialEq)]
pub struct PlacedLaunch {
    /// Id of the launch; a job id can be derived from it.
    pub launch_id: String,
    /// The allocation of the launch; `None` for a launch on this machine without one.
    pub allocation_id: Option<String>,
    /// Its ranks and their places.
    pub job: Job,
    /// Names of its nodes, by node index; at least one.
    pub hosts: Vec<String>,
    /// Its programs, in the order of `job.apps`.
    pub apps: Vec<AppSpec>,
    /// Settings for every rank.
    pub settings: LaunchSettings,
}

/// Place of one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RankPlace {
    /// The rank.
    pub rank: Rank,
    /// Its node.
    pub node: NodeIndex,
    /// Its position among the ranks of that node.
    pub local_rank: LocalRank,
    /// Index of its program.
    pub app: usize,
}

/// Decisions of the API server about a launch on a cluster, beyond its placement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterTerms {
    /// User id of the ranks.
    pub uid: u32,
    /// gRPC addresses of the nodes, by node index.
    pub addresses: Vec<String>,
    /// Entitles a rank of another launch to call this launch's servers.
    pub secret: LaunchSecret,
    /// Key of the links between the launch's sessions; `None` if fences go through the agents.
    pub link_key: Option<LinkKey>,
    /// Id of the launch among the sets of its user; `None` if the launch is not a set.
    pub set: Option<SetId>,
    /// Fan-out of the fence tree for barriers; `None` leaves it to the agents.
    pub barrier_fan_out: Option<NonZeroU32>,
    /// Fan-out of the fence tree for data; `None` leaves it to the agents.
    pub data_fan_out: Option<NonZeroU32>,
    /// Bytes of output that a node may send before the next grant.
    pub output_window: u32,
    /// Bytes of input that may be sent before the next grant.
    pub stdin_window: u32,
}

impl PlacedLaunch {
    /// Returns the name of a node of the launch.
    pub fn host(&self, node: NodeIndex) -> &str {
        self.hosts.get(node.index()).map_or("localhost", String::as_str)
    }

    /// Returns the first program with its arguments, shortened for a list.
    pub fn command(&self) -> String {
        let Some(app) = self.apps.first() else { return String::new() };
        let words = std::iter::once(&app.program).chain(&app.args).map(|word| word.to_string_lossy());
        let mut text = words.collect::<Vec<_>>().join(" ");
        if self.apps.len() > 1 {
            text += " : ...";
        }
        if text.chars().count() > COMMAND_MAX {
            text = text.chars().take(COMMAND_MAX).chain("...".chars()).collect();
        }
        text
    }

    /// Returns the places of all ranks, in rank order.
    pub fn rank_places(&self) -> Vec<RankPlace> {
        let on_node = |node| {
            let ranks = self.job.placement.ranks_on(node).into_iter().zip((0..).map(LocalRank));
            ranks.map(move |(rank, local_rank)| (rank, node, local_rank))
        };
        let mut places: Vec<_> = (0..self.job.placement.nodes()).map(NodeIndex).flat_map(on_node).collect();
        places.sort_unstable();
        let apps = (0..).zip(&self.job.apps).flat_map(|(index, app)| std::iter::repeat_n(index, app.ranks as usize));
        let place = |((rank, node, local_rank), app)| RankPlace { rank, node, local_rank, app };
        places.into_iter().zip(apps).map(place).collect()
    }

    /// Returns the part of the launch on node `node`. `addresses` has the addresses of all nodes, if there are several.
    pub fn session(self, node: NodeIndex, addresses: Vec<String>, secret: LaunchSecret) -> SessionSpec {
        let Self { launch_id, allocation_id, job, hosts, apps, settings } = self;
        SessionSpec { launch_id, allocation_id, job, node, hosts, addresses, secret, apps, settings }
    }
}

#[cfg(test)]
mod tests {
    use pmi_core::ids::JobId;
    use pmi_core::job::{App, Block, Placement};

    use super::*;

    fn placed(blocks: &[Block], apps: &[u32]) -> PlacedLaunch {
        let mut placement = Placement::default();
        blocks.iter().for_each(|&block| placement.push(block));
        let job = Job {
            id: JobId::new("kvs_abc_0").unwrap(),
            placement,
            apps: (0..).zip(apps).map(|(appnum, &ranks)| App { ranks, appnum }).collect(),
            universe_size: None,
            spawner: None,
            preput: Vec::new(),
        };
        PlacedLaunch {
            launch_id: "abc".to_owned(),
            allocation_id: None,
            job,
            hosts: ["node0", "node1"].map(str::to_owned).to_vec(),
            apps: Vec::new(),
            settings: LaunchSettings::default(),
        }
    }

    fn block(first_node: u32, nodes: u32, ranks_per_node: u32) -> Block {
        Block { first_node: NodeIndex(first_node), nodes, ranks_per_node }
    }

    #[test]
    fn places_follow_the_placement() {
        let check = |blocks: &[Block], apps: &[u32], expected: &[(u32, u32, u32, usize)]| {
            let places = placed(blocks, apps).rank_places();
            let seen: Vec<_> =
                places.iter().map(|place| (place.rank.0, place.node.0, place.local_rank.0, place.app)).collect();
            assert_eq!(seen, expected);
        };
        check(&[block(0, 1, 2)], &[2], &[(0, 0, 0, 0), (1, 0, 1, 0)]);
        let cyclic = [block(0, 2, 1), block(0, 2, 1), block(0, 1, 1)];
        let expected = [(0, 0, 0, 0), (1, 1, 0, 0), (2, 0, 1, 0), (3, 1, 1, 1), (4, 0, 2, 1)];
        check(&cyclic, &[3, 2], &expected);
    }

    #[test]
    fn the_command_of_a_list_is_the_first_program_as_far_as_there_is_room() {
        let command = |programs: usize, args: &[&str]| {
            let app = AppSpec { args: args.iter().map(Into::into).collect(), ..crate::sample::app("./app") };
            PlacedLaunch { apps: vec![app; programs], ..placed(&[block(0, 1, 1)], &[1]) }.command()
        };
        assert_eq!(command(1, &["-x", "2"]), "./app -x 2");
        assert_eq!(command(2, &[]), "./app : ...");
        assert_eq!(command(0, &[]), "");
        let long = command(1, &["ä".repeat(300).as_str()]);
        assert!(long.ends_with("ää..."));
        assert_eq!(long.chars().count(), 203);
    }

    #[test]
    fn a_session_is_the_launch_as_one_node_sees_it() {
        let placed = placed(&[block(0, 2, 1)], &[2]);
        let secret = LaunchSecret::from_bytes([7; LaunchSecret::LEN]);
        let addresses = ["10.0.0.1:7", "[fe80::2]:7"].map(str::to_owned).to_vec();
        let session = placed.clone().session(NodeIndex(1), addresses, secret.clone());
        assert_eq!((session.node, session.address()), (NodeIndex(1), Some("fe80::2")));
        assert_eq!((session.hosts, session.secret), (placed.hosts, secret));
    }
}
