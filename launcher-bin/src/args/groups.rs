//! The list of commands in `lattice --help`, in groups.

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
  status       Show the progress of each rank of a launch
  top          Show the processor, memory and I/O use of each rank
  stacks       Show the functions that the ranks of a launch are in, as a tree
  attach       Follow a running launch
  queue        Show waiting and running batch jobs and allocations
  proctable    Print the host and process of each rank, for debuggers

End:
  cancel       End batch jobs, allocations or launches
  abort        End a launch
  signal       Send a signal to ranks of a launch

Nodes:
  nodes        Show, drain and resume the nodes of the cluster
  alloc        Create, show and release allocations
  start        Run a shell with the nodes of another manager, or with hosts of ssh
  dev-cluster  Run a shell in a cluster on this machine

Connect:
  sets         Show the sets that you can call: your launches, and this command
  ping         Measure the round-trip time of a call to a process of a launch
  call         Call a method of a process of a launch

Operate:
  api          Run the API server of a cluster
  pki          Create certificates
  cxi          Manage fabric credentials

Tools:
  pmi          Send PMI requests to the launcher of this process
  scontrol     Expand and fold lists of node names
  completions  Print the completion script of a shell
  man          Print a man page
  help         Print the help of a command

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
    fn each_command_is_in_one_group() {
        let lines = TEMPLATE.lines().filter_map(|line| line.strip_prefix("  "));
        let listed: Vec<&str> = lines.filter_map(|line| line.split(' ').next()).collect();
        let all: BTreeSet<&str> = listed.iter().copied().collect();
        assert_eq!(all.len(), listed.len(), "{listed:?}");
        let mut cli = Cli::command();
        cli.build();
        let defined = cli.get_subcommands().filter(|command| !command.is_hide_set()).map(clap::Command::get_name);
        assert_eq!(all, defined.chain(FRONT_ENDS).collect());
    }
}
