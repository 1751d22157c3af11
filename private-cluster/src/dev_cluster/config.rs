//! Configurations of the daemons. They differ from a real cluster in the locations of files, and in the permitted users.

use std::io;
use std::path::PathBuf;

use nix::unistd::geteuid;
use pmi_transport::identity::{Caller, TlsFiles};
use rank_spawner::write_own_file;
use serde::Serialize;

use super::fabric::{self, Fabric, ManagerFile, NicsFile};
use super::plan::{Node, Plan};
use crate::ground::{API, ApiSettings, Directory};

/// All users of this machine may use the cluster, including system accounts.
const MIN_UID: u32 = 1;

/// File for `lattice api --config`.
#[derive(Serialize)]
struct ApiFile {
    #[serde(flatten)]
    settings: ApiSettings,
    cluster: Option<&'static str>,
    fabric: Option<ManagerFile>,
}

/// File for `lattice-agent --config`.
#[derive(Serialize)]
struct AgentFile<'a> {
    node_id: &'a str,
    listen: String,
    advertise: String,
    api: String,
    /// Root launches as root in a cluster that root created. No other user becomes root by it.
    allow_root: bool,
    min_uid: u32,
    runtime_dir: PathBuf,
    /// No process outlives the cluster.
    when_stopped: &'static str,
    tls: TlsFiles,
    fabric: Option<NicsFile>,
}

/// Writes the configurations of all daemons, and the nodes' `/etc/hosts`.
pub(super) fn write(plan: &Plan, directory: &Directory, fabric: Fabric) -> io::Result<()> {
    write_own_file(&directory.hosts(), 0o644, plan.hosts_file().as_bytes())?;
    let (cluster, section) = fabric.fake(|| fabric::of_api(plan, directory)).unzip();
    let api =
        ApiFile { settings: ApiSettings::new(directory, plan.api.to_string(), MIN_UID), cluster, fabric: section };
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
        min_uid: MIN_UID,
        runtime_dir: directory.runtime(),
        when_stopped: "end",
        tls: directory.certificates(&Caller::Agent(node.name.clone())),
        fabric: fabric.fake(|| fabric::of_agent(&node.name, directory)),
    }
}

fn write_file(directory: &Directory, daemon: &str, content: &impl Serialize) -> io::Result<()> {
    let text = toml::to_string(content).map_err(io::Error::other)?;
    Directory::write_private(&directory.config(daemon), &text)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use toml::Table;

    use clap::Parser;

    use super::*;
    use crate::dev_cluster::certificates;
    use crate::dev_cluster::plan::Kind;
    use crate::ground::Access;

    /// Files that the daemons of a cluster with two nodes read.
    fn written(fabric: Fabric) -> (Table, Table, Table) {
        let plan = Plan::new(Kind::Namespaces, 2).unwrap();
        let directory = Directory::create(Access::Everybody).unwrap();
        write(&plan, &directory, fabric).unwrap();
        let read = |daemon: &str| -> Table {
            let path = directory.config(daemon);
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600, "{daemon} may have secrets");
            toml::from_str(&fs::read_to_string(path).unwrap()).unwrap()
        };
        let files = (read(API), read("node0"), read("node1"));
        assert_eq!(fs::read_to_string(directory.hosts()).unwrap(), plan.hosts_file());
        directory.remove().unwrap();
        files
    }

    /// A line of `lattice api`.
    #[derive(Debug, Parser)]
    struct Api {
        #[command(flatten)]
        args: lattice_api_server::args::ApiArgs,
    }

    #[test]
    fn every_daemon_knows_its_address_and_that_of_the_api_server() {
        let (api, first, second) = written(Fabric::None);
        assert_eq!(api["listen"].as_array().unwrap()[0].as_str(), Some("10.20.0.254:50051"));
        for (agent, name, address) in [(&first, "node0", "10.20.0.1:50052"), (&second, "node1", "10.20.0.2:50052")] {
            assert_eq!(agent["node_id"].as_str(), Some(name));
            assert_eq!(agent["listen"], agent["advertise"]);
            assert_eq!(agent["listen"].as_str(), Some(address));
            assert_eq!(agent["api"].as_str(), Some("https://10.20.0.254:50051"));
            assert!(agent["tls"]["cert"].as_str().unwrap().contains(name), "each has a certificate of its own");
        }
    }

    #[test]
    fn only_a_cluster_with_a_fabric_names_a_manager() {
        let (api, agent, _) = written(Fabric::None);
        assert!(!api.contains_key("fabric") && !api.contains_key("cluster") && !agent.contains_key("fabric"));
        let (api, agent, _) = written(Fabric::Fake);
        assert!(
            api["fabric"]["url"].as_str().unwrap().starts_with("http://127.0.0.1:"),
            "keys stay on the loopback interface"
        );
        assert!(api.contains_key("cluster") && agent.contains_key("fabric"));
    }

    #[test]
    fn a_directory_is_removed_with_all_that_is_in_it() {
        let directory = Directory::create(Access::Everybody).unwrap();
        let path = directory.path().to_owned();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o711, "others see nothing on their way");
        fs::create_dir_all(path.join("nics/node0")).unwrap();
        directory.remove().unwrap();
        assert!(!path.exists());
    }

    /// If the server rejected the file, the only symptom would be an API server that does not start.
    #[test]
    fn the_api_server_takes_the_settings_that_are_written_for_it() {
        let plan = Plan::new(Kind::Namespaces, 2).unwrap();
        for fabric in [Fabric::None, Fabric::Fake] {
            let directory = Directory::create(Access::Everybody).unwrap();
            certificates::issue(&plan, &directory).unwrap();
            fabric::prepare(&plan, &directory).unwrap();
            write(&plan, &directory, fabric).unwrap();
            let line = ["api", "--check-config", "--config"].map(Into::into).into_iter().chain([directory.config(API)]);
            let Api { args } = Api::parse_from(line);
            let outcome = lattice_api_server::run(&args).map_err(|error| error.to_string());
            assert!(matches!(outcome, Ok(lattice_api_server::Outcome::Checked)), "{fabric:?}: {:?}", outcome.err());
            directory.remove().unwrap();
        }
    }

    #[test]
    fn each_daemon_has_a_certificate_that_names_it() {
        let plan = Plan::new(Kind::Namespaces, 2).unwrap();
        let directory = Directory::create(Access::Everybody).unwrap();
        certificates::issue(&plan, &directory).unwrap();
        for caller in [Caller::Api, Caller::Agent("node0".to_owned()), Caller::Agent("node1".to_owned())] {
            let security = pmi_transport::identity::Security::from_files(&directory.certificates(&caller)).unwrap();
            assert_eq!(security.caller(), &caller);
        }
        directory.remove().unwrap();
    }
}
