//! The list of commands in `lattice --help`, in groups. It is text, since a start of a rank must not wait for its composition.

use std::fmt::Write as _;

use clap::builder::styling::Style;

/// Template of the help, without colours.
const TEMPLATE: &str = "\
{about-with-newline}
{usage-heading} {usage}

Run:
  launch       Run a program as the ranks of a job [aliases: run]
  srun         The same, with the command line of srun
  mpiexec      The same, with the command line of mpiexec
  mpirun       The same, with the command line of mpirun
  exec         Run a command once on each named node of an allocation, without ssh
  batch        Run a script when nodes are free
  debug        Run gdb on ranks of a launch

Look:
  launches     Show your launches on this machine and on the cluster [aliases: ps, list, jobs, ls]
  status       Show the progress of each rank of a launch, node by node
  top          Show the processor, memory and I/O use of each rank of a launch
  stacks       Show the call stacks of the ranks of a launch, merged into a tree of callers
  explain      Explain an exit code, or print the first cause of a launch with the next step
  attach       Follow a running launch; Ctrl-C detaches from it
  queue        Show waiting and running batch jobs and allocations

End:
  cancel       End launches, batch jobs or allocations [aliases: abort, kill]
  signal       Send a signal to ranks of a launch

Nodes:
  nodes        Show, drain and resume the nodes of the cluster
  alloc        Create, show and release allocations: nodes of a cluster to launch on
  start        Run a command, or your shell, with the nodes of another manager, or with hosts of ssh
  dev-cluster  Run a command, or your shell, in a cluster on this machine

Operate:
  api          Run the API server of a cluster, for its nodes, allocations and launches
  pki          Create the certificates of the API server, node agents and remote users
  doctor       Check this machine, the settings in force and the cluster, with the next step for each fault

Tools:
  completions  Print the completion script of a shell
  man          Print a man page in roff
  help         Print this message or the help of the given subcommand(s)

More, with --help each: cxi, pmi, proctable, scontrol, set

Options:
{options}{after-help}";

/// Template of the help, with the styles of headings and of commands.
pub(super) fn template(heading: &Style, command: &Style) -> String {
    styled(TEMPLATE, heading, command)
}

/// A template with the styles of headings, and of the names before two blanks. Styles are omitted where the help is not printed on a terminal.
pub(super) fn styled(template: &str, heading: &Style, name: &Style) -> String {
    let mut text = String::with_capacity(2 * template.len());
    for line in template.split_inclusive('\n') {
        let start = line.len() - line.trim_start().len();
        let (style, end) = match line[start..].find("  ") {
            Some(length) if start > 0 => (name, start + length),
            None if start == 0 && line.ends_with(":\n") => (heading, line.len() - 1),
            _ => (name, start),
        };
        let (before, styled, after) = (&line[..start], &line[start..end], &line[end..]);
        // Writing to a text cannot fail.
        let _ = match styled {
            "" => write!(text, "{before}{after}"),
            _ => write!(text, "{before}{style}{styled}{style:#}{after}"),
        };
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::CommandFactory;

    use super::*;
    use crate::args::Cli;

    /// Commands of other launchers, which have no definition.
    const FRONT_ENDS: [&str; 3] = ["srun", "mpiexec", "mpirun"];
    /// Start of the line with rarely used commands.
    const MORE: &str = "More, with --help each: ";

    #[test]
    fn styles_change_no_text() {
        assert_eq!(template(&Style::new(), &Style::new()), TEMPLATE);
        let styled = template(&Style::new().bold(), &Style::new().underline());
        assert!(styled.contains("\n\x1b[1mRun:\x1b[0m\n  \x1b[4mlaunch\x1b[0m       Run a program"), "{styled}");
    }

    #[test]
    fn each_command_is_in_one_group_with_its_own_description() {
        let lines = TEMPLATE.lines().filter_map(|line| line.strip_prefix("  ")?.split_once(' '));
        let listed: Vec<(&str, &str)> = lines.map(|(name, text)| (name, text.trim_start())).collect();
        let more: Vec<&str> = TEMPLATE.lines().find_map(|line| line.strip_prefix(MORE)).unwrap().split(", ").collect();
        let all: BTreeSet<&str> = listed.iter().map(|(name, _)| *name).chain(more.iter().copied()).collect();
        assert_eq!(all.len(), listed.len() + more.len(), "{listed:?} {more:?}");
        let mut cli = Cli::command();
        cli.build();
        let defined = || cli.get_subcommands().filter(|command| !command.is_hide_set());
        assert_eq!(all, defined().map(clap::Command::get_name).chain(FRONT_ENDS).collect());
        for (name, text) in listed.into_iter().filter(|(name, _)| !FRONT_ENDS.contains(name)) {
            let command = defined().find(|command| command.get_name() == name).unwrap();
            let aliases = command.get_visible_aliases().collect::<Vec<_>>().join(", ");
            let aliases = if aliases.is_empty() { aliases } else { format!(" [aliases: {aliases}]") };
            assert_eq!(format!("{}{aliases}", command.get_about().unwrap()), text, "{name}");
            assert_eq!(command.get_all_aliases().count(), command.get_visible_aliases().count(), "{name}");
        }
    }
}
