//! Nodes that the administrator has described in a file, with the kind that each node has or should have.
//!
//! ```toml
//! [[topology]]
//! name = "milan"
//! file = "milan.xml"          # from `lstopo --of xml` on such a node; relative to this file
//!
//! [[nodes]]
//! list = "node[0-499]"
//! topology = "milan"
//! ```

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use hostlist::HostlistError;
use lattice_daemon::settings_file::{self, SettingsFileError};
use lattice_inventory::Template;
use lattice_inventory::plain_file::{self, PlainFileError};
use lattice_inventory::xml::{self, XmlError};
use serde::Deserialize;

use super::nodes::NODES_MAX;

/// The most bytes that are read of one file.
const FILE_MAX: u64 = 16 * 1024 * 1024;

/// Nodes with the kinds that they should have.
#[derive(Clone, Debug, Default)]
pub(crate) struct ListedNodes {
    topologies: Vec<Topology>,
    /// Index of each node's topology.
    nodes: HashMap<String, usize>,
}

/// A kind of node with its name.
#[derive(Clone, Debug)]
pub(crate) struct Topology {
    pub name: String,
    pub template: Template,
}

/// Reason why a file cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ListedNodesError {
    #[error(transparent)]
    File(#[from] SettingsFileError),
    #[error(transparent)]
    Plain(#[from] PlainFileError),
    #[error("topology {name:?}: {source}")]
    Read { name: String, source: PlainFileError },
    #[error("topology {name:?}: {} is no topology: {source}", path.display())]
    Xml { name: String, path: PathBuf, source: XmlError },
    #[error("there are two topologies {name:?}")]
    TwoTopologies { name: String },
    #[error("{list:?} are to have the topology {name:?}, and there is none of that name")]
    NoTopology { list: String, name: String },
    #[error(transparent)]
    List(#[from] HostlistError),
    #[error("{node} is listed twice")]
    TwoLists { node: String },
}

/// Contents of the file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    topology: Vec<TopologyEntry>,
    #[serde(default)]
    nodes: Vec<NodesEntry>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TopologyEntry {
    name: String,
    file: PathBuf,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NodesEntry {
    list: String,
    topology: String,
}

impl ListedNodes {
    /// Reads a file, and the files that it names.
    ///
    /// # Errors
    /// See the variants of [`ListedNodesError`].
    pub(crate) fn read(path: &Path) -> Result<Self, ListedNodesError> {
        let file: File = settings_file::parse(&plain_file::read_text(path, FILE_MAX)?, path)?;
        let mut listed = Self::default();
        for TopologyEntry { name, file } in file.topology {
            let path = path.parent().unwrap_or(Path::new("")).join(file);
            if listed.topologies.iter().any(|topology| topology.name == name) {
                return Err(ListedNodesError::TwoTopologies { name });
            }
            let text = match plain_file::read_text(&path, FILE_MAX) {
                Ok(text) => text,
                Err(source) => return Err(ListedNodesError::Read { name, source }),
            };
            match xml::read(&text) {
                Ok(template) => listed.topologies.push(Topology { name, template }),
                Err(source) => return Err(ListedNodesError::Xml { name, path, source }),
            }
        }
        for NodesEntry { list, topology } in file.nodes {
            let Some(index) = listed.topologies.iter().position(|known| known.name == topology) else {
                return Err(ListedNodesError::NoTopology { list, name: topology });
            };
            for node in hostlist::expand_at_most(&list, NODES_MAX)? {
                if listed.nodes.insert(node.clone(), index).is_some() {
                    return Err(ListedNodesError::TwoLists { node });
                }
            }
        }
        Ok(listed)
    }

    /// The kind that a node should have; `None` for a node that is not listed.
    pub(crate) fn of(&self, node: &str) -> Option<&Topology> {
        self.topologies.get(*self.nodes.get(node)?)
    }

    /// All listed nodes, with their kinds.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &Topology)> {
        self.nodes.iter().filter_map(|(node, index)| Some((node.as_str(), self.topologies.get(*index)?)))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    use super::*;

    const XML: &str = r#"<topology version="2.0"><object type="Machine" cpuset="0x0000000f">
        <object type="Package" os_index="0" cpuset="0x0000000f">
        <object type="NUMANode" os_index="0" cpuset="0x0000000f" local_memory="8589934592"/></object>
        </object></topology>"#;

    /// Reads a file in a directory in which `node.xml` describes a node of four CPUs.
    pub(crate) fn read(text: &str) -> Result<ListedNodes, String> {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("node.xml"), XML).unwrap();
        std::fs::write(directory.path().join("broken.xml"), &XML[..100]).unwrap();
        std::fs::File::create(directory.path().join("large.xml")).unwrap().set_len(1 << 31).unwrap();
        mkfifo(&directory.path().join("fifo.xml"), Mode::S_IRWXU).unwrap();
        std::fs::write(directory.path().join("inventory.toml"), text).unwrap();
        ListedNodes::read(&directory.path().join("inventory.toml")).map_err(|error| error.to_string())
    }

    #[test]
    fn nodes_are_of_the_kinds_that_a_file_names() {
        let listed = read(
            "[[topology]]\nname = 'milan'\nfile = 'node.xml'\n
             [[nodes]]\nlist = 'n[0-3]'\ntopology = 'milan'",
        )
        .unwrap();
        assert_eq!(listed.of("n3").map(|topology| topology.template.cpus.len()), Some(4));
        assert!(listed.of("n4").is_none() && listed.iter().count() == 4);
    }

    #[test]
    fn a_list_that_is_a_fifo_is_refused_at_once() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("inventory.toml");
        mkfifo(&path, Mode::S_IRWXU).unwrap();
        let error = ListedNodes::read(&path).unwrap_err().to_string();
        assert!(error.ends_with("/inventory.toml is a FIFO; only regular files are read"), "{error}");
    }

    #[test]
    fn a_file_that_makes_no_sense_is_refused_with_its_fault() {
        let check = |text: &str, expected: &str| {
            let error = read(text).unwrap_err();
            assert!(error.contains(expected), "{error}");
        };
        let milan = "[[topology]]\nname = 'milan'\nfile = 'node.xml'\n";
        check("colour = 1", "unknown field");
        check(&format!("{milan}{milan}"), "two topologies \"milan\"");
        check("[[topology]]\nname = 'rome'\nfile = 'absent.xml'", "topology \"rome\": cannot read");
        check("[[topology]]\nname = 'rome'\nfile = 'broken.xml'", "broken.xml is no topology: ");
        check("[[topology]]\nname = 'rome'\nfile = 'fifo.xml'", "/fifo.xml is a FIFO; only regular files are read");
        check(
            "[[topology]]\nname = 'rome'\nfile = 'large.xml'",
            "/large.xml has 2147483648 bytes; at most 16777216 are",
        );
        check("[[nodes]]\nlist = 'n0'\ntopology = 'rome'", "\"n0\" are to have the topology \"rome\"");
        let nodes = |list: &str| format!("[[nodes]]\nlist = '{list}'\ntopology = 'milan'\n");
        check(&format!("{milan}{}{}", nodes("n[0-3]"), nodes("n[3-4]")), "n3 is listed twice");
        check(&format!("{milan}{}", nodes("n[0-")), "without its partner");
        check(&format!("{milan}{}", nodes("n[0-999999]")), "more than");
    }
}
