//! Fabric of a cluster on this machine: a fake fabric manager, and directories as NICs. Everything between them is as on a real cluster.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::process::Command;

use lattice_session::random;

use serde::Serialize;

use super::args::DevClusterArgs;
use super::plan::Plan;
use crate::ground::Directory;

/// Fabric of a cluster on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fabric {
    /// No fabric.
    None,
    /// A fake manager, and directories as NICs.
    Fake,
}

impl Fabric {
    pub(super) fn of(args: &DevClusterArgs) -> Self {
        if args.fabric { Self::Fake } else { Self::None }
    }

    /// Value of `part` if there is a fabric.
    pub(super) fn fake<T>(self, part: impl FnOnce() -> T) -> Option<T> {
        match self {
            Self::None => None,
            Self::Fake => Some(part()),
        }
    }
}

/// Name of the cluster at the manager.
const CLUSTER: &str = "dev";
/// The NICs of each node.
const NICS: [&str; 2] = ["cxi0", "cxi1"];

/// Fabric section of the API server's configuration.
#[derive(Serialize)]
pub(super) struct ManagerFile {
    backend: &'static str,
    url: String,
    auth: AuthFile,
}

#[derive(Serialize)]
struct AuthFile {
    method: &'static str,
    token_url: String,
    client_id: &'static str,
    client_secret_file: PathBuf,
}

/// Fabric section of an agent's configuration.
#[derive(Serialize)]
pub(super) struct NicsFile {
    backend: &'static str,
    path: PathBuf,
}

/// Name of the cluster, and location of its manager.
pub(super) fn of_api(plan: &Plan, directory: &Directory) -> (&'static str, ManagerFile) {
    let url = format!("http://{}", plan.fabric);
    let auth = AuthFile {
        method: "oauth",
        token_url: format!("{url}/token"),
        client_id: CLUSTER,
        client_secret_file: directory.fabric_secret(),
    };
    (CLUSTER, ManagerFile { backend: "rest", url, auth })
}

/// Directory of a node's NICs.
pub(super) fn of_agent(node: &str, directory: &Directory) -> NicsFile {
    NicsFile { backend: "paper", path: directory.nics(node) }
}

/// Creates the NICs, and the secret that the API server shares with the manager.
pub(super) fn prepare(plan: &Plan, directory: &Directory) -> io::Result<()> {
    Directory::write_private(&directory.fabric_secret(), &format!("{}{}\n", random::id()?, random::id()?))?;
    for (node, nic) in plan.nodes.iter().flat_map(|node| NICS.map(|nic| (node, nic))) {
        fs::create_dir_all(directory.nics(&node.name).join(nic))?;
    }
    Ok(())
}

/// Command that starts the manager. `faults` is a file with the faults to simulate.
pub(super) fn manager(program: &PathBuf, plan: &Plan, directory: &Directory, faults: Option<&PathBuf>) -> Command {
    let mut command = Command::new(program);
    command.arg("--listen").arg(plan.fabric.to_string());
    command.arg("--client-secret-file").arg(directory.fabric_secret());
    if let Some(faults) = faults {
        command.arg("--script").arg(faults);
    }
    command
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::dev_cluster::plan::Kind;
    use crate::ground::Access;

    #[test]
    fn every_node_has_its_nics_and_the_secret_is_its_owners() {
        let plan = Plan::new(Kind::Namespaces, 2).unwrap();
        let directory = Directory::create(Access::Everybody).unwrap();
        prepare(&plan, &directory).unwrap();
        for node in ["node0", "node1"] {
            for nic in NICS {
                assert!(directory.nics(node).join(nic).is_dir(), "{node} {nic}");
            }
        }
        let secret = directory.fabric_secret();
        assert_eq!(fs::metadata(&secret).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_to_string(&secret).unwrap().trim_end().len(), 20, "two ids");
        directory.remove().unwrap();
    }

    #[test]
    fn the_manager_is_told_its_address_its_secret_and_its_faults() {
        let plan = Plan::new(Kind::Namespaces, 1).unwrap();
        let directory = Directory::create(Access::Everybody).unwrap();
        let words = |faults: Option<&PathBuf>| -> Vec<String> {
            let command = manager(&PathBuf::from("/bin/manager"), &plan, &directory, faults);
            command.get_args().map(|word| word.to_string_lossy().into_owned()).collect()
        };
        let secret = directory.fabric_secret().display().to_string();
        let plain = ["--listen", "127.0.0.1:50053", "--client-secret-file", &secret];
        assert_eq!(words(None), plain);
        assert_eq!(words(Some(&PathBuf::from("rules"))), [&plain[..], &["--script", "rules"]].concat());
        directory.remove().unwrap();
    }

    #[test]
    fn a_part_of_the_fabric_is_made_only_where_there_is_one() {
        assert_eq!(Fabric::None.fake(|| 1), None);
        assert_eq!(Fabric::Fake.fake(|| 1), Some(1));
    }
}
