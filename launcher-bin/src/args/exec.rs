//! The flags of `lattice exec`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use clap::error::ErrorKind;
use lattice_cluster_client::args::ServerArgs;
use lattice_commands::NodeCommand;
use lattice_console::values::node_list;
use lattice_dialects::distinct;

use super::LaunchArgs;

/// Usage of `lattice exec`.
pub(super) const USAGE: &str = "lattice exec [OPTIONS] NODES... -- COMMAND [ARGS]...";

pub(super) const AFTER_HELP: &str = "Examples:\n  \
    lattice exec node0 -- uptime\n  \
    lattice exec 'node[0-3]' -- nvidia-smi -L\n\n\
    The exit code is that of the command; of several, the highest. Nothing of it is left on the nodes when it has ended.";

/// The flags of `lattice exec`.
#[derive(Clone, Debug, Args)]
pub struct ExecArgs {
    /// Nodes, such as node0 or node[0-3]. With several nodes, each line starts with the name of its node, and standard input of the commands is
    /// empty.
    #[arg(value_name = "NODES", required = true, value_parser = node_list)]
    pub nodes: Vec<String>,
    /// Command and its arguments, which no shell interprets.
    #[arg(value_name = "COMMAND", last = true, required = true, num_args = 1..)]
    pub command: Vec<OsString>,
    /// Give the command a terminal, as for a shell or an editor; one node only.
    #[arg(long)]
    pub pty: bool,
    /// Print events as JSON, one on each line, as `lattice launch --json`.
    #[arg(long, conflicts_with = "pty")]
    pub json: bool,
    /// Run the command in DIR.
    #[arg(short = 'D', long, value_name = "DIR")]
    pub chdir: Option<PathBuf>,
    /// Allocation of the nodes [default: LATTICE_ALLOC_ID].
    #[arg(long, value_name = "ID", value_parser = NonEmptyStringValueParser::new())]
    pub alloc: Option<String>,
    /// The API server.
    #[command(flatten)]
    pub api: ServerArgs,
}

impl From<NodeCommand> for ExecArgs {
    fn from(NodeCommand { node, words, pty, allocation, api }: NodeCommand) -> Self {
        Self { nodes: vec![node], command: words, pty, json: false, chdir: None, alloc: allocation, api }
    }
}

impl ExecArgs {
    /// The equivalent launch: one process on each node, without PMI. The failure of one process does not end the remaining ones.
    ///
    /// # Errors
    /// Returns an error for a terminal on several nodes.
    pub(crate) fn launch(&self) -> Result<LaunchArgs, clap::Error> {
        // A list with a line for each slot contains a node several times.
        let names = distinct(hostlist::expand(&self.nodes.join(",")).unwrap_or_else(|_| self.nodes.clone()));
        let (nodes, number) = (hostlist::fold(&names), names.len());
        let flag = |name: &str, value: &dyn std::fmt::Display| OsString::from(format!("--{name}={value}"));
        let mut words = vec![
            flag("nodelist", &nodes),
            flag("nodes", &number),
            flag("ntasks", &number),
            flag("tasks-per-node", &1),
            flag("pmi", &"none"),
            flag("kill-on-bad-exit", &0),
        ];
        if self.pty {
            if number > 1 {
                let text = format!("--pty is for one node, and {number} are named\n");
                return Err(clap::Error::raw(ErrorKind::ArgumentConflict, text));
            }
            words.push("--pty".into());
        }
        match number {
            // Each JSON event contains the number of its node.
            1 if self.json => words.push("--json".into()),
            _ if self.json => words.extend(["--json".into(), flag("stdin", &"none")]),
            // A protocol over this command, such as that of rsync, has no line ends.
            1 => words.push("--unbuffered=pipe".into()),
            _ => words.extend([flag("label", &"node"), flag("stdin", &"none")]),
        }
        words.extend(self.alloc.iter().map(|id| flag("alloc", id)));
        words.extend(self.api.api.iter().map(|url| flag("api", url)));
        if let Some(directory) = &self.chdir {
            words.extend(["--chdir".into(), directory.clone().into_os_string()]);
        }
        words.push("--".into());
        words.extend(self.command.iter().cloned());
        super::launch_of_one_program(words)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::super::{Cli, Command};

    #[test]
    fn a_node_that_is_named_twice_is_one() {
        let cli = Cli::try_parse_from(["lattice", "exec", "n0", "n[0-1]", "n1", "--", "true"]).unwrap();
        let Command::Exec(args) = cli.command else { panic!("{:?}", cli.command) };
        let launch = args.launch().unwrap();
        assert_eq!(launch.placement.nodes.map(|nodes| nodes.most), Some(2));
    }

    #[test]
    fn events_of_commands_on_nodes_are_those_of_a_launch() {
        for nodes in ["n0", "n[0-1]"] {
            let cli = Cli::try_parse_from(["lattice", "exec", "--json", nodes, "--", "true"]).unwrap();
            let Command::Exec(args) = cli.command else { panic!("{:?}", cli.command) };
            let launch = args.launch().unwrap();
            assert!(launch.streams.json && launch.streams.label.is_none(), "{nodes}");
        }
    }
}
