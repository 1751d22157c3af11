//! `lattice nodes`: lists the nodes of the cluster. Drains and resumes nodes: nothing new starts on a drained node.

use std::collections::HashMap;
use std::time::Duration;

use lattice_cluster_client::Cluster;
use lattice_console::machine::Machine;
use lattice_console::table::{Align, Table};
use lattice_console::{Verbosity, confirm, formatting, print, print_json, report};
use pmi_transport::proto::v1 as proto;
use proto::NodeState;
use serde::Serialize;

use super::error::CommandError;
use super::launch_topology::LaunchTopology;
use super::questions::{ask, node_names};
use super::topology::{self, Described, Kinds};
use crate::args::{NodesArgs, NodesCommand, TopologyFormat};

/// A node in the JSON output.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct Node<'a> {
    node: &'a str,
    state: &'static str,
    grpc_address: &'a str,
    network_addresses: &'a [String],
    cores: u32,
    memory_bytes: u64,
    capabilities: &'a [String],
    version: &'a str,
    /// Seconds since the last report of its agent; `null` before the first one.
    heard_ago_s: Option<f64>,
    launches: u32,
    drain: Option<Drain<'a>>,
    /// Address of another agent that claims to be this node.
    #[serde(skip_serializing_if = "str::is_empty")]
    rival_address: &'a str,
    /// Only with `-v`.
    #[serde(skip_serializing_if = "Option::is_none")]
    inventory: Option<Described>,
}

/// Nodes to show, with their descriptions if requested.
struct Shown {
    answer: proto::ListNodesResponse,
    described: Option<HashMap<String, Described>>,
}

/// Drain of a node as JSON: reason, author and time.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Drain<'a> {
    reason: &'a str,
    by: &'a str,
    #[cfg_attr(test, schemars(extend("format" = "date-time")))]
    drained_at: String,
}

/// Result of drain and resume as JSON.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(tag = "state", rename_all = "snake_case")]
pub(super) enum Changed {
    Drained {
        nodes: Vec<String>,
        /// Nodes among them that are not registered yet. They are drained when they register.
        unregistered: Vec<String>,
    },
    Resumed {
        nodes: Vec<String>,
    },
}

/// Lists, drains or resumes nodes of the cluster; returns the exit code.
pub fn nodes(args: &NodesArgs, verbosity: Verbosity) -> Result<u8, CommandError> {
    match (&args.command, &args.topology) {
        (None, Some(nodes)) => topology(nodes.as_deref(), args),
        (None, None) => {
            let shown = ask(&args.table.api, async |cluster| Shown::ask(&cluster, verbosity).await)?;
            if args.table.json { Ok(print_json(&shown.nodes())?) } else { Ok(print(shown.table().as_bytes())?) }
        }
        (Some(NodesCommand::Drain { nodes, reason, table }), _) => {
            let (answer, nodes) = ask(&table.api, async |cluster| {
                let nodes = cluster.registered_names(nodes).await?;
                let request = proto::DrainNodesRequest { nodes: nodes.clone(), reason: reason.clone() };
                Ok((cluster.ask(cluster.nodes().drain_nodes(request)).await?, nodes))
            })?;
            if table.json {
                let unregistered = node_names(&answer.unknown);
                return Ok(print_json(&Changed::Drained { nodes: node_names(&nodes), unregistered })?);
            }
            if verbosity > Verbosity::Quiet && !answer.unknown.is_empty() {
                report(&format!("note: not registered yet, and drained when they are: {}", answer.unknown));
            }
            confirm(&format!("no new work starts on {nodes}; running work continues"), verbosity);
            Ok(0)
        }
        (Some(NodesCommand::Resume { nodes, table }), _) => {
            let nodes = ask(&table.api, async |cluster| {
                let nodes = cluster.registered_names(nodes).await?;
                let request = proto::ResumeNodesRequest { nodes: nodes.clone() };
                cluster.ask(cluster.nodes().resume_nodes(request)).await?;
                Ok(nodes)
            })?;
            if table.json {
                return Ok(print_json(&Changed::Resumed { nodes: node_names(&nodes) })?);
            }
            confirm(&format!("new work can start on {nodes} again"), verbosity);
            Ok(0)
        }
    }
}

/// Shows kinds of nodes, or a launch with its nodes.
fn topology(named: Option<&str>, args: &NodesArgs) -> Result<u8, CommandError> {
    let default = if args.table.json { TopologyFormat::Json } else { TopologyFormat::Text };
    let format = args.format.unwrap_or(default);
    if let Some(launch) = named
        && let Some(launch) = LaunchTopology::here(launch, &args.table)?
    {
        return launch.show(format);
    }
    let of_cluster = ask(&args.table.api, async |cluster| {
        let unknown = match Kinds::ask(&cluster, named).await {
            Ok(kinds) => return topology::show(&kinds, format),
            Err(error) => error,
        };
        // A launch may have the name of a node. The node takes precedence.
        let launch = match (&unknown, named) {
            (CommandError::NoInventory { .. }, Some(name)) => LaunchTopology::on(&cluster, name).await?,
            _ => None,
        };
        launch.ok_or(unknown)?.show(format)
    });
    match of_cluster {
        Err(CommandError::Cluster(error)) if error.is_absence() => {
            let machine = Machine::this()?;
            if named.is_some_and(|name| !machine.is_called(name)) {
                return Err(error.into());
            }
            report("note: there is no API server; this machine is shown");
            topology::show(&Kinds::here(&machine.host), format)
        }
        other => other,
    }
}

impl Shown {
    async fn ask(cluster: &Cluster, verbosity: Verbosity) -> Result<Self, CommandError> {
        let answer = cluster.ask(cluster.nodes().list_nodes(proto::ListNodesRequest {})).await?;
        let described = match verbosity {
            Verbosity::Quiet | Verbosity::Normal => None,
            Verbosity::Verbose => Some(Kinds::ask(cluster, None).await?.by_node()),
        };
        Ok(Self { answer, described })
    }

    fn nodes(&self) -> Vec<Node<'_>> {
        let inventory = |node: &proto::Node| Some(self.described.as_ref()?.get(&node.id).cloned().unwrap_or_default());
        self.answer.nodes.iter().map(|node| Node { inventory: inventory(node), ..Node::from(node) }).collect()
    }

    fn table(&self) -> String {
        let rows = self.answer.nodes.iter().map(|node| (node, row(node, &self.answer.version)));
        let Some(described) = &self.described else {
            let mut table = Table::new(COLUMNS);
            rows.for_each(|(_, row)| table.push(row));
            return table.to_string();
        };
        let [node, state, cores, memory, launches, heard, agent, version, note] = COLUMNS;
        let more = ["KIND", "SUPPORT", "CPUS", "GPUS", "NICS"].map(|head| (head, Align::Left));
        let [kind, support, cpus, gpus, nics] = more;
        let mut table = Table::new([
            node, state, kind, support, cores, cpus, memory, gpus, nics, launches, heard, agent, version, note,
        ]);
        for (of, [node, state, cores, memory, launches, heard, agent, version, note]) in rows {
            let of = described.get(&of.id).cloned().unwrap_or_default();
            let Described { kind, support, usable_cpus: cpus, gpus, nics } = of;
            table.push([
                node, state, kind, support, cores, cpus, memory, gpus, nics, launches, heard, agent, version, note,
            ]);
        }
        table.to_string()
    }
}

const COLUMNS: [(&str, Align); 9] = [
    ("NODE", Align::Left),
    ("STATE", Align::Left),
    ("CORES", Align::Right),
    ("MEMORY", Align::Right),
    ("LAUNCHES", Align::Right),
    ("HEARD", Align::Right),
    ("AGENT", Align::Left),
    ("VERSION", Align::Left),
    ("NOTE", Align::Left),
];

/// Row of a node, in the [`COLUMNS`].
fn row(node: &proto::Node, server_version: &str) -> [String; 9] {
    let heard = match node.state() {
        NodeState::Unspecified => "never".to_owned(),
        _ => format!("{} ago", formatting::duration(Duration::from_millis(node.heard_ms_ago))),
    };
    [
        node.id.clone(),
        readable_state(node).to_owned(),
        node.cores.to_string(),
        formatting::size(node.memory_bytes),
        node.launches.to_string(),
        heard,
        node.grpc_address.clone(),
        node.version.clone(),
        note(node, server_version),
    ]
}

/// State of a node in the table. It shows whether the node can be used, or taken away.
fn readable_state(node: &proto::Node) -> &'static str {
    match (node.state(), &node.drain) {
        (NodeState::Up, Some(_)) if node.launches > 0 => "draining",
        (NodeState::Up, Some(_)) => "drained",
        (other, _) => state(other),
    }
}

/// Note on a node: the reason of its drain, a second agent of the same name, or an agent version that differs from the API server's.
fn note(node: &proto::Node, server: &str) -> String {
    let drain = node
        .drain
        .as_ref()
        .map(|drain| format!("drained {} by {}: {}", formatting::ago(drain.since), drain.by, drain.reason));
    let differs = node.state() != NodeState::Unspecified && !server.is_empty() && node.version != server;
    let version = differs.then(|| format!("the API server is of version {server}"));
    let rival = (!node.rival_address.is_empty()).then(|| {
        let (first, second) = (&node.grpc_address, &node.rival_address);
        format!("two agents register as {}: {first}, and {second}, which is refused", node.id)
    });
    [drain, rival, version].into_iter().flatten().collect::<Vec<_>>().join("; ")
}

impl<'a> From<&'a proto::Node> for Node<'a> {
    fn from(node: &'a proto::Node) -> Self {
        Self {
            node: &node.id,
            state: state(node.state()),
            grpc_address: &node.grpc_address,
            network_addresses: &node.network_addresses,
            cores: node.cores,
            memory_bytes: node.memory_bytes,
            capabilities: &node.capabilities,
            version: &node.version,
            heard_ago_s: (node.state() != NodeState::Unspecified)
                .then(|| Duration::from_millis(node.heard_ms_ago).as_secs_f64()),
            launches: node.launches,
            drain: node.drain.as_ref().map(|drain| Drain {
                reason: &drain.reason,
                by: &drain.by,
                drained_at: formatting::rfc3339(drain.since),
            }),
            rival_address: &node.rival_address,
            inventory: None,
        }
    }
}

fn state(state: NodeState) -> &'static str {
    match state {
        NodeState::Unspecified => "unknown",
        NodeState::Up => "up",
        NodeState::Away => "away",
        NodeState::Lost => "lost",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_shown_in_a_table_and_as_json() {
        let node = proto::Node {
            id: "node3".to_owned(),
            state: NodeState::Lost.into(),
            grpc_address: "10.0.0.5:50052".to_owned(),
            cores: 8,
            memory_bytes: 1 << 34,
            heard_ms_ago: 4200,
            version: "0.1.0".to_owned(),
            ..proto::Node::default()
        };
        let answer = proto::ListNodesResponse { nodes: vec![node.clone()], version: "0.1.0".to_owned() };
        let mut shown = Shown { answer, described: None };
        assert_eq!(
            shown.table(),
            "NODE   STATE  CORES    MEMORY  LAUNCHES      HEARD  AGENT           VERSION  NOTE\n\
             node3  lost       8  16.0 GiB         0  4.2 s ago  10.0.0.5:50052  0.1.0\n"
        );
        let json = serde_json::to_value(Node::from(&node)).unwrap();
        assert_eq!((&json["state"], &json["heard_ago_s"]), (&"lost".into(), &4.2.into()));
        assert_eq!((&json["drain"], json.get("inventory")), (&serde_json::Value::Null, None));
        let support = "full".to_owned();
        let (usable_cpus, nics) = ("0-7".to_owned(), "hsn0".to_owned());
        let described =
            Described { kind: "3f9c01ab".to_owned(), support, usable_cpus, gpus: "4x H100".to_owned(), nics };
        shown.described = Some([("node3".to_owned(), described)].into());
        assert_eq!(
            shown.table(),
            "NODE   STATE  KIND      SUPPORT  CORES  CPUS    MEMORY  GPUS     NICS  LAUNCHES      HEARD  AGENT           VERSION  NOTE\n\
             node3  lost   3f9c01ab  full         8  0-7   16.0 GiB  4x H100  hsn0         0  4.2 s ago  10.0.0.5:50052  0.1.0\n"
        );
        assert_eq!(serde_json::to_value(shown.nodes()).unwrap()[0]["inventory"]["gpus"], "4x H100");
    }

    #[test]
    fn what_is_special_about_a_node_is_told() {
        let drain =
            proto::Drain { reason: "new memory".to_owned(), by: "administrator 0".to_owned(), ..Default::default() };
        let mut node = proto::Node { state: NodeState::Up.into(), drain: Some(drain), ..Default::default() };
        node.version = "0.1.1".to_owned();
        let told = note(&node, "0.1.0");
        assert!(told.ends_with("by administrator 0: new memory; the API server is of version 0.1.0"), "{told}");
        assert_eq!(note(&proto::Node { drain: None, ..node.clone() }, "0.1.1"), "");
        let rival = proto::Node { drain: None, rival_address: "10.0.0.9:1".to_owned(), ..node.clone() };
        let told = note(&proto::Node { id: "a".to_owned(), grpc_address: "10.0.0.5:1".to_owned(), ..rival }, "0.1.1");
        assert_eq!(told, "two agents register as a: 10.0.0.5:1, and 10.0.0.9:1, which is refused");
        assert_eq!(readable_state(&node), "drained");
        node.launches = 1;
        assert_eq!(readable_state(&node), "draining");
        node.set_state(NodeState::Lost);
        assert_eq!(readable_state(&node), "lost");
        assert_eq!(serde_json::to_value(Node::from(&node)).unwrap()["drain"]["drained_at"], "1970-01-01T00:00:00Z");
    }
}
