//! The list of commands in `lattice --help`, in groups. It is text, since a start of a rank must not wait for its composition.

/// Template of the help.
pub(super) const TEMPLATE: &str = "\
{about-with-newline}
{usage-heading} {usage}

Run:
  launch       Run a program as the ranks of a job
  srun         The same, with the command line of srun
  mpiexec      The same, with the command line of mpiexec or mpirun
  exec         Run a command once on each named node of an allocation, without ssh
  batch        Run a script when nodes are free
  debug        Run gdb on ranks of a launch

Look:
  launches     Show your launches on this machine and on the cluster
  status       Show the progress of each rank of a launch, node by node
  top          Show the processor, memory and I/O use of each rank of a launch
  stacks       Show the call stacks of the ranks of a launch, merged into a tree of callers
  attach       Follow a running launch; Ctrl-C detaches from it
  queue        Show waiting and running batch jobs and allocations
  proctable    Print where each rank of a launch runs, for debuggers

End:
  cancel       End waiting or running batch jobs, allocations or launches
  abort        End a launch
  signal       Send a signal to ranks of a launch

Nodes:
  nodes        Show, drain and resume the nodes of the cluster
  alloc        Create, show and release allocations: nodes of a cluster to launch on
  start        Run a command, or your shell, with the nodes of another manager, or with hosts of ssh
  dev-cluster  Run a command, or your shell, in a cluster on this machine

Connect:
  sets         Show the sets of this machine that you can call: your launches, and this command
  ping         Measure the round-trip time of a call to a process of a launch
  call         Call a method of a process of a launch, and print its answer

Operate:
  api          Run the API server of a cluster, for its nodes, allocations and launches
  pki          Create the certificates of the API server, node agents and remote users
  cxi          Manage fabric credentials; for administrators

Tools:
  pmi          Send PMI requests to the launcher of this process, as a rank of its job
  scontrol     Expand and fold lists of node names
  completions  Print the completion script of a shell
  man          Print a man page in roff
  help         Print this message or the help of the given subcommand(s)

Options:
{options}{after-help}";

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::CommandFactory;

    use super::*;
    use crate::args::Cli;

    /// Commands of other launchers, which have no definition.
    const FRONT_ENDS: [&str; 2] = ["srun", "mpiexec"];

    #[test]
    fn each_command_is_in_one_group_with_its_own_description() {
        let lines = TEMPLATE.lines().filter_map(|line| line.strip_prefix("  ")?.split_once(' '));
        let listed: Vec<(&str, &str)> = lines.map(|(name, text)| (name, text.trim_start())).collect();
        let all: BTreeSet<&str> = listed.iter().map(|(name, _)| *name).collect();
        assert_eq!(all.len(), listed.len(), "{listed:?}");
        let mut cli = Cli::command();
        cli.build();
        let defined = || cli.get_subcommands().filter(|command| !command.is_hide_set());
        assert_eq!(all, defined().map(clap::Command::get_name).chain(FRONT_ENDS).collect());
        for (name, text) in listed.into_iter().filter(|(name, _)| !FRONT_ENDS.contains(name)) {
            let about = defined().find(|command| command.get_name() == name).and_then(|command| command.get_about());
            assert_eq!(about.map(ToString::to_string).as_deref(), Some(text), "{name}");
        }
    }
}
