//! Means to start an agent on each node: a table of the programs of other resource managers.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::args::Via;

/// Time limit for a node to join.
const PATIENCE: Duration = Duration::from_secs(90);
/// Time limit for pods: their images may have to be pulled.
const PATIENCE_WITH_PODS: Duration = Duration::from_secs(600);

/// Method to start the agents of a cluster.
#[derive(Clone, Debug)]
pub(super) struct Means {
    words: Vec<String>,
    pub(super) reach: Reach,
    pub(super) telling: MembershipTransport,
    /// Variables of the job that would change the behaviour of the program. They are removed.
    unset: &'static [&'static str],
    /// Variables of Lattice that are passed to the program.
    keep: &'static [&'static str],
    /// Variables from which a task reads the name of its node.
    pub(super) name_variables: &'static [&'static str],
    /// Time limit for a node to join, from the start of its program.
    pub(super) patience: Duration,
    /// Variable that identifies the manager's job. The program finds the job by it.
    pub(super) job_variable: Option<&'static str>,
}

/// Nodes that one call of the program reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// One node.
    Each,
    /// All nodes of the job.
    All,
}

/// Transport of the membership to an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MembershipTransport {
    /// Standard input of the program, which passes it on.
    Input,
    /// A file in the home directory, which all nodes share. It exists until all nodes have joined.
    File,
}

/// One step with one task on each node, concurrent with all other steps of the job.
const SRUN: &[&str] = &[
    "srun",
    "--nodes={count}",
    "--ntasks={count}",
    "--ntasks-per-node=1",
    "--nodelist={hosts}",
    "--overlap",
    "--mpi=none",
    "--cpu-bind=none",
    "--mem=0",
    "--kill-on-bad-exit=0",
    "--wait=0",
    "--input=all",
    "--export=ALL",
    "{command}",
];

/// The last word is for the login shell on the node.
const SSH: &[&str] = &["ssh", "-x", "-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=30", "{host}", "exec {command}"];

/// Variables of a job that `srun` reads as options.
const OPTIONS_OF_SRUN: &[&str] = &[
    "SLURM_CPUS_PER_TASK",
    "SRUN_CPUS_PER_TASK",
    "SLURM_TRES_PER_TASK",
    "SLURM_GPUS_PER_TASK",
    "SLURM_GPUS_PER_SOCKET",
    "SLURM_NTASKS_PER_GPU",
    "SLURM_NTASKS_PER_CORE",
    "SLURM_NTASKS_PER_SOCKET",
    "SLURM_CPUS_PER_GPU",
    "SLURM_GPU_BIND",
    "SLURM_MEM_BIND",
    "SLURM_EXACT",
    "SLURM_EXCLUSIVE",
    "SLURM_DISTRIBUTION",
    "SLURM_HINT",
    "SLURM_THREADS_PER_CORE",
    "SLURM_MEM_PER_CPU",
    "SLURM_MEM_PER_GPU",
    "SLURM_MEM_PER_NODE",
    "SLURM_STDINMODE",
    "SLURM_STDOUTMODE",
    "SLURM_STDERRMODE",
    "SLURM_TIMELIMIT",
    "SLURM_MULTI_PROG",
    "SLURM_LABELIO",
];

impl Means {
    /// Means of this way. `{host}` stands for the node, `{hosts}` for all nodes, `{count}` for their number, and `{command}` for the agent
    /// and its arguments. As a word of its own, `{command}` becomes several words; within a word, it is quoted for a shell. `{agent}` is
    /// the program of the agent on this machine.
    pub(super) fn of(via: &Via) -> Self {
        let (line, reach, telling): (&[&str], _, _) = match via {
            Via::Slurm => (SRUN, Reach::All, MembershipTransport::Input),
            Via::Pbs => (&["pbs_tmrsh", "{host}", "{command}"], Reach::Each, MembershipTransport::File),
            Via::Lsf => (&["blaunch", "{host}", "{command}"], Reach::Each, MembershipTransport::Input),
            Via::Sge => (&["qrsh", "-inherit", "-V", "{host}", "{command}"], Reach::Each, MembershipTransport::Input),
            Via::Flux => (&["flux", "exec", "--rank=all", "{command}"], Reach::All, MembershipTransport::Input),
            Via::Kubernetes => {
                (&["{agent}", "invite", "--within={patience}", "{host}"], Reach::Each, MembershipTransport::Input)
            }
            // `none` starts no agent.
            Via::None | Via::Ssh => (SSH, Reach::Each, MembershipTransport::Input),
            Via::Command(words) => return Self::of_line(words.clone(), Reach::Each, MembershipTransport::Input),
        };
        let means = Self::of_line(line.iter().map(|&word| word.to_owned()).collect(), reach, telling);
        let job_variable = match via {
            Via::Slurm => Some("SLURM_JOB_ID"),
            Via::Pbs => Some("PBS_JOBID"),
            Via::Lsf => Some("LSB_JOBID"),
            Via::Sge => Some("JOB_ID"),
            Via::Flux => Some("FLUX_URI"),
            Via::None | Via::Ssh | Via::Kubernetes | Via::Command(_) => None,
        };
        let means = Self { job_variable, ..means };
        match via {
            Via::Slurm => Self { unset: OPTIONS_OF_SRUN, name_variables: &["SLURMD_NODENAME"], ..means },
            Via::Kubernetes => Self { keep: &["LATTICE_JOIN_KEY_FILE"], patience: PATIENCE_WITH_PODS, ..means },
            _ => means,
        }
    }

    /// Means for an allocation of this machine alone. The agent is a child of this process, as daemons of Hydra and PRRTE are.
    pub(super) fn here() -> Self {
        Self::of_line(vec!["{command}".to_owned()], Reach::Each, MembershipTransport::Input)
    }

    fn of_line(words: Vec<String>, reach: Reach, telling: MembershipTransport) -> Self {
        Self {
            words,
            reach,
            telling,
            unset: &[],
            keep: &[],
            name_variables: &[],
            patience: PATIENCE,
            job_variable: None,
        }
    }

    /// The same means with further words after the name of the program.
    pub(super) fn with_words(mut self, words: &[&str]) -> Self {
        let behind = self.words.len().min(1);
        self.words.splice(behind..behind, words.iter().map(|&word| word.to_owned()));
        self
    }

    /// Command line of the program for these nodes. `agent` is the program of the agent here. `command` is the agent and its arguments on a
    /// node.
    pub(super) fn command(&self, hosts: &[String], agent: &Path, command: &[String]) -> Command {
        let list = hostlist::fold(hosts);
        let (program, patience) = (agent.to_string_lossy(), self.patience.as_secs().to_string());
        let (host, count) = (hosts.first().map_or("", String::as_str), hosts.len().to_string());
        let quoted = || command.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ");
        let filled = self.words.iter().flat_map(|word| match word.as_str() {
            "{command}" => command.to_vec(),
            "{agent}" => vec![program.clone().into_owned()],
            word => {
                let word = word.replace("{hosts}", &list).replace("{host}", host).replace("{count}", &count);
                let word = word.replace("{patience}", &patience);
                vec![if word.contains("{command}") { word.replace("{command}", &quoted()) } else { word }]
            }
        });
        let words: Vec<String> = filled.collect();
        let mut command = Command::new(words.first().map_or("", String::as_str));
        command.args(words.iter().skip(1));
        for name in self.unset {
            command.env_remove(name);
        }
        command.envs(self.keep.iter().filter_map(|name| Some((name, std::env::var_os(name)?))));
        command
    }

    /// Name of the program.
    pub(super) fn program(&self) -> &str {
        match self.words.first().map_or("", String::as_str) {
            "{agent}" | "{command}" => "lattice-agent",
            program => program,
        }
    }
}

/// The word, quoted for a shell.
fn quoted(word: &str) -> String {
    // No word has a zero byte.
    shlex::try_quote(word).map_or_else(|_| word.to_owned(), Into::into)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(via: &Via) -> String {
        let (hosts, agent) = (["n1", "n2"].map(str::to_owned), ["/opt/my agent", "join"].map(str::to_owned));
        let command = Means::of(via).command(&hosts, Path::new("/here/agent"), &agent);
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join("|")
    }

    #[test]
    fn each_manager_is_called_as_its_manual_says() {
        assert_eq!(
            line(&Via::Slurm),
            "srun|--nodes=2|--ntasks=2|--ntasks-per-node=1|--nodelist=n[1-2]|--overlap|--mpi=none|--cpu-bind=none|--mem=0|\
             --kill-on-bad-exit=0|--wait=0|--input=all|--export=ALL|/opt/my agent|join"
        );
        assert_eq!(line(&Via::Pbs), "pbs_tmrsh|n1|/opt/my agent|join");
        assert_eq!(line(&Via::Lsf), "blaunch|n1|/opt/my agent|join");
        assert_eq!(line(&Via::Sge), "qrsh|-inherit|-V|n1|/opt/my agent|join");
        assert_eq!(line(&Via::Flux), "flux|exec|--rank=all|/opt/my agent|join");
        assert_eq!(line(&Via::Kubernetes), "/here/agent|invite|--within=600|n1");
        assert_eq!(line(&Via::Ssh), "ssh|-x|-T|-o|BatchMode=yes|-o|ConnectTimeout=30|n1|exec '/opt/my agent' join");
    }

    #[test]
    fn an_agent_of_this_machine_is_started_without_a_manager() {
        let agent = ["/opt/my agent", "join"].map(str::to_owned);
        let command = Means::here().command(&["n1".to_owned()], Path::new("/here/agent"), &agent);
        assert_eq!(
            (command.get_program(), command.get_args().collect::<Vec<_>>()),
            ("/opt/my agent".as_ref(), vec!["join".as_ref()])
        );
    }

    #[test]
    fn a_command_of_the_users_has_the_agent_as_words_or_quoted_within_one() {
        let words = |words: &[&str]| Via::Command(words.iter().map(|&word| word.to_owned()).collect());
        assert_eq!(line(&words(&["rsh", "{host}", "{command}"])), "rsh|n1|/opt/my agent|join");
        let entered = words(&["sh", "-c", "enter {host}; exec {command}"]);
        assert_eq!(line(&entered), "sh|-c|enter n1; exec '/opt/my agent' join");
    }
}
