//! The configurations of the daemons: what sets them apart from those of a real cluster is where things are, nothing else.

use std::fs;
use std::io;
use std::path::PathBuf;

use nix::unistd::geteuid;
use pmi_transport::identity::{Caller, TlsFiles};
use serde::Serialize;

use super::API;
use super::certificates;
use super::directory::Directory;
use super::fabric::{self, Fabric, ManagerFile, NicsFile};
use super::plan::{Node, Plan};

/// File for `lattice api --config`.
#[derive(Serialize)]
struct ApiFile {
    listen: [String; 1],
    socket: PathBuf,
    state: PathBuf,
    cluster: Option<&'static str>,
    tls: TlsFiles,
    fabric: Option<ManagerFile>,
}

/// File for `lattice-agent --config`.
#[derive(Serialize)]
struct AgentFile<'a> {
    node_id: &'a str,
    listen: String,
    advertise: String,
    api: String,
    /// Whoever makes a cluster as root launches as root; nobody else becomes root by it.
    allow_root: bool,
    tls: TlsFiles,
    fabric: Option<NicsFile>,
}

/// Writes the configurations of all daemons, and the nodes' `/etc/hosts`.
pub(super) fn write(plan: &Plan, directory: &Directory, fabric: Fabric) -> io::Result<()> {
    fs::write(directory.hosts(), plan.hosts_file())?;
    let (cluster, section) = fabric.fake(|| fabric::of_api(plan, directory)).unzip();
    let api = ApiFile {
        listen: [plan.api.to_string()],
        socket: directory.api_socket(),
        state: directory.api_state(),
        cluster,
        tls: certificates::of(&Caller::Api, directory),
        fabric: section,
    };
    write_file(directory, API, &api)?;
    plan.nodes.iter().try_for_each(|node| write_file(directory, &node.name, &agent(node, plan, directory, fabric)))
}

fn agent<'a>(node: &'a Node, plan: &Plan, directory: &Directory, fabric: Fabric) -> AgentFile<'a> {
    AgentFile {
        node_id: &node.name,
        listen: node.agent.to_string(),
        advertise: node.agent.to_string(),
        api: format!("https://{}", plan.api),
        allow_root: geteuid().is_root(),
        tls: certificates::of(&Caller::Agent(node.name.clone()), directory),
        fabric: fabric.fake(|| fabric::of_agent(&node.name, directory)),
    }
}

fn write_file(directory: &Directory, daemon: &str, content: &impl Serialize) -> io::Result<()> {
    let text = toml::to_string(content).map_err(io::Error::other)?;
    Directory::write_private(&directory.config(daemon), &text)
}
